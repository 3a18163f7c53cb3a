"""Sets of module names as checkpoints write them: exact names, wildcards, regular expressions (pure)."""

from __future__ import annotations

import fnmatch
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_WRAPPERS: Final = r"^(?:(?:model|language_model|thinker|backbone|transformer|llm)\.)+"
_LAYER: Final = r"^(.*?)\b(?:layers|h|blocks)\.(\d+)(?:\.(.*))?$"
_EXPERT: Final = r"\bexperts\.\d+"


def canonical(name: str) -> str:
    """A module's name without the wrappers' prefixes, experts unnumbered."""
    return re.sub(_EXPERT, "experts.{expert}", re.sub(_WRAPPERS, "", name.rstrip(".")))


class NameSet:
    """Names of modules. A plain entry also stands for what lies below it, and for its last parts alone."""

    def __init__(self, entries: Iterable[str]) -> None:
        self._generic: set[str] = set()
        self._by_layer: dict[int, set[str]] = {}
        self._patterns: list[tuple[re.Pattern[str], bool]] = []
        for entry in entries:
            self._add(entry)

    def _add(self, entry: str) -> None:
        if entry.startswith("re:"):
            self._patterns.append((re.compile(entry[3:]), _names_a_layer(entry)))
        elif set(entry) & set("*?["):
            pattern = re.compile(fnmatch.translate(canonical(entry)))
            self._patterns.append((pattern, _names_a_layer(entry)))
        elif (match := re.match(_LAYER, canonical(entry))) and not match[1].rstrip("."):
            self._by_layer.setdefault(int(match[2]), set()).add(match[3] or "")
        else:
            self._generic.add(canonical(entry))

    def matches(self, name: str) -> bool:
        """Whether the set names a module that is in no decoder layer (its blocks count as block 0)."""
        plain = canonical(name).replace("{block}", "0")
        return self._generic_match(plain) or any(_search(p, plain, name) for p, _ in self._patterns)

    def matching_layers(self, name: str, layers: Sequence[int]) -> list[int]:
        """The layers in which the set names the module of this pattern."""
        plain = canonical(name)
        whole = plain.replace("layers.{layer}.", "")
        if self._generic_match(whole):
            return list(layers)
        if any(
            _search(p, plain.replace("{layer}", "0"), name.replace("{layer}", "0"))
            for p, numbered in self._patterns
            if not numbered
        ):
            return list(layers)
        numbered = [p for p, has_number in self._patterns if has_number]
        if not self._by_layer and not numbered:
            return []
        parts = whole.split(".")
        heads = {".".join(parts[:i]) for i in range(len(parts) + 1)}
        return [
            layer
            for layer in layers
            if heads & self._by_layer.get(layer, set())
            or any(
                _search(p, plain.replace("{layer}", str(layer)), name.replace("{layer}", str(layer)))
                for p in numbered
            )
        ]

    def _generic_match(self, name: str) -> bool:
        if not self._generic:
            return False
        parts = name.split(".")
        spans = ((i, j) for i in range(len(parts)) for j in range(i + 1, len(parts) + 1))
        return any(".".join(parts[i:j]) in self._generic for i, j in spans)


def _names_a_layer(entry: str) -> bool:
    return any(char.isdigit() for char in entry)


def _search(pattern: re.Pattern[str], plain: str, name: str) -> bool:
    """A pattern may be written against the name with any of the wrappers' prefixes."""
    names = (plain, name, f"model.{plain}", f"model.language_model.{plain}", f"language_model.model.{plain}")
    return any(pattern.match(candidate.replace("{expert}", "0")) for candidate in names)
