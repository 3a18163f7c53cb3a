"""Workload: what the traffic looks like (`kvplan.workload/1`). Lengths in tokens, whole requests.

Everything that is asked of a workload is asked of its samples: representative (input, output) pairs, whatever
form the file gave them in. Imports nothing heavy, because `kvplan estimate` asks it too.
"""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Final, Literal

from kvplan.errors import InputError
from kvplan.load.lengths import LengthSample, at_share, merge
from kvplan.record import FrozenRecord
from kvplan.units import cdiv

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SCHEMA: Final = "kvplan.workload/1"

_ROUND: Final = 64
"""Requests of one round of an endless load: each round has the workload's own mix."""


class ClosedLoop(FrozenRecord):
    """N users, each of whom sends a request, reads the answer and sends the next."""

    users: int | None = None
    """None: as many as `--concurrency` says."""
    think_time_s: float = 0.0


class Poisson(FrozenRecord):
    """Requests that arrive independently of the answers, at random."""

    requests_per_s: float


class Trace(FrozenRecord):
    """Requests that arrive when they once did; with as many samples as times, each has its own length."""

    times_s: tuple[float, ...]


Arrivals = ClosedLoop | Poisson | Trace


class Workload(FrozenRecord):
    """Traffic: lengths, arrivals, conversations and what prompts have in common."""

    samples: tuple[LengthSample, ...]
    """Whole requests as the server sees them: a prompt counts its shared prefix and its history."""
    name: str = "workload"
    arrivals: Arrivals = ClosedLoop()
    shared_prefix_tokens: int = 0
    """The first tokens of every prompt are these same ones (a system prompt)."""
    turns: int = 1
    """Requests of one conversation: each repeats as much of what was said before as its length holds."""
    logprobs: int | None = None
    """Most probable tokens whose log-probabilities every request asks for; None asks for none. vLLM's sampler
    then keeps float32 log-probabilities of the whole vocabulary, outside its memory budget."""
    longest_input_stated: int | None = None
    longest_total_stated: int | None = None
    lengths_from: Literal["fixed", "samples", "percentiles"] = "samples"
    dependence: Literal["comonotone", "independent"] | None = None
    """How separate percentiles of prompts and answers were put together; None where pairs were given."""
    source: str = ""
    """Where the lengths come from: a file, a log, a paper."""

    @classmethod
    def fixed(cls, input_len: int, output_len: int, concurrency: int | None = None) -> Workload:
        """Every request has `input_len` tokens in and `output_len` out.

        Raises:
            InputError: a length or the number of users is below 1.
        """
        for flag, value in (
            ("input_len", input_len),
            ("output_len", output_len),
            ("concurrency", concurrency),
        ):
            if value is not None and value < 1:
                raise InputError(f"{flag} is {value}, which is below 1", "give a whole number from 1 up")
        return cls(
            samples=(LengthSample(input_len, output_len),),
            name=f"{input_len} in, {output_len} out",
            arrivals=ClosedLoop(users=concurrency),
            lengths_from="fixed",
            source="--input-len and --output-len",
        )

    @property
    def concurrency(self) -> int | None:
        """Users of a closed loop; None if it does not say, or is not one."""
        return self.arrivals.users if isinstance(self.arrivals, ClosedLoop) else None

    @property
    def mean_input_len(self) -> float:
        """Mean tokens of a prompt."""
        return sum(s.input_len * s.count for s in self.samples) / sum(s.count for s in self.samples)

    @property
    def mean_output_len(self) -> float:
        """Mean tokens of an answer."""
        return sum(s.output_len * s.count for s in self.samples) / sum(s.count for s in self.samples)

    @property
    def mean_total_len(self) -> float:
        """Mean tokens of a request when it ends."""
        return self.mean_input_len + self.mean_output_len

    @property
    def longest_input_len(self) -> int:
        """Tokens of the longest prompt, stated or seen."""
        return max(self.longest_input_stated or 0, *(s.input_len for s in self.samples))

    @property
    def longest_output_len(self) -> int:
        """Tokens of the longest answer that was seen."""
        return max(s.output_len for s in self.samples)

    @property
    def longest_total_len(self) -> int:
        """Tokens of the longest request, stated or seen: max_model_len must be at least this."""
        return max(self.longest_total_stated or 0, *(s.total_len for s in self.samples))

    def total_len_quantile(self, q: float) -> int:
        """Total length (prompt and answer together) that a share `q` of the requests does not exceed.

        Example: 19 requests of 100 tokens and one of 1,000: the P95 is 100, the P99 is 1,000.
        """
        return self.longest_total_len if q >= 1 else at_share(merge(self.samples), q).total_len

    def input_len_quantile(self, q: float) -> int:
        """Prompt length that a share `q` of the requests does not exceed."""
        inputs = merge([LengthSample(s.input_len, 0, s.count) for s in self.samples])
        return self.longest_input_len if q >= 1 else at_share(inputs, q).input_len

    def output_len_quantile(self, q: float) -> int:
        """Answer length that a share `q` of the requests does not exceed."""
        outputs = merge([LengthSample(0, s.output_len, s.count) for s in self.samples])
        return at_share(outputs, min(q, 1.0)).output_len

    def longest(self) -> Workload:
        """The same traffic with every request at its longest: what a boundary must survive."""
        longest_input = min(self.longest_input_len, self.longest_total_len - 1)
        worst = LengthSample(longest_input, self.longest_total_len - longest_input)
        return Workload(
            samples=(worst,),
            name=f"{self.name}, every request at its longest",
            arrivals=self.arrivals,
            shared_prefix_tokens=0,
            logprobs=self.logprobs,
            lengths_from="fixed",
            source=self.source,
        )

    def draw(self, count: int, seed: int) -> list[LengthSample]:
        """`count` requests with the workload's mix of lengths, in an order that the seed gives.

        The lengths are spread evenly over the distribution, so that two draws differ in order only: a
        comparison of two runs does not compare two samples. A trace keeps its order. The requests of one
        conversation follow one another and grow from the distribution's short end to its long one.
        """
        if isinstance(self.arrivals, Trace) and len(self.samples) == len(self.arrivals.times_s):
            return [self.samples[i % len(self.samples)] for i in range(count)]
        merged = merge(self.samples)
        conversations = cdiv(count, self.turns)
        shares = [
            [(turn + (number + 0.5) / conversations) / self.turns for turn in range(self.turns)]
            for number in range(conversations)
        ]
        random.Random(f"{seed} lengths").shuffle(shares)
        drawn = (replace(at_share(merged, q), count=1) for conversation in shares for q in conversation)
        return list(islice(drawn, count))

    def draw_endless(self, seed: int) -> Iterator[LengthSample]:
        """Requests without end, each round of 64 (in whole conversations) with the workload's mix."""
        size = max(1, _ROUND // self.turns) * self.turns
        if isinstance(self.arrivals, Trace):
            size = len(self.arrivals.times_s)
        number = 0
        while True:
            yield from self.draw(size, seed + number)
            number += 1


def load_workload(name_or_path: str | Path, profiles_dir: str | None = None) -> Workload:
    """The workload of a file, or of the preset of that name (profiles/workloads).

    Raises:
        InputError: there is neither, or the file is malformed (with file:line).
    """
    from kvplan.load.workload_file import find_workload, read_workload

    return read_workload(find_workload(str(name_or_path), profiles_dir))
