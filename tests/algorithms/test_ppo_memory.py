"""PPO with memory: sequences as they were played, bootstrapping, exact resuming, and a game of recall."""

import dataclasses

import numpy as np
import pytest
import torch

from coterie.core.decisions import Finals
from coterie.testing import check_learner, check_policy
from coterie.testing.comparison import expect_equal, leaves
from coterie.training.runner import Runner
from coterie.worlds.boards.tictactoe import Tictactoe, TictactoeSettings
from coterie.worlds.gridworld.world import Gridworld, GridworldSettings
from helpers.ppo import learn, make_learner, random_rollout, values_of, watch
from helpers.small_worlds import (
    ACTIONS,
    Leavers,
    Recall,
    Rounds,
    actors,
    generator,
    group_spec,
    joint,
    network,
    spec_in,
)

WORLDS = {
    "recall": lambda: Recall(num_envs=3, agents=2, length=4),
    "race": lambda: Gridworld(GridworldSettings(mode="race", grid_size=4, max_steps=9), 3),  # some arrive early
    "turns": lambda: Rounds(num_envs=3, agents=3, length=7),
    "leavers": lambda: Leavers(ACTIONS["discrete"]),
    "leavers in turn": lambda: Leavers(ACTIONS["discrete"], turns=True),
    "tictactoe": lambda: Tictactoe(TictactoeSettings(first="random"), 3),
}


def remembering(world, parameters="shared", family="beta", **settings):
    """A learner with memory and weights large enough for it to matter, and a runner for it."""
    where = spec_in(world, parameters=parameters)
    policy = network(where, memory=4, continuous=family)
    for i, parameter in enumerate(policy.net.parameters()):
        parameter.data += 0.5 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(i))
    one = make_learner(where, policy=policy, **{"learning_rate": 0.01} | settings)
    return one, Runner(world, actors((where, policy)), seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("parameters", ["shared", "individual"])
@pytest.mark.parametrize("world", WORLDS)
def test_sequences_are_replayed_as_they_were_played(world, parameters):
    _, runner = remembering(WORLDS[world](), parameters)
    for iteration, steps in enumerate((5, 6, 3, 8)):  # openings, ends and resets in all places
        own = runner.play(steps, iteration).decisions["team"]
        assert own.memory[0].any() or iteration != 1
        twin, _ = remembering(WORLDS[world](), parameters, minibatches=1)
        seen = watch(twin)
        learn(twin, own)
        given = torch.from_numpy(seen[0].part.weight).flatten(1) > 0
        assert torch.allclose(seen[0].ratio[given], torch.ones(()), atol=1e-4), iteration
        assert int(given.sum()) == own.valid.sum()
        assert len(seen) == 4


HEADS = [("discrete", "beta"), ("multi-discrete", "beta"), ("box", "beta"), ("box", "gaussian")]


@pytest.mark.slow
@pytest.mark.parametrize("turns", [False, True])
@pytest.mark.parametrize("parameters", ["shared", "individual"])
@pytest.mark.parametrize(("action", "family"), HEADS)
def test_who_left_in_an_earlier_rollout_returns_without_memory(action, family, parameters, turns):
    def make():
        return remembering(Leavers(ACTIONS[action], turns=turns), parameters, family, minibatches=1)

    _, runner = make()
    for iteration, steps in enumerate((3, 4, 2, 5, 1, 1, 6)):
        own = runner.play(steps, iteration).decisions["team"]
        twin, _ = make()
        seen = watch(twin)
        learn(twin, own)
        if seen:
            given = torch.from_numpy(seen[0].part.weight).flatten(1) > 0
            assert torch.allclose(seen[0].ratio[given], torch.ones(()), atol=1e-4), iteration


@pytest.mark.parametrize("steps", [4, 5])
def test_who_leaves_by_truncation_is_valued_with_what_it_remembered(steps):
    one, runner = remembering(Leavers(ACTIONS["discrete"], length=9))
    own = runner.play(steps, 0).decisions["team"]
    t = 3  # copy 0 shows tick 4: agent 1 leaves, in the rollout's last row or before
    assert own.truncated[t, 0, 1]
    view = dataclasses.replace(runner.view(runner.actors[0]), observation=own.observation[t], memory=own.memory[t])
    remembered = one.policy.act(view).memory[0, 1]
    assert np.abs(remembered).max() > 0.01
    assert np.allclose(own.memory[t + 1, 0, 1], remembered, atol=1e-6)
    assert not runner.memories["team"][0, 1].any()


def test_every_sequence_is_used_once_a_pass():
    one, runner = remembering(Recall(num_envs=5, agents=2), epochs=2, minibatches=4)
    own = runner.play(6, 0).decisions["team"]
    seen = watch(one)
    metrics = learn(one, own)
    assert [part.actor_input.shape[1:3] for part, *_ in seen] == [(3, 6), (3, 6), (2, 6), (2, 6)] * 2
    assert metrics["decisions"] == own.valid.sum()
    said = np.concatenate([part.log_prob[0] for part, *_ in seen[:4]])
    assert sorted(map(tuple, said)) == sorted(map(tuple, own.log_prob.reshape(6, -1).T))


@pytest.mark.slow
@pytest.mark.parametrize("parameters", ["shared", "individual"])
@pytest.mark.parametrize("action", ACTIONS)
def test_contracts_hold_with_memory(action, parameters):
    where = group_spec(ACTIONS[action], agents=3, parameters=parameters)
    check_policy(lambda where: network(where, memory=4), where)
    check_learner(lambda where: make_learner(where, policy=network(where, memory=4)), where)


@pytest.mark.parametrize("parameters", ["shared", "individual"])
def test_truncation_bootstraps_from_what_was_remembered_then(parameters):
    one, runner = remembering(Recall(num_envs=3, agents=2, length=4, truncates=True), parameters)
    own = runner.play(9, 0).decisions["team"]
    values = values_of(one, own.observation, own.memory)
    found = one.next_values(own, None, values)
    assert len(own.finals.at) == 6
    assert own.finals.memory.shape == (6, 2, 4)
    final = values_of(one, own.finals.observation, own.finals.memory)
    for k, (t, n) in enumerate(own.finals.at):
        assert found[t, n].tolist() == pytest.approx(final[k].tolist(), abs=1e-6)
        assert not own.memory[t + 1, n].any()  # the next episode remembers nothing
        view = dataclasses.replace(runner.view(runner.actors[0]), observation=own.observation[t], memory=own.memory[t])
        assert np.allclose(own.finals.memory[k], one.policy.act(view).memory[n], atol=1e-6)
    forgotten = own.finals._replace(memory=np.zeros_like(own.finals.memory))
    other = one.next_values(dataclasses.replace(own, finals=forgotten), None, values)
    assert np.abs(other - found).max() > 1e-3


def test_a_rollouts_last_value_sees_what_is_remembered_then():
    one, runner = remembering(Recall(num_envs=3, agents=1, length=50))
    own = runner.play(5, 0).decisions["team"]
    assert np.array_equal(own.memory[5], runner.memories["team"])
    seen = watch(one)
    learn(one, own)
    blind = dataclasses.replace(own, memory=np.concatenate([own.memory[:5], 0 * own.memory[5:]]))
    other = remembering(Recall(num_envs=3, agents=1, length=50))[0]
    also = watch(other)
    learn(other, blind)
    assert not np.allclose(np.sort(seen[0].part.advantage), np.sort(also[0].part.advantage), atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "parameters"), [*((world, "shared") for world in WORLDS), (next(iter(WORLDS)), "individual")]
)
def test_a_loaded_run_goes_on_exactly(world, parameters):
    def go_on(one, runner, iterations):
        said = []
        for i in iterations:
            own = runner.play(5, i).decisions["team"]
            said.append((own, one.learn(own, joint(own, i / 10), generator(i))))
        return said

    one, runner = remembering(WORLDS[world](), parameters)
    go_on(one, runner, range(2))
    state = {"runner": runner.save(), "learner": one.state(), "policy": one.policy.state()}
    kept = leaves(state)
    rest = go_on(one, runner, range(2, 5))
    expect_equal("what was saved", kept, state)
    again, used = remembering(WORLDS[world](), parameters)
    go_on(again, used, range(1))
    used.load(state["runner"])
    again.load(state["learner"])
    again.policy.load(state["policy"])
    for (own, said), (other, also) in zip(rest, go_on(again, used, range(2, 5)), strict=True):
        expect_equal("experience", own, other)
        assert said == also
    expect_equal("weights", one.policy.state(), again.policy.state())
    expect_equal("learner", one.state(), again.state())


def test_finals_of_an_experience_without_memory_have_none():
    one = make_learner()
    own = random_rollout(one)
    assert isinstance(own.finals, Finals)
    assert own.memory is own.finals.memory is None


# A game ------------------------------------------------------------------------------------------------


def success(memory, agents=1, parameters="shared", iterations=30, seed=0):
    """The share of cues recalled by greedy play after training."""
    world = Recall(num_envs=64, agents=agents, length=5)
    where = spec_in(world, parameters=parameters, seed=seed)
    policy = network(where, memory=memory)
    one = make_learner(where, policy=policy, learning_rate=0.02, learning_rate_schedule="constant")
    runner = Runner(world, actors((where, policy)), seed=seed)
    for i in range(iterations):
        own = runner.play(10, i).decisions["team"]
        one.learn(own, joint(own, i / iterations), generator(i))
    found = Runner(Recall(num_envs=200, agents=agents, length=5), actors((where, policy)), seed=1, greedy=True)
    return float(found.play(5, 0).episodes.returns["team"].mean())


@pytest.mark.slow
@pytest.mark.parametrize("parameters", ["shared", "individual"])
def test_agents_recall_their_own_cues(parameters):
    assert success(memory=16, agents=2, parameters=parameters) > 0.9


@pytest.mark.slow
def test_without_memory_no_cue_is_recalled():
    assert success(memory=0, agents=2, iterations=60) < 0.6
