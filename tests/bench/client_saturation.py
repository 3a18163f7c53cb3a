"""Is the load client the bottleneck? 256 streams of 64 chunks, one every 30 ms, from a local server.

The server sends each chunk at its own time, whatever the client does, so the ideal chunk rate is 256 / 30 ms.
The two clients take turns on the same server; the server has one core, the client the other. Each first sends
a warm-up of as many requests, which opens its connections (opening 256 at once takes as long as the machine's
connect() calls take, for any client); --cold leaves that out.

    python -m tests.bench.client_saturation [--rounds 6] [--streams 256] [--chunks 64] [--gap-ms 30]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.bench.load_clients import Client, Job

_TOKEN = (
    b'data: {"id":"cmpl-8c1f0d3e","object":"text_completion","created":1,"model":"m","choices":[{"index":0,'
    b'"text":" a","logprobs":null,"finish_reason":null,"stop_reason":null}],"usage":null}\n\n'
)
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


class Server:
    """Streams at a fixed pace and does nothing else, so that it takes little of the machine.

    It keeps a digest of every request, to show that both clients send the same.
    """

    def __init__(self, gap_s: float) -> None:
        self._gap_s = gap_s
        self._digests: list[str] = []
        self._late_s: list[float] = []

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection until it is closed."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                report = re.match(rb"GET /report/(\d+)", head)
                if report is not None:
                    self._report(writer, last=int(report[1]))
                    continue
                length = re.search(rb"(?i)content-length: *(\d+)", head)
                if length is None:
                    writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                    continue
                await self._complete(json.loads(await reader.readexactly(int(length[1]))), writer)
        writer.close()

    async def _complete(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        start = time.perf_counter()
        asked = json.dumps([body["prompt"], body["max_tokens"], body["ignore_eos"], body["stream"]])
        self._digests.append(hashlib.sha256(asked.encode()).hexdigest())
        writer.write(_HEAD)
        for number in range(1, body["max_tokens"] + 1):
            due = start + number * self._gap_s
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            self._late_s.append(time.perf_counter() - due)
            writer.write(b"%x\r\n%b\r\n" % (len(_TOKEN), _TOKEN))
        counts = {"prompt_tokens": len(body["prompt"]), "completion_tokens": body["max_tokens"]}
        usage = json.dumps({"choices": [], "usage": counts | {"total_tokens": 0}})
        end = f"data: {usage}\n\ndata: [DONE]\n\n".encode()
        writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(end), end))
        await writer.drain()

    def _report(self, writer: asyncio.StreamWriter, last: int) -> None:
        """What was asked (the last so many requests), and how late the server itself was."""
        late = sorted(self._late_s)
        digests = sorted(self._digests[-last:])
        answer = json.dumps(
            {
                "requests": len(digests),
                "digest": hashlib.sha256("".join(digests).encode()).hexdigest(),
                "late_p99_ms": 1000 * late[int(0.99 * len(late))] if late else 0.0,
            }
        )
        self._digests, self._late_s = [], []
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(answer)}\r\nContent-Type: application/json\r\n\r\n"
        writer.write((head + answer).encode())


def serve(gap_ms: float) -> None:
    """Serve until killed; the port is printed."""

    async def run() -> None:
        server = await asyncio.start_server(
            Server(gap_ms / 1000).connected, "127.0.0.1", 0, limit=64 << 20, backlog=1024
        )
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    asyncio.run(run())


def main() -> int:
    """Print the table; 1 if a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--chunks", type=int, default=64)
    parser.add_argument("--gap-ms", type=float, default=30.0)
    parser.add_argument("--cold", action="store_true", help="no warm-up: opening connections counts too")
    options = parser.parse_args()
    if options.serve:
        serve(options.gap_ms)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        return compare(options, Path(folder))


def compare(options: argparse.Namespace, folder: Path) -> int:
    """Run both clients in alternation and judge kvplan's."""
    from kvplan.engine.demo_model import make_demo_model

    tokenizer = make_demo_model(folder)
    command = [
        sys.executable,
        "-m",
        "tests.bench.client_saturation",
        "--serve",
        "--gap-ms",
        str(options.gap_ms),
    ]
    server = subprocess.Popen(["/usr/bin/taskset", "-c", "0", *command], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    url = f"http://127.0.0.1:{int(server.stdout.readline())}"
    core = 1 if (os.cpu_count() or 1) > 1 else None
    clients = {"kvplan": Client("kvplan", core), "vllm": Client("vllm", core)}
    try:
        rows = [
            row
            for number in range(options.rounds)
            for row in _round(number, clients, options, url, str(tokenizer))
        ]
    finally:
        for client in clients.values():
            client.close()
        server.kill()
        server.wait()
    return _judge(rows, options)


def _round(
    number: int, clients: dict[str, Client], options: argparse.Namespace, url: str, tokenizer: str
) -> list[dict[str, float | str]]:
    import urllib.request

    job = Job(
        url=url,
        model="m",
        tokenizer=tokenizer,
        api_key="k",
        concurrency=options.streams,
        num_requests=options.streams,
        input_len=64,
        output_len=options.chunks,
        first_token_id=32,
        last_token_id=230,
        salt=number,
        warmup_requests=0 if options.cold else options.streams,
    )
    rows: list[dict[str, float | str]] = []
    digests = set()
    for name in ("kvplan", "vllm") if number % 2 == 0 else ("vllm", "kvplan"):
        result = clients[name].run(job)
        with urllib.request.urlopen(f"{url}/report/{options.streams}") as answer:  # noqa: S310  our own server
            seen = json.load(answer)
        digests.add(seen["digest"])
        # Ideal: every stream takes chunks x gap.
        ideal_s = options.chunks * options.gap_ms / 1000
        row = {
            "client": name,
            "rate_share": result["total_output_tokens"]
            / result["duration"]
            / (options.streams * options.chunks / ideal_s),
            "p50_ttft_ms": result["p50_ttft_ms"],
            "p99_ttft_ms": result["p99_ttft_ms"],
            "p50_tpot_ms": result["p50_tpot_ms"],
            "cpu_s": result["cpu_s"],
            "server_late_ms": seen["late_p99_ms"],
            "failed": result["failed"],
        }
        rows.append(row)
        print(
            "  ".join(f"{k} {v if isinstance(v, str) else round(v, 3)}" for k, v in row.items()), flush=True
        )
    if len(digests) != 1:
        raise SystemExit("the clients did not send the same requests")
    return rows


def _judge(rows: list[dict[str, float | str]], options: argparse.Namespace) -> int:
    def median(client: str, figure: str) -> float:
        return statistics.median(float(row[figure]) for row in rows if row["client"] == client)

    print(f"\n{options.streams} streams of {options.chunks} chunks at {options.gap_ms:g} ms, ", end="")
    print(f"medians of {options.rounds} rounds{', connections not yet open' if options.cold else ''}\n")
    print("| client | share of the ideal chunk rate | TTFT p50 ms | TTFT p99 ms | TPOT p50 ms | CPU s |")
    print("| :-- | --: | --: | --: | --: | --: |")
    for client in ("kvplan", "vllm"):
        latencies = (median(client, f"{name}_ms") for name in ("p50_ttft", "p99_ttft", "p50_tpot"))
        cells = [f"{median(client, 'rate_share'):.1%}", *(f"{value:.1f}" for value in latencies)]
        print(f"| {client} | {' | '.join(cells)} | {median(client, 'cpu_s'):.2f} |")
    share = median("kvplan", "rate_share")
    ratio = median("kvplan", "p99_ttft_ms") / median("vllm", "p99_ttft_ms")
    good = share >= 0.9 and ratio <= 1.5
    print(
        f"\nkvplan: chunk rate {share:.1%} of ideal (limit 90 %), TTFT p99 {ratio:.2f} times vLLM's ", end=""
    )
    print(f"(limit 1.5): {'pass' if good else 'FAIL'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
