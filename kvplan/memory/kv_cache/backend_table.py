"""Which attention backend a layer gets.

Read with FlashInfer installed and FlashAttention 2 everywhere, 3 on SM90, 4 on SM100.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvplan.errors import InputError, UnsupportedModelError
from kvplan.memory.kv_cache.heads_backends import HEADS_BACKENDS, heads_priorities
from kvplan.memory.kv_cache.latent_backends import LATENT_BACKENDS, latent_priorities

if TYPE_CHECKING:
    from kvplan.memory.kv_cache.backends import AttentionRequest, Backend

BACKENDS: Final = {backend.name: backend for backend in (*HEADS_BACKENDS, *LATENT_BACKENDS)}


def select_backend(request: AttentionRequest, asked: str | None) -> tuple[Backend, str | None]:
    """The backend that a layer gets, and vLLM's warning if --block-size kept a better one out.

    Args:
        request: what the layer needs.
        asked: `--attention-backend`, or None.

    Raises:
        InputError: vLLM refuses to start, in its own words.

    Source: vLLM 0.32.0 platforms/cuda.py::CudaPlatformBase.get_attn_backend_cls.
    """
    if asked is not None:
        return _asked_backend(request, asked), None
    priorities = latent_priorities(request) if request.uses_mla else heads_priorities(request)
    tried = [(backend, backend.refusals(request)) for backend in priorities]
    chosen = next((backend for backend, reasons in tried if not reasons), None)
    if chosen is None:
        reasons_text = ", ".join(f"{backend.name}: [{', '.join(reasons)}]" for backend, reasons in tried)
        raise InputError(
            f"No valid attention backend found for cuda with {request.describe()}. "
            f"Reasons: {{{reasons_text}}}.",
            "vLLM stops at start-up with this message: choose another kv_cache_dtype, block_size or card",
        )
    better = [
        backend.name
        for backend, reasons in tried[: tried.index((chosen, ()))]
        if reasons == ("block_size not supported",)
    ]
    if request.block_size is None or not better:
        return chosen, None
    return chosen, (
        f"--block-size {request.block_size} precluded higher-priority backend(s) {', '.join(better)}. Using "
        f"{chosen.name} instead, which may result in reduced performance. Consider removing --block-size to "
        "auto-select the optimal block size."
    )


def _asked_backend(request: AttentionRequest, asked: str) -> Backend:
    backend = BACKENDS.get(asked.upper())
    if backend is None:
        raise UnsupportedModelError(
            f"attention backend {asked!r} has no rule here", f"known: {', '.join(sorted(BACKENDS))}"
        )
    if reasons := backend.refusals(request):
        raise InputError(
            f"Selected backend AttentionBackendEnum.{backend.name} is not valid for this configuration. "
            f"Reason: {list(reasons)}",
            "leave --attention-backend to vLLM, or change what the reason names",
        )
    return backend
