"""LaunchPlan: one start of vLLM, written down before anything runs."""

from __future__ import annotations

import getpass
import os
import secrets
import shlex
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from kvplan.config.argv import to_argv

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvplan.config.serving import ServingConfig

VLLM_MODULE: Final = "vllm.entrypoints.openai.api_server"
"""Started as a module: the `vllm` script of the CPU distribution cannot find its own version (0.32)."""

MASK: Final = "***"
_OURS: Final = ("served_model_name", "host", "port", "uds", "root_path", "ssl_keyfile", "ssl_certfile")
"""Flags of a user's file that a trial sets itself: it is loopback only, on its own port and name."""
_SECRET_MARKS: Final = ("KEY", "TOKEN", "SECRET", "PASSWORD")


def _new_api_key() -> str:
    return secrets.token_urlsafe(24)


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """What to start, with which settings, and where its log and samples go."""

    model: str
    """A folder, or a hub id that vLLM resolves itself."""
    settings: ServingConfig
    device: Literal["cuda", "cpu"]
    work_dir: Path
    """The trial's folder: `vllm.log` is written there. Made if it is missing."""
    card_bytes: int | None = None
    """On CPU the size of the memory cgroup that stands for the card (None: no limit); on a GPU its total."""
    gpu: str | None = None
    """Name of the card, for the record."""
    gpu_uuids: tuple[str, ...] = ()
    """The cards that this launch may see (CUDA_VISIBLE_DEVICES); empty: as the environment has it."""
    ready_timeout_s: float = 900.0
    served_model_name: str = "kvplan-trial"
    api_key: str = field(default_factory=_new_api_key, repr=False)
    port: int | None = None
    """None: a free one is chosen at start."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables for vLLM on top of the environment; they win over the ones set here."""
    cpu_bind: str | None = None
    """VLLM_CPU_OMP_THREADS_BIND; None: half of the cores of a small machine, so that the load client, on the
    others, does not fight vLLM's threads; vLLM's own choice on a large one."""
    program: tuple[str, ...] = (sys.executable, "-m", VLLM_MODULE)
    """What is run. Another interpreter here means a vLLM of another virtual environment."""

    @property
    def log_path(self) -> Path:
        """Both streams of vLLM."""
        return self.work_dir / "vllm.log"


def argv(plan: LaunchPlan, port: int | None = None) -> list[str]:
    """The command line. The API key is not in it: it travels in the environment, where `ps` does not show it.

    Args:
        plan: The launch.
        port: The port that was chosen; None is the plan's own, or 0 ("to be chosen") in a dry run.
    """
    return [
        *plan.program,
        "--host",
        "127.0.0.1",
        "--port",
        str(port if port is not None else plan.port or 0),
        "--model",
        plan.model,
        "--served-model-name",
        plan.served_model_name,
        *to_argv(plan.settings.with_flags(**dict.fromkeys(_OURS))),
    ]


def environment(plan: LaunchPlan) -> dict[str, str]:
    """All variables of vLLM: the inherited ones but those that would undo the plan, and kvplan's own."""
    inherited = {name: value for name, value in os.environ.items() if name not in undoing_variables(plan)}
    return inherited | own_environment(plan)


def undoing_variables(plan: LaunchPlan) -> list[str]:
    """Variables of the user that would win over a flag of the plan.

    Source: vLLM 0.32.0 platforms/cpu.py::check_and_update_config.
    """
    undoing = ["VLLM_CPU_KVCACHE_SPACE"] if plan.settings.kv_cache_memory_bytes is not None else []
    return [name for name in undoing if name in os.environ]


def own_environment(plan: LaunchPlan) -> dict[str, str]:
    """The variables that kvplan sets for vLLM, on top of the inherited ones.

    A local model is served with the hub off, so that no start can hang on a download. The compile cache is
    pinned where it would be without us, because the launch gets a temporary folder of its own (removed
    afterwards, with whatever vLLM left in it).
    """
    values = {
        "VLLM_API_KEY": plan.api_key,
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONUNBUFFERED": "1",
        "VLLM_LOGGING_COLOR": "0",
        "VLLM_CONFIGURE_LOGGING": "1",
        "VLLM_LOGGING_LEVEL": "DEBUG" if os.environ.get("VLLM_LOGGING_LEVEL") == "DEBUG" else "INFO",
        "TORCHINDUCTOR_CACHE_DIR": os.environ.get("TORCHINDUCTOR_CACHE_DIR", _default_inductor_cache()),
    }
    if Path(plan.model).is_dir():
        values |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    if plan.device == "cuda":
        values["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        if plan.gpu_uuids:
            values["CUDA_VISIBLE_DEVICES"] = ",".join(plan.gpu_uuids)
    if plan.device == "cpu":
        bind = plan.cpu_bind
        if bind is None and _num_workers(plan) == 1:
            bind = default_cpu_bind(sorted(os.sched_getaffinity(0)))
        if bind is not None:
            values["VLLM_CPU_OMP_THREADS_BIND"] = bind
    return values | dict(plan.env)


def default_cpu_bind(cpus: Sequence[int]) -> str | None:
    """Cores for the threads of one vLLM worker: the first half of two to eight, else vLLM's own choice.

    On two cores "0" with the client on core 1 gave 1,500 to 1,900 tokens/s, steadily; unbound threads gave
    200 to 700 (a 2.6M-parameter model, vLLM 0.32.0 on CPU).
    """
    if not 2 <= len(cpus) <= 8:
        return None
    return ",".join(map(str, cpus[: len(cpus) // 2]))


def _num_workers(plan: LaunchPlan) -> int:
    settings = plan.settings
    return (settings.tensor_parallel_size or 1) * (settings.pipeline_parallel_size or 1)


def printable_command(plan: LaunchPlan, port: int | None = None) -> str:
    """The command with its variables, ready for a shell; secrets are masked."""
    words = _printable_variables(plan)
    if undoing := undoing_variables(plan):
        words = ["env", *(f"-u {name}" for name in undoing), *words]
    return " ".join([*words, printable_argv(plan, port)])


def printable_argv(plan: LaunchPlan, port: int | None = None) -> str:
    """The command without its variables; secrets are masked."""
    return shlex.join(_masked(argv(plan, port)))


def printable_setup(plan: LaunchPlan) -> str:
    """The variables as a shell sets them once for several commands; secrets are masked."""
    lines = [f"unset {name}" for name in undoing_variables(plan)]
    return "\n".join([*lines, " ".join(["export", *_printable_variables(plan)])])


def _printable_variables(plan: LaunchPlan) -> list[str]:
    shown = {name: MASK if _is_secret(name) else value for name, value in own_environment(plan).items()}
    return [f"{name}={shlex.quote(value)}" for name, value in shown.items()]


def _is_secret(name: str) -> bool:
    upper = name.upper()
    return any(mark in upper for mark in _SECRET_MARKS)


def _masked(command: list[str]) -> list[str]:
    """The command with the value of `--api-key` (a user's own, from `other_flags`) hidden."""
    shown: list[str] = []
    hide = False
    for word in command:
        if word.startswith("--"):
            hide = word.split("=")[0] in {"--api-key", "--hf-token"}
            shown.append(f"{word.split('=')[0]}={MASK}" if hide and "=" in word else word)
        else:
            shown.append(MASK if hide else word)
    return shown


def _default_inductor_cache() -> str:
    """Where torch would keep compiled kernels: torch 2.13 _inductor/runtime/cache_dir_utils.py."""
    return str(Path(tempfile.gettempdir()) / f"torchinductor_{getpass.getuser()}")
