"""Which GPU a label, instance type, resource or accelerator field names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kvplan.gate.yaml_nodes import Node

PRODUCT_LABELS: Final = frozenset(
    {
        "nvidia.com/gpu.product",
        "cloud.google.com/gke-accelerator",
        "gpu.nvidia.com/model",
        "gpu.nvidia.com/class",
        "amd.com/gpu.product-name",
        "karpenter.k8s.aws/instance-gpu-name",
        "cloud.google.com/gke-tpu-accelerator",
        "k8s.amazonaws.com/accelerator",
        "accelerator",
        "nvidia.com/gpu.machine",
    }
)
INSTANCE_LABELS: Final = frozenset(
    {
        "node.kubernetes.io/instance-type",
        "beta.kubernetes.io/instance-type",
        "cloud.google.com/machine-family",
    }
)
COUNT_RESOURCES: Final = (
    r"(nvidia\.com/(gpu(\.shared)?|mig-.+|[A-Za-z0-9_-]+)|amd\.com/gpu|habana\.ai/gaudi|google\.com/tpu"
    r"|aws\.amazon\.com/neuron(core)?|gpu\.intel\.com/(i915|xe))"
)
_MIG: Final = r"nvidia\.com/mig-(\d+g\.\d+gb.*)"

_GKE: Final = {
    "nvidia-tesla-a100": "A100-40GB",
    "nvidia-a100-80gb": "A100-80GB",
    "nvidia-h100-80gb": "H100-80GB",
    "nvidia-h100-mega-80gb": "H100-80GB",
    "nvidia-h200-141gb": "H200",
    "nvidia-b200": "B200",
    "nvidia-l4": "L4",
    "nvidia-tesla-t4": "T4",
    "nvidia-tesla-v100": "V100",
    "nvidia-tesla-p100": "P100",
    "nvidia-rtx-pro-6000": "RTX-PRO-6000",
}
"""Google's accelerator names (cloud.google.com/kubernetes-engine/docs/concepts/gpus)."""

_INSTANCES: Final = (
    (r"g4dn\..+", "T4"),
    (r"g5\..+", "A10G"),
    (r"g6\..+|gr6\..+", "L4"),
    (r"g6e\..+", "L40S"),
    (r"p3\..+|p3dn\..+", "V100"),
    (r"p4d\..+", "A100-40GB"),
    (r"p4de\..+", "A100-80GB"),
    (r"p5\..+", "H100-80GB"),
    (r"p5en?\..+", "H200"),
    (r"p6-b200\..+", "B200"),
    (r"p6-b300\..+", "B300"),
    (r"Standard_NC\d+ads_A100_v4", "A100-80GB"),
    (r"Standard_ND96asr(_A100)?_v4", "A100-40GB"),
    (r"Standard_ND96amsr_A100_v4", "A100-80GB"),
    (r"Standard_ND96isr_H100_v5", "H100-80GB"),
    (r"Standard_NC\d+ads_H100_v5|Standard_NC\d+adis_H100_v5", "H100-NVL"),
    (r"Standard_ND96isr_H200_v5", "H200"),
    (r"Standard_ND96isr_MI300X_v5", "MI300X"),
    (r"Standard_NC\d+as_T4_v3", "T4"),
    (r"Standard_NV\d+ad[ms]+_A10_v5", "A10"),
    (r"a2-highgpu-.+|a2-megagpu-.+", "A100-40GB"),
    (r"a2-ultragpu-.+", "A100-80GB"),
    (r"a3-(high|mega|edge)gpu-.+", "H100-80GB"),
    (r"a3-ultragpu-.+", "H200"),
    (r"a4-highgpu-.+", "B200"),
    (r"g2-standard-.+", "L4"),
    (r"BM\.GPU\.H100\..+", "H100-80GB"),
    (r"BM\.GPU\.H200\..+", "H200"),
    (r"BM\.GPU\.B200\..+", "B200"),
    (r"BM\.GPU4\.8", "A100-40GB"),
    (r"BM\.GPU\.A100-v2\.8", "A100-80GB"),
    (r"(BM|VM)\.GPU\.A10\..+", "A10"),
    (r"BM\.GPU\.L40S.+", "L40S"),
    (r"BM\.GPU\.MI300X\..+", "MI300X"),
)
"""Cloud providers' instance pages, by the accelerator they carry."""


def product(label: str) -> str:
    """The card of a label: `NVIDIA-H100-80GB-HBM3` is `H100-80GB`, `nvidia-tesla-a100` `A100-40GB`."""
    text = label.strip()
    known = _GKE.get(text.lower())
    if known:
        return known
    text = re.sub(r"(?i)-SHARED$|-MIG-.*$", "", text.replace(" ", "-"))
    text = re.sub(r"(?i)^(NVIDIA[-_])+|^tesla[-_]|^nvidia[-_]tesla[-_]", "", text)
    text = re.sub(r"(?i)[-_](SXM\d*|NVLINK|HBM\d\w*|PCIE)(?=[-_]|$)", "", text).replace("_", "-")
    text = re.sub(r"(?i)^GeForce-", "", text)
    if re.fullmatch(r"[a-z0-9-]+", text):
        text = text.upper()
    return re.sub(r"(?i)^(H200)-141GB$", "H200", text) or label


def from_instance(name: str) -> str | None:
    """The card of a cloud instance type."""
    for pattern, card in _INSTANCES:
        if re.fullmatch(pattern, name):
            return card
    return None


def from_label(key: str, value: str) -> str | None:
    """The card that a node label names."""
    if key in INSTANCE_LABELS:
        return from_instance(value)
    if (
        key in PRODUCT_LABELS
        and value
        and not re.fullmatch(r"(?i)nvidia|amd|gpu|true|false|intel|none", value)
    ):
        if key == "accelerator" and not re.search(r"\d", value):
            return None
        return product(value)
    return None


def one_or_many(cards: list[str]) -> str | tuple[str, ...] | None:
    """One card, alternatives, or None."""
    unique = tuple(dict.fromkeys(cards))
    if not unique:
        return None
    return unique[0] if len(unique) == 1 else unique


def from_pod(pod: Node) -> str | tuple[str, ...] | None:
    """The card of a pod spec's node selector or required affinity."""
    cards: list[str] = []
    selector = pod.get("nodeSelector")
    if selector is not None:
        for key, _, value in selector.entries():
            card = from_label(key, value.text) if value.kind == "scalar" else None
            if card:
                cards.append(card)
    terms = pod.list_of(
        "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms"
    )
    return one_or_many(cards + from_terms(terms))


def from_terms(terms: list[Node]) -> list[str]:
    """The cards of node selector terms with operator In."""
    cards: list[str] = []
    for term in terms:
        for expression in term.list_of("matchExpressions"):
            if (expression.text_of("operator") or "In") != "In":
                continue
            key = expression.text_of("key") or ""
            for value in expression.list_of("values"):
                card = from_label(key, value.text) if value.kind == "scalar" else None
                if card:
                    cards.append(card)
    return cards


def labels_of(pod: Node) -> dict[str, str]:
    """The node selector as text, for a policy's mapping."""
    selector = pod.get("nodeSelector")
    if selector is None:
        return {}
    return {key: value.text for key, _, value in selector.entries() if value.kind == "scalar"}


def count_of(resources: Node | None) -> tuple[int | None, str | None]:
    """Accelerators and MIG profile of a container's resources; limits win over requests."""
    for part in ("limits", "requests"):
        listed = resources.get(part) if resources is not None else None
        if listed is None:
            continue
        for key, _, value in listed.entries():
            if re.fullmatch(COUNT_RESOURCES, key) and value.kind == "scalar":
                match = re.fullmatch(_MIG, key)
                text = value.text.strip()
                count = int(text) if text.isascii() and text.isdigit() and len(text) < 5 else None
                return count, match[1] if match else None
    return None, None


def memory_limit(resources: Node | None) -> int | None:
    """The memory limit of a container in bytes."""
    text = resources.text_of("limits", "memory") if resources is not None else None
    return memory_bytes(text)


def memory_bytes(text: str | None) -> int | None:
    """`64Gi`, `64G`, `512m`-style sizes in bytes; None for what is no size."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)\s*([KMGTP]i?|[kmgt]b?|[KMGT]B)?", (text or "").strip())
    if match is None:
        return None
    unit = match[2] or ""
    power = "kmgtp".find(unit[:1].lower()) + 1
    return int(float(match[1]) * (1024 if unit[1:] == "i" else 1000) ** power)
