"""The recommendation in the forms that people paste: each starts the same server."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kvplan.config.argv import to_argv
from kvplan.report.html.words import shell_lines
from kvplan.report.paste import served_flags, server_words, vllm_yaml
from kvplan.tune.problem import settings_from_dict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvplan.report.tune import TuneReport

PORT: Final = 8000
_RELEASE: Final = re.compile(r"\d+\.\d+\.\d+(\.post\d+)?")
_IMAGES: Final = {"cuda": "vllm/vllm-openai", "cpu": "vllm/vllm-openai-cpu"}
"""vLLM's own images on Docker Hub."""
_CHART_KEYS: Final = {
    "max_model_len": "maxModelLen",
    "dtype": "dtype",
    "tensor_parallel_size": "tensorParallelSize",
    "max_num_seqs": "maxNumSeqs",
    "gpu_memory_utilization": "gpuMemoryUtilization",
    "enable_prefix_caching": "enablePrefixCaching",
    "enable_chunked_prefill": "enableChunkedPrefill",
}
"""Flags that vLLM's production-stack chart has a key for. Source: its deployment-vllm-multi.yaml."""


@dataclass(frozen=True, slots=True)
class Form:
    """One form, to be copied."""

    name: str
    title: str
    file_name: str | None
    text: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Deployment:
    """What all forms say."""

    model: str
    flags: Mapping[str, Any]
    device: str
    image: str
    tag: str
    card_bytes: int
    prefix_caching: bool
    """What vLLM does without a flag: a chart must be told, because its own default is off."""

    @property
    def is_folder(self) -> bool:
        """Whether the model is a folder, which a container must be given."""
        return self.model.startswith(("/", ".", "~"))

    @property
    def model_inside(self) -> str:
        """The model as a container names it."""
        return self.model if not self.is_folder or self.model.startswith("/") else "/model"

    @property
    def argv(self) -> list[str]:
        """The flags as `vllm serve` takes them."""
        return to_argv(settings_from_dict(self.flags))

    @property
    def num_gpus(self) -> int:
        """Cards of one replica."""
        sizes = (self.flags.get(f"{kind}_parallel_size") or 1 for kind in ("tensor", "pipeline", "data"))
        count = 1
        for size in sizes:
            count *= int(size)
        return count

    @property
    def slug(self) -> str:
        """A name that Kubernetes takes."""
        base = posixpath.basename(self.model.rstrip("/")).lower()
        return re.sub(r"[^a-z0-9]+", "-", base)[:40].strip("-") or "model"


def deployment_of(report: TuneReport, *, prefix_caching: bool) -> Deployment | None:
    """What to deploy; None when nothing is recommended."""
    settings, problem = report.recommendation.settings, report.problem
    if settings is None:
        return None
    version = str(report.header["context"]["vllm_version"]).partition("+")[0]
    return Deployment(
        model=problem.model,
        flags=served_flags(settings, problem.device),
        device=problem.device,
        image=_IMAGES[problem.device],
        tag=f"v{version}" if _RELEASE.fullmatch(version) else "nightly",
        card_bytes=problem.card_bytes,
        prefix_caching=prefix_caching,
    )


def forms_of(deployment: Deployment | None) -> tuple[Form, ...]:
    """Every form of a deployment; none of none."""
    if deployment is None:
        return ()
    model, flags, device = deployment.model, deployment.flags, deployment.device
    made_with = (
        ""
        if deployment.tag != "nightly"
        else " The run's vLLM is no release: the image's tag is the nearest thing."
    )
    return (
        Form("serve", "vllm serve", None, serve_lines(deployment)),
        Form(
            "yaml",
            "vLLM YAML",
            "config.yaml",
            _in_lines(vllm_yaml(model, flags, device)),
            f"{' '.join(server_words(device))} --config config.yaml",
        ),
        Form(
            "compose",
            "docker compose",
            "compose.yaml",
            compose(deployment),
            "docker compose up -d." + made_with,
        ),
        Form(
            "kubernetes",
            "Kubernetes",
            "vllm.yaml",
            kubernetes(deployment),
            "kubectl apply -f vllm.yaml; the args are the recommendation, the rest is the least that runs it."
            + made_with,
        ),
        Form(
            "helm",
            "Helm values",
            "values.yaml",
            helm_values(deployment),
            "For vLLM's production-stack chart: helm install vllm vllm/vllm-stack -f values.yaml."
            + made_with,
        ),
    )


def serve_lines(deployment: Deployment) -> str:
    """The `vllm serve` command, one flag a line."""
    return shell_lines(server_words(deployment.device, deployment.model), deployment.argv)


def compose(deployment: Deployment) -> str:
    """A compose file with one service."""
    service: dict[str, Any] = {
        "image": f"{deployment.image}:{deployment.tag}",
        # `$` begins a variable in a compose file; doubled, it is itself.
        "command": [
            word.replace("$", "$$") for word in ("--model", deployment.model_inside, *deployment.argv)
        ],
        "ports": [f"{PORT}:{PORT}"],
        "ipc": "host",
    }
    if deployment.is_folder:
        source = deployment.model.replace("$", "$$")
        service["volumes"] = [f"{source}:{deployment.model_inside.replace('$', '$$')}:ro"]
    else:
        service["environment"] = {"HF_TOKEN": "${HF_TOKEN:-}"}
        service["volumes"] = ["~/.cache/huggingface:/root/.cache/huggingface"]
    if deployment.device == "cuda":
        card = {"driver": "nvidia", "count": deployment.num_gpus, "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [card]}}}
    else:
        service["mem_limit"] = f"{deployment.card_bytes}b"
    return _dump({"services": {"vllm": service}})


def kubernetes(deployment: Deployment) -> str:
    """A Deployment; its args are the recommendation."""
    memory = {"name": "shm", "emptyDir": {"medium": "Memory"}}
    mounts: list[dict[str, Any]] = [{"name": "shm", "mountPath": "/dev/shm"}]  # noqa: S108  inside the container
    volumes = [memory]
    container: dict[str, Any] = {
        "name": "vllm",
        "image": f"{deployment.image}:{deployment.tag}",
        # `$(` begins a variable in a container's args; with the dollar doubled it is itself.
        "args": [w.replace("$(", "$$(") for w in ("--model", deployment.model_inside, *deployment.argv)],
        "ports": [{"containerPort": PORT}],
        "readinessProbe": {"httpGet": {"path": "/health", "port": PORT}},
        "resources": {"limits": _limits(deployment)},
    }
    if deployment.is_folder:
        mounts.append({"name": "model", "mountPath": deployment.model_inside, "readOnly": True})
        volumes.append({"name": "model", "hostPath": {"path": deployment.model}})
    else:
        secret = {"name": "hf-token", "key": "token", "optional": True}
        container["env"] = [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": secret}}]
    container["volumeMounts"] = mounts
    labels = {"app": f"vllm-{deployment.slug}"}
    return _dump(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": f"vllm-{deployment.slug}", "labels": labels},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {"containers": [container], "volumes": volumes},
                },
            },
        }
    )


def helm_values(deployment: Deployment) -> str:
    """Values of vLLM's production-stack chart.

    The chart turns prefix caching off unless it is told otherwise, and mounts /dev/shm only where the tensor
    parallel size is given: both are always said.
    """
    flags = {
        "tensor_parallel_size": 1,
        "enable_prefix_caching": deployment.prefix_caching,
        **deployment.flags,
    }
    rest = {name: value for name, value in flags.items() if name not in _CHART_KEYS}
    config: dict[str, Any] = {key: flags[name] for name, key in _CHART_KEYS.items() if name in flags}
    config["extraArgs"] = to_argv(settings_from_dict(rest))
    on_gpu = deployment.device == "cuda"
    model: dict[str, Any] = {
        "name": deployment.slug,
        "repository": deployment.image,
        "tag": deployment.tag,
        "modelURL": deployment.model_inside,
        "replicaCount": 1,
        "requestCPU": 4,
        "requestMemory": "16Gi" if on_gpu else str(deployment.card_bytes),
        "requestGPU": deployment.num_gpus if on_gpu else 0,
    }
    if not on_gpu:
        model["limitMemory"] = str(deployment.card_bytes)
    if deployment.is_folder:
        model["extraVolumes"] = [{"name": "model", "hostPath": {"path": deployment.model}}]
        model["extraVolumeMounts"] = [
            {"name": "model", "mountPath": deployment.model_inside, "readOnly": True}
        ]
    model["vllmConfig"] = config
    unmeasured = "requestCPU and requestMemory" if on_gpu else "requestCPU"
    head = f"# The chart asks for {unmeasured} of the host, which no run measures: set it to your node's.\n"
    return head + _dump({"servingEngineSpec": {"modelSpec": [model]}})


def _limits(deployment: Deployment) -> dict[str, Any]:
    if deployment.device == "cuda":
        return {"nvidia.com/gpu": deployment.num_gpus}
    return {"memory": str(deployment.card_bytes)}


def _in_lines(text: str) -> str:
    import yaml

    return _dump(yaml.safe_load(text))


def _dump(document: Any) -> str:
    import yaml

    class Plain(yaml.SafeDumper):
        """Without anchors: the same list twice is written twice."""

        def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002  yaml's own signature
            return True

    return yaml.dump(document, Dumper=Plain, sort_keys=False, width=10**6, allow_unicode=True)
