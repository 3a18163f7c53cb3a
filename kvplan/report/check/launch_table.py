"""One launch in Markdown: where it stands, what it serves, and rule | before | now | change | limit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvplan.report.check.safe import code, joint_of, place_of, prose
from kvplan.report.check.words import direction
from kvplan.report.table import render_table
from kvplan.units import format_gib

if TYPE_CHECKING:
    from kvplan.gate.result import Checked, Finding, LaunchResult, Numbers

_NONE: Final = "n/a"
_STARTS: Final = {"yes": "yes", "tight": "perhaps", "no": "no"}


def launch_lines(item: LaunchResult, checked: Checked) -> str:
    """The launch's line and its table."""
    rows = [_finding_row(one, item) for one in _findings_of(item, checked)]
    rows += _number_rows(item)
    title = _title(item, compares=checked.upgrade_to is None)
    if not rows:
        return f"{title}\n"
    table = render_table(("rule", "before", "now", "change", "limit"), rows, left=(0, 4), markdown=True)
    return f"{title}\n\n{table}\n"


def _title(item: LaunchResult, *, compares: bool) -> str:
    launch, numbers = item.launch, item.now or item.before
    parts = [f"**{code(place_of(launch.path, launch.line))}**", code(launch.model or "unknown model")]
    if numbers is not None:
        parts.append(f"{numbers.num_gpus} x {prose(numbers.gpu)}")
        parts.append(f"vLLM {prose(numbers.vllm_version)}")
    if item.not_judged is not None:
        parts.append(f"not judged: {prose(item.not_judged)}")
    else:
        new = "new: " if item.change == "added" and compares else ""
        starts = item.now is not None and item.now.starts != "no"
        parts.append(f"**{new}{direction(item) or ('starts' if starts else 'will not start')}**")
    return " · ".join(parts)


def _findings_of(item: LaunchResult, checked: Checked) -> list[Finding]:
    everything = (*checked.findings, *checked.old, *checked.waived)
    return [finding for finding in everything if finding.launch is item.launch]


def _finding_row(finding: Finding, item: LaunchResult) -> tuple[str, str, str, str, str]:
    before = (
        prose(finding.before) if finding.before else ("passes" if _passed_before(finding, item) else _NONE)
    )
    limit = prose(finding.limit) if finding.limit else ""
    if finding.passes:
        limit += (", " if limit else "") + f"passes {joint_of(finding.passes)}{code(finding.passes)}"
    change: str = finding.status
    if finding.waiver is not None:
        change = (
            f"waiver expired {prose(finding.waiver.until)}"
            if finding.waiver.expired
            else (f"waived until {prose(finding.waiver.until)}")
        )
    seen = prose(finding.seen) if finding.seen else finding.severity
    return f"{finding.rule} {finding.name}", before, seen, change, limit


def _passed_before(finding: Finding, item: LaunchResult) -> bool:
    return finding.status == "new" and item.before is not None


def _number_rows(item: LaunchResult) -> list[tuple[str, str, str, str, str]]:
    now, before = item.now, item.before
    if now is None and before is None:
        return []
    rows = [
        _row("starts", _starts(before), _starts(now), ""),
        _counted(
            "KV cache, tokens",
            None if before is None else before.kv_tokens,
            None if now is None else now.kv_tokens,
        ),
        _counted(
            "requests of max_model_len at once",
            None if before is None else before.max_requests,
            None if now is None else now.max_requests,
        ),
    ]
    rows += _differing(before, now)
    return rows


def _differing(before: Numbers | None, now: Numbers | None) -> list[tuple[str, str, str, str, str]]:
    """Rows that are worth a line only when they change."""
    if before is None or now is None:
        return []
    rows = []
    if before.max_model_len != now.max_model_len:
        rows.append(_counted("max_model_len", before.max_model_len, now.max_model_len))
    if (before.gpu, before.num_gpus) != (now.gpu, now.num_gpus):
        cards = [f"{one.num_gpus} x {prose(one.gpu)}" for one in (before, now)]
        rows.append(_row("GPUs", cards[0], cards[1], ""))
    if before.vllm_version != now.vllm_version:
        rows.append(_row("vLLM", prose(before.vllm_version), prose(now.vllm_version), ""))
    if before.headroom_bytes != now.headroom_bytes:
        change = (now.headroom_bytes - before.headroom_bytes) / 2**30
        rows.append(
            _row(
                "free on the card",
                format_gib(before.headroom_bytes),
                format_gib(now.headroom_bytes),
                _signed(change, "{:,.2f} GiB"),
            )
        )
    if (
        before.usd_per_hour is not None
        and now.usd_per_hour is not None
        and before.usd_per_hour != now.usd_per_hour
    ):
        change = now.usd_per_hour - before.usd_per_hour
        rows.append(
            _row(
                "USD per hour",
                f"{before.usd_per_hour:,.2f}",
                f"{now.usd_per_hour:,.2f}",
                _signed(change, "{:,.2f}"),
            )
        )
    return rows


def _row(name: str, before: str, now: str, change: str) -> tuple[str, str, str, str, str]:
    return name, before, now, change, ""


def _starts(numbers: Numbers | None) -> str:
    if numbers is None:
        return _NONE
    return f"{_STARTS[numbers.starts]} ({_percent(numbers.start_probability)})"


def _percent(probability: float) -> str:
    # Never "100 %" or "0 %" of what is not certain.
    whole = round(100 * probability)
    if whole == 100 and probability < 1:
        return "> 99 %"
    return "< 1 %" if whole == 0 and probability > 0 else f"{whole} %"


def _counted(name: str, before: int | None, now: int | None) -> tuple[str, str, str, str, str]:
    texts = [_NONE if count is None else f"{count:,}" for count in (before, now)]
    change = ""
    if before is not None and now is not None and before != now:
        change = _signed(100 * (now - before) / before, "{:,.0f} %") if before else "from none"
    return _row(name, texts[0], texts[1], change)


def _signed(change: float, form: str) -> str:
    return ("+" if change > 0 else "-") + form.format(abs(change))
