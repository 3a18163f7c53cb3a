"""Several estimates side by side: one row a model, card or version (`kvplan.comparison/1`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kvplan import __version__
from kvplan.config.version import format_vllm_version
from kvplan.report.table import output_width, render_table, wrapped
from kvplan.units import GIB
from kvplan.variants import meets_target
from kvplan.visible import visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvplan.memory.estimate import Estimate
    from kvplan.memory.interval import Interval
    from kvplan.variants import Variant

SCHEMA: Final = "kvplan.comparison/1"


def render_variants(variants: Sequence[Variant], output_format: str) -> str:
    """The comparison as `text`, `markdown` or `json`."""
    if output_format == "json":
        import json

        return json.dumps(as_dict(variants), indent=2)
    return _table(variants, markdown=output_format == "markdown")


def as_dict(variants: Sequence[Variant]) -> dict[str, Any]:
    """The comparison as JSON types; `rows` are in the order of the question, or of the ranking."""
    return {
        "schema": SCHEMA,
        "kvplan_version": __version__,
        "rows": [_row_dict(variant) for variant in variants],
    }


def _row_dict(variant: Variant) -> dict[str, Any]:
    answer = variant.estimate
    if answer is None or variant.planned is None:
        return {"name": variant.name, "refused": variant.refusal}
    return {
        "name": variant.name,
        "model": variant.planned.source.id,
        "gpu": answer.gpu.id,
        "num_gpus": answer.num_gpus,
        "vllm_version": format_vllm_version(answer.rules.asked_version),
        "usd_per_hour": answer.gpu.usd_per_hour,
        "starts": answer.verdict.starts,
        "probability": answer.verdict.probability,
        "total_bytes": answer.budget.total_bytes,
        "weights_bytes": answer.budget.line("weights").bytes.mid,
        "available_kv_bytes": answer.budget.available_kv_bytes.as_dict(),
        "kv_bytes_per_token": answer.plan.bytes_per_token,
        "kv_cache_tokens": answer.capacity.tokens.as_dict(),
        "max_model_len": answer.max_model_len,
        "requests_worst_case": answer.capacity.worst_case.as_dict(),
        "requests_p95": None if answer.capacity.p95 is None else answer.capacity.p95.as_dict(),
        "meets_target": meets_target(answer),
    }


def _table(variants: Sequence[Variant], *, markdown: bool) -> str:
    answered = [variant for variant in variants if variant.estimate is not None]
    refused = [visible(f"{v.name}: {v.refusal}") for v in variants if v.estimate is None]
    parts = []
    if answered:
        columns = _columns([variant.estimate for variant in answered if variant.estimate is not None])
        same = [f"{title} {cells[0]}" for title, cells in columns.items() if _is_said_once(title, cells)]
        shown = {title: cells for title, cells in columns.items() if not _is_said_once(title, cells)}
        rows = [
            [variant.name, *row]
            for variant, row in zip(answered, zip(*shown.values(), strict=True), strict=True)
        ]
        if same:
            said = f"the same in all rows: {', '.join(same)}"
            lines = wrapped(said, output_width() - 2)
            parts.append(said if markdown else "\n".join(f"  {line}" for line in lines))
        parts.append(render_table(["", *shown], rows, left=(0, 1), markdown=markdown))
    return "\n\n".join([*parts, "\n".join(refused)] if refused else parts)


_SAID_ONCE: Final = ("weights GiB", "B a token", "max_model_len", "target met")
"""Columns that are a line above the table where all rows agree, as they do where only the card differs."""


def _is_said_once(title: str, cells: Sequence[str]) -> bool:
    return title in _SAID_ONCE and len(cells) > 1 and len(set(cells)) == 1


def _columns(answers: Sequence[Estimate]) -> dict[str, list[str]]:
    """Title -> cells, in the order of the answers."""
    with_lengths = any(answer.lengths is not None for answer in answers)
    with_price = any(answer.gpu.usd_per_hour is not None for answer in answers)
    columns = {
        "starts": [f"{a.verdict.starts} ({a.verdict.probability:.2f})" for a in answers],
        "card GiB": [f"{a.budget.total_bytes / GIB:.2f}" for a in answers],
        "weights GiB": [f"{a.budget.line('weights').bytes.mid / GIB:.2f}" for a in answers],
        "KV GiB": [f"{a.budget.available_kv_bytes.mid / GIB:.2f}" for a in answers],
        "B a token": [f"{a.plan.bytes_per_token:,}" for a in answers],
        "KV tokens": [f"{a.capacity.tokens.mid:,}" for a in answers],
        "max_model_len": [f"{a.max_model_len:,}" for a in answers],
        "at once": [f"{a.capacity.worst_case.mid:,}" for a in answers],
    }
    if with_lengths:
        columns["at P95"] = [_requests(a.capacity.p95) for a in answers]
    if any(meets_target(answer) is not None for answer in answers):
        columns["target met"] = [_target_met(a) for a in answers]
    if with_price:
        columns["USD/h"] = [_price(a) for a in answers]
    return columns


def _price(answer: Estimate) -> str:
    price = answer.gpu.usd_per_hour
    return "n/a" if price is None else f"{price * answer.num_gpus:.2f}"


def _target_met(answer: Estimate) -> str:
    """A server that does not start meets nothing, whatever its memory would hold."""
    met = meets_target(answer)
    if met is None:
        return "n/a"
    return "yes" if met and answer.verdict.starts != "no" else "no"


def _requests(interval: Interval | None) -> str:
    return "n/a" if interval is None else f"{interval.mid:,}"
