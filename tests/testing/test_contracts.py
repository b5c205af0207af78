"""Every world, policy and learner of the registry passes the conformance tests."""

import dataclasses

import numpy as np
import pytest

from coterie.algorithms.dqn.dqn import DQNSettings
from coterie.algorithms.maddpg.maddpg import CriticSettings, MADDPGSettings
from coterie.algorithms.replay import MemorySettings, ReplaySettings
from coterie.algorithms.sac.sac import SACSettings
from coterie.config import registry
from coterie.core import lookup
from coterie.core.group import Stateless
from coterie.core.types import Box, Decision, Dict, Discrete, Experience, Text
from coterie.lm.ask.loading import LMSettings
from coterie.policies.search.networks import PositionNetworkSettings as PositionNetworkSettings
from coterie.testing import ContractError, check_learner, check_policy, check_world
from helpers.small_worlds import ACTIONS, group_spec, spec_in
from helpers.tasks import SLOW

OBSERVATIONS = {
    "vector": Box((5,), -1.0, 1.0),
    "choice": Discrete(4),
    "picture": Box((2, 4, 4), 0, 255, "uint8"),
    "dict": Dict({"own": Box((2,), -1.0, 1.0), "others": Box((3, 2), -1.0, 1.0)}, (("others",),)),
}
SPACES = [(name, False) for name in ACTIONS] + [("discrete", True)]
WORLD_BOUND = ("expert", "guess", "minimax", "alphabeta", "search", "language", "writer", "planner", "lora")  # need one
RANDOM_WHEN_GREEDY = ("random", "expert", "guess", "minimax", "alphabeta")
OF_TEXT = ("random", "expert", "guess", "writer", "causal_lm")  # policies that play in worlds of texts
TEXT_ONLY = ("writer", "causal_lm")
ASKING = ("person",)  # one environment at a time, at a terminal: tests/policies/test_person.py
POLICIES = [name for name in registry.POLICIES if name not in ASKING]
OFF_POLICY = ("dqn", "maddpg", "sac")
DISCRETE_ONLY = ("q_network", "dqn", "planner")
CONTINUOUS_ONLY = ("gaussian", "sac")
WITH_OWN_TESTS = ("alphazero", "bc", "dagger", "sft", "at_grpo")  # they need a world, files or an advisor
LEARNERS = [name for name in registry.LEARNERS if name not in WITH_OWN_TESTS]
PLAYED_BY = {  # no real model here
    "search": {"simulations": 6, "network": PositionNetworkSettings(kind="mlp", hidden=(8,))},
    "language": {"lm": LMSettings("helpers.language:COPIER"), "temperature": 1.0},
    "writer": {"lm": LMSettings("helpers.language:FICKLE"), "temperature": 1.0},
    "planner": {"lm": LMSettings("helpers.language:COPIER"), "calibration": "none"},
    "lora": {"lm": LMSettings("helpers.lm:tiny")},
}
AT_ONCE = {
    "dqn": DQNSettings(batch_size=16, updates_per_step=0.2, replay=ReplaySettings(size=200, learning_starts=1)),
    "maddpg": MADDPGSettings(batch_size=16, updates_per_step=0.2, replay=MemorySettings(size=200, learning_starts=1)),
    "sac": SACSettings(batch_size=16, updates_per_step=0.2, replay=MemorySettings(size=200, learning_starts=1)),
}
SETTINGS_OF_SCOPES = {
    "episodic": {"gamma": 1.0},
    "interim": {"gamma": 0.0, "critic": CriticSettings(centralized=False)},
}


WORLDS = [name for name in registry.WORLDS if not name.endswith("/")]  # adapters: see tests/worlds


def build(table, name, **settings):
    return lookup.look_up(table, name), lookup.settings_type(table, name)(**settings)


def make_world(name, num_envs):
    made, settings = build(registry.WORLDS, name)
    return made(settings, num_envs)


def policy_maker(name):
    made, settings = build(registry.POLICIES, name, **PLAYED_BY.get(name, {}))
    return lambda where: made(settings, where)


def learner_maker(name, preference="individual", scope="step"):
    made, settings = build(registry.LEARNERS, name)
    settings = AT_ONCE.get(name, settings)  # learners that wait for enough experience would not learn in a check
    settings = dataclasses.replace(settings, **SETTINGS_OF_SCOPES.get(scope, {}))
    liked, liking = build(registry.PREFERENCES, preference, **{} if scope == "step" else {"scope": scope})
    taught = next(p for p, address in registry.POLICIES.items() if lookup.look_up(registry.POLICIES, p) is made.teaches)
    return lambda where: made(settings, policy_maker(taught)(where), where, liked(liking))


def is_refused(make, name, where):
    """Whether the class supports only some actions and the group has others; asserts that it then raises."""
    space = where.spaces.action
    text = isinstance(space, Text)
    if (text and name not in OF_TEXT) or (not text and name in TEXT_ONLY):
        said = "writer|texts|continuous actions"
    elif name in CONTINUOUS_ONLY and not isinstance(space, Box):
        said = "needs continuous actions.*'ppo'"
    elif name in DISCRETE_ONLY and not isinstance(space, Discrete):
        said = "needs a discrete action space.*'ppo'"
    else:
        return False
    with pytest.raises(ValueError, match=said):
        make(where)
    return True


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in WORLDS]
)
def test_worlds(name):
    check_world(lambda num_envs: make_world(name, num_envs), steps=60)


@pytest.mark.slow
@pytest.mark.parametrize("parameters", ["shared", "individual"])
@pytest.mark.parametrize(("action", "masked"), SPACES)
@pytest.mark.parametrize("name", [name for name in POLICIES if name not in WORLD_BOUND])
def test_policies(name, action, masked, parameters):
    for observation in [OBSERVATIONS[n] for n in (OBSERVATIONS if parameters == "shared" else ("vector", "dict"))]:
        where = group_spec(ACTIONS[action], observation, agents=3, parameters=parameters)
        if is_refused(policy_maker(name), name, where):
            continue
        check_policy(policy_maker(name), where, masked, deterministic_greedy=name not in RANDOM_WHEN_GREEDY)


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", POLICIES)
def test_policies_in_worlds(name, world):
    table = make_world(world, 3)
    made = lookup.look_up(registry.POLICIES, name)
    if hasattr(made, "needs") and not isinstance(table, made.needs):
        pytest.skip(f"{world} is not {made.needs.__name__}")
    if name == "minimax" and table.game.max_moves > 12:
        with pytest.raises(ValueError, match=r"at most 12 moves.*use 'alphabeta'"):
            policy_maker(name)(spec_in(table))
        return
    for agent_type, spaces in table.agent_types.items():
        for columns in (None, [len(spaces.agents) - 1]):
            where = spec_in(table, columns, agent_type=agent_type)
            if is_refused(policy_maker(name), name, where):
                continue
            check_policy(policy_maker(name), where, deterministic_greedy=name not in RANDOM_WHEN_GREEDY, world=table)


@pytest.mark.slow
@pytest.mark.parametrize("parameters", ["shared", "individual"])
@pytest.mark.parametrize(("action", "masked"), SPACES)
@pytest.mark.parametrize("name", LEARNERS)
def test_learners(name, action, masked, parameters):
    where = group_spec(ACTIONS[action], agents=3, parameters=parameters)
    if not is_refused(learner_maker(name), name, where):
        check_learner(learner_maker(name), where, masked, uses_replay=name in OFF_POLICY)


@pytest.mark.slow
@pytest.mark.parametrize("observation", OBSERVATIONS)
@pytest.mark.parametrize("name", LEARNERS)
def test_learners_of_every_observation(name, observation):
    action = ACTIONS["box" if name in CONTINUOUS_ONLY else "discrete"]
    where = group_spec(action, OBSERVATIONS[observation], agents=2, parameters="individual")
    check_learner(learner_maker(name), where, uses_replay=name in OFF_POLICY)


NEED_A_WORLD = ("reward_model", "potential_shaping", "pairwise_lm", "instruction_lm")  # tested with their world
ANYWHERE = [name for name in registry.PREFERENCES if name not in NEED_A_WORLD]


@pytest.mark.slow
@pytest.mark.parametrize("parameters", ["shared", "individual"])
@pytest.mark.parametrize("preference", ANYWHERE)
@pytest.mark.parametrize("name", LEARNERS)
def test_learners_with_every_preference(name, preference, parameters):
    risky = any(
        spec.name == "scope" for spec in dataclasses.fields(lookup.settings_type(registry.PREFERENCES, preference))
    )
    for scope in lookup.look_up(registry.LEARNERS, name).scopes:
        if risky == (scope != "step"):
            make = learner_maker(name, preference, scope)
            action = ACTIONS["box" if name in CONTINUOUS_ONLY else "discrete"]
            check_learner(make, group_spec(action, parameters=parameters), uses_replay=name in OFF_POLICY)


# The checks themselves locate each defect ---------------------------------------------------------------


class DefectivePolicy(Stateless):
    """A policy with one defect."""

    def __init__(self, defect, where):
        self.policy, self.defect, self.calls = policy_maker("network")(where), defect, 0
        self.memory_size = 2 if defect == "memory missing" else 0

    def act(self, view):
        self.calls += 1
        decision = self.policy.act(view)
        action, log_prob = decision.action, decision.log_prob
        match self.defect:
            case "shape":
                action = action[:, :1]
            case "dtype":
                action = action.astype(np.int32)
            case "bounds":
                action = action + 4
            case "illegal":
                action = view.mask.argmin(axis=-1)
            case "nan":
                log_prob = log_prob * np.nan
            case "wrong log_prob":
                log_prob = log_prob - np.float32(0.3)
            case "changes its view":
                view.observation[0] = 0
            case "own chance":
                action = view.mask.argmax(axis=-1) if self.calls % 2 else action
            case "greedy draws":
                action, log_prob = dataclasses.astuple(self.policy.act(dataclasses.replace(view, greedy=False)))[:2]
        return Decision(action, log_prob)

    def state(self):
        return {"calls": self.calls} if self.defect == "state moves" else self.policy.state()

    def load(self, state):
        if self.defect == "forgets":
            self.policy.net.out.bias.data[..., 3] += 1000


POLICY_DEFECTS = {
    "shape": "action of shape",
    "dtype": "action of type int64",
    "bounds": "legal action",
    "illegal": "legal action",
    "nan": "log_prob, got nan",
    "wrong log_prob": "log_prob.* near 1,",
    "changes its view": "the view after act",
    "own chance": "same generator",
    "greedy draws": "greedy=True, another generator",
    "memory missing": "memory .*array",
    "forgets": "saved and loaded",
    "state moves": "the state after act",
}


@pytest.mark.parametrize("defect", POLICY_DEFECTS)
def test_a_defect_of_a_policy_is_located(defect):
    with pytest.raises(ContractError, match=POLICY_DEFECTS[defect]):
        check_policy(lambda where: DefectivePolicy(defect, where), group_spec(), masked=True)


@pytest.mark.parametrize("action", ["multi-discrete", "box"])
def test_a_wrong_density_is_located(action):
    with pytest.raises(ContractError, match=r"log_prob.* near"):
        check_policy(lambda where: DefectivePolicy("wrong log_prob", where), group_spec(ACTIONS[action]))


class DefectiveLearner(Stateless):
    """A learner with one defect."""

    def __init__(self, defect, where):
        self.learner, self.defect, self.learned = learner_maker("ppo")(where), defect, 0
        self.policy = self.learner.policy

    def learn(self, own: Experience, joint, random):
        self.learned += 1
        match self.defect:
            case "does nothing":
                return {"decisions": 0.0}
            case "own chance":
                random = np.random.default_rng()
            case "changes experience":
                own.reward[0] += 1
            case "reads idle rows":
                random = np.random.default_rng(int(abs(own.observation.sum()) * 1e6))
            case "learns from nothing" if not own.active.any():
                self.policy.net.out.bias.data += 1
        metrics = self.learner.learn(own, joint, random)
        if self.defect == "nan":
            metrics["kl"] = float("nan")
        return metrics

    def state(self):
        return {} if self.defect == "optimiser unsaved" else self.learner.state()

    def load(self, state):
        if state:
            self.learner.load(state)


LEARNER_DEFECTS = {
    "does nothing": "a changed policy",
    "own chance": "other values in idle rows",
    "changes experience": "the experience after learn",
    "reads idle rows": "other values in idle rows",
    "learns from nothing": "experience without decisions",
    "nan": "metric 'kl'",
    "optimiser unsaved": "learn after loading into a new learner",
}


@pytest.mark.parametrize("defect", LEARNER_DEFECTS)
def test_a_defect_of_a_learner_is_located(defect):
    with pytest.raises(ContractError, match=LEARNER_DEFECTS[defect]):
        check_learner(lambda where: DefectiveLearner(defect, where), group_spec())
