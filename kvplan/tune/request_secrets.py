"""Keys and passwords of a request: a run repeats its settings, on the screen and in its journal."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from kvplan.errors import InputError
from kvplan.gate.redact import SECRET_FLAGS, holds_named_secret

if TYPE_CHECKING:
    from kvplan.tune.request import TuneRequest


def without_secrets(request: TuneRequest, assumptions: list[str]) -> TuneRequest:
    """The request without keys and passwords: its settings are printed, and kept in the journal.

    Raises:
        InputError: a secret within a value that the launch needs, or one to be tried in several values.
    """
    serving = request.plan.serving
    for name, value in serving.given().items():
        if holds_named_secret(value):
            raise InputError(
                f"--config: {name.replace('_', '-')} holds a secret, which a run's journal would repeat",
                "leave it out, and give it to vLLM in a variable of the environment",
            )
    for name, values in request.knobs.items():
        if name in SECRET_FLAGS or holds_named_secret(values):
            raise InputError(
                f"--knob {name} holds a secret, which a run's journal would repeat", "leave it out"
            )
    left_out = sorted(SECRET_FLAGS & set(serving.other_flags))
    if not left_out:
        return request
    assumptions.append(
        f"no {', no '.join(left_out)} of --config: secrets are not kept in a run, its servers have a key of "
        "their own (a token for the hub belongs into HF_TOKEN)"
    )
    rest = {name: value for name, value in serving.other_flags.items() if name not in SECRET_FLAGS}
    plan = dataclasses.replace(request.plan, serving=dataclasses.replace(serving, other_flags=rest))
    return dataclasses.replace(request, plan=plan)
