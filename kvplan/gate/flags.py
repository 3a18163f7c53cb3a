"""vLLM's flag grammar: the words after `vllm serve` (or of the API server module) turned into settings.

Source: vLLM 0.32.0 utils/argparse_utils.py::FlexibleArgumentParser and Python's argparse below it.
"""

from __future__ import annotations

import re
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final

from kvplan.config.flag_table import FlagTable, Option, flag_table
from kvplan.config.flag_values import (
    BadValueError,
    UnsetError,
    comma_list,
    dotted_value,
    merge,
    parse_value,
)
from kvplan.gate.taint import is_all_unknown, is_unknown, notes_of, without_notes
from kvplan.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvplan.config.version import VllmVersion
    from kvplan.gate.found import Place
    from kvplan.gate.taint import Taint, Word

_ONE_WORD: Final = re.compile(r"--[a-z][\w.-]*\s+\S")
_OPTION_INSIDE: Final = r"(?<!\S)--[a-z][\w.-]*"
_NEGATIVE_NUMBER: Final = re.compile(r"-\d+|-\d*\.\d+")
_OPTION_NAME: Final = re.compile(r"--?[A-Za-z][\w.+-]*")
_TRUE: Final = frozenset({"true", "1", "yes", "on"})
_FALSE: Final = frozenset({"false", "0", "no", "off"})
_OPTIMIZATION_LEVEL_SINCE: Final = (0, 12, 0)
_NO_EQUALS_FOR_BOOLEANS_SINCE: Final = (0, 8, 0)


class ParsedFlags(Record):
    """What vLLM would have read from the words."""

    model: str | None = None
    model_place: Place | None = None
    flags: dict[str, Any] = field(default_factory=dict)
    unresolved: dict[str, None] = field(default_factory=dict)
    defaulted: dict[str, None] = field(default_factory=dict)
    assumed: dict[str, None] = field(default_factory=dict)
    invalid: dict[str, str] = field(default_factory=dict)
    unknown_flags: dict[str, None] = field(default_factory=dict)
    unresolved_flags: dict[str, tuple[str, ...]] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)
    ignored: dict[str, None] = field(default_factory=dict)
    overridden: dict[str, Any] = field(default_factory=dict)
    """Flags that the `--config` file sets otherwise than the command line; the file's value."""


class FlagParser:
    """Reads one command line. Not reusable."""

    def __init__(
        self,
        taint: Taint,
        version: VllmVersion | None = None,
        load_config: Callable[[str], Sequence[Word] | str] | None = None,
        foreign: frozenset[str] = frozenset(),
    ) -> None:
        """Prepare to read.

        Args:
            taint: names behind the marks in the words.
            version: the pinned vLLM, None when the file does not say.
            load_config: gives the words of a `--config` file, or why it could not be read.
            foreign: options of another program around vLLM (KServe's server), passed over.
        """
        self._taint = taint
        self._version = version
        self._load_config = load_config
        self._foreign = foreign
        self._table: FlagTable = flag_table()
        self._file_words = -1
        """Index of the first word behind those of the config file; -1 without one."""
        self._file_model: dict[str, Any] = {}
        """The file's model where a positional one is put in its place."""
        self._dotted: dict[str, dict[str, Any]] = {}
        self.result = ParsedFlags()

    def parse(self, words: Sequence[Word], *, positional_model: bool = True) -> ParsedFlags:
        """Read all words; the last of several values wins."""
        queue = self._with_config(list(words), positional_model=positional_model)
        i = 0
        positional: Word | None = None
        of_file: dict[str, Any] = {}
        while i < len(queue):
            if i == self._file_words and not of_file:
                of_file = self._said()
            word = queue[i]
            text = without_notes(word.text)
            if is_all_unknown(text):
                self._note(word.text)
                if positional is None and i == 0 and positional_model:
                    positional = word
                i += 1
            elif _is_option(text):
                i = self._option(queue, i)
            elif _is_option_with_value(text):
                self._one_word(word, text)
                i += 1
            else:
                if positional is None:
                    positional = word
                i += 1
        if positional is not None and positional_model and "model" not in self.result.places:
            self._set_model(positional)
        self._finish_dotted()
        self._compare(of_file)
        return self.result

    def _said(self) -> dict[str, Any]:
        """What the words so far come to, without flags that gather values."""
        flags = self._table.flags
        said = {k: v for k, v in self.result.flags.items() if k not in flags or not flags[k].append}
        return said if self.result.model is None else {**said, "model": self.result.model}

    def _compare(self, of_file: dict[str, Any]) -> None:
        """Name what the config file says otherwise than the command line, which wins."""
        result = self.result
        now = self._said()
        for name, value in {**of_file, **self._file_model}.items():
            if name in now and now[name] != value:
                result.overridden[name] = value

    def _with_config(self, words: list[Word], *, positional_model: bool) -> list[Word]:
        """The words with the file of `--config FILE` put in front, so that the command line wins.

        `--config=FILE` is accepted and ignored by vLLM, which looks for the bare word only.
        """
        for i, word in enumerate(words):
            text = without_notes(word.text)
            if text.startswith("--config="):
                self.result.ignored["config"] = None
                return words[:i] + words[i + 1 :]
            if text != "--config":
                continue
            if i + 1 >= len(words):
                self.result.invalid["config"] = "no file given"
                return words[:i]
            head = 0
            if positional_model and words and not _is_option(without_notes(words[0].text)):
                head = 1
            rest = words[head:i] + words[i + 2 :]
            config = self._config_words(words[i + 1], word)
            if head:
                # A positional model wins over the file's; the rest of the command line comes later.
                self._file_model = _model_of(config)
                config = _without_model(config)
            self._file_words = head + len(config)
            return words[:head] + config + rest
        return words

    def _config_words(self, name: Word, option: Word) -> list[Word]:
        plain = self._taint.split(name.text)
        if plain.unknown:
            self._note(name.text)
            return []
        loaded = self._load_config(plain.text) if self._load_config else "config file not read"
        if isinstance(loaded, str):
            self.result.unresolved[loaded] = None
            return []
        return [word.with_text(word.text) if word.line else _at(word, option) for word in loaded]

    def _option(self, queue: list[Word], i: int) -> int:  # noqa: PLR0911  one branch a kind
        """Read the option at `i`; gives the index of the next unread word."""
        word = queue[i]
        text = without_notes(word.text)
        name, equals, value = text.partition("=")
        if is_unknown(name):
            self._note(word.text)
            return i + 1
        if name.startswith("--"):
            head, dot, tail = name.partition(".")
            name = head.replace("_", "-") + dot + tail
        if name in self._foreign:
            return i + 1 if equals or _next_is_option(queue, i) else i + 2
        if name.startswith("-O"):
            return self._optimization_level(queue, i, text)
        if "." in name:
            return self._dotted_option(queue, i, name, value if equals else None)
        option = self._table.find(name, self._version)
        if option is None:
            return self._unknown(queue, i, name, has_value=bool(equals))
        if option.flag.name == "help":
            self.result.invalid["help"] = "vLLM prints its help and ends"
            return i + 1
        self._check_release(option)
        if option.flag.kind in {"bool", "store_true"}:
            self._boolean(option, word, value if equals else None)
            if not equals and i + 1 < len(queue) and queue[i + 1].text.lower() in {"true", "false"}:
                self.result.invalid[option.flag.name] = "takes no value"
                return i + 2
            return i + 1
        if equals:
            self._store(option, [word.with_text(notes_of(word.text) + value)], word)
            return i + 1
        return self._valued(option, queue, i)

    def _one_word(self, word: Word, text: str) -> None:
        """`--max-model-len 4096` as a single word (an item of a YAML list): argparse sees no option in it."""
        self._note(word.text)
        for match in re.finditer(_OPTION_INSIDE, text):
            name = match[0].replace("_", "-")
            option = self._table.find(name, self._version)
            if option is None:
                self.result.unknown_flags[name] = None
            else:
                self._place(option.flag.name, word)
                self._refuse(option.flag.name, "stands in one word with its value", word)

    def _valued(self, option: Option, queue: list[Word], i: int) -> int:
        end = i + 1
        limit = len(queue) if option.flag.many else min(len(queue), i + 2)
        while end < limit and not _is_option(without_notes(queue[end].text)):
            end += 1
        values = queue[i + 1 : end]
        if not values:
            if not option.flag.optional_value:
                self._refuse(option.flag.name, "empty value", queue[i])
            return end
        self._store(option, values, queue[i])
        return end

    def _boolean(self, option: Option, word: Word, value: str | None) -> None:
        name = option.flag.name
        self._place(name, word)
        result = not option.negates
        if value is not None:
            if is_unknown(value):
                self._unresolved_value(name, word.text)
                return
            if value.lower() not in _TRUE | _FALSE:
                self._refuse(name, "takes no value", word)
                return
            result = (value.lower() in _TRUE) == result
            if self._version is None or self._version >= _NO_EQUALS_FOR_BOOLEANS_SINCE:
                self.result.invalid[name] = "takes no value since vLLM 0.8"
        self._note(word.text)
        self.result.unresolved_flags.pop(name, None)
        self.result.flags[name] = result

    def _store(self, option: Option, values: list[Word], word: Word) -> None:
        flag = option.flag
        self._place(flag.name, word)
        joined = "".join(value.text for value in values)
        if flag.name == "model":
            self._set_model(values[0])
            return
        if is_unknown(joined):
            self._unresolved_value(flag.name, joined)
            return
        self._note(joined)
        self.result.unresolved_flags.pop(flag.name, None)
        try:
            parsed = [parse_value(flag, self._taint.split(value.text).text) for value in values]
        except UnsetError:
            self.result.flags.pop(flag.name, None)
            return
        except BadValueError as error:
            self._refuse(flag.name, str(error), word)
            return
        if flag.append:
            parsed = [*self.result.flags.get(flag.name, []), *parsed]
        self.result.flags[flag.name] = parsed if flag.many or flag.append else parsed[0]

    def _dotted_option(self, queue: list[Word], i: int, name: str, value: str | None) -> int:
        word = queue[i]
        end = i + 1
        raw = word.text
        if value is None:
            if end >= len(queue):
                self.result.invalid[name.lstrip("-")] = "empty value"
                return end
            raw, value = queue[end].text, without_notes(queue[end].text)
            end += 1
        appended = name.endswith("+")
        key, *keys = name.removesuffix("+").split(".")
        option = self._table.find(key, self._version)
        if option is None:
            self.result.unknown_flags[key] = None
            return end
        self._check_release(option)
        self._place(option.flag.name, word)
        if is_unknown(value):
            self._unresolved_value(option.flag.name, raw)
            return end
        self._note(raw)
        nested: Any = comma_list(value) if appended else dotted_value(value)
        for part in reversed(keys[:40]):
            nested = {part: nested}
        merge(self._dotted.setdefault(option.flag.name, {}), nested if isinstance(nested, dict) else {})
        return end

    def _finish_dotted(self) -> None:
        # vLLM puts the merged dotted parts behind all other arguments, so they win over one JSON value.
        for name, value in self._dotted.items():
            if name not in self.result.unresolved_flags:
                self.result.flags[name] = value

    def _optimization_level(self, queue: list[Word], i: int, text: str) -> int:
        """`-O3`, `-O=3` and `-O 3`: the compilation level up to 0.11, the optimisation level since."""
        end = i + 1
        level = text[3:] if text[2:3] == "=" else text[2:]
        raw = queue[i]
        if text == "-O":
            if end >= len(queue) or _is_option(without_notes(queue[end].text)):
                self._refuse("optimization_level", "empty value", raw)
                return end
            raw = queue[end]
            level = without_notes(raw.text)
            end += 1
        old = self._version is not None and self._version < _OPTIMIZATION_LEVEL_SINCE
        name = "compilation_config" if old else "optimization_level"
        self._place(name, queue[i])
        if is_unknown(level):
            self._unresolved_value(name, raw.text)
        elif level.isascii() and level.isdigit() and len(level) < 4:
            self._note(raw.text)
            self.result.flags[name] = {"level": int(level)} if old else int(level)
        else:
            self._refuse(name, "not a level", queue[i])
        return end

    def _unknown(self, queue: list[Word], i: int, name: str, *, has_value: bool) -> int:
        self.result.unknown_flags[name] = None
        self._note(queue[i].text)
        if has_value or _next_is_option(queue, i):
            return i + 1
        self._note(queue[i + 1].text)
        return i + 2

    def _check_release(self, option: Option) -> None:
        if self._version is not None and not option.is_in(self._version):
            self.result.unknown_flags[option.text] = None

    def _set_model(self, word: Word) -> None:
        plain = self._taint.split(word.text)
        self._place("model", word)
        self.result.model_place = (word.line, word.column)
        self._note(word.text)
        if plain.unknown:
            self.result.model = None
            self.result.unresolved_flags["model"] = plain.unknown
        else:
            self.result.unresolved_flags.pop("model", None)
            self.result.model = plain.text.removeprefix("hf://") or None

    def _unresolved_value(self, name: str, text: str) -> None:
        self._note(text)
        self.result.flags.pop(name, None)
        self.result.unresolved_flags[name] = self._taint.split(text).unknown

    def _refuse(self, name: str, why: str, word: Word) -> None:
        self.result.flags.pop(name, None)
        self.result.unresolved_flags.pop(name, None)
        self.result.invalid[name] = why
        self._place(name, word)

    def _place(self, name: str, word: Word) -> None:
        self.result.places[name] = (word.line, word.column)

    def _note(self, text: str) -> None:
        plain = self._taint.split(text)
        self.result.unresolved.update(dict.fromkeys(plain.unknown))
        self.result.defaulted.update(dict.fromkeys(plain.defaulted))
        self.result.assumed.update(dict.fromkeys(plain.assumed))


def _without_model(words: list[Word]) -> list[Word]:
    """The words without `--model NAME`."""
    at = next((i for i, word in enumerate(words) if word.text == "--model"), None)
    return words if at is None else words[:at] + words[at + 2 :]


def _model_of(words: list[Word]) -> dict[str, Any]:
    at = next((i for i, word in enumerate(words[:-1]) if word.text == "--model"), None)
    if at is None or is_unknown(words[at + 1].text):
        return {}
    return {"model": without_notes(words[at + 1].text)}


def _is_option(text: str) -> bool:
    """Whether argparse takes the word for an option."""
    if not text.startswith("-") or text in {"-", "--"}:
        return False
    if _NEGATIVE_NUMBER.fullmatch(text):
        return False
    # A word with a space is a value, unless the space is behind its "=".
    return " " not in text.partition("=")[0]


def _is_option_with_value(text: str) -> bool:
    """Whether a word that argparse takes for a value was meant for an option and its value."""
    return _ONE_WORD.match(text) is not None


def _next_is_option(queue: list[Word], i: int) -> bool:
    return i + 1 >= len(queue) or _is_option(without_notes(queue[i + 1].text))


def looks_like_option(text: str) -> bool:
    """Whether the word could be the name of an option."""
    return bool(_OPTION_NAME.match(text))


def _at(word: Word, place: Word) -> Word:
    from kvplan.gate.taint import Word as WordType

    return WordType(word.text, place.line, place.column)
