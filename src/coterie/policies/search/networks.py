"""Networks that evaluate positions: logits of all actions and a value."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import numpy as np
import torch

from coterie.core.game import Game
from coterie.core.search_space import Choice, Space
from coterie.core.settings import Settings
from coterie.core.types import Array, Box, State
from coterie.core.validation import at_least
from coterie.nn import kernels, networks
from coterie.nn.devices import Device, resolve_device
from coterie.nn.packing import layout
from coterie.nn.residual import ResidualTower
from coterie.policies.network import check_widths
from coterie.policies.search.tree import Perceptron


@dataclass(frozen=True)
class PositionNetworkSettings(Settings):
    """The network of a search player."""

    kind: Literal["none", "mlp", "residual"] = "none"  # none: uniform priors and random games
    hidden: tuple[int, ...] = (128, 128)  # mlp: widths of the hidden layers
    channels: int = 64  # residual: channels of every convolution
    blocks: int = 4  # residual: blocks of two convolutions
    value_width: int = 64  # residual: hidden layer of the value head
    device: Device = "auto"  # auto: cpu for an mlp, else cuda if there is one
    precision: Literal["float32", "bfloat16"] = "float32"  # of evaluations on a GPU; learning is in float32

    SEARCH: ClassVar[Space] = {  # what `coterie tune` varies
        "hidden": Choice(((64, 64), (128, 128), (256, 256))),
        "channels": Choice((32, 64, 128)),
    }

    def __post_init__(self) -> None:
        check_widths(self.hidden, ())
        at_least("channels", self.channels, 1)
        at_least("blocks", self.blocks, 0)
        at_least("value_width", self.value_width, 1)


class PositionNetwork:
    """A network from what the player to move sees to (logits, value)."""

    def __init__(self, settings: PositionNetworkSettings, game: Game, seed: int) -> None:
        self.settings, self.game = settings, game
        self.net: torch.nn.Module
        self.spec: kernels.Spec | None = None
        if settings.kind == "residual":
            planes = game.observation.shape
            if len(planes) != 3:
                raise ValueError(f"network.kind=residual needs planes [C, H, W]; '{game.name}' has {planes}: set mlp")
            channels, blocks, width = settings.channels, settings.blocks, settings.value_width
            self.net = ResidualTower(planes, game.actions, channels, blocks, width, seed)
        else:
            size = int(np.prod(game.observation.shape))
            shape = networks.Shape(settings.hidden, "relu", "mlp", (), 0)
            self.net = networks.Network(shape, layout(Box((size,), -np.inf, np.inf)), game.actions + 1, 0.1, [seed])
            if kernels.available() and settings.device != "cuda":
                self.spec = self.net.spec()
        self.device = resolve_device(settings.device, self.spec is not None)
        self.net.to(self.device)
        if self.device.type == "cuda" and settings.kind == "residual":
            self.net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in PyTorch's stubs
        self.flat = networks.FlatParams(self.net, 1)
        self._graphs: dict[tuple[int, int], EvaluationGraph] = {}

    @property
    def perceptron(self) -> Perceptron | None:
        """The network for compiled search; None where it runs in PyTorch."""
        return None if self.spec is None else Perceptron(self.flat.array[0], self.spec.sizes, self.spec.relu)

    def outputs(self, x: torch.Tensor) -> torch.Tensor:
        """Logits and the value before its tanh, `[B, K + 1]`, for views `[B, D]` on the network's device."""
        if self.settings.kind == "residual":
            found: torch.Tensor = self.net(x)
            return found
        return self.net(x[None])[0][0]

    def inferred(self, x: torch.Tensor) -> torch.Tensor:
        """`outputs` without gradients, on a GPU in the precision of the settings."""
        half = self.device.type == "cuda" and self.settings.precision == "bfloat16"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=half, cache_enabled=False):
            return self.outputs(x).float()

    def evaluate(self, x: Array) -> tuple[Array, Array]:
        """Logits `[B, K]` and values `[B]` in [−1, 1] for views `[B, D]`."""
        with torch.inference_mode():
            out = self.inferred(torch.as_tensor(x, device=self.device)).cpu().numpy()
        return out[:, :-1], np.tanh(out[:, -1])

    def fingerprint(self) -> int:
        """A number that changes with the weights."""
        return zlib.crc32(self.flat.array.data)

    def evaluation(self, rows: int, part: int) -> EvaluationGraph:
        """An evaluation of up to `rows` positions on a GPU, captured once; each part of the copies has its own."""
        room = 1 << max(rows - 1, 0).bit_length()  # games end, and every number of them would be another graph
        if (room, part) not in self._graphs:
            self._graphs[room, part] = EvaluationGraph(self, room)
        return self._graphs[room, part]

    def state(self) -> State:
        return networks.export(self.net)

    def load(self, state: State, what: str) -> None:
        networks.restore(self.net, state, what)


class Evaluation(Protocol):
    """Evaluates positions while its caller goes on: write `x`, `start`, do something else, `finish`, read `out`."""

    @property
    def x(self) -> Array:
        """Observations of the players to move, `[R, D]`."""
        ...

    @property
    def out(self) -> Array:
        """Logits and the value in [−1, 1], `[R, K + 1]`; valid from `finish` to the next `start`."""
        ...

    def start(self, waiting: Array) -> None:
        """Begin to evaluate at least those rows of `x` that are `waiting [R]`."""
        ...

    def finish(self) -> None:
        """Return once `out` is there."""
        ...


class Blocking:
    """The evaluation by a function that returns with the answer; it is given the waiting rows alone."""

    def __init__(self, evaluate: Callable[[Array], tuple[Array, Array]], rows: int, size: int, outputs: int) -> None:
        self.evaluate = evaluate
        self.x, self.out = np.zeros((rows, size), np.float32), np.zeros((rows, outputs), np.float32)

    def start(self, waiting: Array) -> None:
        logits, value = self.evaluate(self.x[waiting])
        self.out[waiting] = np.concatenate([logits, value[:, None]], axis=1)

    def finish(self) -> None:
        pass  # `start` has waited for it


class EvaluationGraph:
    """A network's evaluation of R positions as one CUDA graph; later changes of its weights are seen."""

    def __init__(self, network: PositionNetwork, rows: int) -> None:
        size = int(np.prod(network.game.observation.shape))
        self._host_x = torch.zeros(rows, size, pin_memory=True)
        self._host_out = torch.zeros(rows, network.game.actions + 1, pin_memory=True)
        self.x: Array = self._host_x.numpy()
        self.out: Array = self._host_out.numpy()
        self._x = torch.zeros(rows, size, device=network.device)
        self._done = torch.cuda.Event()

        def outputs() -> torch.Tensor:
            found = network.inferred(self._x)
            return torch.cat([found[:, :-1], found[:, -1:].tanh()], dim=1)

        with torch.inference_mode():
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):  # libraries choose their algorithms before the capture
                for _ in range(3):
                    outputs()
            torch.cuda.current_stream().wait_stream(side)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._out = outputs()

    def start(self, waiting: Array) -> None:
        """Queue the evaluation of all rows; graphs are of one size, so rows that do not wait are evaluated too."""
        with torch.inference_mode():
            self._x.copy_(self._host_x, non_blocking=True)
            self._graph.replay()
            self._host_out.copy_(self._out, non_blocking=True)
            self._done.record()

    def finish(self) -> None:
        self._done.synchronize()
