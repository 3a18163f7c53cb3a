"""Workloads made of what people have: logs, CSV, Prometheus histograms."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kvplan.errors import InputError
from kvplan.load.compose import Extras
from kvplan.load.lengths import LengthSample
from kvplan.load.source import Made, default_name, workload_from
from kvplan.load.traffic import read_csv, read_requests
from kvplan.load.workload import ClosedLoop, Poisson, Trace, load_workload

DATA = Path(__file__).parents[1] / "data" / "workload"

# vLLM's buckets are 1, 2, 5, 10, ... up to max_model_len (v1/metrics/loggers.py, build_1_2_5_buckets).
HISTOGRAMS = """\
# HELP vllm:request_prompt_tokens Number of prefill tokens processed.
# TYPE vllm:request_prompt_tokens histogram
vllm:request_prompt_tokens_bucket{engine="0",le="100.0",model_name="m"} 0.0
vllm:request_prompt_tokens_bucket{engine="0",le="200.0",model_name="m"} 40.0
vllm:request_prompt_tokens_bucket{engine="0",le="500.0",model_name="m"} 90.0
vllm:request_prompt_tokens_bucket{engine="0",le="1000.0",model_name="m"} 100.0
vllm:request_prompt_tokens_bucket{engine="0",le="+Inf",model_name="m"} 100.0
vllm:request_prompt_tokens_sum{engine="0",model_name="m"} 29000.0
vllm:request_prompt_tokens_count{engine="0",model_name="m"} 100.0
vllm:request_generation_tokens_bucket{engine="0",le="50.0",model_name="m"} 75.0
vllm:request_generation_tokens_bucket{engine="0",le="100.0",model_name="m"} 100.0
vllm:request_generation_tokens_bucket{engine="0",le="+Inf",model_name="m"} 100.0
vllm:request_generation_tokens_sum{engine="0",model_name="m"} 4000.0
vllm:request_generation_tokens_count{engine="0",model_name="m"} 100.0
something_else{le="oops} 3
"""


def made(source: Path | str, **given: object) -> Made:
    extras = {"name": "mine", "source": str(source)} | given
    return workload_from(str(source), Extras(**extras))  # type: ignore[arg-type]


def kvplan(*argv: str) -> str:
    """What the command prints."""
    done = subprocess.run([sys.executable, "-m", "kvplan", *argv], capture_output=True, text=True, check=True)
    return done.stdout


def test_openai_usage_is_found_at_any_depth_and_nowhere_in_the_text() -> None:
    traffic = read_requests(DATA / "openai.jsonl")

    assert [(r.input_len, r.output_len) for r in traffic.requests] == [
        (120, 30),
        (900, 60),
        (120, 30),
        (2000, 500),
    ]
    assert traffic.skipped == 2  # the embedding and the error
    assert [r.time_s for r in traffic.requests] == [1722500000, 1722500002, 1722500006, 1722500010]


def test_an_access_log_with_token_counts() -> None:
    traffic = read_requests(DATA / "access.log")

    assert [(r.input_len, r.output_len, r.session) for r in traffic.requests] == [
        (210, 40, "a"),
        (260, 35, "a"),
        (700, 20, "b"),
    ]
    assert traffic.skipped == 2


# 2026-11-29 18:04:36 UTC is 1,795,975,476: 20,786 days after 1970-01-01, and 65,076 s.
AT = 20_786 * 86_400 + 65_076
COMBINED = '10.0.0.7 - - [29/Nov/2026:18:04:36 +0000] "POST /v1/completions HTTP/1.1" 200 512'


@pytest.mark.parametrize(
    ("line", "time_s"),
    [
        # Apache's combined format with two fields of nginx's or Apache's own log_format behind it.
        (
            f'{COMBINED} "-" "Mozilla/5.0 (X11; KHTML, like Gecko)" prompt_tokens=12 completion_tokens=30',
            AT,
        ),
        (
            COMBINED.replace("18:04:36 +0000", "19:34:36 +0130")
            + ' {"usage": {"prompt_tokens": 12, "completion_tokens": 30}}',
            AT,
        ),
        ("2026-11-29T18:04:36Z INFO prompt_tokens=12 completion_tokens=30", AT),
        ("2026-11-29T20:04:36.5+02:00 prompt_tokens=12 completion_tokens=30", AT + 0.5),
        # Python's logging: a comma before the milliseconds, no zone.
        ("2026-11-29 18:04:36,250 INFO prompt_tokens: 12, completion_tokens: 30", AT + 0.25),
        ("[2026-11-29 18:04:36 +0000] prompt_tokens=12 completion_tokens=30", AT),
        ("time=2026-11-29 18:04:36 prompt_tokens=12 completion_tokens=30", AT),
        ('time="29/Nov/2026:18:04:36 +0000" prompt_tokens=12 completion_tokens=30', AT),
        ('{"time": "2026-11-29T18:04:36Z", "prompt_tokens": 12, "completion_tokens": 30}', AT),
        ('{"ts": 1795975476, "prompt_tokens": 12, "completion_tokens": 30}', AT),
        ('{"ts": 1795975476500, "prompt_tokens": 12, "completion_tokens": 30}', AT + 0.5),
        ('{"ts": 1795975476500000, "prompt_tokens": 12, "completion_tokens": 30}', AT + 0.5),
        ('{"ts": 1795975476500000000, "prompt_tokens": 12, "completion_tokens": 30}', AT + 0.5),
        ("prompt_tokens=12 completion_tokens=30", None),
        ("29/Foo/2026:18:04:36 +0000 prompt_tokens=12 completion_tokens=30", None),
        ("2026-13-41T18:04:36Z prompt_tokens=12 completion_tokens=30", None),
    ],
)
def test_times_as_logs_write_them(tmp_path: Path, line: str, time_s: float | None) -> None:
    path = tmp_path / "log"
    path.write_text(line + "\n")
    (request,) = read_requests(path).requests
    assert (request.input_len, request.output_len) == (12, 30)
    assert request.time_s == (None if time_s is None else pytest.approx(time_s, abs=1e-3))


def test_an_access_log_gives_its_rate(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    path.write_text(
        "".join(
            f'10.0.0.7 - - [29/Nov/2026:23:59:{50 + 5 * i:02} +0000] "POST /v1/completions HTTP/1.1" 200 512 '
            f'"-" "curl/8" prompt_tokens={i + 1} completion_tokens=30\n'
            for i in range(2)
        )
        + '10.0.0.7 - - [30/Nov/2026:00:00:10 +0000] "POST /v1/completions HTTP/1.1" 200 9 "-" "curl/8" '
        "prompt_tokens=9 completion_tokens=30\n"
        + '10.0.0.7 - - [30/Nov/2026:00:00:11 +0000] "GET /metrics HTTP/1.1" 200 9 "-" "curl/8"\n'
    )
    found = made(path, arrivals="trace")
    assert found.workload.arrivals == Trace((0.0, 5.0, 20.0))
    assert made(path, arrivals="poisson").workload.arrivals == Poisson(0.1)  # two gaps in 20 s
    assert "1 lines without the tokens of a prompt and of an answer were left out" in found.notes


@pytest.mark.parametrize(
    "line",
    [
        '10.0.0.7 - frank [29/Nov/2026:18:04:36 +0000] "POST /v1/chat/completions HTTP/1.1" 200 2326',
        '10.0.0.7 - - [29/Nov/2026:18:04:36 +0000] "POST /v1/completions HTTP/2.0" 200 2326 "-" "curl/8.5"',
        'INFO:     127.0.0.1:50832 - "POST /v1/completions HTTP/1.1" 200 OK',
        '2026-11-29T18:04:36Z 10.0.0.7 "POST /v1/completions HTTP/1.1" 200 rt=0.412',
    ],
)
def test_an_access_log_without_tokens_says_what_is_missing(tmp_path: Path, line: str) -> None:
    path = tmp_path / "access.log"
    path.write_text(f"{line}\n{line}\n")
    with pytest.raises(InputError) as raised:
        made(path)
    assert raised.value.message == (
        f"{path}: 2 lines of a web server's access log, which counts bytes and no tokens"
    )
    assert "prompt_tokens=N completion_tokens=M" in str(raised.value.hint)
    assert "kvplan workload http://SERVER" in str(raised.value.hint)


def test_a_log_becomes_pairs_with_counts() -> None:
    workload = made(DATA / "openai.jsonl").workload

    assert set(workload.samples) == {LengthSample(120, 30, 2), LengthSample(900, 60), LengthSample(2000, 500)}
    assert workload.longest_total_len == 2500
    assert workload.arrivals == ClosedLoop()


def test_users_longest_request_and_shared_prefix_are_taken_from_the_command_line() -> None:
    workload = made(DATA / "openai.jsonl", users=16, max_model_len=8192, shared_prefix_tokens=64).workload

    assert workload.concurrency == 16
    assert workload.longest_total_len == 8192
    assert workload.shared_prefix_tokens == 64


def test_conversations_of_a_log_are_counted() -> None:
    # Session a has two requests, b one: 1.5 on average, rounded to 2.
    assert made(DATA / "access.log").workload.turns == 2


def test_arrival_rate_and_trace_come_from_the_logs_times() -> None:
    # Four requests over 10 s: three gaps.
    assert made(DATA / "openai.jsonl", arrivals="poisson").workload.arrivals == Poisson(0.3)
    trace = made(DATA / "openai.jsonl", arrivals="trace").workload
    assert trace.arrivals == Trace((0.0, 2.0, 6.0, 10.0))
    assert [s.input_len for s in trace.samples] == [120, 900, 120, 2000]


def test_arrivals_need_times(tmp_path: Path) -> None:
    assert made(DATA / "access.log", arrivals="trace").workload.arrivals == Trace((0.0, 1.0, 2.0))
    path = tmp_path / "log"
    path.write_text("prompt_tokens=1 completion_tokens=2\n" * 2 + DATA.joinpath("access.log").read_text())
    with pytest.raises(InputError, match="2 of 5 requests have no time"):
        made(path, arrivals="poisson")


def test_the_columns_of_known_traces_are_found() -> None:
    traffic = read_csv(DATA / "azure.csv")

    assert [(r.input_len, r.output_len) for r in traffic.requests][:2] == [(374, 44), (396, 109)]
    assert made(DATA / "azure.csv", arrivals="trace").workload.arrivals == Trace(
        (0.0, 4.315, 4.542, 4.71, 5.893)
    )


def test_other_columns_are_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("when,in,out\n1,10,20\n2,30,40\n3,,\n")

    assert len(read_csv(path, "in", "out").requests) == 2
    with pytest.raises(InputError, match="no column has a known name") as caught:
        read_csv(path)
    assert caught.value.hint == "name it with --input-column; columns: when, in, out"


def test_a_cell_that_is_no_number_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("prompt_tokens,completion_tokens\n1,2\n3,many\n")

    with pytest.raises(InputError, match=r"mine\.csv:3: completion_tokens is 'many'"):
        read_csv(path)


def test_histograms_become_percentiles_at_their_bucket_bounds(tmp_path: Path) -> None:
    path = tmp_path / "metrics.txt"
    path.write_text(HISTOGRAMS)

    workload = made(path).workload

    assert workload.input_len_quantile(0.4) == 200
    assert workload.input_len_quantile(0.9) == 500
    assert workload.longest_input_len == 1000
    assert workload.mean_input_len == pytest.approx(290, rel=2e-3)
    assert workload.mean_output_len == pytest.approx(40, rel=2e-3)
    assert min(s.input_len for s in workload.samples) > 100  # nothing was counted up to 100
    assert workload.longest_total_len == 1100


def test_the_histograms_of_a_real_server() -> None:
    # Scraped from vLLM 0.32.0 after 38 requests of 500 tokens; 32 answers of 100 tokens, 6 of 32 (a warm-up).
    workload = made(DATA / "vllm-0.32.0-metrics.txt").workload

    assert workload.mean_input_len == pytest.approx(500, rel=2e-3)
    assert workload.mean_output_len == pytest.approx((32 * 100 + 6 * 32) / 38, rel=5e-3)
    assert (workload.longest_input_len, workload.longest_output_len) == (500, 100)


def test_requests_above_the_last_bucket_need_a_longest(tmp_path: Path) -> None:
    path = tmp_path / "metrics.txt"
    path.write_text(HISTOGRAMS.replace('le="+Inf",model_name="m"} 100.0', 'le="+Inf",model_name="m"} 101.0'))

    with pytest.raises(InputError, match="longer than the histogram's last bucket"):
        made(path)
    assert made(path, max_model_len=4096).workload.longest_total_len == 4096


def test_one_model_is_chosen_of_several(tmp_path: Path) -> None:
    path = tmp_path / "metrics.txt"
    path.write_text(HISTOGRAMS + HISTOGRAMS.replace('model_name="m"', 'model_name="other"'))

    with pytest.raises(InputError, match="several models: m, other"):
        made(path)
    extras = Extras(name="x", source="y")
    assert workload_from(str(path), extras, model="other").workload.longest_input_len == 1000


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("nothing of use\n", "no line has the tokens"),
        ("# HELP x y\n# TYPE x counter\nx 1\n", "no vllm:request_prompt_tokens"),
        ("prompt_tokens,completion_tokens\n0,0\n", "no row has a prompt and an answer"),
    ],
)
def test_what_is_no_traffic_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "x.txt"
    path.write_text(text)

    with pytest.raises(InputError, match=complaint):
        made(path)


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    output = tmp_path / "workload.yaml"

    printed = kvplan("workload", str(DATA / "openai.jsonl"), "--output", str(output), "--concurrency", "4")

    assert "note: 4 requests" in printed
    workload = load_workload(output)
    assert workload.total_len_quantile(1.0) == 2500
    assert workload.concurrency == 4
    assert "say" not in output.read_text()  # no word of a prompt or an answer


def test_a_workload_file_is_not_overwritten_unasked(tmp_path: Path) -> None:
    output = tmp_path / "workload.yaml"
    output.write_text("mine\n")
    argv = [sys.executable, "-m", "kvplan", "workload", str(DATA / "openai.jsonl"), "--output", str(output)]

    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, output.read_text()) == (2, "", "mine\n")
    assert done.stderr == f"kvplan: --output {output} is there already (--replace overwrites it)\n"

    done = subprocess.run([*argv, "--replace"], capture_output=True, text=True, check=True)
    assert done.stderr == f"kvplan: wrote {output}\n"
    assert load_workload(output).name == "openai"


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("http://127.0.0.1:8765", "127.0.0.1-8765"),
        ("https://user:secret@llm.example/metrics?x=1", "llm.example"),
        ("http://[::1]:8000/", "1-8000"),
        ("logs/of.monday.jsonl", "of.monday"),
    ],
)
def test_a_workload_is_named_after_its_file_or_server(source: str, name: str) -> None:
    assert default_name(source) == name


def test_without_a_source_the_presets_are_listed() -> None:
    assert [line.split()[0] for line in kvplan("workload").splitlines()[1:]] == [
        "agent",
        "articles-32x1500x512",
        "batch",
        "chat",
        "long-document",
        "rag",
    ]
