"""Run inside a peer's own virtual environment: tasks in, that tool's available KV memory per GPU out.

Reads one JSON task a line from stdin and writes one answer a line. The tools read the model from the hub;
here the same facts (config.json, bytes and parameters of the weight files) are put in the place of the
download, and nothing else is changed. Stdlib only: kvplan is not installed where this runs.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

GIB = 2**30
KVFIT_CARDS = {
    "H100": "h100-80",
    "H200": "h200-141",
    "L40S": "l40s-48",
    "GB10": "dgx-spark",
    "MI300X": "mi300x-192",
}


def kvfit(task: dict[str, Any]) -> float:
    """`kvfit MODEL --hardware … --json`; cards that it does not list go by --device-memory-gib."""
    from kvfit import cli, hf  # type: ignore[import-not-found]

    def fetched(url: str, **_: Any) -> Any:
        if url.split("?", maxsplit=1)[0].endswith("config.json"):
            return task["config"]
        return {
            "sha": "0" * 40,
            "siblings": [{"rfilename": "model.safetensors", "size": task["weights_bytes"]}],
        }

    hf._fetch_json = fetched
    argv = [task["model"], "--gpus", str(task["tp"]), "--tp", str(task["tp"]), "--json"]
    argv += ["--utilization", str(task["utilization"]), "--context", str(task["max_model_len"])]
    card = next((name for key, name in KVFIT_CARDS.items() if key in task["gpu"]), None)
    # A listed card is a base whose memory the tool itself knows.
    argv += ["--hardware", card or "h100-80"]
    if card is None:
        argv += ["--device-memory-gib", str(task["marketing_gb"])]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = cli.main(argv)
    if not out.getvalue():
        raise ValueError(f"exit {code}, no output")
    layouts = json.loads(out.getvalue())["layouts"]
    fits = next(x for x in layouts if x["tensor_parallel"] == task["tp"] and x["data_parallel"] == 1)
    spent = ("weights_per_rank_gib", "runtime_reserve_per_rank_gib", "fixed_cache_per_rank_gib")
    return float(fits["budget_per_rank_gib"] - sum(fits[name] or 0 for name in spent))


def planner(task: dict[str, Any]) -> float:
    """llm-d planner's `allocatable_kv_cache_memory`, which its `planner plan` prints."""
    from planner import capacity_planner as module  # type: ignore[import-not-found]

    counted = SimpleNamespace(parameter_count={"BF16": task["parameters"]})
    module.get_safetensors_metadata_from_hf = lambda *_: counted
    total = module.allocatable_kv_cache_memory(
        task["model"],
        namespace(task["config"]),
        gpu_memory=task["marketing_gb"],
        gpu_util=task["utilization"],
        tp=task["tp"],
        pp=task["pp"],
        max_model_len=task["max_model_len"],
    )
    return float(total / (task["tp"] * task["pp"]))


def modelinfo(task: dict[str, Any]) -> float:
    """modelinfo's `--vllm` simulation: the paged KV pool of all GPUs."""
    from modelinfo.calculator import calculate_footprint  # type: ignore[import-not-found]

    gpus = task["tp"] * task["pp"]
    found = calculate_footprint(
        {"model.embed_tokens.weight": {"dtype": "BF16", "shape": [task["parameters"]]}},
        context_length=task["max_model_len"],
        config=task["config"],
        gpu_count=gpus,
        topology="nvlink",
        is_vllm=True,
        gpu_vram_bytes=task["marketing_gb"] * gpus * GIB,
        gpu_util=task["utilization"],
    )
    return float(found["vllm_metrics"]["paged_kv_pool"] / gpus / GIB)


def namespace(value: Any) -> Any:
    """Nested attributes, as transformers' config objects have."""
    if isinstance(value, dict):
        return SimpleNamespace(**{k: namespace(v) for k, v in value.items()})
    return value


TOOLS: dict[str, Callable[[dict[str, Any]], float]] = {
    "kvfit": kvfit,
    "planner": planner,
    "modelinfo": modelinfo,
}


def main() -> None:
    """Answer every task; a tool's refusal or crash is an answer too."""
    tool = TOOLS[sys.argv[1]]
    for line in sys.stdin:
        task = json.loads(line)
        try:
            result: dict[str, Any] = {"id": task["id"], "kv_gib": tool(task)}
        except BaseException as error:  # noqa: BLE001  a peer may exit, crash or refuse: all are recorded
            result = {"id": task["id"], "error": f"{type(error).__name__}: {error}"[:200]}
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
