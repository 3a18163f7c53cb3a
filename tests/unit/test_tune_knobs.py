"""Knobs that a user adds to the search."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvplan.errors import InputError
from kvplan.tune.knobs import read_knobs

if TYPE_CHECKING:
    from pathlib import Path


def test_values_are_read_as_vllms_yaml_would_and_names_as_its_flags(tmp_path: Path) -> None:
    space = tmp_path / "space.yaml"
    space.write_text("block-size: [16, 32]\nkv_cache_dtype: [auto, fp8]\n")
    knobs = read_knobs(["--max-num-batched-tokens=2048,4096", "enable_prefix_caching=true,false"], str(space))
    assert knobs == {
        "block_size": (16, 32),
        "kv_cache_dtype": ("auto", "fp8"),
        "max_num_batched_tokens": (2048, 4096),
        "enable_prefix_caching": (True, False),
    }


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("max_num_batched_tokens", "has no values"),
        ("max_num_batched_tokens=2048", "needs two or more different values"),
        ("async_scheduling=true,true", "needs two or more different values"),
        ("max_model_len=2048,4096", "is not for the search"),
    ],
)
def test_a_malformed_knob_is_refused(given: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_knobs([given], None)


@pytest.mark.parametrize("text", ["- a\n", "block_size: 16\n", "a: [1\n"])
def test_a_malformed_space_is_refused_with_its_file(tmp_path: Path, text: str) -> None:
    space = tmp_path / "space.yaml"
    space.write_text(text)
    with pytest.raises(InputError, match=r"space\.yaml"):
        read_knobs([], str(space))


@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        # Nothing is spelt nearly like it: no offer (`nnodes` would have the same letters n, o and s).
        ("nosuch=1,2", "knob 'nosuch' is no flag of vLLM", "names are vLLM's, for example"),
        ("batch=1,2", "is no flag of vLLM", "names are vLLM's, for example"),
        ("max_seqs=1,2", "is no flag of vLLM", "did you mean max_num_seqs,"),
        ("--max-num-seq=1,2", "is no flag of vLLM", "did you mean max_num_seqs"),
        ("gpu_memory_utilisation=0.8,0.9", "is no flag of vLLM", "did you mean gpu_memory_utilization?"),
        # All its words, with others between them.
        ("max_tokens=1,2", "is no flag of vLLM", "max_num_batched_tokens"),
        # vLLM 0.32.0 has no --num-scheduler-steps any more (removed in 0.10), nor is a length for the search.
        ("num_schedule_steps=1,2", "is no flag of vLLM", "names are vLLM's, for example"),
        ("max_model_length=1,2", "is no flag of vLLM", "names are vLLM's, for example"),
    ],
)
def test_a_knob_that_vllm_lacks_is_refused_before_anything_is_planned(
    given: str, message: str, hint: str
) -> None:
    with pytest.raises(InputError) as caught:
        read_knobs([given], None)

    assert message in caught.value.message
    assert hint in (caught.value.hint or "")
