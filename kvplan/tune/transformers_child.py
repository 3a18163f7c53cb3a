"""Generation with plain Transformers in a process of its own: `-m kvplan.tune.transformers_child SPEC`.

SPEC is a JSON file. The result is a JSON file too, put in its place at once. One batch holds all
users from its first token to its last: that is how `generate` serves several at a time.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any


def main() -> None:
    """Load the model, warm up, generate batches until `rounds` are done or `deadline_s` has passed."""
    spec = json.loads(Path(sys.argv[1]).read_text())
    if spec["cpus"]:
        os.sched_setaffinity(0, spec["cpus"])
    import torch
    from transformers import AutoModelForCausalLM

    if spec["device"] == "cpu":
        torch.set_num_threads(len(os.sched_getaffinity(0)))
    torch.manual_seed(spec["seed"])
    began = time.perf_counter()
    model = AutoModelForCausalLM.from_pretrained(spec["model"], dtype=spec["dtype"] or "auto")
    model.to(spec["device"]).eval()
    print(f"loaded in {time.perf_counter() - began:.1f} s", flush=True)  # noqa: T201  its log
    _generate(model, spec, output_len=2, until_s=float("inf"))
    rounds: list[list[float]] = []
    until_s = time.perf_counter() + spec["deadline_s"]
    while len(rounds) < spec["rounds"] and time.perf_counter() < until_s:
        rounds.append(_generate(model, spec, output_len=spec["output_len"], until_s=until_s))
        print(f"round {len(rounds)}: {len(rounds[-1])} tokens each", flush=True)  # noqa: T201
    _write(
        Path(spec["result_path"]),
        {
            "token_times_s": rounds,
            "transformers": _version("transformers"),
            "torch": torch.__version__,
            "dtype": str(model.dtype).removeprefix("torch."),
            "attention": getattr(model.config, "_attn_implementation", None),
        },
    )


def _generate(model: Any, spec: dict[str, Any], *, output_len: int, until_s: float) -> list[float]:
    """Seconds from the start at which each token of the batch was there."""
    import torch
    from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList

    times: list[float] = []

    class Clock(StoppingCriteria):  # type: ignore[misc]  # Transformers is not typed here
        """Notes when each token came; ends the batch when the time is over."""

        def __call__(self, input_ids: Any, _scores: Any, **_: Any) -> Any:
            if spec["device"] != "cpu":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
            over = time.perf_counter() > until_s
            return torch.full((input_ids.shape[0],), over, dtype=torch.bool, device=input_ids.device)

    shape = (spec["users"], spec["input_len"])
    # Ordinary tokens: special ones are at the ends of a vocabulary.
    margin = min(1000, model.config.vocab_size // 10)
    prompts = torch.randint(margin, model.config.vocab_size - margin, shape, device=spec["device"])
    config = GenerationConfig(
        max_new_tokens=output_len,
        do_sample=False,
        use_cache=spec["use_cache"],
        eos_token_id=None,
        pad_token_id=0,
    )
    with torch.inference_mode():
        began = time.perf_counter()
        model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            generation_config=config,
            stopping_criteria=StoppingCriteriaList([Clock()]),
        )
    return times


def _version(name: str) -> str:
    from importlib import metadata

    return metadata.version(name)


def _write(path: Path, result: dict[str, Any]) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(result))
    temporary.replace(path)


if __name__ == "__main__":
    main()
