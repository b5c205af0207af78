"""Traces of decisions are stacked unread, carried over rollouts and saved; counters of processes are merged."""

import numpy as np
import pytest

import coterie
from coterie.core.group import Actor, Policy
from coterie.core.types import Decision, Distinct, Mean, as_metrics, counted_since, merge_counters
from coterie.policies.scripted import RandomPolicy, RandomSettings
from coterie.training.runner import Runner
from coterie.worlds.boards.tictactoe import Tictactoe, TictactoeSettings
from helpers.small_worlds import spec_in


class Tracing(Policy):
    """Random play whose trace numbers its calls."""

    def __init__(self, group_spec):
        self.random, self.calls = RandomPolicy(RandomSettings(), group_spec), 0

    def act(self, view):
        self.calls += 1
        decision = self.random.act(view)
        return Decision(
            decision.action, decision.log_prob, trace={"call": np.full((*view.acting.shape, 2), self.calls)}
        )


def runner():
    world = Tictactoe(TictactoeSettings(), 3)
    group_spec = spec_in(world)
    return Runner(world, [Actor(group_spec, Tracing(group_spec))], seed=0)


def test_traces_are_stacked_and_carried_over():
    one = runner()
    (first,) = one.play(5, 1).decisions.values()
    assert first.trace["call"].shape == (6, 3, 2, 2)
    assert (first.trace["call"][1:, 0, 0, 0] == [1, 2, 3, 4, 5]).all()
    saved = one.save()
    (second,) = one.play(5, 2).decisions.values()
    opened = second.valid[0]
    assert opened.any()  # pending decisions open the next rollout, with the trace of the call that took them
    assert set(second.trace["call"][0][opened].ravel().tolist()) <= {4, 5}
    again = runner()
    again.load(saved)
    again.actors[0].policy.calls = 5
    (resumed,) = again.play(5, 2).decisions.values()
    np.testing.assert_array_equal(resumed.trace["call"], second.trace["call"])


def test_counts_add_and_means_are_weighted():
    merged = merge_counters([{"calls": 2.0, "good": Mean(1, 4)}, {"calls": 3.0, "good": Mean(3, 4), "new": Mean(0, 0)}])
    assert as_metrics(merged) == {"calls": 5.0, "good": 0.5}
    with pytest.raises(TypeError, match="'calls'"):
        merge_counters([{"calls": 2.0}, {"calls": Mean(1, 1)}])
    met = merge_counters([{"texts": Distinct(frozenset("ab"))}, {"texts": Distinct(frozenset("bc"))}])
    assert as_metrics(met) == {"texts": 3.0}
    assert as_metrics(counted_since({"texts": Distinct(frozenset("ab"))}, met)) == {"texts": 1.0}


@pytest.mark.slow
def test_advice_counted_in_child_processes_is_recorded(tmp_path, forked):
    words = ["groups.team.advisor=expert", "train.num_envs=4", "train.rollout_steps=8", "train.total_steps=96"]
    words += ["train.shards=2", "train.evaluate_episodes=2", "train.video=false", "train.tensorboard=false"]
    last = []
    for workers in (0, 2):
        run = coterie.train("gridworld-meet", [*words, f"train.workers={workers}"], tmp_path / str(workers), quiet=True)
        last.append({k: v for k, v in run.metrics()[-1].items() if k.startswith("team/advice/")})
    assert last[0]["team/advice/asked"] == 192  # 96 steps of two agents
    assert last[1] == pytest.approx(last[0])
