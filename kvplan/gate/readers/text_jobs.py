"""YAML whose launches are shell text: SkyPilot tasks, workflow steps, GitLab jobs, llama-swap commands."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from kvplan.gate.accelerators import one_or_many
from kvplan.gate.argv import CommandReader
from kvplan.gate.docker_run import count_visible
from kvplan.gate.readers.containers import split_words
from kvplan.gate.reading import Surroundings
from kvplan.gate.shell import read_shell
from kvplan.gate.taint import Word, is_unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvplan.gate.reading import Reading
    from kvplan.gate.shell_expand import Value
    from kvplan.gate.yaml_nodes import Node

_WORKFLOW: Final = re.compile(r"\$\{\{\s*([^}]{1,300}?)\s*\}\}")
_MACRO: Final = re.compile(r"\$\{([\w.-]+)\}")
_COMMAND_KEY: Final = re.compile(
    r"(?i)cmd|command|(?<!de)(?<!tran)(?<!sub)script|launch|entrypoint|^(run|shell|bash|serve|server)$"
)
_MAX_MATRIX: Final = 32


def run_scalar(
    reading: Reading,
    node: Node,
    around: Surroundings,
    variables: Mapping[str, Value],
    expand: Callable[[str], str] | None = None,
) -> None:
    """Record the launches of a scalar that is shell text."""
    if "vllm" not in node.text.lower() and not any(
        isinstance(value, str) and "vllm" in value.lower() for value in variables.values()
    ):
        return
    text = expand(node.text) if expand else node.text

    def locate(row: int, _: int, needle: str) -> tuple[int, int]:
        return node.place_of(row, "" if is_unknown(needle) else needle)

    read_shell(text, reading, around, locate, dict(variables))


# -- SkyPilot


def is_sky(doc: Node) -> bool:
    """Whether it is a SkyPilot task."""
    if doc.kind != "map":
        return False
    run, setup = doc.get("run"), doc.get("setup")
    if run is None:
        # A worker of a pool may start its server in `setup` alone.
        return (
            setup is not None and setup.kind == "scalar" and doc.get("resources", "accelerators") is not None
        )
    return run.kind == "scalar" and any(
        doc.get(key) is not None
        for key in ("resources", "envs", "setup", "num_nodes", "file_mounts", "service")
    )


def read_sky(reading: Reading, doc: Node) -> None:
    """Record the launches of `run` and `setup`."""
    cards, count = _sky_accelerators(doc)
    variables: dict[str, Value] = {}
    for section in ("envs", "secrets"):
        envs = doc.get(section)
        for key, _, value in envs.entries() if envs is not None else ():
            variables[key] = reading.taint.unknown(key) if value.is_null else value.text
    if count is not None:
        variables["SKYPILOT_NUM_GPUS_PER_NODE"] = str(count)
    nodes = doc.text_of("num_nodes")
    if nodes is not None:
        variables["SKYPILOT_NUM_NODES"] = nodes
    if count is not None and _spans_nodes(doc, nodes):
        count *= int(nodes or 1)
    around = Surroundings("skypilot", gpu=one_or_many(cards), num_gpus=count, name=doc.text_of("name"))
    for key in ("setup", "run"):
        node = doc.get(key)
        if node is not None and node.kind == "scalar":
            run_scalar(reading, node, around, variables)


def _spans_nodes(doc: Node, nodes: str | None) -> bool:
    """Whether one engine takes the GPUs of all nodes; else each node runs one of its own."""
    run = doc.text_of("run") or ""
    return bool(nodes and re.fullmatch(r"[1-9]\d{0,3}", nodes)) and bool(
        re.search(r"ray start|start_cluster|SKYPILOT_NUM_NODES|--nnodes", run)
    )


def _sky_accelerators(doc: Node) -> tuple[list[str], int | None]:
    cards: list[str] = []
    counts: list[int] = []
    resources = doc.get("resources")
    if resources is None:
        return [], None
    choices = [resources, *resources.list_of("any_of"), *resources.list_of("ordered")]
    for choice in choices:
        node = choice.get("accelerators")
        for text in _accelerator_texts(node):
            name, _, number = text.rpartition(":") if ":" in text else (text, "", "1")
            if name.strip().startswith("tpu"):
                continue
            cards.append(sky_card(name.strip()))
            number = number.strip()
            counts.append(int(number) if number.isascii() and number.isdigit() and len(number) < 5 else 1)
    return cards, counts[0] if counts and len(set(counts)) == 1 else None


def sky_card(name: str) -> str:
    """SkyPilot's A100 is the 40 GB one; other names are used as written."""
    return "A100-40GB" if name == "A100" else name


def _accelerator_texts(node: Node | None) -> list[str]:
    if node is None or node.is_null:
        return []
    if node.kind == "scalar":
        return [node.text.strip("{} ")]
    if node.kind == "list":
        return [item.text for item in node.items if item.kind == "scalar"]
    # {A100:8} without a space is one key with a null value.
    return [key if value.is_null else f"{key}:{value.text}" for key, _, value in node.entries()]


# -- GitHub workflows and GitLab jobs


def is_workflow(doc: Node) -> bool:
    """Whether it is a GitHub workflow or a composite action."""
    jobs = doc.get("jobs") if doc.kind == "map" else None
    return (
        jobs is not None and jobs.kind == "map" and (doc.get("on") is not None or doc.get("true") is not None)
    ) or (doc.kind == "map" and bool(doc.list_of("runs", "steps")))


def read_workflow(reading: Reading, doc: Node) -> None:
    """Record the launches of every step, once for every matrix entry that `include` lists."""
    env = _texts(doc.get("env"))
    jobs = doc.get("jobs")
    for name, _, job in jobs.entries() if jobs is not None else ():
        if job.kind == "map":
            for matrix in _matrix(job):
                scope = {**{f"env.{k}": v for k, v in {**env, **_texts(job.get("env"))}.items()}, **matrix}
                for step in job.list_of("steps"):
                    _read_step(reading, step, name, scope)
    for step in doc.list_of("runs", "steps"):
        _read_step(reading, step, None, {})


def _read_step(reading: Reading, step: Node, name: str | None, scope: Mapping[str, str]) -> None:
    run = step.get("run")
    if run is None or run.kind != "scalar":
        return
    own = _texts(step.get("env"))

    def expand(text: str) -> str:
        def one(match: re.Match[str]) -> str:
            inner = match[1].strip()
            value = own.get(inner.removeprefix("env.")) if inner.startswith("env.") else None
            value = value if value is not None else scope.get(inner)
            return value if value is not None and "${{" not in value else reading.taint.unknown(inner)

        return _WORKFLOW.sub(one, text)

    variables: dict[str, Value] = {
        key[4:]: expand(value) for key, value in scope.items() if key.startswith("env.")
    }
    variables |= {key: expand(value) for key, value in own.items()}
    run_scalar(reading, run, Surroundings("github-workflow", name=name), variables, expand)


def _matrix(job: Node) -> list[dict[str, str]]:
    """The entries of `include`; a plain matrix is taken when each of its axes has one value."""
    matrix = job.get("strategy", "matrix")
    if matrix is None or matrix.kind != "map":
        return [{}]
    axes = {
        key: value.items
        for key, _, value in matrix.entries()
        if key not in {"include", "exclude"} and value.kind == "list"
    }
    single = {
        f"matrix.{key}": items[0].text
        for key, items in axes.items()
        if len(items) == 1 and items[0].kind == "scalar"
    }
    include = matrix.list_of("include")[:_MAX_MATRIX]
    if not include or len(axes) > len(single):
        return [single]
    return [
        {
            **single,
            **{f"matrix.{key}": value.text for key, _, value in item.entries() if value.kind == "scalar"},
        }
        for item in include
    ]


def _texts(node: Node | None) -> dict[str, str]:
    if node is None:
        return {}
    return {
        key: value.text for key, _, value in node.entries() if value.kind == "scalar" and not value.is_null
    }


def _continued(text: str) -> str:
    """A line that begins with a dash goes on with the command before it: no shell command begins so."""
    return re.sub(r"(?<!\\)\n([ \t]*-)", r" \\\n\1", text)


def read_scripts(reading: Reading, doc: Node, format_name: str) -> None:
    """Record launches of `script:`, `run:`, `command(s):` texts, wherever a CI or job file puts them."""
    variables: dict[str, Value] = dict(_texts(doc.get("variables")) | _texts(doc.get("env")))
    for node in doc.walk():
        if node.kind != "map":
            continue
        for key, _, value in node.entries():
            if not _COMMAND_KEY.search(key):
                continue
            for item in value.items if value.kind == "list" else [value]:
                if item.kind == "scalar":
                    run_scalar(reading, item, Surroundings(format_name), variables, _continued)


# -- llama-swap


def is_llama_swap(doc: Node) -> bool:
    """Whether it is a llama-swap configuration."""
    models = doc.get("models") if doc.kind == "map" else None
    return (
        models is not None
        and models.kind == "map"
        and any(value.get("cmd") is not None for _, _, value in models.entries() if value.kind == "map")
    )


def read_llama_swap(reading: Reading, doc: Node) -> None:
    """Record the vLLM commands: macros expand first, the model's over the global ones."""
    shared = _texts(doc.get("macros"))
    models = doc.get("models")
    for name, _, model in models.entries() if models is not None else ():
        cmd = model.get("cmd") if model.kind == "map" else None
        if cmd is None or cmd.kind != "scalar":
            continue
        macros = {**shared, **_texts(model.get("macros"))}
        text = _expand_macros(reading, cmd.text, macros, name, 0)
        if "vllm" not in text:
            continue
        words = split_words(" ".join(text.split("\n")), None, cmd.line + (1 if cmd.style else 0))
        if words is None:
            reading.miss(cmd.line, "command cannot be split into words")
            continue
        placed = [
            Word(word.text, *cmd.place_of(0, word.text if len(word.text) < 80 else "")) for word in words
        ]
        env = dict(item.text.partition("=")[::2] for item in model.list_of("env") if item.kind == "scalar")
        around = Surroundings(
            "llama-swap", name=name, env=env, num_gpus=count_visible(env.get("CUDA_VISIBLE_DEVICES"))
        )

        def run_text(inner: str, word: Word, at: Surroundings) -> None:
            read_shell(inner, reading, at, lambda row, column, _: (word.line + row, column + 1))

        before = len(reading.launches)
        CommandReader(reading, run_text).read(_first_line(placed, cmd), around)
        del reading.launches[before + 4 :]


def _first_line(words: list[Word], cmd: Node) -> list[Word]:
    """Words that a macro brought stand where the command begins."""
    begin = cmd.place_of(0)[0]
    return [word if word.line > begin else Word(word.text, begin, word.column) for word in words]


def _expand_macros(reading: Reading, text: str, macros: Mapping[str, str], name: str, depth: int) -> str:
    def one(match: re.Match[str]) -> str:
        key = match[1]
        if key in macros and depth < 4:
            return _expand_macros(reading, macros[key][:10_000], macros, name, depth + 1)
        if key == "MODEL_ID":
            return name
        if key in {"PORT", "PID"}:
            return "0" if key == "PID" else "${PORT}"
        return reading.taint.unknown(key)

    out = _MACRO.sub(one, text)[:200_000]
    if depth == 0:
        # llama-swap picks the port itself: that is no setting of the repository, nor an unknown one.
        out = re.sub(r"--port[ =]\$\{PORT\}", "", out).replace("${PORT}", "0")
    return out
