"""A process that speaks like vLLM's API server, in whatever mood is asked for; standard library only.

Only for what real vLLM can't be made to do on demand. Takes vLLM's own arguments (`--port`, `--model`,
`--served-model-name`; the rest is accepted), the key from VLLM_API_KEY, and a script from FAKE_VLLM, a JSON object:

  start_s       seconds until it is ready (0.2)
  ttft_ms, itl_ms   of a streamed completion (20, 5)
  log           a file that is printed at start, line by line
  mood          one of MOODS below
  memory_bytes  how much the mood `eats_memory` touches
  kv_bytes      touched at start, like vLLM's zero-filled cache
  worker        true: the child has a child of its own, and each dies with a word of vLLM's when its child is gone
"""

# ruff: noqa: E501, D102  vLLM's lines are as long as they are; methods do what their names say

from __future__ import annotations

import contextlib
import enum
import json
import mmap
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path
from typing import Any

SCRIPT: dict[str, Any] = json.loads(os.environ.get("FAKE_VLLM", "{}"))
KEY = os.environ.get("VLLM_API_KEY")

READY_LOG = """\
(APIServer pid=1) INFO 11-29 15:05:13 [api_utils.py:347]   █▄█▀ █     █     █     █  version 0.32.0
(APIServer pid=1) INFO 11-29 15:05:29 [model.py:2152] Using max model len 2048
(EngineCore pid=2) INFO 11-29 15:05:46 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: model='x'
(Worker pid=3) INFO 11-29 15:06:01 [cpu_worker.py:260] Explicitly set (0.25/8.21) GiB for KV cache on node 0.
(EngineCore pid=2) INFO 11-29 15:06:01 [kv_cache_utils.py:2327] CPU KV cache size: 131,072 tokens, Maximum \
concurrency for 2,048 tokens per request: 64.00x
INFO:     Application startup complete.
"""
FATAL_AT_START = """\
(EngineCore pid=2) ERROR 11-29 15:06:01 [core.py:1510] EngineCore failed to start.
(EngineCore pid=2) ERROR 11-29 15:06:01 [core.py:1510] Traceback (most recent call last):
(EngineCore pid=2) ERROR 11-29 15:06:01 [core.py:1510]   File "vllm/v1/core/kv_cache_utils.py", line 1, in check
(EngineCore pid=2) ERROR 11-29 15:06:01 [core.py:1510] ValueError: To serve at least one request with the model's \
max seq len (32768), (0.06 GiB KV cache is needed, which is larger than the available KV cache memory (0.02 GiB). \
Based on the available memory, the estimated maximum model length is 8192. Try increasing
"""
FATAL_UNDER_LOAD = """\
(EngineCore pid=2) ERROR 11-29 15:07:01 [core.py:1512] EngineCore encountered a fatal error.
(EngineCore pid=2) ERROR 11-29 15:07:01 [core.py:1512] Traceback (most recent call last):
(EngineCore pid=2) ERROR 11-29 15:07:01 [core.py:1512]   File "vllm/v1/worker/gpu_model_runner.py", line 1, in \
execute_model
(EngineCore pid=2) ERROR 11-29 15:07:01 [core.py:1512] torch.OutOfMemoryError: CUDA out of memory. Tried to \
allocate 1.25 GiB. GPU 0 has a total capacity of 23.52 GiB of which 312.00 MiB is free. Including non-PyTorch \
memory, this process has 23.20 GiB memory in use.
"""


class Mood(enum.StrEnum):
    """What goes wrong."""

    FINE = "fine"
    NEVER_READY = "never_ready"  # /health stays 503
    HANGS_AT_START = "hangs_at_start"  # no socket, no word
    TRACEBACK_THEN_HANGS = "traceback_then_hangs"  # the cause is printed, the process lives on
    DIES_WITH_LOG = "dies_with_log"  # prints `log` and exits 1
    OTHER_NAME = "other_name"  # somebody else's server
    IGNORES_SIGTERM = "ignores_sigterm"
    LEADER_DIES = "leader_dies"  # 0.5 s after it was ready, leaving its child
    DIES_ON_REQUEST = "dies_on_request"  # in the middle of the first stream
    FATAL_ON_REQUEST = "fatal_on_request"  # prints an out-of-memory traceback, answers 500s, lives on
    ANSWERS_500 = "answers_500"
    STALLS = "stalls"  # after the third chunk of a stream
    HANGS_UNDER_LOAD = "hangs_under_load"  # after the first request nothing is answered any more
    FLOODS_LOG = "floods_log"
    GARBAGE_METRICS = "garbage_metrics"
    EATS_MEMORY = "eats_memory"  # touches memory_bytes before it is ready


MOOD = Mood(SCRIPT.get("mood", "fine"))


class State:
    """What the handler threads share."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.ready = False
        self.hung = threading.Event()
        self.lock = threading.Lock()
        self.running = 0
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.finished = 0


class Handler(BaseHTTPRequestHandler):
    """The routes that kvplan uses."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a stream's events go out at once, not 40 ms later
    state: State

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base class names it so
        print(f'INFO:     {self.client_address[0]} - "{format % args}"', flush=True)

    def do_GET(self) -> None:
        if self.state.hung.is_set():
            time.sleep(3600)
        if self.path == "/health":
            well = self.state.ready and MOOD is not Mood.NEVER_READY
            self.answer(200 if well else 503, b"")
        elif self.path == "/metrics":
            self.answer(200, self.metrics().encode())
        elif self.path == "/v1/models" and self.authorized():
            name = "somebody-else" if MOOD is Mood.OTHER_NAME else self.state.model
            self.answer(200, json.dumps({"object": "list", "data": [{"id": name}]}).encode())
        elif self.path == "/v1/models":
            self.answer(401, b'{"error":"Unauthorized"}')
        else:
            self.answer(404, b"")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        if not self.authorized():
            self.answer(401, b'{"error":"Unauthorized"}')
            return
        if MOOD is Mood.FATAL_ON_REQUEST:
            print(FATAL_UNDER_LOAD, flush=True)
        if MOOD in {Mood.ANSWERS_500, Mood.FATAL_ON_REQUEST}:
            self.answer(500, b'{"error":{"message":"EngineCore encountered an issue"}}')
            return
        if MOOD is Mood.HANGS_UNDER_LOAD:
            self.state.hung.set()
            time.sleep(3600)
        self.complete(body)

    def authorized(self) -> bool:
        return KEY is None or self.headers.get("Authorization") == f"Bearer {KEY}"

    def complete(self, body: dict[str, Any]) -> None:
        prompt = body.get("prompt", "")
        num_prompt, num_output = len(prompt), int(body.get("max_tokens", 16))
        with self.state.lock:
            self.state.running += 1
        try:
            if body.get("stream"):
                self.stream(body, num_prompt, num_output)
            else:
                self.answer(
                    200, json.dumps(self.chunk("x" * num_output, self.usage(num_prompt, num_output))).encode()
                )
        finally:
            with self.state.lock:
                self.state.running -= 1
        with self.state.lock:
            self.state.prompt_tokens += num_prompt
            self.state.generation_tokens += num_output
            self.state.finished += 1

    def stream(self, body: dict[str, Any], num_prompt: int, num_output: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for index in range(num_output):
            time.sleep(SCRIPT.get("ttft_ms" if index == 0 else "itl_ms", 20 if index == 0 else 5) / 1000)
            if index == 3 and MOOD is Mood.STALLS:
                time.sleep(3600)
            if index == 3 and MOOD is Mood.DIES_ON_REQUEST:
                os._exit(1)
            self.event(self.chunk("x"))
        if body.get("stream_options", {}).get("include_usage"):
            last = self.chunk("", self.usage(num_prompt, num_output))
            self.event({**last, "choices": []})
        self.event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def event(self, value: dict[str, Any] | str) -> None:
        text = value if isinstance(value, str) else json.dumps(value)
        data = f"data: {text}\n\n".encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def chunk(self, text: str, usage: dict[str, int] | None = None) -> dict[str, Any]:
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": None}
        record = {
            "id": "cmpl-fake",
            "object": "text_completion",
            "model": self.state.model,
            "choices": [choice],
        }
        return record if usage is None else {**record, "usage": usage}

    @staticmethod
    def usage(num_prompt: int, num_output: int) -> dict[str, int]:
        total = num_prompt + num_output
        return {"prompt_tokens": num_prompt, "completion_tokens": num_output, "total_tokens": total}

    def metrics(self) -> str:
        if MOOD is Mood.GARBAGE_METRICS:
            return "<html>\x00 502 bad gateway {{{ vllm:num_requests_running"
        labels = f'{{engine="0",model_name="{self.state.model}"}}'
        values = {
            "vllm:num_requests_running": ("gauge", self.state.running),
            "vllm:num_requests_waiting": ("gauge", 0),
            "vllm:kv_cache_usage_perc": ("gauge", 0.25),
            "vllm:num_preemptions_total": ("counter", 0),
            "vllm:prefix_cache_queries_total": ("counter", self.state.prompt_tokens),
            "vllm:prefix_cache_hits_total": ("counter", 0),
            "vllm:prompt_tokens_total": ("counter", self.state.prompt_tokens),
            "vllm:generation_tokens_total": ("counter", self.state.generation_tokens),
        }
        lines = []
        for name, (kind, value) in values.items():
            lines += [f"# TYPE {name} {kind}", f"{name}{labels} {float(value)}"]
        lines += ["# TYPE vllm:cache_config_info gauge"]
        lines += [
            'vllm:cache_config_info{block_size="128",cache_dtype="auto",engine="0",num_gpu_blocks="1024"} 1.0'
        ]
        return "\n".join(lines) + "\n"

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Server(ThreadingHTTPServer):
    """Without noise about clients that went away."""

    daemon_threads = True
    request_queue_size = 512

    def handle_error(self, *_: Any) -> None:
        pass


def child() -> None:
    """Stands for EngineCore: holds shared memory, outlives its parent."""
    segment = shared_memory.SharedMemory(create=True, size=1 << 20)
    resource_tracker.unregister(segment._name, "shared_memory")  # type: ignore[attr-defined]
    semaphore = multiprocessing.get_context("spawn").Semaphore()
    name = semaphore._semlock.name  # type: ignore[attr-defined]
    resource_tracker.unregister(name, "semaphore")
    print(f"child {os.getpid()} holds {segment.name} holds sem.{name.removeprefix('/')}", flush=True)
    if MOOD is Mood.IGNORES_SIGTERM:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if SCRIPT.get("worker"):
        worker = subprocess.Popen([sys.executable, __file__, "--worker"])
        worker.wait()
        die(
            "(EngineCore pid=2) ERROR 11-29 15:07:01 [multiproc_executor.py:1] Worker proc VllmWorker-0 died "
            "unexpectedly, shutting down executor."
        )
    while True:
        time.sleep(3600)


def die(last_words: str) -> None:
    """As vLLM's processes do when the next one down the tree is gone."""
    print(last_words, flush=True)
    os._exit(1)


def touch(size: int) -> mmap.mmap:
    """Memory that is really there."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for offset in range(0, size, 4096):
        memory[offset] = 1
    return memory


def flood() -> None:
    """As fast as it goes, lines of 5 MB among them."""
    line = b"WARNING 11-29 15:07:01 [noise.py:1] " + b"x" * 200 + b"\n"
    block = line * 4096 + b"y" * 5_000_000 + b"\n"
    with contextlib.suppress(OSError):
        while True:
            os.write(1, block)


def option(name: str, default: str) -> str:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


def watch_child(process: subprocess.Popen[bytes]) -> None:
    """End with vLLM's own words when the child that stands for EngineCore ends."""
    process.wait()
    die(
        "(APIServer pid=1) ERROR 11-29 15:07:01 [core_client.py:1] Engine core proc EngineCore_DP0 died "
        "unexpectedly, shutting down client."
    )


def start_child() -> None:
    """The process that stands for EngineCore; it may have one for the worker."""
    process = subprocess.Popen([sys.executable, __file__, "--child"], start_new_session=True)
    if SCRIPT.get("worker"):
        threading.Thread(target=watch_child, args=[process], daemon=True).start()


def main() -> None:
    print("fake vLLM", os.getpid(), flush=True)
    if MOOD is Mood.IGNORES_SIGTERM:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    start_child()
    if "log" in SCRIPT:
        print(Path(SCRIPT["log"]).read_text(), flush=True)
    if MOOD is Mood.DIES_WITH_LOG:
        sys.exit(1)
    if MOOD is Mood.TRACEBACK_THEN_HANGS:
        print(FATAL_AT_START, flush=True)
    if MOOD in {Mood.TRACEBACK_THEN_HANGS, Mood.HANGS_AT_START}:
        time.sleep(3600)
    kept = [touch(int(SCRIPT.get(name, 0)) or 4096) for name in ("kv_bytes",)]
    if MOOD is Mood.EATS_MEMORY:
        kept.append(touch(int(SCRIPT["memory_bytes"])))
    if MOOD is Mood.FLOODS_LOG:
        threading.Thread(target=flood, daemon=True).start()
    state = State(option("--served-model-name", "model"))
    Handler.state = state
    server = Server((option("--host", "127.0.0.1"), int(option("--port", "8000"))), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    time.sleep(SCRIPT.get("start_s", 0.2))
    if "log" not in SCRIPT:
        print(READY_LOG, flush=True)
    state.ready = True
    if MOOD is Mood.LEADER_DIES:
        time.sleep(0.5)
        os._exit(1)
    while True:
        time.sleep(3600)


def run() -> None:
    """As the server, or as one of its children."""
    if "--worker" in sys.argv:
        time.sleep(3600)
    elif "--child" in sys.argv:
        child()
    else:
        main()


if __name__ == "__main__":
    run()
