"""Which files are worth reading: by name, then by whether they hold any word that a reader looks for."""

from __future__ import annotations

import posixpath
import re
from typing import Final

SHELL_ENDINGS: Final = frozenset(
    {".sh", ".bash", ".zsh", ".ksh", ".slurm", ".sbatch", ".sub", ".pbs", ".envrc", ".command"}
)
YAML_ENDINGS: Final = frozenset({".yaml", ".yml", ".json", ".tpl", ".tmpl", ".jinja", ".jinja2", ".gotmpl"})
DOCKERFILE_NAME: Final = r"(?i)(docker|container)file([._-].*)?|.*\.(docker|container)file"

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


def is_candidate_name(path: str) -> bool:
    """Whether a file's name is one that some reader takes."""
    name = posixpath.basename(path)
    ending = posixpath.splitext(name)[1].lower()
    return (
        ending in SHELL_ENDINGS
        or ending in YAML_ENDINGS
        or ending in {".py", ".service", ".conf", ".ini", ".hcl", ".nomad", ".j2", ".container", ".cfg"}
        or bool(re.fullmatch(DOCKERFILE_NAME, name))
        or (not ending and name[:1] != ".")
    )


def is_telling(data: bytes) -> bool:
    """Whether a file holds anything that a reader looks for (a pattern would be 30 times slower)."""
    lowered = data.lower()
    for part in _PARTS:
        if part in lowered:
            return any(token in lowered for token in _TOKENS)
    return False
