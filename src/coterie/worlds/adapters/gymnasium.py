"""Gymnasium environments by name: worlds of one agent, or of several whose spaces are a Tuple or Dict.

The environment is stepped without Gymnasium's outer wrappers (env checker, order enforcing, time limit): the adapter
does their work once for all copies. Wrappers of a registration stay. CartPole-v1 with its default options is played
by the native batch in `cartpole/`.
"""

from __future__ import annotations

import difflib
import functools
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from coterie.core.text import TextCodec
from coterie.core.types import AgentType, UnknownName
from coterie.core.validation import at_least
from coterie.core.world import World
from coterie.worlds.adapters.batch import (
    EnvArrays,
    EnvSpec,
    InvalidEnvOutput,
    Warn,
    as_bool,
    as_reward,
    has_own_limit,
    warn_once,
)
from coterie.worlds.adapters.external import (
    ExternalSettings,
    ExternalWorld,
    WorldWrapper,
    has_info_masks,
    import_external,
    import_user_module,
)
from coterie.worlds.adapters.pettingzoo import ExternalParallelEnv, parallel_shows_mask
from coterie.worlds.adapters.text import ObservationText
from coterie.worlds.adapters.tuple_agents import TupleAgents
from coterie.worlds.cartpole.world import LIMIT, CartPole

INSTALL = "'coterie[worlds]'"
AGENT, AGENT_TYPE = "agent_0", "agent"
MODULES = {"ALE/": "ale_py", "MiniGrid-": "minigrid", "BabyAI-": "minigrid", "MinAtar/": "minatar.gym"}  # by prefix


@dataclass(frozen=True)
class GymnasiumSettings(ExternalSettings):
    """A Gymnasium environment; `id` may be `module:Name-v0` to import the module that registers it."""

    channels: Literal["auto", "first", "last"] = "auto"  # the axis of channels in pictures; auto: by their shape
    agents: Literal["single", "tuple"] = "single"  # tuple: Tuple or Dict spaces hold one space for each agent
    native: bool = True  # play CartPole-v1 with default options as a native batch
    action_repeat: int = 1  # frames that an action lasts: a step is as many of the environment's, rewards add up

    def __post_init__(self) -> None:
        ExternalSettings.__post_init__(self)
        at_least("action_repeat", self.action_repeat, 1)
        if self.action_repeat > 1 and self.agents == "tuple":
            raise ValueError("action_repeat: not with agents: tuple; set it to 1")

    @property
    def plays_natively(self) -> bool:
        """Whether the native batch plays instead of Gymnasium."""
        native = self.native and self.id == "CartPole-v1" and not self.options and not self.processes
        return native and not self.changes_frames and self.action_repeat == 1

    @property
    def evaluation_copies(self) -> int:
        """At most this many copies play an evaluation."""
        return 256 if self.plays_natively else super().evaluation_copies


class GymnasiumWorld(WorldWrapper):
    """N copies of a Gymnasium environment."""

    def __init__(self, settings: GymnasiumSettings, num_envs: int) -> None:
        make = _native_cartpole if settings.plays_natively else _external_world
        super().__init__(make(settings, num_envs))

    def text_codec(self, agent_type: str) -> TextCodec:
        """Describes observations in words."""
        return ObservationText(self, agent_type)


def _native_cartpole(settings: GymnasiumSettings, num_envs: int) -> World:
    return CartPole(num_envs, settings.max_episode_steps or LIMIT, settings.render)


def _external_world(settings: GymnasiumSettings, num_envs: int) -> World:
    make_env = functools.partial(make_gymnasium, settings)
    return ExternalWorld(f"gymnasium/{settings.id}", settings, make_env, num_envs)


# One environment ----------------------------------------------------------------------------------------


def make_gymnasium(settings: GymnasiumSettings) -> ExternalGymnasiumEnv | ExternalParallelEnv:
    """Build one environment."""
    gymnasium = import_external("gymnasium", INSTALL)
    name = registered_name(gymnasium, settings.id)
    world_name = f"gymnasium/{settings.id}"
    if settings.agents == "tuple":
        return _make_tuple(gymnasium, name, settings, world_name)
    info_masks = has_info_masks(settings, lambda: make_registered(gymnasium, name, settings)[0], _shows_mask)
    env, limit = make_registered(gymnasium, name, settings)
    found = ExternalGymnasiumEnv(env, limit, settings, world_name, settings.channels, info_masks=info_masks)
    found.action_repeat = settings.action_repeat
    return found


def _make_tuple(gymnasium: Any, name: str, settings: GymnasiumSettings, world_name: str) -> ExternalParallelEnv:
    """An environment whose spaces hold one space for each agent."""
    env, limit = make_registered(gymnasium, name, settings)
    info_masks = has_info_masks(
        settings, lambda: TupleAgents(make_registered(gymnasium, name, settings)[0]), parallel_shows_mask
    )
    settings = replace(settings, max_episode_steps=limit)
    return ExternalParallelEnv(TupleAgents(env), settings, world_name, settings.channels, info_masks=info_masks)


def registered_name(gymnasium: Any, name: str) -> str:
    """The name under which an environment is registered; `module:Name-v0` imports the module first, if necessary."""
    module, colon, rest = name.partition(":")
    if colon and name not in gymnasium.registry:  # some packages register names with a colon
        imported = import_user_module(module, f"gymnasium/{name}")
        if rest not in gymnasium.registry and callable(register := getattr(imported, "register_envs", None)):
            register()  # as Gymnasium did for plugins before 1.0
    found = next((known for known in (name, rest) if known in gymnasium.registry), None)
    if found is None:
        raise unknown_env("gymnasium", name, list(gymnasium.registry))
    return found


def make_registered(gymnasium: Any, name: str, settings: ExternalSettings) -> tuple[Any, int | None]:
    """A registered environment, and the time limit that the adapter has to apply."""
    spec = gymnasium.registry[name]  # `make` would read a name with a colon as module and name
    options = settings.options | ({"render_mode": "rgb_array"} if settings.render else {})
    limit = settings.max_episode_steps or spec.max_episode_steps
    with warnings.catch_warnings():  # whether it can be drawn is found out by drawing it
        for text in ("is being initialised with render_mode", "metadata doesn't include `render_modes`"):
            warnings.filterwarnings("ignore", f".*{text}")
        if spec.additional_wrappers:  # they may rely on a time limit below them
            return gymnasium.make(spec, limit, disable_env_checker=True, **options), None
        env = gymnasium.make(spec, -1, disable_env_checker=True, **options)
    while isinstance(env, gymnasium.wrappers.OrderEnforcing):
        env = env.env
    return env, limit


def unknown_env(family: str, name: str, known: list[str]) -> UnknownName:
    """The error for a name that is not registered, with the closest name."""
    needs = next((m for start, m in MODULES.items() if family == "gymnasium" and name.startswith(start)), "")
    if needs:
        return UnknownName(
            f"{family}/{name}: no such environment is registered; did you mean '{family}/{needs}:{name}'?"
        )
    choices = [*known, *(k.removeprefix("MiniGrid-") for k in known)]
    module, colon, rest = name.partition(":")
    parts = (rest, name) if colon else (name,)
    close = [found for part in parts for found in difflib.get_close_matches(part, choices, n=1, cutoff=0.75)]
    prefix = f"{module}:" if colon and close and not close[0].startswith(f"{module}:") else ""  # what imports it
    hint = f"; did you mean '{family}/{prefix}{close[0]}'?" if close else "; 'module:Name-v0' imports a module first"
    return UnknownName(f"{family}/{name}: no such environment is registered{hint}")


class ExternalGymnasiumEnv:
    """One Gymnasium environment."""

    def __init__(
        self,
        env: Any,
        limit: int | None,
        settings: ExternalSettings,
        name: str,
        channels: Any = "auto",
        scales: Mapping[str, Any] | None = None,
        success: bool = False,
        ignored_text: str = "",
        info_masks: bool = False,
    ) -> None:
        """`success`: a terminated episode with a positive last reward succeeds. `ignored_text`: needs no warning."""
        from coterie.worlds.adapters import actions, frames, spaces  # import gymnasium

        self._spaces, self._actions = spaces, actions
        self.env, self._has_success = env, success
        self._limit = limit or 2**62
        self._warn: Warn = functools.partial(warn_once, name)
        self._weights = settings.scalarize
        self._frames, space = None, getattr(env, "observation_space", None)
        if settings.changes_frames:
            self._frames = frames.Frames(space, settings, channels)
            space, channels = self._frames.space, "first"
        self.layout = spaces.convert_observation_space(space, channels, scales, settings.text)
        self.action_layout = actions.convert_action_space(getattr(env, "action_space", None), settings.actions)
        agent_type = AgentType((AGENT,), self.layout.space, self.action_layout.space)
        found = tuple(w for w in self.layout.warnings if not (ignored_text and w.endswith(ignored_text)))
        found += self.action_layout.warnings
        masked = actions.has_mask(self.action_layout, self.layout.mask is not None, info_masks, AGENT)
        self._mask_method = None
        if not masked and settings.actions.masks != "none":
            self._mask_method = actions.mask_method(env, self.action_layout, self._warn)
            masked = self._mask_method is not None
        self.env_spec = EnvSpec(
            {AGENT_TYPE: agent_type},
            masked=(AGENT_TYPE,) * masked,
            has_success=success,
            warnings=found,
            limited=limit is not None
            or env.spec is None
            or env.spec.max_episode_steps is not None
            or has_own_limit(env),
            texts={AGENT_TYPE: self.layout.texts},
        )
        self._unread_masks = not masked and settings.actions.masks == "auto"
        actions.use_fast_discrete(env.unwrapped.action_space)
        self._step = env.step
        self.action_repeat = 1  # frames that an action lasts
        self._elapsed_steps, self._succeeded = 0, False  # steps of the environment

    def bind(self, arrays: EnvArrays) -> None:
        """Read actions from these arrays and write results into them from now on."""
        self._arrays = own = arrays[AGENT_TYPE]
        self._reward, self._terminated, self._truncated = own.reward, own.terminated, own.truncated
        self._write = self._spaces.observation_writer(self.layout, own.observation, 0, self._warn)
        if (frames := self._frames) is not None:
            write = self._write
            self._write = lambda observation: write(frames.add(observation))
        self._action = self._actions.action_reader(self.action_layout, own.action, 0)
        self._mask = own.mask

    def reset(self, seed: int) -> None:
        """Start an episode."""
        returned = self.env.reset(seed=seed)
        if not (isinstance(returned, tuple) and len(returned) == 2):
            raise InvalidEnvOutput("reset to return (observation, info)", type(returned).__name__)
        if self._frames is not None:
            self._frames.clear()
        self._write(returned[0])
        if self._mask is not None:
            self._write_mask(*returned)
        self._arrays.acting[0], self._arrays.done[0] = True, False
        self._elapsed_steps = 0

    def step(self) -> bool:
        """Take one step."""
        returned = self._step(self._action()) if self.action_repeat == 1 else self._repeat(self._action())
        try:
            observation, reward, terminated, truncated, info = returned
        except (TypeError, ValueError):
            got = f"{len(returned)} values" if isinstance(returned, tuple) else type(returned).__name__
            raise InvalidEnvOutput("step to return (observation, reward, terminated, truncated, info)", got) from None
        reward = as_reward(reward, self._weights if self.action_repeat == 1 else None, self._warn)
        if terminated.__class__ is not bool or truncated.__class__ is not bool:
            terminated = as_bool("terminated", terminated, self._warn)
            truncated = as_bool("truncated", truncated, self._warn)
        if observation is None and (terminated or truncated):
            self._warn("an episode ends without an observation; the one before counts")
        else:
            self._write(observation)
        self._elapsed_steps += 1
        self._reward[0] = reward
        over = terminated or truncated or self._elapsed_steps >= self._limit
        if over or self._elapsed_steps <= self.action_repeat:  # otherwise both flags are already False
            self._terminated[0], self._truncated[0] = terminated, over and not terminated
            self._succeeded = terminated and reward > 0
        if self._mask is not None and not over:
            self._write_mask(observation, info)
        elif self._unread_masks and isinstance(info, dict) and "action_mask" in info:
            self._unread_masks = False
            self._warn("an action_mask appears in info after the episode's start; world.actions.masks: info reads it")
        return over

    def _repeat(self, action: Any) -> Any:
        """Act alike for several frames, until the episode or its time is over; returns the last with all rewards.

        An action that becomes illegal ends as well: the agent decides anew.
        """
        total = 0.0
        for frame in range(min(self.action_repeat, self._limit - self._elapsed_steps)):
            returned = self._step(action)
            if not (isinstance(returned, tuple) and len(returned) == 5):
                return returned
            self._elapsed_steps += frame > 0  # the last one is counted by `step`
            total += as_reward(returned[1], self._weights, self._warn)
            if returned[2] or returned[3]:
                break
            if self._mask is not None:
                self._write_mask(returned[0], returned[4])
                if not self._mask[0, self._arrays.action.item(0)]:
                    break
        return returned[0], total, *returned[2:]

    def _write_mask(self, observation: Any, info: Any) -> None:
        """Write the mask of the observation, the info or the method; without one, every action is legal."""
        assert self._mask is not None
        if self._mask_method is not None:
            value = self._mask_method()
        elif self.layout.mask is not None:
            value = self._spaces.part_at(observation, self.layout.mask)
        elif isinstance(info, dict) and "action_mask" in info:
            value = info["action_mask"]
        else:
            self._mask[0] = True
            return
        self._actions.write_mask(value, self._mask[0], AGENT)

    def success(self) -> bool:
        """Whether the last episode was successful; False where the environment does not define success."""
        return self._has_success and self._succeeded

    def frame(self) -> Any:
        """The environment's picture."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


def _shows_mask(env: Any) -> bool:
    """Whether a mask is in the info of the first observation or the second."""
    if "action_mask" in env.reset(seed=0)[1]:
        return True
    env.action_space.seed(0)
    return "action_mask" in env.step(env.action_space.sample())[4]
