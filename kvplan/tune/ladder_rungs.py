"""One step of the ladder, really made: started, loaded, measured, gone. What fails is a row, not an error."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import shutil
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kvplan.calibration.store import remember
from kvplan.engine.plan import LaunchPlan, environment, printable_command
from kvplan.engine.server import EngineDiedError, EngineStartError, running_engine
from kvplan.errors import FailureClass, KvplanError, LoadError
from kvplan.load.cores import client_off
from kvplan.load.measure import measure_load
from kvplan.load.records import Endpoint
from kvplan.tune.execute import launched_settings, wait_for_memory
from kvplan.tune.ladder import REPEATS
from kvplan.tune.ladder_result import RungResult
from kvplan.tune.ladder_transformers import CHILD, Generation, generate
from kvplan.tune.load_point import LoadPoint, load_point
from kvplan.tune.problem import settings_from_dict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from kvplan.engine.server import Engine, EngineEvent
    from kvplan.launch import Launch
    from kvplan.tune.ladder import Load, Rung, Scale

_MEMORY_WAIT_S: Final = 120.0


def middle_of(repeats: Sequence[LoadPoint]) -> tuple[LoadPoint, float | None]:
    """The repeat whose throughput is the middle one, and how far apart they were.

    One that was not answered whole stands for all: it is what a reader must see.
    """
    failed = next((point for point in repeats if not point.is_usable), None)
    known = sorted(
        (point for point in repeats if point.output_throughput is not None),
        key=lambda point: point.output_throughput or 0.0,
    )
    if failed is not None or not known:
        return failed or repeats[0], None
    middle = known[len(known) // 2]
    rates = [point.output_throughput or 0.0 for point in known]
    spread = (rates[-1] - rates[0]) / middle.output_throughput if middle.output_throughput else None
    short = [point for point in repeats if point.waited_for_memory or point.preemptions]
    if short and not (middle.waited_for_memory or middle.preemptions):
        # Seen in one repeat is seen: gauges are looked at twice a second.
        seen = short[0]
        middle = dataclasses.replace(
            middle, waited_for_memory=seen.waited_for_memory, preemptions=seen.preemptions
        )
    return middle, spread


@dataclass(slots=True)
class RungMaker:
    """Makes the steps of one ladder on this machine."""

    model: str
    scale: Scale
    card_bytes: int
    folder: Path
    """The run's folder."""
    tell: Callable[[str], None]
    seed: int = 0
    dtype: str | None = None
    gpu: str | None = None
    generator: tuple[str, ...] = CHILD
    """What is run for a Transformers step."""
    generate_s: float = 120.0
    """Longest that Transformers may generate."""
    ready_timeout_s: float = 900.0
    launches: Path | None = None
    """The store that every real launch is added to; None keeps none."""
    _began: float = field(default=0.0, init=False)

    def make(self, rung: Rung) -> RungResult:
        """One step.

        Raises:
            KvplanError: nothing could be started at all; nothing of it is running.
            KeyboardInterrupt: passed on, after what was started was stopped.
        """
        folder = self.folder / "rungs" / rung.name
        shutil.rmtree(folder, ignore_errors=True)  # what an interrupted attempt left
        folder.mkdir(parents=True)
        if self.scale.device == "cpu":
            wait_for_memory(self.card_bytes, _MEMORY_WAIT_S)
        return self._generated(rung, folder) if rung.engine == "transformers" else self._served(rung, folder)

    def _plan(self, rung: Rung, folder: Path) -> LaunchPlan:
        return LaunchPlan(
            model=self.model,
            settings=launched_settings(settings_from_dict(dict(rung.flags)), self.scale.device),
            device=self.scale.device,
            work_dir=folder,
            card_bytes=self.card_bytes,
            gpu=self.gpu,
            ready_timeout_s=self.ready_timeout_s,
            served_model_name=f"kvplan-ladder-{rung.name}",
        )

    def _generated(self, rung: Rung, folder: Path) -> RungResult:
        work = Generation(
            self._plan(rung, folder),
            rung,
            self.scale,
            self.generate_s,
            seed=self.seed,
            dtype=self.dtype,
            command=self.generator,
        )
        return generate(work, lambda text: self.tell(f"    {text}"))

    def _served(self, rung: Rung, folder: Path) -> RungResult:
        plan = self._plan(rung, folder)
        made = RungResult(rung.name, dict(rung.flags), printable_command(plan), log_path=str(plan.log_path))
        loads: dict[str, LoadPoint] = {}
        spreads: dict[str, float] = {}
        self._began = time.monotonic()
        try:
            with running_engine(plan, on_event=self._on_event) as engine:
                for load in self.scale.loads():
                    repeats = [
                        self._load(engine, load, repeat, is_first=not loads and repeat == 0)
                        for repeat in range(REPEATS)
                    ]
                    loads[load.name], spread = middle_of(repeats)
                    spreads |= {} if spread is None else {load.name: spread}
                    self._say_speed(loads[load.name], spread)
                launch = engine.launch
        except (EngineStartError, EngineDiedError) as error:
            self._remember(error.launch)
            return dataclasses.replace(
                made,
                loads=loads,
                spreads=spreads,
                wall_s=self._wall_s(),
                failure=error.failure,
                evidence=error.decisive_line or error.message,
                peak_memory_bytes=error.launch.peak_bytes,
                kv_cache_tokens=error.launch.facts.kv_cache_tokens,
            )
        except LoadError as error:
            return dataclasses.replace(
                made, loads=loads, failure=FailureClass.UNKNOWN, evidence=error.message
            )
        self._remember(launch)
        return dataclasses.replace(
            made,
            loads=loads,
            spreads=spreads,
            wall_s=self._wall_s(),
            peak_memory_bytes=launch.peak_bytes,
            kv_cache_tokens=launch.facts.kv_cache_tokens,
            ready_s=launch.ready_s,
        )

    def _remember(self, launch: Launch) -> None:
        """Let later estimates learn from it; a store that cannot be written stops nothing."""
        if self.launches is not None:
            with contextlib.suppress(KvplanError):
                remember(launch, self.launches)

    def _load(self, engine: Engine, load: Load, repeat: int, *, is_first: bool) -> LoadPoint:
        if repeat == 0:
            self.tell(f"    {load.title}")
        before = len(engine.memory_series())
        bound = environment(engine.plan).get("VLLM_CPU_OMP_THREADS_BIND")
        with client_off(bound):
            measurement = asyncio.run(
                measure_load(
                    Endpoint(engine.base_url, engine.served_model_name, engine.api_key),
                    load.workload,
                    concurrency=load.users,
                    num_requests=load.num_requests,
                    seed=self.seed + repeat,
                    warmup_requests=None if is_first else 0,
                    max_num_seqs=engine.plan.settings.max_num_seqs,
                    check=engine.check,
                )
            )
        peak = max((used for _, used in engine.memory_series()[before:]), default=None)
        return load_point(load.users, measurement, peak)

    def _say_speed(self, point: LoadPoint, spread: float | None) -> None:
        rate = "n/a" if point.output_throughput is None else f"{point.output_throughput:,.0f}"
        apart = "" if spread is None else f", repeats {spread:.0%} apart"
        self.tell(f"      {rate} output tokens/s{apart}")

    def _wall_s(self) -> float:
        return round(time.monotonic() - self._began, 3)

    def _on_event(self, event: EngineEvent) -> None:
        if event.kind == "starting":
            # Waiting for somebody else's engine is no time of this step.
            self._began = time.monotonic()
        if event.kind in {"waiting", "cleaned_up", "memory_held", "ready"}:
            self.tell(f"    {event.kind.replace('_', ' ')}: {event.text}")
