"""SARIF, JUnit and GitLab Code Quality, against their published schemas."""

from __future__ import annotations

import dataclasses
import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import xmlschema
from junitparser import JUnitXml

from kvplan.gate.result import Checked, LaunchResult, WaiverNote
from kvplan.report.check.gitlab import as_code_quality
from kvplan.report.check.identity import fingerprints
from kvplan.report.check.junit import as_junit
from kvplan.report.check.rule_pages import rule_pages
from kvplan.report.check.sarif import as_sarif
from kvplan.report.check.show import render
from tests.unit.check_output.conftest import checked, finding, launch, numbers

SCHEMAS = Path(__file__).parents[2] / "data/schemas"


def lines(path: str, line: int) -> str | None:
    """One file is known: line 19 of the deployment."""
    known = (path, line) == ("deploy/chat.yaml", 19)
    return "            - --max-model-len=65536  \\" if known else None


def sarif_of(answer: Checked) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(as_sarif(answer, tag="default", line_text=lines))
    schema = json.loads((SCHEMAS / "sarif-2.1.0.json").read_text())
    jsonschema.Draft4Validator(schema, format_checker=jsonschema.FormatChecker()).validate(document)
    return document


def junit_of(answer: Checked) -> ET.Element:
    text = as_junit(answer)
    xmlschema.XMLSchema(SCHEMAS / "junit-10.xsd").validate(text)
    return ET.fromstring(text)  # noqa: S314  our own output


def code_quality_of(answer: Checked) -> list[dict[str, Any]]:
    report: list[dict[str, Any]] = json.loads(as_code_quality(answer))
    for item in report:
        assert set(item) == {"description", "check_name", "fingerprint", "severity", "location"}
        assert item["severity"] in {"info", "minor", "major", "critical", "blocker"}
        assert set(item["location"]) == {"path", "lines"}
        assert not item["location"]["path"].startswith("./")
    return report


@pytest.mark.parametrize("name", ["broken", "nothing_found", "hostile"])
def test_every_answer_is_valid_in_every_format(name: str, request: pytest.FixtureRequest) -> None:
    answer = request.getfixturevalue(name)
    texts = [
        json.dumps(sarif_of(answer)),
        json.dumps(code_quality_of(answer)),
        ET.tostring(junit_of(answer), encoding="unicode"),
    ]
    for text in texts:
        assert "hf_abc" not in text
        assert "\x1b" not in text
        assert "\\u001b" not in text


# SARIF


def test_a_result_is_the_flag_s_own_words_without_the_continuation_mark(broken: Checked) -> None:
    (result,) = sarif_of(broken)["runs"][0]["results"]
    place = result["locations"][0]["physicalLocation"]
    assert place["artifactLocation"] == {"uri": "deploy/chat.yaml"}
    # `            - --max-model-len=65536`: 14 characters before the flag, 21 of it, the end is exclusive.
    assert place["region"] == {"startLine": 19, "startColumn": 15, "endLine": 19, "endColumn": 36}
    assert (result["ruleId"], result["level"], result["baselineState"]) == ("KVP001", "error", "new")


def test_what_is_waived_is_left_out_and_what_the_base_has_stays() -> None:
    item = LaunchResult(launch(), change="changed", now=numbers())
    answer = checked(
        item,
        old=[finding(item.launch, rule="KVP002", status="unchanged")],
        waived=[finding(item.launch, rule="KVP003")],
    )
    results = sarif_of(answer)["runs"][0]["results"]
    assert [(result["ruleId"], result["baselineState"]) for result in results] == [("KVP002", "unchanged")]


def test_every_rule_is_described_and_none_is_a_security_alert(nothing_found: Checked) -> None:
    run = sarif_of(nothing_found)["runs"][0]
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == [page.id for page in rule_pages()]
    assert len(rules) >= 5
    for rule in rules:
        assert rule["help"]["markdown"].startswith(f"# {rule['id']}")
        assert all(0 < len(rule[name]["text"]) <= 1024 for name in ("shortDescription", "fullDescription"))
        assert "security-severity" not in rule["properties"]
    assert run["automationDetails"] == {"id": "kvplan/default/"}
    assert run["results"] == []


def test_without_a_base_a_result_is_not_called_new(broken: Checked) -> None:
    (result,) = sarif_of(dataclasses.replace(broken, base=None))["runs"][0]["results"]
    assert "baselineState" not in result


def test_a_path_is_a_relative_uri() -> None:
    of = launch("./deploy/ü %20 #.yaml")
    (result,) = sarif_of(checked(LaunchResult(of), findings=[finding(of)]))["runs"][0]["results"]
    uri = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert uri == "deploy/%C3%BC%20%2520%20%23.yaml"


def test_lines_are_read_below_the_root_only(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "outside.sh").write_text("a very long secret line of another place\n")
    (tmp_path / "root/link.sh").symlink_to(tmp_path / "outside.sh")
    for path in ("../outside.sh", "link.sh", str(tmp_path / "outside.sh")):
        of = launch(path)
        answer = checked(LaunchResult(of), findings=[finding(of, line=1, column=1, end_line=1)])
        text = render(answer, "sarif", tag="default", root=tmp_path / "root")
        assert "endColumn" not in text


# Fingerprints


def test_a_fingerprint_knows_no_line_and_tells_duplicates_apart() -> None:
    one, moved = finding(launch(line=12)), finding(launch(line=80), line=90)
    assert fingerprints([one]) == fingerprints([moved])
    both = fingerprints([one, moved])
    assert both[0] == fingerprints([one])[0]
    assert len(set(both)) == 2
    others = [
        dataclasses.replace(one, rule="KVP002"),
        dataclasses.replace(one, path="other.yaml"),
        dataclasses.replace(one, flag="max_num_seqs"),
        finding(launch(name="other")),
        finding(launch(model="other")),
    ]
    assert len(set(fingerprints([one, *others]))) == 6


# GitLab


def test_the_rule_stands_in_front_of_the_description(broken: Checked) -> None:
    (item,) = code_quality_of(broken)
    assert item["description"] == ("KVP001: will not start on NVIDIA L4; passes with --max-model-len 30000")
    assert item["location"] == {"path": "deploy/chat.yaml", "lines": {"begin": 19}}
    assert item["severity"] == "critical"


def test_no_finding_is_an_empty_array(nothing_found: Checked) -> None:
    assert as_code_quality(nothing_found) == "[]"


# JUnit


def test_a_suite_a_file_and_a_case_a_launch(broken: Checked) -> None:
    root = junit_of(broken)
    assert {name: root.get(name) for name in ("tests", "failures", "errors", "time")} == {
        "tests": "5", "failures": "1", "errors": "0", "time": "0",
    }  # fmt: skip
    suites = [suite.get("name") for suite in root]
    assert suites == [
        "deploy/chat.yaml", "deploy/draft.yaml", "deploy/embed.yaml", "deploy/odd.yaml", "legacy/serve.sh",
    ]  # fmt: skip
    assert [suite.get("skipped") for suite in root] == ["0", "1", "0", "1", "0"]
    case = root[0][0]
    assert case.get("name") == "meta-llama/Llama-3.1-8B-Instruct@deploy/chat.yaml:chat"
    assert case.get("time") == "0"
    failure = case[0]
    assert (failure.tag, failure.get("type")) == ("failure", "KVP001")
    assert failure.get("message") == (
        "deploy/chat.yaml:19: will not start on NVIDIA L4; passes with --max-model-len 30000"
    )
    skipped = root[1][0][0]
    assert skipped.get("message") == "deploy/draft.yaml:7: not judged: unknown value of max_num_seqs"
    waived = root[4][0][0]
    assert waived.tag == "system-out"
    assert (waived.text or "").startswith("KVP001 (waived until 2027-02-28): legacy/serve.sh:4: ")


def test_what_does_not_fail_the_gate_is_no_failure() -> None:
    item = LaunchResult(launch(), change="changed", now=numbers())
    answer = checked(item, findings=[finding(item.launch, severity="warning", rule="KVP002")])
    assert junit_of(answer).get("failures") == "0"
    assert junit_of(dataclasses.replace(answer, fail_on="warning")).get("failures") == "1"


def test_a_failing_launch_that_could_not_be_judged_says_both() -> None:
    of = launch()
    answer = checked(LaunchResult(of, not_judged="model unknown"), findings=[finding(of)])
    (suite,) = junit_of(answer)
    assert (suite.get("failures"), suite.get("skipped")) == ("1", "0")
    (told,) = suite.iter("system-out")
    assert str(told.text).endswith(": not judged: model unknown")


def test_a_launch_that_had_to_be_judged_is_an_error() -> None:
    item = LaunchResult(launch(), not_judged="model unknown", must_be_judged=True)
    assert junit_of(checked(item)).get("errors") == "1"


def test_launches_of_one_name_have_cases_of_their_own() -> None:
    items = [LaunchResult(launch(line=line), now=numbers()) for line in (1, 9)]
    names = [case.get("name") for case in junit_of(checked(*items))[0]]
    assert names == [f"meta-llama/Llama-3.1-8B-Instruct@deploy/chat.yaml:chat{end}" for end in ("", "#2")]


def test_nothing_found_is_a_suite_of_no_tests(nothing_found: Checked) -> None:
    root = junit_of(nothing_found)
    assert [(suite.get("name"), suite.get("tests")) for suite in root] == [("kvplan check", "0")]


def test_a_finding_of_the_policy_is_a_case_of_its_file() -> None:
    answer = checked(findings=[finding(None, rule="KVP020", name="unused-waiver")])
    (suite,) = junit_of(answer)
    assert (suite.get("name"), suite[0].get("name")) == (".kvplan.yaml", "KVP020 unused-waiver")


def test_a_junit_reader_reads_it_back(broken: Checked) -> None:
    document = JUnitXml.fromstring(as_junit(broken))
    assert (document.tests, document.failures, document.skipped) == (5, 1, 2)


def test_an_expired_waiver_is_told_with_its_day_in_every_format() -> None:
    late = WaiverNote(until="2026-10-31", reason="the machine is replaced", expired=True)
    chat = LaunchResult(launch(), change="changed", now=numbers(), before=numbers())
    answer = checked(
        chat,
        findings=[finding(chat.launch, waiver=late)],
        old=[finding(chat.launch, rule="KVP006", status="unchanged", waiver=late)],
    )
    said = "waiver expired on 2026-10-31"
    results = sarif_of(answer)["runs"][0]["results"]
    assert [said in one["message"]["text"] for one in results] == [True, True]
    assert [said in one["description"] for one in code_quality_of(answer)] == [True, True]
    (case,) = junit_of(answer)[0]
    assert [said in (one.get("message") or one.text or "") for one in case] == [True, True]
    for form in ("text", "markdown", "github", "json"):
        text = render(answer, form, tag="default", root=Path())
        assert said in text or '"expired": true' in text, form


def test_what_a_waiver_covers_is_shown_with_its_day_where_the_host_does_not_take_it_for_a_problem(
    broken: Checked,
) -> None:
    for form in ("text", "markdown", "junit", "json"):
        assert "2027-02-28" in render(broken, form, tag="default", root=Path()), form
    for form in ("sarif", "gitlab", "github"):
        assert "legacy/serve.sh" not in render(broken, form, tag="default", root=Path()), form


def test_what_the_policy_wants_judged_is_an_error_whatever_findings_fail() -> None:
    item = LaunchResult(launch(), not_judged="model unknown", must_be_judged=True)
    answer = checked(item, fail_on="never")
    assert answer.verdict == "cannot_judge"
    assert junit_of(answer)[0][0][0].tag == "error"
