"""Tiny worlds, places and policies for tests."""

import numpy as np

from coterie import streams
from coterie.group import Place, Seat
from coterie.policies.network import NetworkPolicy, NetworkSettings
from coterie.types import Box, Decision, Discrete, Experience, Finals, Joint, Kind, MultiDiscrete, Tick, Ticks

ACTIONS = {
    "discrete": Discrete(4),
    "multi-discrete": MultiDiscrete((3, 2)),
    "box": Box((2,), np.array([-1.0, 0.0], np.float32), np.array([1.0, 5.0], np.float32)),
}
VECTOR = Box((3,), -1.0, 1.0)


def place(
    action=ACTIONS["discrete"],
    observation=VECTOR,
    agents=2,
    parameters="shared",
    columns=None,
    group="team",
    kind="player",
    seed=0,
):
    """A group of some or all agents of a kind."""
    columns = np.arange(agents) if columns is None else np.array(columns)
    names = tuple(f"agent_{i}" for i in range(agents))
    return Place(
        group,
        kind,
        Kind(names, observation, action),
        tuple(names[c] for c in columns),
        columns,
        parameters,
        seed,
    )


def place_in(world, columns=None, group="team", parameters="shared", seed=0, kind=None):
    """A group in a world, of its first kind unless told otherwise."""
    kind = kind or next(iter(world.kinds))
    spaces = world.kinds[kind]
    columns = np.arange(len(spaces.agents)) if columns is None else np.array(columns)
    return Place(group, kind, spaces, tuple(spaces.agents[c] for c in columns), columns, parameters, seed)


def network(where, **settings):
    return NetworkPolicy(NetworkSettings(**{"hidden": (16,)} | settings), where)


def generator(seed=0):
    return streams.generator(seed, "test")


def joint(own, progress=0.0):
    return Joint({"team": own}, 1, progress)


def experience(reward, active=None, terminated=(), truncated=(), acting=None, observation=None, **fields):
    """Experience from plain lists: `reward` and `active` are [T][A] for one copy, ends are (t, a) pairs."""
    reward = np.array(reward, np.float32)[:, None]  # [T, 1, A]
    ends = {}
    for name, pairs in (("terminated", terminated), ("truncated", truncated)):
        ends[name] = np.zeros(reward.shape, bool)
        for t, a in pairs:
            ends[name][t, 0, a] = True
    rows, _, agents = reward.shape
    seen = np.zeros((rows + 1, 1, agents, 3), np.float32) if observation is None else observation
    given = {
        "action": np.zeros(reward.shape, np.int64),
        "log_prob": np.zeros(reward.shape, np.float32),
        "finals": Finals(np.zeros((0, 2), np.int64), np.zeros((0, agents, 3), np.float32)),
    }
    return Experience(
        observation=seen,
        reward=reward,
        active=np.ones(reward.shape, bool) if active is None else np.array(active, bool)[:, None],
        acting=np.ones((1, agents), bool) if acting is None else np.array([acting], bool),
        **ends,
        **given | fields,
    )


class Bandit:
    """One state, episodes of one step; `pay(action [N, A, …]) -> [N, A]`."""

    simultaneous = True

    def __init__(self, action, pay, copies=64, agents=1):
        self.copies, self.pay, self.agents = copies, pay, agents
        names = tuple(f"agent_{i}" for i in range(agents))
        self.kinds = {"player": Kind(names, Box((1,), 0.0, 1.0), action)}

    def tell(self, reward, over):
        rows = (self.copies, self.agents)
        same, ends = np.ones((*rows, 1), np.float32), np.full(rows, over)
        tick = Tick(same, np.ones(rows, bool), reward.astype(np.float32), ends, np.zeros(rows, bool), same)
        return Ticks({"player": tick}, np.full(self.copies, over))

    def reset(self, seed):
        return self.tell(np.zeros((self.copies, self.agents)), False)

    def step(self, actions):
        return self.tell(self.pay(actions["player"]), True)

    def save(self):
        return {}

    def load(self, state):
        return self.reset(0)


class Rounds:
    """Agents act in turn; episodes last `length` ticks.

    Everybody sees (copy, clock, own number); every agent's reward is 100·agent + clock at each tick, so that
    each number can be recognised afterwards. The last tick truncates agent 0 and terminates the others.
    """

    simultaneous = False

    def __init__(self, copies=2, agents=3, length=7):
        self.copies, self.agents, self.length = copies, agents, length
        names = tuple(f"agent_{i}" for i in range(agents))
        self.kinds = {"player": Kind(names, Box((3,), 0.0, 100.0), Discrete(5))}
        self.played = []

    def look(self):
        n, a = np.meshgrid(np.arange(self.copies), np.arange(self.agents), indexing="ij")
        return np.stack([n, np.broadcast_to(self.clock[:, None], n.shape), a], axis=-1).astype(np.float32)

    def tell(self, reward=None, final=None, over=None):
        rows = (self.copies, self.agents)
        over = np.zeros(self.copies, bool) if over is None else over
        ends, cut = np.repeat(over[:, None], self.agents, axis=1), np.zeros(rows, bool)
        cut[:, 0] = over
        acting = np.arange(self.agents) == (self.clock % self.agents)[:, None]
        zeros = np.zeros(rows, np.float32)
        tick = Tick(
            self.look(),
            acting,
            zeros if reward is None else reward.astype(np.float32),
            ends & ~cut,
            cut,
            self.look() if final is None else final,
        )
        return Ticks({"player": tick}, over)

    def reset(self, seed):
        self.clock = np.arange(self.copies) % self.length  # copies are out of step with each other
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


class Counting:
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


class Numbered:
    """A policy that plays its agents' places within the kind, and remembers what it was shown."""

    memory_size = 0

    def __init__(self):
        self.views = []

    def act(self, view):
        self.views.append(view.observation.copy())
        return Decision(np.broadcast_to(view.columns, view.acting.shape).astype(np.int64))

    def state(self):
        return {}

    def load(self, state):
        pass


def seats(*pairs):
    return [Seat(where, policy) for where, policy in pairs]
