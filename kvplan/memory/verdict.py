"""Will vLLM start? A probability, a class and vLLM's own words, which change by version."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Literal

from kvplan.errors import FailureClass
from kvplan.record import FrozenRecord
from kvplan.units import GIB

if TYPE_CHECKING:
    from kvplan.config.version_rules import VersionRules
    from kvplan.memory.interval import Interval

YES_FROM: Final = 0.9
NO_UP_TO: Final = 0.1
_Z80: Final = 1.2815515655446004
"""Half an 80 % interval in standard deviations: `statistics.NormalDist().inv_cdf(0.9)`, whose module costs
5 ms of every start (fractions, decimal, random)."""


class Verdict(FrozenRecord):
    """Whether the server will start, and why not."""

    starts: Literal["yes", "tight", "no"]
    probability: float
    failure: FailureClass | None
    """The likeliest way to fail; None when `starts` is yes."""
    needed_bytes: int
    """KV cache that one request of max_model_len needs, as the start check counts it."""
    free_bytes: int
    """What is expected to be free when vLLM looks, before it loads anything."""


def probability_at_least(quantity: Interval, threshold: int) -> float:
    """P(quantity >= threshold), reading the 80 % interval as a normal with its own width on either side."""
    if quantity.exact:
        return 1.0 if quantity.mid >= threshold else 0.0
    side = quantity.high - quantity.mid if threshold > quantity.mid else quantity.mid - quantity.low
    if side == 0:
        return 1.0 if quantity.mid >= threshold else 0.0
    # The normal's upper tail: 1 - cdf(z) = erfc(z / sqrt(2)) / 2.
    return 0.5 * math.erfc((threshold - quantity.mid) / (side / _Z80) / math.sqrt(2))


def said(probability: float) -> Literal["yes", "tight", "no"]:
    """The word for a probability of starting: `yes` from 0.9, `no` up to 0.1, else `tight`."""
    if probability >= YES_FROM:
        return "yes"
    return "no" if probability <= NO_UP_TO else "tight"


def start_check_message(
    rules: VersionRules,
    *,
    max_model_len: int,
    needed_bytes: int,
    available_bytes: int,
    estimated_max_model_len: int | None,
    capacity_tokens: int,
) -> str:
    """The ValueError of the KV start check in the words of that version.

    Source: vLLM v1/core/kv_cache_utils.py::_check_enough_kv_cache_memory (0.14 to 0.32),
    check_enough_kv_cache_memory (0.7 to 0.13), worker/worker.py::raise_if_cache_size_invalid (V0).
    """
    if available_bytes <= 0:
        return _no_memory_message(rules)
    text = rules.start_check_text
    needed, available = _gib(needed_bytes, text), _gib(available_bytes, text)
    if text == "v0":
        return (
            f"The model's max seq len ({max_model_len}) is larger than the maximum number of tokens "
            f"that can be stored in KV cache ({capacity_tokens}). Try increasing "
            "`gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine."
        )
    unit = "GB" if text == "v07" else "GiB"
    possessive = "model's" if text == "v022" else "models's"
    opening = (
        f"To serve at least one request with the {possessive} max seq len ({max_model_len}), "
        f"({needed} {unit} KV cache is needed, which is larger than the available "
        f"KV cache memory ({available} {unit})."
    )
    estimate = ""
    if text == "v085":
        estimate = " Based on the available memory,"
    elif text != "v07" and estimated_max_model_len:
        estimate = (
            " Based on the available memory, the estimated maximum model length is "
            f"{estimated_max_model_len}."
        )
    cpu = " (which also controls CPU memory on the CPU backend)" if text == "v022" else ""
    closing = (
        f" Try increasing `gpu_memory_utilization`{cpu} or decreasing `max_model_len` when initializing the "
        "engine."
    )
    return opening + estimate + closing


def _no_memory_message(rules: VersionRules) -> str:
    cpu = ""
    if rules.start_check_text == "v022":
        cpu = " (this flag also controls CPU memory reservation on the CPU backend, despite its name)"
    return (
        "No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing "
        f"the engine{cpu}."
    )


def free_memory_message(
    *, free_bytes: int, total_bytes: int, gpu_memory_utilization: float, requested_bytes: int
) -> str:
    """The ValueError of the free-memory check; Source: vLLM 0.32.0 v1/worker/utils.py::request_memory."""
    return (
        f"Free memory on device cuda:0 ({_gib(free_bytes, 'v014')}/{_gib(total_bytes, 'v014')} GiB) on "
        f"startup is less than desired GPU memory utilization ({gpu_memory_utilization:g}, "
        f"{_gib(requested_bytes, 'v014')} GiB). Decrease GPU memory utilization or reduce GPU memory used by "
        "other processes."
    )


def _gib(size_bytes: int, text: str) -> str:
    """GiB as that version prints it: two decimals, from 0.14 with trailing zeros dropped ("5.0")."""
    if text in {"v014", "v022"}:
        return str(round(size_bytes / GIB, 2))
    return f"{size_bytes / GIB:.2f}"


def likeliest_failure(
    *,
    weights_bytes: int,
    total_bytes: int,
    available_kv_bytes: int,
    p_free_memory: float,
    p_kv: float,
) -> FailureClass:
    """The class of the failure that the expected numbers point to."""
    if weights_bytes > total_bytes:
        return FailureClass.OOM_WEIGHTS
    if p_free_memory < p_kv:
        return FailureClass.FREE_MEMORY_LOW
    return FailureClass.NO_KV_MEMORY if available_kv_bytes <= 0 else FailureClass.KV_TOO_SMALL
