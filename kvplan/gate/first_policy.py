"""`kvplan check --init`: a policy to begin with, from the launches that a repository holds."""

from __future__ import annotations

import datetime as dt
import json
import re
from typing import TYPE_CHECKING, Final

from kvplan.gate.accelerators import INSTANCE_LABELS, PRODUCT_LABELS
from kvplan.gate.check import check_launches
from kvplan.gate.redact import INVISIBLE, redact_text, without_invisible

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvplan.gate.found import Found
    from kvplan.gate.result import Checked

_SPECIAL: Final = re.compile(f"{INVISIBLE}|[*?\\[\\]]")
"""What a pattern or YAML gives a meaning to."""

_HEAD: Final = """\
# What `kvplan check` holds this repository's vLLM launches to, and defaults for every other kvplan command.
# All keys: `kvplan check --print-schema`. Nothing here is required.

# Where neither an image tag nor a pin says which vLLM it is:
# vllm_version: "0.32.0"

# Traffic: a preset (chat, rag, agent, batch, long-document) or a kvplan.workload/1 file of this repository.
# workload: chat
# target_concurrency: 32

# Limits:
# min_headroom_gib: 1
# min_start_probability: 0.95
# max_capacity_regression_percent: 10
# allowed: {kv_cache_dtype: [auto, fp8], trust_remote_code: []}
# rules: {KVP007: off, KVP013: error}

# Accepted findings; the last day is at most 180 days ahead.
# waivers:
#   - {rule: KVP001, path: legacy/**, until: END, reason: replaced in spring, owner: platform}
"""


def first_policy(found: Found, *, today: dt.date, gpu: str | None = None) -> str:
    """The text of a policy.

    Args:
        found: the launches of the whole repository.
        today: what the example of a waiver ends ahead of.
        gpu: the card that the user named for those whose files name none.
    """
    checked = check_launches(found, gpu=gpu, today=today)
    head = _HEAD.replace("END", (today + dt.timedelta(days=90)).isoformat())
    return (
        "\n".join(
            [
                head,
                *_card(gpu),
                *_labels(found),
                *_variables(found),
                *_judged_paths(checked),
                *_silent_paths(checked),
                "",
            ]
        ).rstrip("\n")
        + "\n"
    )


def _card(gpu: str | None) -> list[str]:
    said = "# The card where a file names none (`kvplan profiles gpus` lists them):"
    return [said, f"gpu: {_scalar(gpu)}" if gpu else "# gpu: l4", ""]


def _labels(found: Found) -> list[str]:
    """Node selectors that name no card by themselves."""
    known = PRODUCT_LABELS | INSTANCE_LABELS
    signs = sorted(
        {
            redact_text(f"{label}={value}")
            for launch in found.launches
            for label, value in launch.hints.items()
            if label not in known and launch.gpu is None
        }
    )
    if not signs:
        return []
    return [
        "# Which card the nodes of a selector carry; fill in and take the # away.",
        "# gpu_map:",
        *(f"#   {_scalar(sign)}: CARD" for sign in signs),
        "",
    ]


def _variables(found: Found) -> list[str]:
    names = sorted({redact_text(name) for launch in found.launches for name in launch.unresolved})
    names = [name for name in names if name.replace("_", "").replace(".", "").isalnum()]
    if not names:
        return []
    return [
        "# Variables that nobody in the repository gives: a value to read files with.",
        "# assume:",
        *(f"#   {name}: VALUE" for name in names),
        "",
    ]


def _judged_paths(checked: Checked) -> list[str]:
    """Files whose launches can all be judged today must stay so: a change that hides one is exit 2."""
    silent = {item.launch.path for item in checked.not_judged}
    paths = _paths(item.launch.path for item in checked.judged if item.launch.path not in silent)
    if not paths:
        return []
    return [
        "paths:",
        "  # Every launch in these files can be judged today, and shall stay so.",
        "  - match:",
        *(f"      - {_scalar(path)}" for path in paths),
        "    require_judged: true",
        "    require_launch: true",
        "",
    ]


def _silent_paths(checked: Checked) -> list[str]:
    if not checked.not_judged:
        return []
    return [
        "# Not judged today, and why:",
        *(
            f"#   {_line(item.launch.path)}:{item.launch.line}: {_line(item.not_judged or '')}"
            for item in checked.not_judged
        ),
    ]


def _paths(paths: Iterable[str]) -> list[str]:
    """The files as patterns; what would mean something in one is any character."""
    return sorted({_SPECIAL.sub("?", path) for path in paths})


def _line(text: str) -> str:
    """What a file says, on one line: a comment must not end where the text pleases."""
    return without_invisible(" ".join(redact_text(text).split()))


def _scalar(text: str) -> str:
    """A YAML scalar: JSON strings are YAML."""
    return json.dumps(without_invisible(text), ensure_ascii=False)
