"""One file being read: its marks, its launches, and what surrounds a command (container, pod, card)."""

from __future__ import annotations

import dataclasses
import posixpath
import re
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final

from kvplan.errors import InputError
from kvplan.gate.docker_run import visible_devices
from kvplan.gate.found import LaunchFound, NotRead
from kvplan.gate.repo_files import inside
from kvplan.gate.taint import Taint, Word
from kvplan.gate.terms import AS_WRITTEN
from kvplan.record import FrozenRecord

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvplan.config.version import VllmVersion
    from kvplan.gate.flags import ParsedFlags
    from kvplan.gate.found import Place
    from kvplan.gate.repo_files import RepoFiles
    from kvplan.gate.terms import HowToRead

MAX_LAUNCHES: Final = 500
MAX_STRUCTURED: Final = 2 * 1024 * 1024
_PIN: Final = r"\bvllm(?:-cpu)?(?:\[[\w,-]*\])?\s*==\s*['\"]?v?(\d+\.\d+(?:\.\d+)?(?:\.?(?:post|rc)\d+)?)"
_TAG: Final = r"v?(\d+\.\d+\.\d+(?:\.?(?:post|rc)\d+)?)(?:[-_+.].*)?"
_MEMORY_ENV: Final = (
    r"VLLM_(USE_V1|USE_V2_MODEL_RUNNER|ATTENTION_BACKEND|CPU_KVCACHE_SPACE|MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"
    r"|KV_CACHE_LAYOUT|PP_LAYER_PARTITION|ALLOW_LONG_MAX_MODEL_LEN|ENABLE_STARTUP_PLAN)|PYTORCH_CUDA_ALLOC_CONF"
)


class Surroundings(FrozenRecord):
    """What the place of a command says about the launch, beside its words."""

    format: str
    env: Mapping[str, str] = field(default_factory=dict)
    image: str | None = None
    gpu: str | tuple[str, ...] | None = None
    num_gpus: int | None = None
    name: str | None = None
    stage: str | None = None
    profile: str | None = None
    mig: str | None = None
    rendered: bool = False
    container_memory_bytes: int | None = None
    replicas: int | None = None
    devices: tuple[str, ...] | None = None
    """The GPUs of the machine that the launch may use, by number or UUID."""
    hints: Mapping[str, str] = field(default_factory=dict)
    model: str | None = None
    """The model that the platform passes when the words name none."""
    extra_flags: Mapping[str, Any] = field(default_factory=dict)
    """Flags that the platform adds (TP from a `parallelism` block); the words' own win."""
    extra_unresolved: tuple[str, ...] = ()
    foreign: frozenset[str] = frozenset()
    """Options of a server around vLLM."""
    gpus_from_parallelism: bool = False
    """The platform takes TP x PP accelerators for one engine (Ray Serve LLM)."""

    def but(self, **changes: Any) -> Surroundings:
        """A copy with some facts changed."""
        return dataclasses.replace(self, **changes)


class Reading:
    """The state of reading one file."""

    def __init__(self, path: str, text: str, files: RepoFiles, how: HowToRead = AS_WRITTEN) -> None:
        self.path = path
        self.text = text
        self.files = files
        self.how = how
        self.taint = Taint(dict(how.assume(path)))
        self.launches: list[LaunchFound] = []
        self.not_read: list[NotRead] = []
        self.written: dict[str, tuple[str, int]] = {}
        """Files that a script writes by heredoc: path -> text and its first line."""
        self.unreadable = False
        """Whether text of the file, not only a launch in it, could not be read."""
        self.max_structured = MAX_STRUCTURED
        self.depth = 0
        self._pin: str | None = None
        self._pin_read = False

    @property
    def folder(self) -> str:
        """The file's folder, relative to the root."""
        return posixpath.dirname(self.path)

    def miss(self, line: int, reason: str) -> None:
        """Note what could not be read."""
        if len(self.not_read) < MAX_LAUNCHES:
            self.not_read.append(NotRead(self.path, line, reason))

    def miss_text(self, line: int, reason: str) -> None:
        """Note that a text, whatever it holds, could not be read."""
        self.unreadable = True
        self.miss(line, reason)

    def sibling(self, reference: str) -> str | None:
        """The root-relative path of a file that this one names, when it exists inside the repository."""
        for base in (self.folder, ""):
            path = inside(base, reference)
            if path is not None and self.files.exists(path):
                return path
        return None

    def launch(
        self,
        words: Sequence[Word],
        place: Place,
        around: Surroundings,
        *,
        positional_model: bool = True,
    ) -> None:
        """Record the launch whose vLLM words are given."""
        from kvplan.gate.flags import FlagParser

        image = around.image
        version = self.version_of(image)
        parser = FlagParser(self.taint, self.parsed(version), self.load_config, around.foreign)
        result = parser.parse(words, positional_model=positional_model)
        self.record(result, place, around, version)

    def record(
        self, result: ParsedFlags, place: Place, around: Surroundings, version: str | None = None
    ) -> None:
        """Record a launch from parsed flags."""
        if len(self.launches) >= MAX_LAUNCHES:
            self.miss(place[0], f"more than {MAX_LAUNCHES} launches in one file; the rest is not read")
            return
        flags = dict(around.extra_flags) | result.flags
        unresolved = dict.fromkeys([*result.unresolved, *around.extra_unresolved])
        model = result.model
        if model is None and "model" not in result.unresolved_flags and around.model is not None:
            plain = self.taint.split(around.model)
            model = None if plain.unknown else plain.text.removeprefix("hf://")
            unresolved.update(dict.fromkeys(plain.unknown))
            result.defaulted.update(dict.fromkeys(plain.defaulted))
            result.assumed.update(dict.fromkeys(plain.assumed))
        if model is None and not unresolved and "model" not in result.unresolved_flags:
            # vLLM's built-in default model would be served: said, because nobody means that.
            unresolved["model"] = None
        num_gpus = around.num_gpus
        if num_gpus is None and around.gpus_from_parallelism:
            num_gpus = int(flags.get("tensor_parallel_size", 1)) * int(flags.get("pipeline_parallel_size", 1))
        self._add(
            LaunchFound(
                path=self.path,
                line=place[0],
                column=place[1],
                format=around.format,
                model=model,
                gpu=around.gpu,
                num_gpus=num_gpus,
                flags=flags,
                unresolved=tuple(unresolved),
                defaulted=tuple(result.defaulted),
                assumed=tuple(result.assumed),
                ignored=tuple(result.ignored),
                invalid=result.invalid,
                unknown_flags=tuple(result.unknown_flags),
                unresolved_flags=result.unresolved_flags,
                overridden=result.overridden,
                places=result.places,
                model_place=result.model_place,
                name=around.name,
                vllm_version=version if version is not None else self.version_of(around.image),
                image=self.taint.readable(around.image) if around.image else None,
                stage=around.stage,
                profile=around.profile,
                mig=around.mig,
                rendered=around.rendered,
                container_memory_bytes=around.container_memory_bytes,
                replicas=around.replicas,
                devices=around.devices or visible_devices(_visible(around.env)),
                env={
                    key: self.taint.readable(value)
                    for key, value in around.env.items()
                    if re.fullmatch(_MEMORY_ENV, key)
                },
                hints=around.hints,
            )
        )

    def _add(self, launch: LaunchFound) -> None:
        """Keep a launch, unless the same line gave one that differs in nothing that matters to memory.

        A function that starts servers on several ports is one engine's configuration.
        """
        if not any(other.line == launch.line and _same_engine(other, launch) for other in self.launches):
            self.launches.append(launch)

    def version_of(self, image: str | None) -> str | None:
        """The release to read with: the one asked for, the file's own pin, else the policy's for the path."""
        return self.how.vllm_version or self._pinned(image) or self.how.unpinned_version(self.path)

    def _pinned(self, image: str | None) -> str | None:
        """The release of an image tag, else of a pip pin in the file; None for `latest` and unknown."""
        if image is not None:
            plain = self.taint.split(image)
            name, _, tag = plain.text.partition("@")[0].rpartition(":")
            match = re.fullmatch(_TAG, tag)
            if match and not plain.unknown and has_vllm_tag(name):
                return match[1]
            if name and is_vllm_server_image(name):
                return None
        if not self._pin_read:
            self._pin_read = True
            found = {match[1] for match in re.finditer(_PIN, self.text)} if "==" in self.text else set()
            self._pin = found.pop() if len(found) == 1 else None
        return self._pin

    @staticmethod
    def parsed(version: str | None) -> VllmVersion | None:
        """The release as numbers."""
        from kvplan.config.version import parse_vllm_version

        try:
            return parse_vllm_version(version) if version else None
        except InputError:
            return None

    def load_config(self, name: str) -> Sequence[Word] | str:
        """The words of a `--config` file: one that the script writes, or one of the repository."""
        from kvplan.gate.readers.vllm_config import config_words

        if name in self.written:
            text, line = self.written[name]
            return config_words(text, self, line)
        bare = name.removeprefix("./")
        if bare in self.written:
            text, line = self.written[bare]
            return config_words(text, self, line)
        if name.startswith(("/", "~")):
            # An absolute path is the container's, not the repository's: nothing on this machine is looked at.
            return f"config file {name}" if ".." not in name else "config file outside the repository"
        if inside(self.folder, name) is None and inside("", name) is None:
            return "config file outside the repository"
        path = self.sibling(name)
        text_found = self.files.read(path) if path is not None else None
        if text_found is None:
            return f"config file {name}"
        return config_words(text_found, self, 0)


def _visible(env: Mapping[str, str]) -> str | None:
    return env.get("CUDA_VISIBLE_DEVICES") or env.get("NVIDIA_VISIBLE_DEVICES")


_PLACE_ONLY: Final = frozenset(
    {"port", "host", "uds", "served_model_name", "kv_transfer_config", "api_key", "seed"}
)


def _same_engine(one: LaunchFound, other: LaunchFound) -> bool:
    """Whether two launches differ in addresses and names only."""

    def engine(launch: LaunchFound) -> tuple[object, ...]:
        flags = {name: value for name, value in launch.flags.items() if name not in _PLACE_ONLY}
        unresolved = {name for name in launch.unresolved_flags if name not in _PLACE_ONLY}
        return launch.model, launch.gpu, launch.num_gpus, launch.name, launch.stage, flags, unresolved

    return engine(one) == engine(other)


def is_vllm_image(name: str) -> bool:
    """Whether an image's name (without tag) says that it holds vLLM."""
    return bool(re.search(r"(^|/)vllm[\w.-]*$|(^|/)vllm/", name.lower()))


def has_vllm_tag(name: str) -> bool:
    """Whether the image's tag is vLLM's version; forks and stacks number their own releases."""
    return bool(
        re.search(r"(^|/)vllm/vllm-|(^|/)vllm-openai(-\w+)?$|/vllm$", name.lower())
    ) and not re.search(r"lmcache|llm-d|dynamo|aibrix|rocm/vllm|nvidia/vllm|intel/vllm", name.lower())


def is_vllm_server_image(name: str) -> bool:
    """Whether the image's own entrypoint is vLLM's server."""
    return bool(re.search(r"vllm-openai|vllm-server|vllm-cpu|vllm-tpu|/vllm-gaudi", name.lower()))
