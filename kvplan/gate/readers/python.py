"""Python files: `LLM(…)`, `AsyncEngineArgs(…)`, Ray's `LLMConfig(…)` and vLLM commands handed to subprocess.

Read with `ast` alone: nothing is imported or run.
"""

from __future__ import annotations

import ast
import re
import warnings
from typing import TYPE_CHECKING, Final

from kvplan.config.flag_table import flag_table
from kvplan.gate.readers.python_branches import after_all_ways, copied
from kvplan.gate.readers.python_launches import PythonLaunches, arguments_of
from kvplan.gate.readers.python_scope import Scope, Val, dotted, name_of
from kvplan.gate.readers.python_values import fold, keywords
from kvplan.gate.reading import Surroundings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvplan.gate.reading import Reading

MAX_PYTHON: Final = 600_000
_ENGINE_ARGS: Final = frozenset({"AsyncEngineArgs", "EngineArgs"})
_RUNNERS: Final = re.compile(
    r"(subprocess\.(Popen|run|call|check_call|check_output)|Popen|os\.(system|popen|execv\w*|execl\w*|spawn\w*)"
    r"|asyncio\.create_subprocess_(exec|shell)|create_subprocess_(exec|shell)|pexpect\.spawn|sp\.(Popen|run))"
)
_TELLING: Final = re.compile(
    r"\b(LLM|AsyncEngineArgs|EngineArgs|LLMConfig)\s*\(|[\"'\s]serve[\"'\s]|vllm\.entrypoints"
    r"|import\s[^\n]*\b(LLM|EngineArgs)\b|vllm-openai|[\"'/]vllm[\w-]*:"
)
"""What a Python file must hold to be parsed at all: parsing is the dear part."""
_GPU: Final = re.compile(r"([A-Za-z][\w -]*?)(?::(\d{1,3}))?!?")


def read_python(reading: Reading) -> None:
    """Record every launch of a Python file."""
    if "vllm" not in reading.text.lower() and "LLMConfig" not in reading.text:
        return
    if not _TELLING.search(reading.text):
        return
    if len(reading.text) > MAX_PYTHON:
        reading.miss_text(1, "Python file too large to parse")
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(reading.text)
    except SyntaxError as error:
        reading.miss_text(error.lineno or 1, "cannot parse this Python file")
        return
    except (ValueError, RecursionError, MemoryError):
        reading.miss_text(1, "cannot parse this Python file")
        return
    _PythonReader(reading, tree).run()


class _PythonReader:
    """One module."""

    def __init__(self, reading: Reading, tree: ast.Module) -> None:
        self._reading = reading
        self._tree = tree
        self._engines: dict[str, str] = {}
        self._modules: set[str] = set()
        self._seen: set[int] = set()
        self._gpu: tuple[str | None, int | None] = (None, None)
        self._name: str | None = None
        self._depth = 0
        self._open: list[dict[str, tuple[ast.Call, dict[str, Val]]]] = []
        """Engine arguments of the blocks around, by the name they have: attributes may still be set."""
        self._launches = PythonLaunches(reading)

    def run(self) -> None:
        """Walk the module, then each function with the names that it sees."""
        scope = Scope(lines=self._reading.text.split("\n"))
        for node in ast.walk(self._tree):
            if isinstance(node, ast.ImportFrom):
                self._import_from(node)
            elif isinstance(node, ast.Import):
                self._modules |= {
                    alias.asname or alias.name for alias in node.names if alias.name.split(".")[0] == "vllm"
                }
            elif isinstance(node, ast.Call) and dotted(node.func).endswith(".add_argument"):
                self._argument(node, scope)
            elif isinstance(node, ast.Global):
                scope.rebound |= set(node.names)
        self._block(self._tree.body, scope)
        self._launches.leftover(scope, self._around())

    def _import_from(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        for alias in node.names:
            known = alias.name in _ENGINE_ARGS | {"LLM", "LLMConfig"}
            from_vllm = module.split(".")[0] == "vllm" and known
            from_ray = module.startswith("ray.") and alias.name == "LLMConfig"
            if from_vllm or from_ray:
                self._engines[alias.asname or alias.name] = alias.name

    @staticmethod
    def _argument(node: ast.Call, scope: Scope) -> None:
        names = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        longest = next((name for name in names if name.startswith("--")), names[0] if names else "")
        dest = longest.lstrip("-").replace("-", "_")
        for keyword in node.keywords:
            if (
                keyword.arg == "default"
                and isinstance(keyword.value, ast.Constant)
                and keyword.value.value is not None
            ):
                scope.arguments[dest] = keyword.value.value

    # -- statements

    def _block(self, body: Sequence[ast.stmt], scope: Scope) -> None:
        if self._depth > 40:
            return
        self._depth += 1
        self._open.append({})
        for statement in body:
            self._statement(statement, scope)
        for name, (call, values) in self._open.pop().items():
            self._engine_args(name, call, values, scope)
        self._depth -= 1

    def _statement(self, node: ast.stmt, scope: Scope) -> None:  # noqa: C901, PLR0912  one branch a kind
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._function(node, scope)
            case ast.ClassDef():
                before, name = self._gpu, self._name
                self._decorated(node, scope)
                self._block(node.body, Scope(parent=scope))
                self._gpu, self._name = before, name
            case ast.If():
                self._calls(node.test, scope)
                self._branches([node.body, node.orelse], name_of(node.test, scope), scope)
            case ast.For() | ast.AsyncFor() | ast.While():
                if isinstance(node, ast.For | ast.AsyncFor) and isinstance(node.target, ast.Name):
                    scope.names[node.target.id] = Val(unknown=(node.target.id,))
                self._branches([node.body, []], "loop", scope)
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    self._calls(item.context_expr, scope)
                self._block(node.body, scope)
            case ast.Try():
                self._block(node.body, scope)
                for handler in node.handlers:
                    self._block(handler.body, Scope(parent=scope))
                self._block(node.orelse + node.finalbody, scope)
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                self._assign(node, scope)
            case ast.Expr() | ast.Return():
                if node.value is not None and not isinstance(node.value, ast.Constant):
                    self._mutation(node.value, scope)
                    self._calls(node.value, scope)
            case _:
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.expr):
                        self._calls(child, scope)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: Scope) -> None:
        before, name = self._gpu, self._name
        self._name = node.name
        self._decorated(node, scope)
        inner = Scope(parent=scope)
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        positional = [*node.args.posonlyargs, *node.args.args]
        defaults: dict[str, ast.expr | None] = dict.fromkeys((a.arg for a in arguments), None)
        defaults |= {
            argument.arg: default
            for argument, default in zip(
                positional[len(positional) - len(node.args.defaults) :], node.args.defaults, strict=True
            )
        }
        defaults |= {
            a.arg: d
            for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
            if d is not None
        }
        for argument, default in defaults.items():
            value = fold(default, scope) if default is not None else None
            if value is None or value.unknown or value.value is None:
                inner.names[argument] = Val(unknown=(argument,))
            else:
                inner.names[argument] = Val(value.value, (), (*value.defaulted, argument))
        self._block(node.body, inner)
        self._launches.leftover(inner, self._around())
        self._gpu, self._name = before, name

    def _decorated(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, scope: Scope) -> None:
        """Modal's `gpu="H100:2"` in a decorator."""
        for decorator in node.decorator_list:
            if not isinstance(decorator, ast.Call):
                continue
            for keyword in decorator.keywords:
                if keyword.arg == "gpu":
                    self._gpu = _modal_gpu(fold(keyword.value, scope), keyword.value, scope)

    def _branches(self, arms: list[Sequence[ast.stmt]], condition: str, scope: Scope) -> None:
        before = {name: copied(value) for name, value in scope.names.items()}
        results: list[dict[str, Val]] = []
        for arm in arms:
            scope.names = {name: copied(value) for name, value in before.items()}
            self._block(arm, scope)
            results.append(scope.names)
        merged: dict[str, Val] = {}
        for name in dict.fromkeys(key for result in results for key in result):
            values = [result.get(name) for result in results]
            merged[name] = after_all_ways(name, before.get(name), values, condition)
        scope.names = merged

    def _assign(self, node: ast.Assign | ast.AnnAssign | ast.AugAssign, scope: Scope) -> None:
        if node.value is None:
            return
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        self._opened(node.value, targets, scope)
        self._calls(node.value, scope)
        if isinstance(node, ast.AugAssign):
            if isinstance(node.target, ast.Name):
                joined = ast.BinOp(left=node.target, op=node.op, right=node.value)
                ast.copy_location(joined, node)
                scope.names[node.target.id] = fold(joined, scope)
            return
        value = fold(node.value, scope)
        for target in targets:
            if isinstance(target, ast.Name):
                scope.names[target.id] = value
            elif isinstance(target, ast.Attribute) and dotted(target):
                scope.names[dotted(target)] = value
            elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
                base, key = scope.get(target.value.id), fold(target.slice, scope)
                if base is not None and isinstance(base.value, dict) and isinstance(key.value, str):
                    base.value[key.value] = value
            elif isinstance(target, ast.Tuple):
                for element in target.elts:
                    if isinstance(element, ast.Name):
                        scope.names[element.id] = Val(unknown=(element.id,))

    def _opened(self, node: ast.expr, targets: Sequence[ast.expr], scope: Scope) -> None:
        """`args = EngineArgs(…)` is recorded when the block ends, with the attributes that are set on it."""
        name = dotted(targets[0])
        if not (isinstance(node, ast.Call) and name and self._engine(dotted(node.func)) in _ENGINE_ARGS):
            return
        self._seen.add(id(node))
        earlier = self._open[-1].pop(name, None)
        if earlier is not None:
            self._engine_args(name, *earlier, scope)
        for attribute in [key for key in scope.names if key.startswith(f"{name}.")]:
            del scope.names[attribute]
        self._open[-1][name] = (node, arguments_of(node, scope))

    def _engine_args(self, name: str, call: ast.Call, values: dict[str, Val], scope: Scope) -> None:
        known = flag_table().flags
        dropped: list[str] = []
        for key, value in scope.names.items():
            attribute = key.removeprefix(f"{name}.")
            if attribute == key:
                continue
            if attribute in known or attribute == "model":
                values[attribute] = value
            else:
                dropped.append(attribute)
        self._launches.engine(call, values, self._around(), dropped)

    def _mutation(self, node: ast.expr, scope: Scope) -> None:
        """`cmd.append(x)`, `cmd.extend([...])`, `kwargs.update(...)`."""
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            return
        owner = node.func.value
        target = scope.get(owner.id) if isinstance(owner, ast.Name) else None
        if target is None or (not node.args and node.func.attr != "update"):
            return
        if isinstance(target.value, list) and node.func.attr in {"append", "extend"}:
            added = fold(node.args[0], scope)
            if node.func.attr == "append":
                target.value.append(added)
            elif isinstance(added.value, list):
                target.value.extend(added.value)
            else:
                target.value.append(
                    Val(unknown=added.unknown or (name_of(node.args[0], scope),), line=node.lineno)
                )
            del target.value[5000:]
        elif isinstance(target.value, dict) and node.func.attr == "update":
            inner = fold(node.args[0], scope) if node.args else Val({})
            if isinstance(inner.value, dict):
                target.value.update(inner.value)
            target.value.update(keywords(node, scope))

    # -- calls

    def _calls(self, node: ast.expr, scope: Scope) -> None:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Call) and id(inner) not in self._seen:
                self._seen.add(id(inner))
                self._call(inner, scope)

    def _call(self, node: ast.Call, scope: Scope) -> None:
        name = dotted(node.func)
        engine = self._engine(name)
        if engine == "LLMConfig":
            self._launches.ray(node, scope, self._around())
        elif engine is not None:
            self._launches.engine(node, arguments_of(node, scope), self._around())
        elif _RUNNERS.fullmatch(name) and node.args:
            self._launches.command(node, name, scope, self._around())

    def _engine(self, name: str) -> str | None:
        if name in self._engines:
            return self._engines[name]
        head, _, last = name.rpartition(".")
        if (
            last in _ENGINE_ARGS | {"LLM"}
            and (head in self._modules or head.split(".")[0] == "vllm")
            and head
        ):
            return last
        return None

    def _around(self) -> Surroundings:
        return Surroundings("python", gpu=self._gpu[0], num_gpus=self._gpu[1], name=self._name)


def _modal_gpu(value: Val, node: ast.expr, scope: Scope) -> tuple[str | None, int | None]:
    if isinstance(value.value, str):
        match = _GPU.fullmatch(value.value)
        return (match[1], int(match[2] or 1)) if match else (None, None)
    if isinstance(node, ast.Call) and ".gpu." in f".{dotted(node.func)}":
        count = keywords(node, scope).get("count")
        number = count.value if count is not None and isinstance(count.value, int) else 1
        return dotted(node.func).rpartition(".")[2], number
    return None, None
