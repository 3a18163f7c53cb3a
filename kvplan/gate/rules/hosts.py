"""What a launch does to the machine around the card: its bus, its memory, its other launches."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from kvplan.gate.rules.base import Case, Rule, Sight, option
from kvplan.gate.rules.passing import longest_that_passes, starts
from kvplan.units import GIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvplan.gate.found import LaunchFound
    from kvplan.gate.result import Finding
    from kvplan.memory.hardware import GpuSpec

_TOGETHER: Final = frozenset({"docker-compose", "supervisord"})
"""Formats whose launches of one file run at once on one machine; a script's may follow each other."""


class OffloadOverPcie(Rule):
    """Weights on the host cross the bus in every step, KV blocks whenever they are used again."""

    id = "KVP018"
    name = "offload-over-pcie"
    severity = "warning"
    each_flag = True

    def check(self, case: Case) -> Iterator[Finding]:
        """See Rule."""
        judged, estimate = case.judged, case.estimate
        if judged is None or estimate is None:
            return
        if estimate.settings.cpu_offload_bytes:
            offloaded = estimate.settings.cpu_offload_bytes
            message = f"{offloaded / GIB:.1f} GiB of weights cross PCIe in every step"
            message += _at_speed(judged.gpu, offloaded)
            answer = judged.ask(cpu_offload_gb=None)
            if answer is not None and starts(answer):
                passes: str | None = "without --cpu-offload-gb"
            else:
                passes = _without_offload(case)
            yield self.finding(case, message, passes=passes, flag="cpu_offload_gb", limit="0 GiB")
        if _number(case.launch.flags.get("kv_offloading_size")) > 0:
            needed = estimate.verdict.needed_bytes
            message = (
                "KV blocks kept on the host cross PCIe when they are used again: "
                f"{needed / GIB:.1f} GiB for a request of {estimate.max_model_len} tokens"
                f"{_at_speed(judged.gpu, needed)}"
            )
            flag = "kv_offloading_size"
            yield self.finding(case, message, passes=f"without {option(flag)}", flag=flag, severity="note")

    def sight(self, case: Case) -> Sight | None:
        """See Rule."""
        if case.estimate is None:
            return None
        offloaded = case.estimate.settings.cpu_offload_bytes / GIB
        return Sight(f"{offloaded:.1f} GiB over PCIe", -offloaded)


def _at_speed(gpu: GpuSpec, moved: int) -> str:
    speed = gpu.pcie_gbs_per_direction
    return "" if speed is None else f", {1000 * moved / (speed * 1e9):.0f} ms at {speed:g} GB/s"


def _without_offload(case: Case) -> str | None:
    """More cards, or a shorter length, with all weights on the card."""
    judged = case.judged
    if judged is None or judged.estimate is None:
        return None
    for factor in (2, 4, 8):
        size = judged.estimate.settings.tensor_parallel_size * factor
        answer = judged.ask(cpu_offload_gb=None, tensor_parallel_size=size)
        if answer is not None and starts(answer):
            return f"--tensor-parallel-size {size} without --cpu-offload-gb"
    found = longest_that_passes(case, lambda answer: starts(answer) and not answer.settings.cpu_offload_bytes)
    return found and f"{found} without --cpu-offload-gb"


class HostMemory(Rule):
    """What is kept on the host is more than the container may use."""

    id = "KVP019"
    name = "host-memory-too-small"

    def check(self, case: Case) -> Iterator[Finding]:
        """See Rule."""
        limit = case.launch.container_memory_bytes
        held = host_bytes(case)
        if limit is None or held < limit:
            return
        message = (
            f"keeps {held / GIB:.1f} GiB on the host and the container may use {limit / GIB:.1f} GiB: the "
            "kernel kills it"
        )
        least = math.floor(held / GIB) + 1
        passes = f"a memory limit of {least} GiB and what the server itself needs"
        yield self.finding(case, message, passes=passes, limit=f"{limit / GIB:.1f} GiB")

    def sight(self, case: Case) -> Sight | None:
        """See Rule."""
        held = host_bytes(case) / GIB
        return Sight(f"{held:.1f} GiB on the host", -held)


def host_bytes(case: Case) -> int:
    """Host memory that the flags set aside for one container.

    Source: vLLM 0.32.0 config/offload.py (cpu_offload_gb is per GPU), config/cache.py (kv_offloading_size is
    the sum over the ranks), v1/kv_offload/cpu/spec.py (cpu_bytes_to_use); 0.6.6 config.py (swap_space is per
    GPU).
    """
    flags = case.launch.flags
    ranks = _number(flags.get("tensor_parallel_size"), 1) * _number(flags.get("pipeline_parallel_size"), 1)
    held = _number(flags.get("cpu_offload_gb")) * ranks + _number(flags.get("kv_offloading_size"))
    rules = case.version_rules
    if rules is not None and rules.engine == "V0":
        held += _number(flags.get("swap_space")) * ranks
    transfer = flags.get("kv_transfer_config")
    extra = transfer.get("kv_connector_extra_config") if isinstance(transfer, dict) else None
    own = _number(extra.get("cpu_bytes_to_use")) if isinstance(extra, dict) else 0
    return int(held * GIB + own)


def _number(value: Any, default: float = 0) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return default
    return value if math.isfinite(value) else default


class SharedGpu(Rule):
    """Launches of one machine promise more of a GPU than there is."""

    id = "KVP021"
    name = "gpu-shared-beyond-one"

    def check(self, case: Case) -> Iterator[Finding]:
        """See Rule."""
        launch = case.launch
        sharing = _sharing(case)
        if not sharing or sharing[-1] is not launch:
            return  # said once, at the last of them
        shares = [(one, _share(one, case), max(one.replicas or 1, 1)) for one in sharing]
        total = sum(share * copies for _, share, copies in shares)
        count = sum(copies for _, _, copies in shares)
        if count < 2 or total <= 1:
            return
        gpus = ", ".join(launch.devices or ())
        message = f"{count} servers share GPU {gpus} and ask for {total:.2f} of it together"
        each = math.floor(100 / count) / 100
        passes = f"--gpu-memory-utilization {each:g} for each"
        yield self.finding(case, message, passes=passes, flag="gpu_memory_utilization", limit="1.0")


def _sharing(case: Case) -> list[LaunchFound]:
    """Launches that may use a GPU of this one's at the same time, this one among them, in order."""
    launch = case.launch
    if launch.format not in _TOGETHER or not launch.devices:
        return []
    own = set(launch.devices)
    return sorted(
        (
            one
            for one in case.neighbours
            if one.devices
            and own & set(one.devices)
            and (one.profile is None or launch.profile is None or one.profile == launch.profile)
            and "kv_cache_memory_bytes" not in one.flags
            and "gpu_memory_utilization" not in one.unresolved_flags
        ),
        key=lambda one: one.line,
    )


def _share(launch: LaunchFound, case: Case) -> float:
    given = launch.flags.get("gpu_memory_utilization")
    if isinstance(given, int | float):
        return float(given)
    from kvplan.gate.judge import newest_rules, version_rules_of

    rules = version_rules_of(launch, case.vllm_version) or newest_rules()
    return rules.gpu_memory_utilization
