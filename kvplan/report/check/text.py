"""The gate's answer as plain text: one finding a line, then what came of the launches, then the count."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvplan.report.check.safe import clean, clean_path, place_of, shown_line, told_of
from kvplan.report.check.words import known_before, percent_change, pinning_none, upgrade_told

if TYPE_CHECKING:
    from kvplan.gate.result import Checked, Finding, LaunchResult


def as_text(checked: Checked) -> str:
    """Findings, new ones first; what was waived, fixed, changed, not judged and not read; a count."""
    alone = pinning_none(checked)
    lines = [
        _line(item) + (" (pins no release to compare with)" if id(item.launch) in alone else "")
        for item in checked.findings
    ]
    lines += [f"{_line(item)} ({known_before(checked)})" for item in checked.old]
    lines += [_line(item) for item in checked.waived]
    gone = "fixed" if checked.upgrade_to is None else f"gone with vLLM {clean(checked.upgrade_to)}:"
    lines += [
        f"{place_of(item.path, item.line)}: {gone} {item.rule}: {clean(item.message)}"
        for item in checked.fixed
    ]
    lines += [line for item in checked.launches if (line := _change(item)) is not None]
    lines += [
        f"{place_of(item.path, item.line)}: removed: {clean(item.model or 'a launch of an unknown model')}"
        for item in checked.removed
    ]
    for item in checked.not_judged:
        place = place_of(item.launch.path, item.launch.line)
        lines.append(
            f"{place}: not judged: {clean(item.not_judged or '')}"
            + (" (the policy requires that it is)" if item.must_be_judged else "")
        )
    lines += [
        f"{clean_path(miss.path)}:{miss.line}: not read: {clean(miss.reason)}" for miss in checked.not_read
    ]
    lines += [clean(note) for note in checked.notes]
    return "\n".join(map(shown_line, [*lines, _count(checked)]))


def _line(item: Finding) -> str:
    return f"{place_of(item.path, item.line)}: {item.severity} {item.rule}: {told_of(item)}"


def _change(item: LaunchResult) -> str | None:
    """What a change does to a launch, in one line; None where nothing can be compared or nothing changed."""
    now, before = item.now, item.before
    if now is None or before is None or item.change != "changed":
        return None
    parts = []
    if before.vllm_version != now.vllm_version:
        parts.append(f"vLLM {before.vllm_version} -> {now.vllm_version}")
    if before.kv_tokens != now.kv_tokens:
        change = percent_change(before.kv_tokens, now.kv_tokens, 1) if before.kv_tokens > 0 else None
        share = f" ({change})" if change else ""
        parts.append(f"KV tokens {before.kv_tokens:,} -> {now.kv_tokens:,}{share}")
    if before.max_requests != now.max_requests or before.max_model_len != now.max_model_len:
        parts.append(
            f"requests at once at max_model_len: {before.max_requests} ({before.max_model_len:,} tokens) -> "
            f"{now.max_requests} ({now.max_model_len:,} tokens)"
        )
    if (before.gpu, before.num_gpus) != (now.gpu, now.num_gpus):
        parts.append(f"GPUs {before.num_gpus} x {before.gpu} -> {now.num_gpus} x {now.gpu}")
    if None not in {before.usd_per_hour, now.usd_per_hour} and before.usd_per_hour != now.usd_per_hour:
        parts.append(f"USD an hour {before.usd_per_hour:.2f} -> {now.usd_per_hour:.2f}")
    return f"{place_of(item.launch.path, item.launch.line)}: {clean(', '.join(parts))}" if parts else None


def _count(checked: Checked) -> str:
    total, found, known = len(checked.launches), len(checked.findings), len(checked.old)
    findings = "finding" if found == 1 else "findings"
    text = (
        f"{total} launch{'' if total == 1 else 'es'}, {len(checked.judged)} judged, "
        f"{len(checked.not_judged)} not judged"
        + (f", {len(checked.not_read)} not readable" if checked.not_read else "")
    )
    if checked.upgrade_to is not None:
        alone = pinning_none(checked)
        unpinned = sum(id(item.launch) in alone for item in checked.findings)
        new = found - unpinned
        text += f"; {upgrade_told(checked)}: {new} {'finding' if new == 1 else 'findings'} new with it"
        text += f", {known} with the pinned releases too" if known else ""
        text += f", {unpinned} of launches that pin none" if unpinned else ""
    elif checked.base is not None:
        text += f", {found} new {findings}" + (f", {known} that the base has too" if known else "")
    else:
        text += f", {found} {findings}"
    return text + (f", {len(checked.waived)} waived" if checked.waived else "")
