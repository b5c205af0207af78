"""check_world passes on a correct world and locates the defect of each broken one."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from coterie.core.sampling import random_actions
from coterie.core.types import AgentStep, AgentType, Box, CoterieError, Dict, Discrete, MultiDiscrete, TimeStep
from coterie.core.world import World
from coterie.testing import ContractError, check_world

MULTIPLIER, INCREMENT = np.uint64(6364136223846793005), np.uint64(1442695040888963407)


class Corridor(World):
    """Two runners and a guard; `short` ends after 3 steps, the others after 5. A named defect breaks it."""

    def __init__(self, num_envs: int, defect: str = "") -> None:
        self.num_envs, self.defect = num_envs, defect
        if defect != "simultaneous missing":
            self.simultaneous = True
        self.state_size = {"state_size negative": -1, "state missing": 4}.get(defect, 0)
        guards = {"names repeat": ("short",), "no agents": ()}.get(defect, ("guard",))
        seen = Dict({"clock": Discrete(6), "noise": Box((1,), 0.0, 1.0)})
        self.agent_types = {
            "runner": AgentType(("short", "long"), Box((2,), 0.0, 1.0), Discrete(3)),
            "guard": AgentType(guards, seen, MultiDiscrete((2, 3))),
        }
        if defect == "no agent types":
            self.agent_types = {}
        if defect == "half a capability":
            self.pause = lambda copies: None
        if defect == "copies":
            self.num_envs = num_envs + 1
        self.clock, self.position = np.zeros(num_envs, np.int64), np.zeros(num_envs, np.int64)
        self.random = np.zeros(num_envs, np.uint64)

    def reset(self, seed):
        self.clock[:] = 0
        if self.defect != "reset forgets":
            self.position[:] = 0
        own = self.num_envs if self.defect == "number of copies" else 0
        self.random = np.arange(self.num_envs, dtype=np.uint64) * MULTIPLIER + np.uint64(seed + own)
        return self.timestep(earned=float(self.defect == "reset rewards"))

    def step(self, actions):
        runner, guard = actions["runner"], actions["guard"]
        self.random = self.random * MULTIPLIER + INCREMENT
        short = runner[:, 0] if self.defect == "idle counts" else np.where(self.clock < 3, runner[:, 0], 0)
        self.position[:] = (self.position + short + runner[:, 1] + guard[:, 0].sum(-1)) % 8
        self.clock += 1
        if self.defect == "coupled":
            self.position[1:] = (self.position[1:] + self.position[0]) % 8
        if self.defect == "actions changed":
            runner[:] = 7
        last, final, earned = self.clock.copy(), self.observe(), self.position.copy()
        over = last == 5
        self.clock[over], self.position[over] = 0, 0
        return self.timestep(last, final, earned)

    def observe(self):
        noise = (self.random >> np.uint64(40)).astype(np.float32) / 2**24
        if self.defect == "chance":
            noise[:] = np.random.default_rng().random()
        runner = np.stack([self.position / np.float32(8), noise], -1).astype(np.float32)
        guard = {"clock": self.clock[:, None].copy(), "noise": noise[:, None, None]}
        return np.stack([runner, runner], 1), guard

    def timestep(self, last=None, final=None, earned=0.0):
        """`last` counts the steps of the episode before a reset; None after `reset` and `load`."""
        n, runner, guard = self.num_envs, *self.observe()
        clock = self.clock if last is None else last
        reward = np.broadcast_to(np.reshape(earned, (-1, 1)), (n, 2)).astype(np.float32)
        over, never = clock == 5, np.zeros(n, bool)
        done = (clock == 3) & (last is not None)
        final_runner, final_guard = final or (runner * np.nan, guard)  # NaN where it is not defined
        acting = np.stack([self.clock < 3, ~never], 1)
        ends = np.stack([done, never], 1), np.stack([never, over], 1)
        mask = np.ones((n, 2, 3), bool)
        one = AgentStep(runner, acting, reward, *ends, final_runner, mask)
        two = AgentStep(guard, ~never[:, None], reward[:, :1].copy(), over[:, None].copy(), never[:, None], final_guard)
        timestep = TimeStep({"runner": one, "guard": two}, over, over & (earned == 0))
        return DEFECTS.get(self.defect, lambda timestep, clock: timestep)(timestep, clock)

    def save(self):
        state = {"clock": self.clock, "position": self.position, "random": self.random}
        if self.defect == "random unsaved":
            del state["random"]
        return state if self.defect == "save aliases" else {key: array.copy() for key, array in state.items()}

    def load(self, state):
        self.random = state.get("random", self.random)
        self.clock, self.position = state["clock"].copy(), state["position"].copy()
        if self.defect == "load aliases":
            self.position = state["position"]
        return self.timestep(earned=float(self.defect == "load rewards"))


def runner_with(**make: Callable[[AgentStep], object]) -> Callable[[TimeStep, np.ndarray], TimeStep]:
    """A defect that replaces fields of the runners' `AgentStep`."""

    def break_timestep(timestep: TimeStep, clock: np.ndarray) -> TimeStep:
        agent_step = timestep.agent_types["runner"]
        changed = replace(agent_step, **{field: function(agent_step) for field, function in make.items()})
        return replace(timestep, agent_types={**timestep.agent_types, "runner": changed})

    return break_timestep


def writing(field: str, value: object, at: int, agent: int = 1) -> Callable[[TimeStep, np.ndarray], TimeStep]:
    """A defect that overwrites a runner's field in copy 1 at step `at` of an episode."""

    def break_timestep(timestep: TimeStep, clock: np.ndarray) -> TimeStep:
        if len(clock) > 1 and clock[1] == at:
            getattr(timestep.agent_types["runner"], field)[1, agent] = value
        return timestep

    return break_timestep


def nobody_acts(timestep: TimeStep, clock: np.ndarray) -> TimeStep:
    for agent_step in timestep.agent_types.values():
        agent_step.acting[clock == 2] = False
    return timestep


def early_reset(timestep: TimeStep, clock: np.ndarray) -> TimeStep:
    return replace(timestep, ended=timestep.ended | (clock == 4))


def masked_guard(timestep: TimeStep, clock: np.ndarray) -> TimeStep:
    guard = replace(timestep.agent_types["guard"], mask=np.ones((len(clock), 1, 5), bool))
    return replace(timestep, agent_types={**timestep.agent_types, "guard": guard})


def blind_guard(timestep: TimeStep, clock: np.ndarray) -> TimeStep:
    guard = replace(
        timestep.agent_types["guard"], observation={"clock": timestep.agent_types["guard"].observation["clock"]}
    )
    return replace(timestep, agent_types={**timestep.agent_types, "guard": guard})


def late_clock(timestep: TimeStep, clock: np.ndarray) -> TimeStep:
    timestep.agent_types["guard"].observation["clock"][clock == 2] = 6
    return timestep


DEFECTS: dict[str, Callable[[TimeStep, np.ndarray], TimeStep]] = {
    "observation float64": runner_with(observation=lambda t: t.observation.astype(np.float64)),
    "observation shape": runner_with(observation=lambda t: t.observation[..., :1]),
    "observation list": runner_with(observation=lambda t: t.observation.tolist()),
    "reward float64": runner_with(reward=lambda t: t.reward.astype(np.float64)),
    "acting int": runner_with(acting=lambda t: t.acting.astype(np.int64)),
    "mask shape": runner_with(mask=lambda t: t.mask[..., :2]),
    "mask of vectors": masked_guard,
    "out of bounds": writing("observation", 1.5, at=2),
    "observation nan": writing("observation", np.nan, at=2),
    "final out of bounds": writing("final_observation", -1, at=5),
    "discrete out of bounds": late_clock,
    "missing entry": blind_guard,
    "reward nan": writing("reward", np.nan, at=2),
    "mask empty": writing("mask", False, at=2),
    "both ends": writing("terminated", True, at=5),
    "ends twice": writing("terminated", True, at=4, agent=0),
    "acts after end": writing("acting", True, at=4, agent=0),
    "idle": writing("acting", False, at=1, agent=0),
    "nobody acts": nobody_acts,
    "reset early": early_reset,
    "ended int": lambda timestep, clock: replace(timestep, ended=timestep.ended.astype(int)),
    "success float": lambda timestep, clock: replace(timestep, success=timestep.ended * 1.0),
    "state undeclared": lambda timestep, clock: replace(timestep, state=np.zeros((len(clock), 4), np.float32)),
    "agent type missing": lambda timestep, clock: replace(
        timestep, agent_types={"runner": timestep.agent_types["runner"]}
    ),
}

LONG = "step {}, agent type 'runner', agent 'long', copy 1"
SHORT = "step {}, agent type 'runner', agent 'short', copy 1"
RUNNER, GUARD = "step 0, agent type 'runner': ", "step 0, agent type 'guard': "
MESSAGES = {  # patterns: the location, the field, the expected and actual values
    "no agent types": r"world: .*agent type, got none",
    "no agents": r"agent type 'guard': .*agent, got none",
    "names repeat": r"world: .*names.* got \['short', 'long', 'short'\]",
    "copies": r"world: expected 3 copies, got 4",
    "half a capability": r"capabilities: expected number_episodes, pause, .*got pause",
    "simultaneous missing": "Corridor must set simultaneous",
    "state_size negative": "state_size.*got -1",
    "state missing": "step 0: .*state.*NoneType",
    "state undeclared": "step 0: .*state_size is 0",
    "agent type missing": r"step 0: expected .*\['runner', 'guard'\], got \['runner'\]",
    "observation float64": RUNNER + r"expected observation of type float32, got float64",
    "observation shape": RUNNER + r"expected observation of shape \(3, 2, 2\), got \(3, 2, 1\)",
    "observation list": RUNNER + r"expected observation .*array, got list",
    "reward float64": RUNNER + r"expected reward of type float32, got float64",
    "acting int": RUNNER + r"expected acting of type bool, got int64",
    "mask shape": RUNNER + r"expected mask of shape \(3, 2, 3\), got \(3, 2, 2\)",
    "mask of vectors": GUARD + r"expected no mask .*MultiDiscrete\(sizes=\(2, 3\)\)",
    "ended int": r"step 0: expected ended of type bool, got int64",
    "success float": r"step 0: expected success of type bool, got float64",
    "missing entry": r"agent type 'guard': expected observation .*\['clock', 'noise'\], got \['clock'\]",
    "out of bounds": LONG.format(2)
    + r", entry \[0\]: expected observation inside Box\(.* \(or wider bounds there\), got",
    "observation nan": LONG.format(2) + r", entry \[0\]: .*observation, got nan",
    "final out of bounds": LONG.format(5) + r", entry \[0\]: expected final_observation inside Box\(",
    "discrete out of bounds": r"agent 'guard', copy 0: expected observation clock inside Discrete\(n=6\), got 6",
    "reward nan": LONG.format(2) + r": .*reward, got nan",
    "mask empty": LONG.format(2) + r": .*mask",
    "both ends": LONG.format(5) + r": .*terminated or truncated, got both",
    "ends twice": SHORT.format(4) + r": .*end once",
    "acts after end": SHORT.format(4) + r": .*idle after its end, got acting",
    "idle": SHORT.format(1) + r": .*simultaneous world, got idle",
    "nobody acts": r"step 2, copy 0: .*acting",
    "reset early": r"step 4, agent type 'runner', agent 'long', copy 0: .*end before the copy is reset",
    "actions changed": r"step 1, agent type 'runner': .*actions unchanged",
    "reset rewards": r"reset: step 0, agent type 'runner', agent 'short', copy 0: expected reward 0.0, got 1.0",
    "reset forgets": r"same seed, used world: step 0, agent type 'runner', agent 'short', copy ",
    "chance": r"same seed, new world: step 0, agent type 'runner', agent 'short', copy 0, entry \[1\]: ",
    "idle counts": r"zeros in idle rows: step ",
    "random unsaved": r"load, same world: step 21, agent type 'runner', agent 'short', copy 0, entry \[1\]: ",
    "save aliases": r"load, same world: step 21, agent type ",
    "load aliases": r"load, new world: step 21, agent type ",
    "load rewards": r"load, same world: step 21, agent type 'runner', agent 'short', copy 0: expected reward 0.0",
    "number of copies": r"copy 0 alone: step 1, agent type 'runner', agent 'short', copy 0, entry \[1\]: ",
    "coupled": r"other actions in copy 0: step ",
}


def test_a_correct_world_passes():
    check_world(Corridor, steps=43)


@pytest.mark.parametrize("seed", range(3))
def test_any_seed_passes(seed):
    check_world(Corridor, steps=20, seed=seed)


@pytest.mark.parametrize("defect", MESSAGES)
def test_a_defect_is_located(defect):
    with pytest.raises(ContractError, match=MESSAGES[defect]):
        check_world(lambda num_envs: Corridor(num_envs, defect), steps=43)


def test_every_defect_has_a_message():
    assert set(DEFECTS) <= set(MESSAGES)


def test_the_command_line_can_print_the_error():
    assert issubclass(ContractError, CoterieError)


def test_random_actions_cover_exactly_the_legal_actions():
    rows = (500, 2)
    mask = np.zeros((*rows, 4), bool)
    mask[:, 0, [1, 3]] = True  # the second agent has no legal action, as an idle agent may
    agent_types = {
        "masked": AgentType(("a", "b"), Discrete(1), Discrete(4)),
        "free": AgentType(("c", "d"), Discrete(1), Discrete(3)),
        "vector": AgentType(("e", "f"), Discrete(1), MultiDiscrete((2, 5))),
        "real": AgentType(("g", "h"), Discrete(1), Box((2,), np.array([0.0, -np.inf]), np.array([100.0, np.inf]))),
    }
    blank = AgentStep(np.zeros(rows, int), *[np.zeros(rows, bool)] * 4, np.zeros(rows, int))
    timestep = TimeStep(
        {name: replace(blank, mask=mask if name == "masked" else None) for name in agent_types}, np.zeros(500)
    )
    actions = random_actions(timestep, agent_types, np.random.default_rng(0))
    assert set(actions["masked"][:, 0].tolist()) == {1, 3}
    assert set(actions["masked"][:, 1].tolist()) == {0}
    assert set(actions["free"].ravel().tolist()) == {0, 1, 2}
    assert set(map(tuple, actions["vector"].reshape(-1, 2).tolist())) == {(i, j) for i in range(2) for j in range(5)}
    assert {actions[name].dtype for name in ("masked", "free", "vector")} == {np.dtype(np.int64)}
    assert actions["real"].shape == (500, 2, 2)
    assert actions["real"].dtype == np.float32
    low, high = actions["real"].min((0, 1)), actions["real"].max((0, 1))
    assert ((low >= [0, -10]) & (low < [5, -9]) & (high <= [100, 10]) & (high > [95, 9])).all()
    again = random_actions(timestep, agent_types, np.random.default_rng(0))
    assert all(np.array_equal(actions[name], again[name]) for name in agent_types)


def test_a_world_whose_load_returns_nothing_is_named():
    class Silent(Corridor):
        def load(self, state):
            super().load(state)

    with pytest.raises(ContractError, match=r"load, same world: expected a TimeStep.*, got NoneType"):
        check_world(Silent)
