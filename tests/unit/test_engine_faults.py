"""vLLM in bad moods: the failure is found and named, and nothing is left. The engine is a scripted fake."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from kvplan.config.serving import ServingConfig
from kvplan.engine.accounting import measure_non_kv
from kvplan.engine.cgroup import MemoryCgroup
from kvplan.engine.lock import EngineBusyError
from kvplan.engine.log_file import MAX_BYTES
from kvplan.engine.plan import LaunchPlan
from kvplan.engine.process_tree import SHM_DIR, all_processes
from kvplan.engine.server import Engine, EngineDiedError, EngineStartError, running_engine
from kvplan.errors import FailureClass, InputError, MissingDependencyError
from kvplan.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

FAKE = Path(__file__).parents[1] / "fake_vllm.py"
LOGS = Path(__file__).parents[1] / "data" / "logs"
CARD_BYTES = 256 * MIB


class Plans:
    """Launch plans for the fake."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def make(  # noqa: D102  what the class says
        self, mood: str = "fine", *, script: dict[str, Any] | None = None, **fields: Any
    ) -> LaunchPlan:
        values: dict[str, Any] = {
            "model": "fake/model",
            "settings": ServingConfig(max_model_len=2048),
            "device": "cpu",
            "work_dir": self.folder / "trial",
            "ready_timeout_s": 20.0,
            "program": (sys.executable, str(FAKE)),
            "env": {"FAKE_VLLM": json.dumps({"mood": mood, **(script or {})})},
        }
        return LaunchPlan(**(values | fields))


@pytest.fixture
def plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plans]:
    """Afterwards no process, port, shared memory, temporary folder, cgroup or note may be left."""
    monkeypatch.setenv("KVPLAN_LOCK_DIR", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    made = Plans(tmp_path)
    yield made
    # A guard may just have been born when its kvplan was killed.
    wait_until_nothing_is_left(made)


def left_in(folder: Path) -> list[str]:
    """What a launch has not cleaned up: the fake's processes and shared memory, notes, temporary folders."""
    left = [f"process {process.pid}" for process in all_processes().values() if is_fake(process.pid, folder)]
    left += [path.name for path in folder.glob("kvplan-*") if path.suffix != ".lock"]
    log = folder / "trial" / "vllm.log"
    text = log.read_bytes()[:4096].decode(errors="replace") if log.exists() else ""
    return left + [
        name for name in re.findall(r"holds ((?:psm_|sem\.)[\w-]+)", text) if (SHM_DIR / name).exists()
    ]


def is_fake(pid: int, folder: Path) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return FAKE.name.encode() in command and str(folder).encode() in environment


def ask(engine: Engine, **body: Any) -> httpx.Response:
    request = {"model": engine.served_model_name, "prompt": "hello", "max_tokens": 8, **body}
    headers = {"Authorization": f"Bearer {engine.api_key}"}
    return httpx.post(f"{engine.base_url}/v1/completions", json=request, headers=headers, timeout=1)


def fails_to_start(plan: LaunchPlan) -> EngineStartError:
    with pytest.raises(EngineStartError) as caught, running_engine(plan):
        pytest.fail("it started")
    launch = caught.value.launch
    assert launch.outcome == "failed"
    assert launch.failure is caught.value.failure
    assert launch.ready_s is None
    return caught.value


def test_a_server_is_ready_under_its_name_and_key_and_gone_afterwards(plans: Plans) -> None:
    events: list[str] = []
    with running_engine(plans.make(), on_event=lambda event: events.append(event.kind)) as engine:
        assert ask(engine).status_code == 200
        assert httpx.get(f"{engine.base_url}/v1/models").status_code == 401
        pids = engine.pids()
        metrics = engine.metrics()
        launch = engine.launch
    assert len(pids) >= 2
    assert metrics is not None
    assert (metrics.running, metrics.generation_tokens_total) == (0, 8)
    assert launch.outcome == "started"
    assert launch.facts.kv_cache_tokens == 131_072
    assert (launch.facts.num_gpu_blocks, launch.facts.block_size) == (1024, 128)  # from /metrics
    assert launch.memory_limit == "none"
    assert events == ["starting", "ready", "stopping", "stopped"] or events[1] == "phase"


def test_a_server_that_is_never_ready_times_out(plans: Plans) -> None:
    error = fails_to_start(plans.make("never_ready", ready_timeout_s=1.5))
    assert error.failure is FailureClass.TIMEOUT


def test_a_start_that_hangs_without_a_word_times_out(plans: Plans) -> None:
    error = fails_to_start(plans.make("hangs_at_start", ready_timeout_s=1.5))
    assert (error.failure, error.decisive_line) == (FailureClass.TIMEOUT, None)


def test_somebody_elses_server_on_the_port_does_not_pass_for_ours(plans: Plans) -> None:
    error = fails_to_start(plans.make("other_name", ready_timeout_s=2))
    assert error.failure is FailureClass.TIMEOUT


def test_a_traceback_is_noticed_although_the_process_lives_on(plans: Plans) -> None:
    start = time.monotonic()
    error = fails_to_start(plans.make("traceback_then_hangs"))
    assert time.monotonic() - start < 10
    assert error.failure is FailureClass.KV_TOO_SMALL
    assert error.launch.facts.estimated_max_model_len == 8192
    assert error.launch.exit_status is None
    assert "\n" not in error.message


@pytest.mark.parametrize(
    ("log", "failure"),
    [
        ("oom-sampler.log", FailureClass.OOM_SAMPLER),
        ("oom-capture.log", FailureClass.OOM_CUDAGRAPH),
        ("free-memory-0.9.1.log", FailureClass.FREE_MEMORY_LOW),
        ("cpu-0.32-bad-flag.log", FailureClass.BAD_FLAG),
    ],
)
def test_a_death_at_start_is_explained_by_the_log(plans: Plans, log: str, failure: FailureClass) -> None:
    error = fails_to_start(plans.make("dies_with_log", script={"log": str(LOGS / log)}))
    assert (error.failure, error.launch.exit_status) == (failure, 1)


def test_a_death_without_a_word_is_unknown_with_its_status(plans: Plans) -> None:
    error = fails_to_start(plans.make(program=(sys.executable, "-c", "raise SystemExit(7)")))
    assert (error.failure, error.launch.exit_status) == (FailureClass.UNKNOWN, 7)
    assert error.decisive_line == "vLLM exited with status 7 and no word in its log"


def test_a_program_that_cannot_be_run_is_told(plans: Plans) -> None:
    program = plans.folder / "vllm"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    error = fails_to_start(plans.make(program=(str(program),)))
    assert error.failure is FailureClass.UNKNOWN
    assert "No such file or directory" in (error.decisive_line or "")


def test_a_server_that_ignores_sigterm_is_killed(plans: Plans) -> None:
    with running_engine(plans.make("ignores_sigterm")):
        start = time.monotonic()
    assert time.monotonic() - start < 8


def test_a_leader_that_dies_is_noticed_and_its_child_goes_too(plans: Plans) -> None:
    with pytest.raises(EngineDiedError) as caught, running_engine(plans.make("leader_dies")) as engine:
        engine.check_for(5)
    assert caught.value.launch.phase == "serving"
    assert caught.value.launch.ready_s is not None


def test_a_death_under_load_is_what_the_block_reports(plans: Plans) -> None:
    with pytest.raises(EngineDiedError) as caught, running_engine(plans.make("dies_on_request")) as engine:
        ask(engine, stream=True)
    assert isinstance(caught.value.__context__, httpx.HTTPError)


def test_running_out_of_memory_under_load_is_noticed_although_the_process_lives_on(plans: Plans) -> None:
    with (
        pytest.raises(EngineDiedError) as caught,
        running_engine(plans.make("fatal_on_request", script={"start_s": 0})) as engine,
    ):
        assert ask(engine).status_code == 500
    facts = caught.value.launch.facts
    assert caught.value.failure is FailureClass.OOM_SERVING
    assert (facts.needed_bytes, facts.available_bytes) == (1280 * MIB, 312 * MIB)
    assert facts.kv_cache_tokens == 131_072


@pytest.mark.parametrize("mood", ["answers_500", "stalls"])
def test_bad_answers_are_the_clients_to_judge(plans: Plans, mood: str) -> None:
    with running_engine(plans.make(mood)) as engine:
        try:
            status = ask(engine, stream=True).status_code
        except httpx.ReadTimeout:
            status = None
        engine.check()
        assert engine.answers()
    assert status == (500 if mood == "answers_500" else None)


def test_a_hang_under_load_shows_in_that_nothing_is_answered(plans: Plans) -> None:
    with running_engine(plans.make("hangs_under_load")) as engine:
        with pytest.raises(httpx.ReadTimeout):
            ask(engine)
        assert not engine.answers(timeout_s=0.5)
        engine.check()


def test_a_flooded_log_fills_neither_memory_nor_disk(plans: Plans) -> None:
    memory_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    plan = plans.make("floods_log")
    largest = 0
    with running_engine(plan) as engine:
        deadline = time.monotonic() + 4
        while time.monotonic() < deadline:
            engine.check()
            largest = max(largest, plan.log_path.stat().st_size)
            time.sleep(0.1)
    assert largest > MAX_BYTES
    assert plan.log_path.stat().st_size < MAX_BYTES
    assert b"bytes of the log were dropped here" in plan.log_path.read_bytes()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory_before < 200 * 1024


def test_garbage_on_metrics_is_unknown_and_no_failure(plans: Plans) -> None:
    with running_engine(plans.make("garbage_metrics")) as engine:
        metrics = engine.metrics()
        assert metrics is not None
        assert metrics.running is None
        assert engine.launch.facts.num_gpu_blocks is None


def test_a_kill_by_the_kernel_is_told_by_the_cgroups_counter(plans: Plans) -> None:
    if (cgroup := MemoryCgroup.create(CARD_BYTES)) is None:
        pytest.skip("no memory cgroup can be made here")
    cgroup.remove()
    script = {"memory_bytes": 2 * CARD_BYTES}
    error = fails_to_start(plans.make("eats_memory", script=script, card_bytes=CARD_BYTES))
    assert error.failure is FailureClass.KILLED
    assert error.launch.memory_limit == "cgroup"
    assert error.launch.oom_kill_count == 1
    assert error.launch.gpu_total_bytes == CARD_BYTES
    assert list(cgroup.path.parent.glob(f"kvplan-{os.getpid()}-*")) == []


def test_without_a_cgroup_the_memory_is_watched_and_the_launch_ended(
    plans: Plans, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryCgroup, "create", lambda _: None)
    script = {"memory_bytes": 2 * CARD_BYTES, "start_s": 10}
    error = fails_to_start(plans.make("eats_memory", script=script, card_bytes=CARD_BYTES))
    assert error.failure is FailureClass.KILLED
    assert error.launch.memory_limit == "rss"
    assert error.launch.oom_kill_count is None
    assert (error.launch.peak_bytes or 0) > CARD_BYTES


@pytest.mark.parametrize("with_cgroup", [True, False])
def test_memory_without_the_kv_cache_is_what_remains(
    plans: Plans, monkeypatch: pytest.MonkeyPatch, with_cgroup: bool
) -> None:
    if not with_cgroup:
        monkeypatch.setattr(MemoryCgroup, "create", lambda _: None)
    kv_bytes = 100 * MIB
    plan = plans.make(
        script={"kv_bytes": kv_bytes},
        card_bytes=CARD_BYTES,
        settings=ServingConfig(kv_cache_memory_bytes=kv_bytes),
    )
    with running_engine(plan) as engine:
        time.sleep(0.6)
        non_kv = measure_non_kv(engine)
        series = engine.memory_series()
    assert non_kv is not None
    # Two bare Python processes.
    assert 5 * MIB < non_kv.ready_bytes < 100 * MIB
    assert non_kv.peak_bytes >= non_kv.ready_bytes
    assert series


def test_a_port_in_use_is_refused_before_anything_is_started(plans: Plans) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with (
            pytest.raises(InputError, match=f"port {port} can't be used"),
            running_engine(plans.make(port=port)),
        ):
            pytest.fail("it started")
    assert not (plans.folder / "trial").exists()


def test_a_folder_that_cannot_be_written_is_refused(plans: Plans) -> None:
    (plans.folder / "trial").write_text("a file")
    with pytest.raises(InputError, match="File exists"), running_engine(plans.make()):
        pytest.fail("it started")
    (plans.folder / "trial").unlink()


def test_a_full_disk_is_refused(plans: Plans) -> None:
    plan = plans.make()
    plan.work_dir.mkdir()
    plan.log_path.symlink_to("/dev/full")
    with pytest.raises(InputError, match="No space left on device"), running_engine(plan):
        pytest.fail("it started")
    plan.log_path.unlink()


def test_a_missing_vllm_names_the_extra(plans: Plans, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    plan = LaunchPlan(model="m", settings=ServingConfig(), device="cpu", work_dir=plans.folder / "trial")
    with pytest.raises(MissingDependencyError) as caught, running_engine(plan):
        pytest.fail("it started")
    assert caught.value.hint == "pip install 'kvplan-tuner[cpu]'"


def test_a_torchvision_that_breaks_vllm_is_named(plans: Plans, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvplan.engine.preflight._broken_companion", lambda: "torchvision")
    plan = LaunchPlan(model="m", settings=ServingConfig(), device="cpu", work_dir=plans.folder / "trial")
    with pytest.raises(MissingDependencyError, match="torchvision") as caught, running_engine(plan):
        pytest.fail("it started")
    assert caught.value.hint == "pip uninstall -y torchvision torchaudio torchcodec"


def test_a_second_engine_on_the_device_is_refused_or_waits(plans: Plans) -> None:
    events: list[str] = []
    with running_engine(plans.make()):
        second = running_engine(
            plans.make(), lock_wait_s=0.3, on_event=lambda event: events.append(event.text)
        )
        with pytest.raises(EngineBusyError, match=f"pid {os.getpid()}"), second:
            pytest.fail("two engines on one device")
    assert [text for text in events if "waiting for the engine of" in text]


OWNER = """
import json, sys, time
from pathlib import Path
from kvplan.config.serving import ServingConfig
from kvplan.engine.plan import LaunchPlan
from kvplan.engine.server import running_engine

plan = LaunchPlan("fake/model", ServingConfig(), "cpu", Path({folder!r}) / "trial", card_bytes={card},
                  program=(sys.executable, {fake!r}), env={{"FAKE_VLLM": json.dumps({{"mood": {mood!r}}})}})
with running_engine(plan) as engine:
    print("ready", engine._process.guard_pid, flush=True)
    time.sleep(60)
"""


def start_owner(plans: Plans, mood: str = "ignores_sigterm") -> subprocess.Popen[str]:
    """A kvplan of its own, with a fake engine that does not go by itself."""
    code = OWNER.format(folder=str(plans.folder), card=CARD_BYTES, fake=str(FAKE), mood=mood)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def read_guard(owner: subprocess.Popen[str]) -> int:
    assert owner.stdout is not None
    word, pid = owner.stdout.readline().split()
    assert word == "ready"
    return int(pid)


def wait_until_nothing_is_left(plans: Plans, timeout_s: float = 10) -> None:
    deadline = time.monotonic() + timeout_s
    while (left := left_in(plans.folder)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []


def finish(owner: subprocess.Popen[str]) -> int:
    status = owner.wait(timeout=20)
    if owner.stdout is not None:
        owner.stdout.close()
    return status


@pytest.mark.parametrize("delay_s", [0.3, 0.45, 0.6, 0.75, 0.9, 1.5])
def test_kill_9_of_kvplan_at_any_moment_leaves_nothing(plans: Plans, delay_s: float) -> None:
    owner = start_owner(plans)
    time.sleep(delay_s)
    owner.kill()
    finish(owner)
    wait_until_nothing_is_left(plans)


@pytest.mark.parametrize(
    "signals", [[signal.SIGTERM], [signal.SIGINT], [signal.SIGINT, signal.SIGINT], [signal.SIGHUP]]
)
def test_a_signal_to_kvplan_leaves_nothing(plans: Plans, signals: list[signal.Signals]) -> None:
    owner = start_owner(plans)
    read_guard(owner)
    for number in signals:
        owner.send_signal(number)
        time.sleep(0.3)
    assert finish(owner) != 0
    wait_until_nothing_is_left(plans)


SIGNAL_IN_A_FINALIZER = """
import os, signal, sys
from kvplan.engine.interrupts import raise_if_interrupted, signals_as_interrupts

class Finalized:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(1000):
            pass

with signals_as_interrupts():
    raise_if_interrupted()
    Finalized()
    print("thrown away", flush=True)
    try:
        raise_if_interrupted()
    except KeyboardInterrupt:
        print("heard", flush=True)
    raise_if_interrupted()
"""


def test_a_signal_that_python_throws_away_is_heard_at_the_next_look() -> None:
    command = [sys.executable, "-c", SIGNAL_IN_A_FINALIZER]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "thrown away\nheard\n"), done.stderr
    assert "Exception ignored in" in done.stderr


def kill_guard(engine: Engine) -> None:
    os.kill(engine._process.guard_pid, signal.SIGKILL)
    engine.check_for(5)


def test_kvplan_cleans_up_after_its_own_guard_was_killed(plans: Plans) -> None:
    with (
        pytest.raises(EngineDiedError, match="guard"),
        running_engine(plans.make("ignores_sigterm")) as engine,
    ):
        kill_guard(engine)


def test_the_next_run_cleans_up_after_kvplan_and_guard_were_both_killed(plans: Plans) -> None:
    owner = start_owner(plans)
    guard = read_guard(owner)
    time.sleep(0.7)  # the guard notes new processes twice a second
    os.kill(guard, signal.SIGKILL)
    owner.kill()
    finish(owner)
    assert left_in(plans.folder) != []
    told: list[str] = []
    with running_engine(plans.make(), on_event=lambda event: told.append(event.text)):
        pass
    # The fake, its child, and Python's resource tracker unless it had gone by itself.
    words = r"ended [23] processes that a killed launch had left"
    assert [text for text in told if re.fullmatch(words, text)]


def test_a_killed_owner_does_not_hold_the_device(plans: Plans) -> None:
    owner = start_owner(plans)
    read_guard(owner)
    owner.kill()
    finish(owner)
    with running_engine(plans.make(), lock_wait_s=15) as engine:
        assert engine.answers()


def test_a_folder_for_locks_that_is_not_there_is_named(plans: Plans, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVPLAN_LOCK_DIR", str(plans.folder / "none"))
    with pytest.raises(InputError, match="No such file") as caught, running_engine(plans.make()):
        pytest.fail("it started")
    assert "KVPLAN_LOCK_DIR" in (caught.value.hint or "")
