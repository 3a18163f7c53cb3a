"""Models by name, folder and family: exact facts, and no size guessed from a name that says another."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kvplan.architecture.quantization import FROM_NAME
from kvplan.catalog.models import find_model, read_model
from kvplan.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from pathlib import Path


def test_qwen2_7b_means_the_instruct_model() -> None:
    model = find_model("qwen2-7b")
    assert model.id == "Qwen/Qwen2-7B-Instruct"
    assert model == find_model("Qwen/Qwen2-7B-Instruct") == find_model("QWEN2-7B-instruct")
    assert model.config["max_position_embeddings"] == 32_768
    assert (model.config["num_hidden_layers"], model.config["num_key_value_heads"]) == (28, 4)
    assert model.weights is not None
    # 2 B x 7,615,616,512 parameters: the index of Qwen2.5-7B-Instruct, same tensors, says this total_size.
    assert model.weights.total_bytes == 15_231_233_024
    assert model.weights.parameters == 7_615_616_512
    assert model.weights.kind == "profile"


def test_the_base_model_is_a_profile_of_its_own() -> None:
    base = find_model("Qwen/Qwen2-7B")
    assert base.id == find_model("qwen2-7b-base").id == "Qwen/Qwen2-7B"
    assert base.config["max_position_embeddings"] == 131_072


@pytest.mark.parametrize(
    ("alias", "expected"),
    [
        ("llama-3.1-8b", "meta-llama/Llama-3.1-8B-Instruct"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct"),
        ("meta-llama/Llama-3.1-8B", "meta-llama/Meta-Llama-3.1-8B"),
        ("mixtral-8x7b", "mistralai/Mixtral-8x7B-Instruct-v0.1"),
        ("gpt-oss-20b", "openai/gpt-oss-20b"),
        ("deepseek-r1", "deepseek-ai/DeepSeek-R1"),
        ("Qwen2.5 7B Instruct", "Qwen/Qwen2.5-7B-Instruct"),
    ],
)
def test_short_names(alias: str, expected: str) -> None:
    assert find_model(alias).id == expected


@pytest.mark.parametrize(
    ("query", "family", "method"),
    [
        ("casperhansen/llama-3-8b-instruct-awq", "meta-llama/Meta-Llama-3-8B-Instruct", "awq"),
        ("solidrust/Meta-Llama-3.1-8B-Instruct-AWQ", "meta-llama/Llama-3.1-8B-Instruct", "awq"),
        ("Qwen/Qwen2.5-14B-Instruct-GPTQ-Int4", "Qwen/Qwen2.5-14B-Instruct", "gptq"),
        ("Qwen/Qwen2.5-14B-Instruct-GPTQ-Int8", "Qwen/Qwen2.5-14B-Instruct", "gptq"),
        ("RedHatAI/Qwen2.5-7B-Instruct-FP8-dynamic", "Qwen/Qwen2.5-7B-Instruct", "compressed-tensors"),
        (
            "RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16",
            "Llama-3.1-8B-Instruct",
            "compressed-tensors",
        ),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8", "Llama-3.1-8B-Instruct", "compressed-tensors"),
        ("Qwen/Qwen3.5-35B-A3B-FP8", "Qwen/Qwen3.5-35B-A3B", "fp8"),
        ("nvidia/Qwen3-14B-NVFP4", "Qwen/Qwen3-14B", "modelopt"),
        ("RedHatAI/Qwen3-14B-NVFP4", "Qwen/Qwen3-14B", "compressed-tensors"),
        ("unsloth/qwen2.5-0.5b-instruct-unsloth-bnb-4bit", "Qwen/Qwen2.5-0.5B-Instruct", "bitsandbytes"),
        ("Llama-3.1-8B-Instruct NVFP4", "meta-llama/Llama-3.1-8B-Instruct", "compressed-tensors"),
        ("qwen2-7b-awq", "Qwen/Qwen2-7B-Instruct", "awq"),
    ],
)
def test_a_quantised_checkpoint_has_its_familys_geometry(query: str, family: str, method: str) -> None:
    original, quantised = find_model(family), find_model(query, offline=True)
    assert quantised.id == query
    geometry = {k: v for k, v in quantised.config.items() if k != "quantization_config"}
    assert geometry == original.config
    assert quantised.config["quantization_config"]["quant_method"] == method
    # Its files are not its family's: no size is claimed for them.
    assert quantised.weights is None
    assert original.id in quantised.notes[0]
    assert "by its name" in quantised.notes[0]
    assert "was not read" in quantised.notes[0]


@pytest.mark.parametrize(
    ("query", "bits", "group"),
    [("x/Qwen2.5-7B-Instruct-AWQ-4bit", 4, 128), ("x/Qwen2.5-7B-Instruct-GPTQ-Int8", 8, 128)],
)
def test_the_suffix_gives_bits_and_groups(query: str, bits: int, group: int) -> None:
    quantization = find_model(query, offline=True).config["quantization_config"]
    assert (quantization["bits"], quantization["group_size"]) == (bits, group)


@pytest.mark.parametrize(
    ("query", "family"),
    [
        ("unsloth/Meta-Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B-Instruct"),
        ("NousResearch/Llama-2-7b-hf", "meta-llama/Llama-2-7b-hf"),
        # An id names the base model, although the short name means the instruct one.
        ("unsloth/Qwen2.5-7B", "Qwen/Qwen2.5-7B"),
    ],
)
def test_a_copy_under_another_organisation_is_the_same_model(query: str, family: str) -> None:
    copy, original = find_model(query, offline=True), find_model(family)
    assert copy.id == query
    assert copy.config == original.config
    assert copy.weights == original.weights
    assert family in copy.notes[0]


def test_the_same_quantisation_by_another_organisation_is_a_conclusion_only() -> None:
    """RedHatAI leaves linear attention in 16 bits, NVIDIA does not: 21.86 GiB loaded against 20.35."""
    copy = find_model("RedHatAI/Qwen3.6-35B-A3B-NVFP4", offline=True)
    original = find_model("nvidia/Qwen3.6-35B-A3B-NVFP4")
    quant = original.config["quantization_config"]
    assert copy.config["quantization_config"] == {**quant, FROM_NAME: "varies"}
    assert copy.config["text_config"] == original.config["text_config"]
    assert copy.weights is None
    assert "own config.json was not read" in copy.notes[0]


@pytest.mark.parametrize(
    "query",
    [
        "unsloth/Llama-3.1-9B-Instruct",  # another size
        "meta-llama/Llama-3.4-8B-Instruct-AWQ",  # another generation
        "someone/Qwen2.5-7B-Instruct-1M",  # another context length
        "someone/Qwen2.5-7B-Instruct-pruned-AWQ",
        "someone/Llama-3.1-Nemotron-70B-Instruct-HF-FP8",  # another model with the name in its own
        "TheBloke/Llama-2-7B-GPTQ",  # does not say the bits
        "bartowski/Qwen2.5-7B-Instruct-GGUF",
        "mlx-community/Qwen2.5-7B-Instruct-4bit",
        "zai-org/GLM-5.3-Flash",  # not GLM-5.3
    ],
)
def test_a_name_that_is_not_word_for_word_a_known_one_is_not_guessed(query: str) -> None:
    with pytest.raises(InputError) as caught:
        find_model(query, offline=True)
    assert query in caught.value.message


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError) as caught:
        find_model("qwen2-7c")
    assert "qwen2-7b" in caught.value.nearest
    assert "did you mean" in (caught.value.hint or "")


def test_an_unknown_hub_id_offline_names_the_nearest_and_a_way_out() -> None:
    with pytest.raises(InputError) as caught:
        find_model("Qwen/Qwen2-7B-Instuct", offline=True)
    hint = caught.value.hint or ""
    assert "Qwen/Qwen2-7B-Instruct" in hint
    assert "local folder" in hint
    assert "offline" in caught.value.message


def _folder(path: Path, **config: object) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({"architectures": ["X"], **config}))
    return path


def test_a_local_folder_wins_over_the_profile_and_hub_id_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _folder(tmp_path / "Qwen" / "Qwen2-7B-Instruct", hidden_size=64)
    monkeypatch.chdir(tmp_path)
    model = find_model("Qwen/Qwen2-7B-Instruct")
    assert model.kind == "folder"
    assert model.config["hidden_size"] == 64
    assert model.path == str(tmp_path / "Qwen" / "Qwen2-7B-Instruct")


def test_a_folder_without_config_does_not_hide_a_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "qwen2-7b").mkdir()
    monkeypatch.chdir(tmp_path)
    assert find_model("qwen2-7b").kind == "profile"


def test_a_config_file_by_its_path(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "m", hidden_size=64)
    by_file, by_folder = find_model(str(folder / "config.json")), find_model(str(folder))
    assert by_file == by_folder
    assert by_file.id == str(folder)


@pytest.mark.parametrize("query", ["./nowhere", "/nowhere/at/all", "nowhere.json"])
def test_a_path_that_is_not_there_is_never_asked_of_the_hub(query: str) -> None:
    with pytest.raises(InputError, match="no such file or folder"):
        find_model(query)


def test_a_folder_without_config_says_what_it_is_instead(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(InputError) as caught:
        find_model(str(tmp_path))
    assert "LoRA" in (caught.value.hint or "")


def test_reading_a_model_takes_no_profile_for_it() -> None:
    with pytest.raises(InputError, match="neither a folder nor a hub id"):
        read_model("qwen2-7b")
