"""The page as a file: whole in itself, well linked, told from any journal."""

from __future__ import annotations

import base64
import copy
import hashlib
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kvplan.errors import MissingDependencyError
from kvplan.report.html import render_html

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvplan.report.tune import TuneReport

Lines = list[dict[str, Any]]
GOLDEN = Path(__file__).parents[2] / "golden/html/measured.txt"
LOAD_FIGURES = (
    "output_throughput", "request_throughput", "p50_ttft_ms", "p99_ttft_ms", "p50_tpot_ms", "p99_tpot_ms",
    "p99_e2el_ms", "preemptions", "peak_running", "peak_waiting", "peak_kv_usage", "peak_memory_bytes",
)  # fmt: skip


def as_interrupted(lines: Lines) -> Lines:
    """The journal as it was when the run was interrupted during its fifth trial."""
    end = next(i for i, line in enumerate(lines) if line["kind"] == "outcome" and not line["finished"])
    return lines[: end + 1]


def concluded(lines: Lines, **answer: Any) -> dict[str, Any]:
    """The outcome of a run that learnt nothing, but for what is given."""
    outcome = copy.deepcopy(lines[-1])
    for name, value in outcome["recommendation"].items():
        outcome["recommendation"][name] = [] if isinstance(value, list) else None
    outcome["recommendation"] |= {"met": False, "is_confirmed": False, "launch_noise": 0.05, **answer}
    return outcome


def test_nothing_in_the_page_refers_to_anything_outside_it(page: str, parse: Callable[[str], Any]) -> None:
    loads = {"src", "srcset", "href", "xlink:href", "action", "formaction", "data", "poster", "background"}
    for tag, attributes in parse(page).elements:
        for name in loads & attributes.keys():
            assert (attributes[name] or "").startswith(("#", "data:,")), (tag, attributes)
    style = page[page.index("<style>") : page.index("</style>")]
    assert "@import" not in style
    assert "url(" not in style
    assert set(re.findall(r"url\(([^)]{1,4})", page)) == {"#fig"}


def test_the_policy_allows_the_page_s_own_script_and_no_other(page: str, parse: Callable[[str], Any]) -> None:
    found = parse(page)
    assert [tag for tag, _ in found.elements].count("script") == 1
    digest = base64.b64encode(hashlib.sha256("".join(found.scripts).encode()).digest()).decode()
    policies = [a["content"] for t, a in found.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert len(policies) == 1
    assert policies[0].startswith("default-src 'none'; ")
    assert f"script-src 'sha256-{digest}';" in policies[0]


def test_ids_are_unique_and_every_reference_finds_its_own(page: str, parse: Callable[[str], Any]) -> None:
    elements = parse(page).elements
    ids = [a["id"] for _, a in elements if "id" in a]
    assert len(ids) == len(set(ids))
    wanted = [word for _, a in elements for word in (a.get("aria-labelledby") or "").split()]
    wanted += [a["href"][1:] for _, a in elements if (a.get("href") or "").startswith("#")]
    wanted += [a["data-copies"] for _, a in elements if "data-copies" in a]
    wanted += re.findall(r"url\(#([^)]+)\)", page)
    assert len(wanted) > 60
    assert set(wanted) <= set(ids)


def test_every_figure_is_an_image_with_a_name_and_a_description(
    page: str, parse: Callable[[str], Any]
) -> None:
    elements = parse(page).elements
    images = [a for tag, a in elements if tag == "svg"]
    # Ledger, boundary, curve, Pareto front, effects, and memory of the six trials that left samples.
    assert len(images) == 5 + 6
    assert all(a["role"] == "img" and len(a["aria-labelledby"].split()) == 2 for a in images)
    assert not re.search(r"#0101[0-9a-f]{2}", page), "a colour of the drawing is not the page's variable"


MEASURED = ("boundary", "curve", "pareto", "effects", "memory", "predictions", "failures", "launches")
"""The parts that the journal alone decides: the memory model, which is fitted anew, is in the others."""


def test_the_page_says_what_the_run_found(
    page: str, parse: Callable[[str], Any], pytestconfig: pytest.Config
) -> None:
    parts = (re.search(rf'<section id="{name}".*?</section>', page, re.DOTALL) for name in MEASURED)
    pieces = [" ".join(t.split()) for part in parts if part for t in parse(part[0]).texts]
    text = "\n".join(piece for piece in pieces if piece) + "\n"
    if pytestconfig.getoption("--update-golden"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def test_the_verdict_comes_first(page: str, parse: Callable[[str], Any]) -> None:
    text = parse(page[page.index("<main") :]).text
    assert text.startswith("Verdict Meets the target: 8 users at once. output tokens/s 1,253")


def test_the_same_run_gives_the_same_page(report: TuneReport, run: Path, page: str) -> None:
    assert render_html(report, run) == page


def test_a_copy_of_the_journal_alone_is_told_and_says_that_the_samples_are_missing(
    report: TuneReport, tmp_path: Path, parse: Callable[[str], Any]
) -> None:
    text = parse(render_html(report, tmp_path)).text
    assert "Memory over time n/a: no memory samples beside this journal." in text


def test_an_interrupted_run_is_told(
    lines: Lines, told: Callable[[Lines], TuneReport], tmp_path: Path, parse: Callable[[str], Any]
) -> None:
    text = parse(render_html(told(as_interrupted(lines)), tmp_path)).text
    assert "No setting was shown to meet the target of 8 users at once. The nearest is below." in text
    assert "not confirmed from a cold start: the run was interrupted" in text
    assert f"Not finished; it goes on with: kvplan tune --resume {lines[0]['run']}" in text
    assert "Nearest, not recommended as it is" in text


def test_a_run_of_which_nothing_finished_is_told(
    lines: Lines, told: Callable[[Lines], TuneReport], tmp_path: Path, parse: Callable[[str], Any]
) -> None:
    text = parse(render_html(told(lines[:1]), tmp_path)).text
    assert "Nothing was shown to serve 8 users at once." in text
    assert "Launches n/a: nothing was launched." in text
    assert "nothing started: " in text
    assert "Ready to paste n/a: nothing is recommended." in text


def test_a_run_of_failures_alone_is_told(
    lines: Lines, told: Callable[[Lines], TuneReport], tmp_path: Path, parse: Callable[[str], Any]
) -> None:
    header, started, probe = lines[:3]
    trial = probe["trial"]
    trial |= {"status": "infeasible", "failure": "unsupported", "evidence": "no such kernel", "loads": []}
    trial["launch"] |= {"outcome": "failed", "failure": "unsupported", "peak_bytes": None}
    end: dict[str, Any] = {"gpu_memory_utilization": 0.9, "kv_cache_bytes": None, "trial": 1}
    end |= {"failure": "unsupported", "evidence": "no such kernel", "log_path": "trials/1/vllm.log"}
    outcome = concluded(lines, failures=[end], reasons=["the probe did not start"])
    kept = [line | {"seq": seq} for seq, line in enumerate((header, started, probe, outcome))]
    text = parse(render_html(told(kept), tmp_path)).text
    assert "Trial 1: unsupported no such kernel Log: trials/1/vllm.log" in text
    assert "Nothing was shown to serve 8 users at once. the probe did not start" in text


def test_what_is_unknown_is_said_to_be_and_never_0(
    lines: Lines, told: Callable[[Lines], TuneReport], tmp_path: Path, parse: Callable[[str], Any]
) -> None:
    lines = copy.deepcopy(lines)
    answer = lines[-1]["recommendation"]
    for line in lines:
        for load in line.get("trial", {}).get("loads", []):
            load.update(dict.fromkeys(LOAD_FIGURES))
        if line["kind"] == "trial":
            line["trial"]["launch"]["peak_bytes"] = None
    for point in (answer["measured"], *answer["curve"]):
        point.update({name: None for name in LOAD_FIGURES if name in point})
    answer |= {"headroom_bytes": None, "headroom_utilization": None, "requests_at_longest": None}
    text = parse(render_html(told(lines), tmp_path)).text
    unknown = (
        "output tokens/s n/a TTFT p99 n/a TPOT p99 n/a requests of the longest length the KV cache holds n/a"
    )
    assert f"{unknown} distance to the highest survivor n/a highest memory n/a" in text
    assert "4 n/a n/a n/a n/a n/a n/a n/a 8 n/a" in text, "the curve's rows"
    assert "not measured" in text, "the ledger's remainder without a peak"


@pytest.mark.parametrize("package", ["jinja2", "matplotlib"])
def test_a_missing_package_is_named_with_its_extra(
    package: str, report: TuneReport, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=package) as caught:
        render_html(report, run)
    assert caught.value.hint == "pip install 'kvplan-tuner[report]'"


def kvplan(*words: str) -> subprocess.CompletedProcess[str]:
    """The command line, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "kvplan", *words], capture_output=True, text=True, check=False
    )


def test_the_command_writes_the_page(run: Path, tmp_path: Path, page: str) -> None:
    target = tmp_path / "report.html"
    assert kvplan("report", str(run), "--format", "html", "--output", str(target)).returncode == 0
    assert target.read_text() == page + "\n"


def test_a_page_that_cannot_be_written_is_refused(run: Path, tmp_path: Path) -> None:
    target = tmp_path / "no folder" / "report.html"
    done = kvplan("report", str(run), "--format", "html", "--output", str(target))
    assert done.returncode == 2
    assert done.stderr.startswith(f"kvplan: --output {target}: No such file or directory")
