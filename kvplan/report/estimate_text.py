"""An estimate as text for a terminal, or as Markdown."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from kvplan.config.version import format_vllm_version
from kvplan.report.table import prose, render_table
from kvplan.units import GIB, format_bytes, format_gib
from kvplan.visible import visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvplan.memory.advice import Advice
    from kvplan.memory.budget import BudgetLine
    from kvplan.memory.interval import Interval
    from kvplan.report.estimate import EstimateReport

_LINE_NAMES: Final = {
    "weights": "weights",
    "activations": "activations",
    "cuda_graphs": "CUDA graphs",
    "other": "other",
    "kv_cache": "KV cache",
    "unrequested": "not requested",
}
_STARTS: Final = {"yes": "starts", "tight": "may start", "no": "does not start"}


def render_text(report: EstimateReport, *, markdown: bool, explain: bool) -> str:
    """The whole answer; the verdict is its first line."""
    parts = [_headline(report, markdown=markdown)]
    if report.estimate.message:
        when = "vLLM would say" if report.starts == "no" else "if it fails, vLLM says"
        parts.append(prose(visible(f"{when}: {report.estimate.message}"), markdown=markdown))
    parts += [
        _ledger(report, markdown=markdown),
        "\n".join(_fact(line, markdown=markdown) for line in _kv_facts(report, markdown=markdown)),
        _requests(report, markdown=markdown),
        _by_length(report, markdown=markdown),
    ]
    if report.advice:
        parts.append(_advice(report, markdown=markdown))
    if explain:
        parts.append(_explanation(report, markdown=markdown))
    if report.planned.assumptions:
        assumed = visible("assumed: " + "; ".join(report.planned.assumptions))
        parts.append(prose(assumed, markdown=markdown))
    parts += [prose(visible(f"warning: {warning}"), markdown=markdown) for warning in report.warnings]
    return "\n\n".join(parts)


def _headline(report: EstimateReport, *, markdown: bool) -> str:
    now = report.estimate
    count = f"{now.num_gpus} x " if now.num_gpus > 1 else ""
    word = _STARTS[now.verdict.starts]
    line = (
        f"{word} (p = {now.verdict.probability:.2f}): {report.planned.source.id}, {_served_in(report)}, on "
        f"{count}{now.gpu.name} ({format_gib(now.gpu.total_bytes)}), vLLM "
        f"{format_vllm_version(now.rules.asked_version)}"
    )
    return f"**{visible(line)}**" if markdown else prose(visible(line))


def _served_in(report: EstimateReport) -> str:
    """The compute dtype, behind the weights' quantisation where there is one."""
    config = report.planned.source.config
    stored = config.get("quantization_config") or (config.get("text_config") or {}).get("quantization_config")
    method = report.estimate.settings.quantization or (stored or {}).get("quant_method")
    dtype = report.estimate.settings.dtype
    return dtype if method is None else f"{method} weights, {dtype}"


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.2f}"


def _range(interval: Interval) -> str:
    return "exact" if interval.exact else f"{_gib(interval.low)} to {_gib(interval.high)}"


def _ledger(report: EstimateReport, *, markdown: bool) -> str:
    budget = report.estimate.budget

    def cells(line: BudgetLine) -> tuple[str, str, str, str]:
        name = _LINE_NAMES[line.name]
        interval = "" if line.name == "unrequested" else _range(line.bytes)
        # The first clause: JSON and --explain have the whole source.
        source = line.source.split(" (")[0].split(", ")[0]
        if line.name == "weights" and source == "estimate":
            source = "config and a format concluded from the name"
        return name, _gib(line.bytes.mid), interval, source

    rows = [cells(line) for line in budget.lines]
    rows.append(("card", _gib(budget.total_bytes), "", f"{format_gib(budget.requested_bytes)} requested"))
    where = "per GPU, GiB" if report.estimate.num_gpus > 1 else "GiB"
    stages = report.estimate.settings.pipeline_parallel_size
    if stages > 1:
        where = f"stage {report.estimate.tightest_stage + 1} of {stages} (the tightest), GiB"
    return render_table(("", where, "80 % interval", "from"), rows, left=(0, 3), markdown=markdown)


def _count(interval: Interval) -> str:
    if interval.exact:
        return f"{interval.mid:,}"
    return f"{interval.mid:,} ({interval.low:,} to {interval.high:,})"


def _fact(line: str, *, markdown: bool) -> str:
    inner = line.lstrip()
    return line if markdown else prose(inner, indent=len(line) - len(inner))


def _kv_facts(report: EstimateReport, *, markdown: bool) -> Iterator[str]:
    now = report.estimate
    bullet = "- " if markdown else "  "
    kinds = Counter(f"{g.layers} {g.kind.replace('_', ' ')}" for g in now.plan.groups)
    groups = ", ".join(kind if count == 1 else f"{count} x {kind}" for kind, count in kinds.items())
    per_gpu = " on each GPU" if now.num_gpus > 1 else ""
    size = f"{now.plan.bytes_per_token:,} B a token{per_gpu} ({format_bytes(now.plan.bytes_per_token)})"
    if now.plan.bytes_per_token == 0 and now.plan.groups:
        inside = sum(g.layers * g.page_bytes // g.block_size for g in now.plan.groups)
        size = f"{inside:,} B a token{per_gpu} inside the window, nothing beyond it"
    yield f"KV cache: {size}, blocks of {now.plan.block_size} tokens, layers: {groups}"
    yield f"{bullet}{_count(now.capacity.num_blocks)} blocks, {_count(now.capacity.tokens)} tokens"
    low, mid, high = now.capacity.max_concurrency
    spread = "" if low == high else f" ({low:.2f}x to {high:.2f}x)"
    yield f"{bullet}maximum concurrency for {now.max_model_len:,} tokens per request: {mid:.2f}x{spread}"
    worst, steady = (f(now.max_model_len) for f in (now.plan.blocks_for_request, now.plan.steady_blocks))
    if steady < worst:
        yield (
            f"{bullet}({worst:,} blocks a request while its prompt is read; decoding it keeps {steady:,}, so "
            "more run at once than that)"
        )


def _requests(report: EstimateReport, *, markdown: bool) -> str:
    now, lengths = report.estimate, report.estimate.lengths
    rows = [("worst case", f"{now.max_model_len:,}", *_ends(now.capacity.worst_case))]
    if lengths is not None:
        for name, interval in (
            ("mean", now.capacity.mean),
            ("p95", now.capacity.p95),
            ("p99", now.capacity.p99),
        ):
            if interval is not None:
                rows.append((name, f"{getattr(lengths.total_len, name):,}", *_ends(interval)))
    table = render_table(("requests at once", "tokens", "low", "mid", "high"), rows, markdown=markdown)
    return f"{table}\n\n{prose(_target(report), markdown=markdown)}"


def _ends(interval: Interval) -> tuple[str, str, str]:
    return f"{interval.low:,}", f"{interval.mid:,}", f"{interval.high:,}"


def _target(report: EstimateReport) -> str:
    now, lengths = report.estimate, report.estimate.lengths
    if lengths is None or lengths.concurrency is None or now.capacity.p95 is None:
        return f"at most {now.settings.max_num_seqs:,} run at once (max_num_seqs)"
    met = "met" if report.meets_target else "not met"
    cap = f"; max_num_seqs lets {now.settings.max_num_seqs:,} run"
    return (
        f"target of {lengths.concurrency:,} at once: {met} at P95 "
        f"({_count(now.capacity.p95)} of {lengths.total_len.p95:,} tokens fit{cap})"
    )


def _by_length(report: EstimateReport, *, markdown: bool) -> str:
    dtypes = list(report.context_table[0].requests)
    rows = [
        (f"{row.num_tokens:,}", *(_count(row.requests[dtype]) for dtype in dtypes))
        for row in report.context_table
    ]
    header = ("tokens a request", *(f"{dtype} KV" for dtype in dtypes))
    return "requests that memory holds at once, by length and kv_cache_dtype\n\n" + render_table(
        header, rows, left=(), markdown=markdown
    )


_ADVICE_LINES: Final = 3


def _advice(report: EstimateReport, *, markdown: bool) -> str:
    """The best change; where the server does not start for sure, the best few."""
    shown = report.advice[: 1 if report.starts == "yes" else _ADVICE_LINES]
    first, *others = (_advised(report, advice) for advice in shown)
    lines = [f"helps most: {first}", *(f"or: {other}" for other in others)]
    return "\n".join(prose(line, markdown=markdown) for line in lines)


def _advised(report: EstimateReport, advice: Advice) -> str:
    flags = " ".join(_flag(name, value) for name, value in advice.change.items())
    now = report.estimate
    before = (now.capacity.p95 or now.capacity.worst_case).mid
    after = (advice.requests_p95 or advice.requests_worst_case).mid
    starts = "" if report.starts == advice.starts else f"{_STARTS[advice.starts]}, "
    return f"{flags} ({starts}{before:,} -> {after:,} requests at once; {advice.why})"


def _flag(name: str, value: object) -> str:
    flag = f"--{name.replace('_', '-')}"
    return flag if value is True else f"{flag} {value}"


def _explanation(report: EstimateReport, *, markdown: bool) -> str:
    bullet = "- " if markdown else "  "
    lines = [
        f"{bullet}{_LINE_NAMES[line.name]}: {report.estimate.explain(line.name)} [{line.source}]"
        for line in report.estimate.budget.lines
    ]
    return "\n".join(["how", *(_fact(visible(line), markdown=markdown) for line in lines)])
