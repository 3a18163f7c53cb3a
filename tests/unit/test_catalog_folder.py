"""What a model's folder says: config.json with line numbers, and sizes from safetensors headers alone."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

import pytest

from kvplan.catalog.folder import model_in_folder, weights_in_folder
from kvplan.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

SIZE_OF = {"BF16": 2, "F32": 4, "I32": 4, "F8_E4M3": 1}


def write_safetensors(path: Path, tensors: dict[str, tuple[str, list[int]]]) -> int:
    """A real safetensors file of zeros, byte for byte as the format says; its data size."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in tensors.items():
        size = SIZE_OF[dtype]
        for length in shape:
            size *= length
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))
    return end


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"architectures": ["Qwen2ForCausalLM"]}')
    return tmp_path


def test_what_the_safetensors_library_writes_is_read(folder: Path) -> None:
    numpy = pytest.importorskip("numpy")
    safetensors = pytest.importorskip("safetensors.numpy")
    weights = {"a": numpy.zeros((3, 5), numpy.float32), "b": numpy.zeros(7, numpy.float16)}
    safetensors.save_file(weights, folder / "model.safetensors")
    stored = weights_in_folder(folder)
    assert stored is not None
    assert stored.total_bytes == 3 * 5 * 4 + 7 * 2
    assert stored.parameters == 22
    assert stored.tensors == {"a": ("F32", (3, 5)), "b": ("F16", (7,))}


def test_headers_of_all_shards_are_summed(folder: Path) -> None:
    one = write_safetensors(folder / "model-00001-of-00002.safetensors", {"a": ("BF16", [4, 8])})
    two = write_safetensors(folder / "model-00002-of-00002.safetensors", {"b": ("F32", [3])})
    index = {
        "metadata": {"total_size": 1},
        "weight_map": {
            "a": "model-00001-of-00002.safetensors",
            "b": "model-00002-of-00002.safetensors",
        },
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    # A file that the index does not name is not loaded by vLLM, and not counted.
    write_safetensors(folder / "extra.safetensors", {"c": ("F32", [100])})
    model = model_in_folder(folder)
    assert model.weights is not None
    assert model.weights.kind == "safetensors"
    assert model.weights.total_bytes == one + two == 4 * 8 * 2 + 3 * 4
    assert model.weights.parameters == 35
    assert model.weights.tensors == {"a": ("BF16", (4, 8)), "b": ("F32", (3,))}


def test_mistrals_second_copy_of_the_weights_is_not_counted(folder: Path) -> None:
    size = write_safetensors(folder / "model.safetensors", {"a": ("BF16", [4])})
    write_safetensors(folder / "consolidated.safetensors", {"a": ("BF16", [4])})
    stored = weights_in_folder(folder)
    assert stored is not None
    assert stored.total_bytes == size


def test_packed_integers_hide_how_many_parameters_there_are(folder: Path) -> None:
    write_safetensors(
        folder / "model.safetensors", {"q.qweight": ("I32", [16, 4]), "q.scales": ("BF16", [4])}
    )
    stored = weights_in_folder(folder)
    assert stored is not None
    assert stored.total_bytes == 16 * 4 * 4 + 4 * 2
    assert stored.parameters is None


@pytest.mark.parametrize("name", ["model.safetensors.index.json", "pytorch_model.bin.index.json"])
def test_an_index_without_its_files_gives_the_total_alone(folder: Path, name: str) -> None:
    index = {"metadata": {"total_size": 15231233024}, "weight_map": {"a": "model-00001-of-00001.safetensors"}}
    (folder / name).write_text(json.dumps(index))
    stored = weights_in_folder(folder)
    assert stored is not None
    assert (stored.kind, stored.total_bytes) == ("index", 15_231_233_024)
    assert stored.parameters is None
    assert stored.tensors is None


def test_a_folder_with_a_config_alone_claims_no_size(folder: Path) -> None:
    model = model_in_folder(folder)
    assert model.kind == "folder"
    assert model.weights is None


def test_a_malformed_config_is_named_with_line_and_column(folder: Path) -> None:
    (folder / "config.json").write_text('{\n  "hidden_size": 64,\n  "num_hidden_layers" 2\n}')
    with pytest.raises(InputError) as caught:
        model_in_folder(folder)
    # json reports the place where the colon was expected: line 3, behind `"num_hidden_layers" `.
    assert f"{folder / 'config.json'}:3:23: not JSON" in caught.value.message


def test_a_config_that_is_no_object(folder: Path) -> None:
    (folder / "config.json").write_text("[1, 2]")
    with pytest.raises(InputError, match=r"config\.json:1:1: a JSON object is needed, this is list"):
        model_in_folder(folder)


def test_a_config_that_is_no_text(folder: Path) -> None:
    (folder / "config.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot be read"):
        model_in_folder(folder)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "cut off"),
        (b"PK\x03\x04 a zip file of PyTorch", "not a safetensors file"),
        (struct.pack("<Q", 10) + b"not json!!", "header cannot be read"),
        (struct.pack("<Q", 2) + b"[]", "no JSON object"),
    ],
)
def test_a_file_that_is_no_safetensors(folder: Path, content: bytes, says: str) -> None:
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(InputError) as caught:
        weights_in_folder(folder)
    assert "model.safetensors" in caught.value.message
    assert says in caught.value.message


def test_a_download_that_was_cut_off_is_seen(folder: Path) -> None:
    path = folder / "model.safetensors"
    write_safetensors(path, {"a": ("BF16", [100])})
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(InputError) as caught:
        weights_in_folder(folder)
    assert "not complete" in (caught.value.hint or "")


def test_git_lfs_pointers_are_no_weights(folder: Path) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 4976698672\n"
    (folder / "model.safetensors").write_bytes(pointer)
    with pytest.raises(InputError, match="not a safetensors file"):
        weights_in_folder(folder)


@pytest.mark.parametrize(
    "index", [{"weight_map": ["a"]}, {"metadata": {"total_size": "5 GB"}, "weight_map": {}}]
)
def test_a_malformed_index(folder: Path, index: dict[str, Any]) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match=r"model\.safetensors\.index\.json"):
        weights_in_folder(folder)


def test_modelopts_quantisation_beside_the_config_is_taken_over_as_vllm_does(folder: Path) -> None:
    # vLLM 0.32 transformers_utils/config.py::get_config: "ModelOpt 0.29.0 and before saves [it] separately".
    quantization = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}}
    (folder / "hf_quant_config.json").write_text(json.dumps(quantization))
    model = model_in_folder(folder)
    assert model.config["quantization_config"] == quantization
    assert "hf_quant_config.json" in model.notes[0]
