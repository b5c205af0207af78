"""Third-party environments of our own making, most of them broken on purpose.

`helpers.guest:Broken-v0` with option `defect` fails at step 3 of the episodes that `when` names; PettingZoo
environments are named `helpers.guest:maker`.
"""

import ctypes
import os
import signal
import sys
import time
from typing import ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv


class Broken(gymnasium.Env):
    """Counts to 6, drawing a random number per step; a defect strikes at step 3."""

    observation_space = spaces.Box(-1, 10, (2,), np.float32)
    action_space = spaces.Discrete(3, start=5)

    def __init__(self, defect="", odd_seeds_only=False, mark=None):
        self.defect, self.odd, self.mark = defect, odd_seeds_only, mark
        if defect == "constructor" or (defect == "rebuild" and os.path.exists(mark)):
            raise RuntimeError("no licence")

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.seed, self.clock, self.luck = seed, 0, 0.0
        if self.defect == "reset":
            raise RuntimeError("cannot begin")
        return self.look(), {}

    def look(self):
        return np.array([self.clock, self.luck], np.float32)

    def step(self, action):
        assert 5 <= action < 8, action
        self.clock += 1
        self.luck = self.np_random.random() + (action - 5) * 0.1
        told = [self.look(), 1.0, False, self.clock == 6, {}]
        once = self.mark is None or not os.path.exists(self.mark)
        if self.clock == 3 and once and (not self.odd or self.seed % 2):
            if self.mark:
                open(self.mark, "w").close()
            DEFECTS[self.defect](told)
        return tuple(told)


def strike(told):
    raise ValueError("the ball is lost")


def segfault(told):
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)  # not pytest's faulthandler, should there be one
    ctypes.string_at(0)


DEFECTS = {
    "": lambda told: None,
    "reset": lambda told: None,
    "raise": strike,
    "rebuild": strike,  # and cannot be built again afterwards
    "system exit": lambda told: sys.exit(3),
    "nan": lambda told: told[0].__setitem__(1, np.nan),
    "reward nan": lambda told: told.__setitem__(1, np.nan),
    "reward text": lambda told: told.__setitem__(1, "much"),
    "shape": lambda told: told.__setitem__(0, np.zeros(3, np.float32)),
    "broadcast": lambda told: told.__setitem__(0, np.zeros(1, np.float32)),
    "dtype": lambda told: told.__setitem__(0, told[0].astype(np.float64)),
    "list": lambda told: told.__setitem__(0, [0.0, 1.0]),
    "flag": lambda told: told.__setitem__(2, 1),
    "four": lambda told: told.pop(),
    "hang": lambda told: time.sleep(60),
    "exit": lambda told: os._exit(7),
    "segfault": segfault,
}


class Nested(gymnasium.Env):
    """Every space at once, and a legal move that changes."""

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
        self.clock = 0
        return self.look(), {}

    def look(self):
        body = (int(self.clock) % 4 - 1, np.array([1, 0], np.int8), np.array([1 + self.clock % 3, 1]))
        eye = np.zeros((6, 5, 3), np.uint8)
        eye[1, 2, 0] = 200
        return {"eye": eye, "body": body, "speed": np.array(self.np_random.normal()), "says": "hello"}

    def step(self, action):
        self.clock += 1
        return self.look(), float(action.sum()), self.clock == 4, False, {}


class Words(gymnasium.Env):
    observation_space, action_space = spaces.Text(5), spaces.Discrete(2)


class WholeBox(gymnasium.Env):
    observation_space, action_space = spaces.Discrete(2), spaces.Box(0, 5, (2,), np.int64)


class Forgetful(gymnasium.Env):
    """Carries a count over from episode to episode, which a replay cannot know."""

    observation_space, action_space = spaces.Box(-1e6, 1e6, (1,), np.float32), spaces.Discrete(2)
    total = 0

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.clock = 0
        return np.array([self.total], np.float32), {}

    def step(self, action):
        self.clock += 1
        self.total += 1
        return np.array([self.total], np.float32), 0.0, self.clock == 5, False, {}


for made in (Broken, Nested, Words, WholeBox, Forgetful):
    gymnasium.register(f"{made.__name__}-v0", made, max_episode_steps=50)


class Coming(ParallelEnv):
    """`early` leaves after 2 steps, `late` appears after 1, `never` never; all over after 4."""

    metadata: ClassVar = {"name": "coming"}

    def __init__(self, late=True, defect="", render_mode=None):
        self.possible_agents = ["early_0", "stays_0", "late_0", "never_0"] if late else ["early_0", "stays_0"]
        self.defect, self.render_mode = defect, render_mode

    def observation_space(self, agent):
        return spaces.Box(0, 100, (2 if agent == "stays_0" else 1,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(3)

    def reset(self, seed=None, options=None):
        self.random, self.clock, self.agents = np.random.RandomState(seed), 0, ["early_0", "stays_0"]
        return self.look(self.agents), {agent: {"action_mask": np.array([1, 0, 1])} for agent in self.agents}

    def look(self, agents):
        luck = self.random.random_sample()
        return {a: np.full(self.observation_space(a).shape, self.clock + luck, np.float32) for a in agents}

    def step(self, actions):
        assert set(actions) == set(self.agents), actions
        assert all(action != 1 for action in actions.values())
        self.clock += 1
        acted = list(self.agents)
        if self.clock == 1 and "late_0" in self.possible_agents:
            self.agents.append("late_0")
        ends = {a: self.clock == (2 if a == "early_0" else 4) for a in acted}
        told = self.look({*acted, *self.agents})
        if self.defect == "vanish" and self.clock == 1:
            self.agents.remove("early_0")
        if self.defect == "missing" and self.clock == 1:
            del told["stays_0"]
        self.agents = [a for a in self.agents if not ends.get(a)]
        terminated = {a: ends[a] and a == "early_0" for a in acted}
        truncated = {a: ends[a] and a != "early_0" for a in acted}
        rewards = {a: float(actions[a]) for a in acted}
        return told, rewards, terminated, truncated, {a: {"action_mask": np.array([1, 0, 1])} for a in self.agents}

    def render(self):
        return np.full((8, 6, 3), self.clock, np.uint8)


class Nameless(Coming):
    def __init__(self):
        self.agents = []


class Duel(AECEnv):
    """Two take turns; `shot` is dealt an end by the other and then misses its turn; rewards come at odd times."""

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
        self.clock = 0
        for name, value in (("rewards", 0.0), ("_cumulative_rewards", 0.0), ("terminations", False)):
            setattr(self, name, dict.fromkeys(self.agents, value))
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {a: {} for a in self.agents}
        self.agent_selection = self.agents[0]

    def observe(self, agent):
        return self.clock

    def step(self, action):
        if self.terminations[self.agent_selection] or self.truncations[self.agent_selection]:
            return self._was_dead_step(action)
        self._clear_rewards()
        self.clock += 1
        mover = self.agent_selection
        following = self.agents[(self.agents.index(mover) + 1) % len(self.agents)]
        if self.clock == 2:  # hunter_1 shoots hunter_0, who is not on turn
            self.terminations["hunter_0"] = True
            self.rewards |= {"hunter_0": -1.0, "hunter_1": 1.0}
        if self.clock == 5:
            self.truncations = dict.fromkeys(self.agents, True)
            self.rewards[following] += 0.5
        self.agent_selection = following
        self._deads_step_first()
