"""Sizes are parsed as vLLM's own flags are (vLLM 0.32.0 utils/argparse_utils.py::human_readable_int)."""

from __future__ import annotations

import pytest

from kvplan.errors import InputError
from kvplan.units import GIB, cdiv, format_bytes, format_duration, format_gib, parse_count, round_up


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8192", 8192),
        ("8k", 8000),
        ("8K", 8192),
        ("25.6k", 25600),
        ("32K", 32768),
        ("1G", GIB),
        ("2GiB", 2 * GIB),
        ("1g", 10**9),
        ("512MiB", 512 * 2**20),
    ],
)
def test_a_small_suffix_is_decimal_and_a_capital_one_binary(text: str, value: int) -> None:
    assert parse_count(text, "--x") == value


@pytest.mark.parametrize("text", ["", "eight", "8q", "-5", "1.00001k"])
def test_what_is_no_size_is_refused_with_the_flag_in_the_message(text: str) -> None:
    with pytest.raises(InputError, match="--max-model-len"):
        parse_count(text, "--max-model-len")


def test_quotients_round_up() -> None:
    assert [cdiv(n, 16) for n in (0, 1, 16, 17)] == [0, 1, 1, 2]
    assert [round_up(n, 16) for n in (0, 1, 16, 17)] == [0, 16, 16, 32]


def test_sizes_read_as_people_write_them() -> None:
    assert format_gib(15_231_233_024) == "14.19 GiB"
    assert format_bytes(57_344) == "56.0 KiB"
    assert format_bytes(512) == "512 B"
    assert format_duration(75.2) == "1 min 15 s"
    assert format_duration(3.21) == "3.2 s"
