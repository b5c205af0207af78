"""Shipped experiments learn what they are for, within their own number of steps or half of it.

The README's first example, which is trained in `tests/test_docs.py`, is that of `gridworld-race`.
"""

import pytest

import coterie

QUIET = ["train.video=false", "train.tensorboard=false"]

pytestmark = pytest.mark.slow


def scores(name, tmp_path, *words):
    """The summary's evaluation, and the expert's on the same seeds if there is one."""
    summary = coterie.train(name, [*QUIET, *words], out=tmp_path / "run", quiet=True).summary()
    (group,) = summary["evaluation"]["groups"]

    def brief(result):
        return result["groups"][group] | {"success_rate": result["success_rate"]}

    return brief(summary["evaluation"]), {name: brief(result) for name, result in summary["baselines"].items()}


# In 30,000 steps DQN ends between 457 and 500, depending on the processor, which decides the last digits.
@pytest.mark.parametrize(("name", "steps", "least"), [("cartpole-ppo", 100_000, 475), ("cartpole-dqn", 30_000, 400)])
def test_cartpole_is_learned(name, steps, least, tmp_path):
    found, others = scores(name, tmp_path, f"train.total_steps={steps}")
    assert found["return_mean"] >= least
    assert others["random"]["return_mean"] < 30


def test_a_small_grid_is_walked_straight(tmp_path):
    found, others = scores("gridworld-meet", tmp_path, "train.total_steps=250000")
    assert found["success_rate"] >= 0.99
    assert found["length_mean"] <= 1.25 * others["expert"]["length_mean"]


def test_a_team_collects_nearly_as_well_as_the_expert(tmp_path):
    found, others = scores("gridworld-cooperative", tmp_path, "train.total_steps=500000")
    assert found["success_rate"] >= 0.9
    assert found["return_mean"] >= 0.9 * others["expert"]["return_mean"]
    assert others["random"]["return_mean"] < 0.6 * found["return_mean"]


def test_action_values_collect_on_a_small_grid(tmp_path):
    small = ["world.grid_size=5", "world.num_targets=2", "world.max_steps=50", "groups.team.policy.hidden=[64,64]"]
    found, others = scores("gridworld-iql", tmp_path, *small, "train.total_steps=150000")
    assert found["success_rate"] >= 0.9
    assert found["return_mean"] >= 0.9 * others["expert"]["return_mean"]
    assert others["random"]["return_mean"] < 0.75 * found["return_mean"]


def test_spread_improves_on_random_play(tmp_path):
    found, others = scores("spread-mappo", tmp_path, "train.total_steps=150000", "train.evaluate_every=1000")
    assert found["return_mean"] > 0.75 * others["random"]["return_mean"]  # both are negative
