"""What-if views: small tables that ask the memory model the questions people argue about.

Each view is rows of numbers for one idea; none of them changes the settings that were asked about.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvplan.architecture.layers import FullAttention, SlidingWindow
from kvplan.errors import InputError
from kvplan.units import GIB, cdiv

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvplan.architecture.layers import LayerCache
    from kvplan.architecture.model_shape import ModelShape
    from kvplan.config.serving import ServingConfig
    from kvplan.memory.capacity import RequestLengths
    from kvplan.memory.estimate import Estimate
    from kvplan.memory.planner import Planner


@dataclass(frozen=True, slots=True)
class View:
    """One table. A cell is an integer, a float (printed to one decimal), text, or None for "n/a"."""

    name: str
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str | int | float | None, ...], ...]
    note: str


def attention(planner: Planner, serving: ServingConfig) -> View:
    """This model with as many KV heads as query heads, as it is, and with one.

    Raises:
        InputError: the model's cache is not made of KV heads (MLA, recurrent state).
    """
    shape = planner.shape
    heads = sorted({shape.num_attention_heads, shape.num_key_value_heads, 1}, reverse=True)
    names = {shape.num_attention_heads: "MHA", 1: "MQA"} | {shape.num_key_value_heads: "as it is"}
    rows = []
    for count in heads:
        other = dataclasses.replace(planner, shape=_with_kv_heads(shape, count))
        answer = other.estimate(serving)
        rows.append(
            (names[count], count, answer.plan.bytes_per_token, answer.capacity.tokens.mid, _served(answer))
        )
    return View(
        "attention",
        "KV heads",
        ("", "KV heads", "B a token", "KV tokens", _served_header(planner.lengths)),
        tuple(rows),
        "the weights are the checkpoint's own: a model must be trained with its KV heads",
    )


def _with_kv_heads(shape: ModelShape, num_kv_heads: int) -> ModelShape:
    def changed(cache: LayerCache) -> LayerCache:
        if not isinstance(cache, FullAttention | SlidingWindow):
            raise InputError(
                "--what-if attention: this model's cache is not made of KV heads",
                "--what-if all shows the views that apply",
            )
        return dataclasses.replace(cache, num_kv_heads=num_kv_heads)

    layers = tuple(tuple(changed(cache) for cache in layer) for layer in shape.layers)
    return dataclasses.replace(shape, layers=layers, num_key_value_heads=num_kv_heads)


def paging(planner: Planner, serving: ServingConfig) -> View:
    """One contiguous reservation of max_model_len a request, against blocks as they are needed."""
    answer, lengths = planner.estimate(serving), _lengths(planner, "paging")
    block_size, longest = answer.plan.block_size, answer.max_model_len
    mean = _mean(lengths, lambda n: n)
    in_blocks = _mean(lengths, lambda n: cdiv(n, block_size) * block_size)
    tokens = (answer.capacity.num_blocks.mid - 1) * block_size
    return View(
        "paging",
        "contiguous reservation against paged blocks",
        ("", "tokens held a request", "unused %", "requests at once"),
        (
            ("reserve max_model_len", longest, 100 * (1 - mean / longest), tokens // longest),
            (f"blocks of {block_size}", in_blocks, 100 * (1 - mean / in_blocks), int(tokens // in_blocks)),
        ),
        "at the requests' final lengths; while they grow, both hold less",
    )


def block_size(planner: Planner, serving: ServingConfig) -> View:
    """What the last, half-empty block of each request costs, by block size."""
    lengths = _lengths(planner, "block-size")
    rows: list[tuple[str | int | float | None, ...]] = []
    for size in _BLOCK_SIZES:
        try:
            answer = planner.estimate(serving.with_flags(block_size=size))
        except InputError:
            rows.append((size, None, None, "vLLM refuses it here"))
            continue
        own = answer.plan.block_size
        waste = _unused_in_last_block(lengths, own)
        share = 100 * waste / _mean(lengths, lambda n: n)
        served = _served(answer)
        rows.append((size, waste, share, f"{served:,}" + ("" if own == size else f" (vLLM makes it {own})")))
    return View(
        "block-size",
        "block size",
        ("tokens a block", "unused tokens a request", "unused %", _served_header(lengths)),
        tuple(rows),
        "the prefix cache matches whole blocks: smaller ones match more",
    )


def window(planner: Planner, serving: ServingConfig) -> View:
    """Sliding-window layers as they are, and kept as if they were full attention."""
    if not any(isinstance(cache, SlidingWindow) for layer in planner.shape.layers for cache in layer):
        raise InputError(
            "--what-if window: this model has no sliding-window layers",
            "--what-if all shows the views that apply",
        )
    rows = []
    for name, off in (("windowed (default)", False), ("--disable-hybrid-kv-cache-manager", True)):
        answer = planner.estimate(serving.with_flags(disable_hybrid_kv_cache_manager=off))
        rows.append((name, answer.capacity.num_blocks.mid, answer.capacity.tokens.mid, _served(answer)))
    return View(
        "window",
        "sliding window",
        ("", "blocks", "KV tokens", _served_header(planner.lengths)),
        tuple(rows),
        "a KV connector without support for several groups switches the window off like the flag does",
    )


def skip_layers(planner: Planner, serving: ServingConfig) -> View:
    """An fp8 cache with the first layers kept unquantised."""
    rows: list[tuple[str | int | float | None, ...]] = []
    for count in (0, 1, 2, 4, 8):
        flags = serving.with_flags(
            kv_cache_dtype="fp8",
            kv_cache_dtype_skip_layers=tuple(map(str, range(count))) or None,
        )
        answer = planner.estimate(flags)
        rows.append((count, answer.plan.bytes_per_token, answer.plan.block_size, _served(answer)))
    return View(
        "skip-layers",
        "fp8 KV cache with some layers unquantised",
        ("layers skipped", "B a token", "tokens a block", _served_header(planner.lengths)),
        tuple(rows),
        "vLLM raises the block size until an unquantised page fits: the first skipped layer costs most",
    )


def offload(planner: Planner, serving: ServingConfig) -> View:
    """Weights moved to the host, and what each decoding step then waits for over PCIe.

    Every step reads all weights once, so the time is bytes / bandwidth, whatever the batch.
    """
    gbs = planner.gpu.pcie_gbs_per_direction
    now = planner.estimate(serving)
    rows: list[tuple[str | int | float | None, ...]] = []
    for gib in (0, 1, 2, 4, 8):
        freed = gib * GIB
        if freed >= now.budget.line("weights").bytes.mid:
            break
        kv = now.budget.available_kv_bytes.mid + freed
        blocks = max(kv, 0) // now.plan.bytes_per_block
        tokens = _served_tokens(now)
        step_ms = None if gbs is None else freed / (gbs * 1e9) * 1e3
        rows.append(
            (gib, blocks * now.plan.block_size, now.plan.concurrent_requests(blocks, tokens), step_ms)
        )
    return View(
        "offload",
        "weights on the host (--cpu-offload-gb)",
        ("GiB moved", "KV tokens", _served_header(planner.lengths), "ms more a token"),
        tuple(rows),
        "PCIe bandwidth from the card's profile" if gbs else "the card's profile has no PCIe bandwidth",
    )


def pools(planner: Planner, serving: ServingConfig) -> View:
    """One pool for all requests, against a pool for the shorter half and one for the longer."""
    lengths = _lengths(planner, "pools")
    if len(lengths.total_lens) < 2:
        raise InputError("--what-if pools: all requests have one length", "give a --workload with several")
    answer = planner.estimate(serving)
    shorter, longer = _halves(lengths.total_lens)
    rows = []
    for name, part in (("one pool", lengths.total_lens), ("shorter half", shorter), ("longer half", longer)):
        mean, p99 = _mean_of(part), _quantile(part, 0.99)
        blocks = answer.capacity.num_blocks.mid
        rows.append(
            (
                name,
                part[-1][0],
                answer.plan.concurrent_requests(blocks, max(1, round(mean))),
                answer.plan.concurrent_requests(blocks, p99),
            )
        )
    return View(
        "pools",
        "short and long requests in two pools (one card each) against one",
        ("", "longest", "at once at mean", "at once at P99"),
        tuple(rows),
        "paging makes the mean what counts in one pool; two pools help where P99 must hold",
    )


VIEWS: Final[dict[str, Callable[[Planner, ServingConfig], View]]] = {
    "attention": attention,
    "paging": paging,
    "block-size": block_size,
    "window": window,
    "skip-layers": skip_layers,
    "offload": offload,
    "pools": pools,
}
_BLOCK_SIZES: Final = (8, 16, 32, 64, 128)


def _served_tokens(answer: Estimate) -> int:
    return answer.max_model_len if answer.lengths is None else answer.lengths.total_len.p95


def _served(answer: Estimate) -> int:
    """Requests at once of the length that matters: the workload's P95, else max_model_len."""
    return (answer.capacity.p95 or answer.capacity.worst_case).mid


def _served_header(lengths: RequestLengths | None) -> str:
    return "requests at max_model_len" if lengths is None else "requests at P95"


def _lengths(planner: Planner, view: str) -> RequestLengths:
    if planner.lengths is None:
        raise InputError(
            f"--what-if {view} needs the requests' lengths",
            "give --workload, or --input-len and --output-len",
        )
    return planner.lengths


def _mean(lengths: RequestLengths, of: Callable[[int], float]) -> float:
    total = sum(count for _, count in lengths.total_lens)
    return sum(of(n) * count for n, count in lengths.total_lens) / total


def _unused_in_last_block(lengths: RequestLengths, block_size: int) -> float:
    return _mean(lengths, lambda n: cdiv(n, block_size) * block_size - n)


def _mean_of(part: tuple[tuple[int, int], ...]) -> float:
    return sum(n * count for n, count in part) / sum(count for _, count in part)


def _quantile(part: tuple[tuple[int, int], ...], q: float) -> int:
    """The smallest length that at least a share `q` of the requests does not exceed."""
    needed, seen = q * sum(count for _, count in part), 0
    for n, count in part:
        seen += count
        if seen >= needed:
            return n
    return part[-1][0]


def _halves(
    lens: tuple[tuple[int, int], ...],
) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]:
    """The requests up to the median, and the rest (the longest alone if the median is the longest)."""
    median = _quantile(lens, 0.5)
    cut = next((i for i, (n, _) in enumerate(lens) if n > median), len(lens) - 1)
    return lens[:cut], lens[cut:]


def each(names: list[str]) -> Iterator[tuple[str, Callable[[Planner, ServingConfig], View]]]:
    """The named views, or all of them for `all`.

    Raises:
        InputError: no such view.
    """
    for name in names:
        if name == "all":
            yield from VIEWS.items()
        elif name in VIEWS:
            yield name, VIEWS[name]
        else:
            raise InputError(f"--what-if {name!r} is not a view", f"one of {', '.join(VIEWS)} or all")
