"""The rollout engine: many answers from one transformer, at the speed of the hardware.

All answers to all prompts are requests in one queue. A prompt is read once and its answers go on from the same keys and
values, which are never copied. Answers are written row by row of a batch of fixed size; when one ends, its slot is
given to the next request. On a GPU a step is one CUDA graph for each of a few batch sizes: tokens, random numbers,
log-probabilities and ends stay on the device, and the host looks only every few steps which rows have ended. Rows of
different adapters share a batch.

A random number belongs to each token (request, step), so samples do not depend on the batch that they were written in,
apart from rounding.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coterie.core.types import Array
from coterie.lm.learn import engine_plain
from coterie.lm.learn.engine_plain import Buffers, Field
from coterie.lm.learn.sampling import PAD, Samples
from coterie.lm.learn.transformer import Layer, Projection, Rotation, Transformer, attention, rotate

log = logging.getLogger(__name__)
SMALLEST = 16  # rows of the smallest batch
STRIDE = 4  # steps between two looks at which rows have ended
READ_AT_ONCE = 1 << 16  # tokens of prompts


@dataclass(frozen=True)
class EngineSpec:
    """Capacity of an engine."""

    max_prompt: int  # tokens of a prompt
    max_tokens: int  # of an answer
    rows: int = 1024  # answers written at once
    prompts: int = 1024  # prompts whose keys and values are kept at once


class Request(NamedTuple):
    """A request for K answers to each of P prompts."""

    prompts: Sequence[Sequence[int]]
    answers: int  # to each prompt
    max_tokens: int
    temperature: float  # 0: the most likely token
    ends: tuple[int, ...]  # tokens that end an answer
    noise: Array  # [P, K, L] uniform numbers in [0, 1)
    adapters: Array | None = None  # [P] the adapter of each prompt; None: no adapters
    tempered: bool = True  # log-probabilities at the sampling temperature; otherwise at temperature 1
    stopped: Callable[[Sequence[int]], bool] | None = None  # whether these tokens end an answer; asked now and then


class Engine:
    """Samples answers from one transformer."""

    def __init__(self, network: Transformer, spec: EngineSpec) -> None:
        self.network, self.spec = network, spec
        self.device, self.dtype = network.embedding.device, network.compute
        self.kernels = _kernels(self.device)
        self.rows, self.prompts = spec.rows, spec.prompts  # fewer once memory has run out
        self.weights = EngineWeights(network)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._buffers: Buffers | None = None
        self.steps = 0  # decoding steps so far, of whole batches

    # Sampling -----------------------------------------------------------------------------------------

    @torch.no_grad()
    def sample(self, request: Request) -> Samples:
        """Answer; where memory runs out, with fewer rows at once."""
        while True:
            try:
                return self._sample(request)
            except torch.OutOfMemoryError:
                if max(self.rows, self.prompts) <= SMALLEST:
                    raise
            self._shrink()  # after the block: what the failed attempt held is free now
            log.warning("out of GPU memory: the engine goes on with %d answers at once", self.rows)

    def _shrink(self) -> None:
        """Give back all memory and go on with half of it."""
        self.rows, self.prompts = (max(number // 2, min(number, SMALLEST)) for number in (self.rows, self.prompts))
        self._buffers = None
        self._graphs.clear()
        torch.cuda.empty_cache()

    def _sample(self, request: Request) -> Samples:
        total, count = len(request.prompts) * request.answers, request.answers
        shape = (len(request.prompts), count, request.max_tokens)
        if not total:
            return Samples(np.full(shape, PAD, np.int32), np.zeros(shape, "f4"), np.zeros(shape[:2], "f4"))
        buffers = self._reserve(total, len(request.prompts), len(request.ends))
        self.weights.refresh()
        if buffers.tempered != request.tempered:
            buffers.tempered = request.tempered
            self._graphs.clear()
        buffers.temperature.fill_(request.temperature)
        buffers.ends.copy_(torch.tensor(request.ends, dtype=torch.int32))
        buffers.tokens[:total].fill_(PAD)
        buffers.log_probs[:total].zero_()
        buffers.entropy[:total].zero_()
        noise = np.ascontiguousarray(request.noise, np.float32).reshape(total, -1)[:, : request.max_tokens]
        buffers.noise[:total, : request.max_tokens].copy_(torch.from_numpy(noise))
        Schedule(self, buffers, request).run()
        tokens = buffers.tokens[:total, : request.max_tokens].cpu().numpy().copy()  # the buffers are used again
        lengths = np.maximum((tokens != PAD).sum(axis=1), 1)
        return Samples(
            tokens.reshape(shape),
            buffers.log_probs[:total, : request.max_tokens].cpu().numpy().reshape(shape).copy(),
            (buffers.entropy[:total].cpu().numpy() / lengths).astype(np.float32).reshape(shape[:2]),
        )

    def _reserve(self, requests: int, prompts: int, ends: int) -> Buffers:
        """Buffers for so many requests and prompts; what is there is used again."""
        requests, prompts = (1 << (number - 1).bit_length() for number in (requests, prompts))  # seldom new buffers
        buffers, prompts = self._buffers, min(prompts, self.prompts)
        if buffers is not None:
            requests, prompts = max(requests, len(buffers.tokens)), max(prompts, len(buffers.prompt_logits))
        if buffers is None or (requests, prompts, ends) != (
            len(buffers.tokens),
            len(buffers.prompt_logits),
            len(buffers.ends),
        ):
            self._graphs.clear()
            self._buffers = buffers = None  # the old ones go before the new ones come
            self._buffers = buffers = self._make_buffers(requests, prompts, ends)
        return buffers

    def _make_buffers(self, requests: int, prompts: int, ends: int) -> Buffers:
        shape, spec = self.network.shape, self.spec

        def cache(rows: int, positions: int) -> Tensor:
            size = (shape.layers, rows, shape.kv_heads, positions, shape.head_size)
            return torch.zeros(size, dtype=self.dtype, device=self.device)

        def new(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(size, dtype=dtype, device=self.device)

        answers, width = (self.rows + 1, spec.max_tokens), spec.max_tokens  # idle rows write to the last slot
        return Buffers(
            shape=shape,
            prompt_key=cache(prompts, spec.max_prompt),
            prompt_value=cache(prompts, spec.max_prompt),
            prompt_logits=new(prompts, shape.vocabulary, dtype=self.dtype),
            key=cache(*answers),
            value=cache(*answers),
            cosine=self.network.cosine,  # type: ignore[arg-type]  # buffers
            sine=self.network.sine,  # type: ignore[arg-type]  # likewise
            noise=new(requests, width),
            tokens=new(requests, width, dtype=torch.int32),
            log_probs=new(requests, width),
            entropy=new(requests),
            temperature=new(),
            ends=new(ends, dtype=torch.int32),
            parts=new(self.rows, 2, -(-shape.vocabulary // engine_plain.VOCABULARY_BLOCK)),
            state=new(len(Field), self.rows, dtype=torch.int32),
        )

    # One step -----------------------------------------------------------------------------------------

    def step(self, rows: int, state: Tensor, buffers: Buffers) -> None:
        """Write one token in each of the first rows; a graph of the next larger batch size does it on a GPU."""
        self.steps += 1
        size = self.batch_size(rows)
        if self.device.type != "cuda":
            self._decode(size, state, buffers)
            return
        if size not in self._graphs:
            self._graphs[size] = self._capture(size, state, buffers)
        self._graphs[size].replay()

    def batch_size(self, rows: int) -> int:
        """The next power of two, at most all rows."""
        return min(self.rows, max(SMALLEST, 1 << (rows - 1).bit_length()))

    def _capture(self, size: int, state: Tensor, buffers: Buffers) -> torch.cuda.CUDAGraph:
        before = state.clone()
        state[Field.ACTIVE].zero_()  # nothing is written while kernels are compiled
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._decode(size, state, buffers)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        pool = next(iter(self._graphs.values())).pool() if self._graphs else None
        with torch.cuda.graph(graph, pool=pool):
            self._decode(size, state, buffers)
        state.copy_(before)
        return graph

    def _decode(self, size: int, state: Tensor, buffers: Buffers) -> None:
        x = F.embedding(state[Field.TOKEN, :size], self.weights.plain[self.network.embedding])
        adapter = state[Field.ADAPTER]

        def attend(heads: Tensor, layer: int) -> Tensor:
            mixed: Tensor = self.kernels.attend(heads, layer, buffers, state)
            return mixed

        logits = self._logits(*self._layers(x, attend, adapter))
        rows = torch.arange(size, dtype=torch.int32, device=self.device)
        self.kernels.draw(logits, rows, state, buffers)

    def _norm(self, x: Tensor, more: Tensor | None, weight: nn.Parameter) -> tuple[Tensor, Tensor]:
        """The sum of both, and its norm."""
        both: tuple[Tensor, Tensor] = self.kernels.add_norm(
            x, more, self.weights.plain[weight], self.network.shape.epsilon
        )
        return both

    def _logits(self, x: Tensor, more: Tensor) -> Tensor:
        normed = self._norm(x, more, self.network.norm)[1]
        return F.linear(normed, self.weights.plain[self.network.output_embedding])

    def _layers(self, x: Tensor, attend: Callable[[Tensor, int], Tensor], adapter: Tensor) -> tuple[Tensor, Tensor]:
        """The residual stream `[R, W]` before the last layer's feed-forward network, and what that adds."""
        more: Tensor | None = None
        for number, layer in enumerate(self.network.layers):
            assert isinstance(layer, Layer)
            x, normed = self._norm(x, more, layer.attention_norm)
            mixed = attend(self._project(layer.query_key_value, normed, adapter), number)
            x, normed = self._norm(x, self._project(layer.output, mixed, adapter), layer.feed_norm)
            gated = self.kernels.gate(self._project(layer.gate_up, normed, adapter))
            more = self._project(layer.down, gated, adapter)
        assert more is not None
        return x, more

    def _project(self, projection: Projection, x: Tensor, adapter: Tensor) -> Tensor:
        """W x + scale · B A x of each row's adapter."""
        out = F.linear(x, self.weights.plain[projection.weight])
        if projection in self.weights.ups:
            out = self.kernels.adapt(out, self.weights.ups[projection], adapter[: len(x)], projection.scale)
        return out

    # Prompts ------------------------------------------------------------------------------------------

    def read(
        self, prompts: Sequence[Sequence[int]], slots: Sequence[int], adapters: Array | None, buffers: Buffers
    ) -> None:
        """Read prompts, and keep their keys, values and first logits at these slots."""
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        first = 0
        while first < len(order):  # prompts of about one length together
            last = first + 1
            while last < len(order) and (last - first + 1) * len(prompts[order[last]]) <= READ_AT_ONCE:
                last += 1
            some = order[first:last]
            self._read(
                [prompts[i] for i in some],
                [slots[i] for i in some],
                None if adapters is None else adapters[some],
                buffers,
            )
            first = last

    def _read(self, prompts: list[Sequence[int]], slots: list[int], adapters: Array | None, buffers: Buffers) -> None:
        shape = self.network.shape
        lengths = [len(prompt) for prompt in prompts]
        rows, longest = len(prompts), max(lengths)
        table = np.zeros((rows, longest), np.int64)  # padded on the right: no token looks at what follows
        for row, prompt in enumerate(prompts):
            table[row, : len(prompt)] = prompt
        into = torch.tensor(slots, device=self.device)
        x = F.embedding(torch.from_numpy(table).to(self.device), self.weights.plain[self.network.embedding])
        x = x.view(rows * longest, -1)
        cosine, sine = (t[None, None, :longest].to(x.dtype) for t in (buffers.cosine, buffers.sine))
        turn = Rotation(cosine, sine, None)
        numbers = np.full(rows, -1) if adapters is None else adapters
        adapter = torch.from_numpy(np.repeat(numbers, longest).astype(np.int32)).to(self.device)

        def attend(heads: Tensor, layer: int) -> Tensor:
            split = heads.view(rows, longest, -1, shape.head_size).transpose(1, 2)
            turned, value = split.split((shape.heads + shape.kv_heads, shape.kv_heads), dim=1)
            query, key = rotate(turned, turn).split((shape.heads, shape.kv_heads), dim=1)
            buffers.prompt_key[layer, into, :, :longest], buffers.prompt_value[layer, into, :, :longest] = key, value
            mixed = attention(query, key, value, None)
            return mixed.transpose(1, 2).reshape(rows * longest, -1)

        ends = torch.arange(rows, device=self.device) * longest + torch.tensor(lengths, device=self.device) - 1
        buffers.prompt_logits[into] = self._logits(*(both[ends] for both in self._layers(x, attend, adapter)))


class Schedule:
    """Assigns answers to rows, and decides when prompts are read."""

    def __init__(self, engine: Engine, buffers: Buffers, request: Request) -> None:
        self.engine, self.buffers, self.request = engine, buffers, request
        self.next = 0  # the first request that has not begun; its prompt is next // count
        self.known: dict[int, int] = {}  # prompt -> its slot
        self.left = np.full(len(request.prompts), request.answers)  # answers of each prompt that have not ended
        self.free_prompts = list(range(buffers.prompt_key.shape[1]))[::-1]
        self.free_slots = list(range(engine.rows))[::-1]
        self.state = buffers.state
        self._idle(0)
        self.rows: list[tuple[int, int]] = []  # (request, slot) of every row

    def run(self) -> None:
        """Write all answers."""
        total = len(self.request.prompts) * self.request.answers
        while self.rows or self.next < total:
            self._admit(total)
            for _ in range(STRIDE):
                self.engine.step(len(self.rows), self.state, self.buffers)
            self._release()

    def _admit(self, total: int) -> None:
        """Begin requests as far as there are slots, and draw their first tokens."""
        wanted = min(len(self.free_slots), total - self.next)
        if not wanted or (self.rows and wanted < min(self.engine.rows // 8, total - self.next)):
            return  # a few slots are not worth a look at the queue
        count = self.request.answers
        last_prompt = min((self.next + wanted - 1) // count, self._readable())
        if last_prompt < self.next // count:
            return  # no slot for the next prompt yet
        self._read(range(self.next // count, last_prompt + 1))
        begun = range(self.next, min(self.next + wanted, (last_prompt + 1) * count))
        first = len(self.rows)
        columns = np.zeros((len(Field), len(begun)), np.int32)
        for i, number in enumerate(begun):
            prompt, slot = number // count, self.free_slots.pop()
            self.rows.append((number, slot))
            columns[:, i] = self._column(number, prompt, slot)
        self.next = begun.stop
        self.state[:, first : len(self.rows)] = torch.from_numpy(columns).to(self.state.device)
        fresh = self.state[:, first : len(self.rows)]
        source = fresh[Field.PROMPT].contiguous()
        # The kernels read a table from its first column on: new rows get one of their own for a moment.
        alone = fresh.contiguous()
        self.engine.kernels.draw(self.buffers.prompt_logits, source, alone, self.buffers)
        fresh.copy_(alone)

    def _readable(self) -> int:
        """The last prompt that is read or for which there is a slot."""
        return max(self.known, default=self.next // self.request.answers - 1) + len(self.free_prompts)

    def _read(self, prompts: range) -> None:
        new = [prompt for prompt in prompts if prompt not in self.known]
        for prompt in new:
            self.known[prompt] = self.free_prompts.pop()
        if new:
            adapters = None if self.request.adapters is None else np.asarray(self.request.adapters)[new]
            slots = [self.known[prompt] for prompt in new]
            self.engine.read([self.request.prompts[prompt] for prompt in new], slots, adapters, self.buffers)

    def _column(self, number: int, prompt: int, slot: int) -> tuple[int, ...]:
        length = len(self.request.prompts[prompt])
        adapter = -1 if self.request.adapters is None else int(self.request.adapters[prompt])
        return (0, 0, 1, number, self.request.max_tokens, slot, self.known[prompt], length, adapter)

    def _release(self) -> None:
        """Give the slots of ended answers back, and close the gaps."""
        alive = self.state[Field.ACTIVE, : len(self.rows)].cpu().numpy() != 0
        if self.request.stopped is not None:
            alive &= ~self._stopped(alive)
        if alive.all():
            return
        for (number, slot), on in zip(self.rows, alive, strict=True):
            if not on:
                self.free_slots.append(slot)
                prompt = number // self.request.answers
                self.left[prompt] -= 1
                if not self.left[prompt]:
                    self.free_prompts.append(self.known[prompt])
        kept = np.flatnonzero(alive)
        self.rows = [self.rows[i] for i in kept]
        self.state[:, : len(kept)] = self.state[:, torch.from_numpy(kept).to(self.state.device)]
        self._idle(len(kept))

    def _stopped(self, alive: Array) -> Array:
        """[R] rows that are being written and whose tokens end the answer."""
        assert self.request.stopped is not None
        found = np.zeros(len(alive), bool)
        rows = np.flatnonzero(alive)
        if len(rows):
            numbers = torch.tensor([self.rows[row][0] for row in rows], device=self.state.device)
            for row, tokens in zip(rows, self.buffers.tokens[numbers].cpu().numpy(), strict=True):
                found[row] = self.request.stopped(tokens[tokens != PAD].tolist())
        return found

    def _idle(self, first: int) -> None:
        """Rows from here on write nothing that anybody reads, and look at little."""
        for field, value in ((Field.ACTIVE, 0), (Field.STEP, 1), (Field.SLOT, self.engine.rows), (Field.PROMPT, 0)):
            self.state[field, first:] = value
        self.state[Field.PROMPT_LENGTH, first:] = 1


class EngineWeights:
    """A network's weights in the engine's precision, and its adapters as the engine's products want them.

    Below each weight W stand the matrices A of all adapters, so that one product gives W x and every A x.
    """

    def __init__(self, network: Transformer) -> None:
        self.dtype = network.compute
        own = [p for name, p in network.named_parameters() if ".lora_" not in name]
        self.plain: dict[nn.Parameter, Tensor] = {
            p: p.detach() if p.dtype == self.dtype else p.detach().to(self.dtype) for p in own
        }
        self.ups: dict[Projection, Tensor] = {}  # [adapters, outputs, rank]
        self.sources: list[Tensor] = [p.detach() for p in own if p.dtype != self.dtype]
        self.copies: list[Tensor] = [self.plain[p] for p in own if p.dtype != self.dtype]
        if network.adapters:
            for projection in network.projections():
                self._stack(projection)

    def _stack(self, projection: Projection) -> None:
        outputs, inputs = projection.weight.shape
        count, rank = len(projection.lora_a), len(projection.lora_a[0])
        wide = self.plain[projection.weight].new_empty((outputs + count * rank, inputs))
        wide[:outputs] = self.plain[projection.weight]
        projection.weight.data = wide[:outputs]  # the frozen weight is kept once
        self.plain[projection.weight] = wide
        self.ups[projection] = wide.new_empty((count, outputs, rank))
        for i, (a, b) in enumerate(zip(projection.lora_a, projection.lora_b, strict=True)):
            self.sources += [a.detach(), b.detach()]
            self.copies += [wide[outputs + i * rank : outputs + (i + 1) * rank], self.ups[projection][i]]

    def refresh(self) -> None:
        """Take over what learning has changed, where it is: graphs know where the copies are."""
        if self.copies:
            torch._foreach_copy_(self.copies, self.sources)


def _kernels(device: torch.device) -> ModuleType:
    if device.type != "cuda":
        return engine_plain
    from coterie.lm.learn import engine_kernels

    return engine_kernels
