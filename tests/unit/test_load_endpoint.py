"""`--url`, `--api-key-env`, `--ca-file`: what is no server is said in one line, before anything is sent."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from kvplan.errors import InputError
from kvplan.load.endpoint import make_endpoint

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/v1", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000"),
        ("https://gpu.example/models/a/v1", "https://gpu.example/models/a"),
        ("http://[::1]:8000/v1", "http://[::1]:8000"),
        ("https://gpu.example", "https://gpu.example"),
    ],
)
def test_a_url_is_taken_with_or_without_v1(url: str, base: str) -> None:
    assert make_endpoint(url, "m").base_url == base


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("http://[", "Invalid IPv6 URL"),
        ("http://[zz]:1", "zz"),
        ("http://", "names no host"),
        ("http://:8000", "names no host"),
        ("http://127.0.0.1:0", "names no port"),
        ("http://127.0.0.1:99999", "Port out of range"),
        ("http://127.0.0.1:port", "port"),
        ("127.0.0.1:8000", "does not begin with http:// or https://"),
        ("ftp://127.0.0.1", "does not begin with http:// or https://"),
        ("file:///etc/passwd", "does not begin with http:// or https://"),
        ("", "does not begin with http:// or https://"),
        ("http://..", "idna"),
        ("http://a b:8000", "no address of a server"),
        ("http://a\nb:8000", "no address of a server"),
        ("http://127.0.0.1:8000/\x1b[31m", "no address of a server"),
        ("http://127.0.0.1:8000/?key=1", "nothing may follow the path"),
        ("http://127.0.0.1:8000/#a", "nothing may follow the path"),
        ("http://" + "a" * 5000, "no address of a server"),
    ],
)
def test_what_is_no_address_of_a_server_is_refused_with_an_example(url: str, complaint: str) -> None:
    with pytest.raises(InputError) as caught:
        make_endpoint(url, "m")

    assert complaint in caught.value.message
    assert caught.value.hint == "write it as http://127.0.0.1:8000"


@pytest.mark.parametrize(
    ("url", "too_much"),
    [
        ("http://127.0.0.1:8000/v1/chat/completions", "/v1/chat/completions"),
        ("http://127.0.0.1:8000/v1/completions/", "/v1/completions"),
        ("http://127.0.0.1:8000/v1/models", "/v1/models"),
        ("http://127.0.0.1:8000/v1/models/v1", "/v1/models"),
        ("https://gpu.example/models/a/v1/chat/completions", "/v1/chat/completions"),
        ("http://127.0.0.1:8000/metrics", "/metrics"),
        ("http://127.0.0.1:8000/health", "/health"),
        ("http://127.0.0.1:8000/tokenize", "/tokenize"),
    ],
)
def test_the_url_of_an_endpoint_is_refused_before_anything_is_asked_of_it(url: str, too_much: str) -> None:
    with pytest.raises(InputError) as caught:
        make_endpoint(url, "m")

    assert caught.value.message == f"--url {url} is one endpoint of a server, not its address"
    assert caught.value.hint == f"give the server's address, without {too_much}"


def test_a_password_in_the_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(InputError) as caught:
        make_endpoint("http://me:hunter2@127.0.0.1:8000", "m")

    assert "hunter2" not in f"{caught.value.message} {caught.value.hint}"


@pytest.mark.parametrize(
    "url",
    [
        "http://user:hunter2@host:bad",
        "http://user:hunter2@",
        "http://user:hunter2@[::1",
        "http://user:hunter2/x@host",
        "ftp://user:hunter2@h/",
        "user:hunter2@host",
        "http://h/?key=hunter2",
        "http://h:bad/?key=hunter2",
        "http://h/#hunter2",
        "http://user:hunter2@a b",
    ],
)
def test_no_complaint_about_a_url_repeats_its_secrets(url: str) -> None:
    with pytest.raises(InputError) as caught:
        make_endpoint(url, "m")

    said = f"{caught.value.message} {caught.value.hint}"
    assert "hunter2" not in said
    assert "hunter" not in said


def test_the_key_comes_from_the_variable_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "abc")

    assert make_endpoint("http://h", "m", api_key_env="OPENAI_API_KEY").api_key == "abc"
    # ... and from no other: a key for somebody else's API is not sent to whatever address is given.
    assert make_endpoint("http://h", "m").api_key is None
    with pytest.raises(InputError, match="NO_SUCH_VARIABLE"):
        make_endpoint("http://h", "m", api_key_env="NO_SUCH_VARIABLE")


@pytest.mark.parametrize("key", ["abc\n", "a b", "schlüssel", "a\x00"])
def test_a_key_that_no_header_can_carry_is_refused_and_not_repeated(key: str) -> None:
    with pytest.raises(InputError) as caught:
        make_endpoint("http://h", "m", api_key=key)

    assert key not in f"{caught.value.message} {caught.value.hint}"


def test_certificates_are_read_before_anything_is_sent(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("no certificate\n")

    with pytest.raises(InputError, match="no certificate in it"):
        make_endpoint("https://h", "m", ca_file=str(tmp_path / "empty.pem"))
    with pytest.raises(InputError, match="No such file"):
        make_endpoint("https://h", "m", ca_file=str(tmp_path / "missing.pem"))
    with pytest.raises(InputError, match="--insecure"):
        make_endpoint("https://h", "m", ca_file=str(tmp_path / "empty.pem"), insecure=True)


@pytest.mark.parametrize(
    "argv",
    [
        ("bench", "--url", "http://[", "--model", "m", "--input-len", "4", "--output-len", "2"),
        ("tune", "--url", "http://[", "--input-len", "4", "--output-len", "2"),
        ("bench", "--url", "http://h", "--model", "m", "--duration", "nan"),
        ("bench", "--url", "http://h", "--model", "m", "--stall-timeout", "inf"),
        ("tune", "--url", "http://h", "--max-minutes", "nan"),
        ("tune", "--demo", "--ttft-p99-ms", "nan"),
        ("tune", "--url", "http://h", "--ladder"),
        ("tune", "--insecure"),
        ("tune", "--tuned-run", "last"),
    ],
)
def test_both_commands_say_it_in_one_line_and_exit_2(argv: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kvplan", *argv], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("kvplan: ")
