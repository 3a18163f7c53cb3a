"""Hub ids: a small hub of our own on this machine is asked over real HTTP by the real client library."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final

import pytest

pytest.importorskip("huggingface_hub")

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COMMIT: Final = "0123456789abcdef0123456789abcdef01234567"
HEADER: Final = {"a.weight": {"dtype": "BF16", "shape": [64, 8], "data_offsets": [0, 1024]}}
CONFIG: Final = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 8}
NOT_READ: Final = 50_000
"""Bytes of weights behind the header: no test may see them fetched."""


def _safetensors() -> bytes:
    header = {
        **HEADER,
        "b": {"dtype": "F32", "shape": [NOT_READ // 4], "data_offsets": [1024, 1024 + NOT_READ]},
    }
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(1024 + NOT_READ)


FILES: Final[dict[str, bytes]] = {
    "acme/tiny/config.json": json.dumps(CONFIG).encode(),
    "acme/tiny/model.safetensors": _safetensors(),
    "acme/broken/config.json": b'{"hidden_size": }',
    "acme/adapter/adapter_config.json": b"{}",
    "acme/gated/config.json": b"{}",
}
REPOSITORIES: Final = {name.rpartition("/")[0] for name in FILES}


class _Hub(BaseHTTPRequestHandler):
    """As much of huggingface.co as hf_hub_download and get_safetensors_metadata ask for."""

    requests: Final[list[tuple[str, str, str | None, str | None]]] = []

    def _answer(self, *, with_body: bool) -> None:
        self.requests.append(
            (self.command, self.path, self.headers.get("Range"), self.headers.get("Authorization"))
        )
        repository, _, rest = self.path.lstrip("/").partition("/resolve/")
        revision, _, name = rest.partition("/")
        content = FILES.get(f"{repository}/{name}")
        if repository not in REPOSITORIES:
            self._fail(401, "RepoNotFound", "Repository not found")
        elif repository == "acme/gated":
            self._fail(403, "GatedRepo", "Access to model acme/gated is restricted")
        elif revision not in {"main", COMMIT}:
            self._fail(404, "RevisionNotFound", "Invalid rev id")
        elif content is None:
            self._fail(404, "EntryNotFound", "Entry not found")
        else:
            self._send(content, with_body=with_body)

    def _send(self, content: bytes, *, with_body: bool) -> None:
        wanted = self.headers.get("Range")
        status, part = 200, content
        if wanted:
            start, _, end = wanted.removeprefix("bytes=").partition("-")
            status, part = 206, content[int(start) : int(end) + 1]
        self.send_response(status)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        if with_body:
            self.wfile.write(part)

    def _fail(self, status: int, code: str, message: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", message)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  http.server's name
        """Say nothing."""


@pytest.fixture
def hub() -> Iterator[str]:
    _Hub.requests.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


SNIPPET: Final = """
import json, sys
from kvplan.catalog.models import find_model
from kvplan.errors import KvplanError
try:
    model = find_model(sys.argv[1], **json.loads(sys.argv[2]))
except KvplanError as error:
    found = {"error": type(error).__name__, "message": error.message, "hint": error.hint}
else:
    weights = model.weights and {
        "bytes": model.weights.total_bytes, "parameters": model.weights.parameters, "kind": model.weights.kind
    }
    found = {"id": model.id, "kind": model.kind, "config": dict(model.config), "source": model.source,
             "weights": weights}
print(json.dumps(found))
"""


def ask(query: str, home: Path, endpoint: str, **options: object) -> dict[str, Any]:
    """`find_model` in a process of its own: huggingface_hub reads its variables once, when imported."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    environment |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_TOKEN": "hf_secret"}
    environment |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SNIPPET, query, json.dumps(options)],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_config_and_headers_are_read_and_no_weights(hub: str, tmp_path: Path) -> None:
    found = ask("acme/tiny", tmp_path, hub)
    assert found["id"] == "acme/tiny"
    assert found["kind"] == "hub"
    assert found["config"] == CONFIG
    assert found["source"] == f"acme/tiny at {COMMIT}"
    assert found["weights"] == {
        "bytes": 1024 + NOT_READ,
        "parameters": 64 * 8 + NOT_READ // 4,
        "kind": "safetensors",
    }
    # The weight file is only ever asked for by a range (the library's first guess is 100 kB), or its head.
    gets = [request for request in _Hub.requests if request[0] == "GET" and "safetensors" in request[1]]
    assert gets
    assert all(ranged is not None for _, _, ranged, _ in gets)
    assert {authorization for *_, authorization in gets} == {"Bearer hf_secret"}


def test_what_is_in_the_cache_needs_no_network(hub: str, tmp_path: Path) -> None:
    ask("acme/tiny", tmp_path, hub)
    _Hub.requests.clear()
    found = ask("acme/tiny", tmp_path, hub, offline=True)
    assert _Hub.requests == []
    assert found["config"] == CONFIG
    assert found["source"] == f"acme/tiny at {COMMIT} (local cache)"


def test_offline_never_touches_the_network(hub: str, tmp_path: Path) -> None:
    found = ask("acme/tiny", tmp_path, hub, offline=True)
    assert _Hub.requests == []
    assert found["error"] == "InputError"
    assert "offline" in found["message"]
    assert "local folder" in found["hint"]


def test_a_hub_that_does_not_answer(tmp_path: Path) -> None:
    # Port 1 (tcpmux) has no listener here: the connection is refused at once.
    found = ask("acme/tiny", tmp_path, "http://127.0.0.1:1")
    assert found["error"] == "InputError"
    assert "http://127.0.0.1:1 does not answer" in found["message"]
    assert "HF_ENDPOINT" in found["hint"]


def test_a_gated_model_says_what_to_do(hub: str, tmp_path: Path) -> None:
    found = ask("acme/gated", tmp_path, hub)
    assert found["error"] == "InputError"
    assert "gated" in found["message"]
    assert "HF_TOKEN" in found["hint"]


@pytest.mark.parametrize(
    ("query", "options", "error", "says"),
    [
        ("acme/nothing", {}, "UnknownNameError", "no model 'acme/nothing'"),
        ("acme/tiny", {"revision": "v9"}, "InputError", "no revision 'v9'"),
        ("acme/adapter", {}, "InputError", "has no config.json"),
        ("acme/broken", {}, "InputError", "config.json:1:17: not JSON"),
        ("acme/ti..ny", {}, "InputError", "is no hub id"),
    ],
)
def test_what_the_hub_does_not_have(
    hub: str, tmp_path: Path, query: str, options: dict[str, str], error: str, says: str
) -> None:
    found = ask(query, tmp_path, hub, **options)
    assert found["error"] == error
    assert says in found["message"]


def test_a_revision_is_asked_of_the_hub_even_for_a_profiles_name(hub: str, tmp_path: Path) -> None:
    found = ask("Qwen/Qwen2-7B-Instruct", tmp_path, hub, revision="main")
    assert found["error"] == "UnknownNameError"
    assert any("Qwen/Qwen2-7B-Instruct" in request[1] for request in _Hub.requests)


def test_without_the_library_the_extra_is_named() -> None:
    code = "import sys; sys.modules['huggingface_hub'] = None\n" + SNIPPET
    done = subprocess.run(
        [sys.executable, "-c", code, "acme/tiny", "{}"], check=True, capture_output=True, text=True
    )
    found = json.loads(done.stdout)
    assert found["error"] == "MissingDependencyError"
    assert "kvplan-tuner[hub]" in found["hint"]
