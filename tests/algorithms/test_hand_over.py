"""A policy that was trained before goes on under PPO or DQN: nothing is lost when it is handed over."""

from dataclasses import replace

import numpy as np
import pytest

import coterie
from coterie.algorithms.dqn.dqn import DQNHandOverSettings, state_stream
from coterie.algorithms.dqn.transitions import Transitions
from coterie.config import schema
from coterie.core.decisions import Joint
from coterie.runs.run import Run
from coterie.training.build import build_groups, build_world, start_groups
from coterie.training.runner import Runner
from helpers.demonstrations import FAST, GRID, expert
from helpers.dqn import joint_of, learn, make_learner, random_rollout, seen, stir, values
from helpers.run import results
from helpers.small_worlds import group_spec

ITERATION = ["train.num_envs=4", "train.rollout_steps=16", "train.total_steps=192", "train.checkpoint_every=1"]
QUICK = [*GRID[:2], *FAST[2:4], *FAST[5:], *ITERATION, "train.keep_checkpoints=9"]


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hand over")
    paths = [expert(folder / "grid", 6)]
    return {
        "ppo": coterie.clone("gridworld-cooperative", paths, [*GRID, *FAST], folder / "network", quiet=True),
        "dqn": coterie.clone(
            "gridworld-iql", paths, [*GRID[:2], "groups.team.policy.hidden=[16]", *FAST], folder / "values", quiet=True
        ),
    }


def go_on(run, out, experiment, *words):
    seated = f"groups.team.policy.run={run.path}"
    return coterie.train(experiment, [*QUICK, seated, *words], out=out, quiet=True)


def weights(run, which):
    return run.load_checkpoint(which)["policies"]["team"]


def greedy(group, runner):
    return group.policy.act(replace(runner.view(group.actor), greedy=True)).action


@pytest.mark.slow
def test_the_first_evaluation_after_the_hand_over_is_the_clones(clone, tmp_path):
    for learner, experiment in (("ppo", "gridworld-cooperative"), ("dqn", "gridworld-iql")):
        run = go_on(clone[learner], tmp_path / learner, experiment)
        found, before = results(run), results(clone[learner])
        assert found["step_0"]["groups"] == before["evaluation"]["groups"]
        assert found["drawn"]["groups"]
        assert before["drawn"]["groups"]
        if learner == "ppo":  # values are drawn from with ε, which a clone does not have
            assert found["step_0"]["drawn"]["groups"] == before["drawn"]["groups"]


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [True, False])
def test_the_actor_begins_without_the_momentum_of_the_warm_up(compiled):
    """Gradients by a critic that knows nothing are noise: the first step after the warm-up does not follow them."""
    learner = {"warm_up": 1, "keep_statistics": True}
    words = [*QUICK[:2], f"groups.team.learner.hand_over={learner}", f"groups.team.policy.compiled={compiled}"]
    config = schema.load("gridworld-cooperative", [*words, "groups.team.policy.hidden=[8]"])
    world = build_world(config.world, 4)
    group = build_groups(config, world)[0]
    actor, own = group.policy.flat, Runner(world, [group.actor], 0).play(8, 1, 0.0).decisions["team"]
    before = actor.array.copy()

    def learn(iteration):
        joint = Joint({"team": own}, iteration, 0.0, {"team": group.actor.group_spec.spaces})
        return group.learner.learn(own, joint, np.random.default_rng(0))

    assert learn(1)["learning_rate"] == 0
    np.testing.assert_array_equal(actor.array, before)
    assert not actor.mean.any()
    assert actor.square.any()
    assert actor.steps.all()
    assert group.learner.critic.flat.mean.any()
    assert learn(2)["learning_rate"] > 0
    assert actor.mean.any()


def test_a_clone_of_values_acts_alike_after_the_first_iteration_of_dqn():
    """Without a gradient step, new statistics of observations alone would change what it does."""
    words = [*QUICK[:2], "groups.team.policy={name: q_network, hidden: [16], normalize_observations: true}"]
    words += ["groups.team.learner.replay.learning_starts=5000"]

    def first_iteration(*more):
        config = schema.load("gridworld-iql", [*words, *more])
        world = build_world(config.world, 64)
        group = build_groups(config, world)[0]
        runner = Runner(world, [group.actor], 0)
        own = runner.play(8, 1, 0.0).decisions["team"]
        rows = group.policy.arrange(group.policy.pack(own.observation))
        group.policy.normalizer.update([mine[:2] for mine in rows])  # a clone that was measured on few decisions
        epsilon = group.policy.epsilon
        joint = Joint({"team": own}, 1, 0.0, {"team": group.actor.group_spec.spaces}, ahead=0.01)
        before = greedy(group, runner)
        assert group.learner.learn(own, joint, np.random.default_rng(0)).get("updates", 0) == 0
        return (before == greedy(group, runner)).all(), epsilon

    same, epsilon = first_iteration("groups.team.learner.hand_over={}")
    assert same
    assert epsilon == 0.05  # epsilon.end: a clone needs no random play
    assert first_iteration("groups.team.learner.hand_over.epsilon=0.3")[1] == 0.3
    same, epsilon = first_iteration()
    assert not same
    assert epsilon == 1.0


@pytest.mark.parametrize(("compiled", "keep"), [(True, True), (True, False), (False, True)])
def test_the_greedy_policy_of_a_dueling_network_stays_while_values_warm_up(compiled, keep):
    """The best actions stay, advantages but for rounding; values of states are learned; then all of it learns."""
    hand_over = DQNHandOverSettings(warm_up=2, gap=0.1, keep_statistics=keep)
    one = make_learner(compiled=compiled, updates_per_step=1.0, hand_over=hand_over)
    stir(one.policy)
    best, earlier = values(one.policy, seen(200)).argmax(-1), None
    for iteration in range(3):
        learn(one, random_rollout(one, iteration), iteration)
        now = values(one.policy, seen(200))
        advantage, level = now - now.mean(axis=-1, keepdims=True), now.mean(axis=-1)
        if iteration < 2:
            assert np.array_equal(now.argmax(-1), best)
            if earlier is not None:
                assert np.allclose(advantage, earlier[0], atol=1e-6)
                assert np.abs(level - earlier[1]).max() > 1e-3
            earlier = advantage, level
            frozen = ~state_stream(one.policy.net)
            assert frozen.any()
            assert not one.policy.flat.mean[:, frozen].any()
            assert one.policy.flat.square[:, frozen].any()  # so that the first step of all parameters is no leap
    assert np.abs(advantage - earlier[0]).max() > 1e-3
    assert one.policy.normalizer.count.any() != keep  # those of the policy stay, or move after the warm-up


@pytest.mark.parametrize("parameters", ["shared", "individual"])
@pytest.mark.parametrize("dueling", [True, False])
def test_values_are_scaled_to_the_gap_and_keep_their_order(dueling, parameters):
    one = make_learner(group_spec(parameters=parameters), dueling=dueling, hand_over=DQNHandOverSettings(gap=0.3))
    stir(one.policy)
    one.store(own := random_rollout(one), joint_of(one, own))
    before = values(one.policy, seen(200))
    one.scale_values(0.3, np.ones(len(one.replays), bool))
    assert np.array_equal(before.argsort(-1), values(one.policy, seen(200)).argsort(-1))
    np.testing.assert_array_equal(one.target.flat.array, one.policy.flat.array)
    for number in range(len(one.replays)):
        assert median_gap(one, number) == pytest.approx(0.3, rel=1e-4)


def median_gap(one, number):
    """By how much the best legal value exceeds the next in the states that follow decisions of a replay."""
    replay = one.replays[number]
    rows = Transitions(*(column[: replay.size] for column in replay.rows))
    shared = one.group_spec.parameters == "shared"
    gaps = []
    for row in np.flatnonzero((rows.discount > 0) & rows.next_active[:, 0]):
        found = values(one.policy, rows.next_obs[row][None].repeat(2, axis=1))[0, rows.agent[row] if shared else number]
        legal = np.sort(found[rows.next_mask[row, 0]])
        gaps += [legal[-1] - legal[-2]] if len(legal) > 1 else []
    return np.median(gaps)


@pytest.mark.parametrize("compiled", [True, False])
def test_a_parameter_set_is_handed_over_when_its_own_replay_is_ready(compiled):
    """Scaled by its own states, and then warmed up, whenever that is."""
    hand_over = DQNHandOverSettings(warm_up=1, gap=0.3)
    where = group_spec(parameters="individual")
    one = make_learner(where, compiled=compiled, updates_per_step=1.0, hand_over=hand_over)
    stir(one.policy)
    frozen = ~state_stream(one.policy.net)
    own = random_rollout(one)
    alone = own.valid.copy()
    alone[..., 1] = False  # the second agent takes no part in the first rollout
    first = one.policy.flat.array.copy()
    learn(one, replace(own, valid=alone))
    assert one.learned.tolist() == [1, 0]
    assert median_gap(one, 0) == pytest.approx(0.3, rel=1e-4)
    np.testing.assert_array_equal(one.policy.flat.array[1], first[1])
    before = one.policy.flat.array.copy()
    learn(one, random_rollout(one, 1), 1)
    assert one.learned.tolist() == [2, 1]
    assert median_gap(one, 1) == pytest.approx(0.3, rel=0.2)  # the later values of states do not enter
    moved = np.abs(one.policy.flat.array - before)
    assert moved[0, frozen].max() > 0
    assert not one.policy.flat.mean[1, frozen].any()  # nothing but the scale of its advantages has changed


def test_the_value_of_states_alone_needs_a_dueling_network():
    with pytest.raises(ValueError, match=r"warm_up=3 needs policy\.dueling=true"):
        make_learner(dueling=False, hand_over=DQNHandOverSettings(warm_up=3))
    for fields in ({"warm_up": -1}, {"gap": 0.0}):
        with pytest.raises(ValueError, match=next(iter(fields))):
            DQNHandOverSettings(**fields)


def test_a_warm_up_goes_on_where_it_was_saved():
    hand_over = DQNHandOverSettings(warm_up=3, gap=0.1)
    one, other = (make_learner(hand_over=hand_over, n_steps=3) for _ in range(2))
    learn(one, random_rollout(one))
    state = one.state()
    other.policy.load(one.policy.state())
    other.load(state)
    for learner in (one, other):
        learn(learner, random_rollout(one, 1), 1)
    np.testing.assert_array_equal(one.policy.flat.array, other.policy.flat.array)
    assert one.learned.tolist() == other.learned.tolist() == [2]


@pytest.mark.slow
def test_a_clone_of_values_is_kept_by_its_margin(clone, tmp_path):
    """Through the settings of a run: DQN with the clone as advisor agrees with it more than DQN without."""
    agreement = {}
    words = ["train.total_steps=1024", "groups.team.learner.replay.learning_starts=64"]
    hand_over = "groups.team.learner.hand_over={warm_up: 1, gap: 0.2}"
    use = "{mode: margin, strength: 0.3, final: 0.1, margin: 0.1}"
    for name, more in {
        "kept": [hand_over, f"groups.team.advisor={{name: policy, policy: {clone['dqn'].path}, use: {use}}}"],
        "free": ["groups.team.learner.hand_over={}"],
    }.items():
        run = go_on(clone["dqn"], tmp_path / name, "gridworld-iql", *words, *more)
        groups = []
        for path, checkpoint in ((clone["dqn"].path, "best"), (run.path, "last")):
            seated = f"groups.team.policy={{run: {path}, checkpoint: {checkpoint}}}"
            config = schema.load("gridworld-iql", [*QUICK[:2], seated])
            world = build_world(config.world, 64)
            groups += build_groups(config, world)
        runner = Runner(world, [groups[0].actor], 0)
        runner.play(4, 1, 0.0)
        agreement[name] = (greedy(groups[0], runner) == greedy(groups[1], runner)).mean()
    assert agreement["kept"] > max(agreement["free"], 0.8)
    found = [line for line in Run.open(tmp_path / "kept").metrics() if "team/margin_loss" in line]
    assert found
    assert found[-1]["team/advice/agreement"] > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("experiment", ["gridworld-iql", "spread-maddpg"])
def test_target_networks_begin_with_the_weights_that_a_run_starts_from(tmp_path, experiment):
    short = ["train.total_steps=64", "train.num_envs=4", "train.rollout_steps=8", "train.video=false"]
    coterie.train(experiment, short, out=tmp_path / "run", quiet=True)
    config = schema.load(experiment, [f"groups.team.start={tmp_path / 'run'}", "seed=7"])
    group = build_groups(config, build_world(config.world, 4))[0]
    before = group.policy.flat.array.copy()
    start_groups(config, [group])
    assert not np.array_equal(group.policy.flat.array, before)
    target = group.learner.actor.target_flat if experiment == "spread-maddpg" else group.learner.target.flat
    np.testing.assert_array_equal(target.array, group.policy.flat.array)


@pytest.mark.slow
def test_the_policy_is_unchanged_while_the_critic_warms_up(clone, tmp_path):
    warm = "groups.team.learner.hand_over"
    run = go_on(clone["ppo"], tmp_path / "run", "gridworld-cooperative", f"{warm}.warm_up=2")
    steps = [0, 64, 128, 192]
    nets = [weights(run, str(step))["net"] for step in steps]
    critics = [run.load_checkpoint(str(step))["learners"]["team"]["critic"] for step in steps]
    for name in nets[0]:
        np.testing.assert_array_equal(nets[0][name], nets[2][name])
    assert any(not np.array_equal(nets[2][name], nets[3][name]) for name in nets[0])
    assert any(not np.array_equal(critics[0][name], critics[1][name]) for name in critics[0])
    means = [weights(run, str(step))["normalizer"]["mean"] for step in steps]
    np.testing.assert_array_equal(means[0], means[3])  # observations are seen as the clone saw them
    run = go_on(
        clone["ppo"], tmp_path / "other", "gridworld-cooperative", f"{warm}={{warm_up: 1, keep_statistics: false}}"
    )
    means = [weights(run, str(step))["normalizer"]["mean"] for step in steps]
    np.testing.assert_array_equal(means[0], means[1])
    assert not np.array_equal(means[1], means[2])
