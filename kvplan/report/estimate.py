"""What `kvplan estimate` says: one typed model, rendered as text, Markdown or JSON (`kvplan.estimate/1`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kvplan import __version__
from kvplan.config.version import format_vllm_version
from kvplan.errors import InputError
from kvplan.memory.advice import Advice, advise
from kvplan.variants import meets_target

if TYPE_CHECKING:
    from kvplan.memory.estimate import Estimate
    from kvplan.memory.interval import Interval
    from kvplan.planning import Planned

SCHEMA: Final = "kvplan.estimate/1"

_TABLE_LENGTHS: Final = (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)


@dataclass(frozen=True, slots=True)
class ContextRow:
    """Concurrent requests of one length, by kv_cache_dtype."""

    num_tokens: int
    requests: dict[str, Interval]


@dataclass(frozen=True, slots=True)
class EstimateReport:
    """Everything that an estimate says."""

    planned: Planned
    estimate: Estimate
    advice: tuple[Advice, ...]
    context_table: tuple[ContextRow, ...]
    warnings: tuple[str, ...]

    @classmethod
    def of(cls, planned: Planned) -> EstimateReport:
        """Ask the planner: the answer, the advice and the table of lengths by dtype."""
        answer = planned.estimate()
        notes = (
            *planned.warnings,
            *planned.source.notes,
            *answer.weights.notes,
            *answer.overhead.warnings,
            *answer.plan.warnings,
            *_too_long(answer),
        )
        return cls(
            planned=planned,
            estimate=answer,
            advice=advise(planned.serving, answer, planned.planner.estimate),
            context_table=_context_table(planned, answer),
            warnings=tuple(dict.fromkeys(notes)),
        )

    @property
    def starts(self) -> str:
        """`yes`, `tight` or `no`."""
        return self.estimate.verdict.starts

    @property
    def meets_target(self) -> bool | None:
        """Whether the target's requests run at once at the P95 length; None without a target."""
        return meets_target(self.estimate)

    def render(self, output_format: str, *, explain: bool = False) -> str:
        """The report as `text`, `markdown` or `json`."""
        if output_format == "json":
            import json

            return json.dumps(self.as_dict(), indent=2)
        from kvplan.report.estimate_text import render_text

        return render_text(self, markdown=output_format == "markdown", explain=explain)

    def as_dict(self) -> dict[str, Any]:
        """The documented JSON object; see docs/estimate-schema.md."""
        now, settings = self.estimate, self.estimate.settings
        source = self.planned.source
        capability = now.gpu.compute_capability
        return {
            "schema": SCHEMA,
            "kvplan_version": __version__,
            "inputs": {
                "model": {
                    "id": source.id,
                    "source": source.kind,
                    "architecture": now.shape.architecture,
                },
                "gpu": {
                    "id": now.gpu.id,
                    "total_bytes": now.gpu.total_bytes,
                    "compute_capability": None if capability is None else f"{capability[0]}.{capability[1]}",
                },
                "num_gpus": now.num_gpus,
                "vllm_version": format_vllm_version(now.rules.asked_version),
                "settings": {
                    "gpu_memory_utilization": settings.gpu_memory_utilization,
                    "kv_cache_memory_bytes": settings.kv_cache_memory_bytes,
                    "max_model_len": now.max_model_len,
                    "max_num_seqs": settings.max_num_seqs,
                    "max_num_batched_tokens": settings.max_num_batched_tokens,
                    "kv_cache_dtype": settings.kv_cache_dtype,
                    "block_size": now.plan.block_size,
                    "tensor_parallel_size": settings.tensor_parallel_size,
                    "pipeline_parallel_size": settings.pipeline_parallel_size,
                    "enforce_eager": settings.enforce_eager,
                    "enable_prefix_caching": settings.enable_prefix_caching,
                    "dtype": settings.dtype,
                    "quantization": settings.quantization,
                },
                "defaulted": list(settings.defaulted),
                "workload": self._workload_dict(),
                "assumptions": list(self.planned.assumptions),
            },
            "budget": {
                "total_bytes": now.budget.total_bytes,
                "requested_bytes": now.budget.requested_bytes,
                "lines": [
                    {
                        "name": line.name,
                        "bytes": line.bytes.as_dict(),
                        "exact": line.bytes.exact,
                        "source": line.source,
                        "explanation": now.explain(line.name),
                    }
                    for line in now.budget.lines
                ],
            },
            "weights": {
                "bytes": now.weights.bytes.mid if now.weights.exact else now.weights.bytes.as_dict(),
                "parameters": now.weights.parameters,
                "exact": now.weights.exact,
                "source": now.weights.source,
            },
            "kv_cache": {
                "available_bytes": now.budget.available_kv_bytes.as_dict(),
                "bytes_per_token": now.plan.bytes_per_token,
                "bytes_per_block": now.plan.bytes_per_block,
                "block_size": now.plan.block_size,
                "num_blocks": now.capacity.num_blocks.as_dict(),
                "tokens": now.capacity.tokens.as_dict(),
                "groups": [
                    {
                        "kind": g.kind,
                        "layers": g.layers,
                        "page_bytes": g.page_bytes,
                        "block_size": g.block_size,
                    }
                    for g in now.plan.groups
                ],
                "attention_backends": list(now.plan.attention_backends),
            },
            "capacity": {
                "max_concurrency": dict(
                    zip(("low", "mid", "high"), now.capacity.max_concurrency, strict=True)
                ),
                "requests": {
                    "worst_case": now.capacity.worst_case.as_dict(),
                    "mean": _interval(now.capacity.mean),
                    "p95": _interval(now.capacity.p95),
                    "p99": _interval(now.capacity.p99),
                },
                "meets_target": self.meets_target,
                "by_length": [
                    {"tokens": row.num_tokens} | {k: v.as_dict() for k, v in row.requests.items()}
                    for row in self.context_table
                ],
            },
            "verdict": {
                "starts": now.verdict.starts,
                "probability": now.verdict.probability,
                "failure": now.verdict.failure,
                "needed_bytes": now.verdict.needed_bytes,
                "estimated_max_model_len": now.estimated_max_model_len,
                "message": now.message,
            },
            "advice": [
                {
                    "change": advice.change,
                    "starts": advice.starts,
                    "requests_worst_case": advice.requests_worst_case.as_dict(),
                    "requests_p95": _interval(advice.requests_p95),
                    "why": advice.why,
                }
                for advice in self.advice
            ],
            "warnings": list(self.warnings),
        }

    def _workload_dict(self) -> dict[str, Any] | None:
        lengths = self.estimate.lengths
        if lengths is None:
            return None

        def summary(name: str) -> dict[str, int]:
            part = getattr(lengths, name)
            return {"mean": part.mean, "p95": part.p95, "p99": part.p99}

        return {
            "concurrency": lengths.concurrency,
            "input_len": summary("input_len"),
            "output_len": summary("output_len"),
            "total_len": summary("total_len"),
            "longest_total_len": lengths.longest_total_len,
        }


def _too_long(answer: Estimate) -> tuple[str, ...]:
    lengths = answer.lengths
    if lengths is None or lengths.longest_total_len <= answer.max_model_len:
        return ()
    longest = lengths.longest_total_len
    return (f"requests of up to {longest:,} tokens: vLLM refuses those above {answer.max_model_len:,}",)


def _interval(value: Interval | None) -> dict[str, int] | None:
    return None if value is None else value.as_dict()


def _context_table(planned: Planned, now: Estimate) -> tuple[ContextRow, ...]:
    """Lengths up to what the model takes, by the dtypes that this card and version run."""
    answers = {now.settings.kv_cache_dtype: now}
    for dtype in ("auto", "fp8"):
        if dtype in answers:
            continue
        try:
            answers[dtype] = planned.planner.estimate(planned.serving.with_flags(kv_cache_dtype=dtype))
        except InputError:
            continue  # this card or version does not run it; the table says so by leaving it out
    longest = now.max_model_len
    lengths = sorted({n for n in (*_TABLE_LENGTHS, now.max_model_len) if n <= longest})

    def requests(answer: Estimate, tokens: int) -> Interval:
        return answer.capacity.num_blocks.map(lambda blocks: answer.plan.concurrent_requests(blocks, tokens))

    return tuple(
        ContextRow(tokens, {dtype: requests(answer, tokens) for dtype, answer in answers.items()})
        for tokens in lengths
    )
