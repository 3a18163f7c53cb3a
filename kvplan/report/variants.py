"""Several estimates side by side: one row a model, card or version (`kvplan.comparison/1`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kvplan import __version__
from kvplan.config.version import format_vllm_version
from kvplan.report.table import render_table
from kvplan.units import GIB
from kvplan.variants import meets_target

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    with_lengths = any(v.estimate is not None and v.estimate.lengths is not None for v in variants)
    with_price = any(v.estimate is not None and v.estimate.gpu.usd_per_hour is not None for v in variants)
    header = ["", "starts", "card GiB", "weights GiB", "KV GiB", "B a token", "KV tokens", "at max_model_len"]
    header += ["at P95"] if with_lengths else []
    header += ["USD an hour"] if with_price else []
    rows, refused = [], []
    for variant in variants:
        if variant.estimate is None:
            refused.append(f"{variant.name}: {variant.refusal}")
            continue
        rows.append(_cells(variant, with_lengths=with_lengths, with_price=with_price))
    table = render_table(header, rows, left=(0, 1), markdown=markdown) if rows else ""
    return "\n\n".join(part for part in (table, "\n".join(refused)) if part)


def _cells(variant: Variant, *, with_lengths: bool, with_price: bool) -> list[str]:
    answer = variant.estimate
    assert answer is not None  # noqa: S101  the caller has taken the refused ones out
    starts = answer.verdict.starts
    cells = [
        variant.name,
        f"{starts} ({answer.verdict.probability:.2f})",
        f"{answer.budget.total_bytes / GIB:.2f}",
        f"{answer.budget.line('weights').bytes.mid / GIB:.2f}",
        f"{answer.budget.available_kv_bytes.mid / GIB:.2f}",
        f"{answer.plan.bytes_per_token:,}",
        f"{answer.capacity.tokens.mid:,}",
        f"{answer.capacity.worst_case.mid:,} x {answer.max_model_len:,}",
    ]
    if with_lengths:
        cells.append(_requests(answer.capacity.p95))
    if with_price:
        price = answer.gpu.usd_per_hour
        cells.append("n/a" if price is None else f"{price * answer.num_gpus:.2f}")
    return cells


def _requests(interval: Interval | None) -> str:
    return "n/a" if interval is None else f"{interval.mid:,}"
