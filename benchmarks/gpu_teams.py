"""Teams of language models on one GPU: rollout and update speed against Hugging Face, and where time goes.

    python benchmarks/gpu_teams.py --model embedded --out docs/results/bench-teams.json

Rollout: 128 new tokens to each of B prompts of 24 to 48 tokens, against `generate` with a dynamic and with a static
cache (which compiles). Update: gradients of the same ragged answers, 8 to a prompt, against a plain forward and
backward pass of the Hugging Face model over padded rows. The contestants take turns and every figure is a median over
the rounds. Greedy tokens are compared in float32. Iteration: the shares of rollout, environment and update in the time
of training, and GPU memory.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import statistics
import sys
import tempfile
import time
import unittest.mock
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from interleave import commit, demand_cuda

from coterie.algorithms.at_grpo.groups import Answers
from coterie.algorithms.at_grpo.update_worker import UpdateSpec, UpdateWorker, token_loss
from coterie.lm.ask import embedded
from coterie.lm.ask.loading import LMSettings, shared_backend
from coterie.lm.ask.local import Local
from coterie.lm.ask.local_settings import LocalSettings
from coterie.lm.learn.engine import Engine, EngineSpec, Request
from coterie.lm.learn.sampling import PAD
from coterie.lm.learn.transformer import Transformer, from_hugging_face
from coterie.lm.learn.updates import Weights
from coterie.nn.devices import resolve_device

NEW = 128  # tokens of an answer
NEVER = -5  # no token ends an answer
PARTS = ("greedy", "rollout", "update", "choices", "iteration")
PEAK = 790e12  # products per second of one H200 in bfloat16, as measured on 8192 x 8192 matrices


def prompts_of(tokenizer: Any, count: int) -> list[list[int]]:
    """Prompts of 24 to 48 tokens."""
    random = np.random.default_rng(0)
    words = [
        "find",
        "the",
        "shortest",
        "way",
        "from",
        "the",
        "start",
        "to",
        "the",
        "goal",
        "around",
        "every",
        "wall",
        "of",
        "this",
        "grid",
        "and",
        "name",
        "each",
        "move",
    ]
    texts = (" ".join(random.choice(words, 60)) for _ in range(count))
    return [tokenizer.encode(text)[: random.integers(24, 49)] for text in texts]


def timed(work: Callable[[], Any]) -> float:
    """Seconds, with all kernels finished."""
    torch.cuda.synchronize()
    begun = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - begun


def medians(contestants: dict[str, Callable[[], Callable[[], Any]]], rounds: int) -> dict[str, float]:
    """Median seconds of everybody, in turns; each is made anew and works twice before its time counts.

    Anew, because compiled code clears the matrix products' work space, which earlier CUDA graphs point to. Twice,
    because an update's second pass captures its graph.
    """
    found: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, make in contestants.items():
            work = make()
            work()
            work()
            found[name].append(timed(work))
            del work
            gc.collect()
    return {name: statistics.median(values) for name, values in found.items()}


def ours(network: Transformer, dtype: torch.dtype, adapters: int = 0) -> Transformer:
    """A copy on the GPU that computes in this precision; adapters are not 0."""
    made = Transformer(network.shape)
    made.load_state_dict(network.state_dict())
    if adapters:
        made.add_adapters(adapters, 16, 32.0, list(range(adapters)))
        with torch.no_grad():
            for up in (b for p in made.projections() for b in p.lora_b):
                up.normal_(std=0.01, generator=torch.Generator().manual_seed(0))
    made.cuda()
    made.set_precision(dtype)
    return made


def padded(prompts: list[list[int]], left: bool = True) -> dict[str, torch.Tensor]:
    width = max(map(len, prompts))
    gaps = [[0] * (width - len(p)) for p in prompts]
    rows = [g + p if left else p + g for g, p in zip(gaps, prompts, strict=True)]
    seen = [g + [1] * len(p) if left else [1] * len(p) + g for g, p in zip(gaps, prompts, strict=True)]
    return {"input_ids": torch.tensor(rows).cuda(), "attention_mask": torch.tensor(seen).cuda()}


def generate(model: Any, prompts: list[list[int]], new: int, **more: Any) -> torch.Tensor:
    """New tokens by Hugging Face's `generate`."""
    given = padded(prompts)
    out = model.generate(**given, max_new_tokens=new, min_new_tokens=new, pad_token_id=2, **more)
    tokens: torch.Tensor = out[:, given["input_ids"].shape[1] :]
    return tokens


def check_greedy(network: Transformer, exact: Any, prompts: list[list[int]]) -> dict[str, Any]:
    """Whether greedy tokens in float32 are those of Hugging Face."""
    engine = Engine(ours(network, torch.float32), EngineSpec(64, NEW, 256))
    noise = np.zeros((len(prompts), 1, NEW), np.float32)
    found = engine.sample(Request(prompts, 1, NEW, 0.0, (NEVER,), noise)).tokens[:, 0]
    wanted = generate(exact, prompts, NEW, do_sample=False).cpu().numpy()
    return {"prompts": len(prompts), "equal_rows": int((found == wanted).all(axis=1).sum())}


def rollout(network: Transformer, model: Any, tokenizer: Any, batch: int, rounds: int, static: bool) -> dict[str, Any]:
    """Tokens per second at one batch size; sampled at temperature 1."""
    prompts = prompts_of(tokenizer, batch)
    noise = np.random.default_rng(1).random((batch, 1, NEW), np.float32)
    room = EngineSpec(64, NEW, batch, batch)
    drawn = {"do_sample": True, "top_k": 0, "top_p": 1.0}

    def engine(adapters: int) -> Callable[[], Any]:
        made = Engine(ours(network, torch.bfloat16, adapters), room)
        owner = np.arange(batch) % adapters if adapters else None
        return lambda: made.sample(Request(prompts, 1, NEW, 1.0, (NEVER,), noise, owner))

    contestants: dict[str, Callable[[], Callable[[], Any]]] = {
        "engine": lambda: engine(0),
        "engine, two adapters": lambda: engine(2),
        "generate, dynamic cache": lambda: lambda: generate(model, prompts, NEW, **drawn),
    }
    if static:
        fixed = drawn | {"cache_implementation": "static"}
        contestants["generate, static cache"] = lambda: lambda: generate(model, prompts, NEW, **fixed)
    with torch.no_grad():
        seconds = medians(contestants, rounds)
    return {"batch": batch} | {name: round(batch * NEW / value) for name, value in seconds.items()}


def some_answers(tokenizer: Any, groups: int, count: int, longest: int) -> tuple[list[list[int]], Answers]:
    """Ragged answers: 8 to `longest` tokens, to prompts of 80 to 120."""
    random = np.random.default_rng(2)
    prompts = [(p * 6)[: random.integers(80, 121)] for p in prompts_of(tokenizer, groups)]
    tokens = random.integers(10, 40_000, (groups, count, longest)).astype(np.int32)
    lengths = random.integers(8, longest + 1, (groups, count))
    tokens[np.arange(longest)[None, None] >= lengths[..., None]] = PAD
    table = np.full((groups, 128), PAD, np.int32)
    for row, prompt in enumerate(prompts):
        table[row, : len(prompt)] = prompt
    advantages = random.standard_normal((groups, count)).astype(np.float32)
    log_probs = np.where(tokens == PAD, 0, -10.0).astype(np.float32)
    return prompts, Answers(table, tokens, log_probs, advantages, np.zeros(groups, np.int64))


def plain_step(model: Any, prompts: list[list[int]], answers: Answers, microbatch: int) -> None:
    """Gradients the usual way: every answer with its prompt is a padded row, and every token gets logits."""
    groups, count, _ = answers.tokens.shape
    rows = [(g, k) for g in range(groups) for k in range(count)]
    for first in range(0, len(rows), microbatch):
        part = rows[first : first + microbatch]
        written = [answers.tokens[g, k][answers.tokens[g, k] != PAD].tolist() for g, k in part]
        texts = [prompts[g] + own for (g, _), own in zip(part, written, strict=True)]
        given = padded(texts, left=False)
        log_probs = model(**given).logits[:, :-1].float().log_softmax(-1)
        chosen = log_probs.gather(2, given["input_ids"][:, 1:, None])[..., 0]
        own = torch.zeros_like(chosen)
        for row, ((g, _), answer) in enumerate(zip(part, written, strict=True)):
            own[row, len(prompts[g]) - 1 : len(prompts[g]) - 1 + len(answer)] = 1
        advantage = torch.tensor([float(answers.advantages[g, k]) for g, k in part], device="cuda")
        loss = token_loss(chosen, chosen.detach(), advantage, 0.2).loss
        ((loss * own).sum() / len(rows)).backward()
    model.zero_grad(set_to_none=True)


def update(
    network: Transformer, model: Any, tokenizer: Any, rounds: int, shape: tuple[int, int, int]
) -> dict[str, Any]:
    """Trained tokens (prompts counted with every answer) per second."""
    prompts, answers = some_answers(tokenizer, *shape)
    spec = UpdateSpec(1e-6, 0.2, 0.0, 0.0, "token", shape[0], shape[0], 1, 1.0, 1.0)
    full = UpdateWorker(Weights(ours(network, torch.bfloat16), None), 0.0)
    lora = UpdateWorker(Weights(ours(network, torch.bfloat16, 2), 0), 0.0)
    model.train()
    model.requires_grad_(True)

    def gradients(worker: UpdateWorker) -> None:
        worker._accumulate(answers, spec, shape[0])
        worker.optimizer.zero_gradients()

    torch.cuda.reset_peak_memory_stats()
    seconds = medians(
        {
            "plain": lambda: lambda: plain_step(model, prompts, answers, 256),
            "ours": lambda: lambda: gradients(full),
            "ours, adapters": lambda: lambda: gradients(lora),
            "ours, with the optimiser": lambda: lambda: full.update(answers, spec, np.random.default_rng(0)),
        },
        rounds,
    )
    model.requires_grad_(False)
    model.eval()
    lengths = (answers.tokens != PAD).sum(axis=2)
    own = np.array([len(prompt) for prompt in prompts])
    total = int((own[:, None] + lengths).sum())
    read = int(own.sum() + (lengths - 1).sum())  # a shared prompt once; nothing follows an answer's last token
    parameters = sum(p.weight.numel() for p in network.projections())
    head = network.embedding.numel()
    products = 6 * (parameters * read + head * int(lengths.sum()))
    return {
        "groups, answers, longest": shape,
        "tokens": total,
        "tokens_computed": read,
        "tokens_per_second": {name: round(total / value) for name, value in seconds.items()},
        "share_of_peak": round(products / seconds["ours"] / PEAK, 3),
        "gpu_memory_gb": round(torch.cuda.max_memory_allocated() / 1e9, 1),
    }


def iteration(words: list[str], folder: Path) -> dict[str, Any]:
    """Where the time of training an experiment goes: seconds and shares of each part, and GPU memory.

    Evaluations are left out. `environment` are the steps of the world and of its forks, which score candidates;
    `rest` is what lies between the parts: tokens from texts and back, the table, records of the rollout.
    """
    from coterie.algorithms.at_grpo import at_grpo
    from coterie.cli import main as coterie
    from coterie.policies.causal_lm import policy
    from coterie.policies.causal_lm.rollout_worker import RolloutWorker
    from coterie.training import loop
    from coterie.worlds.tasks.world import TaskWorld

    parts: tuple[tuple[str, Any, str], ...] = (
        ("whole", loop.Training, "advance"),
        ("rollout", RolloutWorker, "sample"),
        ("environment", policy, "score_candidates"),
        ("environment", TaskWorld, "step"),
        ("update", at_grpo.ATGRPO, "learn"),
    )
    spent, calls = dict.fromkeys((name for name, *_ in parts), 0.0), 0
    inside: list[str] = []  # the parts that are at work, the outermost first
    on_gpu = torch.cuda.is_available()

    def finish_kernels() -> None:
        if on_gpu:
            torch.cuda.synchronize()

    def watched(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*words: Any, **named: Any) -> Any:
            nonlocal calls
            counts = inside == [] if name == "whole" else inside == ["whole"]
            if not counts:  # in an evaluation, or in another part
                return work(*words, **named)
            finish_kernels()
            begun = time.perf_counter()
            inside.append(name)
            try:
                return work(*words, **named)
            finally:
                finish_kernels()
                inside.pop()
                spent[name] += time.perf_counter() - begun
                calls += name == "whole"

        return run

    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    with contextlib.ExitStack() as patches:
        for name, owner, method in parts:
            patches.enter_context(unittest.mock.patch.object(owner, method, watched(name, getattr(owner, method))))
        command = ["coterie", "train", *words, "--out", str(folder), "--quiet"]
        patches.enter_context(unittest.mock.patch.object(sys, "argv", command))
        try:
            coterie()
        except SystemExit as end:
            if end.code:
                raise
    spent["rest"] = 2 * spent["whole"] - sum(spent.values())
    shares = {name: round(value / spent["whole"], 3) for name, value in spent.items() if name != "whole"}
    return {
        "command": " ".join(["coterie train", *words]),
        "iterations": calls,
        "seconds": {name: round(value, 4) for name, value in spent.items()},
        "shares": shares,
        "gpu_memory_gb": round(torch.cuda.max_memory_allocated() / 1e9, 2) if on_gpu else None,
    }


def iteration_words(start: str | None, tokens: int) -> list[str]:
    """The training that `iteration` watches: Plan-Path 5x5, from a warm start or from the model as it is."""
    return [
        *("plan-path-smollm", *([] if start is None else [f"groups.team.start={start}"])),
        *(f"groups.team.learner.token_budget={tokens}", "train.total_steps=100000000", "train.best=last"),
        *("train.evaluate_every=1000", "train.evaluate_episodes=10", "train.video=false", "train.tensorboard=false"),
    ]


def choices(rounds: int) -> dict[str, Any]:
    """Scored choices per second of the embedded model: through the engine, without it, and on the CPU."""
    from lm import CHOICES, PROMPTS

    settings = {
        "GPU, engine": LocalSettings(device="cuda"),
        "GPU, without it": LocalSettings(device="cuda", engine="off", max_batch_tokens=4096),
        "CPU": LocalSettings(device="cpu"),
    }
    many = {name: (PROMPTS * (8 if "GPU" in name else 1), CHOICES * (8 if "GPU" in name else 1)) for name in settings}
    models = {name: Local.open(embedded.folder(), one) for name, one in settings.items()}
    seconds = medians({name: lambda name=name: lambda: models[name].score(*many[name]) for name in settings}, rounds)
    return {name: round(sum(map(len, many[name][1])) / value) for name, value in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded", help="embedded, or a directory or GGUF file of a Llama model")
    parser.add_argument("--batches", type=int, nargs="*", default=[64, 256, 1024])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-static", action="store_true", help="leave the static cache out: it compiles for a while")
    parser.add_argument(
        "--start", help="warm start of plan-path-smollm for the iteration (default: the model as it is)"
    )
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS), help="parts to measure")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    demand_cuda()
    resolve_device("cuda", compiled=False)  # the settings of a run
    # Two models, each loaded in its precision: casting one rounds its rotary frequencies, too.
    exact, backend = (
        shared_backend(LMSettings(name=options.model, local=LocalSettings(device="cuda", dtype=dtype)))
        for dtype in ("float32", "bfloat16")
    )
    assert isinstance(exact, Local)
    assert isinstance(backend, Local)
    model, tokenizer = backend.model, backend.tokenizer
    network = from_hugging_face(exact.model)
    found: dict[str, Any] = {"commit": commit(), "device": torch.cuda.get_device_name(), "torch": torch.__version__}

    def show(name: str, value: Any) -> None:
        found[name] = value
        print(name, json.dumps(value), flush=True)
        if options.out:  # a later part may not end
            options.out.write_text(json.dumps(found, indent=1) + "\n")
        gc.collect()
        torch.cuda.empty_cache()

    if "greedy" in options.only:
        show("greedy", check_greedy(network, exact.model, prompts_of(tokenizer, 64)))
    rows = []
    for batch in options.batches if "rollout" in options.only else ():
        rows.append(rollout(network, model, tokenizer, batch, options.rounds, not options.no_static))
        show("rollout", rows)
    if "update" in options.only:
        show("update", [update(network, model, tokenizer, options.rounds, s) for s in ((128, 8, 16), (128, 8, 64))])
    if "choices" in options.only:
        show("choices_per_second", choices(options.rounds))
    if "iteration" in options.only:
        with tempfile.TemporaryDirectory() as folder:
            show("iteration", iteration(iteration_words(options.start, 300_000), Path(folder) / "run"))


if __name__ == "__main__":
    main()
