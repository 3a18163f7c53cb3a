"""Every rule: a launch that passes, one that fails, the value that would pass, and a page of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvplan.errors import ExitCode
from kvplan.gate.check import as_json, as_text, check_launches
from kvplan.gate.find import read_paths
from kvplan.gate.rules import RULES

if TYPE_CHECKING:
    from kvplan.gate.result import Checked

DOCS = Path(__file__).parents[2] / "docs" / "rules"
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
QWEN = "Qwen/Qwen2-7B-Instruct"

# On a 24 GiB card. Llama-3.1-8B: 16.06 GB of weights and 131,072 B of KV a token, so that one request of
# 131,072 tokens alone needs 16 GiB. Qwen2-7B-Instruct: at most 32,768 positions.
EXAMPLES = {
    "KVP001": (f"vllm serve {LLAMA} --max-model-len 4096", f"vllm serve {LLAMA} --max-model-len 131072"),
    "KVP003": (f"vllm serve {QWEN} --max-model-len 32768", f"vllm serve {QWEN} --max-model-len 65536"),
    "KVP004": (
        f"docker run vllm/vllm-openai:v0.16.0 --model {QWEN} --swap-space 4",
        f"docker run vllm/vllm-openai:v0.20.0 --model {QWEN} --swap-space 4",
    ),
    "KVP005": (
        f"CUDA_VISIBLE_DEVICES=0,1 vllm serve {QWEN} -tp 2",
        f"CUDA_VISIBLE_DEVICES=0,1 vllm serve {QWEN} -tp 4",
    ),
}


def check(tmp_path: Path, text: str, gpu: str = "rtx-4090") -> Checked:
    """The gate over one script."""
    (tmp_path / "run.sh").write_text(f"{text}\n")
    return check_launches(read_paths(["."], tmp_path), gpu=gpu)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_every_rule_has_a_page(rule: object) -> None:
    page = (DOCS / f"{getattr(rule, 'id')}.md").read_text()  # noqa: B009  Rule is a protocol
    assert page.startswith(f"# {getattr(rule, 'id')}: {getattr(rule, 'name')}\n")  # noqa: B009


@pytest.mark.parametrize("rule_id", EXAMPLES)
def test_a_rule_passes_the_good_example_and_names_what_would_pass_in_the_bad_one(
    rule_id: str, tmp_path: Path
) -> None:
    good, bad = EXAMPLES[rule_id]
    assert [item.rule for item in check(tmp_path, good).findings] == []
    (item,) = check(tmp_path, bad).findings
    assert (item.rule, item.severity) == (rule_id, "error")
    assert item.passes


def test_the_value_that_passes_passes(tmp_path: Path) -> None:
    (item,) = check(tmp_path, EXAMPLES["KVP001"][1]).findings
    assert item.passes is not None
    again = check(tmp_path, f"vllm serve {LLAMA} {item.passes}")
    assert (again.findings, len(again.judged)) == ([], 1)


def test_a_length_between_what_surely_fits_and_what_surely_does_not_is_tight(tmp_path: Path) -> None:
    (item,) = check(tmp_path, EXAMPLES["KVP001"][1]).findings
    assert item.passes is not None
    surely = int(item.passes.split()[-1])
    rules = set()
    for length in range(surely, 65536, 2048):
        found = check(tmp_path, f"vllm serve {LLAMA} --max-model-len {length}").findings
        rules |= {(one.rule, one.severity) for one in found}
        if ("KVP001", "error") in rules:
            break
    assert rules == {("KVP002", "warning"), ("KVP001", "error")}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("vllm serve $MODEL", "model unknown: MODEL"),
        (f"vllm serve {QWEN} --max-num-seqs $N", "unknown value of max_num_seqs"),
        (f"vllm serve {QWEN} $EXTRA", "arguments that are not known here: EXTRA"),
        (
            f"vllm serve {QWEN} --hf-overrides '{{\"a\": 1}}'",
            "--hf-overrides changes the model's configuration",
        ),
        ("vllm serve /models/mine", "the model is a path, and its config.json is not known"),
    ],
)
def test_what_cannot_be_known_is_not_judged_and_fails_nothing(tmp_path: Path, text: str, reason: str) -> None:
    checked = check(tmp_path, text)
    assert [item.not_judged for item in checked.not_judged] == [reason]
    assert (checked.findings, checked.exit_code) == ([], ExitCode.OK)


def test_without_any_word_on_the_gpu_nothing_is_judged(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(f"vllm serve {QWEN}\n")
    checked = check_launches(read_paths(["."], tmp_path))
    assert str(checked.not_judged[0].not_judged).startswith("GPU unknown")


def test_only_what_the_base_has_not_fails(tmp_path: Path) -> None:
    bad = EXAMPLES["KVP001"][1]
    (tmp_path / "run.sh").write_text(f"{bad}\n")
    found = read_paths(["."], tmp_path)
    (tmp_path / "run.sh").write_text(f"# a comment more\n{bad}\n")
    moved = read_paths(["."], tmp_path)
    checked = check_launches(moved, gpu="rtx-4090", base=found)
    assert (checked.findings, [item.line for item in checked.old]) == ([], [2])
    assert checked.exit_code is ExitCode.OK
    assert "(the base has it too)" in as_text(checked)


def test_the_command_says_no_with_exit_1_and_json_holds_the_same(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(f"{EXAMPLES['KVP001'][1]}\n")
    result = subprocess.run(
        [sys.executable, "-m", "kvplan", "check", "--gpu", "rtx-4090", "--format", "json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == ExitCode.NO
    assert json.loads(result.stdout) == json.loads(as_json(check(tmp_path, EXAMPLES["KVP001"][1])))
