"""`.kvplan.yaml`: defaults with their types, paths beside the file; the rest is `kvplan check`'s."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvplan.config.project_file import ProjectFile, read_project_file
from kvplan.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path


def test_without_a_file_there_are_no_defaults(tmp_path: Path) -> None:
    assert read_project_file(tmp_path) is None


def test_numbers_that_are_names_stay_names_and_files_beside_it_are_found(tmp_path: Path) -> None:
    (tmp_path / "chat.yaml").write_text("")
    (tmp_path / ".kvplan.yaml").write_text(
        "model: qwen2-7b\ngpu: 4090\nvllm_version: 0.32\ntarget_concurrency: 32\nworkload: chat.yaml\n"
        "gpu_memory_gib: 24\nlaunches: ci/launches.jsonl\nrules:\n  KV102: off\n"
    )
    assert read_project_file(tmp_path) == ProjectFile(
        path=tmp_path / ".kvplan.yaml",
        model="qwen2-7b",
        gpu="4090",
        vllm_version="0.32",
        target_concurrency=32,
        workload=str(tmp_path / "chat.yaml"),
        gpu_memory_gib=24.0,
        launches=tmp_path / "ci" / "launches.jsonl",
    )


def test_an_empty_file_gives_nothing(tmp_path: Path) -> None:
    (tmp_path / ".kvplan.yaml").write_text("# nothing yet\n")
    assert read_project_file(tmp_path) == ProjectFile(path=tmp_path / ".kvplan.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("target_concurrency: many\n", "target_concurrency is 'many', not a whole number above 0"),
        ("target_concurrency: 0\n", "target_concurrency is 0, not a whole number above 0"),
        ("gpu_memory_gib: -1\n", "gpu_memory_gib is -1, not a number above 0"),
        ("model: [a]\n", r"model is \['a'\], not a name"),
        ("model: true\n", "model is True, not a name"),
        ("- a\n", "is not a mapping"),
        ("gpu: l4\n---\ngpu: h100\n", r"\.kvplan\.yaml:2: a second YAML document begins here"),
        ("model: 'a\n", r"\.kvplan\.yaml:2 is not YAML"),
    ],
)
def test_what_is_wrong_is_named_with_file_and_key(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / ".kvplan.yaml").write_text(text)
    with pytest.raises(InputError, match=message):
        read_project_file(tmp_path)
