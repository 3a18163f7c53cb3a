"""/metrics of vLLM, of every version that named things differently, and of servers that answer nonsense."""

# ruff: noqa: D102  http.server's names

from __future__ import annotations

import contextlib
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvplan.engine.metrics import MetricsSnapshot, parse_metrics, scrape

if TYPE_CHECKING:
    from collections.abc import Iterator

METRICS = Path(__file__).parents[1] / "data" / "metrics"


def test_a_real_scrape_of_0_32() -> None:
    snapshot = parse_metrics((METRICS / "0.32.txt").read_text("utf-8"))
    assert (snapshot.running, snapshot.waiting, snapshot.preemptions_total) == (0, 0, 0)
    assert snapshot.kv_cache_usage == 0
    # 48 equal prompts of 500 tokens; all but the first find the 3 whole blocks of 128 tokens.
    assert snapshot.prompt_tokens_total == snapshot.prefix_cache_queries_total == 48 * 500
    assert snapshot.prefix_cache_hits_total == 47 * 3 * 128
    assert snapshot.generation_tokens_total == 2747
    assert snapshot.cache_int("num_gpu_blocks") == 1024
    assert snapshot.cache_int("kv_cache_size_tokens") == 1024 * 128
    assert snapshot.cache_int("num_gpu_blocks_override") is None  # the label says "None"
    assert snapshot.cache_int("no_such_label") is None


def test_the_names_of_0_7_to_0_11() -> None:
    text = """\
# TYPE vllm:gpu_cache_usage_perc gauge
vllm:gpu_cache_usage_perc{model_name="m"} 0.25
# TYPE vllm:gpu_prefix_cache_queries_total counter
vllm:gpu_prefix_cache_queries_total{model_name="m"} 100.0
# TYPE vllm:gpu_prefix_cache_hits_total counter
vllm:gpu_prefix_cache_hits_total{model_name="m"} 40.0
"""
    snapshot = parse_metrics(text)
    assert snapshot.kv_cache_usage == 0.25
    assert (snapshot.prefix_cache_queries_total, snapshot.prefix_cache_hits_total) == (100, 40)


def test_engines_are_summed_and_the_fullest_cache_is_told() -> None:
    text = "\n".join(
        f'vllm:{name}{{engine="{engine}"}} {value}'
        for name, values in {"num_requests_running": (3, 5), "kv_cache_usage_perc": (0.2, 0.9)}.items()
        for engine, value in enumerate(values)
    )
    snapshot = parse_metrics(text)
    assert (snapshot.running, snapshot.kv_cache_usage) == (8, 0.9)


@pytest.mark.parametrize(
    "text", ["", "<html>502</html>", "\0\0", "vllm:num_requests_running", "a{b=", "vllm:x NaN"]
)
def test_garbage_is_unknown(text: str) -> None:
    assert parse_metrics(text) == MetricsSnapshot()


def test_what_came_before_the_garbage_holds() -> None:
    assert parse_metrics("vllm:num_requests_running 3\n{{{ nonsense").running == 3


def test_not_a_number_is_unknown() -> None:
    assert parse_metrics("vllm:kv_cache_usage_perc NaN\n").kv_cache_usage is None


@pytest.mark.parametrize("value", ["-5", "1e308", "+Inf", "1e16"])
def test_a_number_that_nothing_counts_is_unknown(value: str) -> None:
    text = f"vllm:num_requests_running {value}\nvllm:kv_cache_usage_perc 50\n"

    assert parse_metrics(text) == MetricsSnapshot()


@pytest.mark.parametrize("blocks", ["9" * 5000, "9" * 17, "-1", "\u0661\u0666", "1.5"])
def test_a_number_of_blocks_that_no_cache_has_is_unknown(blocks: str) -> None:
    shot = parse_metrics(f'vllm:cache_config_info{{num_gpu_blocks="{blocks}",block_size="16"}} 1\n')

    assert (shot.cache_int("num_gpu_blocks"), shot.cache_int("block_size")) == (None, 16)


@given(st.text())
def test_no_answer_breaks_the_parser(text: str) -> None:
    parse_metrics(text)


class Answers(BaseHTTPRequestHandler):
    """200 and a number for the right key, 500 at /broken, endless at /endless."""

    def do_GET(self) -> None:
        if self.headers.get("Authorization") != "Bearer key":
            self.send_error(401)
        elif self.path == "/broken/metrics":
            self.send_error(500)
        else:
            self.send_response(200)
            self.end_headers()
            line = b"vllm:num_requests_running 2\n"
            with contextlib.suppress(OSError):  # the client may have had enough
                self.wfile.write(line * (10**6 if self.path == "/endless/metrics" else 1))

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def base_url() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_scrape_needs_the_key_and_an_answer(base_url: str) -> None:
    snapshot = scrape(base_url, "key")
    assert snapshot is not None
    assert snapshot.running == 2
    assert scrape(base_url, "wrong") is None
    assert scrape(f"{base_url}/broken", "key") is None
    assert scrape(f"{base_url}/endless", "key") is None  # 28 MB
    assert scrape("http://127.0.0.1:1", "key") is None
    assert scrape("no url at all", "key") is None
