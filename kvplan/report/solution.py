"""What `kvplan estimate --solve` says: from a target back to lengths and cards (`kvplan.solution/1`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kvplan import __version__
from kvplan.memory.solve import longest_request, most_requests
from kvplan.report.table import prose
from kvplan.report.variants import as_dict as variants_dict
from kvplan.report.variants import render_variants
from kvplan.smallest import smallest_hardware
from kvplan.units import format_gib

if TYPE_CHECKING:
    from kvplan.config.serving import ServingConfig
    from kvplan.memory.estimate import Estimate
    from kvplan.memory.interval import Interval
    from kvplan.memory.solve import Solved
    from kvplan.planning import Planned, PlanRequest
    from kvplan.variants import Variant

SCHEMA: Final = "kvplan.solution/1"

_SHOWN_CARDS: Final = 8


@dataclass(frozen=True, slots=True)
class Solution:
    """The answers of the other direction."""

    estimate: Estimate
    given: ServingConfig
    concurrency: int | None
    longest: Solved | None
    """Tokens of the longest request of which `concurrency` run at once; None without a target."""
    num_tokens: int
    """The length that `most` and `cards` are about: the workload's P95, else max_model_len."""
    most: Solved
    """Requests of that length at once."""
    cards: tuple[Variant, ...]
    """Cards that do it, cheapest first; empty without a target, or when none does."""

    @classmethod
    def of(cls, planned: Planned, request: PlanRequest) -> Solution:
        """Solve for the request's target on its card, and for the cards that meet it."""
        answer = planned.estimate()
        concurrency = request.target_concurrency
        lengths = planned.planner.lengths
        num_tokens = answer.max_model_len if lengths is None else lengths.total_len.p95
        return cls(
            estimate=answer,
            given=planned.serving,
            concurrency=concurrency,
            longest=None
            if concurrency is None
            else longest_request(planned.planner, planned.serving, concurrency),
            num_tokens=num_tokens,
            most=most_requests(planned.planner, planned.serving, num_tokens),
            cards=()
            if concurrency is None
            else smallest_hardware(request, concurrency=concurrency, num_tokens=num_tokens),
        )

    def render(self, output_format: str) -> str:
        """The solution as `text`, `markdown` or `json`."""
        if output_format == "json":
            import json

            return json.dumps(self.as_dict(), indent=2)
        kv = self.estimate.budget.available_kv_bytes
        beneath: list[str] = []
        parts = [f"KV cache of one GPU: {format_gib(kv.mid)}{_range(kv, 2**30)}"]
        if self.longest is not None:
            parts.append(
                f"longest request with {self.concurrency:,} at once: {self.longest.value.mid:,} tokens"
                f"{_range(self.longest.value)}{_with(self.longest)}"
            )
        parts.append(
            f"most requests of {self.num_tokens:,} tokens at once: {self.most.value.mid:,}"
            f"{_range(self.most.value)}{_with(self.most)}"
        )
        if self.concurrency is None:
            parts.append(
                "--target-concurrency N is missing: with it the longest request of which N run at once, and "
                "the smallest hardware for them. --input-len and --output-len, or --workload, ask for other "
                "lengths."
            )
        else:
            what = f"{self.concurrency:,} requests of {self.num_tokens:,} tokens at once"
            shown = self.cards[:_SHOWN_CARDS]
            if shown:
                parts += [
                    "",
                    f"smallest hardware for {what}{self._raised()}, cheapest first where a price is known",
                    "",
                ]
                beneath = [render_variants(shown, output_format)]
                if len(self.cards) > len(shown):
                    beneath.append(f"and {len(self.cards) - len(shown)} more (--format json lists all)")
            else:
                parts += ["", f"no known card, up to 8 of it, serves {what} with these settings"]
        markdown = output_format == "markdown"
        return "\n".join([*(prose(part, markdown=markdown) for part in parts), *beneath])

    def _raised(self) -> str:
        """What the cards were asked with that a re-check has to name, too."""
        flags = ("max_model_len", "max_num_seqs")
        asked = {(name, getattr(v.planned.serving, name)) for v in self.cards if v.planned for name in flags}
        raised = sorted(asked - {(name, getattr(self.given, name)) for name in flags})
        names = " and ".join(f"--{name.replace('_', '-')} {value}" for name, value in raised)
        return f", with {names} where it is below" if names else ""

    def as_dict(self) -> dict[str, Any]:
        """The solution as JSON types."""
        return {
            "schema": SCHEMA,
            "kvplan_version": __version__,
            "available_kv_bytes": self.estimate.budget.available_kv_bytes.as_dict(),
            "target_concurrency": self.concurrency,
            "longest_request_tokens": None if self.longest is None else self.longest.value.as_dict(),
            "longest_request_flags": None if self.longest is None else self.longest.flags,
            "num_tokens": self.num_tokens,
            "most_requests": self.most.value.as_dict(),
            "most_requests_flags": self.most.flags,
            "cards": variants_dict(self.cards)["rows"],
        }


def _with(solved: Solved) -> str:
    """The flags that the number was verified with, and whether vLLM starts with them if that is not sure."""
    said = "".join(f" --{name.replace('_', '-')} {value}" for name, value in solved.flags.items())
    if said:
        said = f", with{said}"
    if solved.answer is not None and solved.answer.verdict.starts != "yes":
        verdict = solved.answer.verdict
        said += f"; starts: {verdict.starts} ({verdict.probability:.2f})"
    return said


def _range(interval: Interval, unit: int = 1) -> str:
    if interval.exact:
        return ""
    if unit == 1:
        return f" ({interval.low:,} to {interval.high:,})"
    return f" ({interval.low / unit:.2f} to {interval.high / unit:.2f})"
