"""All profiles that are shipped: they load, name their sources, and their configs can be estimated."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest
import yaml

from kvplan.architecture.model_shape import model_shape
from kvplan.catalog.gpus import find_gpu, gpu_profiles
from kvplan.catalog.models import find_model, model_profiles
from kvplan.errors import UnsupportedModelError

PROFILES: Final = Path(__file__).parents[2] / "profiles"
MODEL_FILES: Final = sorted((PROFILES / "models").glob("*.yaml"))
GPU_FILES: Final = sorted((PROFILES / "gpus").glob("*.yaml"))
NO_RULE_YET: Final = {"Mistral3ForConditionalGeneration"}
"""Architectures in the catalogue that `estimate` refuses by name until they have an exact rule."""


@pytest.mark.parametrize("path", [*MODEL_FILES, *GPU_FILES], ids=lambda path: path.stem)
def test_a_file_is_named_after_its_id(path: Path) -> None:
    profile = yaml.safe_load(path.read_text())
    assert path.stem == profile["id"].replace("/", "__")


def test_every_file_is_in_the_index() -> None:
    assert len(model_profiles()) == len(MODEL_FILES) > 200
    assert len(gpu_profiles()) == len(GPU_FILES) == 68


@pytest.mark.parametrize("name", [path.stem.replace("__", "/") for path in MODEL_FILES])
def test_a_models_config_can_be_estimated(name: str) -> None:
    config = find_model(name).config
    try:
        shape = model_shape(config)
    except UnsupportedModelError:
        assert set(config["architectures"]) <= NO_RULE_YET
    else:
        assert len(shape.layers) > 0
        assert shape.max_model_len > 0


def test_every_name_of_every_profile_finds_it() -> None:
    for profile in model_profiles():
        for name in (profile["id"], *profile.get("aliases", ())):
            assert find_model(name).id == profile["id"]
    for profile in gpu_profiles():
        for name in (profile["id"], *profile.get("aliases", ())):
            assert find_gpu(name).id == profile["id"]


def test_sizes_that_were_published_are_the_ones_here() -> None:
    # total_size of model.safetensors.index.json of each repository.
    for model, total in {
        "Qwen/Qwen2.5-7B-Instruct": 15_231_233_024,
        "meta-llama/Llama-3.1-8B-Instruct": 16_060_522_496,
        "meta-llama/Llama-3.3-70B-Instruct": 141_107_412_992,
        "openai/gpt-oss-20b": 13_761_264_768,
        "mistralai/Mixtral-8x7B-v0.1": 93_405_585_408,
        "Qwen/Qwen3-235B-A22B": 470_187_269_120,
    }.items():
        weights = find_model(model).weights
        assert weights is not None
        assert weights.total_bytes == total
        assert weights.source.startswith("index")


@pytest.mark.parametrize("path", [*MODEL_FILES, *GPU_FILES], ids=lambda path: path.stem)
def test_sources_are_public_ones(path: Path) -> None:
    # No path of the machine where the facts were collected.
    assert not re.search(r"file://|/home/|/tmp/|/work/|/root/", path.read_text())


def test_a_quantised_familys_config_is_complete_for_estimates() -> None:
    for name in ("Qwen/Qwen2.5-14B-Instruct-GPTQ-Int4", "RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic"):
        model = find_model(name, offline=True)
        assert model_shape(model.config).num_layers == model.config["num_hidden_layers"]
