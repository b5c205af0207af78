"""Networks that evaluate positions: logits of all actions and a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch

from coterie.core.game import Game
from coterie.core.search_space import Choice, Space
from coterie.core.types import Array, Box, State
from coterie.core.validation import at_least
from coterie.nn import kernels, networks
from coterie.nn.devices import Device, resolve_device
from coterie.nn.packing import layout
from coterie.nn.residual import ResidualTower
from coterie.policies.network import check_widths
from coterie.policies.search.tree import Perceptron


@dataclass(frozen=True)
class NetworkSettings:
    """The network of a search player."""

    kind: Literal["none", "mlp", "residual"] = "none"  # none: uniform priors and random games
    hidden: tuple[int, ...] = (128, 128)  # mlp: widths of the hidden layers
    channels: int = 64  # residual: channels of every convolution
    blocks: int = 4  # residual: blocks of two convolutions
    value_width: int = 64  # residual: hidden layer of the value head
    device: Device = "auto"  # auto: cpu for an mlp, else cuda if there is one

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

    def __init__(self, settings: NetworkSettings, game: Game, seed: int) -> None:
        self.settings, self.game = settings, game
        self.net: torch.nn.Module
        self.spec: kernels.Spec | None = None
        if settings.kind == "residual":
            planes = game.observation.shape
            if len(planes) != 3:
                raise ValueError(f"network.kind=residual needs planes [C, H, W]; '{game.name}' has {planes}: set mlp")
            channels, blocks, width = settings.channels, settings.blocks, settings.value_width
            self.net = ResidualTower(planes, game.actions, channels, blocks, width, seed)  # type: ignore[arg-type]
        else:
            size = int(np.prod(game.observation.shape))
            shape = networks.Shape(settings.hidden, "relu", "mlp", (), 0)
            self.net = networks.Net(shape, layout(Box((size,), -np.inf, np.inf)), game.actions + 1, 0.1, [seed])
            if kernels.available() and settings.device != "cuda":
                self.spec = self.net.spec()
        self.device = resolve_device(settings.device, self.spec is not None)
        self.net.to(self.device)
        if self.device.type == "cuda" and settings.kind == "residual":
            self.net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.flat = networks.FlatParams(self.net, 1)

    @property
    def perceptron(self) -> Perceptron | None:
        """The network for compiled search; None where it runs in PyTorch."""
        return None if self.spec is None else Perceptron(self.flat.array[0], self.spec.sizes, self.spec.relu)

    def outputs(self, x: torch.Tensor) -> torch.Tensor:
        """Logits and the value before its tanh, `[B, K + 1]`, for views `[B, D]` on the network's device."""
        if self.settings.kind == "residual":
            found: torch.Tensor = self.net(x)
            return found
        return self.net(x[None])[0][0]  # type: ignore[no-any-return]

    def evaluate(self, x: Array) -> tuple[Array, Array]:
        """Logits `[B, K]` and values `[B]` in [−1, 1] for views `[B, D]`."""
        with torch.inference_mode():
            out = self.outputs(torch.as_tensor(x, device=self.device)).cpu().numpy()
        return out[:, :-1], np.tanh(out[:, -1])

    def state(self) -> State:
        return networks.export(self.net)

    def load(self, state: State, what: str) -> None:
        networks.restore(self.net, state, what)
