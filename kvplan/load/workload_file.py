"""The workload file `kvplan.workload/1`: YAML in, `Workload` out, every complaint with file and line.

docs/workload.md describes the keys.
"""

from __future__ import annotations

import os
import re
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import yaml

from kvplan.catalog.names import nearest
from kvplan.errors import InputError, UnknownNameError
from kvplan.foreign import read_text
from kvplan.load.lengths import LengthSample, Marginal, merge, pair
from kvplan.load.workload import SCHEMA, Arrivals, ClosedLoop, Poisson, Trace, Workload

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_PERCENTILE: Final = re.compile(r"p(\d{1,2}(?:\.\d+)?)")
_LONGEST_LEN: Final = 100_000_000
_MOST_LOGPROBS: Final = 20
"""vLLM 0.32.0 config/model.py::ModelConfig.max_logprobs by default; a request for more is refused."""
"""Tokens; no request is longer, so a larger figure is a slip (bytes, or a timestamp)."""


def find_workload(
    name_or_path: str, profiles_dir: str | None = None, *, given_as: str = "--workload"
) -> Path:
    """The file of that path, or of the preset of that name.

    Args:
        name_or_path: what the user gave.
        profiles_dir: a folder of profiles that wins.
        given_as: the flag or argument that it was given as, for the complaint.

    Raises:
        UnknownNameError: neither a file nor a preset.
    """
    path = Path(name_or_path)
    if path.is_file():
        return path
    presets = preset_paths(profiles_dir)
    if name_or_path in presets:
        return presets[name_or_path]
    looks_like_path = path.suffix in {".yaml", ".yml"} or os.sep in name_or_path
    near = nearest(name_or_path, presets)
    hint = f"did you mean {' or '.join(near)}?" if near else f"presets: {', '.join(presets)}"
    if looks_like_path:
        raise UnknownNameError(f"{given_as}: no file {name_or_path}", f"or a preset: {', '.join(presets)}")
    raise UnknownNameError(f"{given_as}: no file or preset {name_or_path!r}", hint, near)


def preset_paths(profiles_dir: str | None = None) -> dict[str, Path]:
    """Preset name -> file, of all profile folders; the strongest folder's wins."""
    from kvplan.catalog.index import folders

    found: dict[str, Path] = {}
    for folder in folders(profiles_dir):
        for path in sorted(Path(folder, "workloads").glob("*.yaml")):
            found.setdefault(path.stem, path)
    return found


def read_workload(path: Path) -> Workload:
    """The workload of a YAML file.

    Raises:
        InputError: unreadable, not YAML, an unknown key (with the nearest known one) or a wrong value.
    """
    try:
        text = read_text(path)
    except FileNotFoundError as error:
        raise InputError(f"{path} cannot be read: no such file", "kvplan workload lists presets") from error
    return parse_workload(text, path)


def parse_workload(text: str, path: Path) -> Workload:
    """The workload of a file's text; `path` is for messages and the default name.

    Raises:
        InputError: not YAML, an unknown key (with the nearest known one) or a wrong value.
    """
    try:
        root = yaml.compose(text, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise InputError(
            f"{path}:{line}: not YAML: {error.problem}", "docs/workload.md shows a workload file"
        ) from error
    except yaml.YAMLError as error:  # a character that YAML does not take
        raise InputError(
            f"{path}: not YAML: {str(error).splitlines()[0]}", "docs/workload.md shows a workload file"
        ) from error
    if root is None:
        raise InputError(f"{path}:1: the file is empty", f"a workload begins with `schema: {SCHEMA}`")
    return _workload(_Node(str(path), "", root), path)


class _Node:
    """A YAML node that knows its file, line and key path."""

    def __init__(self, file: str, key: str, node: yaml.Node) -> None:
        self.file = file
        self.key = key
        self.node = node

    @property
    def where(self) -> str:
        """`file:line`."""
        return f"{self.file}:{self.node.start_mark.line + 1}"

    def refuse(self, complaint: str, hint: str | None = None) -> NoReturn:
        raise InputError(f"{self.where}: {self.key + ': ' if self.key else ''}{complaint}", hint)

    def _child(self, key: str, node: yaml.Node) -> _Node:
        return _Node(self.file, f"{self.key}.{key}" if self.key else key, node)

    def mapping(self, known: Iterable[str], pattern: re.Pattern[str] | None = None) -> dict[str, _Node]:
        """The children of a mapping whose keys are all known, each once."""
        if not isinstance(self.node, yaml.MappingNode):
            self.refuse(f"should be a mapping of {', '.join(known)}")
        children: dict[str, _Node] = {}
        for key_node, value_node in self.node.value:
            key = str(key_node.value)
            child = _Node(self.file, "", key_node)
            if key not in known and not (pattern and pattern.fullmatch(key)):
                near = nearest(key, known)
                child.refuse(
                    f"unknown key {self._child(key, key_node).key!r}",
                    f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}",
                )
            if key in children:
                child.refuse(f"{key} is there twice")
            children[key] = self._child(key, value_node)
        return children

    def sequence(self) -> list[_Node]:
        if not isinstance(self.node, yaml.SequenceNode) or not self.node.value:
            self.refuse("should be a list with at least one entry")
        return [_Node(self.file, f"{self.key}[{i}]", node) for i, node in enumerate(self.node.value)]

    def text(self) -> str:
        if not isinstance(self.node, yaml.ScalarNode):
            self.refuse("should be text")
        return str(self.node.value)

    def number(self, low: float, high: float = 1e15) -> float:
        try:
            value = float(self.node.value) if isinstance(self.node, yaml.ScalarNode) else None
        except ValueError:
            value = None
        if value is None:
            self.refuse("should be a number")
        if not low <= value <= high:
            self.refuse(f"{value:g} is out of range", f"{low:g} to {high:g}")
        return value

    def whole(self, low: int = 1, high: int = _LONGEST_LEN) -> int:
        value = self.number(low, high)
        if value != int(value):
            self.refuse(f"{value:g} is not a whole number of tokens")
        return int(value)


def _workload(root: _Node, path: Path) -> Workload:
    keys = root.mapping(
        (
            "schema",
            "name",
            "description",
            "source",
            "lengths",
            "arrivals",
            "conversation",
            "shared_prefix_tokens",
            "logprobs",
        )
    )
    if "schema" not in keys:
        root.refuse("schema is missing", f"the first line of a workload is `schema: {SCHEMA}`")
    if keys["schema"].text() != SCHEMA:
        keys["schema"].refuse(f"{keys['schema'].text()!r} is not {SCHEMA}")
    if "lengths" not in keys:
        root.refuse("lengths is missing", "give input and output, or samples: docs/workload.md")
    lengths = _lengths(keys["lengths"])
    arrivals = _arrivals(keys["arrivals"]) if "arrivals" in keys else ClosedLoop()
    prefix = keys["shared_prefix_tokens"].whole(low=0) if "shared_prefix_tokens" in keys else 0
    shortest = min(s.input_len for s in lengths["samples"])
    if prefix >= shortest:
        keys["shared_prefix_tokens"].refuse(
            f"{prefix} tokens are shared, but the shortest prompt has {shortest}",
            "a prompt's length counts its shared prefix: raise the lengths (min) or lower this",
        )
    turns = 1
    if "conversation" in keys:
        conversation = keys["conversation"].mapping(("turns",))
        if "turns" not in conversation:
            keys["conversation"].refuse("turns is missing")
        turns = conversation["turns"].whole(high=10_000)
    return Workload(
        name=keys["name"].text() if "name" in keys else path.stem,
        arrivals=arrivals,
        shared_prefix_tokens=prefix,
        turns=turns,
        logprobs=keys["logprobs"].whole(low=0, high=_MOST_LOGPROBS) if "logprobs" in keys else None,
        source=keys["source"].text() if "source" in keys else str(path),
        **lengths,
    )


def _lengths(node: _Node) -> dict[str, Any]:
    keys = node.mapping(("input", "output", "dependence", "samples", "longest"))
    if "samples" in keys:
        for other in ("input", "output", "dependence"):
            if other in keys:
                keys[other].refuse("cannot stand beside samples, which are pairs already")
        samples = tuple(s for s in map(_sample, keys["samples"].sequence()) if s.count)
        if not samples:
            keys["samples"].refuse("every count is 0")
        return {"samples": samples, **_longest(keys.get("longest"))}
    for name in ("input", "output"):
        if name not in keys:
            node.refuse(f"{name} is missing", "give both input and output, or samples")
    dependence = keys["dependence"].text() if "dependence" in keys else "comonotone"
    if dependence not in {"comonotone", "independent"}:
        keys["dependence"].refuse(f"{dependence!r} is unknown", "comonotone or independent")
    inputs, outputs = _marginal(keys["input"]), _marginal(keys["output"])
    fixed = len({*(x for _, x in inputs.knots)}) == len({*(x for _, x in outputs.knots)}) == 1
    samples = pair(inputs, outputs, "independent" if dependence == "independent" else "comonotone")
    longest_input, longest_total = inputs.knots[-1][1], inputs.knots[-1][1] + outputs.knots[-1][1]
    if "longest" in keys:
        limit = keys["longest"].mapping(("total",))
        if "total" not in limit:
            keys["longest"].refuse("total is missing")
        longest_total = min(longest_total, limit["total"].whole(low=2))
        longest_input = min(longest_input, longest_total - 1)
        samples = _cut(samples, longest_total)
    return {
        "samples": samples,
        "longest_input_stated": longest_input,
        "longest_total_stated": longest_total,
        "lengths_from": "fixed" if fixed else "percentiles",
        "dependence": None if fixed else dependence,
    }


def _cut(samples: tuple[LengthSample, ...], longest_total: int) -> tuple[LengthSample, ...]:
    """Requests that the server would not admit, or would cut short, at the longest that it does."""
    cut = []
    for sample in samples:
        input_len = min(sample.input_len, longest_total - 1)
        cut.append(LengthSample(input_len, min(sample.output_len, longest_total - input_len), sample.count))
    return merge(cut)


def _sample(node: _Node) -> LengthSample:
    parts = node.sequence()
    if len(parts) not in {2, 3}:
        node.refuse("should be [input, output] or [input, output, count]")
    count = parts[2].whole(low=0, high=10**12) if len(parts) == 3 else 1
    return LengthSample(parts[0].whole(), parts[1].whole(), count)


def _longest(node: _Node | None) -> dict[str, int]:
    if node is None:
        return {}
    keys = node.mapping(("input", "total"))
    return {f"longest_{name}_stated": value.whole() for name, value in keys.items()}


def _marginal(node: _Node) -> Marginal:
    if isinstance(node.node, yaml.ScalarNode):
        return Marginal.fixed(node.whole())
    keys = node.mapping(("min", "mean", "max", "p50", "p95", "p99"), _PERCENTILE)
    if "max" not in keys:
        node.refuse("max is missing", "the longest length decides max_model_len and cannot be guessed")
    knots = [(0.0, keys["min"].whole() if "min" in keys else 1)]
    percentiles = [(float(match[1]) / 100, key) for key in keys if (match := _PERCENTILE.fullmatch(key))]
    for q, key in sorted(percentiles):
        if q > 0:
            knots.append((q, keys[key].whole()))
    knots.append((1.0, keys["max"].whole()))
    for (_, low), (q, high) in pairwise(knots):
        if high < low:
            culprit = keys["max"] if q == 1 else keys[next(k for share, k in percentiles if share == q)]
            culprit.refuse(f"{high} is below the length before it, {low}")
    mean = keys["mean"].number(low=1, high=_LONGEST_LEN) if "mean" in keys else None
    marginal = Marginal(tuple(knots), mean)
    try:
        marginal.rate()
    except InputError as error:
        (keys.get("mean") or node).refuse(error.message, error.hint)
    return marginal


def _arrivals(node: _Node) -> Arrivals:
    keys = node.mapping(("users", "think_time_s", "requests_per_s", "times_s"))
    kinds = [name for name in ("users", "requests_per_s", "times_s") if name in keys]
    if len(kinds) > 1 or (not kinds and "think_time_s" not in keys):
        node.refuse("should have one of users, requests_per_s, times_s")
    if "think_time_s" in keys and kinds not in ([], ["users"]):
        keys["think_time_s"].refuse("goes with users only")
    if kinds == ["requests_per_s"]:
        return Poisson(keys["requests_per_s"].number(low=1e-6, high=1e6))
    if kinds == ["times_s"]:
        times = [entry.number(low=0) for entry in keys["times_s"].sequence()]
        if times != sorted(times):
            keys["times_s"].refuse("should not go back in time")
        return Trace(tuple(t - times[0] for t in times))
    return ClosedLoop(
        users=keys["users"].whole(high=1_000_000) if kinds else None,
        think_time_s=keys["think_time_s"].number(low=0) if "think_time_s" in keys else 0.0,
    )


def dump_workload(document: Mapping[str, Any]) -> str:
    """The YAML text of a workload document, with pairs and short mappings on one line each."""

    class Dumper(yaml.SafeDumper):
        def represent_list_flow(self, data: list[Any]) -> yaml.Node:
            return self.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=True)

    Dumper.add_representer(_Flow, Dumper.represent_list_flow)
    body = dict(document)
    lengths = dict(body["lengths"])
    if "samples" in lengths:
        lengths["samples"] = [_Flow(sample) for sample in lengths["samples"]]
    body["lengths"] = lengths
    return yaml.dump(
        body, Dumper=Dumper, sort_keys=False, default_flow_style=False, width=110, allow_unicode=True
    )


class _Flow(list[Any]):
    """A list that is written `[1, 2]`."""
