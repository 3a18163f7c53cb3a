"""Finds vLLM in the words of one command: through wrappers, `docker run`, `python -m` and `bash -c`."""

from __future__ import annotations

import posixpath
import re
from typing import TYPE_CHECKING, Final

from kvplan.config.flag_table import flag_table
from kvplan.gate.docker_run import TOOLS, count_devices, count_visible, read_docker_run
from kvplan.gate.reading import is_vllm_image, is_vllm_server_image
from kvplan.gate.taint import is_all_unknown, is_unknown, notes_of, without_notes
from kvplan.gate.word_tables import BAIT, SHELLS, TALK, TELLING_SETTINGS, TEXT_RUNNERS, TRANSPARENT, WRAPPERS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvplan.gate.docker_run import DockerRun
    from kvplan.gate.reading import Reading, Surroundings
    from kvplan.gate.taint import Word

    RunText = Callable[[str, Word, Surroundings], None]
    """Reads a shell text that a command carries; the word says where it stands."""

_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*=")
_PYTHON: Final = r"(python|pypy)[\d.]*"
_SHELL_C: Final = r"-[a-zA-Z]*c"
_SERVER_MODULES: Final = (
    r"vllm\.entrypoints\.(openai\.)?(api_server|grpc_server|launcher)|vllm\.entrypoints\.openai|dynamo\.vllm"
    r"|vllm\.entrypoints\.openai\.rpc\.server"
)
_CLI_MODULES: Final = frozenset({"vllm", "vllm.entrypoints.cli.main", "vllm.scripts", "vllm.entrypoints.cli"})
_OTHER_SERVERS: Final = (
    r"sglang|aphrodite|lmdeploy|text-generation|tgi|triton|tensorrt|trtllm|llama|ollama|infinity|inference-sim"
    r"|router"
)
_SERVER_FILE: Final = r"(.*/)?vllm/entrypoints/(openai/)?api_server\.py"


class CommandReader:
    """Reads the words of single commands for one file."""

    def __init__(self, reading: Reading, run_text: RunText) -> None:
        self._reading = reading
        self._run_text = run_text

    def read(self, words: Sequence[Word], around: Surroundings) -> bool:
        """Record the launches of one command; false when it starts no vLLM."""
        words, around = self._strip_assignments(list(words), around)
        for _ in range(20):
            if not words:
                return False
            name = _basename(words[0])
            if name in TRANSPARENT:
                words = self._after_options(words[1:])
            elif name == "env":
                words, around = self._env(words[1:], around)
            else:
                break
            words, around = self._strip_assignments(words, around)
        if not words:
            return False
        return self._command(words, around)

    def _command(self, words: list[Word], around: Surroundings) -> bool:  # noqa: PLR0911  one branch a kind
        name = _basename(words[0])
        if name == "vllm":
            return self._vllm(words, 0, around)
        if re.fullmatch(_PYTHON, name):
            return self._python(words, around)
        if name in TOOLS:
            return self._docker(words, around)
        if name in SHELLS:
            return self._shell(words, around)
        if re.fullmatch(_SERVER_FILE, without_notes(words[0].text)):
            return self._launch(words[1:], words[0], around)
        if name in TALK or name.startswith(("echo", "log", "print", "warn", "err", "info", "usage")):
            return False
        return self._inside(words, around)

    def _inside(self, words: list[Word], around: Surroundings) -> bool:  # noqa: PLR0911  one branch a kind
        """Look behind a wrapper, or the name of a function, for a whole vLLM command in separate words."""
        name = _basename(words[0])
        for i in range(1, len(words)):
            inner = _basename(words[i])
            if inner in BAIT:
                return False
            following = without_notes(words[i + 1].text) if i + 1 < len(words) else ""
            if inner == "vllm" and following == "serve":
                return self._vllm(words[i:], 0, around)
            if re.fullmatch(_PYTHON, inner) and self._python(words[i:], around):
                return True
            if following and without_notes(words[i].text) == "-m" and _is_module(following):
                return self._module(words[i + 1 :], around)
            if name in WRAPPERS and inner in TOOLS and following in {"run", "exec", "create", "compose"}:
                return self._docker(words[i:], around)
            if name in WRAPPERS | TOOLS and inner in SHELLS and re.fullmatch(_SHELL_C, following):
                return self._shell(words[i:], around)
        if name not in TEXT_RUNNERS:
            return False
        before = len(self._reading.launches)
        for word in words[1:]:
            text = word.text.removeprefix("--wrap=")
            if "vllm" in text and " " in text:
                self._run_text(text, word, around)
        return len(self._reading.launches) > before

    def _vllm(self, words: list[Word], at: int, around: Surroundings) -> bool:
        rest = words[at + 1 :]
        if not rest:
            return False
        verb = without_notes(rest[0].text)
        if verb != "serve":
            return False
        return self._launch(rest[1:], words[at], around)

    def _python(self, words: list[Word], around: Surroundings) -> bool:
        i = 1
        while i < len(words):
            text = without_notes(words[i].text)
            if text == "-m" or (
                text.startswith("-") and text.endswith("m") and len(text) < 5 and text[1] != "-"
            ):
                return self._module(words[i + 1 :], around)
            if text in {"-X", "-W"}:
                i += 2
                continue
            if text == "-c" or not text.startswith("-"):
                break
            i += 1
        if i < len(words):
            text = without_notes(words[i].text)
            if re.fullmatch(_SERVER_FILE, text):
                return self._launch(words[i + 1 :], words[i], around)
            if posixpath.basename(text) == "vllm" and "/bin/" in text:
                return self._vllm(words, i, around)
        return False

    def _module(self, words: list[Word], around: Surroundings) -> bool:
        if not words:
            return False
        module = without_notes(words[0].text)
        if module in _CLI_MODULES:
            return self._vllm(words, 0, around)
        if re.fullmatch(_SERVER_MODULES, module):
            return self._launch(words[1:], words[0], around)
        if module in {"coverage", "torch.distributed.run", "cProfile", "viztracer", "memray"}:
            return self._inside(words, around)
        return False

    def _shell(self, words: list[Word], around: Surroundings) -> bool:
        for i, word in enumerate(words[1:], 1):
            text = without_notes(word.text)
            if re.fullmatch(_SHELL_C, text) and i + 1 < len(words):
                before = len(self._reading.launches)
                self._run_text(words[i + 1].text, words[i + 1], around)
                return len(self._reading.launches) > before
            if not text.startswith(("-", "+")):
                return False
        return False

    def _docker(self, words: list[Word], around: Surroundings) -> bool:
        i = 1
        while i < len(words) and without_notes(words[i].text).startswith("-"):
            i += 1
        if i < len(words) and without_notes(words[i].text) == "container":
            i += 1
        verb = without_notes(words[i].text) if i < len(words) else ""
        if verb not in {"run", "create"}:
            return self._inside(words, around) if verb in {"exec", "compose"} else False
        run = read_docker_run(words[i + 1 :])
        if run is None:
            return False
        return self._container(run, around)

    def _container(self, run: DockerRun, around: Surroundings) -> bool:
        env = dict(around.env) | {key: value for key, value in run.env.items() if value is not None}
        visible = run.env.get("CUDA_VISIBLE_DEVICES") or run.env.get("NVIDIA_VISIBLE_DEVICES")
        counted = count_devices(run.gpus)
        if counted is None:
            counted = count_visible(visible)
        inner = around.but(
            env=env,
            image=run.image.text,
            num_gpus=counted,
            name=self._reading.taint.readable(run.name) if run.name else around.name,
            format=f"{around.format} (docker run)" if around.format == "shell" else around.format,
        )
        entry = [run.entrypoint] if run.entrypoint is not None else None
        return self.container(entry, run.arguments, inner, run.image)

    def container(
        self, entrypoint: Sequence[Word] | None, arguments: Sequence[Word], around: Surroundings, image: Word
    ) -> bool:
        """Record a container's launch: entrypoint and arguments, or arguments for the image's own entrypoint.

        Args:
            entrypoint: None when the container does not override it.
            arguments: words after the image, or the `args` of a pod.
            around: what the container's place says.
            image: the image as a word; its place is the launch's when no vLLM word is written.
        """
        if entrypoint:
            return self.read([*entrypoint, *arguments], around)
        if self._starts_server(around.image, arguments):
            words = list(arguments)
            if words and without_notes(words[0].text) == "serve":
                words = words[1:]
            return self._launch(words, image, around)
        return self.read(arguments, around)

    def _starts_server(self, image: str | None, arguments: Sequence[Word]) -> bool:
        """Whether the image's own entrypoint is vLLM's server and the arguments are its flags."""
        name = without_notes(image or "").partition("@")[0]
        bare = name.rpartition(":")[0] if ":" in name.rpartition("/")[2] else name
        bare = bare or name
        first = without_notes(arguments[0].text) if arguments else ""
        if is_vllm_server_image(bare):
            return not _is_program(first)
        if is_vllm_image(bare) and not first.startswith("-"):
            # An image built on vLLM's, and a model before the flags: vLLM's own entrypoint is still there.
            return bool(first) and not _is_program(first) and self.known_flags(arguments) > 1
        if not first.startswith("--"):
            return False
        if is_vllm_image(bare) or is_unknown(name) or "vllm" in name.lower():
            return self.known_flags(arguments) > 0
        return not re.search(_OTHER_SERVERS, name.lower()) and self._only_vllm_takes(arguments)

    def _only_vllm_takes(self, arguments: Sequence[Word]) -> bool:
        """Whether no other server takes these words: an image's name may be a placeholder or a team's own."""
        names = {
            without_notes(word.text).partition("=")[0].lstrip("-").replace("-", "_")
            for word in arguments
            if without_notes(word.text).startswith("--")
        }
        telling = names & TELLING_SETTINGS
        return "gpu_memory_utilization" in telling and len(telling) > 1 and "model" in names

    @staticmethod
    def known_flags(arguments: Sequence[Word]) -> int:
        """How many of the words are options of vLLM."""
        table = flag_table()
        count = 0
        for word in arguments:
            text = without_notes(word.text)
            if text.startswith("--"):
                name = text.partition("=")[0].partition(".")[0].replace("_", "-")
                count += table.find(name, None) is not None
        return count

    def _launch(self, words: Sequence[Word], first: Word, around: Surroundings) -> bool:
        texts = {without_notes(word.text) for word in words}
        if texts & {"--help", "-h", "--version", "--help=all"}:
            return False
        visible = around.env.get("CUDA_VISIBLE_DEVICES")
        if around.num_gpus is None and visible is not None:
            around = around.but(num_gpus=count_visible(visible))
        self._reading.launch(words, (first.line, first.column), around)
        return True

    def _env(self, words: list[Word], around: Surroundings) -> tuple[list[Word], Surroundings]:
        while words and without_notes(words[0].text).startswith("-"):
            text = without_notes(words[0].text)
            words = words[2:] if text in {"-u", "-C", "-S"} else words[1:]
        return self._strip_assignments(words, around)

    @staticmethod
    def _after_options(words: list[Word]) -> list[Word]:
        while words and without_notes(words[0].text).startswith("-"):
            words = words[2:] if without_notes(words[0].text) == "-a" else words[1:]
        return words

    @staticmethod
    def _strip_assignments(words: list[Word], around: Surroundings) -> tuple[list[Word], Surroundings]:
        env = dict(around.env)
        while words and _ASSIGNMENT.match(without_notes(words[0].text)):
            key, _, value = without_notes(words[0].text).partition("=")
            env[key] = notes_of(words[0].text) + value
            words = words[1:]
        while words and not without_notes(words[0].text).strip() and not is_unknown(words[0].text):
            words = words[1:]
        # An unknown first word is most often a prefix ($RUN, $SUDO): what follows decides.
        if len(words) > 1 and is_all_unknown(words[0].text) and _names_vllm(words[1]):
            words = words[1:]
        return words, around.but(env=env) if env != around.env else around


def _names_vllm(word: Word) -> bool:
    name = _basename(word)
    return name == "vllm" or bool(re.fullmatch(_PYTHON, name)) or name in TOOLS


def _is_module(text: str) -> bool:
    return text in _CLI_MODULES or bool(re.fullmatch(_SERVER_MODULES, text))


def _is_program(text: str) -> bool:
    name = posixpath.basename(text)
    return (
        name in SHELLS
        or name in {"vllm", "ray", "nvidia-smi", "sleep", "env", "tail"}
        or name.endswith((".sh", ".py"))
        or bool(re.fullmatch(_PYTHON, name))
    )


def _basename(word: Word) -> str:
    return posixpath.basename(without_notes(word.text))
