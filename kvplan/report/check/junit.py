"""JUnit XML: a suite a file, a case a launch."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from kvplan.report.check.safe import clean, clean_path, message_of, told_of
from kvplan.report.check.words import known_before

if TYPE_CHECKING:
    from junitparser import TestCase, TestSuite

    from kvplan.gate.found import LaunchFound
    from kvplan.gate.result import Checked, Finding, LaunchResult


def as_junit(checked: Checked) -> str:
    """The run; with nothing found, one suite of no tests.

    A finding that makes the gate say no is a failure; all others of the launch stand in the output, waived
    ones with the day that the waiver ends. What could not be judged is skipped, and an error where the policy
    asks that it can be.
    """
    from junitparser import JUnitXml

    document = JUnitXml("kvplan check")
    suites = [_suite(path, checked) for path in _files(checked)] or [_new_suite("kvplan check", [])]
    for suite in suites:
        document.add_testsuite(suite)
    document.update_statistics()  # type: ignore[no-untyped-call]  # the package is typed, this method is not
    # Jenkins' schema has no such sum for the whole. Nothing ran: a time would be noise in every comparison.
    document._elem.attrib.pop("skipped", None)  # noqa: SLF001  as below
    for element in document._elem.iter():  # noqa: SLF001  the one way to both kinds of element
        if "time" in element.attrib or element.tag == "testcase":
            element.set("time", "0")
    text = io.BytesIO()
    document.write(text, pretty=True)
    return text.getvalue().decode().replace("##[", "##&#91;")  # a runner's log takes it for a command


def _files(checked: Checked) -> list[str]:
    paths = [item.launch.path for item in checked.launches]
    paths += [finding.path for finding in _with_waived(checked)]
    paths += [miss.path for miss in checked.not_read]
    return sorted(set(paths))


def _with_waived(checked: Checked) -> list[Finding]:
    return [*checked.findings, *checked.old, *checked.waived]


def _new_suite(name: str, cases: list[TestCase]) -> TestSuite:
    from junitparser import TestSuite

    suite = TestSuite(name)
    suite.add_testcases(cases)
    return suite


def _suite(path: str, checked: Checked) -> TestSuite:
    ordinals: dict[str, int] = {}
    cases = [
        _launch_case(item, _name(item.launch, ordinals), checked)
        for item in checked.launches
        if item.launch.path == path
    ]
    for finding in _with_waived(checked):
        if finding.path == path and finding.launch is None:
            case = _new_case(f"{finding.rule} {finding.name}", path)
            _tell(case, [finding], checked)
            cases.append(case)
    for miss in checked.not_read:
        if miss.path == path:
            case = _new_case(f"line {miss.line}", path)
            _skip(case, f"could not be read: {clean(miss.reason)}")
            cases.append(case)
    return _new_suite(clean_path(path), cases)


def _name(launch: LaunchFound, ordinals: dict[str, int]) -> str:
    """Model and the launch's own name; no line, so that a host keeps the history of the case."""
    name = f"{clean(launch.model or 'unknown model')}@{clean_path(launch.path)}"
    if launch.name:
        name += f":{clean(launch.name)}"
    count = ordinals[name] = ordinals.get(name, 0) + 1
    return name if count == 1 else f"{name}#{count}"


def _new_case(name: str, path: str) -> TestCase:
    from junitparser import TestCase

    return TestCase(name, classname=clean_path(path))


def _launch_case(item: LaunchResult, name: str, checked: Checked) -> TestCase:
    from junitparser import Error

    launch = item.launch
    case = _new_case(name, launch.path)
    _tell(case, [one for one in _with_waived(checked) if one.launch is launch], checked)
    if item.not_judged is None:
        return case
    reason = f"{clean_path(launch.path)}:{launch.line}: not judged: {clean(item.not_judged)}"
    if item.must_be_judged:
        case.result += [Error(reason, "not-judged")]
    elif not case.result:
        _skip(case, reason)
    else:  # what its flags alone show is a failure all the same
        case.system_out = "\n".join(filter(None, (case.system_out, reason)))
    return case


def _skip(case: TestCase, reason: str) -> None:
    from junitparser import Skipped

    case.result = [Skipped(reason)]


def _tell(case: TestCase, findings: list[Finding], checked: Checked) -> None:
    from junitparser import Failure

    failing = checked.failing
    told: list[str] = []
    for finding in findings:
        holds = finding.waiver is not None and not finding.waiver.expired
        said = message_of(finding) if holds else told_of(finding)
        text = f"{clean_path(finding.path)}:{finding.line}: {said}"
        if any(finding is other for other in failing):
            case.result += [Failure(text, finding.rule)]
        elif finding.waiver is not None and not finding.waiver.expired:
            told.append(f"{finding.rule} (waived until {clean(finding.waiver.until)}): {text}")
        else:
            known = f", {known_before(checked)}" if finding.status == "unchanged" else ""
            told.append(f"{finding.rule} ({finding.severity}{known}): {text}")
    if told:
        case.system_out = "\n".join(told)
