"""Environments with unusual spaces and homemade habits, for tests: `helpers.odd_envs:NAME-v0`.

Every Gymnasium environment here takes 5 steps an episode and pays what its action says.
"""

from typing import ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from pettingzoo import ParallelEnv

from helpers.external_envs import Duel


class Five(gymnasium.Env):
    """Five steps; subclasses change spaces and values."""

    observation_space = spaces.Box(0, 10, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.elapsed_steps = 0
        return self.observe(), self.info()

    def observe(self):
        return np.full(2, self.elapsed_steps, np.float32)

    def info(self):
        return {}

    def reward(self, action):
        return 1.0

    def step(self, action):
        assert self.action_space.contains(action), action
        self.elapsed_steps += 1
        return self.observe(), self.reward(action), self.elapsed_steps == 5, False, self.info()


class Numbers(Five):
    """Pays the mean of the action's numbers."""

    def __init__(self, low=0.0, high=1.0, dtype="float32", size=1, render_mode=None):
        bounds = (np.full(size, float(bound), dtype) for bound in (low, high))
        self.action_space = spaces.Box(*bounds, dtype=np.dtype(dtype).type)

    def reward(self, action):
        return float(action.mean())


REWARDS = {"no reward": None, "reward in words": "1.5", "large reward": 1e39}


class Loose(Five):
    """Returns what `returns` says instead of what its spaces declare."""

    def __init__(self, returns="", render_mode=None):
        self.returns = returns

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        if self.returns == "list":
            observation = observation.tolist()
        if self.returns == "float64":
            observation = observation.astype(np.float64)
        if self.returns == "no last observation" and terminated:
            observation = None
        if self.returns == "tensor":
            observation = torch.from_numpy(observation)
        if self.returns == "array reward":
            reward = np.array([reward])
        if self.returns in REWARDS:
            reward = REWARDS[self.returns]
        if self.returns == "int flags":
            terminated, truncated = int(terminated), np.array([0])
        return observation, reward, terminated, truncated, info


class Place(Five):
    """A place among ten, in the type that `kind` names, shifted by `by`."""

    observation_space = spaces.Discrete(10)

    def __init__(self, kind="int64", by=0.0, render_mode=None):
        self.kind, self.by = np.dtype(kind).type, by

    def observe(self):
        return self.kind(self.elapsed_steps + self.by)


class Wide(Five):
    """Numbers of float64, the first of them `size`; one agent has no numbers to see."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)

    def __init__(self, size=1.0, render_mode=None):
        self.size = size

    def observe(self):
        return np.array([self.size, 1.0])


class Blind(Five):
    """Nothing to see, unless `beside` another entry."""

    def __init__(self, beside=False, render_mode=None):
        self.beside, nothing = beside, spaces.Box(0, 1, (0,))
        self.observation_space = spaces.Dict({"none": nothing, "one": spaces.Discrete(2)}) if beside else nothing

    def observe(self):
        nothing = np.zeros(0, np.float32)
        return {"none": nothing, "one": 1} if self.beside else nothing


class Once(Five):
    """Closes itself when its episode is over."""

    closed = False

    def reset(self, seed=None, options=None):
        if self.closed:
            raise RuntimeError("closed")
        return super().reset(seed)

    def step(self, action):
        *returned, info = super().step(action)
        self.closed = returned[2]
        return *returned, info


class Unseeded(Five):
    """`reset` without a seed."""

    def reset(self):
        return super().reset()


class Undeclared(gymnasium.Env):
    """Without spaces, or with `observation_space` of another package."""

    def __init__(self, observation_space=None, render_mode=None):
        if observation_space is not None:
            self.observation_space = observation_space


class Item(Five):
    """Reads actions as arrays without dimensions; declares no render modes."""

    metadata: ClassVar = {}

    def step(self, action):
        assert action.dtype == self.action_space.dtype
        return super().step(action.item())


class Whole(Five):
    """Takes Python's integers only, as NASim does."""

    def step(self, action):
        assert isinstance(action, int)
        return super().step(action)


class Plain(Five):
    """Asks for the type of its space, as gym-electric-motor does."""

    def step(self, action):
        assert type(self.action_space) is spaces.Discrete
        return super().step(action)


class Written(Five):
    """Shows a letter in pygame's font, and ends pygame for everybody when it is closed, as memory-gym does."""

    def reset(self, seed=None, options=None):
        pygame = pytest.importorskip("pygame")
        pygame.font.init()
        self.font = pygame.font.Font(None, 8)
        return super().reset(seed)

    def observe(self):
        return np.full(2, self.font.size("a" * self.elapsed_steps)[0] / 10, np.float32)

    def close(self):
        pytest.importorskip("pygame").quit()


class Counting(Five):
    """Pays the number of steps since it was built."""

    total = 0

    def reward(self, action):
        self.total += 1
        return float(self.total)


class Masked(Five):
    """Only the action that equals the step's parity is legal; the mask is in the info from `first` on."""

    def __init__(self, first=0, choices=1, illegal_at=-1, render_mode=None):
        self.first, self.illegal_at = first, illegal_at
        self.action_space = spaces.Discrete(2) if choices == 1 else spaces.MultiDiscrete([2] * choices)

    def info(self):
        if self.elapsed_steps < self.first:
            return {}
        legal = np.array([self.elapsed_steps % 2 == 0, self.elapsed_steps % 2 == 1], np.int8)
        return {"action_mask": legal * (self.elapsed_steps != self.illegal_at)}

    def step(self, action):
        assert not (self.info() and np.ndim(action) == 0) or action == self.elapsed_steps % 2, "illegal"
        return super().step(action)


class MaskMethod(Masked):
    """The mask comes from a method, as for MaskablePPO of sb3-contrib, and is not in the info."""

    def info(self):
        return {}

    def action_masks(self):
        return super().info()["action_mask"].astype(bool)

    def step(self, action):
        assert np.ndim(action) or self.action_masks()[action], "illegal"
        return super().step(action)


class MaskedPair(ParallelEnv):
    """Two agents whose masks are in the infos from `first` on."""

    metadata: ClassVar = {"name": "masked_pair"}

    def __init__(self, first=0, render_mode=None):
        self.possible_agents, self.first = ["a", "b"], first

    def observation_space(self, agent):
        return spaces.Discrete(10)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def infos(self):
        mask = {"action_mask": np.array([1, 0])} if self.elapsed_steps >= self.first else {}
        return {agent: dict(mask) for agent in self.agents}

    def reset(self, seed=None, options=None):
        self.agents, self.elapsed_steps = list(self.possible_agents), 0
        return dict.fromkeys(self.agents, 0), self.infos()

    def step(self, actions):
        assert self.elapsed_steps < self.first or not any(actions.values()), "illegal"
        self.elapsed_steps += 1
        acted, over, infos = list(self.agents), self.elapsed_steps == 5, self.infos()
        self.agents = [] if over else acted
        one = dict.fromkeys(acted, 1.0)
        return (
            dict.fromkeys(acted, self.elapsed_steps),
            one,
            dict.fromkeys(acted, over),
            dict.fromkeys(acted, False),
            infos,
        )


class Composite(Five):
    """A nested action; pays the sum of its numbers and choices."""

    SPACES: ClassVar = {
        "choices": spaces.Dict({"move": spaces.Discrete(3, start=1), "keys": spaces.MultiBinary((2, 2))}),
        "numbers": spaces.Tuple([spaces.Box(0, 1, (2,)), spaces.Box(-1, 1, (), np.float64)]),
        "mixed": spaces.Tuple([spaces.Discrete(2), spaces.Box(0.0, 1.0, (2, 1)), spaces.MultiDiscrete([2, 3])]),
        "matrix": spaces.MultiDiscrete([[2, 3], [4, 5]]),
    }

    def __init__(self, kind="choices", render_mode=None):
        self.action_space = self.SPACES[kind]

    def reward(self, action):
        return float(gymnasium.spaces.flatten(self.action_space, action).sum()) / 10


class Pair(gymnasium.Env):
    """Two agents in tuples or dicts, paid their own actions; `ends` ends the first after 2 steps.

    `lacks` is what is empty in the step `at`.
    """

    def __init__(self, form="tuple", ends=False, masked=False, lacks="", at=5, render_mode=None):
        self.form, self.ends, self.masked, self.lacks, self.at = form, ends, masked, lacks, at
        self.observation_space = self.pack([spaces.Box(0, 10, (2,)), spaces.Box(0, 10, (2,))], space=True)
        self.action_space = self.pack([spaces.Discrete(3), spaces.Discrete(3)], space=True)

    def pack(self, values, space=False):
        if self.form == "dict":
            named = dict(enumerate(values))
            return (
                spaces.Dict({str(k): v for k, v in named.items()}) if space else {str(k): v for k, v in named.items()}
            )
        if self.form == "list":
            return list(values)
        return spaces.Tuple(values) if space else tuple(values)

    def observe(self):
        return self.pack([np.full(2, self.elapsed_steps, np.float32)] * 2)

    def info(self):
        return {"action_mask": [np.array([1, 0, 1])] * 2} if self.masked else {}

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.elapsed_steps = 0
        return self.observe(), self.info()

    def step(self, actions):
        given = [actions[k] for k in sorted(actions)] if self.form == "dict" else list(actions)
        self.elapsed_steps += 1
        over = self.elapsed_steps == 5
        rewards = [float(action) for action in given]
        if self.ends:
            rewards = rewards if len(given) == 2 else [0.0, *rewards]
            ended = self.pack([self.elapsed_steps >= 2, over])
            return self.observe(), self.pack(rewards), ended, self.pack([False, False]), self.info()
        parts = {"observations": self.observe(), "rewards": self.pack(rewards)}
        if self.lacks and self.elapsed_steps == self.at:
            parts[self.lacks] = {}
        return *parts.values(), over, False, self.info()


class Unseedable(Pair):
    """Ignores its seed: its generator goes on from one episode to the next, as mobile-env's does."""

    def __init__(self, render_mode=None):
        super().__init__()
        self.random = np.random.default_rng(0)

    def observe(self):
        return tuple(self.random.uniform(0, 10, (2, 2)).astype(np.float32))


class Talking(Five):
    """Text with numbers, or alone."""

    def __init__(self, alone=False, render_mode=None):
        self.alone, says = alone, spaces.Text(12, charset="abcdefghijklmnopqrstuvwxyzé ")
        self.observation_space = says if alone else spaces.Dict({"says": says, "number": spaces.Box(0, 10, (1,))})

    def observe(self):
        says = "café " + "ab"[self.elapsed_steps % 2]
        return says if self.alone else {"says": says, "number": np.float32([self.elapsed_steps])}


class Goals(Five):
    """A reward of two numbers."""

    def reward(self, action):
        return np.array([1.0, float(self.elapsed_steps)])


class Drawn(Five):
    """Renders in the way that `frame` says; the picture's upper left corner is white, the rest is half grey."""

    def __init__(self, frame="plain", render_mode=None):
        self.frame, self.render_mode = frame, render_mode

    def render(self):
        picture = np.full((4, 6, 3), 127, np.uint8)
        picture[0, 0] = 255
        match self.frame:
            case "rgba":
                return np.concatenate([picture, np.full((4, 6, 1), 255, np.uint8)], axis=2)
            case "list":
                return [np.zeros_like(picture), picture]
            case "float":
                return picture / 255
            case "grey":
                return picture[..., 0]
            case "text":
                return "a map"
            case "none":
                return None
            case "exit":
                raise SystemExit(3)  # as some renderers do whose window was closed
        return picture

    def close(self):
        if self.frame == "exit":
            raise SystemExit(3)


class Collision(Five):
    """Two entries whose flat names are equal, and episodes without end."""

    observation_space = spaces.Dict({"a": spaces.Dict({"b": spaces.Discrete(2)}), "a/b": spaces.Box(0, 10, (1,))})

    def observe(self):
        return {"a": {"b": 1}, "a/b": np.float32([7])}

    def step(self, action):
        self.elapsed_steps = 0
        return self.observe(), 1.0, False, False, {}


class Team(ParallelEnv):
    """`b` arrives after step 1 and `a` ends at step 2; `pays` says which reward falls outside of a life."""

    metadata: ClassVar = {"name": "team"}

    def __init__(self, pays="", render_mode=None):
        self.possible_agents, self.pays = ["a", "b"], pays

    def observation_space(self, agent):
        return spaces.Discrete(10)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents, self.elapsed_steps = ["a"], 0
        return {"a": 0}, {"a": {}}

    def step(self, actions):
        self.elapsed_steps += 1
        acted = list(self.agents)
        rewards = dict.fromkeys(acted, 1.0)
        if self.elapsed_steps == 1:
            self.agents.append("b")
            if self.pays == "arrival":
                rewards["b"] = 7.0
        if self.elapsed_steps == 3 and self.pays == "dead":
            rewards["a"] = 5.0
        ends = {a: self.elapsed_steps == (2 if a == "a" else 4) for a in acted}
        observations = dict.fromkeys({*acted, *self.agents}, self.elapsed_steps)
        self.agents = [a for a in self.agents if not ends.get(a)]
        return observations, rewards, ends, dict.fromkeys(acted, False), {a: {} for a in self.agents}


class Homemade(Team):
    """Agents `agent[0]` and `agent[1]`; the first ends at step 2, and `lacks` says what is not returned then."""

    def __init__(self, lacks="", render_mode=None):
        self.possible_agents, self.lacks = ["agent[0]", "agent[1]"], lacks

    def reset(self, seed=None, options=None):
        self.agents, self.elapsed_steps = list(self.possible_agents), 0
        return dict.fromkeys(self.agents, 0), {a: {} for a in self.agents}

    def step(self, actions):
        self.elapsed_steps += 1
        acted = list(self.agents)
        ends = {a: self.elapsed_steps == (2 if a == "agent[0]" else 4) for a in acted}
        observations, rewards = dict.fromkeys(acted, self.elapsed_steps), dict.fromkeys(acted, 1.0)
        for agent in acted:
            if ends[agent]:
                {"observations": observations, "rewards": rewards}.get(self.lacks, {}).pop(agent, None)
        self.agents = [a for a in acted if not ends[a]]
        return observations, rewards, ends, dict.fromkeys(acted, False), {a: {} for a in self.agents}


class Returns(Team):
    """Two agents for 4 steps; `defect` says what is returned against the API."""

    def __init__(self, defect="", render_mode=None):
        self.possible_agents, self.defect = ["a", "b"], defect

    def reset(self, seed=None, options=None):
        self.agents, self.elapsed_steps = list(self.possible_agents), 0
        observations = dict.fromkeys(self.agents, 0)
        if self.defect == "old reset":
            return observations
        return observations, None if self.defect == "no infos" else {a: {} for a in self.agents}

    def step(self, actions):
        self.elapsed_steps += 1
        acted = list(self.agents)
        ends = {
            a: self.elapsed_steps == 4 or (self.defect == "back" and self.elapsed_steps == 2 and a == "b")
            for a in acted
        }
        self.agents = [a for a in acted if not ends[a]]
        if self.defect == "back" and self.elapsed_steps == 3:
            self.agents.append("b")
        observations, rewards = dict.fromkeys({*acted, *self.agents}, self.elapsed_steps), dict.fromkeys(acted, 1.0)
        truncations, infos = dict.fromkeys(acted, False), {a: {} for a in self.agents}
        if self.defect == "old step":
            return observations, rewards, ends, infos
        return observations, rewards, ends, truncations, None if self.defect == "no infos" else infos


class Nobody(Duel):
    """Selects nobody after `turns` moves."""

    def __init__(self, turns=0, render_mode=None):
        super().__init__(render_mode)
        self.turns = turns

    def reset(self, seed=None, options=None):
        super().reset()
        self.agent_selection = self.agent_selection if self.turns else None

    def step(self, action):
        super().step(action)
        self.agent_selection = self.agent_selection if self.elapsed_steps < self.turns else None


class DeadStep(Duel):
    """Pays hunter_2 in the empty step that removes hunter_0."""

    def step(self, action):
        dead = self.terminations[self.agent_selection]
        super().step(action)
        if dead:
            self.rewards["hunter_2"] = 3.0


PLAIN = (
    Numbers,
    Loose,
    Counting,
    Masked,
    Composite,
    Pair,
    Talking,
    Goals,
    Drawn,
    Place,
    Wide,
    Blind,
    Once,
    Unseeded,
    Item,
    Whole,
    Plain,
    Written,
    MaskMethod,
    Unseedable,
)
for env_class in (*PLAIN, Undeclared):
    gymnasium.register(f"{env_class.__name__}-v0", env_class, max_episode_steps=50)
gymnasium.register("Collision-v0", Collision)
