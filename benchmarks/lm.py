"""Language models on this machine: scored choices, completion tokens and cached answers per second.

    python benchmarks/lm.py --threads 2

The embedded model in float32. Contestants take turns in one process, so that a busy machine slows all of them alike;
every figure is the median over the rounds. Writes bench-lm.json, or bench-lm-one-thread.json with one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from interleave import commit

from coterie.lm import Sampling, load
from coterie.lm.ask.cache import Cache, CacheSettings
from coterie.lm.ask.llamacpp import LlamaCppSettings
from coterie.lm.ask.local import Local
from coterie.lm.ask.local_settings import LocalSettings
from coterie.lm.ask.scoring import score_rows
from coterie.lm.ask.scripted import Scripted

OUT = Path(__file__).parent.parent / "docs" / "results"
WAYS = (("above", "up"), ("below", "down"), ("left of", "left"), ("right of", "right"))
SHOTS = "You walk on a grid. Say which way to go.\n" + "".join(
    f"The {thing} is {far} steps {where} you. Go: {go}\n"
    for far, thing in ((2, "apple"), (3, "pear"), (4, "plum"))
    for where, go in WAYS
)
PROMPTS = [SHOTS + f"The {thing} is {far} steps {where} you. Go:" for thing in ("fig", "nut") for far in (2, 3, 4)
           for where, _ in WAYS]  # fmt: skip
CHOICES = [[" up", " down", " left", " right", " stay here"]] * len(PROMPTS)
NEW_TOKENS = 32
Contestant = Callable[[], float]  # does the work once, returns how much was done


def take_turns(contestants: dict[str, Contestant], rounds: int) -> dict[str, float]:
    """Median rate of each, warmed up first."""
    found: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        for name, work in contestants.items():
            begin = time.perf_counter()
            done = work()
            if number:
                found[name].append(done / (time.perf_counter() - begin))
    return {name: round(statistics.median(rates), 2) for name, rates in found.items()}


def scoring(local: Local, rounds: int) -> dict[str, float]:
    """Choices per second: ours, and on two of the prompts one forward pass, or one row of a batch, for each choice."""
    fresh = Local(local.model, local.tokenizer, LocalSettings(prefix_cache_size=0))
    tokens = [local.tokenize(prompt, 0) for prompt in PROMPTS[:2]]
    choices = [[local.tokenize_choice(choice) for choice in mine] for mine in CHOICES[:2]]

    def ours(lm: Local, prompts: int) -> float:
        lm.score(PROMPTS[:prompts], CHOICES[:prompts])
        return float(sum(map(len, CHOICES[:prompts])))

    def plain(rows: int) -> float:
        return float(sum(map(len, score_rows(local.model, tokens, choices, rows))))

    return take_turns(
        {
            "prefix kept": lambda: ours(local, len(PROMPTS)),
            "prefix kept, one prompt at a time": lambda: ours(local, 1),
            "nothing kept": lambda: ours(fresh, len(PROMPTS)),
            "a row for each choice, ten at once": lambda: plain(10),
            "a pass for each choice": lambda: plain(1),
        },
        rounds,
    )


def completing(local: Local, llama: Any, rounds: int) -> dict[str, float]:
    """Completion tokens per second."""
    prompts = [f"Once upon a time, in a town with {number} bridges, there lived" for number in range(2, 10)]
    sampling = Sampling(max_tokens=NEW_TOKENS)

    def ours(lm: Any, count: int) -> float:
        return float(sum(len(mine[0].tokens) for mine in lm.complete(prompts[:count], sampling=sampling)))

    def generate(count: int) -> float:
        inputs = local.tokenizer(prompts[:count], return_tensors="pt", padding=True)
        with torch.inference_mode():
            out = local.model.generate(
                **inputs, max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=2
            )
        return float(count * (out.shape[1] - inputs.input_ids.shape[1]))

    return take_turns(
        {
            "local, batch 1": lambda: ours(local, 1),
            "Hugging Face generate, batch 1": lambda: generate(1),
            "llama.cpp, batch 1": lambda: ours(llama, 1),
            "local, batch 8": lambda: ours(local, 8),
            "Hugging Face generate, batch 8": lambda: generate(8),
        },
        rounds,
    )


def looking_up(rounds: int) -> dict[str, float]:
    """Cached scores per second, with a few-shot prompt in every key: from the file, and from memory."""
    with tempfile.TemporaryDirectory() as folder:
        settings = CacheSettings(f"{folder}/answers.db")
        prompts = [f"{SHOTS}The fig is {number} steps above you. Go:" for number in range(2000)]
        choices = [CHOICES[0]] * len(prompts)
        lm = Cache(Scripted(lambda prompt, random: ""), settings)
        lm.score(prompts, choices)

        def from_file() -> float:
            lm.memory.clear()
            return from_memory()

        def from_memory() -> float:
            return float(lm.score(prompts, choices).size)

        found = take_turns({"from the file": from_file, "from memory": from_memory}, rounds)
        lm.close()
    return found


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--rounds", type=int, default=3)
    words.add_argument("--out", type=Path, default=OUT)
    words.add_argument("--threads", type=int, default=2)
    chosen = words.parse_args()
    torch.set_num_threads(chosen.threads)
    backend = load("embedded", local=LocalSettings(device="cpu")).backend
    assert isinstance(backend, Local)
    llama = load("embedded", backend="llamacpp", llamacpp=LlamaCppSettings(threads=chosen.threads))
    found: dict[str, Any] = {
        "lookups_per_s": looking_up(chosen.rounds),
        "choices_per_s": scoring(backend, chosen.rounds),
        "completion_tokens_per_s": completing(backend, llama, chosen.rounds),
    }
    scored = found["choices_per_s"]
    found["times_naive"] = {name: round(rate / scored["a pass for each choice"], 1) for name, rate in scored.items()}
    found["threads"], found["rounds"] = chosen.threads, chosen.rounds
    found["prompt_tokens"] = len(backend.tokenize(PROMPTS[0], 0))
    for section in ("lookups_per_s", "choices_per_s", "times_naive", "completion_tokens_per_s"):
        for name, rate in found[section].items():
            print(f"{section:26}{name:36}{rate:12,.1f}", flush=True)
    head = {"command": f"python benchmarks/lm.py --threads {chosen.threads}", "commit": commit()}
    name = "bench-lm-one-thread.json" if chosen.threads == 1 else "bench-lm.json"
    (chosen.out / name).write_text(json.dumps(head | found, indent=1) + "\n")
    llama.close()


if __name__ == "__main__":
    main()
