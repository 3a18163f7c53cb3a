"""`.kvplan.yaml` as the gate reads it: keys, patterns, what is wrong said in one line, waivers, `--init`."""

from __future__ import annotations

import datetime as dt
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
import yaml

from kvplan.config.project_file import FILE_NAME, read_project_file
from kvplan.errors import ExitCode, InputError
from kvplan.gate.check import check_launches
from kvplan.gate.find import read_tree, tree_files
from kvplan.gate.globs import path_matches, value_matches
from kvplan.gate.load_policy import json_schema, load_policy
from kvplan.gate.policy import NO_POLICY
from kvplan.gate.repo_files import DiskFiles
from kvplan.gate.run import Asked, checked, write_policy
from tests.unit.gate_repository import POLICY

if TYPE_CHECKING:
    from kvplan.gate.policy import Policy
    from kvplan.gate.result import Checked

TODAY = dt.date(2026, 11, 29)
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
QWEN = "Qwen/Qwen2-7B-Instruct"
TOO_LONG = f"vllm serve {LLAMA} --max-model-len 131072\n"
"""On a 24 GiB card: 16.06 GB of weights, and 16 GiB of KV cache for one request."""


def load(folder: Path, text: str) -> Policy:
    (folder / FILE_NAME).write_text(text)
    policy = load_policy(DiskFiles(folder), today=TODAY)
    assert policy is not None
    return policy


def judged(folder: Path, **asked: Any) -> Checked:
    return checked(Asked(here=folder, today=TODAY, **asked))[0]


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("deploy/chat.yaml", "deploy/chat.yaml", True),
        ("deploy", "deploy/a/b.yaml", True),
        ("deploy/", "deploy/a.yaml", True),
        ("deploy", "deploy-eu/a.yaml", False),
        ("deploy/*.yaml", "deploy/a.yaml", True),
        ("deploy/*.yaml", "deploy/eu/a.yaml", False),
        ("deploy/**/*.yaml", "deploy/a.yaml", True),
        ("deploy/**/*.yaml", "deploy/eu/west/a.yaml", True),
        ("**/serve.sh", "serve.sh", True),
        ("**/serve.sh", "a/b/serve.sh", True),
        ("**", "a/b", True),
        (".", "a/b", True),
        ("./deploy/?.sh", "deploy/a.sh", True),
        ("a[!b].sh", "ac.sh", True),
        ("a[!b].sh", "ab.sh", False),
        ("a.b", "axb", False),
    ],
)
def test_path_patterns(pattern: str, path: str, matches: bool) -> None:
    assert path_matches(pattern, path) is matches


def test_values_of_labels_may_end_in_anything() -> None:
    assert value_matches("pool=l4-*", "pool=l4-spot")
    assert not value_matches("pool=l4", "pool=l4-spot")
    assert not value_matches("pool.=l4", "poolx=l4")


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (
            "gpu: l4\nmin_headrom_gib: 1\n",
            ":2: unknown key 'min_headrom_gib'",
            "did you mean min_headroom_gib?",
        ),
        (
            "paths:\n  - match: a\n    gpus: l4\n",
            ":3: unknown key 'gpus'",
            "did you mean gpu?",
        ),
        ("paths:\n  - gpu: l4\n", ":2: paths.0 lacks `match`", None),
        ("target_concurrency: many\n", ":1: target_concurrency: not a whole number from 1 on", None),
        ("target_concurrency: true\n", ":1: target_concurrency: not a whole number from 1 on", None),
        ("rules: {KVP999: off}\n", ":1: no rule KVP999", "rules are KVP001 to KVP028"),
        ("rules:\n  KVP001: of\n", ":2: rules.KVP001: not one of off, on, note, warning, error", None),
        ("rules:\n  KV001: off\n", ":2: rules.KV001: not a rule's id like KVP001", None),
        ("gpu: l44\n", ":1: gpu: no GPU profile 'l44'", "did you mean l4, l40, l40s? `kvplan profiles gpus`"),
        ("gpu_map:\n  pool=a: h10\n", ":2: gpu_map.pool=a: no GPU profile 'h10'", "did you mean h100"),
        ("paths:\n- match: a\n  gpu: a100\n", ":3: paths.0.gpu: 'a100' may be a100-40gb-pcie", None),
        ("vllm_version: newest\n", ":1: vllm_version: ", None),
        ("- a\n", ":1: not a mapping", "write lines like `gpu: l4`"),
        ("gpu: 'l4\n", ": not YAML", None),
        ("workload: chatt\n", ":1: workload: no file 'chatt' in the repository", "presets: "),
        ("workload: ../chat.yaml\n", ":1: workload: no file '../chat.yaml' in the repository", "presets: "),
        ("launches: none.jsonl\n", ":1: launches: no file 'none.jsonl' in the repository", None),
        (
            "waivers:\n  - {rule: KVP001, path: a, reason: why not}\n",
            ":2: waivers.0 lacks `until`",
            None,
        ),
        (
            "waivers:\n  - {rule: KVP001, path: a, until: 2027-01-01}\n",
            ":2: waivers.0 lacks `reason`",
            None,
        ),
        (
            "waivers:\n  - {rule: KVP001, path: a, until: soon, reason: why not}\n",
            ":2: waivers.0.until: not a date like 2027-03-31",
            None,
        ),
        (
            # 29 November 2026 and 180 days is 28 May 2027.
            "waivers:\n  - {rule: KVP001, path: a, until: 2027-05-29, reason: why not}\n",
            ":2: a waiver until 2027-05-29 is more than 180 days ahead",
            "until 2027-05-28 at the latest",
        ),
    ],
)
def test_what_is_wrong_is_one_line_with_the_place(
    tmp_path: Path, text: str, message: str, hint: str | None
) -> None:
    with pytest.raises(InputError) as caught:
        load(tmp_path, text)
    assert message in caught.value.message
    assert caught.value.message.startswith(FILE_NAME)
    assert "\n" not in caught.value.message
    if hint is not None:
        assert hint in str(caught.value.hint)


def test_a_bad_policy_is_exit_2_and_one_line(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("gpuu: l4\n")
    result = subprocess.run(
        [sys.executable, "-m", "kvplan", "check"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert result.returncode == ExitCode.CANNOT_JUDGE
    assert result.stderr == "kvplan: .kvplan.yaml:1: unknown key 'gpuu' (did you mean gpu?)\n"


def test_an_unknown_card_on_the_command_line_is_exit_2_with_the_nearest_names(tmp_path: Path) -> None:
    (tmp_path / "serve.sh").write_text(TOO_LONG)
    for options in (["--gpu", "l44"], ["--gpu", "l44", "--init"]):
        result = subprocess.run(
            [sys.executable, "-m", "kvplan", "check", *options],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (result.returncode, result.stdout) == (ExitCode.CANNOT_JUDGE, "")
        assert result.stderr == (
            "kvplan: --gpu l44: no GPU profile 'l44' "
            "(did you mean l4, l40, l40s? `kvplan profiles gpus` lists all)\n"
        )
    assert not (tmp_path / FILE_NAME).exists()


def test_an_alias_bomb_is_refused_without_eating_memory(tmp_path: Path) -> None:
    levels = "".join(f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]\n" for i in range(1, 12))
    with pytest.raises(InputError, match=r"too many aliased nodes|unknown key"):
        load(tmp_path, "l0: &l0 [a]\n" + levels)


def test_later_entries_win_key_by_key(tmp_path: Path) -> None:
    policy = load(
        tmp_path,
        "gpu: 4090\nvllm_version: 0.32\nrules: {KVP002: error}\n"
        "paths:\n"
        "  - {match: deploy/**, gpu: l4, target_concurrency: 8, rules: {KVP007: off}}\n"
        "  - {match: [deploy/eu/**, x], target_concurrency: 16, min_headroom_gib: 1.5}\n",
    )
    plain, deploy, europe = (policy.terms(path) for path in ("a.sh", "deploy/a.sh", "deploy/eu/a.sh"))
    assert (plain.gpu, plain.target_concurrency, plain.vllm_version) == ("4090", None, "0.32")
    assert (deploy.gpu, deploy.target_concurrency, deploy.severities) == (
        "l4",
        8,
        {"KVP002": "error", "KVP007": None},
    )
    assert (europe.gpu, europe.target_concurrency, europe.min_headroom_bytes) == ("l4", 16, 1536 << 20)


def test_the_same_file_gives_the_other_commands_their_defaults(tmp_path: Path) -> None:
    policy = load(
        tmp_path, "gpu: 4090\nmodel: qwen2-7b\ntarget_concurrency: 32\nworkload: chat\nrules: {KVP007: off}\n"
    )
    project = read_project_file(tmp_path)
    assert project is not None
    terms = policy.terms("any.sh")
    assert (project.gpu, project.model, project.target_concurrency, project.workload) == (
        terms.gpu,
        terms.model,
        terms.target_concurrency,
        terms.workload_name,
    )


def test_the_schema_takes_what_the_gate_takes_and_refuses_what_it_refuses() -> None:
    schema = json.loads(json_schema())
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    # A schema judges JSON, which has no dates.
    policy = json.loads(json.dumps(yaml.safe_load(POLICY), default=str))
    assert list(validator.iter_errors(policy)) == []
    for wrong in ({"gpuu": "l4"}, {"paths": [{"gpu": "l4"}]}, {"rules": {"KVP001": "of"}}):
        assert list(validator.iter_errors(wrong)) != []


def test_a_node_selector_means_the_card_that_the_policy_says(tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  nodeSelector: {pool: fast}\n  containers:\n"
        f"    - {{name: v, image: 'vllm/vllm-openai:v0.32.0', args: [--model={QWEN}]}}\n"
    )
    load(tmp_path, "gpu_map: {pool=fa*: h100-sxm}\ngpu: l4\n")
    (launch,) = judged(tmp_path).launches
    assert launch.now is not None
    assert "H100" in launch.now.gpu


def test_the_policys_model_stands_for_a_path_in_the_container(tmp_path: Path) -> None:
    (tmp_path / "serve.sh").write_text("vllm serve /models/chat --max-model-len 8192\n")
    load(tmp_path, f"gpu: rtx-4090\npaths: [{{match: serve.sh, model: {QWEN}}}]\n")
    (launch,) = judged(tmp_path).launches
    assert launch.now is not None
    assert f"model {QWEN}: the policy's" in launch.assumptions


def test_assumed_variables_and_the_policys_release_reach_the_readers(tmp_path: Path) -> None:
    (tmp_path / "serve.sh").write_text(f"vllm serve {QWEN} --max-model-len $LEN --swap-space 4\n")
    load(tmp_path, "gpu: rtx-4090\nvllm_version: 0.20.0\nassume: {LEN: 8192}\n")
    answer = judged(tmp_path)
    (launch,) = answer.launches
    assert launch.now is not None
    assert (launch.now.max_model_len, launch.now.vllm_version) == (8192, "0.20.0")
    assert "LEN: assumed by the policy" in launch.assumptions
    assert [item.rule for item in answer.findings] == ["KVP004"]


def test_a_rule_that_is_off_says_nothing_and_a_severity_decides_the_exit(tmp_path: Path) -> None:
    (tmp_path / "serve.sh").write_text(TOO_LONG)
    load(tmp_path, "gpu: rtx-4090\nrules: {KVP001: off}\n")
    assert judged(tmp_path).findings == []
    load(tmp_path, "gpu: rtx-4090\nrules: {KVP001: warning}\n")
    answer = judged(tmp_path)
    assert ([item.severity for item in answer.findings], answer.exit_code) == (["warning"], ExitCode.OK)
    assert judged(tmp_path, fail_on="warning").exit_code is ExitCode.NO


def test_measured_launches_of_the_repository_calibrate_and_those_of_the_user_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "serve.sh").write_text(f"vllm serve {QWEN} --max-model-len 8192\n")
    load(tmp_path, "gpu: rtx-4090\nvllm_version: 0.32.0\n")
    (before,) = judged(tmp_path).launches
    record = {
        "schema": "kvplan.launch/1",
        "outcome": "started",
        "settings": {"max_model_len": 8192},
        "device": "cuda",
        "gpu": "rtx-4090",
        "model": QWEN,
        "facts": {"vllm_version": "0.32.0", "available_kv_bytes": 3 << 30},
    }
    (tmp_path / "measured.jsonl").write_text(json.dumps(record) + "\n")
    store = tmp_path / "share" / "kvplan" / "launches.jsonl"
    store.parent.mkdir(parents=True)
    store.write_text(json.dumps(record) + "\n")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    (users,) = judged(tmp_path).launches
    assert users.now == before.now
    load(tmp_path, "gpu: rtx-4090\nvllm_version: 0.32.0\nlaunches: measured.jsonl\n")
    (after,) = judged(tmp_path).launches
    assert after.now is not None
    # 3 GiB at 56 KiB a token (28 layers, 4 KV heads of 128, two bytes, keys and values) is 56,173 tokens.
    assert after.now.kv_tokens == pytest.approx(56_173, rel=0.01)
    assert any("1 launch measured here" in text for text in after.assumptions)


def test_waivers_hold_until_their_day_and_unused_ones_are_said(tmp_path: Path) -> None:
    (tmp_path / "serve.sh").write_text(TOO_LONG)
    waiver = "{rule: KVP001, path: '*.sh', until: 2026-12-01, reason: moves to an H100}"
    load(tmp_path, f"gpu: rtx-4090\nwaivers:\n  - {waiver}\n")
    answer = judged(tmp_path)
    assert ([item.rule for item in answer.waived], answer.findings) == (["KVP001"], [])
    late, _ = checked(Asked(here=tmp_path, today=dt.date(2026, 12, 2)))
    assert [(item.rule, bool(item.waiver and item.waiver.expired)) for item in late.findings] == [
        ("KVP001", True)
    ]
    (tmp_path / "serve.sh").write_text(f"vllm serve {QWEN} --max-model-len 4096\n")
    (idle,) = judged(tmp_path).findings
    assert (idle.rule, idle.severity, idle.path, idle.line) == ("KVP027", "warning", FILE_NAME, 3)


def test_a_waiver_for_another_model_waives_nothing(tmp_path: Path) -> None:
    (tmp_path / "serve.sh").write_text(TOO_LONG)
    waiver = f"{{rule: KVP001, path: '*.sh', model: {QWEN}, until: 2026-12-01, reason: why not}}"
    load(tmp_path, f"gpu: rtx-4090\nwaivers: [{waiver}]\n")
    assert [item.rule for item in judged(tmp_path).findings] == ["KVP001", "KVP027"]


@pytest.mark.parametrize(
    ("comment", "rules"),
    [
        ("# kvplan: ignore[KVP001] until=2027-03-31 reason=moves to an H100", []),
        ("# kvplan: ignore[KVP002, KVP001] reason=moves owner=ml until=2027-03-31", []),
        ("# kvplan: ignore[KVP001] until=2026-11-28 reason=moves", ["KVP001"]),
        ("# kvplan: ignore[KVP002] until=2027-03-31 reason=moves", ["KVP001", "KVP027"]),
        ("# kvplan: ignore[KVP001] reason=moves", ["KVP001", "KVP027"]),
        ("# kvplan: ignore[KVP001] until=2027-03-31", ["KVP001", "KVP027"]),
        ("# kvplan: ignore[] until=2027-03-31 reason=moves", ["KVP001", "KVP027"]),
        ("# kvplan: ignore[KVP001] until=2028-03-31 reason=moves", ["KVP001", "KVP027"]),
        ("# kvplan: please look away", ["KVP001", "KVP027"]),
    ],
)
def test_comments_waive_the_launch_below_them(tmp_path: Path, comment: str, rules: list[str]) -> None:
    (tmp_path / "serve.sh").write_text(f"{comment}\n{TOO_LONG}")
    load(tmp_path, "gpu: rtx-4090\n")
    answer = judged(tmp_path)
    assert [item.rule for item in answer.findings] == rules
    assert len(answer.waived) == (not rules)


def test_a_reason_that_is_too_short_is_said_to_be(tmp_path: Path) -> None:
    (tmp_path / "serve.sh").write_text(f"# kvplan: ignore[KVP001] until=2027-03-31 reason=x\n{TOO_LONG}")
    load(tmp_path, "gpu: rtx-4090\n")
    told = {item.rule: item.message for item in judged(tmp_path).findings}
    assert told["KVP027"] == "a waiver whose `reason=` has less than 3 characters"


def test_a_comment_further_up_waives_nothing_and_says_where_the_launch_is(tmp_path: Path) -> None:
    comment = "# kvplan: ignore[KVP001] until=2027-03-31 reason=moves"
    (tmp_path / "serve.sh").write_text(f"{comment}\nset -e\n{TOO_LONG}")
    load(tmp_path, "gpu: rtx-4090\n")
    answer = judged(tmp_path)
    assert [item.rule for item in answer.findings] == ["KVP001", "KVP027"]
    assert "waives nothing on line 2 (launches of the file begin on 3)" in answer.findings[1].message


def test_a_comment_above_the_flag_in_a_list_of_arguments(tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n"
        "    - name: v\n      image: vllm/vllm-openai:v0.32.0\n      args:\n"
        f"        - --model={LLAMA}\n"
        "        # kvplan: ignore[KVP001] until=2027-03-31 reason=moves\n"
        "        - --max-model-len=131072\n"
    )
    load(tmp_path, "gpu: rtx-4090\n")
    assert [item.rule for item in judged(tmp_path).waived] == ["KVP001"]


def test_a_required_launch_that_is_missing_fails_only_over_the_whole_repository(tmp_path: Path) -> None:
    (tmp_path / "serve.sh").write_text(f"vllm serve {QWEN} --max-model-len 4096\n")
    load(tmp_path, "gpu: rtx-4090\npaths:\n  - {match: deploy, require_launch: true}\n")
    (item,) = judged(tmp_path).findings
    assert (item.rule, item.path, item.line, item.launch) == ("KVP028", FILE_NAME, 3, None)
    assert judged(tmp_path, paths=("serve.sh",)).findings == []


def test_sound_evidence_fails_whatever_else_could_not_be_judged(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text(TOO_LONG)
    (tmp_path / "b.sh").write_text("vllm serve $MODEL\n")
    load(tmp_path, "gpu: rtx-4090\nrequire_judged: true\n")
    assert judged(tmp_path).exit_code is ExitCode.NO
    (tmp_path / "a.sh").unlink()
    assert judged(tmp_path).exit_code is ExitCode.CANNOT_JUDGE
    assert judged(tmp_path, fail_on="never").exit_code is ExitCode.CANNOT_JUDGE


def test_the_first_policy_loads_and_holds_what_can_be_judged(tmp_path: Path) -> None:
    (tmp_path / "serve.sh").write_text(f"vllm serve {QWEN} --max-model-len 4096\n")
    (tmp_path / "later.sh").write_text("vllm serve $MODEL --api-key sk-0123456789abcdef\n")
    (tmp_path / "pod.yaml").write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  nodeSelector: {pool: fast}\n  containers:\n"
        f"    - {{name: v, image: 'vllm/vllm-openai:v0.32.0', args: [--model={QWEN}]}}\n"
    )
    write_policy(Asked(here=tmp_path, gpu="rtx-4090", today=TODAY))
    text = (tmp_path / FILE_NAME).read_text()
    policy = load_policy(DiskFiles(tmp_path), today=TODAY)
    assert policy is not None
    assert policy.terms("serve.sh").require_judged
    assert not policy.terms("later.sh").require_judged
    assert policy.terms("serve.sh").gpu == "rtx-4090"
    assert '#   "pool=fast": CARD' in text
    assert "#   MODEL: VALUE" in text
    assert "sk-0123" not in text
    # What stands commented out are keys that the gate takes, but for what must be filled in first.
    lively = re.sub(r"(?m)^# (?=[a-z_]+: |waivers:|  - )", "", text)
    assert lively.count("\n# ") < text.count("\n# ") - 8
    load(tmp_path, lively)
    with pytest.raises(InputError, match="is there already"):
        write_policy(Asked(here=tmp_path))


def test_nothing_that_a_file_says_breaks_out_of_the_first_policys_comments(tmp_path: Path) -> None:
    (tmp_path / "serve.sh").write_text('vllm serve "$(echo a\nrules: {KVP001: off}\n)" --max-model-len 1\n')
    write_policy(Asked(here=tmp_path, today=TODAY))
    record = yaml.safe_load((tmp_path / FILE_NAME).read_text())
    assert record is None


def test_two_runs_say_the_same(tmp_path: Path) -> None:
    (tmp_path / "serve.sh").write_text(TOO_LONG)
    found = read_tree(tmp_path, tree_files(tmp_path))
    answers = [check_launches(found, policy=NO_POLICY, gpu="rtx-4090", today=TODAY) for _ in range(2)]
    assert answers[0].findings == answers[1].findings


def test_a_list_is_written_where_output_asks_for_it_or_refused(tmp_path: Path) -> None:
    (tmp_path / "serve.sh").write_text(f"vllm serve {QWEN} --max-model-len 4096\n")

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "kvplan", "check", *options]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    both = run("--list", "--output", "json=list.json", "--output", "text=list.txt")
    assert both.returncode == 0
    assert (tmp_path / "list.txt").read_text() == both.stdout
    assert [one["model"] for one in json.loads((tmp_path / "list.json").read_text())["launches"]] == [QWEN]
    for options, said in (
        (("--list", "--output", "sarif=x"), "--list --output sarif: text and json only"),
        (("--init", "--output", "json=x"), "--output with --init: nothing is judged"),
        (("--print-schema", "--output", "json=x"), "--output with --print-schema: nothing is judged"),
    ):
        refused = run(*options)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert said in refused.stderr
        assert not (tmp_path / "x").exists()
        assert not (tmp_path / FILE_NAME).exists()


def test_standard_input_is_judged_by_the_same_policy(tmp_path: Path) -> None:
    load(tmp_path, "gpu: rtx-4090\n")
    result = subprocess.run(
        [sys.executable, "-m", "kvplan", "check", "-"],
        cwd=tmp_path,
        input=TOO_LONG,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == ExitCode.NO
    assert result.stdout.startswith("stdin:1: error KVP001: ")


@pytest.mark.parametrize(
    ("paths", "text", "complaint"),
    [
        # `helm template … | kvplan check -` must not pass because helm failed.
        (("-",), b"\n", "-: nothing came in on stdin (did the command before the pipe fail?)"),
        (("-", "deploy"), b"", "- beside other paths (what comes in on stdin is judged by itself)"),
    ],
)
def test_standard_input_that_says_nothing_is_exit_2(
    tmp_path: Path, paths: tuple[str, ...], text: bytes, complaint: str
) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "kvplan", "check", *paths],
        cwd=tmp_path,
        input=text,
        capture_output=True,
        check=False,
    )
    assert (result.returncode, result.stderr.decode()) == (ExitCode.CANNOT_JUDGE, f"kvplan: {complaint}\n")


def test_the_policy_of_the_page_loads(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "policy.md").read_text()
    text = next(block for block in re.findall(r"(?ms)^```yaml\n(.*?)^```$", page) if block.startswith("gpu:"))
    (tmp_path / "ci").mkdir()
    (tmp_path / "ci" / "launches.jsonl").write_text("")
    policy = load(tmp_path, text)
    assert policy.terms("deploy/prod/a.yaml").target_concurrency == 64
    assert policy.terms("tools/a.sh").severities["KVP002"] is None


BROKEN = "apiVersion: v1\nkind: Pod\nspec: {containers: [{image: vllm/vllm-openai, args: [[\n"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (BROKEN, ExitCode.CANNOT_JUDGE),
        ("Error: INSTALLATION FAILED\n", ExitCode.CANNOT_JUDGE),
        ("[ERROR] no chart\n- of that name\n", ExitCode.CANNOT_JUDGE),
        ("apiVersion: v1\nkind: Service\nmetadata: {name: a}\n", ExitCode.OK),
        (f"{BROKEN}---\nservices: {{a: {{command: vllm serve {QWEN} --max-model-len 4096}}}}\n", ExitCode.OK),
    ],
)
def test_standard_input_that_cannot_be_read_is_no_pass(tmp_path: Path, text: str, code: ExitCode) -> None:
    answer = judged(tmp_path, paths=("-",), stdin=lambda most: text.encode()[:most], gpu="h100")
    assert answer.exit_code is code


def test_a_named_file_that_cannot_be_read_is_no_pass_and_one_of_many_in_a_tree_is_told(
    tmp_path: Path,
) -> None:
    (tmp_path / "bad.yaml").write_text(BROKEN)
    assert judged(tmp_path, gpu="h100").exit_code is ExitCode.CANNOT_JUDGE  # nothing else is there
    (tmp_path / "good.sh").write_text(f"vllm serve {QWEN} --max-model-len 4096\n")
    assert judged(tmp_path, gpu="h100").exit_code is ExitCode.OK
    named = judged(tmp_path, gpu="h100", paths=("good.sh", "bad.yaml"))
    assert (named.exit_code, len(named.judged)) == (ExitCode.CANNOT_JUDGE, 1)


def test_a_render_of_some_mib_is_judged_where_it_is_named(tmp_path: Path) -> None:
    filler = "---\nkind: ConfigMap\ndata:\n  a: |\n" + f"    {'x' * 99}\n" * 30_000
    text = f"{filler}---\nservices: {{a: {{command: vllm serve {LLAMA} --max-model-len 131072}}}}\n"
    (tmp_path / "render.yaml").write_text(text)
    for asked in ({"paths": ("render.yaml",)}, {"stdin": lambda most: text.encode()[:most]}):
        assert judged(tmp_path, gpu="rtx-4090", **asked).exit_code is ExitCode.NO


@pytest.mark.parametrize(
    ("redirect", "complaint"), [("<&-", "-: stdin is closed"), ("</dev/zero", "-: more than 8 MiB on stdin")]
)
def test_standard_input_that_is_closed_or_endless_is_one_line(
    tmp_path: Path, redirect: str, complaint: str
) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "{sys.executable}" -m kvplan check - {redirect}'],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == ExitCode.CANNOT_JUDGE
    assert done.stderr.startswith(f"kvplan: {complaint}")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "gpu: l4\nallowed: {dtype: [auto]}\nallowed: {trust_remote_code: []}\n",
            ":3: allowed is there twice, first in line 2",
        ),
        ("paths:\n- match: a\n  gpu: l4\n  gpu: l40\n", ":4: gpu is there twice, first in line 3"),
        (
            "allowed:\n  kv-cache-dtype: [auto]\n  kv_cache_dtype: []\n",
            ":3: kv_cache_dtype is there twice, first in line 2",
        ),
        ("? [a]\n: b\n", ":1: a key that is no word"),
        ("gpu: l4\n---\nallowed: {trust_remote_code: []}\n", ":2: a second YAML document begins here"),
        ("---\ngpu: l4\n...\n# and\n---\nrules: {KVP001: error}\n", ":5: a second YAML document begins here"),
        ("---\n---\ngpu: l4\n", ":2: a second YAML document begins here"),
    ],
)
def test_a_policys_key_that_would_be_lost_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=re.escape(FILE_NAME + message)):
        load(tmp_path, text)


@pytest.mark.parametrize("command", [["check"], ["estimate", "--model", "qwen2-7b"]])
def test_a_second_document_in_the_policy_is_exit_2_and_one_line(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / FILE_NAME).write_text("gpu: l40s\n---\nmin_headroom_gib: 2\n")
    (tmp_path / "serve.sh").write_text(f"vllm serve {QWEN}\n")
    done = subprocess.run(
        [sys.executable, "-m", "kvplan", *command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (ExitCode.CANNOT_JUDGE, "")
    assert f"{FILE_NAME}:2: a second YAML document begins here" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_marks_around_the_only_document_are_nothing_more(tmp_path: Path) -> None:
    assert (
        load(tmp_path, "%YAML 1.1\n--- # ours\ngpu: l40s\n...\n# the end\n").terms("serve.sh").gpu == "l40s"
    )
