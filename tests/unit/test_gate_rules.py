"""Every rule: its page, a launch that passes, one that fails, and the value that would pass.

The examples are those of the pages themselves (docs/rules), so that a page cannot promise what the gate does
not say.
"""

from __future__ import annotations

import datetime as dt
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvplan.errors import ExitCode
from kvplan.gate.check import Base, check_launches
from kvplan.gate.find import read_paths, read_tree, tree_files
from kvplan.gate.load_policy import load_policy
from kvplan.gate.policy import NO_POLICY
from kvplan.gate.repo_files import DiskFiles
from kvplan.gate.rules import RULE_IDS, RULES
from kvplan.gate.rules import flags as flag_rules
from kvplan.report.check.text import as_text

if TYPE_CHECKING:
    from kvplan.gate.result import Checked

DOCS = Path(__file__).parents[2] / "docs" / "rules"
TODAY = dt.date(2026, 11, 29)
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
QWEN = "Qwen/Qwen2-7B-Instruct"

_SECTION = re.compile(r"(?m)^## (.+)$")
_FENCE = re.compile(r"(?ms)^```\w+ (\S+)\n(.*?)^```$")


@dataclass(frozen=True)
class Example:
    """What a page shows, file name -> text."""

    policy: dict[str, str]
    base: dict[str, str]
    passes: dict[str, str]
    fails: dict[str, str]


def example(rule: str) -> Example:
    """The files of a rule's page."""
    parts = _SECTION.split((DOCS / f"{rule}.md").read_text())
    sections = {
        title: dict(_FENCE.findall(text)) for title, text in zip(parts[1::2], parts[2::2], strict=True)
    }
    return Example(
        sections.get("Policy of the examples", {}),
        sections.get("Base of the examples", {}),
        sections["Passes"],
        sections["Fails"],
    )


def gate(folder: Path, shown: Example, files: dict[str, str]) -> Checked:
    """The gate over files beside the page's policy, compared with the page's base where it has one."""
    lay(folder, {**shown.policy, **shown.base})
    base = Base(read_tree(folder, tree_files(folder)), name="base") if shown.base else None
    lay(folder, files)
    policy = load_policy(DiskFiles(folder), today=TODAY) or NO_POLICY
    found = read_tree(folder, tree_files(folder), policy.how_to_read())
    paths = frozenset(launch.path for launch in found.launches)
    return check_launches(found, policy=policy, base=base, today=TODAY, launch_paths=paths)


def lay(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.mark.parametrize("rule", RULE_IDS)
def test_a_page_names_its_rule_and_the_severity_that_it_has(rule: str) -> None:
    page = (DOCS / f"{rule}.md").read_text()
    names = {one.id: one.name for one in RULES} | {
        "KVP027": "waiver-without-effect",
        "KVP028": "no-launch",
    }
    assert page.startswith(f"# {rule}: {names[rule]}\n\nSeverity: ")
    for one in RULES:
        if one.id == rule:
            assert one.severity in page.split("\n")[2]


def test_there_is_no_page_without_a_rule_and_ids_are_in_order() -> None:
    assert sorted(path.stem for path in DOCS.glob("KVP*.md")) == list(RULE_IDS) == sorted(RULE_IDS)


@pytest.mark.parametrize("rule", RULE_IDS)
def test_the_good_example_passes(rule: str, tmp_path: Path) -> None:
    shown = example(rule)
    checked = gate(tmp_path, shown, shown.passes)
    assert ([str(item) for item in checked.findings], len(checked.not_judged)) == ([], 0), as_text(checked)


@pytest.mark.parametrize("rule", RULE_IDS)
def test_the_bad_example_fails_with_this_rule_alone_and_names_what_would_pass(
    rule: str, tmp_path: Path
) -> None:
    shown = example(rule)
    checked = gate(tmp_path, shown, shown.fails)
    assert [item.rule for item in checked.findings] == [rule], as_text(checked)
    (item,) = checked.findings
    assert item.passes
    assert f"{'' if item.passes.startswith('without') else 'with '}{item.passes}" in as_text(checked)
    expected = ExitCode.NO if item.severity == "error" else ExitCode.OK
    assert checked.exit_code is expected


def changed(text: str, passes: str) -> str:
    """A command with the options that a message names put in: `--flag VALUE`, and `without --flag`."""
    for flag in re.findall(r"without (--[\w-]+)", passes):
        text = re.sub(rf" {flag}(?: [^-\s]\S*)?", "", text)
    for flag, value in re.findall(r"(?<!without )(--[a-z][\w-]+)(?: ([^-\s]\S*))?", passes):
        text = re.sub(rf" {flag}(?: [^-\s]\S*)?", "", text)
        text = re.sub(r"(?m)^((?:CUDA\S+ )?(?:vllm|docker) .*)$", rf"\1 {flag} {value}".rstrip(), text)
    return text


@pytest.mark.parametrize(
    "rule",
    [
        rule
        for rule in RULE_IDS
        if rule not in {"KVP008", "KVP019", "KVP020", "KVP021", "KVP023", *RULE_IDS[26:]}
    ],
)
def test_the_value_that_is_named_passes(rule: str, tmp_path: Path) -> None:
    shown = example(rule)
    (item,) = gate(tmp_path / "before", shown, shown.fails).findings
    assert item.passes is not None
    files = {**shown.fails, "serve.sh": changed(shown.fails["serve.sh"], item.passes)}
    assert files != shown.fails
    checked = gate(tmp_path / "after", shown, files)
    assert rule not in [one.rule for one in checked.findings], as_text(checked)
    assert len(checked.judged) == 1
    assert all(one.now is not None and one.now.starts == "yes" for one in checked.launches)


TELLS = "(a value in the policy's `assume:` would tell)"
MODEL_TELLS = "(a value in the policy's `assume:`, or its `model:`, would tell)"


def check(folder: Path, text: str, gpu: str | None = "rtx-4090") -> Checked:
    """The gate over one script, without a policy."""
    (folder / "run.sh").write_text(f"{text}\n")
    return check_launches(read_paths(["."], folder), gpu=gpu)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("vllm serve $MODEL", f"model unknown: MODEL {MODEL_TELLS}"),
        ("vllm serve $MODEL --max-model-len $LEN", f"model unknown: MODEL {MODEL_TELLS}"),
        (f"vllm serve {QWEN} --max-num-seqs $N", f"unknown value of max_num_seqs: N {TELLS}"),
        (f"vllm serve {QWEN} $EXTRA", f"arguments that are not known here: EXTRA {TELLS}"),
        (
            f"vllm serve {QWEN} --hf-overrides '{{\"a\": 1}}'",
            "--hf-overrides changes the model's configuration",
        ),
        (
            "vllm serve /models/mine",
            "the model is a path, and its config.json is not known (the policy's `model:` would tell)",
        ),
        (
            f'vllm serve {QWEN} --speculative-config \'{{"method": "eagle3", "model": "a/b"}}\'',
            (
                "--speculative-config: the weights and the KV cache of a draft by eagle3 are not modelled "
                "(leave it out and keep room for the draft yourself, or measure with `kvplan tune`)"
            ),
        ),
        (
            f'vllm serve {QWEN} --speculative-config \'{{"model": "a/b"}}\'',
            (
                "--speculative-config: the weights and the KV cache of a draft model are not modelled "
                "(leave it out and keep room for the draft yourself, or measure with `kvplan tune`)"
            ),
        ),
        (
            "vllm serve acme/foo",
            (
                "'acme/foo' is no profile, no folder and not in the local Hugging Face cache, and "
                "offline the hub is not asked (`kvplan profiles add acme/foo` where the hub can be reached)"
            ),
        ),
        (
            f"VLLM_PP_LAYER_PARTITION=10,18 vllm serve {QWEN}",
            "VLLM_PP_LAYER_PARTITION=10,18: an uneven split of the layers by hand is not modelled (unset it)",
        ),
    ],
)
def test_what_cannot_be_known_is_not_judged_and_fails_nothing(tmp_path: Path, text: str, reason: str) -> None:
    checked = check(tmp_path, text)
    assert [item.not_judged for item in checked.not_judged] == [reason]
    assert (checked.findings, checked.exit_code) == ([], ExitCode.OK)


def test_a_card_without_rules_is_no_refusal_of_vllms(tmp_path: Path) -> None:
    checked = check(tmp_path, f"vllm serve {QWEN}", gpu="mi300x")
    assert "no rules for vLLM's memory on cards that are not NVIDIA's" in str(
        checked.not_judged[0].not_judged
    )
    assert checked.findings == []


def test_without_any_word_on_the_gpu_memory_is_not_judged_and_flags_are(tmp_path: Path) -> None:
    text = f"docker run vllm/vllm-openai:v0.20.0 --model {QWEN} --swap-space 4"
    checked = check(tmp_path, text, gpu=None)
    assert str(checked.not_judged[0].not_judged).startswith("GPU unknown")
    assert [item.rule for item in checked.findings] == ["KVP004"]
    assert checked.exit_code is ExitCode.NO  # sound evidence, whatever else could not be judged


def test_a_length_between_what_surely_fits_and_what_surely_does_not_is_tight(tmp_path: Path) -> None:
    rules = set()
    for length in range(24576, 65536, 2048):
        found = check(tmp_path, f"vllm serve {LLAMA} --max-model-len {length}").findings
        rules |= {(one.rule, one.severity) for one in found}
        if ("KVP001", "error") in rules:
            break
    assert rules == {("KVP002", "warning"), ("KVP001", "error")}


def test_kv_blocks_on_the_host_are_a_note_with_the_time_that_they_take(tmp_path: Path) -> None:
    (item,) = check(tmp_path, f"vllm serve {QWEN} --max-model-len 8192 --kv-offloading-size 32").findings
    # Qwen2-7B: 28 layers x 2 x 4 heads x 128 x 2 bytes = 57,344 bytes a token, 0.4375 GiB for 8,192 of them;
    # PCIe 4.0 x16 carries 32 GB/s at most.
    assert (item.rule, item.severity, item.passes) == ("KVP018", "note", "without --kv-offloading-size")
    assert "0.4 GiB for a request of 8192 tokens, " in item.message
    milliseconds = float(re.search(r", (\d+) ms at (\d+)", item.message)[1])  # type: ignore[index]
    assert milliseconds == pytest.approx(0.4375 * 2**30 / 32e9 * 1000, abs=1)


def test_a_misspelt_flag_gets_the_nearest_one(tmp_path: Path) -> None:
    (item,) = check(tmp_path, f"vllm serve {QWEN} --max-modle-len 4096 --max-model-len 4096").findings
    assert (item.rule, item.passes) == ("KVP004", "--max-model-len instead of --max-modle-len")


def test_a_file_of_invented_flags_is_told_in_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flag_rules, "_looked_up", {})
    invented = " ".join(f"--max-modle-len-{i}" for i in range(3000))
    begin = time.process_time()
    found = check(tmp_path, f"vllm serve {QWEN} --max-model-len 4096 {invented}").findings
    assert len(found) == 3000
    assert found[-1].passes == "without --max-modle-len-2999"
    # 3,000 of them looked up one by one take half a minute.
    assert time.process_time() - begin < 5


def test_what_replaces_a_removed_flag_is_named_where_the_release_has_it(tmp_path: Path) -> None:
    # vLLM 0.13.0's parser has --structured-outputs-config, and no --guided-decoding-backend any more.
    text = f"docker run vllm/vllm-openai:v0.13.0 --model {QWEN} --guided-decoding-backend xgrammar"
    (item,) = check(tmp_path, f"{text} --max-model-len 4096").findings
    assert item.passes == "--structured-outputs-config.backend instead of --guided-decoding-backend"
    assert "0.11.2 was the last release with it" in item.message


def test_every_replacement_is_an_option_of_a_release_that_lacks_the_old_one() -> None:
    from kvplan.config.flag_table import flag_table
    from kvplan.gate.rules.flags import _INSTEAD

    table = flag_table()
    for name, text in _INSTEAD.items():
        gone = max(
            option.until for option in table.options.values() if option.flag.name == name and option.until
        )
        named = table.options[text.split()[0].partition(".")[0]]
        assert named.until is None or named.until > gone, name


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ("--tensor-parallel-size 99999999999999999999", "no such cluster is known here"),
        ("--pipeline-parallel-size 8192", "no such cluster is known here"),
        ("--mamba-cache-dtype nvfp4", "not a dtype that is known here"),
        ("--speculative-config 0.5", "not a JSON object"),
        ("--cpu-offload-gb inf", "not a size"),
        ("--enable-lora --max-loras -1", "not a size"),
    ],
)
def test_values_that_make_no_sense_end_in_no_traceback_and_cost_no_time(
    tmp_path: Path, flags: str, reason: str
) -> None:
    checked = check(tmp_path, f"vllm serve {QWEN} {flags}")
    assert reason in str(checked.not_judged[0].not_judged)


def test_an_option_that_only_sounds_like_another_gets_no_replacement(tmp_path: Path) -> None:
    (item,) = check(tmp_path, f"vllm serve {QWEN} --max-model-len 8192 --bogus-flag").findings
    assert (item.rule, item.passes) == ("KVP004", "without --bogus-flag")
