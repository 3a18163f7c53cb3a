"""The fake vLLM with a tokenizer and a KV cache that is really touched: the tuner finds a real boundary."""

from __future__ import annotations

from typing import Any

import fake_vllm  # type: ignore[import-not-found]  # beside it, as a script

_chat = fake_vllm.Handler.do_POST


def do_post(handler: Any) -> None:
    """`/tokenize` knows three hundred tokens; the rest is the fake's."""
    if handler.path == "/tokenize":
        handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        handler.answer(200, b'{"tokens": [' + b",".join(b"%d" % i for i in range(300)) + b"]}")
        return
    _chat(handler)


if __name__ == "__main__":
    fake_vllm.Handler.do_POST = do_post
    fake_vllm.SCRIPT["kv_bytes"] = fake_vllm.option("--kv-cache-memory-bytes", "0")
    fake_vllm.main()
