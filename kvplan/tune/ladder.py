"""The ladder: from Transformers without a cache to tuned vLLM, one step after the other on the same load.

The steps are those of three articles on KV-cache tuning that docs/articles.md goes through: 32 users, prompts
of 1,500 tokens, answers of 512, vLLM first at 0.85 / 8192 / 32. Pure: what to try and at what scale.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from kvplan.load.workload import Workload
from kvplan.units import cdiv, round_up

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvplan.memory.kv_cache.plan import KvCachePlan

USERS: Final = 32
INPUT_LEN: Final = 1500
OUTPUT_LEN: Final = 512
SHARED_SHARE: Final = 2 / 3
"""Of a prompt that is a system prompt, in the load with a shared one: 1,000 of 1,500 tokens."""
UTILIZATION: Final = 0.85
MAX_MODEL_LEN: Final = 8192
CPU_USERS: Final = 8
CPU_LENGTH_FACTOR: Final = 8
"""On a CPU everything is smaller: a quarter of the users, an eighth of the lengths."""
CPU_BLOCK_SIZE: Final = 32
"""The smallest that vLLM's CPU backend starts with; stands for the 16 of a GPU."""
ARTICLES_KV_TOKENS: Final = 80_224
"""KV cache of Qwen2-7B in bf16 on a 24 GiB RTX 4090 at 0.85 / 8192 / 32, by kvplan's own memory model:
`kvplan estimate --model qwen2-7b --gpu 4090 --gpu-memory-utilization 0.85 --max-model-len 8192
--max-num-seqs 32` (74,928 to 96,688 tokens). 39 requests of 2,012 tokens."""

REPEATS: Final = 3
"""Of each load, on one server: the middle one is shown, and how far apart they were."""

RungName = Literal["no_cache", "cache", "start", "fp8", "prefix", "tuned"]
LoadName = Literal["own", "shared", "twice"]


@dataclass(frozen=True, slots=True)
class Rung:
    """One step of the ladder."""

    name: RungName
    title: str
    engine: Literal["transformers", "vllm"]
    changes: str
    """All that it changes at once against the step before."""
    flags: Mapping[str, Any] = field(default_factory=dict)
    """vLLM's; of the tuned step none until they are known."""
    use_cache: bool = True
    """Of Transformers."""


@dataclass(frozen=True, slots=True)
class Load:
    """One load, put on every vLLM step."""

    name: LoadName
    title: str
    users: int
    workload: Workload

    @property
    def num_requests(self) -> int:
        """Of one repeat: three waves; a P99 of them is close to the slowest."""
        return 3 * self.users


@dataclass(frozen=True, slots=True)
class Scale:
    """The articles' load as it is put on here, and what stands for their settings."""

    users: int
    input_len: int
    output_len: int
    max_model_len: int
    device: Literal["cuda", "cpu"]
    block_size: int | None
    kv_cache_memory_bytes: int | None
    """On CPU what stands for the utilisation: a KV cache that holds the same share of the load."""
    kv_cache_tokens: int | None
    """Of that size, in an unquantised cache."""

    @property
    def request_len(self) -> int:
        """Tokens of a request when it ends."""
        return self.input_len + self.output_len

    @property
    def shared_tokens(self) -> int:
        """Tokens of the system prompt, in whole blocks: prefix caching knows no part of one."""
        block = self.block_size or 16
        return max(block, int(self.input_len * SHARED_SHARE) // block * block)

    @property
    def users_factor(self) -> float:
        """The articles' users over ours."""
        return USERS / self.users

    @property
    def length_factor(self) -> float:
        """The articles' tokens a request over ours."""
        return (INPUT_LEN + OUTPUT_LEN) / self.request_len

    @property
    def is_full(self) -> bool:
        """The articles' own load."""
        return (self.users, self.input_len, self.output_len) == (USERS, INPUT_LEN, OUTPUT_LEN)

    def loads(self) -> tuple[Load, ...]:
        """Every load of the ladder: prompts of their own, a shared system prompt, twice the users."""
        own = Workload.fixed(self.input_len, self.output_len)
        shared = dataclasses.replace(
            own, shared_prefix_tokens=self.shared_tokens, name=f"{own.name}, shared system prompt"
        )
        return (
            Load("own", f"{self.users} users, every prompt its own", self.users, own),
            Load(
                "shared",
                f"{self.users} users, the first {self.shared_tokens:,} tokens of every prompt the same",
                self.users,
                shared,
            ),
            Load("twice", f"{2 * self.users} users, every prompt its own", 2 * self.users, own),
        )

    def as_dict(self) -> dict[str, Any]:
        """JSON types."""
        return dataclasses.asdict(self)


def lengths_for(device: str, input_len: int | None, output_len: int | None) -> tuple[int, int]:
    """Prompt and answer: as given, else the articles' on a GPU and an eighth of them on a CPU."""
    factor = CPU_LENGTH_FACTOR if device == "cpu" else 1
    return input_len or cdiv(INPUT_LEN, factor), output_len or cdiv(OUTPUT_LEN, factor)


def users_for(device: str, users: int | None) -> int:
    """Users: as given, else the articles' on a GPU and a quarter of them on a CPU."""
    return users or (CPU_USERS if device == "cpu" else USERS)


def scale_for(
    device: Literal["cuda", "cpu"], users: int, input_len: int, output_len: int, plan: KvCachePlan | None
) -> Scale:
    """The ladder's load and what stands for the articles' settings at that scale.

    Args:
        device: where it runs.
        users: at once.
        input_len: prompt tokens.
        output_len: answer tokens.
        plan: on CPU the arithmetic of an unquantised cache with blocks of `CPU_BLOCK_SIZE`.
    """
    request = input_len + output_len
    length_factor = (INPUT_LEN + OUTPUT_LEN) / request
    is_smaller = length_factor > 1
    max_model_len = round(MAX_MODEL_LEN / length_factor / 128) * 128 if is_smaller else MAX_MODEL_LEN
    max_model_len = max(max_model_len, round_up(request, 128))
    kv_bytes = kv_tokens = None
    if plan is not None:
        wanted = ARTICLES_KV_TOKENS * (users * request) / (USERS * (INPUT_LEN + OUTPUT_LEN))
        blocks = max(cdiv(int(wanted), plan.block_size), plan.blocks_for_request(max_model_len))
        kv_bytes = (blocks + 1) * plan.bytes_per_block
        kv_tokens = blocks * plan.block_size
    return Scale(
        users=users,
        input_len=input_len,
        output_len=output_len,
        max_model_len=max_model_len,
        device=device,
        block_size=None if plan is None else plan.block_size,
        kv_cache_memory_bytes=kv_bytes,
        kv_cache_tokens=kv_tokens,
    )


def rungs_for(scale: Scale, fixed: Mapping[str, Any]) -> tuple[Rung, ...]:
    """The six steps.

    Args:
        scale: the load and the memory.
        fixed: vLLM flags that every launch gets (dtype, enforce_eager …).
    """
    budget: dict[str, Any] = (
        {"gpu_memory_utilization": UTILIZATION}
        if scale.kv_cache_memory_bytes is None
        else {"kv_cache_memory_bytes": scale.kv_cache_memory_bytes, "block_size": scale.block_size}
    )
    start = {
        **fixed,
        **budget,
        "max_model_len": scale.max_model_len,
        "max_num_seqs": scale.users,
        "kv_cache_dtype": "auto",
        # On by default since V1: without the flag the step after next would change nothing.
        "enable_prefix_caching": False,
    }
    fp8 = {**start, "kv_cache_dtype": "fp8", "max_num_seqs": 2 * scale.users}
    prefix = {**fp8, "enable_prefix_caching": True}
    return (
        Rung(
            "no_cache",
            "Transformers, use_cache=False",
            "transformers",
            "nothing: every token computes the whole prompt again; one static batch of all users",
            use_cache=False,
        ),
        Rung(
            "cache",
            "Transformers, with its cache",
            "transformers",
            "the KV cache alone",
        ),
        Rung(
            "start",
            f"vLLM {_budget_words(scale)} / {scale.max_model_len} / {scale.users}",
            "vllm",
            "the engine: paged KV cache, continuous batching, its own kernels and scheduler, all at once; "
            "prefix caching is switched off",
            start,
        ),
        Rung(
            "fp8",
            f"+ FP8 KV cache, {2 * scale.users} seqs",
            "vllm",
            "two things: half the bytes a token, and twice the seats (which only more users than seats can "
            "use); answer quality is not looked at here",
            fp8,
        ),
        Rung("prefix", "+ prefix caching", "vllm", "prefix caching alone", prefix),
        Rung("tuned", "tuned", "vllm", "every setting that kvplan tune recommends, memory included"),
    )


def _budget_words(scale: Scale) -> str:
    return f"{UTILIZATION:g}" if scale.kv_cache_memory_bytes is None else f"({UTILIZATION:g})"


def scale_words(scale: Scale) -> tuple[str, ...]:
    """How this load differs from the articles', one sentence each."""
    if scale.is_full:
        return (f"the articles' load: {USERS} users, {INPUT_LEN:,} tokens in, {OUTPUT_LEN} out",)
    smaller = (
        f"scaled: {scale.users} users instead of {USERS} (1/{scale.users_factor:g}), {scale.input_len:,} + "
        f"{scale.output_len:,} tokens instead of {INPUT_LEN:,} + {OUTPUT_LEN} "
        f"(1/{scale.length_factor:.3g}), max_model_len {scale.max_model_len:,} instead of "
        f"{MAX_MODEL_LEN:,}, {scale.users} and {2 * scale.users} seats instead of {USERS} and {2 * USERS}"
    )
    if scale.kv_cache_tokens is None:
        return (smaller,)
    memory = (
        f"({UTILIZATION:g}) is a KV cache of {scale.kv_cache_tokens:,} tokens: the {ARTICLES_KV_TOKENS:,} "
        f"that kvplan estimates for Qwen2-7B at {UTILIZATION:g} on a 24 GiB RTX 4090, scaled like the load, "
        "so that it holds the same share of it; on a CPU the utilisation itself means another thing; blocks "
        f"of {scale.block_size} stand for 16"
    )
    return smaller, memory
