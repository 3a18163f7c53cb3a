"""Which layers each pipeline stage gets."""

from __future__ import annotations


def pipeline_stages(num_layers: int, stages: int) -> tuple[tuple[int, int], ...]:
    """(first, one past the last) layer of each stage.

    Layers that do not divide go one each to the stages from the second last backwards: the last one has
    the output head, the first one the embedding.

    Source: vLLM 0.32.0 distributed/utils.py::get_pp_indices.
    """
    sizes = [num_layers // stages] * stages
    remainder = num_layers % stages
    for back in range(2, remainder + 2):
        sizes[-back] += 1
    ends = [sum(sizes[: stage + 1]) for stage in range(stages)]
    return tuple(zip([0, *ends[:-1]], ends, strict=True))
