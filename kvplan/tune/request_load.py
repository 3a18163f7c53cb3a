"""The load that a request asks for: its workload, how many users, how long their requests are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvplan.errors import InputError
from kvplan.tune.problem import Lengths

if TYPE_CHECKING:
    from kvplan.load.workload import Workload
    from kvplan.tune.request import TuneRequest


def workload_of(request: TuneRequest) -> Workload:
    """The workload that is named, else requests of the two lengths that are given.

    Raises:
        InputError: a length is missing, or the workload cannot be read.
    """
    from kvplan.load.workload import Workload, load_workload

    plan = request.plan
    if plan.workload is not None:
        return load_workload(plan.workload, plan.profiles)
    if plan.input_len is not None and plan.output_len is not None:
        return Workload.fixed(plan.input_len, plan.output_len)
    missing = [
        flag
        for flag, value in (("--input-len", plan.input_len), ("--output-len", plan.output_len))
        if value is None
    ]
    raise InputError(
        f"the length of the requests is not known: {' and '.join(missing)} missing",
        "give both in tokens, or --workload FILE",
    )


def target_of(request: TuneRequest, workload: Workload) -> int:
    """How many users at once: as given, else as the workload says.

    Raises:
        InputError: neither says it, or it is below 1.
    """
    target = request.plan.target_concurrency
    target = workload.concurrency if target is None else target
    if target is None:
        raise InputError(
            "nothing says how many users the setting is for", "give --target-concurrency, for example 32"
        )
    if target < 1:
        raise InputError(f"--target-concurrency {target} is below 1", "give a whole number from 1 up")
    return target


def lengths_of(workload: Workload) -> Lengths:
    """Mean and longest request of the workload, in tokens."""
    longest = workload.longest().samples[0]
    return Lengths(
        mean_input=round(workload.mean_input_len),
        mean_output=round(workload.mean_output_len),
        longest_input=longest.input_len,
        longest_output=longest.output_len,
    )
