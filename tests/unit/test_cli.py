"""The command line: exit codes, one-line errors, results on stdout. Each case is a process of its own."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvplan.errors import ExitCode

ROOT = Path(__file__).parents[2]


def kvplan(*argv: str, cwd: Path | None = None) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "kvplan", *argv], capture_output=True, text=True, check=False, cwd=cwd
    )
    return done.returncode, done.stdout, done.stderr


QWEN = ("estimate", "--model", "qwen2-7b", "--gpu", "4090", "--vllm-version", "0.32.0")


@pytest.mark.parametrize(
    ("argv", "what", "hint"),
    [
        (("estimate", "--model", "qwen2-7bb", "--gpu", "4090"), "no model 'qwen2-7bb'", "qwen2-7b"),
        (("estimate", "--model", "qwen2-7b", "--gpu", "4900"), "no GPU profile '4900'", "rtx-4090"),
        (
            (*QWEN, "--gpu-memory-utilization", "1.7"),
            "--gpu-memory-utilization 1.7 is outside 0 to 1",
            "0.92",
        ),
        ((*QWEN, "--max-model-len", "eight"), "--max-model-len: 'eight' is not a size", "8192"),
        (
            (*QWEN, "--target-concurrency", "4"),
            "--target-concurrency needs the requests' lengths",
            "--input-len",
        ),
        (
            (*QWEN, "--gpu", "all", "--target-concurrency", "4"),
            "--target-concurrency needs the requests' lengths",
            "--input-len",
        ),
        ((*QWEN, "--gpu", "all", "--solve"), "--gpu all and --solve cannot be asked at once", "name one"),
        ((*QWEN, "--what-if", "all", "--explain"), "--what-if and --explain cannot", "one after the other"),
        (("workload", "no/such.log"), "SOURCE: no file no/such.log", "or a preset"),
        ((*QWEN, "--input-len", "4"), "--output-len is missing", "a prompt and an answer"),
        ((*QWEN, "--vllm-version", "main"), "vLLM version 'main' is not a release number", "0.32.0"),
        (("estimate", "--gpu", "4090"), "no model given", "--model qwen2-7b"),
        (("estimate", "--nope"), "No such option: --nope", "kvplan estimate --help"),
        ((*QWEN, "extra"), "unexpected argument 'extra'", "--compare"),
        (("nosuch",), "No such command 'nosuch'", "kvplan --help"),
        ((*QWEN, "--workload", "no-such-traffic"), "no file or preset 'no-such-traffic'", ""),
        ((*QWEN, "--profiles", "/no/such/folder"), "/no/such/folder is not a folder", "models/"),
    ],
)
def test_a_users_error_is_one_line_with_a_hint(argv: tuple[str, ...], what: str, hint: str) -> None:
    code, out, err = kvplan(*argv)
    assert (code, out) == (ExitCode.CANNOT_JUDGE, "")
    assert len(err.splitlines()) == 1
    assert err.startswith("kvplan: ")
    assert what in err
    assert hint in err


def test_a_malformed_config_names_its_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{\n  "architectures": ["Qwen2ForCausalLM"],\n  oops\n}\n')
    code, out, err = kvplan("estimate", "--model", str(tmp_path), "--gpu", "4090")
    assert (code, out) == (ExitCode.CANNOT_JUDGE, "")
    assert re.search(r"config\.json:3:\d+", err)
    assert len(err.splitlines()) == 1


def test_a_vllm_config_with_an_unknown_key_names_the_nearest(tmp_path: Path) -> None:
    config = tmp_path / "vllm.yaml"
    config.write_text("model: qwen2-7b\nmax-num-sequences: 32\n")
    code, out, err = kvplan("estimate", "--config", str(config), "--gpu", "4090")
    assert (code, out) == (ExitCode.CANNOT_JUDGE, "")
    assert "vllm.yaml:2" in err
    assert "max-num-seqs" in err


def test_an_unknown_architecture_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["NovelForCausalLM"], "model_type": "novel"}')
    code, _, err = kvplan("estimate", "--model", str(tmp_path), "--gpu", "4090")
    assert code == ExitCode.CANNOT_JUDGE
    assert "NovelForCausalLM" in err


def test_what_starts_is_0_and_what_does_not_is_1() -> None:
    assert kvplan(*QWEN)[0] == ExitCode.OK
    assert kvplan("estimate", "--model", "Qwen/Qwen2-7B", "--gpu", "4090")[0] == ExitCode.NO


def test_a_target_that_is_not_met_is_1() -> None:
    lengths = ("--input-len", "1500", "--output-len", "512")
    assert kvplan(*QWEN, *lengths, "--target-concurrency", "32")[0] == ExitCode.OK
    assert kvplan(*QWEN, *lengths, "--target-concurrency", "200")[0] == ExitCode.NO


def test_results_go_to_stdout_and_json_is_one_object() -> None:
    code, out, err = kvplan(*QWEN, "--format", "json")
    assert (code, err) == (ExitCode.OK, "")
    assert json.loads(out)["schema"] == "kvplan.estimate/1"


def test_a_project_file_fills_what_is_missing_and_says_so(tmp_path: Path) -> None:
    (tmp_path / ".kvplan.yaml").write_text("model: qwen2-7b\ngpu: 4090\n")
    code, out, _ = kvplan("estimate", cwd=tmp_path)
    assert code == ExitCode.OK
    assert "model qwen2-7b (.kvplan.yaml)" in out


def test_a_reader_that_goes_away_is_nobodys_fault() -> None:
    command = (
        f"{sys.executable} -m kvplan estimate --gpu all --model qwen2-7b | head -1; echo ${{PIPESTATUS[0]}}"
    )
    done = subprocess.run(["/bin/bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0"
    assert done.stderr == ""


def test_the_version_is_printed() -> None:
    code, out, _ = kvplan("--version")
    assert code == ExitCode.OK
    assert re.fullmatch(r"kvplan \d+\.\d+\.\d+\n", out)


def test_every_exit_code_is_documented() -> None:
    table = (ROOT / "docs" / "exit-codes.md").read_text()
    for code in ExitCode:
        assert f"| {code.value} | {code.name} |" in table


def test_heavy_packages_stay_out_of_the_quick_commands() -> None:
    # what a quick command imports is what it costs; tests/bench/startup.py has the milliseconds
    script = (
        "import sys; sys.argv[1:] = ['estimate', '--model', 'qwen2-7b', '--gpu', '4090']\n"
        "from kvplan.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'vllm', 'numpy', 'scipy', 'aiohttp', 'httpx', 'pydantic', 'yaml', 'rich'} "
        "& set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)  # the index is built
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_an_interrupted_command_says_so_in_one_line(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "kvplan", "check", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    ) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2)  # it waits for stdin
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (ExitCode.INTERRUPTED, "", "kvplan: interrupted\n")
