"""The rollout engine behind a Hugging Face model: completions and scores of choices on a GPU."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.lm.ask.decoding import DecodedSample, StopCondition
from coterie.lm.ask.interface import Sampling
from coterie.lm.ask.packing import Tokens, shared_prefix_length
from coterie.lm.learn.engine import Engine, EngineSpec, Request
from coterie.lm.learn.sampling import PAD, Layout, seen_by, token_log_probs
from coterie.lm.learn.transformer import Transformer, from_hugging_face

log = logging.getLogger(__name__)

READ_AT_ONCE = 1 << 16  # tokens of prompts and choices that one pass scores
CELLS_AT_ONCE = 1 << 28  # of its attention masks


class LocalEngine:
    """A copy of a Llama model's weights, and the engine that samples from it."""

    def __init__(self, model: Any, rows: int) -> None:
        """Raise `ValueError` for a model that is not of the Llama family."""
        self.network: Transformer = from_hugging_face(model).requires_grad_(False)
        self.network.set_precision(model.dtype)  # before it goes to the GPU, where float32 would take twice the memory
        self.network.to(model.device)
        if model.device.type == "cuda":
            torch.backends.cuda.enable_cudnn_sdp(False)  # plans attention anew for each shape of a batch
        self.rows = rows
        self.engine: Engine | None = None

    def decode(
        self, prompts: Sequence[Tokens], uniforms: np.ndarray, sampling: Sampling, stop: StopCondition
    ) -> list[DecodedSample]:
        """Decode n samples of each of P prompts, prompt by prompt; `uniforms` `[P * n, max_tokens]` lie in [0, 1)."""
        engine = self._engine_for(max(map(len, prompts)), sampling.max_tokens)
        count = len(uniforms) // len(prompts)
        noise = np.minimum(uniforms.astype(np.float32), np.nextafter(np.float32(1), np.float32(0)))
        stopped = stop.stopped if sampling.stop else None
        found = engine.sample(
            Request(
                prompts=prompts,
                answers=count,
                max_tokens=sampling.max_tokens,
                temperature=sampling.temperature,
                ends=tuple(sorted(stop.tokens)) or (PAD,),
                noise=noise.reshape(len(prompts), count, -1),
                tempered=False,
                stopped=stopped,
            )
        )
        rows = zip(
            found.tokens.reshape(-1, sampling.max_tokens),
            found.log_probs.reshape(-1, sampling.max_tokens),
            strict=True,
        )
        return [self._sample(number, *row, sampling, stop) for number, row in enumerate(rows)]

    def _engine_for(self, prompt: int, answer: int) -> Engine:
        """An engine for prompts and answers of these lengths."""
        now = self.engine
        if now is None or now.spec.max_prompt < prompt or now.spec.max_tokens < answer:
            known = (0, 0) if now is None else (now.spec.max_prompt, now.spec.max_tokens)
            longest, most = (1 << (max(pair) - 1).bit_length() for pair in zip((prompt, answer), known, strict=True))
            self.engine = now = Engine(self.network, EngineSpec(longest, most, self.rows, self.rows))
        return now

    def _sample(
        self, number: int, tokens: np.ndarray, log_probs: np.ndarray, sampling: Sampling, stop: StopCondition
    ) -> DecodedSample:
        """One sample; the engine looks for stop strings only now and then, so tokens after one are cut off."""
        kept: list[int] = tokens[tokens != PAD].tolist()
        ended = kept[-1] in stop.tokens
        if sampling.stop:
            size = next((n for n in range(1, len(kept) + 1) if stop.stopped(kept[:n])), 0)
            kept, ended = (kept[:size], True) if size else (kept, ended)
        return DecodedSample(number, kept, log_probs[: len(kept)].tolist(), "stop" if ended else "length")

    @torch.no_grad()
    def scores(self, prompts: Sequence[Tokens], choices: Sequence[Sequence[Tokens]]) -> list[list[float]]:
        """One log-probability for each choice of each prompt; what all prompts begin with is read once."""
        start = min(shared_prefix_length(prompts), min(map(len, prompts)) - 1)
        prefix = self._read(prompts[0][:start])
        found: list[list[float]] = [[] for _ in prompts]
        waiting = list(self._parts(prompts, choices, start))[::-1]
        while waiting:
            part = waiting.pop()
            try:
                sums = self._score(
                    [prompts[i][start:] for i in part], _table([choices[i] for i in part]), prefix, start
                ).tolist()
            except torch.OutOfMemoryError:
                if len(part) == 1:
                    raise
                sums = None
            if sums is None:  # after the block: what the failed attempt held is free now
                torch.cuda.empty_cache()
                half = len(part) // 2
                waiting += [part[half:], part[:half]]
                log.warning("out of GPU memory: choices of %d prompts are scored at once", half)
                continue
            for i, row in zip(part, sums, strict=True):
                found[i] = row[: len(choices[i])]
        return found

    def _parts(self, prompts: Sequence[Tokens], choices: Sequence[Sequence[Tokens]], start: int) -> Iterator[list[int]]:
        """Prompts of about one length together, as many as one pass can read."""
        sizes = [len(prompt) - start + sum(map(len, row)) for prompt, row in zip(prompts, choices, strict=True)]
        part: list[int] = []
        for i in sorted(range(len(sizes)), key=sizes.__getitem__):
            cells = (len(part) + 1) * sizes[i]
            if part and (cells > READ_AT_ONCE or cells * (start + sizes[i]) > CELLS_AT_ONCE):
                yield part
                part = []
            part.append(i)
        yield part

    def _read(self, tokens: Tokens) -> list[PrefixKeys]:
        """Keys and values of what all prompts begin with."""
        caches = [PrefixKeys() for _ in self.network.layers]
        if len(tokens):
            self.network(torch.tensor([list(tokens)], device=self.network.embedding.device), caches=caches)
        return caches

    def _score(self, prompts: list[Tokens], answers: np.ndarray, prefix: list[PrefixKeys], start: int) -> Tensor:
        device = self.network.embedding.device
        layout = Layout.of(prompts, answers)
        tokens, position, owner, source = (torch.from_numpy(array).to(device) for array in layout)
        own = seen_by(owner)
        mask = torch.cat([own.new_ones((*own.shape[:3], start)), own], dim=3) if start else own
        caches = [one.shared() for one in prefix] if start else None
        hidden = self.network(tokens, None, position + start, mask, caches).flatten(0, 1)
        targets = torch.from_numpy(answers[answers != PAD].astype(np.int64)).to(device)
        log_probs, _ = token_log_probs(self.network, hidden[source], targets, 1.0)
        table = torch.zeros(answers.shape, device=device)
        return table.masked_scatter(torch.from_numpy(answers != PAD).to(device), log_probs).sum(dim=2)


def _table(choices: Sequence[Sequence[Tokens]]) -> np.ndarray:
    """Choices as an array `[prompts, choices, tokens]`, PAD where there is none."""
    width = max(map(len, choices))
    longest = max(len(choice) for row in choices for choice in row)
    answers = np.full((len(choices), width, longest), PAD, np.int32)
    for i, row in enumerate(choices):
        for k, choice in enumerate(row):
            answers[i, k, : len(choice)] = choice
    return answers


class PrefixKeys:
    """Keys and values of one layer for the beginning that all rows share."""

    def __init__(self) -> None:
        self.held: tuple[Tensor, Tensor] | None = None
        self.fixed = False

    def shared(self) -> PrefixKeys:
        """For a pass of other rows, which see this beginning and leave it as it is."""
        twin = PrefixKeys()
        twin.held, twin.fixed = self.held, True
        return twin

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Add positions; returns all so far."""
        if not self.fixed:
            self.held = key, value
            return self.held
        assert self.held is not None
        first, second = (one.expand(len(key), -1, -1, -1) for one in self.held)
        return torch.cat([first, key], dim=2), torch.cat([second, value], dim=2)
