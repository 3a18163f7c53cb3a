"""`kvplan profiles` as users see it: text against golden files, JSON by its keys, errors as one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvplan.catalog.models import find_model

if TYPE_CHECKING:
    from collections.abc import Sequence

GOLDEN = Path(__file__).parent


def kvplan(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvplan", "profiles", *arguments], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("profiles-models-gemma.txt", ["models", "gemma-3"]),
        ("profiles-gpus-h100.txt", ["gpus", "h100"]),
        ("profiles-show-4090.txt", ["show", "4090"]),
        ("profiles-show-qwen2-7b.txt", ["show", "qwen2-7b"]),
    ],
)
def test_text(name: str, arguments: Sequence[str], request: pytest.FixtureRequest) -> None:
    done = kvplan(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    if request.config.getoption("--update-golden"):
        (GOLDEN / name).write_text(done.stdout)
    assert done.stdout == (GOLDEN / name).read_text()


def test_lists_as_json() -> None:
    models = json.loads(kvplan("models", "qwen2-7b", "--format", "json").stdout)
    assert models["schema"] == "kvplan.profiles/1"
    assert [model["id"] for model in models["models"]] == ["Qwen/Qwen2-7B", "Qwen/Qwen2-7B-Instruct"]
    assert models["models"][1]["weights_bytes"] == 15_231_233_024
    gpus = json.loads(kvplan("gpus", "4090", "--format", "json").stdout)
    assert {gpu["id"]: gpu["total_gib"] for gpu in gpus["gpus"]} == {
        "rtx-4090": 23.53,
        "rtx-4090-48gb": 47.35,
        "rtx-4090-d": 23.55,
    }


def test_one_profile_as_json_has_a_source_for_each_fact() -> None:
    shown = json.loads(kvplan("show", "RTX 4090", "--format", "json").stdout)
    assert (shown["schema"], shown["kind"]) == ("kvplan.profile/1", "gpu")
    total = shown["profile"]["total_gib"]
    assert (total["value"], total["bytes"]) == (23.53, 25_262_096_384)
    assert total["source"] == "https://github.com/Comfy-Org/ComfyUI/pull/7063"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["show", "qwen2-7c"], "no profile 'qwen2-7c' (did you mean qwen2-7b"),
        (["show", "A100"], "'A100' may be a100-40gb-pcie"),
        (["gpus", "--profiles", "/nowhere"], "--profiles: /nowhere is not a folder"),
        (["add", "qwen2-7b"], "'qwen2-7b' is neither a folder nor a hub id"),
    ],
)
def test_what_is_wrong_is_one_line_and_exit_code_2(arguments: Sequence[str], says: str) -> None:
    done = kvplan(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_an_added_folder_is_a_profile_from_then_on(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    config = {"architectures": ["Qwen2ForCausalLM"], "hidden_size": 64}
    (folder / "config.json").write_text(json.dumps(config))
    index = {"metadata": {"total_size": 4096}, "weight_map": {"a": "model-00001-of-00001.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    written = Path(os.environ["XDG_CONFIG_HOME"]) / "kvplan" / "profiles" / "models" / "my-model.yaml"

    done = kvplan("add", str(folder))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{written}\n")
    model = find_model("my-model")
    assert (model.kind, dict(model.config)) == ("profile", config)
    assert model.weights is not None
    assert model.weights.total_bytes == 4096
    assert model.weights.source.startswith("index: ")

    again = kvplan("add", str(folder))
    assert again.returncode == 2
    assert "is there already" in again.stderr
    assert kvplan("add", str(folder), "--replace", "--format", "json").returncode == 0

    other = kvplan("add", str(folder), "--name", "acme/other", "--profiles", str(tmp_path / "mine"))
    assert other.returncode == 0
    assert (tmp_path / "mine" / "models" / "acme__other.yaml").is_file()
