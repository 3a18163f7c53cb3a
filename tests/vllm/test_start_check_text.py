"""What vLLM says when the KV cache is too small, asked of vLLM itself (no server is started)."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from kvplan.catalog.engines import rules_for
from kvplan.memory.verdict import start_check_message
from kvplan.units import GIB

pytestmark = pytest.mark.vllm

CASES = [
    # available, needed, estimated length (0: not even one token fits)
    (5 * GIB, 7 * GIB, 93_616),
    (5_368_709_121, 7_516_192_768, 0),
    (-GIB, 7 * GIB, 0),
    (0, 1, 0),
]

# In a process of its own: importing vLLM warns, and a warning is an error here.
ASK = """
import json, sys
from vllm.v1.core.kv_cache_utils import _check_enough_kv_cache_memory as check
texts = []
for available, needed, estimated in json.loads(sys.argv[1]):
    try:
        check(available, lambda: needed, 131072, lambda _available: estimated)
    except ValueError as error:
        texts.append(str(error))
print(json.dumps(texts))
"""


def test_our_words_are_the_installed_vllms() -> None:
    asked = subprocess.run(
        [sys.executable, "-c", ASK, json.dumps(CASES)], capture_output=True, text=True, check=True
    )
    theirs = json.loads(asked.stdout.splitlines()[-1])
    assert len(theirs) == len(CASES)
    for (available, needed, estimated), text in zip(CASES, theirs, strict=True):
        ours = start_check_message(
            rules_for((0, 32, 0)),
            max_model_len=131_072,
            needed_bytes=needed,
            available_bytes=available,
            estimated_max_model_len=estimated or None,
            capacity_tokens=0,
        )
        # vLLM goes on with a link to its documentation
        assert text.startswith(ours)
