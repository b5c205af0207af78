"""Networks over packed observations, for one or several parameter sets.

Every observation is packed into one row of floats (`packing.py`). Every parameter has a leading axis S: one parameter
set for a shared network, one per agent for individual ones, so that a group of individual policies costs one batched
product. `FlatParams` and `adam_step` are the optimiser.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from coterie.core.types import Array, State
from coterie.nn import kernels
from coterie.nn.image_encoders import choose_image_encoder, make_image_encoder
from coterie.nn.layers import Dense, Embedding
from coterie.nn.own_networks import OwnNetwork
from coterie.nn.packing import Layout, PixelRows, Rows, SharedRows, digits, input_range, map_rows

Encoder = Literal["auto", "mlp", "set", "cnn", "nature", "impala"]
Chosen = Literal["mlp", "set", "cnn", "nature", "impala", "embedding", "own"]

EMBEDDING = 32  # numbers of an embedded choice; the time of a gradient step grows with their number


class Perceptron(nn.Module):
    """Dense layers, each followed by the activation."""

    def __init__(self, sizes: list[int], activation: str, generators: list[torch.Generator]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Dense(a, b, math.sqrt(2), generators) for a, b in itertools.pairwise(sizes))
        self.activate = {"tanh": torch.tanh, "relu": torch.relu}[activation]

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.activate(layer(x))
        return x

    @torch.no_grad()
    def init_random_features(
        self, steepness: float, centre: Tensor, half: Tensor, generators: list[torch.Generator]
    ) -> None:
        """Initialise the first layer with steep random features, centred at random points of the input range.

        Orthogonal weights from few inputs to many units are small, and without biases all units are centred at 0: such
        a network is nearly linear and slow to become anything else. Here a unit's pre-activation changes by about
        `steepness` from the middle of the inputs' ranges to their ends, and its bias puts its centre at a random point.
        """
        first = self.layers[0]
        assert isinstance(first, Dense)
        for weight, bias, generator in zip(first.weight, first.bias, generators, strict=True):
            slope = torch.randn(weight.shape, generator=generator) * steepness / math.sqrt(len(weight))
            place = 2 * torch.rand(weight.shape, generator=generator) - 1
            weight[:] = slope / half.clamp(min=1e-6).unsqueeze(-1)
            bias[0] = -(slope * place).sum(dim=0) - centre @ weight


class SetEncoder(nn.Module):
    """Encodes sets of any size: embeds each element by one small network and pools.

    Every element is embedded together with the agent's own features, then mean and maximum over the set are
    taken (Zaheer et al. 2017, Deep Sets, eq. 4).
    """

    def __init__(self, lay: Layout, width: int, activation: str, generators: list[torch.Generator]) -> None:
        super().__init__()
        members = {name for names in lay.sets for name in names}
        self.lay, self.width = lay, width
        self.own = [entry for name, entry in lay.entries.items() if name not in members]
        own = sum(entry.stop - entry.start for entry in self.own)
        self.readers = nn.ModuleList()  # one for each set
        for names in lay.sets:
            features = sum(math.prod(lay.entries[name].shape[1:]) for name in names)
            self.readers.append(Perceptron([features + own, width, width], activation, generators))
        self.outputs = own + 2 * width * len(lay.sets)

    def forward(self, x: Tensor) -> Tensor:
        parameter_sets, rows = x.shape[:2]
        own = torch.cat([x[..., :0], *(x[..., entry.start : entry.stop] for entry in self.own)], dim=-1)
        parts = [own]
        for names, reader in zip(self.lay.sets, self.readers, strict=True):
            entries = [self.lay.entries[name] for name in names]
            count = entries[0].shape[0]
            if count == 0:  # an empty set
                parts.append(x.new_zeros(parameter_sets, rows, 2 * self.width))
                continue
            elements = [x[..., e.start : e.stop].reshape(parameter_sets, rows, count, -1) for e in entries]
            elements.append(own.unsqueeze(2).expand(-1, -1, count, -1))
            embedded = reader(torch.cat(elements, dim=-1).flatten(1, 2)).view(parameter_sets, rows, count, -1)
            parts += [embedded.mean(dim=2), embedded.amax(dim=2)]
        return torch.cat(parts, dim=-1)


@dataclass(frozen=True)
class Shape:
    """The architecture of a network."""

    hidden: tuple[int, ...]
    activation: str
    encoder: Encoder | Literal["embedding", "own"]
    channels: tuple[int, ...]
    extra: int  # inputs after the observation that skip the encoder: agent identity, memory, state
    memory: int = 0  # width of the GRU; 0: none
    words: int = 0  # first of the extra inputs, whose projection is added to the observation instead; 0: none
    random_feature_init: float = 0.0  # see `Perceptron.init_random_features`; 0: orthogonal weights, biases of 0
    scaled: bool = False  # inputs are normalised observations
    network: str | None = None  # package.module:Name of a module that reads observations; None: `encoder`


def choose_encoder(encoder: Encoder | Chosen, lay: Layout) -> Chosen:
    """Resolve `auto`, and refuse an encoder that does not fit the observation; a policy may choose `embedding`."""
    if encoder == "auto":
        return choose_image_encoder(lay.image) if lay.image else "mlp"
    if encoder in ("cnn", "nature", "impala") and not lay.image:
        raise ValueError(
            f"encoder '{encoder}' needs an image [channels, height, width] as the observation; set encoder=mlp"
        )
    if encoder == "set" and not lay.sets:
        raise ValueError("encoder 'set' needs a dict observation that declares sets (gridworld: observation: dict)")
    return encoder


class Sequences(NamedTuple):
    """A recurrent network's inputs besides the rows of its sequences `[S, L, T, …]`."""

    memory: Array | Tensor  # [S, L, M] at the first row
    starts: Array | Tensor  # [S, L, T] bool: an episode starts here with empty memory
    active: Array | Tensor  # [S, L, T] bool: the memory is updated only here


class GRUCell(nn.Module):
    """A gated recurrent unit per parameter set (Cho et al. 2014, eqs. 5–8, in PyTorch's variant)."""

    def __init__(self, inputs: int, width: int, generators: list[torch.Generator]) -> None:
        super().__init__()
        self.read = Dense(inputs, 3 * width, 1.0, generators)
        self.recall = Dense(width, 3 * width, 1.0, generators)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        reset, update, new = self.read(x).chunk(3, dim=-1)
        held_reset, held_update, held_new = self.recall(memory).chunk(3, dim=-1)
        gate = torch.sigmoid(update + held_update)
        candidate = torch.tanh(new + torch.sigmoid(reset + held_reset) * held_new)
        return (1 - gate) * candidate + gate * memory


class Network(nn.Module):
    """Encoder, hidden layers, memory if there is one, and an output layer.

    Rows are `[S, M, size + extra]`: an observation, then what skips the encoder.
    """

    def __init__(
        self, shape: Shape, lay: Layout, outputs: int, gain: float, seeds: list[int], encoded: int | None = None
    ) -> None:
        """`encoded`: the width of observations that another network has encoded; None: this one has an encoder."""
        super().__init__()
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        encoder: Chosen = "own" if shape.network else choose_encoder(shape.encoder, lay)
        self.parameter_sets = len(seeds)
        self.encode: nn.Module | None = None
        self.size, inputs = lay.size, lay.size
        if encoded is not None:
            inputs = encoded
        elif shape.network:
            self.encode = OwnNetwork(shape.network, lay, seeds)
            inputs = self.encode.outputs
        elif encoder in ("cnn", "nature", "impala") and lay.image:
            self.encode = make_image_encoder(encoder, lay.image, shape.channels, generators)
            inputs = self.encode.outputs
        elif encoder == "embedding":
            self.encode = Embedding(digits(lay.choices), min(EMBEDDING, shape.hidden[0]), generators)
            inputs = self.encode.outputs
        elif encoder == "set":
            self.encode = SetEncoder(lay, shape.hidden[0], shape.activation, generators)
            inputs = self.encode.outputs
        self.encoded_size = inputs
        self.words_size = shape.words
        self.sizes = [inputs + shape.extra - shape.words, *shape.hidden, outputs]
        self.relu = shape.activation == "relu"
        self.body = Perceptron(self.sizes[:-1], shape.activation, generators)
        if shape.random_feature_init:
            if encoder != "mlp" or shape.words:
                raise ValueError("random_feature_init needs a perceptron; set random_feature_init=0, or encoder=mlp")
            centre, half = (torch.from_numpy(part) for part in input_range(lay, shape.extra, shape.scaled))
            self.body.init_random_features(shape.random_feature_init, centre, half, generators)
        self.cell = GRUCell(self.sizes[-2], shape.memory, generators) if shape.memory else None
        self.out = Dense(shape.memory or self.sizes[-2], outputs, gain, generators)
        self.words = Dense(shape.words, inputs, 1.0, generators) if shape.words else None
        self.reader: nn.Module | None = None  # applied to rows first, where a policy sets it

    def spec(self) -> kernels.Spec:
        """The network as `kernels.py` reads it; only perceptrons without memory."""
        return kernels.Spec(np.array(self.sizes), self.relu)

    def split(self, x: Rows) -> tuple[Any, Any]:
        """Splits rows into the part that the encoder reads and the part that skips it."""
        return x if isinstance(x, PixelRows) else (x[..., : self.size], x[..., self.size :])

    def encode_observed(self, observed: Tensor) -> Tensor:
        """The encoder's output for observations `[S, M, size]`."""
        assert self.encode is not None
        encoded: Tensor = self.encode(observed)
        return encoded

    def features(self, x: Rows, encoded: Tensor | None = None) -> Tensor:
        """Outputs of the last hidden layer for rows, or for encoded observations and what skips the encoder."""
        if self.reader is not None:
            x = self.reader(x)
        if encoded is None:
            if self.encode is None and self.words is None:
                return self.body(x)
            encoded, rest = self.split(x)
            if self.encode is not None:
                encoded = self.encode(encoded)
        else:
            rest = x
        if self.words is not None:
            encoded, rest = encoded + self.words(rest[..., : self.words_size]), rest[..., self.words_size :]
        return self.body(torch.cat([encoded, rest], dim=-1))

    def forward(
        self, x: Rows, memory: Tensor | None = None, encoded: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Outputs `[S, M, outputs]` for single rows, and the memory after them `[S, M, memory]`.

        With `encoded` observations, rows hold only what skips the encoder.
        """
        h = self.features(x, encoded)
        if self.cell is None:
            return self.out(h), None
        assert memory is not None
        memory = self.cell(h, memory)
        return self.out(memory), memory

    def unroll(self, x: Rows, sequences: Sequences | None, encoded: Tensor | None = None) -> Tensor:
        """Outputs for rows `[S, M, …]`, or for sequences `[S, L, T, …]` laid end to end, `[S, L·T, outputs]`.

        With `encoded` observations `[S, M or L·T, …]`, rows hold only what skips the encoder.
        """
        device = self.out.weight.device
        rows = map_rows(lambda part: torch.as_tensor(part, device=device), x)
        if sequences is None or self.cell is None:
            return self.forward(rows, None, encoded)[0]
        memory, starts, active = (torch.as_tensor(values, device=device) for values in sequences)
        parameter_sets, count, steps = starts.shape
        flat = map_rows(lambda part: part.flatten(1, 2), rows)
        h = self.features(flat, encoded).view(parameter_sets, count, steps, -1)
        states = []
        for t in range(steps):
            before = memory.masked_fill(starts[:, :, t, None], 0)
            after = self.cell(h[:, :, t], before)
            states.append(after)
            memory = torch.where(active[:, :, t, None], after, before)
        return self.out(torch.stack(states, dim=2).flatten(1, 2))


class ActorCritic(nn.Module):
    """An actor and a critic that share the actor's encoder: the actor's outputs, then the value."""

    def __init__(self, actor: Network, critic: Network) -> None:
        super().__init__()
        self.actor, self.critic = actor, critic

    def unroll(self, x: SharedRows, sequences: Sequences | None) -> Tensor:
        """As `Network.unroll`."""
        observed, rest = self.actor.split(x.actor)
        encoded = self.actor.encode_observed(observed if sequences is None else observed.flatten(1, 2))
        out = self.actor.unroll(rest, sequences, encoded)
        value = self.critic(x.critic if sequences is None else x.critic.flatten(1, 2), None, encoded)[0]
        return torch.cat([out, value], dim=-1)


class EncodedCritic(nn.Module):
    """The critic of the two alone."""

    def __init__(self, actor: Network, critic: Network) -> None:
        super().__init__()
        self.actor, self.critic = actor, critic

    def forward(self, x: Rows, memory: Tensor | None = None) -> tuple[Tensor, None]:
        observed, rest = self.actor.split(x)
        return self.critic(rest, None, self.actor.encode_observed(observed))[0], None


class FlatParams:
    """The trainable parameters of a module, their gradient and Adam moments as matrices `[S, P]`.

    The module's tensors are views of the first, on the device of the first parameter. Parameters of another device or
    type are copied back and forth. Every parameter has the leading axis S; with `parameter_sets=1` it may have any
    shape.
    """

    def __init__(self, net: nn.Module, parameter_sets: int | None = None) -> None:
        self.parameters = [p for p in net.parameters() if p.requires_grad]
        if parameter_sets is None:
            parameter_sets = net.parameter_sets if isinstance(net, Network) else self.parameters[0].shape[0]
        total = sum(p.numel() // parameter_sets for p in self.parameters)
        device = self.parameters[0].device
        self.value = torch.empty(parameter_sets, total, device=device)
        self.grad = torch.zeros_like(self.value)
        self.copied: list[tuple[nn.Parameter, Tensor]] = []  # parameters that are no views, and their place here
        start = 0
        for parameter in self.parameters:
            stop = start + parameter.numel() // parameter_sets
            here = self.value[:, start:stop].view(parameter.shape)
            here.copy_(parameter.data)
            if parameter.device == device and parameter.dtype == torch.float32:
                parameter.data = here
            else:
                self.copied.append((parameter, here))
            start = stop
        self.learned = np.ones(0, bool)  # [P] which parameters learn; empty: all
        self.moments = torch.zeros_like(self.value), torch.zeros_like(self.value)
        self.steps = np.zeros(parameter_sets, np.int64)  # Adam steps that each parameter set has taken
        self._arrays = tuple(t.numpy() for t in (self.value, *self.moments)) if device.type == "cpu" else None

    @property
    def array(self) -> Array:
        """The parameters as an array `[S, P]`: the memory itself on the CPU, a copy from a GPU."""
        return self.value.cpu().numpy() if self._arrays is None else self._arrays[0]

    @array.setter
    def array(self, array: Array) -> None:
        self.value.copy_(torch.from_numpy(array))

    @property
    def mean(self) -> Array:
        """Adam's first moments `[S, P]`, likewise."""
        return self.moments[0].cpu().numpy() if self._arrays is None else self._arrays[1]

    @property
    def square(self) -> Array:
        """Adam's second moments `[S, P]`, likewise."""
        return self.moments[1].cpu().numpy() if self._arrays is None else self._arrays[2]

    def step(self, rate: float, limit: float, parameter_sets: Array | None = None) -> None:
        """One Adam step along the gradient that autograd left, scaled per parameter set to at most norm `limit`.

        `parameter_sets` lists the ones that learn; None: all.
        """
        found = (torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters)
        rows = [grad.reshape(len(self.grad), -1).to(self.grad.device, torch.float32) for grad in found]
        torch.cat(rows, dim=1, out=self.grad)
        if len(self.learned):
            self.grad[:, torch.from_numpy(~self.learned)] = 0
        for parameter, here in self.copied:
            here.copy_(parameter.data)
        for i in range(len(self.grad)) if parameter_sets is None else parameter_sets:
            self.steps[i] += 1
            step = int(self.steps[i])
            if self._arrays is None:
                adam_on_device(self.value[i], self.grad[i], self.moments[0][i], self.moments[1][i], step, rate, limit)
            else:
                flat, mean, square = self.optimized(i)
                kernels.adam(flat, self.grad[i].numpy(), mean, square, step, rate, limit)
        for parameter, here in self.copied:
            parameter.data.copy_(here)

    def learn_only(self, learned: Array) -> None:
        """Keep the gradient of all but these parameters `[P]` at 0."""
        self.learned = learned

    def clear_momentum(self) -> None:
        """Forget Adam's first moments; steps and second moments stay, so that the next steps are small."""
        self.moments[0].zero_()

    def optimized(self, parameter_set: int) -> kernels.OptimizedParams:
        """A parameter set and its moments, for the compiled path; on the CPU only."""
        assert self._arrays is not None
        return kernels.OptimizedParams(*(array[parameter_set] for array in self._arrays))

    def copy_from(self, other: FlatParams, parameter_sets: Array | slice = slice(None)) -> None:
        """Take over parameters, of all parameter sets or of some."""
        if isinstance(parameter_sets, slice):
            self.value[parameter_sets] = other.value[parameter_sets]
            return
        for i in np.arange(len(self.value))[parameter_sets].tolist():
            self.value[i] = other.value[i]

    def move_towards(self, other: FlatParams, tau: float) -> None:
        """Move by the fraction `tau` of the way (Polyak averaging)."""
        self.value += (other.value - self.value) * tau

    def state(self) -> State:
        """The optimiser's state, as copies."""
        return {"mean": self.mean.copy(), "square": self.square.copy(), "steps": self.steps.copy()}

    def load(self, state: State) -> None:
        for moment, name in zip(self.moments, ("mean", "square"), strict=True):
            moment.copy_(torch.from_numpy(state[name]))
        self.steps[:] = state["steps"]


def adam_on_device(
    value: Tensor, grad: Tensor, mean: Tensor, square: Tensor, step: int, rate: float, limit: float
) -> None:
    """`kernels.adam` on tensors `[P]` of any device, without waiting for it."""
    norm = grad.double().square().sum().sqrt()
    grad = grad * (limit / (norm + 1e-6)).clamp(max=1).float()
    mean.mul_(0.9).add_(grad, alpha=0.1)
    square.mul_(0.999).addcmul_(grad, grad, value=0.001)
    root = 1 / math.sqrt(1 - 0.999**step)
    value.addcdiv_(mean, square.sqrt().mul_(root).add_(1e-5), value=-rate / (1 - 0.9**step))


def adam_step(
    flats: Sequence[FlatParams],
    loss: Tensor | Sequence[Tensor],
    rate: float,
    limit: float,
    parameter_sets: Array | None = None,
    slopes: Sequence[Array] | None = None,
) -> None:
    """One Adam step of each network along the loss's gradient, scaled per network and parameter set to norm `limit`.

    In place of the loss, the tensors that it depends on may be given together with its slopes with respect to them.
    """
    clear_gradients(flats)
    if slopes is None:
        torch.autograd.backward(loss)
    else:
        assert not isinstance(loss, Tensor)
        backward(loss, slopes)
    for flat in flats:
        flat.step(rate, limit, parameter_sets)


def backward(outputs: Sequence[Tensor], slopes: Sequence[Array]) -> None:
    """Add the gradients of a loss that is given by its slopes with respect to outputs of networks.

    The scalar product of outputs and slopes has those slopes, to the bit. Handing them to PyTorch as gradients would
    import its symbolic shapes, 35 MB and a third of a second.
    """
    given = [torch.as_tensor(slope, device=out.device) for out, slope in zip(outputs, slopes, strict=True)]
    torch.autograd.backward([torch.dot(out.reshape(-1), slope.reshape(-1)) for out, slope in zip(outputs, given)])


def clear_gradients(flats: Sequence[FlatParams]) -> None:
    """Forget gradients; autograd then hands over its own tensors: no zeros to write, nothing to add up."""
    for parameter in itertools.chain.from_iterable(flat.parameters for flat in flats):
        parameter.grad = None


def export(net: nn.Module) -> dict[str, Array]:
    """Trainable parameters by name, as copies in main memory."""
    return {name: p.detach().cpu().numpy().copy() for name, p in net.named_parameters() if p.requires_grad}


def restore(net: nn.Module, arrays: dict[str, Array], what: str) -> None:
    """Write trainable parameters back in place; `what` names the network in errors."""
    parameters = {name: p for name, p in net.named_parameters() if p.requires_grad}
    for name in arrays:
        if name not in parameters:
            raise ValueError(f"{what}: the saved weights have '{name}', which is not here")
    for name, parameter in parameters.items():
        if name not in arrays:
            raise ValueError(f"{what}: the saved weights have no '{name}'")
        if arrays[name].shape != tuple(parameter.shape):
            raise ValueError(
                f"{what}: '{name}' is {arrays[name].shape} in the saved weights, {tuple(parameter.shape)} here"
            )
        parameter.data.copy_(torch.from_numpy(arrays[name]))
