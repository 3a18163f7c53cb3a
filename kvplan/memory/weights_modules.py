"""The weights of one rank as vLLM allocates them: merged, divided, packed, padded (pure).

Sources are beside each rule; versions are those whose source was read.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from kvplan.architecture.quantization import (
    MXFP4,
    NVFP4,
    WHOLE_ROW,
    WHOLE_TENSOR,
    QuantizationPlan,
    WeightFormat,
)
from kvplan.units import cdiv, round_up

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvplan.architecture.tensors import Place, WeightTensor
    from kvplan.config.version import VllmVersion

DTYPE_BYTES: Final = {
    "auto": 2,
    "bfloat16": 2,
    "float": 4,
    "float16": 2,
    "float32": 4,
    "half": 2,
    "int32": 4,
}
_DEQUANTISED: Final = ".kv_b_proj.weight"


class Rank(NamedTuple):
    """What one rank holds, and which kernels it runs."""

    tensor_parallel_size: int
    data_parallel_size: int
    expert_parallel: bool
    dtype_bytes: int
    capability: tuple[int, int]
    version: VllmVersion

    @property
    def expert_ranks(self) -> int:
        """Over how many ranks the routed experts are divided, by columns or by whole experts.

        Source: vLLM 0.32.0 `fused_moe/config.py::FusedMoEParallelConfig.make`: DP and TP are flattened.
        """
        return self.tensor_parallel_size * self.data_parallel_size


class Module(NamedTuple):
    """One parameter of vLLM's model on a rank, in all the layers that have it."""

    name: str
    layers: tuple[int, ...] | None
    place: Place
    copies: int
    """How many a layer, or how many in all outside the decoder layers."""
    sizes: tuple[int, ...]
    """Bytes of each tensor that one copy keeps: values, scales, zero points."""
    created: int
    """Bytes of one copy in the checkpoint's layout, before a kernel rearranges it."""
    extra: tuple[int, ...] = ()
    """Bytes kept beside it that are no weights of the checkpoint: dequantised copies, scales not freed."""


class MergedTensors(NamedTuple):
    """Tensors of the checkpoint that become one parameter of vLLM's model, and its format."""

    parts: tuple[WeightTensor, ...]
    layers: tuple[int, ...] | None
    form: WeightFormat | None


def merged_tensors(
    tensors: Iterable[WeightTensor], plan: QuantizationPlan | None
) -> tuple[MergedTensors, ...]:
    """The tensors as vLLM merges them; layers of different formats apart."""
    groups: dict[tuple[object, ...], list[WeightTensor]] = {}
    formats: dict[tuple[object, ...], tuple[tuple[int, ...] | None, WeightFormat | None]] = {}
    for number, tensor in enumerate(tensors):
        for layers, form in _formats(tensor, plan):
            key = (tensor.module or number, layers, tensor.place)
            groups.setdefault(key, []).append(tensor)
            formats[key] = (layers, form)
    return tuple(MergedTensors(tuple(parts), *formats[key]) for key, parts in groups.items())


def rank_modules(merged: Iterable[MergedTensors], rank: Rank) -> list[Module]:
    """The modules of one rank: divided, packed, padded."""
    found = tuple(merged)
    gated = any(one.parts[0].role == "expert_column" and _is_gated(one) for one in found)
    return [_module(one, rank, gated=gated) for one in found]


def _is_gated(merged: MergedTensors) -> bool:
    """Whether an expert's first product holds gate and up: two tensors, or one of that name."""
    return len(merged.parts) > 1 or "gate_up" in merged.parts[0].name


def _formats(
    tensor: WeightTensor, plan: QuantizationPlan | None
) -> list[tuple[tuple[int, ...] | None, WeightFormat | None]]:
    if plan is None or (not tensor.quantizable and tensor.role != "vocab"):
        return [(tensor.layers, None)]
    if tensor.role == "vocab":
        is_head = tensor.name.endswith(("lm_head.weight", "output.weight"))
        return [(tensor.layers, plan.head if is_head else None)]
    name = tensor.name.removesuffix(".weight")
    return plan.split(name, tensor.layers, expert=tensor.role.startswith("expert"))


def _module(merged: MergedTensors, rank: Rank, *, gated: bool) -> Module:
    first, form = merged.parts[0], merged.form
    expert = first.role.startswith("expert")
    number = 1
    if expert:
        number = cdiv(first.count, rank.expert_ranks) if rank.expert_parallel else first.count
    shapes = [_local_shape(tensor, rank) for tensor in merged.parts]
    if form is None:
        size = DTYPE_BYTES[first.dtype] if first.dtype else rank.dtype_bytes
        sizes: tuple[int, ...] = (sum(map(math.prod, shapes)) * number * size,)
        extra: tuple[int, ...] = ()
        created = sizes[0]
    else:
        rows, columns = sum(shape[0] for shape in shapes), shapes[0][-1]
        created = sum(form.sizes(rows, columns, len(merged.parts), rank.dtype_bytes)) * number
        if expert and form is MXFP4:
            sizes, extra = _mxfp4_experts(rows, columns, first, rank)
        else:
            if expert and form is NVFP4:
                rows, columns = _nvfp4_expert_shape(rows, columns, first, rank, gated=gated)
            sizes = _kept(form, rows, columns, len(merged.parts), rank)
            extra = ()
            if first.name.endswith(_DEQUANTISED):
                # MLA multiplies with W_UK and W_UV in the model's dtype: `mla_attention.py::split_kv_b_proj`.
                extra = (rows * columns * rank.dtype_bytes,)
        sizes = tuple(size * number for size in sizes)
        extra = tuple(size * number for size in extra)
    return Module(
        name=first.module or first.name,
        layers=merged.layers,
        place=first.place,
        copies=1 if expert else first.count,
        sizes=sizes,
        created=created,
        extra=extra,
    )


def _local_shape(tensor: WeightTensor, rank: Rank) -> tuple[int, ...]:
    if not tensor.role.startswith("expert"):
        return tensor.local_shape(rank.tensor_parallel_size)
    return tensor.shape if rank.expert_parallel else tensor.local_shape(rank.expert_ranks)


def _kept(form: WeightFormat, rows: int, columns: int, parts: int, rank: Rank) -> tuple[int, ...]:
    """Bytes that a quantised matrix keeps once its kernel has taken it."""
    values, *rest = form.sizes(rows, columns, parts, rank.dtype_bytes)
    groups = _groups(form, columns)
    machete = rank.capability[0] == 9
    if form.zero_bits and machete and not form.symmetric:
        # kernels/linear/mixed_precision/machete.py: zero points times scales, in the model's dtype.
        rest[-1] = rows * groups * rank.dtype_bytes
    elif form.zero_bits and form.symmetric and not machete:
        # kernels/linear/mixed_precision/marlin.py: symmetric GPTQ's zero points give way to an empty tensor.
        rest = rest[:-1]
    if form.marlin_scales and rank.capability < (8, 9):
        # quantization/utils/marlin_utils_fp8.py: scales of every output, in the model's dtype.
        rest = [rows * groups * rank.dtype_bytes]
    if form is NVFP4:
        # quantization/utils/nvfp4_utils.py::swizzle_blockscale: tiles of 128 x 4.
        rest[0] = round_up(rows, 128) * round_up(groups, 4)
    return (values, *rest)


def _nvfp4_expert_shape(
    rows: int, columns: int, tensor: WeightTensor, rank: Rank, *, gated: bool
) -> tuple[int, int]:
    """An expert's matrix with the expert width padded to what the NVFP4 kernels multiply.

    Tiles of 128 rows in the first product, which are gate and up together where it is gated. Marlin, which
    serves cards without FP4 arithmetic, wants 64, or 128 where 128 does not divide the hidden size.

    Source: vLLM 0.32.0 `quantization/utils/flashinfer_fp4_moe.py::prepare_nvfp4_moe_layer_for_fi_or_cutlass`,
    `marlin_utils_fp4.py::prepare_nvfp4_moe_layer_for_marlin`.
    """
    down = tensor.role == "expert_row"
    hidden = rows if down else columns
    tile = (64 if gated else 128) if rank.capability >= (10, 0) else (64 if hidden % 128 == 0 else 128)
    if down:
        return rows, round_up(columns, tile)
    halves = 2 if gated else 1
    return halves * round_up(rows // halves, tile), columns


def _groups(form: WeightFormat, columns: int) -> int:
    return 1 if form.group in {WHOLE_ROW, WHOLE_TENSOR} else cdiv(columns, form.group)


def _mxfp4_experts(
    rows: int, columns: int, tensor: WeightTensor, rank: Rank
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """One expert's values and scales as the MXFP4 kernels want them, and what they forget to free.

    Marlin (before and after Hopper and Blackwell data-centre cards): hidden size to 256, intermediate to 128.
    Triton on Hopper: values to 64 x 64 bytes, scales to 256 rows. TRT-LLM on Blackwell: hidden to 256,
    intermediate to 256 (128 from 0.32).

    Source: vLLM 0.10.1.1, 0.14.1, 0.19.1, 0.32.0 `quantization/mxfp4.py`, `fused_moe/oracle/mxfp4.py`;
    triton_kernels of vLLM 0.19.1 `tensor_details/layout_details/hopper_{value,scale}.py`.
    """
    down = tensor.role == "expert_row"
    # Triton's kernels need PyTorch 2.8, which came with 0.10.2.
    if rank.capability[0] == 9 and rank.version >= (0, 10, 2):
        return _mxfp4_hopper(rows, columns, down=down, rank=rank)
    hidden, inner = 256, 128
    if rank.capability[0] == 10 and rank.version < (0, 32, 0):
        inner = 256
    if down:
        rows, columns = round_up(rows, hidden), round_up(columns, inner)
    else:
        rows, columns = 2 * round_up(rows // 2, inner), round_up(columns, hidden)
    return (rows * columns // 2, rows * columns // 32), ()


def _mxfp4_hopper(
    rows: int, columns: int, *, down: bool, rank: Rank
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if down:
        columns = round_up(columns, 64)
    else:
        rows = 2 * round_up(rows // 2, 64)
    # Values are padded by the triton_kernels of 0.19; measured starts of 0.14 to 0.16 show no padding.
    align = 64 if rank.version >= (0, 17, 0) else 1
    values = round_up(columns // 2, align) * round_up(rows, align)
    scales = round_up(rows, 256) * round_up(cdiv(columns, 32), 2)
    # Up to 0.24 the scales stay in their first layout too.
    first = (rows * cdiv(columns, 32),) if rank.version < (0, 25, 0) else ()
    return (values, scales), first
