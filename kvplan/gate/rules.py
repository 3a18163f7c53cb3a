"""The gate's rules: what each looks at, what it says, and the value that would pass. One docs page each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from kvplan.errors import FailureClass, KvplanError
from kvplan.gate.judge import serving
from kvplan.gate.result import Finding

if TYPE_CHECKING:
    from kvplan.gate.judge import Judged
    from kvplan.gate.result import Severity

_LACK_OF_KV: Final = (FailureClass.KV_TOO_SMALL, FailureClass.NO_KV_MEMORY)


class Rule(Protocol):
    """A question to one judged launch."""

    id: str
    name: str

    def check(self, judged: Judged) -> Finding | None:
        """The finding, None when the launch passes."""


def finding(
    rule: Rule, judged: Judged, severity: Severity, message: str, passes: str | None, flag: str | None = None
) -> Finding:
    """A finding at the flag's place, else at the launch's."""
    launch = judged.launch
    line, column = launch.places.get(flag or "", (0, 0))
    return Finding(
        rule=rule.id,
        name=rule.name,
        severity=severity,
        message=message,
        passes=passes,
        path=launch.path,
        line=line or launch.line,
        column=column or launch.column,
        launch=launch,
        end_line=line or launch.line,
        flag=flag,
    )


class WillNotStart:
    """vLLM is not expected to start on the card."""

    id = "KVP001"
    name = "will-not-start"

    def check(self, judged: Judged) -> Finding | None:
        """See Rule."""
        estimate = judged.estimate
        if estimate is None or estimate.verdict.starts != "no":
            return None
        message = f"will not start on {judged.gpu.name}: {estimate.message}"
        # Memory for the KV cache is a matter of the length; any other failure is the launch's as a whole.
        flag = "max_model_len" if estimate.verdict.failure in _LACK_OF_KV else None
        return finding(self, judged, "error", message, passing_settings(judged), flag)


class Tight:
    """vLLM may or may not start."""

    id = "KVP002"
    name = "tight"

    def check(self, judged: Judged) -> Finding | None:
        """See Rule."""
        estimate = judged.estimate
        if estimate is None or estimate.verdict.starts != "tight":
            return None
        chance = round(100 * estimate.verdict.probability)
        message = f"may not start on {judged.gpu.name}: a chance of {chance} %"
        return finding(self, judged, "warning", message, passing_settings(judged), "max_model_len")


class Refused:
    """vLLM refuses the flags before it looks at memory."""

    id = "KVP003"
    name = "refused-by-vllm"

    def check(self, judged: Judged) -> Finding | None:
        """See Rule."""
        longest = judged.planner.shape.longest_model_len
        if judged.refusal is not None:
            too_long = longest is not None and "max_model_len" in judged.refusal
            passes = f"--max-model-len {longest}" if too_long else None
            return finding(self, judged, "error", judged.refusal, passes, "max_model_len")
        for flag, why in judged.launch.invalid.items():
            message = f"vLLM refuses the value of --{flag.replace('_', '-')}: {why}"
            return finding(self, judged, "error", message, None, flag)
        return None


class UnknownFlag:
    """The pinned vLLM has no such option."""

    id = "KVP004"
    name = "unknown-flag"

    def check(self, judged: Judged) -> Finding | None:
        """See Rule."""
        names = judged.launch.unknown_flags
        if not names:
            return None
        version = judged.launch.vllm_version
        where = f"vLLM {version} has" if version else "no vLLM release that is known here has"
        severity: Severity = "error" if version else "warning"
        return finding(
            self, judged, severity, f"{where} no {', '.join(names)}", f"without {', '.join(names)}"
        )


class TooFewGpus:
    """The parallel sizes ask for more accelerators than the launch is given."""

    id = "KVP005"
    name = "too-few-gpus"

    def check(self, judged: Judged) -> Finding | None:
        """See Rule."""
        launch = judged.launch
        tensor, pipeline = (
            launch.flags.get(name, 1) for name in ("tensor_parallel_size", "pipeline_parallel_size")
        )
        if launch.num_gpus is None or not isinstance(tensor, int) or not isinstance(pipeline, int):
            return None
        if launch.num_gpus == 0 or tensor * pipeline <= launch.num_gpus:
            return None
        message = (
            f"takes {tensor * pipeline} GPUs (TP {tensor} x PP {pipeline}) and is given {launch.num_gpus}"
        )
        passes = f"--tensor-parallel-size {max(launch.num_gpus // pipeline, 1)}"
        return finding(self, judged, "error", message, passes, "tensor_parallel_size")


RULES: Final[tuple[Rule, ...]] = (WillNotStart(), Tight(), Refused(), UnknownFlag(), TooFewGpus())


def passing_settings(judged: Judged) -> str | None:
    """The longest max_model_len that starts, else the fewest GPUs that do; None when neither does."""
    estimate = judged.estimate
    if estimate is None:
        return None
    low, high = 0, estimate.max_model_len
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _starts(judged, max_model_len=middle) else (low, middle)
    if low >= min(256, estimate.max_model_len):
        # In whole hundreds, as people write it.
        return f"--max-model-len {low // 100 * 100 or low}"
    for size in (2, 4, 8):
        if size > estimate.settings.tensor_parallel_size and _starts(judged, tensor_parallel_size=size):
            return f"--tensor-parallel-size {size}"
    return None


def _starts(judged: Judged, **flags: int) -> bool:
    try:
        return judged.planner.estimate(serving(judged.launch).with_flags(**flags)).verdict.starts == "yes"
    except KvplanError:
        return False
