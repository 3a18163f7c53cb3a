"""A tiny Qwen2 on a CPU card of 2 GiB: what the tests of the tuner's search search over."""

from __future__ import annotations

from typing import Final

from kvplan.memory.hardware import cpu_spec
from kvplan.tune.problem import Lengths
from kvplan.tune.rules import kv_rules
from kvplan.units import GIB
from tests.tiny_model import CONFIG

CARD: Final = 2 * GIB
RULES: Final = kv_rules(CONFIG, cpu_spec(CARD), (0, 32, 0))
LENGTHS: Final = Lengths(mean_input=256, mean_output=128, longest_input=896, longest_output=128)
