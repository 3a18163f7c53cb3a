"""The exceptions that kvplan raises, each with what happened, a hint and an exit code.

KvplanError
├── InputError              a flag, file, config or profile is wrong (with file:line or key path)
│   ├── UnknownNameError    a model, GPU or profile that nobody knows; carries the nearest names
│   └── UnsupportedModelError  an architecture, attention kind or quantisation that has no exact rule
├── MissingDependencyError  an optional package is not installed; names the extra
├── EngineError             vLLM could not be started or died: class, decisive line, path of the log
└── LoadError               the load client could not do its work

A trial that does not fit, a gate that says no and a target that nothing meets are values, not exceptions.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class ExitCode(enum.IntEnum):
    """What the process tells its caller; the table in docs/exit-codes.md is checked against this."""

    OK = 0
    """Done, or judged: the answer is yes."""
    NO = 1
    """Judged, and the answer is no: does not fit, gate failed, no setting meets the target."""
    CANNOT_JUDGE = 2
    """Bad input, unsupported model, vLLM never ready, base missing."""
    BUG = 3
    """A fault of kvplan itself; the traceback is on stderr."""
    INTERRUPTED = 130
    """Ctrl-C or SIGTERM, after everything started was stopped and everything measured was saved."""


class FailureClass(enum.StrEnum):
    """Why a vLLM start or run failed. One vocabulary for estimate, engine, journal and doctor."""

    NO_KV_MEMORY = "no_kv_memory"
    KV_TOO_SMALL = "kv_too_small"
    FREE_MEMORY_LOW = "free_memory_low"
    OOM_WEIGHTS = "oom_weights"
    OOM_PROFILE = "oom_profile"
    OOM_CUDAGRAPH = "oom_cudagraph"
    OOM_SAMPLER = "oom_sampler"
    OOM_SERVING = "oom_serving"
    KILLED = "killed"
    UNSUPPORTED = "unsupported"
    BAD_FLAG = "bad_flag"
    TIMEOUT = "timeout"
    UNKNOWN = "unknown"


@dataclass
class KvplanError(Exception):
    """Something the user can act on: one line of what, where and which value, and a hint."""

    message: str
    hint: str | None = None

    exit_code = ExitCode.CANNOT_JUDGE

    def __str__(self) -> str:
        return self.message


class InputError(KvplanError):
    """A flag, a file, a config or a profile is wrong; the message names it with file:line or key path."""


@dataclass
class UnknownNameError(InputError):
    """No model, GPU or profile of that name; `nearest` holds the closest known names."""

    nearest: tuple[str, ...] = ()


class UnsupportedModelError(InputError):
    """An architecture, attention kind or quantisation without an exact rule: refused, never guessed."""


class MissingDependencyError(KvplanError):
    """An optional package is missing; the hint names the extra that brings it."""


@dataclass
class EngineError(KvplanError):
    """vLLM could not be started, or died while serving."""

    failure: FailureClass = FailureClass.UNKNOWN
    decisive_line: str | None = None
    log_path: str | None = None


class LoadError(KvplanError):
    """The load client could not do its work (no answer, wrong server, bad workload)."""
