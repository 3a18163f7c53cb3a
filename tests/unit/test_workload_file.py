"""The workload file: what it may say, and how it complains."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from kvplan.errors import InputError, UnknownNameError
from kvplan.load.lengths import LengthSample
from kvplan.load.workload import ClosedLoop, Poisson, Trace, load_workload
from kvplan.load.workload_file import preset_paths
from kvplan.tune.identity import workload_from_record, workload_record

if TYPE_CHECKING:
    from pathlib import Path

HEAD = "schema: kvplan.workload/1\n"
FIXED = "lengths: {input: 100, output: 50}\n"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return path


def test_fixed_lengths_and_users(tmp_path: Path) -> None:
    workload = load_workload(written(tmp_path, HEAD + FIXED + "arrivals: {users: 8, think_time_s: 1.5}\n"))

    assert workload.samples == (LengthSample(100, 50, 1000),)
    assert workload.arrivals == ClosedLoop(8, 1.5)
    assert (workload.name, workload.lengths_from, workload.dependence) == ("mine", "fixed", None)


def test_samples_with_counts_and_a_longest_request(tmp_path: Path) -> None:
    text = (
        "lengths:\n  samples: [[100, 50], [900, 10, 3], [5, 5, 0]]\n  longest: {input: 4000, total: 4096}\n"
    )
    workload = load_workload(written(tmp_path, HEAD + text))

    assert workload.samples == (LengthSample(100, 50), LengthSample(900, 10, 3))
    assert (workload.longest_input_len, workload.longest_total_len) == (4000, 4096)
    assert workload.mean_input_len == (100 + 3 * 900) / 4


def test_percentiles_of_prompts_and_answers(tmp_path: Path) -> None:
    text = (
        "lengths:\n  input: {min: 50, p50: 800, p95: 3000, p99.9: 8000, max: 8192, mean: 1100}\n"
        "  output: {p50: 200, max: 1024}\n"
    )
    workload = load_workload(written(tmp_path, HEAD + text))

    assert workload.input_len_quantile(0.95) == 3000
    assert workload.output_len_quantile(0.5) == 200
    assert workload.total_len_quantile(0.5) == 1000  # the median prompt with the median answer
    assert (workload.longest_input_len, workload.longest_total_len) == (8192, 9216)
    assert workload.dependence == "comonotone"


def test_no_request_is_longer_than_the_stated_longest(tmp_path: Path) -> None:
    text = "lengths: {input: {p50: 800, max: 8192}, output: {p50: 200, max: 1024}, longest: {total: 8192}}\n"
    workload = load_workload(written(tmp_path, HEAD + text))

    assert workload.longest_total_len == 8192
    assert max(s.total_len for s in workload.samples) <= 8192
    assert workload.longest_input_len == 8191


@pytest.mark.parametrize(
    ("text", "arrivals"),
    [
        ("arrivals: {requests_per_s: 2.5}\n", Poisson(2.5)),
        ("arrivals: {times_s: [10, 10.5, 12]}\n", Trace((0.0, 0.5, 2.0))),
        ("arrivals: {think_time_s: 3}\n", ClosedLoop(None, 3.0)),
        ("", ClosedLoop()),
    ],
)
def test_arrivals(tmp_path: Path, text: str, arrivals: object) -> None:
    assert load_workload(written(tmp_path, HEAD + FIXED + text)).arrivals == arrivals


def test_logprobs_are_part_of_the_worst_case(tmp_path: Path) -> None:
    workload = load_workload(written(tmp_path, HEAD + FIXED + "logprobs: 5\n"))
    assert (workload.logprobs, workload.longest().logprobs) == (5, 5)
    assert workload_from_record(workload_record(workload)).logprobs == 5
    # Absent where nobody asks: journals from before the key existed go on.
    assert "logprobs" not in workload_record(load_workload(written(tmp_path, HEAD + FIXED)))


def test_conversations_and_a_shared_prefix(tmp_path: Path) -> None:
    text = HEAD + FIXED + "conversation: {turns: 6}\nshared_prefix_tokens: 64\n"
    workload = load_workload(written(tmp_path, text))

    assert (workload.turns, workload.shared_prefix_tokens) == (6, 64)


@pytest.mark.parametrize(
    ("text", "line", "complaint", "hint"),
    [
        ("", 1, "the file is empty", "kvplan.workload/1"),
        ("lengths: 3\n", 1, "schema is missing", "kvplan.workload/1"),
        ("schema: kvplan.workload/2\n", 1, "'kvplan.workload/2' is not kvplan.workload/1", None),
        (HEAD + "lenghts: 3\n", 2, "unknown key 'lenghts'", "did you mean lengths?"),
        (HEAD + FIXED + "arrivals: {user: 8}\n", 3, "unknown key 'arrivals.user'", "did you mean users?"),
        (HEAD + "name: x\n", 1, "lengths is missing", "input and output"),
        (HEAD + "lengths: {input: 100}\n", 2, "lengths: output is missing", "samples"),
        (HEAD + "lengths: {input: 0, output: 5}\n", 2, "lengths.input: 0 is out of range", "1 to"),
        (HEAD + "lengths: {input: 1.5, output: 5}\n", 2, "lengths.input: 1.5 is not a whole number", None),
        (HEAD + "lengths: {input: many, output: 5}\n", 2, "lengths.input: should be a number", None),
        (HEAD + "lengths: {input: .nan, output: 5}\n", 2, "lengths.input", None),
        (HEAD + "lengths:\n  input: {p50: 9}\n  output: 5\n", 3, "lengths.input: max is missing", "guessed"),
        (
            HEAD + "lengths:\n  input:\n    p50: 900\n    p95: 800\n    max: 1000\n  output: 5\n",
            5,
            "lengths.input.p95: 800 is below the length before it, 900",
            None,
        ),
        (
            HEAD + "lengths:\n  input: {max: 100, mean: 400}\n  output: 5\n",
            3,
            "lengths.input.mean: mean 400 contradicts the percentiles",
            "between 1 and 100",
        ),
        (
            HEAD + "lengths:\n  samples:\n  - [1, 2]\n  - [1]\n",
            5,
            "lengths.samples[1]: should be [input",
            None,
        ),
        (HEAD + "lengths:\n  samples: []\n", 3, "lengths.samples: should be a list with at least one", None),
        (HEAD + "lengths: {samples: [[1, 1]], input: 5}\n", 2, "lengths.input: cannot stand beside", None),
        (HEAD + FIXED + FIXED, 3, "lengths is there twice", None),
        (HEAD + FIXED + "logprobs: 21\n", 3, "logprobs", None),
        (HEAD + FIXED + "shared_prefix_tokens: 100\n", 3, "100 tokens are shared, but the shortest", "raise"),
        (HEAD + FIXED + "arrivals: {users: 1, requests_per_s: 2}\n", 3, "arrivals: should have one of", None),
        (HEAD + FIXED + "arrivals: {times_s: [2, 1]}\n", 3, "should not go back in time", None),
        (HEAD + FIXED + "conversation: {}\n", 3, "conversation: turns is missing", None),
        (HEAD + "a: [\n", 3, "not YAML", None),
    ],
)
def test_a_malformed_file_is_refused_with_its_line(
    tmp_path: Path, text: str, line: int, complaint: str, hint: str | None
) -> None:
    path = written(tmp_path, text)

    with pytest.raises(InputError) as caught:
        load_workload(path)

    assert caught.value.message.startswith(f"{path}:{line}: ")
    assert complaint in caught.value.message
    assert hint is None or hint in (caught.value.hint or "")


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError) as caught:
        load_workload("chatt")

    assert caught.value.hint == "did you mean chat?"


def test_a_missing_file_is_not_taken_for_a_preset() -> None:
    with pytest.raises(InputError, match=r"no file traffic\.yaml"):
        load_workload("traffic.yaml")


def test_the_users_own_preset_wins(tmp_path: Path) -> None:
    (tmp_path / "workloads").mkdir()
    (tmp_path / "workloads" / "chat.yaml").write_text(HEAD + FIXED)

    assert load_workload("chat", str(tmp_path)).mean_input_len == 100
    assert "rag" in preset_paths(str(tmp_path))


@pytest.mark.parametrize("name", ["chat", "rag", "agent", "long-document", "batch", "articles-32x1500x512"])
def test_presets_can_be_read_and_say_where_they_are_from(name: str) -> None:
    workload = load_workload(name)

    assert workload.name == name
    assert workload.source
    assert workload.longest_total_len <= 32_768


def test_the_articles_load_is_32_users_with_1500_tokens_in_and_512_out() -> None:
    workload = load_workload("articles-32x1500x512")

    assert workload.concurrency == 32
    assert {(s.input_len, s.output_len) for s in workload.samples} == {(1500, 512)}


def test_a_workload_of_fixed_lengths_needs_no_heavy_import() -> None:
    # `kvplan estimate` makes one on every start.
    code = (
        "import sys; from kvplan.load.workload import Workload;"
        "Workload.fixed(1500, 512).total_len_quantile(0.95);"
        "print([m for m in ('yaml', 'pydantic', 'numpy', 'aiohttp', 'httpx') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"
