"""The launches that calls of a Python file make: vLLM's engine, Ray's deployment of it, or a command."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any, Final

from kvplan.config.flag_table import flag_table
from kvplan.gate.argv import CommandReader
from kvplan.gate.flags import ParsedFlags
from kvplan.gate.readers.python_scope import Val, defaulted_names, dotted, plain
from kvplan.gate.readers.python_values import fold, keywords, present
from kvplan.gate.shell import read_shell
from kvplan.gate.taint import Word

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvplan.gate.readers.python_scope import Scope
    from kvplan.gate.reading import Reading, Surroundings

_LLM_ONLY: Final = frozenset(
    {
        "swap_space",
        "max_seq_len_to_capture",
        "max_context_len_to_capture",
        "structured_outputs_config",
        "attention_config",
    }
)


class PythonLaunches:
    """Records the launches of one file."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._launched: set[int] = set()
        """Argument lists that were read."""
        self._commands = CommandReader(reading, self._run_text)

    def engine(
        self, node: ast.Call, values: dict[str, Val], around: Surroundings, dropped: Sequence[str] = ()
    ) -> None:
        """One launch; `dropped` are attributes set on its arguments that vLLM never looks at."""
        result = ParsedFlags(ignored=dict.fromkeys(dropped))
        _take(values, result)
        if (
            not node.args
            and all(k.arg is None and _is_engine_copy(k.value) for k in node.keywords)
            and node.keywords
        ):
            # LLM(**asdict(engine_args)): the EngineArgs call is the launch.
            return
        place = (node.lineno, node.col_offset + 1)
        self._reading.record(result, place, around)

    def ray(self, node: ast.Call, scope: Scope, around: Surroundings) -> None:
        """The launch that Ray's `LLMConfig(…)` describes."""
        values = keywords(node, scope)
        result = ParsedFlags()
        kwargs = values.get("engine_kwargs")
        if kwargs is not None and isinstance(kwargs.value, dict):
            _take(kwargs.value, result)
        elif kwargs is not None:
            result.unresolved.update(dict.fromkeys(kwargs.unknown))
        loading = values.get("model_loading_config")
        inner = loading.value if loading is not None and isinstance(loading.value, dict) else {}
        for key in ("model_source", "model_id"):
            found = inner.get(key)
            if found is not None and result.model is None and not result.unresolved_flags.get("model"):
                _take({"model": found}, result)
        accelerator = values.get("accelerator_type")
        gpu = accelerator.value if accelerator is not None and isinstance(accelerator.value, str) else None
        place = (node.lineno, node.col_offset + 1)
        self._reading.record(result, place, around.but(gpu=gpu or around.gpu, gpus_from_parallelism=True))

    def command(self, node: ast.Call, name: str, scope: Scope, around: Surroundings) -> None:
        """What a call hands to a process of its own, if that is vLLM."""
        first = node.args[0]
        value = fold(first, scope)
        arguments = value.value if isinstance(value.value, list) else None
        if "exec" in name and not isinstance(value.value, list) and len(node.args) > 1:
            rest = [fold(a.value if isinstance(a, ast.Starred) else a, scope) for a in node.args[1:]]
            flat = [item for v in rest for item in (v.value if isinstance(v.value, list) else [v])]
            arguments = flat if "os.exec" in name else [value, *flat]
        if arguments is not None:
            self._launched.add(id(value.value))
            words = [self._word(item, node.lineno) for item in arguments]
            self._commands.read(words, around)
            return
        text = self._text(first, value, scope)
        if "vllm" in text:
            place = Word("", first.lineno, first.col_offset + 1)
            self._run_text(text, place, around)

    def leftover(self, scope: Scope, around: Surroundings) -> None:
        """Argument lists that are built here and handed to something that is not followed."""
        for value in scope.names.values():
            items = value.value
            if not isinstance(items, list) or id(items) in self._launched or len(items) < 2:
                continue
            self._launched.add(id(items))
            texts = [item.value for item in items[:4] if isinstance(item, Val)]
            head = [text for text in texts if isinstance(text, str)]
            if head[:2] == ["vllm", "serve"] or (
                "-m" in head and any(t.startswith("vllm.entrypoints") for t in head)
            ):
                line = items[0].line or 1
                self._commands.read([self._word(item, line) for item in items], around)

    def _text(self, node: ast.expr, value: Val, scope: Scope) -> str:
        """A command text; of an f-string the unknown parts are marked, the rest is kept."""
        if isinstance(value.value, str):
            return value.value
        parts = node.values if isinstance(node, ast.JoinedStr) else []
        if isinstance(node, ast.Name):
            return ""
        out = ""
        for part in parts:
            inner = part.value if isinstance(part, ast.FormattedValue) else part
            folded = present(fold(inner, scope), inner, scope)
            out += self._word(folded, node.lineno).text
        return out

    def _word(self, item: Val, line: int) -> Word:
        taint = self._reading.taint
        if item.unknown:
            text = "".join(taint.unknown(name) for name in item.unknown)
        else:
            text = "".join(taint.defaulted(name, "") for name in item.defaulted) + str(item.value)
        return Word(text, item.line or line, item.column)

    def _run_text(self, text: str, word: Word, around: Surroundings) -> None:
        read_shell(
            text,
            self._reading,
            around,
            lambda row, column, _: (word.line + row, word.column if row == 0 else column + 1),
        )


def arguments_of(node: ast.Call, scope: Scope) -> dict[str, Val]:
    """What `LLM(…)` and `EngineArgs(…)` are called with."""
    values = keywords(node, scope)
    for name, argument in zip(("model", "tokenizer"), node.args, strict=False):
        if not isinstance(argument, ast.Starred):
            values.setdefault(name, fold(argument, scope))
    return values


def _take(values: dict[str, Val], result: ParsedFlags) -> None:
    table = flag_table().flags
    for name, value in values.items():
        if name == "**":
            result.unresolved.update(dict.fromkeys(value.unknown))
            continue
        names: list[str] = []
        typed: Any = plain(value, names)
        result.places[name] = (value.line, value.column)
        result.defaulted.update(dict.fromkeys(defaulted_names(value)))
        if names:
            result.unresolved.update(dict.fromkeys(names))
            result.unresolved_flags[name] = tuple(names)
        elif name == "model":
            result.model = str(typed) if typed is not None else None
            result.model_place = (value.line, value.column)
        elif typed is None:
            result.ignored[name] = None
        elif name in table or name in _LLM_ONLY:
            result.flags[name] = (
                [typed] if name in table and table[name].many and isinstance(typed, str) else typed
            )
        else:
            result.unknown_flags[name] = None


def _is_engine_copy(node: ast.expr) -> bool:
    """`asdict(engine_args)`, `vars(engine_args)`, `engine_args.__dict__`."""
    if isinstance(node, ast.Attribute):
        return node.attr == "__dict__"
    return (
        isinstance(node, ast.Call)
        and dotted(node.func).rpartition(".")[2] in {"asdict", "vars"}
        and bool(node.args and "args" in dotted(node.args[0]) and dotted(node.args[0]) != "args")
    )
