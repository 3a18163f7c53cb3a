"""Train a model of 0.7 M parameters that finds needles: the positive control of the quality probe.

    python tests/bench/needle_model.py FOLDER [--steps 4000] [--minutes 20]

A random model finds nothing, and no trained model ships with kvplan or comes without a download. This is a
Qwen2 of three layers with a vocabulary of words, trained on haystacks of kvplan's form with other codes; vLLM
serves the folder. Seeded; on one core about 15 minutes. Prints how many needles it finds in unseen haystacks.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import Qwen2Config, Qwen2ForCausalLM

from kvplan.quality.needles import _NAMES, haystack
from kvplan.quality.passages import PASSAGES, PROSE

CONTEXT = 320
BATCH = 32


def tokenizer() -> Tokenizer:
    """Words and single digits; a space begins a word, so that digits join again when they are decoded."""
    pieces = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(prepend_scheme="never"),
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.Punctuation(),
            pre_tokenizers.Split("\n", "isolated"),
        ]
    )
    known = {"<unk>": 0, "<eos>": 1, **{f"{d}": d + 2 for d in range(10)}}
    question = "".join(
        (*(f" The code of the {name} is." for name in _NAMES), "\n\nQuestion: what is\nAnswer:")
    )
    for text in (question, *PASSAGES):
        for piece, _ in pieces.pre_tokenize_str(text):
            known.setdefault(piece, len(known))
    made = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    made.pre_tokenizer = pieces
    made.decoder = decoders.Metaspace(prepend_scheme="never")
    return made


def sentences() -> list[str]:
    return [f" {s}" for p in PROSE for s in re.split(r"(?<=[.?!])\s+", " ".join(p.split())) if s]


def example(
    rng: random.Random, words: Tokenizer, hay: list[str], length: int
) -> tuple[list[int], list[bool]]:
    """A haystack with five facts, then all questions with answers; and which tokens are answers."""
    names = rng.sample(_NAMES, 5)
    codes = [f"{rng.randrange(10_000, 100_000)}" for _ in names]
    parts = [f" The code of the {n} is {c}." for n, c in zip(names, codes, strict=True)]
    used = sum(len(words.encode(p).ids) for p in parts)
    while True:
        sentence = rng.choice(hay)
        used += len(words.encode(sentence).ids)
        if used > length:
            break
        parts.insert(rng.randrange(len(parts) + 1), sentence)
    ids = words.encode("".join(parts).strip()).ids
    is_answer = [False] * len(ids)
    for which in rng.sample(range(5), 5):
        name = names[which]
        question = f"\n\nQuestion: what is the code of the {name}?\nAnswer: The code of the {name} is"
        asked, answer = words.encode(question).ids, words.encode(f" {codes[which]}.").ids
        ids += asked + answer
        is_answer += [False] * len(asked) + [True] * len(answer)
    return ids, is_answer


def batch(rng: random.Random, words: Tokenizer, hay: list[str], length: int) -> tuple[Any, Any]:
    made = [example(rng, words, hay, length) for _ in range(BATCH)]
    width = max(len(ids) for ids, _ in made)
    inputs = torch.zeros(BATCH, width, dtype=torch.long)
    answers = torch.zeros(BATCH, width, dtype=torch.bool)
    for row, (ids, is_answer) in enumerate(made):
        inputs[row, : len(ids)] = torch.tensor(ids)
        answers[row, : len(ids)] = torch.tensor(is_answer)
    return inputs, answers


def train(steps: int, minutes: float, words: Tokenizer) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = Qwen2Config(
        vocab_size=words.get_vocab_size(),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=1,
    )
    model = Qwen2ForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    rng, hay, began = random.Random(1), sentences(), time.monotonic()
    for step in range(steps):
        left = 1 - max(step / steps, (time.monotonic() - began) / (60 * minutes))
        if left <= 0:
            break
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1.0, (step + 1) / 100) * max(0.05, left)
        # Short haystacks first: the copying is learnt there, and then stretched.
        length = 70 if left > 0.5 else 70 + int((CONTEXT - 70) * rng.random())
        inputs, answers = batch(rng, words, hay, length)
        logits = model(input_ids=inputs).logits[:, :-1]
        losses = torch.nn.functional.cross_entropy(
            logits.transpose(1, 2), inputs[:, 1:], reduction="none", ignore_index=0
        )
        asked = answers[:, 1:]
        answer_loss = losses[asked].mean()
        loss = answer_loss + 0.2 * losses[~asked].mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0:
            found = (logits.argmax(-1) == inputs[:, 1:])[asked].float().mean()
            print(
                f"{step:5d}  {time.monotonic() - began:5.0f} s  answer {answer_loss:.3f}  right {found:.0%}",
                flush=True,
            )
    return model


def save(folder: Path, model: Qwen2ForCausalLM, words: Tokenizer) -> None:
    model.to(torch.bfloat16).save_pretrained(folder)
    words.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def found(model: Qwen2ForCausalLM, words: Tokenizer) -> int:
    """Of the twenty needles of kvplan's own haystacks."""
    right = 0
    for number in range(4):
        hidden = haystack(number, 1200)
        assert hidden is not None
        for question, code in zip(hidden.questions, hidden.answers, strict=True):
            ids = words.encode(hidden.text).ids + words.encode(question).ids
            out = model.generate(torch.tensor([ids]), max_new_tokens=7, do_sample=False, pad_token_id=0)
            said = words.decode(out[0, len(ids) :].tolist())
            right += re.findall(r"\d+", said)[:1] == [code]
    return right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--minutes", type=float, default=20)
    args = parser.parse_args()
    words = tokenizer()
    model = train(args.steps, args.minutes, words)
    print(f"{found(model, words)} of 20 needles found")
    save(args.folder, model, words)


if __name__ == "__main__":
    main()
