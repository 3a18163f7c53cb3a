"""Bytes of model weights on each GPU, as vLLM loads them (not as the files store them).

What loading changes: the vocabulary is padded, KV heads are replicated beyond their number, tied heads are
one tensor, layers for multi-token prediction stay in the file, float32 becomes the model's dtype, quantised
layers take the layout of their kernel. Checked against vLLM's own classes (tests/data/weights_table.jsonl)
and against what real starts printed (tests/data/weights_launches.jsonl, docs/weights.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from kvplan.architecture.quantization import QuantizationPlan, quantization_plan
from kvplan.architecture.tensors import weight_tensors
from kvplan.architecture.tensors.rotary import is_latent_attention, rotary_tables
from kvplan.errors import UnsupportedModelError
from kvplan.memory.cuda_allocator import allocated_bytes
from kvplan.memory.interval import Interval
from kvplan.memory.weights_headers import weights_from_headers
from kvplan.memory.weights_modules import (
    DTYPE_BYTES,
    MergedTensors,
    Module,
    Rank,
    merged_tensors,
    rank_modules,
)
from kvplan.memory.weights_stored import compare_with_stored, header_plan
from kvplan.record import FrozenRecord
from kvplan.units import MIB

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvplan.architecture.stored_weights import StoredWeights
    from kvplan.config.version import VllmVersion

Source = Literal["config", "index", "safetensors", "profile", "estimate"]

_UNKNOWN_CARD: Final = ((8, 0), (9, 0), (10, 0))
"""Compute capabilities whose kernels keep quantised weights differently; the middle one is Hopper's."""
_SPLIT_LIMIT: Final = 20 * MIB
_MLA_WORKSPACE: Final = 128 * MIB
"""vLLM 0.10.2 to 0.24.0 `v1/attention/backends/mla/flashinfer_mla.py`: allocated when it is imported."""


_FROM_NAME_ENDS: Final = {"standard": (0.03, 0.03), "varies": (0.03, 0.2)}
"""Shares below and above, where a name alone says the format. Of the published starts of such checkpoints
(tests/data/weights_launches.jsonl) those of a format that all recipes write alike printed 1.1 % less to 1.2 %
more than concluded; where recipes differ in the layers that they leave alone (NVFP4, bitsandbytes,
AutoRound), 0 to 20 % more."""


class WeightsPerGpu(FrozenRecord):
    """What the weights take on one GPU. Sizes in bytes."""

    bytes: Interval
    """Of the heaviest pipeline stage and rank: the weights themselves."""
    per_stage: tuple[Interval, ...]
    parameters: int | None
    """Of the whole model as published, layers that are not loaded left out; None where it cannot be told."""
    exact: bool
    """Whether `bytes` is arithmetic to the last byte."""
    source: Source
    explanation: str
    """One line with the numbers."""
    notes: tuple[str, ...] = ()
    """What loading changed, and what could not be told."""
    allocated_per_stage: tuple[Interval, ...] = ()
    """What loading leaves allocated, as in vLLM's "Model loading took": the weights, the tables of rotary
    embeddings, and what the CUDA allocator rounds up."""

    @property
    def allocated(self) -> Interval:
        """What loading leaves allocated on the fullest GPU."""
        return max(self.allocated_per_stage, key=lambda stage: stage.mid)


def stage_layers(layers: int, pipeline_parallel_size: int) -> tuple[int, ...]:
    """How many decoder layers each pipeline stage runs; the remainder goes to the stages before the last.

    Source: vLLM 0.32.0 `distributed/utils.py::get_pp_indices`.
    """
    stages = [layers // pipeline_parallel_size] * pipeline_parallel_size
    for i in range(2, layers % pipeline_parallel_size + 2):
        stages[-i] += 1
    return tuple(stages)


def weights_per_gpu(
    config: Mapping[str, Any],
    stored: StoredWeights | None,
    *,
    dtype: str,
    quantization: str | None,
    tensor_parallel_size: int,
    pipeline_parallel_size: int,
    enable_expert_parallel: bool = False,
    data_parallel_size: int = 1,
    cpu_offload_bytes: int = 0,
    vllm_version: VllmVersion,
    compute_capability: tuple[int, int] | None = None,
) -> WeightsPerGpu:
    """Weight bytes per GPU.

    Args:
        config: config.json.
        stored: what is known of the files, None if nothing.
        dtype: vLLM's resolved dtype (`bfloat16`, `float16`, `float32`).
        quantization: vLLM's `--quantization`, None where it was not given.
        tensor_parallel_size: ranks that divide each layer.
        pipeline_parallel_size: stages that divide the layers.
        enable_expert_parallel: whole experts on each rank instead of slices of all.
        data_parallel_size: replicas; they divide the experts of a mixture among them.
        cpu_offload_bytes: `--cpu-offload-gb` of one GPU, in bytes.
        vllm_version: decides layouts and tables.
        compute_capability: of the card; None gives the interval over the kernels of all.

    Raises:
        UnsupportedModelError: no rule for the model's tensors or for its quantisation.
        InputError: a `--quantization` that the checkpoint does not fit.
    """
    try:
        tensors = weight_tensors(config)
        plan = quantization_plan(config, quantization, vllm_version)
    except UnsupportedModelError:
        if stored is None or stored.tensors is None:
            raise
        return _from_headers(config, stored, dtype, tensor_parallel_size, pipeline_parallel_size)
    if stored is not None:
        plan = header_plan(plan, stored)
    cards = (
        _UNKNOWN_CARD if compute_capability is None and plan is not None else (compute_capability or (9, 0),)
    )
    merged = merged_tensors(tensors, plan)
    loads = [
        _load(
            config,
            merged,
            Rank(
                tensor_parallel_size,
                data_parallel_size,
                enable_expert_parallel,
                DTYPE_BYTES[dtype],
                card,
                vllm_version,
            ),
            pipeline_parallel_size,
            cpu_offload_bytes,
        )
        for card in cards
    ]
    per_stage = tuple(_spread([load.stages[i] for load in loads]) for i in range(pipeline_parallel_size))
    allocated = tuple(_spread([load.allocated[i] for load in loads]) for i in range(pipeline_parallel_size))
    parameters = sum(t.elements for t in tensors if t.stored)
    verdict = compare_with_stored(config, tensors, plan, stored, dtype)
    if verdict.unexplained:
        per_stage = tuple(_widened(stage, verdict.unexplained) for stage in per_stage)
        allocated = tuple(_widened(stage, verdict.unexplained) for stage in allocated)
    source: Source = verdict.source
    if plan is not None and plan.from_name is not None:
        per_stage = tuple(_as_concluded(stage, plan) for stage in per_stage)
        allocated = tuple(_as_concluded(stage, plan) for stage in allocated)
        source = "estimate"
    total = max(per_stage, key=lambda stage: stage.mid)
    return WeightsPerGpu(
        bytes=total,
        per_stage=per_stage,
        parameters=parameters,
        exact=total.exact and not (plan and plan.online),
        source=source,
        explanation=_explain(parameters, dtype, plan, per_stage, allocated, tensor_parallel_size),
        notes=(*_notes(plan, cpu_offload_bytes), *verdict.notes),
        allocated_per_stage=allocated,
    )


def _from_headers(
    config: Mapping[str, Any],
    stored: StoredWeights,
    dtype: str,
    tensor_parallel_size: int,
    pipeline_parallel_size: int,
) -> WeightsPerGpu:
    """The answer for a family or quantisation without a rule, whose headers are known."""
    text = config.get("text_config") or config
    found = weights_from_headers(
        config,
        stored,
        dtype=dtype,
        tensor_parallel_size=tensor_parallel_size,
        stages=stage_layers(int(text.get("num_hidden_layers") or 0), pipeline_parallel_size),
    )
    total = max(found.per_stage, key=lambda stage: stage.mid)
    what = (
        f"{found.parameters:,} parameters" if found.parameters else f"{len(stored.tensors or {}):,} tensors"
    )
    return WeightsPerGpu(
        bytes=total,
        per_stage=found.per_stage,
        parameters=found.parameters,
        exact=total.exact,
        source="safetensors",
        explanation=f"{what} of the headers, as {dtype}: {total.mid:,} B",
        notes=found.notes,
        allocated_per_stage=found.allocated_per_stage,
    )


class _Load(NamedTuple):
    """What one kind of card holds after loading."""

    stages: tuple[int, ...]
    allocated: tuple[int, ...]


def _load(
    config: Mapping[str, Any],
    merged: Sequence[MergedTensors],
    rank: Rank,
    pipeline_parallel_size: int,
    cpu_offload_bytes: int,
) -> _Load:
    modules = rank_modules(merged, rank)
    layers = max((max(m.layers) + 1 for m in modules if m.layers), default=0)
    tables = [*rotary_tables(config, rank.dtype_bytes, rank.version)]
    if is_latent_attention(config) and (0, 10, 2) <= rank.version < (0, 25, 0):
        tables.append(_MLA_WORKSPACE)
    limit = _SPLIT_LIMIT if rank.version >= (0, 21, 0) else None
    beside = sum(allocated_bytes(size, limit) for size in tables)
    stages, allocated, start = [], [], 0
    for index, count in enumerate(stage_layers(layers, pipeline_parallel_size)):
        window = range(start, start + count)
        held = [(m, _held(m, window, index, pipeline_parallel_size)) for m in modules]
        size = sum(copies * (sum(m.sizes) + sum(m.extra)) for m, copies in held)
        blocks = sum(
            copies * sum(allocated_bytes(part, limit) for part in (*m.sizes, *m.extra)) for m, copies in held
        )
        offloaded = min(
            cpu_offload_bytes, sum(copies * sum(m.sizes) for m, copies in held if m.layers is not None)
        )
        stages.append(size - offloaded)
        allocated.append(blocks - offloaded + beside)
        start += count
    return _Load(tuple(stages), tuple(allocated))


def _held(module: Module, window: range, stage: int, stages: int) -> int:
    """How many copies of a module one pipeline stage holds."""
    if module.layers is not None:
        return module.copies * sum(layer in window for layer in module.layers)
    first, last = stage == 0, stage == stages - 1
    here = {"first": first, "last": last, "ends": first or last}.get(module.place, True)
    return module.copies * here


def _spread(values: Sequence[int]) -> Interval:
    """The interval over the kinds of card; one kind is exact."""
    ordered = sorted(values)
    return Interval(ordered[0], ordered[len(ordered) // 2], ordered[-1])


def _widened(interval: Interval, unexplained: int) -> Interval:
    """The interval, made to hold what the file has beyond (or short of) the config's arithmetic."""
    if unexplained > 0:
        return Interval(interval.low, interval.mid, interval.high + unexplained)
    return Interval(max(0, interval.low + unexplained), interval.mid, interval.high)


def _as_concluded(interval: Interval, plan: QuantizationPlan) -> Interval:
    """The interval of a checkpoint that only its name describes."""
    below, above = _FROM_NAME_ENDS[plan.from_name or "standard"]
    return Interval(round(interval.low * (1 - below)), interval.mid, round(interval.high * (1 + above)))


def _explain(
    parameters: int,
    dtype: str,
    plan: QuantizationPlan | None,
    per_stage: Sequence[Interval],
    allocated: Sequence[Interval],
    tensor_parallel_size: int,
) -> str:
    fullest = max(range(len(per_stage)), key=lambda i: per_stage[i].mid)
    total = per_stage[fullest]
    what = f"{parameters:,} parameters"
    if plan is None:
        what += f" x {DTYPE_BYTES[dtype]} B"
    else:
        form = plan.default or plan.experts
        what += f", {form.name if form else plan.method} where quantised, the rest {DTYPE_BYTES[dtype]} B"
    where = []
    if tensor_parallel_size > 1:
        where.append(f"TP {tensor_parallel_size}")
    if len(per_stage) > 1:
        where.append(f"fullest of {len(per_stage)} stages")
    spot = f" ({', '.join(where)})" if where else ""
    size = f"{total.mid:,} B"
    if not total.exact:
        size += f" (between {total.low:,} and {total.high:,})"
    beside = allocated[fullest].mid - total.mid
    return f"{what}{spot}: {size}; with rotary tables and whole allocator blocks {beside:+,} B"


def _notes(plan: QuantizationPlan | None, cpu_offload_bytes: int) -> list[str]:
    notes = list(plan.notes) if plan else []
    if plan is not None and plan.online:
        notes.append(f"{plan.method} applied while loading: the files are unquantised")
    if cpu_offload_bytes:
        notes.append(f"{cpu_offload_bytes:,} B of decoder layers stay in host memory")
    return notes
