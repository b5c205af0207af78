"""Any Gymnasium environment by name as a world of one agent, and MiniGrid's as a special case.

The environment is stepped without Gymnasium's outer wrappers (checker, order, time limit): what they do is
done here, once for all copies. Wrappers that belong to a registration stay. CartPole-v1 with its default
options is played natively by `cartpole.py`.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from coterie.core.text import TextCodec
from coterie.core.types import AgentType, UnknownName
from coterie.core.world import World
from coterie.worlds.adapters.batch import EnvSpec, Mismatch, Row, as_flag, as_reward
from coterie.worlds.adapters.external import (
    ExternalSettings,
    ExternalWorld,
    Hosted,
    import_external,
    import_own,
    newest,
)

INSTALL = "'coterie[worlds]'"
AGENT, KIND = "agent_0", "agent"
SYMBOLS = (10, 5, 3)  # MiniGrid's highest object, colour and state


@dataclass(frozen=True)
class GymnasiumSettings(ExternalSettings):
    """A Gymnasium environment; `id` may be `module:Name-v0` to import what registers it."""

    channels: Literal["auto", "first", "last"] = "auto"  # where pictures keep their channels; auto: by their shape
    native: bool = True  # play CartPole-v1 with default options as a native batch


@dataclass(frozen=True)
class MinigridSettings(ExternalSettings):
    """A MiniGrid environment: `MiniGrid-DoorKey-5x5-v0`, or `DoorKey-5x5` for short."""


class GymnasiumWorld(Hosted):
    """N copies of a Gymnasium environment."""

    def __init__(self, settings: GymnasiumSettings, num_envs: int) -> None:
        native = settings.native and settings.id == "CartPole-v1" and not settings.options and not settings.processes
        super().__init__(_native_cartpole(settings, num_envs) if native else _gymnasium_guests(settings, num_envs))

    def text_codec(self, agent_type: str) -> TextCodec:
        """Observations as sentences."""
        from coterie.worlds.adapters.gymnasium_text import GymnasiumText

        return GymnasiumText(self, agent_type)


class MinigridWorld(Hosted):
    """N copies of a MiniGrid environment: what lies ahead as symbols in [0, 1], and the direction."""

    def __init__(self, settings: MinigridSettings, num_envs: int) -> None:
        make = functools.partial(make_minigrid, settings)
        super().__init__(ExternalWorld(f"minigrid/{settings.id}", settings, make, num_envs))

    def text_codec(self, agent_type: str) -> TextCodec:
        """What the agent sees and carries, in words."""
        from coterie.worlds.adapters.minigrid_text import MinigridText

        return MinigridText(self, agent_type)


def _native_cartpole(settings: GymnasiumSettings, num_envs: int) -> World:
    from coterie.worlds.cartpole.world import LIMIT, CartPole

    return CartPole(num_envs, settings.max_episode_steps or LIMIT, settings.render)


def _gymnasium_guests(settings: GymnasiumSettings, num_envs: int) -> World:
    make = functools.partial(make_gymnasium, settings)
    return ExternalWorld(f"gymnasium/{settings.id}", settings, make, num_envs)


# One copy -----------------------------------------------------------------------------------------------


def make_gymnasium(settings: GymnasiumSettings) -> GymnasiumEnvironment:
    """One copy of an environment."""
    gymnasium = import_external("gymnasium", INSTALL)
    module, colon, name = settings.id.rpartition(":")
    if colon:
        import_own(module, f"gymnasium/{settings.id}")
    if name not in gymnasium.registry:
        raise _unknown("gymnasium", settings.id, list(gymnasium.registry))
    environment, limit = _build(gymnasium, name, settings)
    return GymnasiumEnvironment(environment, limit, settings.channels)


def make_minigrid(settings: MinigridSettings) -> GymnasiumEnvironment:
    """One copy of a MiniGrid environment."""
    gymnasium = import_external("gymnasium", INSTALL)
    import_external("minigrid", "minigrid")
    known = [name for name in gymnasium.registry if name.startswith(("MiniGrid-", "BabyAI-"))]
    named = (newest(prefix + settings.id, known) for prefix in ("", "MiniGrid-", "BabyAI-"))
    name = next((found for found in named if found), None)
    if name is None:
        raise _unknown("minigrid", settings.id, known)
    environment, limit = _build(gymnasium, name, settings)
    return GymnasiumEnvironment(environment, limit, "auto", {"image": SYMBOLS}, wins=True, leave_out="mission")


def _build(gymnasium: Any, name: str, settings: ExternalSettings) -> tuple[Any, int | None]:
    """The environment and the time limit that is left to us."""
    spec = gymnasium.spec(name)
    options = settings.options | ({"render_mode": "rgb_array"} if settings.render else {})
    limit = settings.max_episode_steps or spec.max_episode_steps
    if spec.additional_wrappers:  # they may rely on a time limit below them
        return gymnasium.make(name, limit, disable_env_checker=True, **options), None
    environment = gymnasium.make(name, -1, disable_env_checker=True, **options)
    while isinstance(environment, gymnasium.wrappers.OrderEnforcing):
        environment = environment.env
    return environment, limit


def _unknown(family: str, name: str, known: list[str]) -> UnknownName:
    short = {k.removeprefix("MiniGrid-"): k for k in known}
    close = difflib.get_close_matches(name, [*known, *short], n=1, cutoff=0.75)
    hint = f"; did you mean '{family}/{close[0]}'?" if close else "; 'module:Name-v0' imports a module first"
    return UnknownName(f"{family}/{name}: no such environment is registered{hint}")


class GymnasiumEnvironment:
    """One copy of a Gymnasium environment."""

    def __init__(
        self,
        environment: Any,
        limit: int | None,
        channels: Any = "auto",
        scales: Mapping[str, Any] | None = None,
        wins: bool = False,
        leave_out: str = "",
    ) -> None:
        from coterie.worlds.adapters import spaces

        self._spaces = spaces
        self.environment, self._wins = environment, wins
        self._limit = limit or 2**62
        self.reading = spaces.read_observation(environment.observation_space, channels, scales)
        action = spaces.read_action(environment.action_space)
        agent_type = AgentType((AGENT,), self.reading.space, action)
        notes = tuple(note for note in self.reading.notes if not (leave_out and note.endswith(leave_out)))
        masked = (KIND,) if self.reading.mask is not None else ()
        self.env_spec = EnvSpec({KIND: agent_type}, masked=masked, success=wins, notes=notes)
        spaces.trust_choices(environment.unwrapped.action_space)
        self._step = environment.step
        self._clock, self._won = 0, False

    def sit(self, row: Row) -> None:
        """Write there from now on."""
        self._row = row[KIND]
        self._reward, self._terminated, self._truncated = (
            self._row.reward,
            self._row.terminated,
            self._row.truncated,
        )
        self._write = self._spaces.write_into(self.reading, self._row.observation, 0, self._row.mask)
        self._action = self._spaces.read_from(self.environment.action_space, self._row.action, 0)

    def reset(self, seed: int) -> None:
        """Begin an episode."""
        told = self.environment.reset(seed=seed)
        if not (isinstance(told, tuple) and len(told) == 2):
            raise Mismatch("reset to return (observation, info)", type(told).__name__)
        self._write(told[0])
        self._row.acting[0], self._row.gone[0] = True, False
        self._clock = 0

    def step(self) -> bool:
        """Take one step."""
        told = self._step(self._action())
        try:
            observation, reward, terminated, truncated, _ = told
        except (TypeError, ValueError):
            got = f"{len(told)} values" if isinstance(told, tuple) else type(told).__name__
            raise Mismatch("step to return (observation, reward, terminated, truncated, info)", got) from None
        reward = as_reward(reward)
        if terminated.__class__ is not bool or truncated.__class__ is not bool:
            terminated, truncated = as_flag("terminated", terminated), as_flag("truncated", truncated)
        self._write(observation)
        self._clock += 1
        self._reward[0] = reward
        over = terminated or truncated or self._clock >= self._limit
        if over or self._clock == 1:  # otherwise both flags already say no
            self._terminated[0], self._truncated[0] = terminated, over and not terminated
            self._won = terminated and reward > 0
        return over

    def won(self) -> bool:
        """Whether the last episode reached its goal; worlds that do not know say no."""
        return self._wins and self._won

    def frame(self) -> Any:
        """The environment's picture."""
        return self.environment.render()

    def close(self) -> None:
        """Let go of the environment."""
        self.environment.close()
