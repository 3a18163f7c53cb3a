"""Flags that vLLM does not take, takes no longer, or takes otherwise than is meant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kvplan.config.flag_table import flag_table
from kvplan.config.version import format_vllm_version
from kvplan.gate.redact import redact
from kvplan.gate.rules.base import Case, Rule, option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvplan.config.flag_table import Flag, Option
    from kvplan.config.version import VllmVersion
    from kvplan.gate.result import Finding, Severity

_LENGTH: Final = frozenset({"max_model_len"})
_PARALLEL: Final = frozenset({"tensor_parallel_size"})
_VALUES: Final = frozenset({"kv_cache_dtype", "block_size", "quantization", "dtype", "attention_backend"})

_INSTEAD: Final = {
    "cuda_graph_sizes": "--cudagraph-capture-sizes",
    "disable_mm_preprocessor_cache": "--mm-processor-cache-gb 0",
    "enable_multimodal_encoder_data_parallel": "--mm-encoder-tp-mode data",
    "enable_reasoning": "--reasoning-parser",
    "eplb_log_balancedness": "--eplb-config.log_balancedness",
    "eplb_step_interval": "--eplb-config.step_interval",
    "eplb_window_size": "--eplb-config.window_size",
    "guided_decoding_backend": "--structured-outputs-config.backend",
    "guided_decoding_disable_additional_properties": (
        "--structured-outputs-config.disable_additional_properties"
    ),
    "guided_decoding_disable_any_whitespace": "--structured-outputs-config.disable_any_whitespace",
    "guided_decoding_disable_fallback": "--structured-outputs-config.disable_fallback",
    "max_seq_len_to_capture": "--max-cudagraph-capture-size",
    "num_redundant_experts": "--eplb-config.num_redundant_experts",
    "override_pooler_config": "--pooler-config",
    "rope_scaling": "--hf-overrides",
    "rope_theta": "--hf-overrides",
    "task": "--runner and --convert",
}
"""Flag -> what says the same in later releases; named only where the release in question has it.

Source: deprecation notes of vLLM 0.9 to 0.13, engine/arg_utils.py and entrypoints/openai/cli_args.py.
"""


def _refused(case: Case) -> str | None:
    judged = case.judged
    return judged.refusal.message if judged is not None and judged.refusal is not None else None


class _RefusalOf(Rule):
    """vLLM refuses the flags because of one of a few."""

    flags: frozenset[str]

    def check(self, case: Case) -> Iterator[Finding]:
        """See Rule."""
        refusal = case.judged.refusal if case.judged is not None else None
        if refusal is None or refusal.flag not in self.flags:
            return
        yield self.finding(case, refusal.message, passes=refusal.passes, flag=refusal.flag)


class LongerThanModel(_RefusalOf):
    """max_model_len beyond the model's own."""

    id = "KVP010"
    name = "max-model-len-beyond-model"
    flags = _LENGTH


class UnsupportedValue(_RefusalOf):
    """A dtype, block size or quantisation that this card and release do not take."""

    id = "KVP011"
    name = "unsupported-value"
    flags = _VALUES


class TensorParallelSize(_RefusalOf):
    """A tensor parallel size that the model cannot be cut into."""

    id = "KVP012"
    name = "tensor-parallel-size"
    flags = _PARALLEL


class Refused(Rule):
    """vLLM refuses the flags for another reason."""

    id = "KVP003"
    name = "refused-by-vllm"
    each_flag = True

    def check(self, case: Case) -> Iterator[Finding]:
        """See Rule."""
        refusal = case.judged.refusal if case.judged is not None else None
        if refusal is not None and refusal.flag not in _LENGTH | _PARALLEL | _VALUES:
            yield self.finding(case, refusal.message, passes=refusal.passes, flag=refusal.flag)
        for flag, why in case.launch.invalid.items():
            message = f"vLLM refuses the value of {option(flag)}: {why}"
            yield self.finding(case, message, passes=_valid_value(flag), flag=flag)


def _valid_value(name: str) -> str:
    """What the flag takes; the value that stands there may hold a secret and is never quoted."""
    flag: Flag | None = flag_table().flags.get(name)
    if flag is None:
        return f"without {option(name)}"
    if flag.choices:
        return f"{option(name)} with one of {', '.join(flag.choices[:12])}"
    kinds = {
        "int": "a whole number",
        "human_int": "a whole number, or one like 8k",
        "human_int_or_auto": "a whole number, one like 8k, or auto",
        "float": "a number",
        "json": "a JSON object",
        "bool": "nothing behind it",
        "store_true": "nothing behind it",
    }
    return f"{option(name)} with {kinds.get(flag.kind, 'a value')}"


class UnknownFlag(Rule):
    """The release has no such option."""

    id = "KVP004"
    name = "unknown-flag"
    each_flag = True

    def check(self, case: Case) -> Iterator[Finding]:
        """See Rule."""
        version = _pinned(case)
        table = flag_table()
        if version is not None and version[:2] > table.newest[:2]:
            return  # its options are not known here: KVP023 says so
        for text in case.launch.unknown_flags:
            known = table.options.get(text)
            if known is None:
                yield self._known_to_none(case, text)
            elif version is not None:
                message = f"vLLM {format_vllm_version(version)} has no {text}: {_when(known, version)}"
                passes = _instead(known.flag.name, version) or f"without {text}"
                yield self.finding(case, message, passes=passes, flag=known.flag.name)

    def _known_to_none(self, case: Case, text: str) -> Finding:
        near = _alike(text)
        severity: Severity = "error" if _pinned(case) is not None else "warning"
        return self.finding(
            case,
            f"no vLLM release that is known here has {text}",
            passes=f"{near} instead of {text}" if near else f"without {text}",
            flag=text,
            severity=severity,
        )


def _alike(text: str) -> str | None:
    """The option that is spelt most alike; a file of invented ones gets no more than some looked up."""
    if text not in _looked_up and len(_looked_up) < _MOST_LOOKED_UP and len(text) <= _LONGEST_OPTION:
        import difflib

        near = difflib.get_close_matches(text, flag_table().options, n=1, cutoff=_ALIKE)
        _looked_up[text] = next(iter(near), None)
    return _looked_up.get(text)


_looked_up: Final[dict[str, str | None]] = {}
_MOST_LOOKED_UP: Final = 100
"""Each takes 5 to 10 ms: it is held against all options of all releases."""
_LONGEST_OPTION: Final = 60
_ALIKE: Final = 0.85
"""A letter or two apart: an option that merely sounds like it says something else and is no remedy."""


def _pinned(case: Case) -> VllmVersion | None:
    rules = case.version_rules
    return None if rules is None else rules.asked_version


def _when(known: Option, version: VllmVersion) -> str:
    if known.since is not None and version < known.since:
        return f"it comes with {format_vllm_version(known.since)}"
    last = known.until or flag_table().newest
    return f"{format_vllm_version(last)} was the last release with it"


def _instead(flag: str, version: VllmVersion) -> str | None:
    """What says the same in that release."""
    text = _INSTEAD.get(flag)
    if text is None:
        return None
    known = flag_table().options.get(text.split()[0].partition(".")[0])
    return f"{text} instead of {option(flag)}" if known is not None and known.is_in(version) else None


class DeprecatedFlag(Rule):
    """The release still takes the option and warns that a later one will not."""

    id = "KVP016"
    name = "deprecated-flag"
    severity = "warning"
    each_flag = True

    def check(self, case: Case) -> Iterator[Finding]:
        """See Rule."""
        version = _pinned(case)
        if version is None:
            return
        flags = flag_table().flags
        unknown = {
            known.flag.name
            for text in case.launch.unknown_flags
            if (known := flag_table().options.get(text)) is not None
        }
        for name in case.launch.flags:
            since = flags[name].deprecated_since if name in flags else None
            if since is None or since > version or name in unknown:
                continue
            message = (
                f"{option(name)} is deprecated since vLLM {format_vllm_version(since)} and goes in a later "
                "release"
            )
            passes = _instead(name, version) or f"without {option(name)}"
            yield self.finding(case, message, passes=passes, flag=name)


class TooFewGpus(Rule):
    """The parallel sizes ask for more accelerators than the launch is given."""

    id = "KVP005"
    name = "too-few-gpus"

    def check(self, case: Case) -> Iterator[Finding]:
        """See Rule."""
        launch = case.launch
        tensor, pipeline = (
            launch.flags.get(name, 1) for name in ("tensor_parallel_size", "pipeline_parallel_size")
        )
        if not launch.num_gpus or not isinstance(tensor, int) or not isinstance(pipeline, int):
            return
        if tensor * pipeline <= launch.num_gpus:
            return
        message = (
            f"takes {tensor * pipeline} GPUs (TP {tensor} x PP {pipeline}) and is given {launch.num_gpus}"
        )
        passes = f"--tensor-parallel-size {max(launch.num_gpus // pipeline, 1)}"
        limit = f"{launch.num_gpus} GPUs"
        yield self.finding(case, message, passes=passes, flag="tensor_parallel_size", limit=limit)


class Contradiction(Rule):
    """The config file and the command line say different things."""

    id = "KVP020"
    name = "contradicting-config"
    severity = "warning"
    each_flag = True

    def check(self, case: Case) -> Iterator[Finding]:
        """See Rule."""
        for flag, of_file in case.launch.overridden.items():
            wins = case.launch.model if flag == "model" else case.launch.flags.get(flag)
            message = (
                f"{option(flag)} is {_shown(flag, of_file)} in the config file and {_shown(flag, wins)} on "
                "the command line, which wins"
            )
            passes = f"{option(flag)} {_shown(flag, wins)} in one place only"
            yield self.finding(case, message, passes=passes, flag=flag)


def _shown(flag: str, value: Any) -> str:
    return str(redact(value, flag))


class NewerThanRules(Rule):
    """The release is newer than what is known here: nothing is guessed about it."""

    id = "KVP023"
    name = "newer-than-rules"
    severity = "warning"

    def check(self, case: Case) -> Iterator[Finding]:
        """See Rule."""
        rules = case.version_rules
        if rules is None or not rules.newer_than_known:
            return
        known = format_vllm_version(rules.version)
        message = (
            f"vLLM {format_vllm_version(rules.asked_version)} is newer than the rules known here ({known}): "
            "this launch's memory and flags are not judged"
        )
        passes = f"vLLM {known}, or a newer kvplan"
        yield self.finding(case, message, passes=passes, limit=f"up to {known}")


class NotAllowed(Rule):
    """The policy does not allow the flag, or not that value."""

    id = "KVP026"
    name = "not-allowed"
    each_flag = True

    def check(self, case: Case) -> Iterator[Finding]:
        """See Rule."""
        for flag, value in case.launch.flags.items():
            if case.terms.allows(flag, value):
                continue
            allowed = case.terms.allowed[flag]
            listed = ", ".join(_shown(flag, value) for value in allowed)
            what = f"{option(flag)} {_shown(flag, value)}" if allowed else option(flag)
            message = f"the policy does not allow {what}"
            passes = f"{option(flag)} with one of {listed}" if allowed else f"without {option(flag)}"
            yield self.finding(case, message, passes=passes, flag=flag, limit=listed or "not given")
