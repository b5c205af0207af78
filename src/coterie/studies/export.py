"""Exports a run's policy as one graph, ONNX or TorchScript: packing, normalisation, network, memory and greedy actions.

A graph takes raw observations of one group's agents, as its world gives them, and returns greedy actions, the network's
outputs and, for recurrent policies, the memory. `export` plays the world and refuses a graph that decides differently.
"""

from __future__ import annotations

import copy
import io
import logging
import warnings
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from coterie.config import registry
from coterie.core import seeding
from coterie.core.group import Group
from coterie.core.lookup import Trust, suggest
from coterie.core.sampling import random_actions
from coterie.core.trees import map_tree
from coterie.core.types import Array, Box, CoterieError, Discrete, MultiDiscrete, Tree, View
from coterie.nn.distributions import EDGE, Beta
from coterie.nn.log_probs import IMPOSSIBLE
from coterie.nn.own_networks import OwnNetwork
from coterie.nn.packing import Layout, digits
from coterie.policies.deterministic import DeterministicPolicy
from coterie.policies.gaussian import GaussianPolicy
from coterie.policies.network import NetworkPolicy, NeuralPolicy
from coterie.policies.q_network import QNetworkPolicy
from coterie.training import build, table

STEPS = 40  # of the world, for the check
COPIES = 3
CLOSE = 1e-4  # how far outputs and memory may differ, relative to their size
Graph = Callable[[dict[str, Array]], list[Array]]  # named inputs -> outputs in order


# The graph --------------------------------------------------------------------------------------------


class PolicyGraph(nn.Module):
    """A policy as a function of tensors: `[N, A, …]` observations, masks and memory to greedy actions."""

    shift: Tensor
    scale: Tensor
    extra: Tensor

    def __init__(self, policy: NeuralPolicy) -> None:
        super().__init__()
        normalizer, spec = policy.normalizer, policy.group_spec
        self.net, self.layout, self.shared = policy.net, policy.layout, spec.parameter_sets == 1
        if isinstance(self.net.encode, OwnNetwork):
            self.net = copy.deepcopy(self.net)
            self.net.encode.split()  # type: ignore[operator,union-attr]  # an OwnNetwork
        self.agents, self.memory_size = len(spec.agents), policy.memory_size
        self.decode: Callable[[Tensor, Tensor | None], Tensor] = decoder(policy)
        self.choices = spec.spaces.action.n if isinstance(spec.spaces.action, Discrete) else 0
        self.masked = self.choices > 0
        self.limit = float(normalizer.limit) if np.isfinite(normalizer.limit) else None  # None: not normalised
        self.register_buffer("shift", torch.from_numpy(normalizer.shift.copy()).unsqueeze(1))
        self.register_buffer("scale", torch.from_numpy(normalizer.scale.copy()).unsqueeze(1))
        hint = policy.hint_size if isinstance(policy, NetworkPolicy) else 0
        extra = np.zeros((self.agents, policy.identities + hint), np.float32)  # hints of advisors stay empty
        extra[:, : policy.identities] = np.eye(self.agents, policy.identities)
        self.register_buffer("extra", torch.from_numpy(extra))

    @property
    def inputs(self) -> list[str]:
        """Names of the inputs, in order."""
        entries = ["observation"] if self.layout.bare else list(self.layout.entries)
        return [*entries, *(["mask"] if self.masked else []), *(["memory"] if self.memory_size else [])]

    @property
    def outputs(self) -> list[str]:
        """Names of the outputs, in order."""
        return ["action", "outputs", *(["next_memory"] if self.memory_size else [])]

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        named = dict(zip(self.inputs, given, strict=True))
        x = self.by_parameter_set(pack(self.layout, list(given[: len(self.layout.entries)])))
        if self.limit is not None:
            x = ((x - self.shift) * self.scale).clamp(-self.limit, self.limit)
        if self.extra.shape[1]:
            extra = self.extra.unsqueeze(0).expand(given[0].shape[0], -1, -1)
            x = torch.cat([x, self.by_parameter_set(extra)], dim=-1)
        memory = self.by_parameter_set(named["memory"]) if self.memory_size else None
        out, memory = self.net(x, memory)
        out = self.by_agent(out)
        found = (self.decode(out, named.get("mask")), out)
        return found if memory is None else (*found, self.by_agent(memory))

    def by_parameter_set(self, rows: Tensor) -> Tensor:
        """`[N, A, F]` in the order of the parameters, `[S, M, F]`."""
        return rows.reshape(1, rows.shape[0] * self.agents, rows.shape[-1]) if self.shared else rows.transpose(0, 1)

    def by_agent(self, rows: Tensor) -> Tensor:
        """The inverse."""
        count = rows.shape[1] // self.agents if self.shared else rows.shape[1]
        return rows.reshape(count, self.agents, rows.shape[-1]) if self.shared else rows.transpose(0, 1)


def pack(lay: Layout, parts: Sequence[Tensor]) -> Tensor:
    """`nn.packing.pack` of tensors: observations `[N, A, shape]` as rows of floats `[N, A, size]`."""
    rows = []
    for entry, part in zip(lay.entries.values(), parts, strict=True):
        if isinstance(entry.space, Discrete):
            left, sizes = part.long(), digits(entry.space.n)
            for size in sizes:
                digit = left % size if len(sizes) > 1 else left
                rows.append((digit.unsqueeze(-1) == torch.arange(size)).float())
                left = torch.div(left, size, rounding_mode="floor")
        else:
            flat = part.reshape(part.shape[0], part.shape[1], entry.stop - entry.start).float()
            rows.append(flat / 255 if entry.space.dtype == "uint8" else flat)
    return torch.cat(rows, dim=-1)


def decoder(policy: NeuralPolicy) -> Callable[[Tensor, Tensor | None], Tensor]:
    """The function from outputs `[N, A, outputs]` to greedy actions of the world."""
    space = policy.group_spec.spaces.action
    if isinstance(policy, QNetworkPolicy):
        return lambda out, mask: best_choices(policy.values(out), (policy.actions,), mask)[..., 0]
    if isinstance(space, (Discrete, MultiDiscrete)):
        sizes = (space.n,) if isinstance(space, Discrete) else space.sizes
        single = isinstance(space, Discrete)
        return lambda out, mask: best_choices(out, sizes, mask)[..., 0] if single else best_choices(out, sizes, mask)
    assert isinstance(space, Box)  # networks have no texts
    shape = space.shape
    if isinstance(policy, NetworkPolicy):
        head: Any = policy.head
        low, span = (torch.from_numpy(np.asarray(array, np.float32)) for array in (head.low, head.range))
        find = beta_mean if isinstance(head, Beta) else normal_mean
        return lambda out, mask: (low + find(out).clamp(EDGE, 1 - EDGE) * span).unflatten(-1, shape)
    assert isinstance(policy, (DeterministicPolicy, GaussianPolicy))
    box = policy.box
    centre, half, low, high = (torch.from_numpy(array.copy()) for array in (box.centre, box.half, box.low, box.high))
    clipped, size = isinstance(policy, DeterministicPolicy) and policy.clipped, policy.size

    def stretch(out: Tensor, mask: Tensor | None) -> Tensor:
        point = out[..., :size].clamp(-1, 1) if clipped else torch.tanh(out[..., :size])
        return (centre + half * point).clamp(low, high).unflatten(-1, shape)

    return stretch


def best_choices(out: Tensor, sizes: Sequence[int], mask: Tensor | None) -> Tensor:
    """The best of each choice `[N, A, K]`."""
    out = out if mask is None else torch.where(mask, out, torch.full_like(out, IMPOSSIBLE))
    return torch.stack([part.argmax(dim=-1) for part in out.split(list(sizes), dim=-1)], dim=-1)


def beta_mean(out: Tensor) -> Tensor:
    """As `Beta.act` when greedy."""
    a, b = (1 + nn.functional.softplus(part) for part in out.chunk(2, dim=-1))
    return a / (a + b)


def normal_mean(out: Tensor) -> Tensor:
    """As `SquashedGaussian.act` when greedy."""
    return (torch.tanh(out.chunk(2, dim=-1)[0]) + 1) / 2


# Choosing a policy ------------------------------------------------------------------------------------


def choose_group(groups: Sequence[Group], wanted: str | None) -> Group:
    """The group to export: the named one, or the only one that can be exported."""
    names = [group.name for group in groups]
    if wanted is not None:
        if wanted not in names:
            raise CoterieError(f"--group: no group '{wanted}'; there are {', '.join(names)}{suggest(wanted, names)}")
        group = groups[names.index(wanted)]
        refuse(group)
        return group
    able = [group for group in groups if isinstance(group.policy, NeuralPolicy)]
    if len(able) > 1:
        raise CoterieError(f"--group: name one of {', '.join(group.name for group in able)}")
    group = able[0] if able else groups[0]
    refuse(group)
    return group


def refuse(group: Group) -> None:
    """Refuse policies that are no network over numbers."""
    policy, where = group.policy, f"group '{group.name}'"
    if not isinstance(policy, (NetworkPolicy, QNetworkPolicy, DeterministicPolicy, GaussianPolicy)):
        known = {path.rpartition(":")[2]: name for name, path in registry.POLICIES.items()}
        kind = known.get(type(policy).__name__, type(policy).__name__)
        raise CoterieError(
            f"{where}: policy '{kind}' cannot be exported; a graph holds one network (policies network, q_network, "
            "deterministic and gaussian), no script, language model or search. Clone its play first: coterie clone"
        )
    if policy.reader is not None:
        raise CoterieError(f"{where}: policy.text reads words, which a graph of numbers cannot; train without it")
    if group.actor.members is not None:
        raise CoterieError(f"{where}: its policy was trained in another run; export that run")


# Files ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Exported:
    """The written files, and their distance from the policy."""

    group: str
    agents: tuple[str, ...]
    inputs: dict[str, str]  # name -> shape and type
    outputs: tuple[str, ...]
    decisions: int  # compared
    differences: dict[str, float]  # file -> largest difference of outputs, relative to their size
    files: tuple[Path, ...] = field(default_factory=tuple)


def export(
    run: str | Path,
    onnx: str | Path | None = None,
    torchscript: str | Path | None = None,
    group: str | None = None,
    checkpoint: str = "best",
    trust: Trust = "signed",
) -> Exported:
    """Write a run's policy as ONNX, TorchScript or both, and check that the files decide as the policy does."""
    wanted = [(Path(path), write) for path, write in ((onnx, write_onnx), (torchscript, write_torchscript)) if path]
    if not wanted:
        raise CoterieError("export: name a file: --onnx FILE, --torchscript FILE, or both")
    loaded = table.load(run, checkpoint, trust=trust)
    chosen = choose_group(loaded.groups, group)
    policy: Any = chosen.policy
    policy.net.to("cpu")
    graph = PolicyGraph(policy).eval().requires_grad_(False)
    played = play(loaded, chosen, graph)
    differences = {}
    for path, write in wanted:
        content, run_graph = write(graph, played[0].inputs)
        differences[str(path)] = compare(str(path), run_graph, played)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)  # only after the check
    inputs = {
        name: f"[{', '.join(['N', *map(str, array.shape[1:])])}] {array.dtype}"
        for name, array in played[0].inputs.items()
    }
    agents, files = chosen.actor.group_spec.agents, tuple(path for path, _ in wanted)
    return Exported(chosen.name, agents, inputs, tuple(graph.outputs), len(played), differences, files)


def write_onnx(graph: PolicyGraph, example: dict[str, Array]) -> tuple[bytes, Graph]:
    """The graph as an ONNX file, and the file as a function."""
    try:
        import onnx  # noqa: F401  (the exporter needs it)
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise CoterieError(f"--onnx needs {error.name}: pip install 'coterie[onnx]'") from None
    count = torch.export.Dim("N", min=1)
    with silent():
        program = torch.onnx.export(
            graph,
            tuple(torch.from_numpy(array) for array in example.values()),
            input_names=graph.inputs,
            output_names=graph.outputs,
            dynamic_shapes=(tuple({0: count} for _ in example),),
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    content: bytes = program.model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return content, lambda inputs: list(session.run(None, inputs))


def write_torchscript(graph: PolicyGraph, example: dict[str, Array]) -> tuple[bytes, Graph]:
    """The graph as a TorchScript file, and the file as a function."""
    with silent(), torch.no_grad():
        traced = torch.jit.trace(graph, tuple(torch.from_numpy(array) for array in example.values()), check_trace=False)
        buffer = io.BytesIO()
        torch.jit.save(traced, buffer)
        read = torch.jit.load(io.BytesIO(buffer.getvalue()))

    def run_graph(inputs: dict[str, Array]) -> list[Array]:
        with torch.no_grad():
            return [out.numpy() for out in read(*(torch.from_numpy(array) for array in inputs.values()))]

    return buffer.getvalue(), run_graph


@contextmanager
def silent() -> Any:
    """Leave out the exporter's warnings about shapes and its own deprecations."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


# The check --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Played:
    """One step of the world: the graph's inputs, and what the policy made of them."""

    inputs: dict[str, Array]
    action: Array
    outputs: Array
    memory: Array | None

    def first(self) -> Played:
        """The first copy alone."""
        inputs = {name: array[:1] for name, array in self.inputs.items()}
        memory = None if self.memory is None else self.memory[:1]
        return Played(inputs, self.action[:1], self.outputs[:1], memory)


def play(loaded: table.Table, group: Group, graph: PolicyGraph) -> list[Played]:
    """Steps of the world in which everybody plays at random, and the policy's greedy decisions there."""
    world = build.build_world(loaded.config.world, COPIES)
    spec, policy = group.actor.group_spec, group.policy
    assert isinstance(policy, NeuralPolicy)
    random, found, columns = seeding.generator(0, "export"), [], spec.columns
    timestep = world.reset(seeding.integer(0, "export"))
    memory = np.zeros((COPIES, len(columns), policy.memory_size), np.float32) if policy.memory_size else None
    for _ in range(STEPS):
        seen = timestep.agent_types[spec.agent_type]
        observation = map_tree(lambda array: np.ascontiguousarray(array[:, columns]), seen.observation)
        mask = None if seen.mask is None else np.ascontiguousarray(seen.mask[:, columns])
        rows = np.arange(len(spec.agents))
        view = View(observation, np.ones((COPIES, len(columns)), bool), rows, random, True, mask, memory)
        decision, packed = policy.act(view), policy.pack(observation)
        if isinstance(policy, NetworkPolicy):
            packed = policy.packed_view(view)
        outputs, after = policy.forward(packed, view)
        inputs = graph_inputs(graph, observation, mask, memory)
        found.append(Played(inputs, decision.action, outputs, after))
        memory = after
        timestep = world.step(random_actions(timestep, world.agent_types, random))
    return found


def graph_inputs(graph: PolicyGraph, observation: Tree, mask: Array | None, memory: Array | None) -> dict[str, Array]:
    """The inputs by name; without a mask everything is legal."""
    named = dict(observation) if isinstance(observation, dict) else {"observation": observation}
    if graph.masked:
        count, agents = next(iter(named.values())).shape[:2]
        named["mask"] = np.ones((count, agents, graph.choices), bool) if mask is None else mask
    if memory is not None:
        named["memory"] = memory
    return {name: np.ascontiguousarray(named[name]) for name in graph.inputs}


def compare(path: str, run_graph: Graph, played: Sequence[Played]) -> float:
    """The largest difference of outputs and memory, relative to their size; an error where decisions differ."""
    worst = 0.0
    for number, whole in enumerate(played):
        step = whole if number % 2 else whole.first()  # batches of another size than the example's
        action, outputs, *memory = run_graph(step.inputs)
        wanted = [step.outputs] if step.memory is None else [step.outputs, step.memory]
        for mine, theirs in zip([outputs, *memory], wanted, strict=True):
            worst = max(worst, float(np.abs(mine - theirs).max() / max(1.0, float(np.abs(theirs).max()))))
        if step.action.dtype.kind == "i":
            agrees = np.array_equal(action, step.action)
        else:
            agrees = np.allclose(action, step.action, rtol=CLOSE, atol=CLOSE)
        if worst > CLOSE or not agrees:
            raise CoterieError(
                f"{path} was not written: step {number} of the check differs from the policy, by {worst:.2g} in its "
                "outputs; please report this"
            )
    return worst
