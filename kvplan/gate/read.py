"""The registry of readers: which one takes a file, by content as much as by name."""

from __future__ import annotations

import dataclasses
import itertools
import posixpath
import re
from typing import TYPE_CHECKING, Final

from kvplan.gate.reading import Reading, Surroundings
from kvplan.gate.repo_files import MAX_FILE_BYTES
from kvplan.gate.terms import AS_WRITTEN
from kvplan.gate.unread import note_leftovers
from kvplan.gate.yaml_nodes import Node, YamlError, compose, documents

if TYPE_CHECKING:
    from kvplan.gate.repo_files import RepoFiles
    from kvplan.gate.terms import HowToRead

MAX_EMBEDDED: Final = 4

_TOKENS: Final = (
    b"vllm",
    b"gpu-memory-utilization",
    b"gpu_memory_utilization",
    b"max-model-len",
    b"max_model_len",
    b"engine_kwargs",
    b"model_loading_config",
    b"modelurl",
    b"llminferenceservice",
    b"server_parameters",
    b"tensor-parallel-size",
    b"tensor_parallel_size",
    b"name: huggingface",
    b"max-num-seqs",
    b"max_num_seqs",
)


_PARTS: Final = (b"llm", b"model", b"para", b"seqs", b"kwargs", b"utilization", b"huggingface")
"""Each token holds one of these: seven searches a file instead of one a token, which is half of the work."""


def is_telling(data: bytes) -> bool:
    """Whether a file holds anything that a reader looks for (a pattern would be 30 times slower)."""
    lowered = data.lower()
    for part in _PARTS:
        if part in lowered:
            return any(token in lowered for token in _TOKENS)
    return False


_SHELL_ENDINGS: Final = frozenset(
    {".sh", ".bash", ".zsh", ".ksh", ".slurm", ".sbatch", ".sub", ".pbs", ".envrc", ".command"}
)
_YAML_ENDINGS: Final = frozenset({".yaml", ".yml", ".json", ".tpl", ".tmpl", ".jinja", ".jinja2", ".gotmpl"})
_DOCKERFILE: Final = re.compile(r"(?i)(docker|container)file([._-].*)?|.*\.(docker|container)file")
_SHEBANG: Final = re.compile(r"#!\s*\S*?(?:env\s+(?:-\S+\s+)*)?(bash|sh|zsh|ksh|dash|python[\d.]*)\b")
_FROM: Final = re.compile(r"(?im)^\s*FROM\s+\S+")
_DOCKER_RUN: Final = re.compile(r"(?im)^\s*(CMD|ENTRYPOINT)\s")


def is_candidate_name(path: str) -> bool:
    """Whether a file's name is one that some reader takes."""
    name = posixpath.basename(path)
    ending = posixpath.splitext(name)[1].lower()
    return (
        ending in _SHELL_ENDINGS
        or ending in _YAML_ENDINGS
        or ending in {".py", ".service", ".conf", ".ini", ".hcl", ".nomad", ".j2", ".container", ".cfg"}
        or bool(_DOCKERFILE.fullmatch(name))
        or (not ending and name[:1] != ".")
    )


def read_text(
    path: str, text: str, files: RepoFiles, how: HowToRead = AS_WRITTEN, *, named: bool = False
) -> Reading:
    """Read one file.

    Args:
        path: relative to the repository's root; "-" is stdin.
        text: its decoded text.
        files: where companions are read from.
        how: what the policy says of the file beforehand.
        named: whether the user named it, so that it may be longer than what a tree happens to hold.
    """
    reading = Reading(path, text, files, how)
    if named:
        # The output of a tool that renders a whole chart may be long.
        reading.max_structured = MAX_FILE_BYTES
    _dispatch(reading, posixpath.basename(path))
    note_leftovers(reading)
    reading.launches.sort(key=lambda launch: launch.line)
    return reading


def read_embedded(
    name: str, text: str, first_line: int, reading: Reading, around: Surroundings | None
) -> None:
    """Read a file's text that stands inside another file, with the outer file's lines."""
    if reading.depth >= MAX_EMBEDDED or not is_telling(text.encode("utf-8", "replace")):
        return
    inner = Reading(reading.path, text, reading.files, reading.how)
    inner.taint = reading.taint
    inner.depth = reading.depth + 1
    _dispatch(inner, posixpath.basename(name))
    offset = first_line - 1
    for launch in inner.launches:
        reading.launches.append(
            dataclasses.replace(
                launch,
                line=launch.line + offset,
                places={key: (line + offset, column) for key, (line, column) in launch.places.items()},
                model_place=(launch.model_place[0] + offset, launch.model_place[1])
                if launch.model_place
                else None,
                image=launch.image or (around.image if around else None),
            )
        )
    for miss in inner.not_read:
        reading.miss(miss.line + offset, miss.reason)


def _dispatch(reading: Reading, name: str) -> None:
    text = reading.text
    stem = name.removesuffix(".j2").removesuffix(".tmpl")
    ending = posixpath.splitext(stem)[1].lower()
    shebang = _SHEBANG.match(text)
    if ending in _SHELL_ENDINGS or (shebang and not shebang[1].startswith("python")):
        read_script(reading)
        return
    if len(text) > reading.max_structured:
        reading.miss_text(1, "file too large, skipped")
        return
    if ending == ".py" or (shebang and shebang[1].startswith("python")):
        from kvplan.gate.readers.python import read_python

        read_python(reading)
    elif _DOCKERFILE.fullmatch(name) or (ending not in _YAML_ENDINGS and _is_dockerfile(text)):
        from kvplan.gate.readers.dockerfile import read_dockerfile

        read_dockerfile(reading)
    elif ending in _YAML_ENDINGS:
        _read_yaml(reading, name)
    else:
        _sniff(reading, name)


def _sniff(reading: Reading, name: str) -> None:
    """A file whose name says little, and stdin."""
    from kvplan.gate.readers.nomad import is_nomad, read_nomad
    from kvplan.gate.readers.units import is_supervisord, is_systemd, read_supervisord, read_systemd

    text = reading.text
    if is_systemd(text):
        read_systemd(reading)
    elif is_supervisord(text):
        read_supervisord(reading)
    elif is_nomad(text):
        read_nomad(reading)
    elif re.search(r"(?m)^(apiVersion|kind|services|jobs|models|run|model):|^- \w", text) or text.lstrip()[
        :1
    ] in {"{", "["}:
        _read_yaml(reading, name)
        if not reading.launches and "." not in name and name != "-":
            # Text with bullets: that it is no YAML is no news.
            reading.not_read.clear()
    elif re.search(r"(?m)^(import|from) \w+", text):
        from kvplan.gate.readers.python import read_python

        read_python(reading)
    elif re.search(r"(?m)^\s*(exec |nohup |export |docker |vllm serve|python3? -m vllm)", text):
        read_script(reading)
    elif name == "-" and not _is_dockerfile(text):
        reading.miss_text(1, "no manifest, values, compose file or script that is known")


def read_script(reading: Reading) -> None:
    """A shell script."""
    from kvplan.gate.shell import read_shell, whole_file

    gpu, count = _slurm(reading.text)
    read_shell(reading.text, reading, Surroundings("shell", gpu=gpu, num_gpus=count), whole_file)


def _slurm(text: str) -> tuple[str | None, int | None]:
    """`#SBATCH --gres=gpu:h100:8` of the script's head."""
    from kvplan.gate.accelerators import product

    head = text[:20_000]
    match = re.search(
        r"(?m)^#SBATCH\s+(?:--gres=gpu|--gpus(?:-per-node)?=|-G\s*)(?::?([A-Za-z][\w-]*))?(?::|=)?(\d{1,3})?\s*$",
        head,
    )
    if match is None:
        return None, None
    card = product(match[1]) if match[1] and match[1].lower() != "gpu" else None
    return card, int(match[2]) if match[2] else None


def _is_dockerfile(text: str) -> bool:
    return bool(_FROM.search(text[:20_000]) and _DOCKER_RUN.search(text))


def _read_yaml(reading: Reading, name: str) -> None:
    from kvplan.gate.readers.helm_template import is_helm_template, read_helm_template
    from kvplan.gate.readers.kubernetes import config_maps

    if name.endswith(".json") and not _is_json(reading):
        return
    parts = list(documents(reading.text))
    broken = [part for part in parts if isinstance(part, YamlError)]
    if broken and is_helm_template(reading.text):
        read_helm_template(reading)
        return
    docs: list[Node] = []
    starts = [m.start() for m in re.finditer(r"(?m)^---(?=\s|$)", reading.text)] if broken else []
    bounds = [0, *starts, len(reading.text)]
    for part in parts:
        docs += [part] if isinstance(part, Node) else _repaired(reading, part, bounds)
    maps = config_maps(docs) if any(doc.text_of("kind") == "ConfigMap" for doc in docs) else {}
    told = reading.depth or reading.not_read
    if reading.path == "-" and not told and not any(_holds_a_map(doc) for doc in docs):
        reading.miss_text(1, "no manifest, values, compose file or script that is known")
    for doc in docs:
        _read_document(reading, doc, maps)


def _holds_a_map(doc: Node) -> bool:
    return doc.kind == "map" or any(item.kind == "map" for item in doc.items)


def _is_json(reading: Reading) -> bool:
    import json

    try:
        json.loads(reading.text)
    except json.JSONDecodeError as error:
        reading.miss_text(error.lineno, "not valid JSON")
        return False
    except (ValueError, RecursionError):
        reading.miss_text(1, "JSON that cannot be read")
        return False
    return True


def _repaired(reading: Reading, error: YamlError, bounds: list[int]) -> list[Node]:
    """Documents with unrendered placeholders or tabs: read with the placeholders unknown, else reported."""
    from kvplan.gate.readers.templates import substitute

    lines = 0
    for begin, end in itertools.pairwise(bounds):
        first = lines
        lines += reading.text.count("\n", begin, end)
        if not first < error.line <= lines + 1:
            continue
        part = reading.text[begin:end]
        if not is_telling(part.encode("utf-8", "replace")):
            return []
        without = re.sub(r"(?m)^\s*\{%.*%\}\s*$", "", part)
        without = substitute(reading.taint, without, lambda _: None).replace("\t", "  ")
        try:
            doc = compose(without, first)
        except YamlError:
            break
        if doc is not None:
            return [doc]
    reading.miss_text(error.line, f"cannot parse this YAML document: {error}")
    return []


def _read_document(reading: Reading, doc: Node, maps: dict[tuple[str, str], str]) -> None:
    """By what the document is; the readers of a kind are imported when it is that kind's turn."""
    if _read_cluster(reading, doc, maps) or _read_stack(reading, doc) or _read_job(reading, doc):
        return
    from kvplan.gate.readers import ray, vllm_config

    if ray.read_llm_configs(reading, doc, "ray-serve"):
        return
    if vllm_config.is_vllm_config(doc):
        vllm_config.read_vllm_config(reading, doc)
        return
    from kvplan.gate.readers import text_jobs, values

    if values.is_kubeai_values(doc):
        values.read_kubeai_values(reading, doc)
    before = len(reading.launches)
    values.read_loose_containers(reading, doc, "yaml")
    if len(reading.launches) == before:
        text_jobs.read_scripts(reading, doc, "yaml")


def _read_cluster(reading: Reading, doc: Node, maps: dict[tuple[str, str], str]) -> bool:
    """Kustomizations and manifests of Kubernetes."""
    from kvplan.gate.readers import kubernetes, kustomize

    if kustomize.is_kustomization(reading.path, doc):
        kustomize.read_kustomization(reading, doc)
        return True
    if not kubernetes.is_manifest(doc):
        return False
    before = len(reading.launches)
    kubernetes.read_manifest(reading, doc, maps)
    if len(reading.launches) == before:
        from kvplan.gate.readers import values

        values.read_loose_containers(reading, doc, f"k8s-{(doc.text_of('kind') or '').lower()}")
    return True


def _read_stack(reading: Reading, doc: Node) -> bool:
    """Compose files, and values of charts that are known by name."""
    from kvplan.gate.readers import compose as compose_files

    if compose_files.is_compose(doc):
        compose_files.read_compose(reading, doc)
        return True
    from kvplan.gate.readers import values

    if values.is_production_stack(doc):
        values.read_production_stack(reading, doc)
    elif values.is_modelservice(doc):
        values.read_modelservice(reading, doc)
    else:
        return False
    return True


def _read_job(reading: Reading, doc: Node) -> bool:
    """Files whose values are scripts: workflows, jobs, playbooks, sweeps."""
    from kvplan.gate.readers import ansible, sweeps, text_jobs

    kinds = (
        (text_jobs.is_workflow, text_jobs.read_workflow),
        (text_jobs.is_sky, text_jobs.read_sky),
        (text_jobs.is_llama_swap, text_jobs.read_llama_swap),
        (ansible.is_ansible, ansible.read_ansible),
        (sweeps.is_sweep, sweeps.read_sweep),
    )
    for is_one, read_one in kinds:
        if is_one(doc):
            read_one(reading, doc)
            return True
    return False
