"""Cards by any name: exact facts, forgiving names, and no guess between cards that differ."""

from __future__ import annotations

import pytest

from kvplan.catalog.detection import NvmlReading, described
from kvplan.catalog.gpus import all_gpus, detect_gpus, find_gpu, find_gpu_profile, gpu_profiles
from kvplan.errors import InputError, UnknownNameError
from kvplan.units import GIB, MIB


def test_a_4090_has_what_torch_sees_of_it() -> None:
    # ComfyUI printed "VRAM Total" 25262096384 on Linux in 2025-03: github.com/Comfy-Org/ComfyUI/pull/7063
    gpu = find_gpu("4090")
    assert gpu.id == "rtx-4090"
    assert gpu.total_bytes == 25_262_096_384
    assert f"{gpu.total_bytes / GIB:.2f}" == "23.53"
    assert gpu.total_bytes_high == round(23.68 * GIB)
    assert not gpu.total_is_derived
    assert gpu.compute_capability == (8, 9)
    assert gpu.platform == "cuda"
    assert "https://github.com/Comfy-Org/ComfyUI/pull/7063" in gpu.sources["total_bytes"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("4090", "rtx-4090"),
        ("RTX 4090", "rtx-4090"),
        ("rtx4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("4090 24GB", "rtx-4090"),
        ("4090 48gb", "rtx-4090-48gb"),
        ("RTX 4090 D", "rtx-4090-d"),
        ("4090D", "rtx-4090-d"),
        ("H100", "h100-sxm"),
        ("h100sxm", "h100-sxm"),
        ("H100 80GB SXM", "h100-sxm"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("H100 PCIe", "h100-pcie"),
        ("A100-80", "a100-80gb-sxm"),
        ("a100 80gb", "a100-80gb-sxm"),
        ("a100 80 gb", "a100-80gb-sxm"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb-sxm"),
        ("A100 80GB PCIe", "a100-80gb-pcie"),
        ("A800 80GB SXM", "a800-80gb-sxm"),
        ("H20 96GB", "h20-96gb"),
        ("H20-3e 141GB", "h20-141gb"),
        ("GH200 120GB", "gh200-96gb"),  # 120 GB is the Grace CPU's memory
        ("RTX PRO 6000", "rtx-pro-6000-blackwell-ws"),
        ("RTX 5000 Ada", "rtx-5000-ada"),
        ("4060 ti 16gb", "rtx-4060-ti-16gb"),
        ("MI300X", "mi300x"),
        ("DGX Spark", "gb10"),
    ],
)
def test_people_write_a_card_in_many_ways(query: str, expected: str) -> None:
    assert find_gpu(query).id == expected


@pytest.mark.parametrize(
    ("query", "candidates"),
    [
        ("A100", ["a100-40gb-pcie", "a100-40gb-sxm", "a100-80gb-pcie", "a100-80gb-sxm"]),
        ("V100", ["v100-16gb", "v100-32gb"]),
        ("Orin", ["jetson-agx-orin-32gb", "jetson-orin-nano-8gb", "jetson-orin-nx-16gb"]),
        ("4060 Ti", ["8 GB", "16 GB", "rtx-4060-ti-16gb"]),
    ],
)
def test_a_name_that_several_cards_have_is_asked_back(query: str, candidates: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        find_gpu(query)
    text = f"{caught.value.message} {caught.value.hint}"
    assert all(candidate in text for candidate in candidates)


@pytest.mark.parametrize(
    ("query", "nearest"),
    [
        ("4070", "rtx-4070-ti-super"),  # another card with other memory: never taken for it
        ("RTX 4070 Laptop", "rtx-4070-ti-super"),
        ("5090 D", "rtx-5090"),
        ("3060 Ti", "rtx-3060-12gb"),
        ("RTX 6000", "rtx-6000-ada"),
        ("h10O", "h100-sxm"),
    ],
)
def test_an_unknown_card_is_refused_with_the_nearest_names(query: str, nearest: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        find_gpu(query)
    assert nearest in caught.value.nearest
    assert nearest in (caught.value.hint or "")


def test_a_derived_total_says_so_and_is_wider() -> None:
    # Nobody has posted a torch total of an H100 PCIe: nvidia-smi's 81559 MiB less 580 MiB of reserve.
    gpu = find_gpu("h100-pcie")
    assert gpu.total_is_derived
    assert gpu.total_bytes == round(79.08 * GIB)
    assert gpu.total_bytes_low < gpu.total_bytes < gpu.total_bytes_high <= 81_559 * MIB


def test_every_card_has_a_sourced_total_in_order() -> None:
    for gpu in all_gpus():
        assert gpu.sources["total_bytes"], gpu.id
        assert 4 * GIB < gpu.total_bytes_low <= gpu.total_bytes <= gpu.total_bytes_high, gpu.id
        assert (gpu.compute_capability is not None) == (gpu.vendor == "nvidia"), gpu.id


def test_no_card_is_planned_with_its_marketing_size() -> None:
    for profile in gpu_profiles():
        sold_as_gib = profile["marketing_gb"]
        assert profile["total_gib"]["value"] < sold_as_gib, profile["id"]


def test_ecc_costs_a_sixteenth_of_gddr() -> None:
    # NVIDIA's inline ECC: 49140 MiB on the A6000 (off), 46068 on the A40 and L40S (on) = 15/16, to the MiB.
    for with_ecc, without in (("a40", "rtx-a6000"), ("l40s", "rtx-6000-ada"), ("a10", "rtx-a5000")):
        on = find_gpu_profile(with_ecc)["nvidia_smi_mib"]["value"]
        off = find_gpu_profile(without)["nvidia_smi_mib"]["value"]
        assert abs(on - off * 15 / 16) < 2


def test_no_card_here_is_an_empty_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert detect_gpus() == []


@pytest.mark.parametrize(
    ("name", "total_mib", "expected"),
    [
        ("NVIDIA GeForce RTX 4090", 24564, "rtx-4090"),
        ("NVIDIA GeForce RTX 4090", 49140, "rtx-4090-48gb"),  # the same NVML name, twice the memory
        ("NVIDIA GeForce RTX 3080", 10240, "rtx-3080-10gb"),
        ("NVIDIA GeForce RTX 3080", 12288, "rtx-3080-12gb"),
        ("NVIDIA GeForce RTX 4060 Ti", 16380, "rtx-4060-ti-16gb"),
        ("NVIDIA GeForce RTX 4060 Ti", 8188, None),
        ("NVIDIA A40", 46068, "a40"),
        ("NVIDIA A40", 49140, "a40"),  # ECC switched off
        ("NVIDIA H100 80GB HBM3", 81559, "h100-sxm"),
        ("NVIDIA GeForce RTX 2060", 6144, None),
    ],
)
def test_a_detected_card_is_matched_by_name_and_memory(
    name: str, total_mib: int, expected: str | None
) -> None:
    card = described(NvmlReading(0, name, total_mib * MIB, 1000 * MIB, 500 * MIB), gpu_profiles(), all_gpus())
    assert card.profile_id == expected
    assert card.used_bytes == 1000 * MIB
    assert card.free_bytes == (total_mib - 1500) * MIB


def test_a_card_without_profile_is_what_nvml_says_less_the_drivers_reserve() -> None:
    card = described(
        NvmlReading(0, "NVIDIA GeForce RTX 2060", 6144 * MIB, 0, 230 * MIB, compute_capability=(7, 5)), [], []
    )
    assert card.spec.total_bytes == 5914 * MIB
    assert card.spec.total_bytes_high == 6144 * MIB
    assert card.spec.total_is_derived
    assert card.spec.compute_capability == (7, 5)


def test_a_mig_slice_is_never_taken_for_the_whole_card() -> None:
    reading = NvmlReading(0, "NVIDIA H100 80GB HBM3 MIG 3g.40gb", 40448 * MIB, 0, 100 * MIB, is_mig=True)
    card = described(reading, gpu_profiles(), all_gpus())
    assert card.profile_id is None
    assert card.spec.total_bytes == 40348 * MIB
    assert any("MIG" in note for note in card.spec.notes)


def test_a_vgpu_keeps_the_size_that_nvml_gives_it() -> None:
    reading = NvmlReading(0, "NVIDIA A40", 46068 * MIB, 0, 0, is_vgpu=True)
    card = described(reading, gpu_profiles(), all_gpus())
    assert card.profile_id is None
    assert card.spec.total_bytes == 46068 * MIB
    assert any("vGPU" in note for note in card.notes)
