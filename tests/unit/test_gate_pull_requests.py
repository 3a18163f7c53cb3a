"""A base and eight pull requests: what each comes to, as exit code and as the typed answer.

The figures of KV tokens follow from the memory model and are not repeated here; what is held fast is their
direction, which vLLM's own rules give: utilisation 0.90 became 0.92 in 0.20.0, where CUDA graphs began to be
charged, and an fp8 cache holds twice the tokens.
"""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from kvplan.errors import ExitCode, InputError
from kvplan.gate.run import Asked, checked
from kvplan.report.check.github import as_commands
from kvplan.report.check.markdown import as_comment
from kvplan.report.check.marker import Marker
from kvplan.report.check.text import as_text
from tests.unit.gate_repository import (
    CHAT,
    LEGACY,
    POLICY,
    PULL_REQUESTS,
    TODAY,
    check_out,
    commit,
    git,
    make_repository,
)

if TYPE_CHECKING:
    from pathlib import Path

    from kvplan.gate.result import Checked, LaunchResult

DAY = dt.date.fromisoformat(TODAY)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_repository(tmp_path_factory.mktemp("pull-requests"))


@pytest.fixture
def copy(repository: Path, tmp_path: Path) -> Path:
    """A clone of its own for tests that commit."""
    subprocess.run(
        ["git", "clone", "--quiet", "--branch=main", str(repository), str(tmp_path / "copy")],  # noqa: S607
        check=True,
    )
    return tmp_path / "copy"


def judged(root: Path, *, base: str | None = "main", **asked: object) -> Checked:
    return checked(Asked(here=root, base=base, today=DAY, **asked))[0]  # type: ignore[arg-type]


def only(answer: Checked) -> LaunchResult:
    (launch,) = answer.launches
    return launch


def tokens(answer: Checked) -> tuple[int, int]:
    launch = only(answer)
    assert launch.before is not None
    assert launch.now is not None
    return launch.before.kv_tokens, launch.now.kv_tokens


@pytest.mark.parametrize(
    ("name", "code", "verdict", "rules"),
    [
        ("does-not-start", 1, "fails", ["KVP001"]),
        ("capacity-regression", 1, "fails", ["KVP022"]),
        ("improved", 0, "passes", []),
        ("comments-only", 0, "passes", []),
        ("unresolvable", 2, "cannot_judge", []),
        ("waived", 0, "passes", []),
        ("image-tag", 0, "passes", []),
        ("policy-loosened", 1, "fails", ["KVP001"]),
    ],
)
def test_the_verdict(repository: Path, name: str, code: int, verdict: str, rules: list[str]) -> None:
    check_out(repository, name)
    answer = judged(repository)
    assert (answer.exit_code, answer.verdict) == (code, verdict)
    assert [item.rule for item in answer.findings] == rules
    result = subprocess.run(
        [sys.executable, "-m", "kvplan", "check", "--base", "main", "--today", TODAY, "--format", "json"],
        cwd=repository,
        capture_output=True,
        check=False,
    )
    assert result.returncode == code


def test_every_pull_request_is_asserted() -> None:
    assert len(PULL_REQUESTS) == 8


def test_what_no_longer_starts_is_said_with_the_length_that_would(repository: Path) -> None:
    check_out(repository, "does-not-start")
    (item,) = judged(repository).findings
    assert (item.rule, item.severity, item.status) == ("KVP001", "error", "new")
    assert (item.path, item.line, item.flag) == ("deploy/chat.yaml", 16, "max_model_len")
    assert item.passes is not None
    length = int(item.passes.removeprefix("--max-model-len "))
    assert 8192 < length < 65536
    assert (item.before, item.seen) == ("starts with 100 %", "starts with 0 %")
    launch = only(judged(repository))
    assert launch.change == "changed"
    assert launch.now is not None
    assert launch.now.kv_spare_bytes < 0 < launch.now.kv_tokens  # the cache is as large as it was
    assert launch.now.max_requests == 0


def test_a_loss_of_capacity_names_the_flag_that_lost_it(repository: Path) -> None:
    check_out(repository, "capacity-regression")
    answer = judged(repository)
    before, now = tokens(answer)
    assert now < 0.95 * before
    (item,) = answer.findings
    assert (item.line, item.flag) == (18, "gpu_memory_utilization")
    assert item.passes == "without --gpu-memory-utilization"


def test_an_improvement_has_its_figures_and_no_finding(repository: Path) -> None:
    check_out(repository, "improved")
    answer = judged(repository)
    before, now = tokens(answer)
    assert now == pytest.approx(2 * before, rel=0.01)
    assert (answer.findings, answer.old, answer.fixed) == ([], [], [])


def test_comments_change_nothing(repository: Path) -> None:
    check_out(repository, "comments-only")
    answer = judged(repository)
    before, now = tokens(answer)
    assert (only(answer).change, now) == ("unchanged", before)


def test_an_unknown_value_is_not_judged_and_the_policy_requires_that_it_is(repository: Path) -> None:
    check_out(repository, "unresolvable")
    answer = judged(repository)
    assert only(answer).not_judged == (
        "unknown value of max_model_len: MAX_LEN (a value in the policy's `assume:` would tell)"
    )
    assert [item.launch.path for item in answer.unmet] == ["deploy/chat.yaml"]
    # `fail_on` says which findings fail; what could not be judged is no finding.
    assert judged(repository, fail_on="never").exit_code is ExitCode.CANNOT_JUDGE


def test_a_waived_finding_is_shown_with_its_end_and_comes_back_after_it(repository: Path) -> None:
    check_out(repository, "waived")
    answer = judged(repository)
    (item,) = answer.waived
    assert item.rule == "KVP001"
    assert item.waiver is not None
    assert (item.waiver.until, item.waiver.owner, item.waiver.expired) == ("2027-02-28", "ml-platform", False)
    late, _ = checked(Asked(here=repository, base="main", today=dt.date(2027, 3, 1)))
    (back,) = late.findings
    assert back.waiver is not None
    assert back.waiver.expired
    assert (late.waived, late.exit_code) == ([], ExitCode.NO)


def test_an_image_tag_alone_is_a_change_of_memory(repository: Path) -> None:
    check_out(repository, "image-tag")
    answer = judged(repository)
    launch = only(answer)
    assert launch.before is not None
    assert launch.now is not None
    assert (launch.before.vllm_version, launch.now.vllm_version) == ("0.19.1", "0.20.2")
    before, now = tokens(answer)
    assert now != before


def test_with_the_share_written_down_the_tag_costs_what_the_graphs_take(copy: Path) -> None:
    fixed = CHAT.replace("=32\n", "=32\n            - --gpu-memory-utilization=0.9\n")
    commit(copy, {"deploy/chat.yaml": fixed}, "write the share down")
    git(copy, "branch", "--force", "written")
    commit(copy, {"deploy/chat.yaml": fixed.replace("v0.19.1", "v0.20.2")}, "bump")
    before, now = tokens(judged(copy, base="written"))
    assert now < before


def test_the_policy_of_the_pull_request_does_not_count_and_that_is_said(repository: Path) -> None:
    check_out(repository, "policy-loosened")
    answer = judged(repository)
    assert answer.notes == ["this change touches .kvplan.yaml: it is judged by the one of main"]
    assert judged(repository, head_policy=True).findings == []


def test_a_pull_request_cannot_lighten_the_workload_that_it_is_held_to(copy: Path) -> None:
    light = "schema: kvplan.workload/1\nname: light\nlengths:\n  samples:\n  - [10, 10]\n"
    low = CHAT.replace("=32\n", "=32\n            - --gpu-memory-utilization=0.8\n")
    commit(copy, {"workloads/chat.yaml": light, "deploy/chat.yaml": low}, "lighten")
    assert "KVP006" in [item.rule for item in judged(copy, base="origin/main").findings]


def test_a_waiver_in_a_comment_counts_from_the_base_on(copy: Path) -> None:
    comment = "# kvplan: ignore[KVP001] until=2027-03-31 reason=a test of the queue\n"
    long = CHAT.replace("--max-model-len=8192", "--max-model-len=65536").replace(
        "            - --max-model-len", f"            {comment}            - --max-model-len"
    )
    commit(copy, {"deploy/chat.yaml": long}, "waive myself")
    answer = judged(copy, base="origin/main")
    assert [item.rule for item in answer.findings] == ["KVP001", "KVP027"]
    assert answer.exit_code is ExitCode.NO
    git(copy, "branch", "--force", "merged")
    commit(copy, {"deploy/chat.yaml": long.replace("replicas: 2", "replicas: 3")}, "go on")
    later = judged(copy, base="merged")
    assert ([item.rule for item in later.waived], [str(x) for x in later.findings]) == (["KVP001"], [])


def test_without_paths_the_whole_repository_is_judged_from_any_folder(copy: Path) -> None:
    answers = [checked(Asked(here=folder, today=DAY))[0] for folder in (copy, copy / "deploy")]
    assert [[item.launch.path for item in answer.launches] for answer in answers] == [
        ["deploy/chat.yaml", "legacy/serve.sh"]
    ] * 2


def test_a_missing_base_is_an_error_never_nothing_to_check(repository: Path) -> None:
    check_out(repository, "main")
    for ref in ("origin/main", "no-such-branch", "--upload-pack=x", "0" * 40):
        with pytest.raises(InputError, match="--base"):
            judged(repository, base=ref)


def test_a_renamed_file_keeps_its_launches(copy: Path) -> None:
    git(copy, "mv", "deploy/chat.yaml", "deploy/chat-eu.yaml")
    commit(copy, {}, "rename")
    answer = judged(copy, base="origin/main")
    assert (only(answer).change, only(answer).launch.path) == ("unchanged", "deploy/chat-eu.yaml")
    assert answer.removed == []


def test_a_deleted_launch_is_said(copy: Path) -> None:
    (copy / "legacy" / "serve.sh").unlink()
    commit(copy, {}, "delete")
    answer = judged(copy, base="origin/main")
    assert ([item.path for item in answer.removed], answer.launches) == (["legacy/serve.sh"], [])
    assert as_text(answer).splitlines()[0] == "legacy/serve.sh:3: removed: Qwen/Qwen2-7B-Instruct"


def test_a_changed_companion_is_a_changed_launch(copy: Path) -> None:
    compose = (
        "services:\n  llm:\n    image: vllm/vllm-openai:v0.32.0\n"
        "    command: --model Qwen/Qwen2-7B-Instruct --max-model-len ${LEN}\n"
    )
    commit(copy, {"stack/compose.yaml": compose, "stack/.env": "LEN=8192\n"}, "a stack")
    git(copy, "branch", "--force", "stack")
    commit(copy, {"stack/.env": "LEN=16384\n"}, "longer")
    launch = only(judged(copy, base="stack", gpu="rtx-4090"))
    assert (launch.launch.path, launch.change) == ("stack/compose.yaml", "changed")
    assert launch.before is not None
    assert launch.now is not None
    assert (launch.before.max_model_len, launch.now.max_model_len) == (8192, 16384)


def test_launches_are_matched_by_name_not_by_line(copy: Path) -> None:
    two = CHAT + "---\n" + CHAT.replace("name: chat\n", "name: other\n").replace("8192", "4096")
    commit(copy, {"deploy/chat.yaml": two}, "two")
    git(copy, "branch", "--force", "two")
    swapped = CHAT.replace("name: chat\n", "name: other\n").replace("8192", "4096") + "---\n" + CHAT
    commit(copy, {"deploy/chat.yaml": swapped}, "swap")
    answer = judged(copy, base="two")
    assert [item.change for item in answer.launches] == ["unchanged", "unchanged"]


def test_a_finding_that_gets_worse_fails_and_one_that_stays_does_not(copy: Path) -> None:
    policy = POLICY.replace("max_capacity_regression_percent: 5\n", "")
    low = CHAT.replace("=32\n", "=32\n            - --gpu-memory-utilization=0.84\n")
    commit(copy, {".kvplan.yaml": policy, "deploy/chat.yaml": low}, "low")
    git(copy, "branch", "--force", "low")
    commit(copy, {"deploy/chat.yaml": low.replace("replicas: 2", "replicas: 3")}, "as before")
    same = judged(copy, base="low")
    assert ([item.rule for item in same.old], same.findings) == (["KVP006"], [])
    commit(copy, {"deploy/chat.yaml": low.replace("0.84", "0.8")}, "lower")
    worse = judged(copy, base="low")
    assert ("KVP006", "worse") in [(item.rule, item.status) for item in worse.findings]


def test_what_breaks_if_we_upgrade(copy: Path) -> None:
    script = "docker run --gpus device=0 vllm/vllm-openai:v0.16.0 --model Qwen/Qwen2-7B-Instruct"
    text = f"{script} --max-model-len 8192 --swap-space 4\n"
    commit(copy, {"tools/serve.sh": text}, "a tool")
    answer = judged(copy, base=None, vllm_version="0.20.0", gpu="rtx-4090")
    assert [(item.rule, item.path) for item in answer.findings if item.severity == "error"] == [
        ("KVP004", "tools/serve.sh")
    ]
    assert {item.launch.path: item.change for item in answer.launches} == {
        "deploy/chat.yaml": "changed",
        "legacy/serve.sh": "added",
        "tools/serve.sh": "changed",
    }


def test_what_was_wrong_before_the_upgrade_is_no_news_of_it(copy: Path) -> None:
    long = CHAT.replace("--max-model-len=8192", "--max-model-len=65536")
    commit(copy, {"deploy/chat.yaml": long, "legacy/serve.sh": LEGACY}, "long")
    answer = judged(copy, base=None, vllm_version="0.20.0")
    assert [item.rule for item in answer.old] == ["KVP001"]
    assert answer.exit_code is ExitCode.OK


def test_an_upgrade_is_told_as_what_it_breaks(copy: Path) -> None:
    long = CHAT.replace("--max-model-len=8192", "--max-model-len=65536")
    tool = (
        "docker run --gpus device=0 vllm/vllm-openai:v0.16.0 --model Qwen/Qwen2-7B-Instruct --swap-space 4\n"
    )
    unpinned = "vllm serve Qwen/Qwen2-7B-Instruct --max-model-len 8192 --swap-space 4\n"
    commit(
        copy,
        {"deploy/chat.yaml": long, "bare.sh": unpinned, "tools/serve.sh": tool},
        "three launches",
    )
    answer = judged(copy, base=None, vllm_version="0.20.0", gpu="rtx-4090")
    text = as_text(answer)
    lines = {line.partition(":")[0]: line for line in text.splitlines() if " KVP004: " in line}
    # 0.17.1 was the last release with --swap-space: 0.16.0 has it, and the script pins nothing.
    assert lines["tools/serve.sh"].endswith("passes without --swap-space")
    assert lines["bare.sh"].endswith("passes without --swap-space (pins no release to compare with)")
    assert " error KVP001: will not start" in text
    assert text.splitlines()[-1] == (
        "4 launches, 4 judged, 0 not judged; vLLM 0.20.0 breaks 1 of 2 pinned launches: "
        "1 finding new with it, 1 with the pinned releases too, 1 of launches that pin none"
    )
    assert "the base has it too" not in text
    assert answer.exit_code is ExitCode.NO
    assert "vLLM 0.20.0 breaks 1 of 2 pinned launches" in as_comment(answer, Marker("default", 1))
    quiet = judged(copy, base=None, vllm_version="0.19.1", gpu="rtx-4090", paths=("deploy",))
    assert as_text(quiet).splitlines()[-1] == (
        "1 launch, 1 judged, 0 not judged; vLLM 0.19.1 breaks none of 1 judged launch: "
        "0 findings new with it, 1 with the pinned releases too"
    )
    unknown = judged(copy, base=None, vllm_version="99.0.0", gpu="rtx-4090", paths=("deploy",))
    assert "; nothing can be said of vLLM 99.0.0: " in as_text(unknown).splitlines()[-1]


def test_a_capacity_regression_is_told_in_the_tokens_of_all_replicas(copy: Path) -> None:
    fewer = CHAT.replace("replicas: 2", "replicas: 1")
    commit(copy, {"deploy/chat.yaml": fewer}, "one replica")
    answer = judged(copy, base="origin/main")
    (item,) = [one for one in answer.findings if one.rule == "KVP022"]
    each = tokens(answer)
    assert each[0] == each[1]
    assert item.before == f"{2 * each[0]:,} KV tokens in 2 replicas"
    assert item.seen == f"{each[0]:,} KV tokens"
    # The policy allows 5 % of what both replicas held.
    assert item.limit == f"at least {2 * each[0] * 0.95:,.0f} tokens"


def test_a_file_that_cannot_be_read_where_all_must_be_judged_is_exit_2(copy: Path) -> None:
    commit(copy, {"deploy/chat.yaml": CHAT.replace("          args:\n", "          args: [\n")}, "break")
    answer = judged(copy, base="origin/main")
    assert [miss.path for miss in answer.must_read] == ["deploy/chat.yaml"]
    assert answer.exit_code is ExitCode.CANNOT_JUDGE
    assert judged(copy, base="origin/main", fail_on="never").exit_code is ExitCode.CANNOT_JUDGE


@pytest.mark.parametrize("to", ["deploy/chat-8b.yaml", "helm/chat.yaml", None])
def test_a_launch_that_leaves_a_path_that_must_hold_one_is_news(copy: Path, to: str | None) -> None:
    required = POLICY.replace("require_judged", "require_launch").partition("waivers:")[0]
    commit(copy, {".kvplan.yaml": required}, "one launch is required there")
    git(copy, "branch", "--force", "required")
    assert judged(copy, base=None, gpu="l4").findings == []
    if to is None:
        (copy / "deploy" / "chat.yaml").unlink()
    else:
        (copy / to).parent.mkdir(exist_ok=True)
        git(copy, "mv", "deploy/chat.yaml", to)
    commit(copy, {}, "elsewhere")
    answer = judged(copy, base="required")
    assert [(item.rule, item.status) for item in answer.findings] == [("KVP028", "new")]
    assert (answer.old, answer.exit_code) == ([], ExitCode.NO)
    assert "KVP028" in as_comment(answer, Marker("default", 1))
    # What the merge would be told is what the change was told.
    assert [item.rule for item in judged(copy, base=None, gpu="l4").findings] == ["KVP028"]


def test_a_required_launch_that_the_base_lacks_too_is_no_news(copy: Path) -> None:
    required = POLICY.replace("  - match: legacy/**\n", "  - match: helm/**\n    require_launch: true\n")
    commit(copy, {".kvplan.yaml": required}, "required, and never there")
    git(copy, "branch", "--force", "lacking")
    git(copy, "mv", "deploy/chat.yaml", "deploy/chat-eu.yaml")
    commit(copy, {}, "rename")
    answer = judged(copy, base="lacking")
    assert [(item.rule, item.status) for item in answer.old] == [("KVP028", "unchanged")]
    assert answer.exit_code is ExitCode.OK


BROKEN = CHAT.replace("          args:\n", "          args: [\n")
UNASKED = POLICY.replace("    require_judged: true\n", "")


def test_a_changed_file_that_cannot_be_read_is_no_pass_and_no_removal(copy: Path) -> None:
    git(copy, "checkout", "--quiet", "-b", "asks-nothing")
    commit(copy, {".kvplan.yaml": UNASKED}, "ask for nothing")
    git(copy, "checkout", "--quiet", "-b", "broken")
    commit(copy, {"deploy/chat.yaml": BROKEN}, "break")
    answer = judged(copy, base="asks-nothing")
    assert [miss.path for miss in answer.not_read] == ["deploy/chat.yaml"]
    assert (answer.launches, answer.removed, answer.must_read) == ([], [], [])
    assert answer.exit_code is ExitCode.CANNOT_JUDGE
    line = answer.not_read[0].line
    text = as_text(answer)
    assert f"deploy/chat.yaml:{line}: not read: cannot parse this YAML document" in text
    assert text.endswith("\n0 launches, 0 judged, 0 not judged, 1 not readable, 0 new findings")
    assert as_commands(answer).startswith(f"::error file=deploy/chat.yaml,line={line},")


def test_a_changed_file_that_cannot_be_read_is_listed_beside_one_that_can(copy: Path) -> None:
    git(copy, "checkout", "--quiet", "-b", "asks-nothing")
    commit(copy, {".kvplan.yaml": UNASKED}, "ask for nothing")
    git(copy, "checkout", "--quiet", "-b", "broken")
    (copy / "deploy" / "chat.yaml").rename(copy / "deploy" / "eu.yaml")
    commit(copy, {"deploy/eu.yaml": BROKEN, "legacy/serve.sh": LEGACY + "# moved\n"}, "break")
    answer = judged(copy, base="asks-nothing")
    assert [miss.path for miss in answer.not_read] == ["deploy/eu.yaml"]
    assert [item.change for item in answer.launches] == ["unchanged"]
    assert (answer.exit_code, answer.removed) == (ExitCode.OK, [])
    assert ", 1 not readable, " in as_text(answer)
    assert "\n::notice file=deploy/eu.yaml," in as_commands(answer)
    assert "deploy/eu.yaml" in as_comment(answer, Marker("default", 1))
