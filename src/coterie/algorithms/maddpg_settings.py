"""The settings of MADDPG (`maddpg.py`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from coterie.checks import at_least, positive, within
from coterie.policies.network import check_widths
from coterie.replay import ReplaySettings
from coterie.search_space import Choice, Real, Space, Whole


@dataclass(frozen=True)
class NoiseSettings:
    start: float = 0.2  # deviation at first, as a share of a box's range; choices are drawn by their outputs instead
    end: float = 0.05  # and later
    share: float = 0.5  # of the run after which `end` is reached, in a straight line

    SEARCH: ClassVar[Space] = {  # what `coterie tune` tries
        "start": Real(0.05, 0.5),
        "end": Real(0.01, 0.2, log=True),
    }

    def __post_init__(self) -> None:
        at_least("start", self.start, 0)
        at_least("end", self.end, 0)
        within("share", self.share, 0, 1)

    def at(self, progress: float) -> float:
        """The deviation when this share of the run's steps has been taken."""
        part = min(progress / self.share, 1.0) if self.share > 0 else 1.0
        return self.start + part * (self.end - self.start)


@dataclass(frozen=True)
class CriticSettings:
    sees: Literal["central", "own"] = "central"  # what everybody sees and does, or only its own agent (DDPG)
    hidden: tuple[int, ...] | None = None  # widths of its hidden layers; None: the policy's
    activation: Literal["tanh", "relu"] | None = None  # after each of them; None: the policy's
    learning_rate: float | None = None  # of Adam; None: the policy's
    twin: bool = False  # two critics, of which the one that expects less is believed (Fujimoto et al. 2018)
    quantiles: int | None = None  # of a decision's outcome; 1: its mean alone; None: 1, or 8 under a taste for risk
    bends: float | None = None  # of its first layer; None: the policy's
    hurdle: bool = False  # told first: nothing, or with some chance something, by likelihood; quantiles are of that

    SEARCH: ClassVar[Space] = {  # what `coterie tune` tries
        "sees": Choice(("central", "own")),
        "twin": Choice((False, True)),
    }

    def __post_init__(self) -> None:
        if self.hidden is not None:
            check_widths(self.hidden, ())
        if self.learning_rate is not None:
            positive("learning_rate", self.learning_rate)
        if self.quantiles is not None:
            at_least("quantiles", self.quantiles, 1)
        if self.bends is not None:
            at_least("bends", self.bends, 0)


@dataclass(frozen=True)
class TargetSettings:
    rate: float = 0.01  # share of the way that targets move whenever the policy does
    noise: float = 0.0  # deviation, as a share of a box's range, by which target actions are smoothed; 0: not at all

    SEARCH: ClassVar[Space] = {"rate": Real(0.001, 0.05, log=True)}  # what `coterie tune` tries

    def __post_init__(self) -> None:
        positive("rate", self.rate)
        within("rate", self.rate, 0, 1)
        at_least("noise", self.noise, 0)


@dataclass(frozen=True)
class MemorySettings:
    size: int = 100_000  # ticks kept; older ones are written over
    starts: int = 1_000  # ticks there must be before learning starts

    SEARCH: ClassVar[Space] = {"size": Choice((10_000, 100_000, 500_000))}  # what `coterie tune` tries

    def __post_init__(self) -> None:
        self.even()

    def even(self) -> ReplaySettings:
        """A replay in which every row is as likely as any other."""
        return ReplaySettings(self.size, self.starts, priority=0.0)


@dataclass(frozen=True)
class TurnSettings:
    every: int = 1  # iterations from one in which the group learns to the next; in between it only remembers
    offset: int = 0  # the group learns where (iteration − offset) is a multiple of `every`

    def __post_init__(self) -> None:
        at_least("every", self.every, 1)
        at_least("offset", self.offset, 0)


@dataclass(frozen=True)
class MADDPGSettings:
    learning_rate: float = 1e-3  # of the policy's Adam
    learning_rate_schedule: Literal["constant", "linear"] = "constant"  # of both; linear: to 0 at the run's end
    gamma: float = 0.95  # discount per decision
    batch_size: int = 256  # ticks per update
    updates_per_step: float = 0.04  # critic steps per environment step, summed over copies
    delay: int = 1  # critic steps from one step of policy and targets to the next
    relative: bool = False  # decisions pull by their change in deviations of their outcome, so small stakes count
    temperature: float = 1.0  # of the softmax through which gradients reach choices
    max_grad_norm: float = 0.5  # gradients of policy and critics are scaled to at most this norm
    noise: NoiseSettings = field(default_factory=NoiseSettings)  # exploration
    critic: CriticSettings = field(default_factory=CriticSettings)  # what values decisions
    target: TargetSettings = field(default_factory=TargetSettings)  # the slower copies that value what follows
    replay: MemorySettings = field(default_factory=MemorySettings)  # what is remembered
    turns: TurnSettings = field(default_factory=TurnSettings)  # when it learns

    SEARCH: ClassVar[Space] = {  # what `coterie tune` tries
        "learning_rate": Real(1e-4, 1e-2, log=True),
        "gamma": Choice((0.9, 0.95, 0.98, 0.99)),
        "batch_size": Choice((128, 256, 512, 1024)),
        "updates_per_step": Real(0.01, 0.2, log=True),
        "delay": Whole(1, 4),
        "temperature": Real(0.5, 2.0),
    }

    def __post_init__(self) -> None:
        positive("learning_rate", self.learning_rate)
        within("gamma", self.gamma, 0, 1)
        at_least("batch_size", self.batch_size, 1)
        positive("updates_per_step", self.updates_per_step)
        at_least("delay", self.delay, 1)
        positive("temperature", self.temperature)
        positive("max_grad_norm", self.max_grad_norm)
