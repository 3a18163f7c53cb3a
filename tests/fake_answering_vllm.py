"""The fake vLLM that answers questions about its KV cache: tokens are bytes, and every hidden code is found.

Beside `fake_vllm`'s own, FAKE_VLLM takes `moved`, by how much the log-probabilities of its fp8 cache are
moved, and `dies_of_questions`: it exits when it is asked for log-probabilities.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any

import fake_vllm  # type: ignore[import-not-found]  # beside it, as a script

_load = fake_vllm.Handler.do_POST
_IS_FP8 = fake_vllm.option("--kv-cache-dtype", "auto").startswith("fp8")
_MOVED = float(fake_vllm.SCRIPT.get("moved", 0.0)) if _IS_FP8 else 0.0


def do_post(handler: Any) -> None:
    """The fake's own answers to a load; the rest here."""
    body = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
    request = json.loads(body)
    if handler.path == "/tokenize":
        answer: Any = {"tokens": list(request["prompt"].encode())}
    elif request.get("stream"):
        connection, handler.rfile = handler.rfile, _Again(body)
        _load(handler)
        handler.rfile = connection
        return
    elif "prompt_logprobs" in request:
        if fake_vllm.SCRIPT.get("dies_of_questions"):
            os._exit(1)
        answer = {"choices": [scored(request["prompt"], request["max_tokens"])]}
    else:
        answer = {"choices": [{"text": found(bytes(request["prompt"]).decode(errors="replace"))}]}
    handler.answer(200, json.dumps(answer).encode())


class _Again:
    """A body that was read already."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def read(self, _: int) -> bytes:
        return self._body


def scored(ids: list[int], steps: int) -> dict[str, Any]:
    """Every token of the prompt at -2, up and down by turns where the cache is fp8; greedy steps at -0.5."""
    moved = _MOVED * (-1) ** (sum(ids) % 2)
    best = {"7": {"logprob": -1.0, "rank": 1}}
    places = [None, *({f"{i}": {"logprob": -2.0 - moved, "rank": 3}} | best for i in ids[1:])]
    tokens = [f"token_id:{n}" for n in range(steps)]
    tops = [{token: -0.5 - _MOVED, "token_id:999": -3.0} for token in tokens]
    return {
        "text": "",
        "prompt_logprobs": places,
        "logprobs": {"tokens": tokens, "token_logprobs": [-0.5 - _MOVED] * steps, "top_logprobs": tops},
    }


def found(prompt: str) -> str:
    """The code of whatever the prompt asks for last."""
    asked = re.findall(r"The code of the (\w+) is$", prompt)
    codes = re.findall(rf"The code of the {asked[-1]} is (\d+)\.", prompt) if asked else []
    return f" {codes[0]}." if codes else " nothing"


if __name__ == "__main__":
    fake_vllm.Handler.do_POST = do_post
    fake_vllm.SCRIPT["kv_bytes"] = fake_vllm.option("--kv-cache-memory-bytes", "0")
    fake_vllm.main()
