"""Tiny worlds, places and policies for tests."""

from dataclasses import dataclass

import numpy as np

from coterie.core import seeding
from coterie.core.decisions import Finals, Joint
from coterie.core.group import Actor, GroupSpec, Policy
from coterie.core.settings import Settings
from coterie.core.types import AgentStep, AgentType, Box, Decision, Dict, Discrete, MultiDiscrete, TimeStep
from coterie.core.world import World
from coterie.policies.network import NetworkPolicy, NetworkSettings
from coterie.training.rollout import Arrived, Played, Row, Seen

ACTIONS = {
    "discrete": Discrete(4),
    "multi-discrete": MultiDiscrete((3, 2)),
    "box": Box((2,), np.array([-1.0, 0.0], np.float32), np.array([1.0, 5.0], np.float32)),
}
VECTOR = Box((3,), -1.0, 1.0)
NAMED = Dict(
    {
        "own": Box((2,), -1.0, 1.0),
        "others": Box((3, 2), -1.0, 1.0),
        "seen": Box((3,), 0.0, 1.0),
        "level": Discrete(4),
    },
    (("others", "seen"),),
)


def group_spec(
    action=ACTIONS["discrete"],
    observation=VECTOR,
    agents=2,
    parameters="shared",
    columns=None,
    group="team",
    agent_type="player",
    seed=0,
    state_size=0,
):
    """A group of some or all agents of a kind."""
    columns = np.arange(agents) if columns is None else np.array(columns)
    names = tuple(f"agent_{i}" for i in range(agents))
    return GroupSpec(
        group,
        agent_type,
        AgentType(names, observation, action),
        tuple(names[c] for c in columns),
        columns,
        parameters,
        seed,
        state_size,
    )


def spec_in(world, columns=None, group="team", parameters="shared", seed=0, agent_type=None):
    """The spec of a group in a world; by default of its first agent type."""
    agent_type = agent_type or next(iter(world.agent_types))
    spaces = world.agent_types[agent_type]
    columns = np.arange(len(spaces.agents)) if columns is None else np.array(columns)
    names = tuple(spaces.agents[c] for c in columns)
    return GroupSpec(group, agent_type, spaces, names, columns, parameters, seed, world=world)


def network(where, **settings):
    return NetworkPolicy(NetworkSettings(**{"hidden": (16,)} | settings), where)


def generator(seed=0):
    return seeding.generator(seed, "test")


def joint(own, progress=0.0):
    return Joint({"team": own}, 1, progress)


def played(reward, active=None, terminated=(), truncated=(), acting=None, observation=None, copies=1, **fields):
    """A rollout from plain lists: `reward` and `active` are [T][A] for every copy, ends are (t, a) pairs."""
    reward = np.array(reward, np.float32)[:, None].repeat(copies, axis=1)  # [T, N, A]
    ends = []
    for pairs in (terminated, truncated):
        ends.append(np.zeros(reward.shape, bool))
        for t, a in pairs:
            ends[-1][t, :, a] = True
    rows, _, agents = reward.shape
    given = {
        "action": np.zeros(reward.shape, np.int64),
        "log_prob": np.zeros(reward.shape, np.float32),
        "finals": Finals(np.zeros((0, 2), np.int64), np.zeros((0, agents, 3), np.float32)),
        "episode": np.zeros((rows, copies), np.int64),
        **dict.fromkeys(("mask", "memory", "advice", "trace")),
    } | fields
    return Played(
        Row(
            np.ones(reward.shape, bool) if active is None else np.array(active, bool)[:, None].repeat(copies, axis=1),
            *(given[name] for name in ("action", "log_prob", "mask", "advice", "trace")),
        ),
        Seen(
            np.zeros((rows + 1, copies, agents, 3), np.float32) if observation is None else observation, given["memory"]
        ),
        Arrived(reward, np.repeat(reward.mean(axis=2, keepdims=True), agents, axis=2), *ends),
        given["finals"],
        np.ones((copies, agents), bool) if acting is None else np.array([acting] * copies, bool),
        given["episode"],
    )


def experience(*args, **fields):
    """The table of such a rollout."""
    return played(*args, **fields).close()


class Unsaved(World):
    """A world that no test saves; a base class."""

    def save(self):
        raise NotImplementedError

    def load(self, state):
        raise NotImplementedError


class Bandit(World):
    """One state, episodes of one step; `pay(action [N, A, …]) -> [N, A]`."""

    simultaneous = True
    state_size = 0

    def __init__(self, action, pay, num_envs=64, agents=1):
        self.num_envs, self.pay, self.agents = num_envs, pay, agents
        names = tuple(f"agent_{i}" for i in range(agents))
        self.agent_types = {"player": AgentType(names, Box((1,), 0.0, 1.0), action)}

    def tell(self, reward, over):
        rows = (self.num_envs, self.agents)
        same, ends = np.ones((*rows, 1), np.float32), np.full(rows, over)
        agent_step = AgentStep(same, np.ones(rows, bool), reward.astype(np.float32), ends, np.zeros(rows, bool), same)
        return TimeStep({"player": agent_step}, np.full(self.num_envs, over))

    def reset(self, seed):
        return self.tell(np.zeros((self.num_envs, self.agents)), False)

    def step(self, actions):
        return self.tell(self.pay(actions["player"]), True)

    def save(self):
        return {}

    def load(self, state):
        return self.reset(0)


class Rounds(World):
    """Agents act in turn; episodes last `length` ticks.

    Everybody sees (copy, clock, own number); every agent's reward is 100·agent + clock at each tick, so that
    each number can be recognised afterwards. The last tick truncates agent 0 and terminates the others.
    """

    simultaneous = False
    state_size = 0

    def __init__(self, num_envs=2, agents=3, length=7):
        self.num_envs, self.agents, self.length = num_envs, agents, length
        names = tuple(f"agent_{i}" for i in range(agents))
        self.agent_types = {"player": AgentType(names, Box((3,), 0.0, 100.0), Discrete(5))}
        self.played = []

    def look(self):
        n, a = np.meshgrid(np.arange(self.num_envs), np.arange(self.agents), indexing="ij")
        return np.stack([n, np.broadcast_to(self.clock[:, None], n.shape), a], axis=-1).astype(np.float32)

    def tell(self, reward=None, final=None, over=None):
        rows = (self.num_envs, self.agents)
        over = np.zeros(self.num_envs, bool) if over is None else over
        ends, cut = np.repeat(over[:, None], self.agents, axis=1), np.zeros(rows, bool)
        cut[:, 0] = over
        acting = np.arange(self.agents) == (self.clock % self.agents)[:, None]
        zeros = np.zeros(rows, np.float32)
        agent_step = AgentStep(
            self.look(),
            acting,
            zeros if reward is None else reward.astype(np.float32),
            ends & ~cut,
            cut,
            self.look() if final is None else final,
        )
        return TimeStep({"player": agent_step}, over)

    def reset(self, seed):
        self.clock = np.arange(self.num_envs) % self.length  # copies are out of step with each other
        return self.tell()

    def step(self, actions):
        self.played.append(actions["player"].copy())
        reward = 100.0 * np.arange(self.agents) + self.clock[:, None]
        self.clock = self.clock + 1
        over, final = self.clock == self.length, self.look()
        self.clock[over] = 0
        return self.tell(reward, final, over)

    def save(self):
        return {"clock": self.clock.copy()}

    def load(self, state):
        self.clock = state["clock"].copy()
        return self.tell()


class Recall(World):
    """A cue is shown at the first tick only; whoever repeats it at the last is paid 1. Others' cues are not shown.

    Everybody sees (cue, one-hot, zero later; share of the episode that is over).
    """

    simultaneous = True
    state_size = 0

    def __init__(self, num_envs=32, agents=1, length=5, cues=2, truncates=False):
        self.num_envs, self.agents, self.length, self.cues, self.truncates = num_envs, agents, length, cues, truncates
        names = tuple(f"agent_{i}" for i in range(agents))
        self.agent_types = {"player": AgentType(names, Box((cues + 1,), 0.0, 1.0), Discrete(cues))}

    def look(self):
        shown = np.eye(self.cues)[self.cue] * (self.clock == 0)[:, None, None]
        over = np.broadcast_to(self.clock[:, None, None] / self.length, (self.num_envs, self.agents, 1))
        return np.concatenate([shown, over], axis=-1).astype(np.float32)

    def tell(self, reward=None, final=None, over=None):
        rows = (self.num_envs, self.agents)
        over = np.zeros(self.num_envs, bool) if over is None else over
        ends, none = np.repeat(over[:, None], self.agents, axis=1), np.zeros(rows, bool)
        reward = np.zeros(rows, np.float32) if reward is None else reward.astype(np.float32)
        seen = self.look()
        both = (none, ends) if self.truncates else (ends, none)
        agent_step = AgentStep(seen, np.ones(rows, bool), reward, *both, seen if final is None else final)
        return TimeStep({"player": agent_step}, over, reward.all(axis=1))

    def reset(self, seed):
        self.random = generator(seed)
        self.cue = self.random.integers(self.cues, size=(self.num_envs, self.agents))
        self.clock = np.zeros(self.num_envs, np.int64)
        return self.tell()

    def step(self, actions):
        self.clock = self.clock + 1
        over, final = self.clock == self.length, self.look()
        reward = (actions["player"] == self.cue) & over[:, None]
        fresh = self.random.integers(self.cues, size=self.cue.shape)
        self.cue = np.where(over[:, None], fresh, self.cue)
        self.clock[over] = 0
        return self.tell(reward, final, over)

    def save(self):
        return {"cue": self.cue.copy(), "clock": self.clock.copy(), "random": self.random.bit_generator.state}

    def load(self, state):
        self.cue, self.clock = state["cue"].copy(), state["clock"].copy()
        self.random = generator()
        self.random.bit_generator.state = state["random"]
        return self.tell()


@dataclass(frozen=True)
class PeersSettings(Settings):
    length: int = 3  # ticks of an episode
    shows_state: bool = False  # the world tells its state


class Peers(World):
    """Every agent sees a coin, new at each tick, and is paid what the other side's first agent sees.

    One agent on the left, two on the right, who see a constant next to their coin. An episode's end terminates the
    left and truncates the right. The state, where it is shown, is (left's coin, right's coins, clock).
    """

    simultaneous = True

    def __init__(self, settings: PeersSettings, num_envs: int) -> None:
        self.settings, self.num_envs = settings, num_envs
        self.agent_types = {
            "left": AgentType(("left_0",), Box((1,), -1.0, 1.0), Discrete(2)),
            "right": AgentType(("right_0", "right_1"), Box((2,), -1.0, 1.0), Discrete(3)),
        }
        self.state_size = 4 if settings.shows_state else 0

    def toss(self):
        return self.random.choice(np.array([-1.0, 1.0], np.float32), size=(self.num_envs, 3))

    def look(self, coins):
        right = np.stack([coins[:, 1:], np.full((self.num_envs, 2), 0.5, np.float32)], axis=-1)
        return {"left": coins[:, :1, None].copy(), "right": right}

    def whole(self, coins, clock):
        return np.concatenate([coins, clock[:, None]], axis=1).astype(np.float32) if self.settings.shows_state else None

    def tell(self, reward, over, final, last):
        agent_types, seen = {}, self.look(self.coins)
        for name, agent_type in self.agent_types.items():
            rows = (self.num_envs, len(agent_type.agents))
            ends, none = np.repeat(over[:, None], rows[1], axis=1), np.zeros(rows, bool)
            both = (ends, none) if name == "left" else (none, ends)
            agent_types[name] = AgentStep(seen[name], np.ones(rows, bool), reward[name], *both, final[name])
        return TimeStep(agent_types, over, state=self.whole(self.coins, self.clock), final_state=last)

    def calm(self):
        zeros = {
            name: np.zeros((self.num_envs, len(agent_type.agents)), np.float32)
            for name, agent_type in self.agent_types.items()
        }
        seen = self.look(self.coins)
        return self.tell(zeros, np.zeros(self.num_envs, bool), seen, self.whole(self.coins, self.clock))

    def reset(self, seed):
        self.random = generator(seed)
        self.coins, self.clock = self.toss(), np.arange(self.num_envs) % self.settings.length
        return self.calm()

    def step(self, actions):
        reward = {"left": self.coins[:, 1:2].copy(), "right": np.repeat(self.coins[:, :1], 2, axis=1)}
        self.coins, self.clock = self.toss(), self.clock + 1
        over, final, last = (
            self.clock == self.settings.length,
            self.look(self.coins),
            self.whole(self.coins, self.clock),
        )
        self.coins = np.where(over[:, None], self.toss(), self.coins)
        self.clock = np.where(over, 0, self.clock)
        return self.tell(reward, over, final, last)

    def save(self):
        return {"coins": self.coins.copy(), "clock": self.clock.copy(), "random": self.random.bit_generator.state}

    def load(self, state):
        self.coins, self.clock = state["coins"].copy(), state["clock"].copy()
        self.random = generator()
        self.random.bit_generator.state = state["random"]
        return self.calm()


class Counting(Policy):
    """A policy whose memory counts its own decisions; it plays that count."""

    memory_size = 1

    def __init__(self, most=5):
        self.most = most

    def act(self, view):
        count = view.memory[..., 0].astype(np.int64)
        return Decision(count % self.most, memory=view.memory + 1)

    def state(self):
        return {}

    def load(self, state):
        pass


class Numbered(Policy):
    """A policy that plays its agents' places within the kind, and remembers what it was shown."""

    def __init__(self):
        self.views = []

    def act(self, view):
        self.views.append(view.observation.copy())
        return Decision(np.broadcast_to(view.columns, view.acting.shape).astype(np.int64))

    def state(self):
        return {}

    def load(self, state):
        pass


class Leavers(World):
    """Agent a leaves after 2·(a + 1) ticks of `length`, odd ones by truncation; all return with the next episode.

    Everybody sees (clock, own number, copy). With `turns` one agent acts at a tick.
    """

    state_size = 0

    def __init__(self, action, num_envs=3, agents=3, length=9, turns=False):
        self.num_envs, self.agents, self.length, self.simultaneous = num_envs, agents, length, not turns
        names = tuple(f"agent_{i}" for i in range(agents))
        self.agent_types = {"player": AgentType(names, Box((3,), 0.0, 1.0), action)}

    def look(self):
        n, a = np.meshgrid(np.arange(self.num_envs), np.arange(self.agents), indexing="ij")
        seen = (self.clock[:, None] / self.length, a / self.agents, n / self.num_envs)
        return np.stack(np.broadcast_arrays(*seen), axis=-1).astype(np.float32)

    def tell(self, leaves=None, final=None, over=None):
        rows = (self.num_envs, self.agents)
        over = np.zeros(self.num_envs, bool) if over is None else over
        leaves = np.zeros(rows, bool) if leaves is None else leaves
        here = self.clock[:, None] < 2 * (np.arange(self.agents) + 1)
        here &= self.simultaneous | (np.arange(self.agents) == (self.clock % self.agents)[:, None])
        odd, seen = np.arange(self.agents) % 2 == 1, self.look()
        reward = np.ones(rows, np.float32)
        agent_step = AgentStep(seen, here, reward, leaves & ~odd, leaves & odd, seen if final is None else final)
        return TimeStep({"player": agent_step}, over)

    def reset(self, seed):
        self.clock = np.arange(self.num_envs)
        return self.tell()

    def step(self, actions):
        self.clock = self.clock + 1
        over, final = self.clock == self.length, self.look()
        leaves = self.clock[:, None] == np.minimum(2 * (np.arange(self.agents) + 1), self.length)
        self.clock[over] = 0
        return self.tell(leaves, final, over)

    def save(self):
        return {"clock": self.clock.copy()}

    def load(self, state):
        self.clock = state["clock"].copy()
        return self.tell()


def actors(*pairs):
    return [Actor(where, policy) for where, policy in pairs]
