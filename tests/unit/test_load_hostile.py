"""What may stand behind an address: whatever it is, one line, a hint, and no waiting without end."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import shutil
import socketserver
import ssl
import subprocess
import threading
from typing import TYPE_CHECKING

import pytest

from kvplan.errors import InputError, LoadError
from kvplan.load import server_info
from kvplan.load.endpoint import make_endpoint
from kvplan.load.records import Endpoint
from kvplan.load.server_info import ServerInfo, ask_server, require_served
from kvplan.load.session import open_session, ordinary_token_ids
from kvplan.load.stream import StreamError, StreamReader
from kvplan.load.workload import Workload
from kvplan.report.server import ServerReport
from kvplan.tune.journal import FILE_NAME, read_journal
from kvplan.tune.problem import Constraints
from kvplan.tune.running_server import ServerRequest, measure_on, measure_server

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Answer = Callable[[socket.socket], None]


@contextlib.contextmanager
def serving(answer: Answer, tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """A TCP server in threads; gives its port."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                if tls is None:
                    answer(self.request)
                    return
                with tls.wrap_socket(self.request, server_side=True) as wrapped:
                    answer(wrapped)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join(10)


def answering(body: bytes) -> Answer:
    """Sends these bytes to whatever is asked, and closes."""

    def answer(connection: socket.socket) -> None:
        connection.settimeout(5)
        if connection.recv(65_536):
            connection.sendall(body)

    return answer


def http(body: bytes, status: str = "200 OK", kind: str = "application/json") -> bytes:
    lines = (
        f"HTTP/1.1 {status}",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        "Connection: close",
    )
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def hang(connection: socket.socket) -> None:
    """Takes everything and says nothing."""
    connection.settimeout(5)
    while connection.recv(65_536):
        pass


def asked(url: str, key: str | None = None) -> ServerInfo:
    endpoint = make_endpoint(url, "m", api_key=key)
    info = asyncio.run(ask_server(endpoint))
    require_served(info, endpoint)
    return info


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (answering(http(b"<!DOCTYPE html><p>hi", kind="text/html")), "a web page"),
        (answering(http(b"{}")), "no list of models"),
        (answering(http(b"[]")), "no list of models"),
        (answering(http(b"{" * 100_000)), "no list of models"),
        (answering(http(b'{"error":"Unauthorized"}', "401 Unauthorized")), "it wants a key"),
        (answering(http(b"", "403 Forbidden")), "it wants a key"),
        (answering(http(b"<h1>Bad gateway", "502 Bad Gateway")), "answered 502: <h1>Bad gateway"),
        (answering(http(b'{"data": [{"id": "other"}]}')), "does not serve 'm'"),
        (answering(http(b'{"data": []}')), "does not serve 'm'"),
        (answering(b""), "closed the connection"),
        (answering(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"), "does not speak HTTP"),
        (answering(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"), "closed the connection"),
    ],
    ids=["html", "object", "array", "deep", "401", "403", "502", "other", "none", "closes", "ssh", "cut"],
)
def test_whatever_answers_is_said_in_one_line(answer: Answer, complaint: str) -> None:
    with serving(answer) as port, pytest.raises(LoadError) as caught:
        asked(f"http://127.0.0.1:{port}")

    assert complaint in caught.value.message
    assert caught.value.hint
    assert "\n" not in caught.value.message


def test_a_refused_key_is_told_from_a_missing_one_and_never_shown() -> None:
    with serving(answering(http(b"", "401 Unauthorized"))) as port, pytest.raises(LoadError) as caught:
        asked(f"http://127.0.0.1:{port}", key="sesame")

    assert "the key was refused" in caught.value.message
    assert "sesame" not in f"{caught.value.message}{caught.value.hint}"


def test_one_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_info, "_TIMEOUT_S", 0.3)
    with serving(hang) as port, pytest.raises(LoadError, match="in time"):
        asked(f"http://127.0.0.1:{port}")


def test_a_server_without_a_list_of_models_may_still_serve() -> None:
    with serving(answering(http(b"not found", "404 Not Found"))) as port:
        info = asked(f"http://127.0.0.1:{port}")

    assert info == ServerInfo(None, None, None)


def test_an_unknown_name_and_a_closed_port() -> None:
    with serving(hang) as port:
        pass
    with pytest.raises(LoadError, match="no answer from"):
        asked(f"http://127.0.0.1:{port}")
    with pytest.raises(LoadError, match="no answer from"):
        asked("http://no-such-host.invalid:80")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ssl.SSLContext]:
    """A certificate for 127.0.0.1 that nobody trusts yet, and a server's context with it."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    key, pem = folder / "key.pem", folder / "cert.pem"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run([*command, "-keyout", key, "-out", pem], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, key)
    return pem, context


MODELS = http(b'{"data": [{"id": "m", "max_model_len": 1024}]}')


def test_a_certificate_is_verified_unless_it_is_said_otherwise(
    certificate: tuple[Path, ssl.SSLContext],
) -> None:
    pem, context = certificate
    with serving(answering(MODELS), context) as port:
        url = f"https://127.0.0.1:{port}"
        with pytest.raises(LoadError) as caught:
            asked(url)
        assert "is not trusted" in caught.value.message
        assert "--ca-file" in (caught.value.hint or "")
        for endpoint in (
            make_endpoint(url, "m", ca_file=str(pem)),
            make_endpoint(url, "m", insecure=True),
        ):
            served = asyncio.run(ask_server(endpoint)).model("m")
            assert served is not None
            assert served.max_model_len == 1024


def test_the_wrong_scheme_is_named(certificate: tuple[Path, ssl.SSLContext]) -> None:
    _, context = certificate
    with serving(answering(MODELS)) as port, pytest.raises(LoadError) as caught:
        asked(f"https://127.0.0.1:{port}")
    assert "http://" in (caught.value.hint or "")
    with serving(answering(MODELS), context) as port, pytest.raises(LoadError) as caught:
        asked(f"http://127.0.0.1:{port}")
    assert "https://" in (caught.value.hint or "")


def test_a_name_that_a_server_gives_itself_is_shortened() -> None:
    long = "x" * 10_000
    body = f'{{"data": [{{"id": "{long}"}}]}}'.encode()
    with serving(answering(http(body))) as port, pytest.raises(LoadError) as caught:
        asyncio.run(_require(Endpoint(f"http://127.0.0.1:{port}", "m")))
    assert len(caught.value.hint or "") < 1000


async def _require(endpoint: Endpoint) -> None:
    require_served(await ask_server(endpoint), endpoint)


# A server that says the right things until it is loaded


def turning(completion: bytes) -> Answer:
    """Lists its model, and answers every completion with these bytes."""

    def answer(connection: socket.socket) -> None:
        connection.settimeout(5)
        asked_for = connection.recv(65_536)
        if asked_for.startswith(b"GET /v1/models"):
            connection.sendall(MODELS)
        elif asked_for.startswith(b"POST"):
            connection.sendall(completion)
        else:
            connection.sendall(http(b"", "404 Not Found"))

    return answer


def stream(*events: bytes) -> bytes:
    return http(b"".join(b"data: " + event + b"\n\n" for event in events), kind="text/event-stream")


def loading(port: int, output_len: int) -> ServerRequest:
    endpoint = make_endpoint(f"http://127.0.0.1:{port}", "")
    return ServerRequest(endpoint, Workload.fixed(8, output_len), vocab_size=1000, max_minutes=0.2)


TOKEN = b'{"choices":[{"index":0,"text":"x"}]}'


@pytest.mark.parametrize(
    ("completion", "complaint"),
    [
        (http(b"<!DOCTYPE html><p>hi", kind="text/html"), "the answer has no token"),
        (http(b'{"error": {"message": "no such model"}}', "404 Not Found"), "404 Not Found: no such model"),
        (http(b"<h1>\xff\x00\x1b[31mteapot", "418 Teapot"), "418 Teapot"),
        (stream(b"{broken"), "not JSON in the stream"),
        (stream(b'{"error": {"message": "out of memory"}}'), "out of memory"),
        (stream(TOKEN), "the stream ended before its end mark"),
        (b"", "ServerDisconnectedError"),
        (http(b"[" * 200_000, "500 Oops"), "500 Oops: [[["),
        (stream(b"[" * 200_000), "not JSON in the stream"),
        (stream(b'{"choices":5}', b"[DONE]"), "choices without a choice"),
        (stream(b'{"choices" : {"0":1}}', b"[DONE]"), "choices without a choice"),
        (stream(b'{"choices":[7]}', b"[DONE]"), "choices without a choice"),
        (
            b"HTTP/1.1 307 T\r\nLocation: http://u:pw@other.example/v1?k=pw\r\nContent-Length: 0\r\n\r\n",
            "sends requests on to http://***@other.example/v1?***",
        ),
        (
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
            "the answer is compressed (gzip)",
        ),
    ],
    ids=[
        *("html", "404", "418", "broken", "error", "cut", "closes", "deep", "deep event", "choices"),
        *("choices in a map", "choice", "redirect", "gzip"),
    ],
)
def test_whatever_comes_instead_of_an_answer_is_the_reason(
    tmp_path: Path, completion: bytes, complaint: str
) -> None:
    with serving(turning(completion)) as port:
        request = ServerRequest(
            make_endpoint(f"http://127.0.0.1:{port}", ""),
            Workload.fixed(8, 4),
            vocab_size=1000,
            max_minutes=0.2,
        )
        with pytest.raises(LoadError) as caught:
            measure_server(request, tmp_path, lambda _line: None)

    assert "no request was answered: " in caught.value.message
    assert complaint in caught.value.message


def test_a_server_that_is_not_vllm_is_measured_with_what_it_gives(tmp_path: Path) -> None:
    # No /metrics, no /version, no count of tokens in the stream.
    with serving(turning(stream(TOKEN, TOKEN, b"[DONE]"))) as port:
        request = ServerRequest(
            make_endpoint(f"http://127.0.0.1:{port}", ""),
            Workload.fixed(8, 2),
            vocab_size=1000,
            max_minutes=0.2,
        )
        folder = measure_server(request, tmp_path, lambda _line: None)
    report = ServerReport.of(read_journal(folder))

    assert report.points[0].completed == 8
    assert report.points[0].output_throughput is None
    assert report.points[0].request_throughput is not None
    assert (report.kv, report.points[0].waited_for_memory) == (None, None)
    record = json.loads(report.render("json"))
    assert record["has_metrics"] is False
    assert record["context"]["vllm_version"] is None
    assert "n/a" in report.render("text")


@pytest.mark.parametrize(
    "event",
    [b'{"choices":5}', b'{"choices":[7]}', b'{"choices" : {"0":1}}', b'{"choices":[{"token_ids":"abc"}]}'],
)
def test_a_conversation_ends_an_answer_that_is_none_as_failed(event: bytes) -> None:
    with pytest.raises(StreamError):
        StreamReader(keep_token_ids=True).feed(b"data: " + event + b"\n\n")


def test_a_line_without_end_is_given_up_and_costs_what_it_is_long() -> None:
    reader, piece = StreamReader(), b"x" * 65_536
    for _ in range(256):  # 16 MiB
        assert reader.feed(piece) == 0
    with pytest.raises(StreamError, match="more than 16 MiB"):
        reader.feed(piece)


def test_a_refusal_without_end_is_read_to_64_kib(tmp_path: Path) -> None:
    sent = 0

    def endless(connection: socket.socket) -> None:
        nonlocal sent
        asked_for = connection.recv(65_536)
        if asked_for.startswith(b"GET /v1/models"):
            connection.sendall(MODELS)
        elif asked_for.startswith(b"POST"):
            connection.sendall(b"HTTP/1.1 500 Oops\r\nConnection: close\r\n\r\n")
            while sent < 1 << 30:
                sent += connection.send(b"x" * 65_536)
        else:
            connection.sendall(http(b"", "404 Not Found"))

    with serving(endless) as port:
        patient = dataclasses.replace(loading(port, 4), max_minutes=2.0)
        with pytest.raises(LoadError, match="500 Oops: xxx"):
            measure_server(patient, tmp_path, lambda _line: None)
    # What the sockets hold is sent too: some megabytes of each of the few requests.
    assert sent < 1 << 29


@pytest.mark.parametrize("body", [b"[" * 200_000, b'{"tokens":"abc"}', b'{"tokens":[]}', b"null"])
def test_a_tokenizer_that_gives_no_tokens_is_said_in_one_line(body: bytes) -> None:
    async def ask(endpoint: Endpoint) -> None:
        async with open_session(endpoint) as session:
            await ordinary_token_ids(session, endpoint)

    with serving(turning(http(body))) as port, pytest.raises(LoadError, match="without a"):
        asyncio.run(ask(Endpoint(f"http://127.0.0.1:{port}", "m")))


def test_a_key_that_the_server_repeats_is_written_nowhere(tmp_path: Path) -> None:
    # Where a text is cut no half of it is left either: the 500th character lies within the key.
    body = b'{"error": "%s Bearer sk-hunter2-and-more"}' % (b"x" * 485)
    with serving(turning(http(body, "500 sk-hunter2-and-more"))) as port:
        endpoint = make_endpoint(f"http://127.0.0.1:{port}", "m", api_key="sk-hunter2-and-more")
        request = ServerRequest(endpoint, Workload.fixed(8, 4), vocab_size=1000, max_minutes=2.0)
        with pytest.raises(LoadError) as caught:
            measure_server(request, tmp_path, lambda _line: None)
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())

    assert "500 ***: xxx" in caught.value.message
    assert "sk-" not in caught.value.message
    assert b"sk-" not in written


def test_a_server_that_sends_its_callers_on_is_not_followed() -> None:
    elsewhere = b"HTTP/1.1 302 Found\r\nLocation: http://other.example/v1/models\r\nContent-Length: 0\r\n\r\n"
    with serving(answering(elsewhere)) as port, pytest.raises(LoadError) as caught:
        asked(f"http://127.0.0.1:{port}")
    assert "sends requests on to http://other.example/v1/models" in caught.value.message


@pytest.mark.parametrize("claimed", [6000, 0])
def test_a_count_of_tokens_that_cannot_be_true_is_no_throughput_and_keeps_nothing(
    tmp_path: Path, claimed: int
) -> None:
    usage = b'{"choices":[],"usage":{"prompt_tokens":8,"completion_tokens":%d}}' % claimed
    with serving(turning(stream(*[TOKEN] * 6, usage, b"[DONE]"))) as port:
        folder = measure_server(loading(port, 6), tmp_path, lambda _line: None)
    report = ServerReport.of(read_journal(folder))

    point = report.points[0]
    assert (point.completed, point.miscounted) == (8, 8)
    assert (point.output_throughput, point.output_tokens) == (None, None)
    assert report.kept is None
    for output_format in ("text", "markdown", "html"):
        assert "count of tokens cannot be true" in " ".join(report.render(output_format).split())


def test_a_count_beyond_what_was_asked_is_true_where_as_many_chunks_came(tmp_path: Path) -> None:
    usage = b'{"choices":[],"usage":{"prompt_tokens":8,"completion_tokens":20}}'
    with serving(turning(stream(*[TOKEN] * 20, usage, b"[DONE]"))) as port:
        folder = measure_server(loading(port, 6), tmp_path, lambda _line: None)
    report = ServerReport.of(read_journal(folder))

    assert (report.points[0].miscounted, report.points[0].output_tokens) == (0, 160)
    # ... and the reader is told.
    assert "8 answers have another length than was asked for" in " ".join(report.render("text").split())


def test_a_run_is_not_gone_on_with_under_other_limits(tmp_path: Path) -> None:
    usage = b'{"choices":[],"usage":{"prompt_tokens":8,"completion_tokens":2}}'
    with serving(turning(stream(TOKEN, TOKEN, usage, b"[DONE]"))) as port:
        begun = dataclasses.replace(loading(port, 2), target_users=2)
        folder = measure_server(begun, tmp_path, lambda _line: None)
        before = (folder / FILE_NAME).read_bytes()
        for changed, said in (
            ({"target_users": 5000}, "--target-concurrency: 2 in the run, 5000 now"),
            ({"constraints": Constraints(ttft_p99_ms=0.001)}, "--ttft-p99-ms: none in the run, 0.001 now"),
            ({"seed": 7}, "--seed: 0 in the run, 7 now"),
            ({"vocab_size": 64}, "--vocab-size: 1000 in the run, 64 now"),
        ):
            with pytest.raises(InputError) as caught:
                measure_on(folder, dataclasses.replace(begun, **changed), lambda _line: None)
            assert said in caught.value.message
        assert (folder / FILE_NAME).read_bytes() == before
        # The same again, or nothing at all, goes on.
        measure_on(folder, begun, lambda _line: None)


def test_a_name_with_a_line_end_forges_no_line(tmp_path: Path) -> None:
    told: list[str] = []
    usage = b'{"choices":[],"usage":{"prompt_tokens":8,"completion_tokens":2}}'
    with serving(turning(stream(TOKEN, TOKEN, usage, b"[DONE]"))) as port:
        request = dataclasses.replace(
            loading(port, 2), workload=dataclasses.replace(Workload.fixed(8, 2), name="w\nERROR: x")
        )
        measure_server(request, tmp_path, told.append)

    assert told
    assert all("\n" not in line for line in told)
    assert "w\\u000aERROR" in told[0]
