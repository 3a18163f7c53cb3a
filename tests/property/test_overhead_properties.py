"""What must hold of the overhead model whatever the launch."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan.memory.overhead import EncoderShape, MoeShape, OverheadInputs, combine, predict_overhead
from kvplan.memory.overhead.model import terms_of

VERSIONS = [(0, 6, 6), (0, 7, 3), (0, 8, 5), (0, 9, 0), (0, 9, 2), (0, 10, 2), (0, 11, 2), (0, 13, 0)]
VERSIONS += [(0, minor, 0) for minor in range(14, 34)]

FEW = settings(max_examples=40, deadline=None)

launches = st.builds(
    OverheadInputs,
    vllm_version=st.sampled_from(VERSIONS),
    architecture=st.sampled_from(["LlamaForCausalLM", "Qwen3ForCausalLM", "GptOssForCausalLM"]),
    hidden_size=st.integers(1, 128).map(lambda n: 128 * n),
    vocab_size=st.integers(1_000, 300_000),
    num_layers=st.integers(1, 128),
    intermediate_size=st.integers(0, 60_000),
    num_attention_heads=st.integers(1, 128),
    head_dim=st.sampled_from([64, 128, 256]),
    max_num_batched_tokens=st.integers(1, 65_536),
    max_num_seqs=st.integers(1, 2048),
    max_model_len=st.integers(16, 1_048_576),
    dtype_bytes=st.sampled_from([2, 4]),
    quantization=st.sampled_from([None, "fp8", "mxfp4", "awq"]),
    compute_capability=st.sampled_from([None, (7, 5), (8, 0), (8, 9), (9, 0), (10, 0), (12, 0), (12, 1)]),
    platform=st.sampled_from(["cuda", "other"]),
    unified_memory=st.booleans(),
    tensor_parallel_size=st.sampled_from([1, 2, 4, 8]),
    pipeline_parallel_size=st.sampled_from([1, 2, 4]),
    enforce_eager=st.booleans(),
    moe=st.none() | st.builds(MoeShape, st.integers(2, 512), st.integers(1, 16), st.integers(64, 8192)),
    encoder=st.none()
    | st.builds(
        EncoderShape,
        hidden_size=st.integers(256, 4096),
        intermediate_size=st.integers(256, 16_384),
        patches_per_token=st.sampled_from([1, 4, 16]),
        patch_values=st.integers(100, 2000),
        max_item_tokens=st.integers(64, 32_768),
        rows_per_token=st.sampled_from([1, 4]),
    ),
    is_mla=st.booleans(),
    has_sparse_indexer=st.booleans(),
    is_hybrid=st.booleans(),
)


def activations(facts: OverheadInputs, **changes: Any) -> int:
    return terms_of(facts._replace(**changes)).activations.bytes


@FEW
@given(launches)
def test_every_term_is_an_interval_of_sizes(facts: OverheadInputs) -> None:
    answer = predict_overhead(facts)
    for term in (answer.activations, answer.cuda_graphs, answer.other, answer.cuda_graphs_outside):
        assert 0 <= term.low <= term.mid <= term.high
    assert 0 <= answer.outside_budget.low <= answer.outside_budget.high


@FEW
@given(launches, st.integers(1, 1024))
def test_more_tokens_in_a_batch_never_take_less(facts: OverheadInputs, more: int) -> None:
    tokens = facts.max_num_batched_tokens
    assert activations(facts, max_num_batched_tokens=tokens + more) >= activations(facts)


@FEW
@given(launches, st.integers(1, 1024))
def test_more_sequences_never_take_less(facts: OverheadInputs, more: int) -> None:
    # Below 8 rows some versions sort instead of running the fused kernel, which takes more.
    fewer = facts._replace(max_num_seqs=facts.max_num_seqs + 8)
    assert activations(fewer, max_num_seqs=fewer.max_num_seqs + more) >= activations(fewer)


def ends(facts: OverheadInputs) -> tuple[int, int]:
    """Both ends of what is charged to one GPU beside weights and KV cache."""
    answer = predict_overhead(facts)
    charged = combine((answer.activations, answer.cuda_graphs, answer.other))
    return charged.high, answer.activations.high


@FEW
@given(launches, st.integers(1, 1024))
def test_the_high_ends_never_fall_with_more_sequences(facts: OverheadInputs, more: int) -> None:
    # From 8 rows on: below, some versions sort instead of running the fused kernel.
    fewer = facts._replace(max_num_seqs=facts.max_num_seqs + 8)
    before, after = ends(fewer), ends(fewer._replace(max_num_seqs=fewer.max_num_seqs + more))
    assert after[0] >= before[0] - 2, "two roundings to whole bytes"
    assert after[1] >= before[1]


@FEW
@given(launches, st.integers(1, 4096))
def test_the_high_ends_never_fall_with_more_tokens_in_a_batch(facts: OverheadInputs, more: int) -> None:
    larger = facts._replace(max_num_batched_tokens=facts.max_num_batched_tokens + more)
    before, after = ends(facts), ends(larger)
    assert after[0] >= before[0] - 2
    assert after[1] >= before[1]


def test_the_high_end_where_the_sampler_overtakes_the_decoder() -> None:
    """Llama-3.1-8B, 8,192 batched tokens, eager on an Ada card with vLLM 0.19.

    Decoder: 8,192 x (3 x 14,336 + 3 x 4,096) x 2 B = 864 MiB, known to a third; the sampler's 16-bit logits
    and 12 B beside them, 128,256 x 14 B a row and 64 MiB of hidden states, to a few percent. At 512 rows it
    is the larger (942 MiB and more), and still the decoder's doubt that bounds the peak.
    """
    facts = OverheadInputs(
        vllm_version=(0, 19, 0),
        architecture="LlamaForCausalLM",
        hidden_size=4096,
        vocab_size=128_256,
        num_layers=32,
        intermediate_size=14_336,
        num_attention_heads=32,
        head_dim=128,
        max_num_batched_tokens=8192,
        max_num_seqs=256,
        max_model_len=8192,
        dtype_bytes=2,
        compute_capability=(8, 9),
        platform="cuda",
        enforce_eager=True,
    )
    more = facts._replace(max_num_seqs=512)
    assert terms_of(facts).activations.decisive == "decoder"
    assert terms_of(more).activations.decisive == "sampler"
    assert (
        predict_overhead(more).activations.high
        >= predict_overhead(facts).activations.high
        > 1.2 * 864 * 2**20
    )


@FEW
@given(launches, st.integers(1, 100_000))
def test_a_larger_vocabulary_never_takes_less(facts: OverheadInputs, more: int) -> None:
    assert activations(facts, vocab_size=facts.vocab_size + more) >= activations(facts)


@FEW
@given(launches)
def test_a_longer_context_takes_no_more_unless_attention_is_sparse(facts: OverheadInputs) -> None:
    longer = activations(facts, max_model_len=2 * facts.max_model_len)
    assert longer >= activations(facts) if facts.has_sparse_indexer else longer == activations(facts)


@FEW
@given(launches)
def test_eager_never_captures_and_never_takes_more_activations(facts: OverheadInputs) -> None:
    eager = predict_overhead(facts._replace(enforce_eager=True))
    assert eager.cuda_graphs.high == 0
    assert activations(facts, enforce_eager=True) <= activations(facts, enforce_eager=False)


@FEW
@given(launches)
def test_more_graphs_never_take_less(facts: OverheadInputs) -> None:
    more = facts._replace(max_num_seqs=facts.max_num_seqs + 64)
    assert terms_of(more).graph_bytes >= terms_of(facts).graph_bytes


@FEW
@given(launches, launches)
def test_a_sum_is_never_wider_than_the_sum_of_widths(one: OverheadInputs, other: OverheadInputs) -> None:
    terms = (predict_overhead(one).other, predict_overhead(other).activations)
    total = combine(terms)
    assert total.mid == sum(t.mid for t in terms)
    assert total.high - total.low <= sum(t.high - t.low for t in terms) + 2
