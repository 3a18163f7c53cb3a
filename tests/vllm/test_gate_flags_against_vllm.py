"""The gate's flag grammar beside the real parser of the installed vLLM, on random argument lists."""

from __future__ import annotations

import json
import random
import subprocess
import sys

import pytest

from kvplan.config.flag_table import Option, flag_table
from kvplan.gate.flags import FlagParser
from kvplan.gate.taint import Taint, Word

ASK_VLLM = """
import contextlib, io, json, os, sys
os.environ["VLLM_LOGGING_LEVEL"] = "CRITICAL"
with contextlib.redirect_stdout(io.StringIO()):
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))
answers = []
for words in json.load(sys.stdin):
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            parsed = vars(parser.parse_args(words))
        answers.append({k: v for k, v in parsed.items() if isinstance(v, (str, int, float, list, dict))})
    except (SystemExit, Exception):
        answers.append(None)
json.dump(answers, sys.stdout, default=str)
"""

VALUES = {
    "int": ["3", "12", "007", "-1", "1e3", "x", ""],
    "float": ["0.9", ".5", "1", "90%", "nope"],
    "human_int": ["8k", "8K", "25.6k", "1.5K", "4096", "2G"],
    "human_int_or_auto": ["auto", "-1", "8k", "32K", "1.5K"],
    "str": ["abc", "a/b", "x y"],
}
# Flags whose value vLLM checks against more than its type: a file, a config class, a registry.
OTHER_CHECKS = {"help", "config", "lora_modules", "log_config_file", "device_ids", "config_format", "model"}


def usable() -> list[Option]:
    """Options of the newest release with values of a plain type."""
    return [
        option
        for option in flag_table().options.values()
        if option.until is None
        and option.flag.name not in OTHER_CHECKS
        and option.flag.kind in {*VALUES, "bool", "store_true"}
    ]


def random_words(rng: random.Random, options: list[Option]) -> list[str]:
    """One command line: dashes and underscores, cut names, `=`, repeats, good and bad values."""
    words = ["some/model"]
    for option in rng.choices(options, k=rng.randrange(1, 7)):
        text = option.text
        if text.startswith("--") and rng.random() < 0.3:
            text = "--" + text[2:].replace("-", "_")
        if text.startswith("--") and rng.random() < 0.2:
            text = text[: max(6, len(text) - rng.randrange(1, 6))]
        if option.flag.kind in {"bool", "store_true"}:
            words.append(text + ("=true" if rng.random() < 0.05 else ""))
            continue
        choices = [choice for choice in option.flag.choices if choice != "None"]
        value = rng.choice(choices or VALUES[option.flag.kind])
        words += [f"{text}={value}"] if rng.random() < 0.5 else [text, value]
    return words


@pytest.mark.vllm
def test_random_command_lines_are_read_as_the_real_parser_reads_them() -> None:
    rng = random.Random(0)
    lists = [random_words(rng, usable()) for _ in range(1500)]
    result = subprocess.run(
        [sys.executable, "-c", ASK_VLLM], input=json.dumps(lists), capture_output=True, text=True, check=True
    )
    answers = json.loads(result.stdout[result.stdout.index("[") :])
    refused = compared = 0
    for words, answer in zip(lists, answers, strict=True):
        ours = FlagParser(Taint(), flag_table().newest).parse([Word(word, 1) for word in words])
        refusal = bool(ours.invalid or ours.unknown_flags)
        assert refusal == (answer is None), f"{words} {dict(ours.invalid)} {list(ours.unknown_flags)}"
        if answer is None:
            refused += 1
            continue
        assert ours.model == answer["model_tag"]
        for name, value in ours.flags.items():
            seen = str(value) if name == "optimization_level" else value
            assert seen == answer[name], (words, name)
            compared += 1
    assert refused > 100
    assert compared > 1500
