"""Folders of profiles and their index: who wins, what is malformed and where, and no YAML in a look-up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from kvplan.catalog import index
from kvplan.catalog.gpus import all_gpus, find_gpu
from kvplan.catalog.models import find_model
from kvplan.errors import InputError

ROOT = Path(__file__).parents[2]

CARD = """\
id: rtx-4090
name: My 4090
aliases: ["4090", our-card]
total_gib:
  value: 23.4
  source: measured here, driver 999
"""
MODEL = """\
id: acme/Tiny
aliases: [tiny]
config_source: made here
confidence: config.json
config:
  architectures: [Qwen2ForCausalLM]
  hidden_size: 64
"""


def add(folder: Path, kind: str, name: str, text: str) -> Path:
    path = folder / kind / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_users_profile_wins_over_the_built_in_one(tmp_path: Path) -> None:
    add(tmp_path, "gpus", "a.yaml", CARD)
    assert find_gpu("4090").name == "NVIDIA GeForce RTX 4090"
    mine = find_gpu("4090", profiles_dir=str(tmp_path))
    assert (mine.name, mine.total_bytes) == ("My 4090", round(23.4 * 2**30))
    assert find_gpu("our card", profiles_dir=str(tmp_path)) == mine
    # Others are still the built-in ones, and the list holds each id once.
    assert find_gpu("3090", profiles_dir=str(tmp_path)).id == "rtx-3090"
    ids = [gpu.id for gpu in all_gpus(profiles_dir=str(tmp_path))]
    assert ids.count("rtx-4090") == 1
    assert len(ids) == len(all_gpus())


def test_the_flag_wins_over_the_variable_and_that_over_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag, variable = tmp_path / "flag", tmp_path / "variable"
    home = Path(os.environ["XDG_CONFIG_HOME"]) / "kvplan" / "profiles"
    add(home, "gpus", "a.yaml", CARD.replace("My 4090", "home"))
    assert find_gpu("4090").name == "home"
    add(variable, "gpus", "a.yaml", CARD.replace("My 4090", "variable"))
    monkeypatch.setenv("KVPLAN_PROFILES", str(variable))
    assert find_gpu("4090").name == "variable"
    add(flag, "gpus", "a.yaml", CARD.replace("My 4090", "flag"))
    assert find_gpu("4090", profiles_dir=str(flag)).name == "flag"


def test_an_edited_or_added_profile_is_seen_at_once(tmp_path: Path) -> None:
    path = add(tmp_path, "gpus", "a.yaml", CARD)
    assert find_gpu("our-card", profiles_dir=str(tmp_path)).name == "My 4090"
    path.write_text(CARD.replace("My 4090", "Edited!"))
    assert find_gpu("our-card", profiles_dir=str(tmp_path)).name == "Edited!"
    add(tmp_path, "models", "tiny.yaml", MODEL)
    assert find_model("tiny", profiles_dir=str(tmp_path)).id == "acme/Tiny"


def test_a_users_model_may_start_from_a_built_in_one(tmp_path: Path) -> None:
    text = """\
id: acme/qwen2-long
base: Qwen/Qwen2-7B-Instruct
config_source: our finetune
confidence: same-geometry
config: {max_position_embeddings: 65536, rope_theta: (removed)}
"""
    add(tmp_path, "models", "long.yaml", text)
    config = find_model("acme/qwen2-long", profiles_dir=str(tmp_path)).config
    assert config["max_position_embeddings"] == 65_536
    assert config["num_hidden_layers"] == 28
    assert "rope_theta" not in config


@pytest.mark.parametrize(
    ("kind", "text", "message", "hint"),
    [
        ("gpus", "id: x\nname: [1\n", ":3:1: not YAML", None),
        ("gpus", "- a\n- b\n", ":1: a profile is a mapping of keys", None),
        ("gpus", CARD.replace("aliases", "alias"), ":3: unknown key alias", "did you mean aliases?"),
        (
            "gpus",
            CARD.replace("  value", "  valeu"),
            ":5: unknown key total_gib.valeu",
            "did you mean value?",
        ),
        ("gpus", CARD.replace("23.4", "a lot"), ":5: total_gib.value:", None),
        ("gpus", CARD.replace("23.4", "-1"), ":5: total_gib.value:", None),
        ("gpus", CARD.split("  source", maxsplit=1)[0], ":4: total_gib.source is missing", None),
        ("gpus", CARD + "total_gib_low: {value: 24, source: x}\n", ":1: profile: total_gib_low <= ", None),
        ("models", MODEL.replace("confidence: config.json", "confidence: sure"), ":4: confidence:", None),
        ("models", "id: a/b\nconfig_source: x\nconfidence: derived\n", ":1: profile: config is empty", None),
        ("models", MODEL + "base: nobody/has-this\n", "base: no profile 'nobody/has-this'", None),
        ("models", MODEL + "base: acme/Tiny\n", "goes round in a circle", None),
    ],
)
def test_a_malformed_profile_is_named_with_file_line_and_key(
    tmp_path: Path, kind: str, text: str, message: str, hint: str | None
) -> None:
    path = add(tmp_path, kind, "bad.yaml", text)
    with pytest.raises(InputError) as caught:
        find_gpu("4090", profiles_dir=str(tmp_path))
    assert caught.value.message.startswith(str(path))
    assert message in caught.value.message
    if hint is not None:
        assert caught.value.hint == hint


def test_two_profiles_of_one_name_are_refused(tmp_path: Path) -> None:
    add(tmp_path, "gpus", "a.yaml", CARD)
    add(tmp_path, "gpus", "b.yaml", CARD.replace("id: rtx-4090", "id: other"))
    with pytest.raises(InputError, match=r"b\.yaml: the name '(4090|other|our-card)' already belongs to"):
        find_gpu("4090", profiles_dir=str(tmp_path))


def test_a_folder_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="--profiles: /nowhere is not a folder"):
        find_gpu("4090", profiles_dir="/nowhere")
    monkeypatch.setenv("KVPLAN_PROFILES", "/nowhere/else")
    with pytest.raises(InputError, match="KVPLAN_PROFILES: /nowhere/else is not a folder"):
        find_gpu("4090")


def test_a_folder_without_profiles_is_not_walked(tmp_path: Path) -> None:
    """As `--profiles /` is: nothing but the five sub-folders of profiles is looked into."""
    add(tmp_path, "etc", "a.yaml", "not: a profile")
    with pytest.raises(InputError, match="holds no profiles: none of engines/, gpus/, models/") as raised:
        all_gpus(profiles_dir=str(tmp_path))
    assert raised.value.hint == "name the folder above models/ or gpus/"
    add(tmp_path, "gpus", "mine.yaml", CARD)
    (tmp_path / "etc" / "b.yaml").write_text("{not YAML")
    assert find_gpu("our-card", profiles_dir=str(tmp_path)).name == "My 4090"


def test_a_folder_with_too_many_files_is_left_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "_MOST_ENTRIES", 3)
    for number in range(4):
        add(tmp_path, "models", f"m{number}.yaml", MODEL)
    with pytest.raises(InputError, match="models holds more than 3 files: not a folder of profiles"):
        find_model("acme/Tiny", profiles_dir=str(tmp_path))


def test_a_cache_that_cannot_be_written_costs_time_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file" / "below"))
    add(tmp_path / "mine", "gpus", "a.yaml", CARD)
    assert find_gpu("our-card", profiles_dir=str(tmp_path / "mine")).name == "My 4090"


LOOK_UP = """
import json, sys
from kvplan.catalog.gpus import find_gpu
from kvplan.catalog.models import find_model
gpu, model = find_gpu("4090"), find_model("qwen2-7b")
import kvplan
print(json.dumps({
    "package": kvplan.__file__,
    "gpu": gpu.total_bytes,
    "model": model.config["max_position_embeddings"],
    "parsers": sorted({"yaml", "pydantic", "huggingface_hub", "httpx"} & set(sys.modules)),
}))
"""


def _look_up(path: Path, cache: Path) -> dict[str, object]:
    """Both look-ups in a fresh process that imports kvplan from the given place."""
    environment = {**os.environ, "PYTHONPATH": str(path), "XDG_CACHE_HOME": str(cache)}
    done = subprocess.run(
        [sys.executable, "-c", LOOK_UP],
        env=environment,
        cwd=cache,
        check=True,
        capture_output=True,
        text=True,
    )
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_a_second_look_up_parses_nothing(tmp_path: Path) -> None:
    first, second = _look_up(ROOT, tmp_path), _look_up(ROOT, tmp_path)
    assert first["parsers"] == ["pydantic", "yaml"]
    assert second == {**first, "parsers": []}
    assert second["gpu"] == 25_262_096_384


def test_the_wheel_brings_its_index_and_gives_the_same_answers(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    assert (tmp_path / "site" / "kvplan" / "_profiles" / "models" / "Qwen__Qwen2-7B.yaml").is_file()
    cache = tmp_path / "cache"
    cache.mkdir()
    installed = _look_up(tmp_path / "site", cache)
    assert installed["package"] == str(tmp_path / "site" / "kvplan" / "__init__.py")
    assert installed["parsers"] == []
    assert list(cache.iterdir()) == []
    assert installed["gpu"] == find_gpu("4090").total_bytes
    assert installed["model"] == 32_768


def test_other_kinds_of_profiles_are_indexed_by_file_name(tmp_path: Path) -> None:
    add(tmp_path, "workloads", "chat.yaml", "concurrency: 8\n")
    profiles = index.indexes(str(tmp_path))[0]
    assert profiles.record("workloads", "chat") == {"id": "chat", "concurrency": 8}
