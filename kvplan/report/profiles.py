"""Profiles as text and JSON: lists, one with all its facts, and what was added."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from kvplan.architecture.model_shape import model_shape
from kvplan.errors import UnsupportedModelError
from kvplan.report.table import prose, render_table
from kvplan.units import format_gib
from kvplan.visible import visible

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kvplan.catalog.model_source import ModelSource

_UNKNOWN: Final = "n/a"


def render_models(profiles: Iterable[Mapping[str, Any]], query: str | None, *, as_json: bool) -> str:
    """The models whose names have all the words of the query."""
    found = [p for p in profiles if _has_words(p, query)]
    if as_json:
        return _json({"schema": "kvplan.profiles/1", "models": [_model_line(p) for p in found]})
    rows = [
        (
            p["id"],
            _parameters(p),
            format_gib(_fact(p, "weights_bytes")) if _fact(p, "weights_bytes") else _UNKNOWN,
            str(_max_model_len(p) or _UNKNOWN),
            _CONFIDENCE.get(p["confidence"], p["confidence"]),
        )
        for p in found
    ]
    header = ("model", "parameters", "weight files", "max length", "config")
    return _list(header, rows, "model", query, left=(0, 4), beneath=_also(found))


def render_gpus(profiles: Iterable[Mapping[str, Any]], query: str | None, *, as_json: bool) -> str:
    """The cards whose names have all the words of the query."""
    found = [p for p in profiles if _has_words(p, query)]
    if as_json:
        return _json({"schema": "kvplan.profiles/1", "gpus": [_gpu_line(p) for p in found]})
    rows = [
        (
            p["id"],
            f"{p['marketing_gb']:g} GB" if "marketing_gb" in p else _UNKNOWN,
            f"{p['total_gib']['value']:.2f} GiB" + (" *" if p["total_gib"].get("derived") else "  "),
            str(_fact(p, "compute_capability") or _UNKNOWN),
            f"{_fact(p, 'bandwidth_gbs'):g}" if _fact(p, "bandwidth_gbs") else _UNKNOWN,
        )
        for p in found
    ]
    header = ("GPU", "sold as", "torch sees  ", "capability", "GB/s")
    text = _list(header, rows, "GPU", query, left=(0,), beneath=_also(found))
    derived = any(p["total_gib"].get("derived") for p in found)
    return text + ("\n* derived from other figures: nobody has read it on such a card" if derived else "")


def render_profile(kind: str, profile: Mapping[str, Any], *, as_json: bool) -> str:
    """One profile: names first, then every fact with its source, then the rest."""
    if as_json:
        return _json({"schema": "kvplan.profile/1", "kind": kind, "profile": profile})
    lines = [visible(f"{profile['id']} ({kind})")]
    for key in ("name", "aliases", "nvml_names", "vendor", "arch", "config_source", "confidence"):
        if profile.get(key):
            value = profile[key]
            told = f"{key}: {value if isinstance(value, str) else ', '.join(value)}"
            lines.append(prose(visible(told), indent=2))
    facts = [(key, value) for key, value in profile.items() if isinstance(value, dict) and "source" in value]
    if facts:
        rows = [(key, _value(fact)) for key, fact in facts]
        sources = [_source(fact) for _, fact in facts]
        lines += ["", render_table(("fact, and its source", "value"), rows, beneath=sources)]
    if profile.get("readings"):
        read = [(f"{r['gib']:.2f} GiB", r.get("os", "linux")) for r in profile["readings"]]
        sources = [_source(reading) for reading in profile["readings"]]
        lines += ["", render_table(("torch total read", "on"), read, left=(1,), beneath=sources)]
    if profile.get("prices"):
        prices = [
            (f"${p['usd_per_hour']:g}/h", f"{p['provider']} {p['kind']}", p["date"])
            for p in profile["prices"]
        ]
        lines += ["", render_table(("price", "of", "on"), prices, left=(1, 2))]
    notes = [f"note: {note}" for note in profile.get("notes", ())]
    said = json.dumps({key: value for key, value in profile.items() if key != "config"})
    notes += [f"{word}: {meaning}" for word, meaning in _PROVENANCE.items() if word in said]
    lines += [f"\n{prose(visible(note), indent=2)}" for note in notes]
    if "config" in profile:
        lines += ["", "  config.json:", json.dumps(profile["config"], indent=2, ensure_ascii=False)]
    return "\n".join(lines)


def render_added(model: ModelSource, path: str, *, as_json: bool) -> str:
    """What was written, and where."""
    weights = model.weights
    if as_json:
        return _json(
            {
                "schema": "kvplan.profile-added/1",
                "path": path,
                "model": model.id,
                "source": model.source,
                "weights_bytes": weights.total_bytes if weights else None,
                "parameters": weights.parameters if weights else None,
            }
        )
    size = f"weight files {format_gib(weights.total_bytes)}" if weights else "sizes of weight files unknown"
    return f"{visible(path)}\n  read from {visible(model.source)}; {size}"


_PROVENANCE: Final = {
    "not checked again": "the figure is the vendor's, and was not compared with its datasheet again",
    "address unknown": "the text was public, but where is no longer known: it cannot be looked up there",
}
"""What the short words of a source mean; those that stand in a profile are explained under it."""

_CONFIDENCE: Final = {"config.json": "whole file", "same-geometry": "of a twin"}
"""How the table says what config a profile rests on; `profiles show` and JSON have the word itself."""


def _also(profiles: Iterable[Mapping[str, Any]]) -> list[str]:
    return [f"also {', '.join(names)}" if (names := p.get("aliases")) else "" for p in profiles]


def _list(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    what: str,
    query: str | None,
    *,
    left: Sequence[int],
    beneath: Sequence[str],
) -> str:
    if not rows:
        return f"no {what} with {query!r} in its name"
    return render_table(header, rows, left=left, beneath=beneath)


def _has_words(profile: Mapping[str, Any], query: str | None) -> bool:
    names = " ".join((profile["id"], profile.get("name", ""), *profile.get("aliases", ()))).casefold()
    return all(word in names for word in (query or "").casefold().split())


def _model_line(profile: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": profile["id"],
        "aliases": list(profile.get("aliases", ())),
        "architecture": next(iter(profile["config"].get("architectures") or ()), None),
        "parameters": _fact(profile, "parameters"),
        "weights_bytes": _fact(profile, "weights_bytes"),
        "max_model_len": _max_model_len(profile),
        "confidence": profile["confidence"],
    }


def _gpu_line(profile: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": profile["id"],
        "name": profile["name"],
        "aliases": list(profile.get("aliases", ())),
        "total_gib": profile["total_gib"]["value"],
        "total_is_derived": profile["total_gib"].get("derived", False),
        "compute_capability": _fact(profile, "compute_capability"),
        "bandwidth_gbs": _fact(profile, "bandwidth_gbs"),
        "usd_per_hour": profile["prices"][0]["usd_per_hour"] if profile.get("prices") else None,
    }


def _fact(profile: Mapping[str, Any], key: str) -> Any:
    fact = profile.get(key)
    return fact["value"] if fact else None


def _max_model_len(profile: Mapping[str, Any]) -> int | None:
    """What vLLM takes from the config; None where the architecture has no rule yet."""
    try:
        return model_shape(profile["config"]).max_model_len
    except UnsupportedModelError:
        return None


def _parameters(profile: Mapping[str, Any]) -> str:
    count = _fact(profile, "parameters")
    return f"{count / 1e9:,.2f} B" if count else _UNKNOWN


def _value(fact: Mapping[str, Any]) -> str:
    value = fact["value"]
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _source(fact: Mapping[str, Any]) -> str:
    kind = f"{fact['kind']}: " if "kind" in fact else ""
    note = f" ({fact['note']})" if fact.get("note") else ""
    return f"{kind}{fact['source']}{note}"


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
