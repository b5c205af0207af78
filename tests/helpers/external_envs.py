"""Small Gymnasium and PettingZoo environments for tests, most of them broken on purpose.

`helpers.external_envs:Broken-v0` with the option `defect` fails at step 3 of an episode. PettingZoo environments are
named `helpers.external_envs:Class`.
"""

import ctypes
import os
import random
import signal
import sys
import time
from typing import ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv


class Broken(gymnasium.Env):
    """Episodes of 6 steps with a random number each; a defect takes effect at step 3."""

    observation_space = spaces.Box(-1, 10, (2,), np.float32)
    action_space = spaces.Discrete(3, start=5)

    def __init__(self, defect="", odd_seeds_only=False, marker=None, one_in=2):
        self.defect, self.odd_seeds_only, self.marker, self.one_in = defect, odd_seeds_only, marker, one_in
        if defect == "constructor" or (defect == "rebuild" and os.path.exists(marker)):
            raise RuntimeError("no licence")

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.seed, self.elapsed_steps, self.noise = seed, 0, 0.0
        if self.defect == "reset":
            raise RuntimeError("cannot begin")
        return self.observe(), {}

    def observe(self):
        return np.array([self.elapsed_steps, self.noise], np.float32)

    def step(self, action):
        assert 5 <= action < 8, action
        self.elapsed_steps += 1
        self.noise = self.np_random.random() + (action - 5) * 0.1
        returned = [self.observe(), 1.0, False, self.elapsed_steps == 6, {}]
        first_time = self.marker is None or not os.path.exists(self.marker)
        if self.elapsed_steps == 3 and first_time and (not self.odd_seeds_only or self.seed % self.one_in == 1):
            if self.marker:
                open(self.marker, "w").close()
            DEFECTS[self.defect](returned)
        return tuple(returned)


def raise_error(returned):
    raise ValueError("the ball is lost")


def segfault(returned):
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)  # without pytest's faulthandler
    ctypes.string_at(0)


def lock_twice():
    """Code that does not return to Python when a signal comes, and leaves the interpreter to other threads."""
    lock = ctypes.create_string_buffer(64)
    for _ in range(2):
        ctypes.CDLL(None).pthread_mutex_lock(lock)


DEFECTS = {
    "": lambda returned: None,
    "reset": lambda returned: None,
    "raise": raise_error,
    "rebuild": raise_error,  # and building the environment again fails
    "system exit": lambda returned: sys.exit(3),
    "nan": lambda returned: returned[0].__setitem__(1, np.nan),
    "reward nan": lambda returned: returned.__setitem__(1, np.nan),
    "reward text": lambda returned: returned.__setitem__(1, "much"),
    "shape": lambda returned: returned.__setitem__(0, np.zeros(3, np.float32)),
    "broadcast": lambda returned: returned.__setitem__(0, np.zeros(1, np.float32)),
    "dtype": lambda returned: returned.__setitem__(0, returned[0].astype(np.float64)),
    "list": lambda returned: returned.__setitem__(0, [0.0, 1.0]),
    "text": lambda returned: returned.__setitem__(0, "north"),
    "flag": lambda returned: returned.__setitem__(2, 1),
    "flag text": lambda returned: returned.__setitem__(2, "yes"),
    "four": lambda returned: returned.pop(),
    "hang": lambda returned: time.sleep(60),
    "slow": lambda returned: time.sleep(0.6),
    "stuck": lambda returned: lock_twice(),
    "hold": lambda returned: ctypes.PyDLL(None).sleep(60),  # keeps the interpreter to itself
    "exit": lambda returned: os._exit(7),
    "segfault": segfault,
}


class Nested(gymnasium.Env):
    """A nested observation with every kind of space."""

    action_space = spaces.MultiDiscrete([2, 3])
    observation_space = spaces.Dict(
        {
            "eye": spaces.Box(0, 255, (6, 5, 3), np.uint8),
            "body": spaces.Tuple(
                [spaces.Discrete(4, start=-1), spaces.MultiBinary(2), spaces.MultiDiscrete([3, 2], start=[1, 0])]
            ),
            "speed": spaces.Box(-np.inf, np.inf, (), np.float64),
            "says": spaces.Text(5),
        }
    )

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.elapsed_steps = 0
        return self.observe(), {}

    def observe(self):
        body = (int(self.elapsed_steps) % 4 - 1, np.array([1, 0], np.int8), np.array([1 + self.elapsed_steps % 3, 1]))
        eye = np.zeros((6, 5, 3), np.uint8)
        eye[1, 2, 0] = 200
        return {"eye": eye, "body": body, "speed": np.array(self.np_random.normal()), "says": "hello"}

    def step(self, action):
        self.elapsed_steps += 1
        return self.observe(), float(action.sum()), self.elapsed_steps == 4, False, {}


class TextOnly(gymnasium.Env):
    observation_space, action_space = spaces.Text(5), spaces.Discrete(2)


class IntegerBox(gymnasium.Env):
    observation_space, action_space = spaces.Discrete(2), spaces.Box(0, 5, (2,), np.int64)


class Stateful(gymnasium.Env):
    """Keeps a count between episodes, which a replay cannot restore."""

    observation_space, action_space = spaces.Box(-1e6, 1e6, (1,), np.float32), spaces.Discrete(2)
    total = 0

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.elapsed_steps = 0
        return np.array([self.total], np.float32), {}

    def step(self, action):
        self.elapsed_steps += 1
        self.total += 1
        return np.array([self.total], np.float32), 0.0, self.elapsed_steps == 5, False, {}


class GlobalDice(gymnasium.Env):
    """Ignores its seed and draws from the global generators of Python, NumPy and PyTorch."""

    observation_space, action_space = spaces.Box(0, 1, (4,), np.float32), spaces.Discrete(2)

    def __init__(self):
        self.offset = random.random()

    def draw(self):
        import torch  # takes seconds in a new process, and only this environment needs it

        return np.array([self.offset, random.random(), np.random.random(), torch.rand(())], np.float32)  # noqa: NPY002

    def reset(self, seed=None, options=None):
        self.length = random.randint(3, 6)
        return self.draw(), {}

    def step(self, action):
        self.length -= 1
        return self.draw(), float(action), self.length == 0, False, {}


class Uneven(Broken):
    """Episodes of 3 to 30 steps."""

    def step(self, action):
        observation, reward, terminated, _, info = super().step(action)
        self.elapsed_steps = min(self.elapsed_steps, 10)
        return observation, reward, terminated, bool(self.np_random.random() < 0.1), info


for env_class in (Broken, Uneven, Nested, TextOnly, IntegerBox, Stateful, GlobalDice):
    gymnasium.register(f"{env_class.__name__}-v0", env_class, max_episode_steps=50)
gymnasium.register("helpers.external_envs:Colon-v0", Stateful, max_episode_steps=50)  # its name has a colon


class Changing(ParallelEnv):
    """Agents `early` leaves after 2 steps, `late` appears after 1, `never` does not appear; episodes last 4 steps."""

    metadata: ClassVar = {"name": "changing"}

    def __init__(self, late=True, defect="", render_mode=None):
        self.possible_agents = ["early_0", "stays_0", "late_0", "never_0"] if late else ["early_0", "stays_0"]
        self.defect, self.render_mode = defect, render_mode

    def observation_space(self, agent):
        return spaces.Box(0, 100, (2 if agent == "stays_0" else 1,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(3)

    def reset(self, seed=None, options=None):
        self.random, self.elapsed_steps, self.agents = np.random.RandomState(seed), 0, ["early_0", "stays_0"]
        return self.observe(self.agents), {agent: {"action_mask": np.array([1, 0, 1])} for agent in self.agents}

    def observe(self, agents):
        noise = self.random.random_sample()
        return {a: np.full(self.observation_space(a).shape, self.elapsed_steps + noise, np.float32) for a in agents}

    def step(self, actions):
        assert set(actions) == set(self.agents), actions
        assert all(action != 1 for action in actions.values())
        self.elapsed_steps += 1
        acted = list(self.agents)
        if self.elapsed_steps == 1 and "late_0" in self.possible_agents:
            self.agents.append("late_0")
        ends = {a: self.elapsed_steps == (2 if a == "early_0" else 4) for a in acted}
        observations = self.observe({*acted, *self.agents})
        if self.defect == "vanish" and self.elapsed_steps == 1:
            self.agents.remove("early_0")
        if self.defect == "missing" and self.elapsed_steps == 1:
            del observations["stays_0"]
        self.agents = [a for a in self.agents if not ends.get(a)]
        terminated = {a: ends[a] and a == "early_0" for a in acted}
        truncated = {a: ends[a] and a != "early_0" for a in acted}
        rewards = {a: float(actions[a]) for a in acted}
        infos = {a: {"action_mask": np.array([1, 0, 1])} for a in self.agents}
        return observations, rewards, terminated, truncated, infos

    def render(self):
        return np.full((8, 6, 3), self.elapsed_steps, np.uint8)


class WithoutAgents(Changing):
    def __init__(self):
        self.agents = []


class Duel(AECEnv):
    """Three agents take turns; one ends on another's turn, and idle agents get rewards."""

    metadata: ClassVar = {"name": "duel", "is_parallelizable": False}

    def __init__(self, render_mode=None):
        self.possible_agents = ["hunter_0", "hunter_1", "hunter_2"]
        self.render_mode = render_mode

    def observation_space(self, agent):
        return spaces.Discrete(20)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents = self.possible_agents[:]
        self.elapsed_steps = 0
        for name, value in (("rewards", 0.0), ("_cumulative_rewards", 0.0), ("terminations", False)):
            setattr(self, name, dict.fromkeys(self.agents, value))
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {a: {} for a in self.agents}
        self.agent_selection = self.agents[0]

    def observe(self, agent):
        return self.elapsed_steps

    def step(self, action):
        if self.terminations[self.agent_selection] or self.truncations[self.agent_selection]:
            return self._was_dead_step(action)
        self._clear_rewards()
        self.elapsed_steps += 1
        index = self.agents.index(self.agent_selection)
        next_agent = self.agents[(index + 1) % len(self.agents)]
        if self.elapsed_steps == 2:  # hunter_1 ends hunter_0, whose turn it is not
            self.terminations["hunter_0"] = True
            self.rewards |= {"hunter_0": -1.0, "hunter_1": 1.0}
        if self.elapsed_steps == 5:
            self.truncations = dict.fromkeys(self.agents, True)
            self.rewards[next_agent] += 0.5
        self.agent_selection = next_agent
        self._deads_step_first()


class Undrawn(Duel):
    """Its maker takes no `render_mode`."""

    def __init__(self):
        super().__init__()
