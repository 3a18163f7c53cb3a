"""Seen traffic -> the document of a workload file."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from kvplan.errors import InputError
from kvplan.load.lengths import LengthSample, merge, reduce
from kvplan.load.workload import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvplan.load.histograms import Histogram
    from kvplan.load.traffic import SeenRequest

MOST_SAMPLES: Final = 500
MOST_ARRIVALS: Final = 5000
"""Requests of a trace that a workload file holds."""

ArrivalsKind = Literal["users", "poisson", "trace"]


@dataclass(frozen=True, slots=True)
class Extras:
    """What the log cannot say, or what of it is wanted."""

    name: str
    source: str
    arrivals: ArrivalsKind = "users"
    users: int | None = None
    max_model_len: int | None = None
    """Tokens of the longest request that the service admits, if known."""
    shared_prefix_tokens: int = 0


def from_requests(requests: Sequence[SeenRequest], extras: Extras) -> dict[str, Any]:
    """The document for requests that were seen one by one: their pairs, thinned out to at most 500.

    Raises:
        InputError: arrivals were asked for and the log has no times, or too many for a trace.
    """
    pairs = merge([LengthSample(r.input_len, r.output_len) for r in requests])
    if extras.arrivals == "trace":
        timed = _timed(requests, extras)
        samples = [[r.input_len, r.output_len] for r in timed]
    else:
        samples = [
            [s.input_len, s.output_len] if s.count == 1 else [s.input_len, s.output_len, s.count]
            for s in reduce(pairs, MOST_SAMPLES)
        ]
    longest_total = max(pairs[-1].total_len, extras.max_model_len or 0)
    lengths = {
        "samples": samples,
        "longest": {"input": max(s.input_len for s in pairs), "total": longest_total},
    }
    return _document(extras, lengths, _arrivals(requests, extras), _turns(requests))


def from_histograms(inputs: Histogram, outputs: Histogram, extras: Extras) -> dict[str, Any]:
    """The document for separate histograms of prompts and answers.

    Raises:
        InputError: arrivals were asked for, which a histogram does not have.
    """
    if extras.arrivals != "users":
        raise InputError(
            "histograms have no arrival times", "leave out --arrivals, or give a log of requests"
        )
    lengths: dict[str, Any] = {
        "input": inputs.as_lengths(extras.max_model_len),
        "output": outputs.as_lengths(extras.max_model_len),
    }
    if extras.max_model_len is not None:
        lengths["longest"] = {"total": extras.max_model_len}
    users = None if extras.users is None else {"users": extras.users}
    return _document(extras, lengths, users, turns=1)


def _document(
    extras: Extras, lengths: dict[str, Any], arrivals: dict[str, Any] | None, turns: int
) -> dict[str, Any]:
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "name": extras.name,
        "source": extras.source,
        "lengths": lengths,
    }
    if arrivals is not None:
        document["arrivals"] = arrivals
    if turns > 1:
        document["conversation"] = {"turns": turns}
    if extras.shared_prefix_tokens:
        document["shared_prefix_tokens"] = extras.shared_prefix_tokens
    return document


def _arrivals(requests: Sequence[SeenRequest], extras: Extras) -> dict[str, Any] | None:
    if extras.arrivals == "users":
        return None if extras.users is None else {"users": extras.users}
    timed = _timed(requests, extras)
    start = timed[0].time_s or 0.0
    times = [round((r.time_s or 0.0) - start, 3) for r in timed]
    if extras.arrivals == "trace":
        return {"times_s": times}
    if not times[-1]:
        raise InputError("all requests of the log have the same time", "no rate can be made of that")
    return {"requests_per_s": round((len(times) - 1) / times[-1], 4)}


def _timed(requests: Sequence[SeenRequest], extras: Extras) -> list[SeenRequest]:
    """The requests by their time."""
    without = sum(r.time_s is None for r in requests)
    if without or len(requests) < 2:
        raise InputError(
            f"--arrivals {extras.arrivals}: {without} of {len(requests)} requests have no time",
            "leave it out, or log a timestamp",
        )
    if extras.arrivals == "trace" and len(requests) > MOST_ARRIVALS:
        raise InputError(
            f"{len(requests)} requests are too many for a trace in a workload file (at most {MOST_ARRIVALS})",
            "cut the log to a busy stretch, or take --arrivals poisson",
        )
    return sorted(requests, key=lambda r: r.time_s or 0.0)


def _turns(requests: Sequence[SeenRequest]) -> int:
    """Requests of a conversation, on average; 1 if the log has no conversations."""
    sessions = Counter(r.session for r in requests if r.session is not None)
    return max(1, round(sum(sessions.values()) / len(sessions))) if sessions else 1
