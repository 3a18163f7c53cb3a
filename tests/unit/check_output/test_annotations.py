"""GitHub's workflow commands, and where they go."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from kvplan.errors import InputError
from kvplan.gate.result import Checked, LaunchResult
from kvplan.report.check import show
from kvplan.report.check.github import as_commands, command
from kvplan.report.check.show import default_format, parse_outputs
from tests.unit.check_output.conftest import checked, finding, launch, numbers

if TYPE_CHECKING:
    from pathlib import Path


def test_a_finding_is_an_annotation_on_the_line_of_its_flag(broken: Checked) -> None:
    assert as_commands(broken) == (
        "::error file=deploy/chat.yaml,line=19,endLine=19,title=KVP001 will-not-start::"
        "will not start on NVIDIA L4; passes with --max-model-len 30000\n"
        "::notice file=deploy/odd.yaml,line=2,endLine=2,title=kvplan check%3A not readable::"
        "could not be read: cannot parse this YAML document"
    )


def test_what_ends_a_property_or_a_line_is_escaped() -> None:
    text = command("error", "50% of\r\nall: a, b", file="a,b:c%.sh", title="x\ny")
    assert text == "::error file=a%2Cb%3Ac%25.sh,title=x%0Ay::50%25 of%0D%0Aall: a, b"


def test_hostile_names_make_one_command_a_line_and_no_second_one(hostile: Checked) -> None:
    lines = as_commands(hostile).splitlines()
    assert [line.partition(" ")[0] for line in lines] == ["::error", "::notice"]
    for line in lines:
        properties = line.partition(" ")[2].partition("::")[0]
        keys = [part.partition("=")[0] for part in properties.split(",")]
        assert keys == ["file", "line", "endLine", "title"]
        assert "hf_abc" not in line
        assert "\x1b" not in line


def test_ten_errors_and_ten_warnings_are_shown_errors_first_and_the_rest_is_counted() -> None:
    item = LaunchResult(launch(), change="changed", now=numbers())
    warnings = [finding(item.launch, severity="warning", rule="KVP002") for _ in range(12)]
    errors = [finding(item.launch) for _ in range(15)]
    lines = as_commands(checked(item, findings=[*warnings, *errors])).splitlines()
    assert [line.split()[0] for line in lines[:20]] == ["::error"] * 10 + ["::warning"] * 10
    assert lines[20:] == ["kvplan check: 7 more; the job summary lists all of them"]


def test_a_launch_that_had_to_be_judged_is_an_error_at_its_line() -> None:
    item = LaunchResult(launch(), not_judged="model unknown: MODEL", must_be_judged=True)
    assert as_commands(checked(item)).startswith("::error file=deploy/chat.yaml,line=12,endLine=12,")


def test_annotations_go_to_stderr_and_every_finding_to_the_page_of_the_job(
    broken: Checked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("### another step\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    many = dataclasses.replace(
        broken, findings=[finding(broken.launches[0].launch, message=f"number {n}") for n in range(12)]
    )
    stdout = show.show(many, "github", [], tag="default", root=tmp_path)
    assert "::" not in stdout
    assert capsys.readouterr().err.count("::error ") == 10
    text = summary.read_text()
    assert text.startswith("### another step\n### kvplan check fails")
    assert all(f"number {n};" in text for n in range(12))


def test_annotations_are_the_default_in_github_actions_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_format() == "text"
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    assert default_format() == "github"
    monkeypatch.setenv("GITHUB_ACTIONS", "1")
    assert default_format() == "text"


def test_several_formats_are_written_at_once(broken: Checked, tmp_path: Path) -> None:
    outputs = parse_outputs(["sarif=a.sarif", "junit=b.xml", "gitlab=c.json", "markdown=d=e.md"])
    stdout = show.show(broken, "json", outputs, tag="default", root=tmp_path)
    assert stdout.startswith("{")
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {
        "a.sarif",
        "b.xml",
        "c.json",
        "d=e.md",
    }
    assert (tmp_path / "d=e.md").read_text().startswith("<!-- kvplan-check tag=default run=1001 -->\n")


def test_a_quiet_comment_is_an_empty_file(tmp_path: Path) -> None:
    item = LaunchResult(launch(), change="unchanged", now=numbers(), before=numbers())
    show.show(checked(item), "text", parse_outputs(["markdown=d.md"]), tag="default", root=tmp_path)
    assert (tmp_path / "d.md").read_bytes() == b""


@pytest.mark.parametrize("text", ["sarif", "sarif=", "html=x", "=x", ""])
def test_an_output_is_a_format_and_a_file(text: str) -> None:
    with pytest.raises(InputError, match="not FORMAT=FILE"):
        parse_outputs([text])


def test_a_file_that_cannot_be_written_is_told(broken: Checked, tmp_path: Path) -> None:
    outputs = parse_outputs([f"sarif={tmp_path}/none/a.sarif"])
    with pytest.raises(InputError, match="cannot be written"):
        show.show(broken, "text", outputs, tag="default", root=tmp_path)
