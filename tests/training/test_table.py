"""The same from Python: train, load, ask an agent."""

import shutil

import numpy as np
import pytest

import coterie
from coterie.config.schema import ConfigError
from coterie.core.types import CoterieError, map_tree
from coterie.runs import checkpoint
from coterie.runs.run import Run
from coterie.training import build
from coterie.training.runner import Runner
from helpers.run import DUEL, GRID, train, written


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    base = tmp_path_factory.mktemp("runs")
    words = ["train.total_steps=64", "groups.team.learner.learning_rate=0.03"]
    return {
        "shared": train(base / "shared", *words),
        "individual": train(base / "individual", *words, "groups.team.parameters=individual"),
        "dict": train(base / "dict", *words, "world.observation=dict", "groups.team.policy.encoder=set"),
        "image": train(base / "image", *words, "world.observation=image"),
        "duel": train(base / "duel", experiment=written(base / "duel.yaml", DUEL)),
    }


def test_the_readme_in_a_few_lines(tmp_path):
    run = coterie.train(
        "gridworld-cooperative", [*GRID, "seed=1", "train.total_steps=64"], out=tmp_path / "a", quiet=True
    )
    assert isinstance(run, Run)
    assert run.path == tmp_path / "a"
    table = coterie.load(str(tmp_path / "a"), checkpoint="best")
    assert table.config == run.config()
    world = build.build_world(table.config.world, 5)
    observations = world.reset(0).agent_types["agent"].observation[:, 0]
    actions = table.act("agent_0", observations, greedy=True)
    assert actions.shape == (5,)
    assert actions.dtype == np.int64
    assert table.env_steps == run.summary()["best_step"]


@pytest.mark.slow
def test_a_single_override_may_be_a_string(tmp_path):
    run = coterie.train("gridworld-cooperative", [*GRID, "train.total_steps=32"], out=tmp_path / "a", quiet=True)
    assert coterie.resume(run.path, "train.total_steps=64", quiet=True)
    assert run.summary()["env_steps"] == 64
    assert coterie.load(run.path, overrides="world.max_steps=3").config.world.settings.max_steps == 3
    with pytest.raises(ConfigError, match="'seed': expected key=value"):
        coterie.train("gridworld-cooperative", "seed", out=tmp_path / "b")


def test_dir_shows_the_api():
    assert dir(coterie) == sorted([*coterie.__all__, "__version__"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shared", "individual", "dict", "image", "duel"])
def test_an_agent_asked_alone_acts_as_it_does_in_the_world(runs, name):
    table = coterie.load(runs[name].path, checkpoint="last")
    world = build.build_world(table.config.world, 6)
    runner = Runner(world, [g.actor for g in table.groups], seed=3, greedy=True)
    runner.begin(0)
    for _ in range(5):
        expected, asked = {}, {}
        for group in table.groups:
            group_spec = group.actor.group_spec
            view = runner.view(group.actor)
            together = group.policy.act(view).action
            for i, agent in enumerate(group_spec.agents):
                seen = map_tree(lambda a, i=i: a[:, i], view.observation)
                mask = None if view.mask is None else view.mask[:, i]
                acting = view.acting[:, i]
                expected[agent] = together[acting, i].tolist()
                asked[agent] = table.act(agent, seen, mask=mask)[acting].tolist()
        assert asked == expected
        runner.step()


def test_individual_agents_answer_differently(runs):
    table = coterie.load(runs["individual"].path, checkpoint="last")
    state = table.groups[0].policy.state()
    state["net"] = {k: v.copy() for k, v in state["net"].items()}
    observations = build.build_world(table.config.world, 64).reset(0).agent_types["agent"].observation[:, 0]
    shown = [table.act(agent, observations, greedy=False).tolist() for agent in ("agent_0", "agent_1")]
    assert shown[0] != shown[1]


def test_sampling_is_seeded(runs):
    table = coterie.load(runs["shared"].path)
    observations = build.build_world(table.config.world, 64).reset(0).agent_types["agent"].observation[:, 0]
    draws = [table.act("agent_0", observations, greedy=False, seed=s).tolist() for s in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]


def test_every_call_draws_anew_and_a_seed_begins_again(runs):
    table, other = coterie.load(runs["shared"].path), coterie.load(runs["shared"].path)
    observations = build.build_world(table.config.world, 64).reset(0).agent_types["agent"].observation[:, 0]

    def draw(asked, agent="agent_0"):
        return asked.act(agent, observations, greedy=False).tolist()

    first, second = draw(table), draw(table)
    assert first != second
    assert draw(table, "agent_1") not in (first, second)
    assert [draw(other), draw(other)] == [first, second]  # another table of the same run starts alike
    table.reset()
    assert draw(table) not in (first, second)  # it empties memories only
    table.reset(seed=5)
    again = draw(table)
    assert again != draw(table)
    table.reset(seed=5)
    assert draw(table) == again


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory):
    words = ["train.total_steps=64", "groups.team.learner.learning_rate=0.03", "groups.team.policy.memory=6"]
    return train(tmp_path_factory.mktemp("recurrent") / "run", *words)


def test_a_recurrent_policy_asked_alone_acts_as_it_does_in_the_world(recurrent):
    """Also over the ends of episodes, after which it remembers nothing."""
    table = coterie.load(recurrent.path, checkpoint="last")
    world = build.build_world(table.config.world, 6)
    runner = Runner(world, [g.actor for g in table.groups], seed=3, greedy=True)
    runner.begin(0)
    memories = []
    for _ in range(30):
        view = runner.view(table.groups[0].actor)
        expected = table.groups[0].policy.act(view)
        for i in range(2):
            np.testing.assert_array_equal(table.act(f"agent_{i}", view.observation[:, i]), expected.action[:, i])
            np.testing.assert_allclose(table._memory[f"agent_{i}"][:, 0], expected.memory[:, i], atol=1e-5)
        memories.append(expected.memory.copy())
        runner.step()
        table.reset(runner.timestep.ended)
    assert runner.tally.drain().length.size > 6  # episodes ended on the way
    assert np.abs(memories[1] - memories[0]).max() > 0


def test_memory_begins_anew_after_a_reset_and_fits_its_rows(recurrent):
    table = coterie.load(recurrent.path)
    observations = build.build_world(table.config.world, 4).reset(0).agent_types["agent"].observation[:, 0]
    table.act("agent_0", observations)
    empty = table._memory["agent_0"]
    table.act("agent_0", observations)
    assert np.abs(table._memory["agent_0"] - empty).max() > 0
    table.reset()
    table.act("agent_0", observations)
    np.testing.assert_array_equal(table._memory["agent_0"], empty)
    with pytest.raises(CoterieError, match=r"'agent_0' remembers 4 episodes, got 2 .*table.reset\(\)"):
        table.act("agent_0", observations[:2])
    for wrong in (np.zeros(2, bool), np.zeros(4)):
        with pytest.raises(CoterieError, match="expected 4 booleans"):
            table.reset(wrong)


def test_a_wrong_agent_is_refused_with_the_right_ones(runs):
    with pytest.raises(CoterieError, match="no agent 'agent_7' at this table; there are agent_0, agent_1"):
        coterie.load(runs["shared"].path).act("agent_7", np.zeros((1, 13), np.float32))


@pytest.mark.parametrize(
    ("run", "observations", "said"),
    [
        ("shared", np.zeros(13, np.float32), r"'agent_0': observations must be a batch \[B, 13\], got \[13\]"),
        ("shared", np.zeros((2, 12), np.float32), r"must be a batch \[B, 13\], got \[2, 12\]"),
        ("shared", {"agent_pos": np.zeros((1, 2))}, "'agent_0' sees one array, got a dict of agent_pos"),
        ("dict", np.zeros((1, 13), np.float32), "'agent_0' sees a dict of agent_pos, .*, got one array"),
        ("dict", {"agent_pos": np.zeros((1, 2))}, "sees a dict of agent_pos, .*, got a dict of agent_pos$"),
    ],
)
def test_observations_of_another_shape_are_refused(runs, run, observations, said):
    with pytest.raises(CoterieError, match=said):
        coterie.load(runs[run].path).act("agent_0", observations)


@pytest.mark.parametrize(
    ("run", "mask", "said"),
    [
        ("duel", np.ones((2, 4), bool), r"'player_0': the mask must have the shape \[2, 9\], got \[2, 4\]"),
        ("duel", np.ones((1, 9), bool), r"must have the shape \[2, 9\], got \[1, 9\]"),
        ("duel", np.ones(9, bool), r"must have the shape \[2, 9\], got \[9\]"),
        ("duel", np.eye(9, dtype=bool)[:2] & [[True] * 9, [False] * 9], "'player_0': no action is legal in row 1"),
        ("duel", np.full((2, 9), 0.5), "'player_0': the mask must hold True and False, got float64"),
    ],
)
def test_masks_of_another_shape_or_without_a_legal_action_are_refused(runs, run, mask, said):
    with pytest.raises(CoterieError, match=said):
        coterie.load(runs[run].path).act("player_0", np.zeros((2, 18), np.float32), mask=mask)


def test_a_mask_may_be_integers(runs):
    """PettingZoo's masks are."""
    mask = np.eye(9, dtype=np.int8)[[3, 7]]
    for greedy in (True, False):
        chosen = coterie.load(runs["duel"].path).act("player_0", np.zeros((2, 18), np.float32), greedy, mask)
        assert chosen.tolist() == [3, 7]


AUCTION = """\
world: {name: auction}
groups: {all: {policy: {name: network, hidden: [4]}}}
train: {num_envs: 2, rollout_steps: 2, total_steps: 8, evaluate_episodes: 4, video: false, tensorboard: false}
"""


@pytest.fixture(scope="module")
def auction(tmp_path_factory):
    base = tmp_path_factory.mktemp("auction")
    return coterie.load(train(base / "run", experiment=written(base / "auction.yaml", AUCTION)).path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("valuations", "said"),
    [
        ([0.5, 1.7], r"'bidder_0': observations must lie in \[0, 1\], got 1.7 at \[1, 0\]"),
        ([-0.1], r"must lie in \[0, 1\], got -0.1 at \[0, 0\]"),
        ([0.1, 0.2, float("nan")], r"'bidder_0': observations must be finite, got nan at \[2, 0\]"),
        ([float("inf")], r"must be finite, got inf at \[0, 0\]"),
        (["0.5"], "'bidder_0': observations must be numbers, got <U3"),
        ([2], r"must lie in \[0, 1\], got 2 at \[0, 0\]"),
    ],
)
def test_observations_no_world_would_tell_are_refused(auction, valuations, said):
    with pytest.raises(CoterieError, match=said):
        auction.act("bidder_0", np.array(valuations)[:, None])


def test_a_mask_of_actions_that_have_none_is_refused(auction):
    with pytest.raises(CoterieError, match=r"'bidder_0': actions \[1\] of numbers have no mask"):
        auction.act("bidder_0", np.array([[0.5]]), mask=np.ones((1, 1), bool))


def test_rounding_whole_numbers_and_empty_batches_are_let_through(auction):
    assert auction.act("bidder_0", np.array([[1 + 1e-7], [-1e-7]])).shape == (2, 1)
    assert auction.act("bidder_1", [[0], [1]]).shape == (2, 1)
    assert auction.act("bidder_0", np.zeros((0, 1), np.float32)).shape == (0, 1)


@pytest.mark.slow
def test_every_entry_of_a_dict_is_looked_at(runs):
    table = coterie.load(runs["dict"].path)
    seen = map_tree(
        lambda a: a[:, 0].copy(), build.build_world(table.config.world, 3).reset(0).agent_types["agent"].observation
    )
    table.act("agent_0", seen)
    name = [*seen][-1]
    seen[name][2] = 7
    with pytest.raises(CoterieError, match=rf"'agent_0', '{name}': observations must lie in \[0, 1\], got 7 at \[2"):
        table.act("agent_0", seen)


def test_bounds_of_third_parties_do_not_count_but_numbers_must_be_finite(tmp_path):
    text = AUCTION.replace("name: auction", "name: gymnasium/CartPole-v1")
    table = coterie.load(train(tmp_path / "run", experiment=written(tmp_path / "pole.yaml", text)).path)
    beyond = np.array([[9.0, 0.0, 0.0, 0.0]])
    assert table.groups[0].actor.group_spec.spaces.observation.high[0] < 9
    assert table.act("agent_0", beyond).shape == (1,)
    with pytest.raises(CoterieError, match=r"'agent_0': observations must be finite, got nan at \[0, 0\]"):
        table.act("agent_0", beyond * np.nan)


def test_minigrids_own_symbols_are_refused_where_the_world_shows_scaled_ones(tmp_path):
    text = AUCTION.replace("name: auction", "name: minigrid/Empty-5x5")
    table = coterie.load(train(tmp_path / "run", experiment=written(tmp_path / "empty.yaml", text)).path)
    seen = {"image": np.full((1, 3, 7, 7), 8), "direction": np.array([0])}
    with pytest.raises(CoterieError, match=r"'agent_0', 'image': observations must lie in \[0, 1\], got 8"):
        table.act("agent_0", seen)
    assert table.act("agent_0", seen | {"image": seen["image"] / 10}).shape == (1,)


def test_choices_that_are_observed_have_bounds_everywhere(tmp_path):
    text = AUCTION.replace("name: auction", "name: gymnasium/FrozenLake-v1")
    table = coterie.load(train(tmp_path / "run", experiment=written(tmp_path / "lake.yaml", text)).path)
    assert table.act("agent_0", np.array([0, 15])).shape == (2,)
    with pytest.raises(CoterieError, match=r"'agent_0': observations must lie in \[0, 15\], got 16 at \[1\]"):
        table.act("agent_0", np.array([0, 16]))


def test_checkpoints_can_be_chosen(runs):
    run = runs["shared"]
    assert coterie.load(run.path, "last").env_steps == 64
    assert coterie.load(run.path, "64").env_steps == 64
    with pytest.raises(CoterieError, match=r"has no checkpoint '65'; there are best, last and steps 0, 64"):
        coterie.load(run.path, "65")


@pytest.mark.slow
def test_a_run_that_went_on_from_another_is_loaded_after_that_one_has_moved(tmp_path):
    first = train(tmp_path / "first", "train.total_steps=32")
    words = [word for word in GRID if "policy" not in word and "total_steps" not in word]
    words += [f"groups.team.policy.run={first.path}", "train.total_steps=256"]
    second = coterie.train("gridworld-cooperative", words, out=tmp_path / "second", quiet=True)
    moved = f"groups.team.policy.run={tmp_path / 'moved'}"

    def outputs(*overrides):
        table = coterie.load(second.path, "last", list(overrides))
        return table.players["team"], table.groups[0].policy.state()["net"]

    before = outputs()
    first.path.rename(tmp_path / "moved")
    with pytest.raises(CoterieError, match=r"is not a run: .*; if the run has moved, set groups\.team\.policy\.run$"):
        outputs()
    after = outputs(moved)
    assert after[0] == before[0] == "checkpoint last (256 steps)"
    assert all(np.array_equal(after[1][name], before[1][name]) for name in before[1])
    (tmp_path / "moved").rename(first.path)
    shutil.copytree(first.path, tmp_path / "moved")
    assert outputs(moved)[0] == f"{tmp_path / 'moved'}, checkpoint best"  # both are there: that run plays instead


def test_loading_needs_an_intact_checkpoint(tmp_path):
    run = train(tmp_path / "run", "train.total_steps=32")
    for step in run.steps("best"):
        (run.checkpoint_path(step, "best") / checkpoint.ARRAYS).write_bytes(b"")
    with pytest.raises(CoterieError, match="has no intact 'best' checkpoint"):
        coterie.load(run.path)


def test_overridden_opponents_keep_the_others_weights(runs):
    table = coterie.load(runs["duel"].path, "last", ["groups.ring.policy=expert"])
    kept, replaced = table.groups
    saved = runs["duel"].load_checkpoint("last")["policies"]["cross"]["net"]
    assert all(np.array_equal(v, saved[k]) for k, v in kept.policy.state()["net"].items())
    assert type(replaced.policy).__name__ == "ExpertPolicy"


def test_another_build_of_the_trained_network_is_refused_not_replaced_by_a_fresh_one(runs):
    with pytest.raises(CoterieError, match="differs from the one that was trained"):
        coterie.load(runs["shared"].path, overrides=["groups.team.policy.hidden=[9]"])
    same = coterie.load(runs["shared"].path, overrides=["groups.team.policy.compiled=false"])  # plays no part here
    saved = runs["shared"].load_checkpoint("best")["policies"]["team"]["net"]
    assert all(np.array_equal(v, saved[k]) for k, v in same.groups[0].policy.state()["net"].items())


def test_a_refused_config_makes_no_directory(tmp_path):
    for word in ("train.num_envs=0", "groups.team.agents=nobody", "train.stop={return_mean: 1, group: nobody}"):
        with pytest.raises(ConfigError):
            train(tmp_path / "run", word)
    assert not (tmp_path / "run").exists()


def test_names_that_coterie_does_not_have():
    with pytest.raises(AttributeError, match="module 'coterie' has no attribute 'nothing'"):
        _ = coterie.nothing
