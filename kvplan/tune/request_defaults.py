"""What a request leaves open: from the demo, the project file or the machine; each is told as assumed."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

from kvplan.config.project_file import FILE_NAME, read_project_file
from kvplan.errors import InputError

if TYPE_CHECKING:
    from kvplan.tune.problem import Device
    from kvplan.tune.request import TuneRequest

DEMO_CARD_GIB: Final = 2.0
DEMO_TARGET: Final = 8
DEMO_INPUT_LEN: Final = 256
DEMO_OUTPUT_LEN: Final = 64


def with_demo(request: TuneRequest, assumptions: list[str]) -> TuneRequest:
    """The tiny model on a small card with a small load; what the user gave stays."""
    plan = request.plan
    if plan.model is None:
        from kvplan.engine.demo_model import make_demo_model

        plan = dataclasses.replace(plan, model=str(make_demo_model()))
        assumptions.append("a tiny model with random weights (--demo)")
    if plan.device is None and plan.gpu is None:
        plan = dataclasses.replace(plan, device="cpu")
        assumptions.append("vLLM's CPU backend (--device)")
    if plan.device == "cpu" and plan.gpu_memory_gib is None:
        plan = dataclasses.replace(plan, gpu_memory_gib=DEMO_CARD_GIB)
        assumptions.append(f"a card of {DEMO_CARD_GIB:g} GiB (--gpu-memory-gib)")
    if plan.workload is None and plan.input_len is None and plan.output_len is None:
        plan = dataclasses.replace(plan, input_len=DEMO_INPUT_LEN, output_len=DEMO_OUTPUT_LEN)
        assumptions.append(f"{DEMO_INPUT_LEN} tokens in, {DEMO_OUTPUT_LEN} out (--input-len, --output-len)")
    if plan.target_concurrency is None:
        plan = dataclasses.replace(plan, target_concurrency=DEMO_TARGET)
        assumptions.append(f"{DEMO_TARGET} users at once (--target-concurrency)")
    if plan.serving.enforce_eager is None:
        plan = dataclasses.replace(plan, serving=plan.serving.with_flags(enforce_eager=True))
        assumptions.append("no compilation, so that starts are short (--no-enforce-eager)")
    return dataclasses.replace(request, plan=plan)


def with_project(request: TuneRequest, assumptions: list[str]) -> TuneRequest:
    """What `.kvplan.yaml` gives where the command line gave nothing."""
    project, plan = read_project_file(), request.plan
    if project is None:
        return request
    names = ["target_concurrency"]
    names += ["model"] if plan.serving.model is None else []
    names += ["gpu", "gpu_memory_gib", "device"] if plan.gpu is None and plan.device is None else []
    names += ["workload"] if plan.input_len is None and plan.output_len is None else []
    taken = {
        name: value
        for name in names
        if getattr(plan, name) is None and (value := getattr(project, name)) is not None
    }
    assumptions += [f"{name} {value} ({FILE_NAME})" for name, value in taken.items()]
    return dataclasses.replace(request, plan=dataclasses.replace(plan, **taken))


def with_device(request: TuneRequest, assumptions: list[str]) -> tuple[Device, TuneRequest]:
    """cuda where there is a card or one was named, else cpu."""
    plan = request.plan
    named = plan.device or ("cuda" if plan.gpu is not None else None)
    if named is None:
        from kvplan.catalog.gpus import detect_gpus

        named = "cuda" if detect_gpus() else "cpu"
        if named == "cpu":
            if plan.gpu_memory_gib is None:
                raise InputError(
                    "no GPU was found here through NVML, so there is nothing to tune on",
                    "run it on the GPU machine; or try --demo (a tiny model on this CPU), --device cpu "
                    "--gpu-memory-gib N (your model on this CPU), --url of a server that runs, --gpu NAME "
                    "--dry-run (the plan alone); kvplan estimate needs no GPU",
                )
            assumptions.append("vLLM's CPU backend: no GPU was found here (--device)")
    if named not in {"cuda", "cpu"}:
        raise InputError(f"--device {named!r} is not known", "cuda or cpu")
    device: Device = "cuda" if named == "cuda" else "cpu"
    if device == "cpu" and plan.gpu_memory_gib is None:
        raise InputError(
            "on CPU the card has the size that you give it, and none was given",
            "for example --gpu-memory-gib 4",
        )
    plan = dataclasses.replace(plan, device=device if device == "cpu" else plan.device)
    return device, dataclasses.replace(request, plan=plan)
