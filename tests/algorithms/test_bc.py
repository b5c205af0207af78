"""Behavioural cloning: exact losses, what it learns from, when it ends, and runs that are killed and resumed."""

import numpy as np
import pytest
import torch

import coterie
from coterie.algorithms.imitation import demonstrations
from coterie.algorithms.imitation.bc import BC, BCSettings
from coterie.algorithms.imitation.cloning import Cloner, CloningSettings
from coterie.algorithms.imitation.labels import Augmenter, Labels, turn
from coterie.config import schema
from coterie.core.decisions import Joint
from coterie.core.types import Box, Discrete, as_metrics
from coterie.policies.ensemble import DISAGREEMENT, EnsemblePolicy, EnsembleSettings
from coterie.policies.network import NetworkPolicy, NetworkSettings
from coterie.policies.q_network import QNetworkPolicy, QNetworkSettings
from coterie.runs.run import Run
from coterie.training import clone
from coterie.training.build import build_groups, build_world
from helpers.demonstrations import FAST, GRID, expert
from helpers.resume import stopped
from helpers.run import numbers, results, train, written
from helpers.small_worlds import ACTIONS, generator, group_spec, network, spec_in

LEARNED = "groups.team.learner"


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    return expert(tmp_path_factory.mktemp("demonstrations") / "grid", 6)


def labels(spec, rows=6, mask=None, seed=0):
    """Random observations with random actions."""
    random = generator(seed)
    space = spec.spaces.action
    if isinstance(space, Box):
        action = random.uniform(space.low, space.high, (rows, *space.shape)).astype(np.float32)
    elif isinstance(space, Discrete):
        action = random.integers(space.n, size=rows)
    else:
        action = random.integers(space.sizes, size=(rows, len(space.sizes)))
    mask = np.zeros((rows, 0), bool) if mask is None else mask
    observation = random.standard_normal((rows, spec.spaces.observation.shape[0])).astype(np.float32)
    return Labels(observation, np.arange(rows) % len(spec.agents), action, mask)


def stacked(labels):
    return Labels(*(column[None] for column in labels))


# The loss -------------------------------------------------------------------------------------------------


def test_the_loss_is_the_cross_entropy_over_legal_actions():
    spec = group_spec()
    cloner = Cloner(CloningSettings(), network(spec))
    mask = np.ones((6, spec.spaces.action.n), bool)
    mask[:, 0] = False
    given = labels(spec, mask=mask)._replace(action=np.ones(6, np.int64))
    x = cloner.inputs(stacked(given))
    loss = cloner.loss(x, cloner.policy.trainable.forward(x), stacked(given))[0][0]
    out = cloner.policy.net.unroll(x, None).detach().numpy()[0].astype(np.float64)
    exact = np.log(np.exp(out[:, 1:]).sum(axis=1)) - out[:, 1]
    np.testing.assert_allclose(loss, exact, atol=1e-6)


@pytest.mark.parametrize("action", list(ACTIONS))
@pytest.mark.parametrize("parameters", ["shared", "individual"])
def test_every_head_learns_its_labels(action, parameters):
    spec = group_spec(ACTIONS[action], parameters=parameters)
    cloner = Cloner(CloningSettings(weight_decay=0), network(spec))
    whole = labels(spec)
    mine = [whole.rows(np.flatnonzero(whole.agent == i)) for i in range(2)] if parameters == "individual" else [whole]
    first = [cloner.evaluate(each, i)[0] for i, each in enumerate(mine)]
    for _ in range(60):
        cloner.step(mine, 1e-2, generator())
    assert all(cloner.evaluate(each, i)[0] < before - 0.3 for i, (each, before) in enumerate(zip(mine, first)))


def test_values_of_a_q_network_become_highest_for_the_labels():
    spec = group_spec()
    cloner = Cloner(CloningSettings(), QNetworkPolicy(QNetworkSettings(hidden=(16,)), spec))
    given = labels(spec)
    for _ in range(150):
        cloner.step([given], 1e-2, generator())
    assert cloner.evaluate(given, 0)[1] == 1.0


def twice(given):
    return 2 * torch.ones_like(given.log_prob)


def again(given):
    return -given.log_prob


def test_an_extra_loss_is_added_by_name():
    spec = group_spec()
    given = stacked(labels(spec))
    plain = Cloner(CloningSettings(), network(spec))
    more = Cloner(CloningSettings(extra_loss=f"{__name__}:twice", extra_weight=0.5), network(spec))
    x = plain.inputs(given)
    out = plain.policy.trainable.forward(x)
    found, expected = more.loss(x, out, given), plain.loss(x, out, given)
    np.testing.assert_allclose(found[0] - expected[0], 1.0, atol=1e-6)
    np.testing.assert_array_equal(found[1], expected[1])  # a constant has no slopes
    both = Cloner(CloningSettings(extra_loss=f"{__name__}:again", extra_weight=0.5), network(spec)).loss(x, out, given)
    np.testing.assert_allclose(both[0], 1.5 * expected[0], rtol=1e-5)
    np.testing.assert_allclose(both[1], 1.5 * expected[1], atol=1e-7)
    with pytest.raises(ValueError, match=r"extra_loss: .*no_such"):
        CloningSettings(extra_loss=f"{__name__}:no_such")


def test_weight_decay_and_noise_change_what_is_learned():
    spec = group_spec()
    found = []
    for decay, noise in ((0, 0), (0.5, 0), (0, 1.0), (0, 0.5)):
        cloner = Cloner(CloningSettings(weight_decay=decay, noise=noise), network(spec))
        for _ in range(5):
            cloner.step([labels(spec)], 1e-1, generator())
        found.append(cloner.policy.flat.array.copy())
    plain, decayed, noisy, less = found
    assert np.abs(decayed).sum() < np.abs(plain).sum()
    assert not np.allclose(noisy, plain)
    assert not np.allclose(noisy, less)


def test_gradients_are_cut_to_the_largest_norm():
    spec, moved = group_spec(), []
    for norm in (1.0, 1e-10):  # far below Adam's epsilon: a step is next to nothing
        cloner = Cloner(CloningSettings(weight_decay=0, max_grad_norm=norm), network(spec))
        before = cloner.policy.flat.array.copy()
        cloner.step([labels(spec)], 1e-2, generator())
        moved.append(np.abs(cloner.policy.flat.array - before).max())
    assert moved[1] < 0.1 * moved[0]


def test_boards_are_turned_together_with_their_moves():
    board = np.arange(9, dtype=np.float32)[None].repeat(40, axis=0)
    moves = np.array([0, 1, 4, 8] * 10)
    cells = np.array([np.arange(9), np.arange(9).reshape(3, 3).T.ravel()])  # the identity and a transposition
    mask = np.eye(9, dtype=bool)[moves]
    turned = turn(Labels(board, np.zeros(40, np.int64), moves, mask), (cells, cells), generator())
    assert len(np.unique(turned.observation, axis=0)) == 2
    seen = np.take_along_axis(turned.observation, turned.action[:, None], axis=1)[:, 0]
    np.testing.assert_array_equal(seen, moves)  # the turned move is on the same cell
    assert np.take_along_axis(turned.mask, turned.action[:, None], axis=1).all()


def test_symmetries_are_those_of_the_worlds_board():
    world = build_world(schema.load("tictactoe-alphazero").world, 2)
    spec = spec_in(world)
    size = world.game.symmetries[0].cells.size
    given = Labels(generator().random((60, size)), np.zeros(60, np.int64), np.full(60, 1), np.zeros((60, 0), bool))
    turned = Augmenter(True, (), network(spec), spec)(given, generator())
    images = np.stack([given.observation[:, each.cells] for each in world.game.symmetries])  # [Y, R, D]
    same = (images == turned.observation).all(axis=-1)
    assert same.any(axis=0).all()
    assert same.argmax(axis=0).max() > 0  # not the identity alone
    assert set(turned.action) == {1, 3, 5, 7}  # an edge is turned to an edge
    np.testing.assert_array_equal(Augmenter(False, (), network(spec), spec)(given, generator()).observation, given[0])
    other = spec_in(build_world(schema.load("gridworld-cooperative", GRID).world, 2))
    with pytest.raises(ValueError, match="symmetries=true needs a board game"):
        Augmenter(True, (), network(other), other)


def doubled(decisions, world, random):
    return decisions._replace(observation=2 * decisions.observation)


def test_augmentations_are_applied_by_name_and_in_order():
    spec = spec_in(build_world(schema.load("gridworld-cooperative", GRID).world, 2))
    given = Labels(generator().random((4, 3)), np.arange(4), np.arange(4), np.zeros((4, 0), bool))
    augment = Augmenter(False, (f"{__name__}:doubled", f"{__name__}:doubled"), network(spec), spec)
    np.testing.assert_array_equal(augment(given, generator()).observation, 4 * given.observation)
    with pytest.raises(ValueError, match=r"augmentations: .*no_such"):
        CloningSettings(augmentations=(f"{__name__}:no_such",))
    with pytest.raises(ValueError, match=r"world\.name=doorkey, got Gridworld"):
        Augmenter(False, ("coterie.worlds.doorkey.augmentation:mirror",), network(spec), spec)


def test_a_clone_learns_from_augmented_decisions(grid):
    plain, other = (learner([grid], augmentations=names) for names in ((), (f"{__name__}:doubled",)))
    for each in (plain, other):
        each.learn(None, Joint({}, 1, 0.0, steps=64), generator())
    assert not np.array_equal(plain.policy.flat.array, other.policy.flat.array)


# What it learns from --------------------------------------------------------------------------------------


def learner(paths, policy=None, **settings):
    world = build_world(schema.load("gridworld-cooperative", GRID).world, 2)
    spec = spec_in(world)
    policy = NetworkPolicy(NetworkSettings(hidden=(16,)), spec) if policy is None else policy(spec)
    return BC(BCSettings(demonstrations=tuple(map(str, paths)), **settings), policy, spec, None)


def with_success(source, target, success):
    part = demonstrations.load(source)
    episodes = [type(e)(e.seed, e.copy, e.length, s, e.returns) for e, s in zip(part.episodes, success, strict=True)]
    demonstrations.save(target, [demonstrations.replace(part, episodes=tuple(episodes))])
    return target


def test_failed_episodes_are_left_out_unless_wanted(grid, tmp_path):
    some = with_success(grid, tmp_path / "some", [True, False, True, False, False, True])
    assert learner([some], validation=0).episodes == 3
    assert learner([some], validation=0, only_successful=False).episodes == 6
    none = with_success(grid, tmp_path / "none", [False] * 6)
    with pytest.raises(ValueError, match=r"none of 6 episodes succeeded.*only_successful=false"):
        learner([none])
    unknown = with_success(grid, tmp_path / "unknown", [None] * 6)
    assert learner([unknown, grid], validation=0).episodes == 12
    with pytest.raises(ValueError, match="min_return: no episode has a return of 1000"):
        learner([grid], min_return=1000.0)


def test_a_recording_of_several_groups_is_read_by_the_name_of_one(grid, tmp_path):
    """Of the other group only every second decision is labelled."""
    part = demonstrations.load(grid)
    own = spec_in(build_world(schema.load("gridworld-cooperative", GRID).world, 2)).group
    returns = [each.returns[part.group] for each in part.episodes]
    episodes = tuple(
        type(each)(each.seed, each.copy, each.length, each.success, {own: paid, "others": paid})
        for each, paid in zip(part.episodes, returns, strict=True)
    )
    part = demonstrations.replace(part, episodes=episodes)
    half = np.arange(len(part.action)) % 2 == 0
    others = demonstrations.replace(part, group="others", labelled=half)
    demonstrations.save(tmp_path / "both", [demonstrations.replace(part, group=own), others])

    def read(**settings):
        return sum(mine.size for mine in learner([tmp_path / "both"], validation=0, **settings).labels)

    assert read() == len(half)  # its own name
    assert read(group="others") == half.sum()
    with pytest.raises(ValueError, match="nobody"):
        read(group="nobody")
    word = f"groups.team.learner={{name: dagger, demonstrations: [{tmp_path / 'both'}], group: others}}"
    advised = "groups.team.advisor={name: policy, policy: expert, use: {mode: label}}"
    config = schema.load("gridworld-cooperative", [*GRID, word, advised])
    (group,) = build_groups(config, build_world(config.world, 1))
    assert group.learner.count == half.sum()


def test_decisions_by_chance_are_no_labels(grid, tmp_path):
    part = demonstrations.load(grid)
    labelled = np.arange(len(part.action)) % 2 == 0
    demonstrations.save(tmp_path, [demonstrations.replace(part, labelled=labelled)])
    assert sum(mine.size for mine in learner([tmp_path], validation=0).labels) == labelled.sum()
    demonstrations.save(tmp_path, [demonstrations.replace(part, labelled=labelled & False)])
    with pytest.raises(ValueError, match="chance decided them all"):
        learner([tmp_path])


def test_demonstrations_that_do_not_fit_are_refused(grid, tmp_path):
    with pytest.raises(ValueError, match="name at least one"):
        learner([])
    with pytest.raises(ValueError, match="nowhere"):
        learner([tmp_path / "nowhere"])
    other = expert(tmp_path / "other", 1, overrides=["world.grid_size=4", "world.observation=dict"])
    with pytest.raises(ValueError, match=r"demonstrations in '.*other' are of another world"):
        learner([other])
    spread = expert(tmp_path / "spread", 1, "spread-ippo", ["world.max_steps=2"])
    with pytest.raises(ValueError, match="another world, 'spread'"):
        learner([spread])


def test_held_out_episodes_are_whole_and_validated(grid):
    one = learner([grid], validation=0.5)
    assert one.episodes == 3
    rows = [sum(mine.size for mine in part) for part in (one.labels, one.held_out)]
    assert sum(rows) == len(demonstrations.load(grid).action)
    metrics = one.learn(None, Joint({}, 1, 0.0, steps=64), generator())
    assert {"loss", "accuracy", "validation_loss", "validation_accuracy"} <= metrics.keys()


def test_an_iteration_reads_its_decisions_in_batches(grid):
    for size, updates in ((8, 8), (48, 1), (100, 1)):
        one = learner([grid], batch_size=size)
        assert one.learn(None, Joint({}, 1, 0.0, steps=64), generator())["updates"] == updates


@pytest.mark.parametrize(("schedule", "rate"), [("linear", 7.5e-4), ("constant", 1e-3)])
def test_the_learning_rate_follows_its_schedule(grid, schedule, rate):
    one = learner([grid], learning_rate=1e-3, learning_rate_schedule=schedule)
    assert one.learn(None, Joint({}, 1, 0.25, steps=64), generator())["learning_rate"] == pytest.approx(rate)


def test_it_ends_once_the_validation_loss_does_not_improve(grid):
    one = learner([grid], validation=0.5, patience=2, learning_rate=1e-9)
    one.stopping.best_loss = -1.0  # nothing can be better
    for iteration in range(2):
        assert not one.finished
        one.learn(None, Joint({}, iteration, 0.0, steps=64), generator())
    assert one.finished


def test_an_ensemble_acts_by_its_mean_and_knows_where_it_disagrees(grid):
    one = learner([grid], lambda spec: EnsemblePolicy(EnsembleSettings(3, NetworkSettings(hidden=(8,))), spec))
    one.learn(None, Joint({}, 1, 0.0, steps=640), generator())
    weights = [member.flat.array for member in one.policy.members]
    assert not np.allclose(weights[0], weights[1])
    from coterie.testing.sampling import decide, random_view

    view = random_view(one.group_spec, generator(), False, 0)
    each = np.stack([np.exp(member.log_probs(view)) for member in one.policy.members])
    np.testing.assert_allclose(np.exp(one.policy.log_probs(view)), each.mean(axis=0), atol=1e-6)
    decision = decide(one.policy, view, 0, greedy=True)
    np.testing.assert_array_equal(decision.action, each.mean(axis=0).argmax(axis=-1))
    np.testing.assert_allclose(decision.trace[DISAGREEMENT], one.policy.disagreement(view))
    apart = as_metrics(one.policy.metrics())[DISAGREEMENT]
    assert apart > 1e-5
    for member in one.policy.members[1:]:
        member.load(one.policy.members[0].state())
    np.testing.assert_allclose(one.policy.disagreement(view), 0, atol=1e-6)
    decide(one.policy, view, 0, greedy=True)
    assert as_metrics(one.policy.metrics())[DISAGREEMENT] < apart / 10  # of these decisions alone


# Runs -----------------------------------------------------------------------------------------------------


def test_an_experiment_with_a_risk_measure_can_be_cloned(grid, tmp_path):
    preference = "{name: cvar, scope: episodic}"
    text = f"extends: gridworld-cooperative\ngroups: {{team: {{learner: {{gamma: 1.0}}, preference: {preference}}}}}"
    experiment = str(written(tmp_path / "cvar.yaml", text))
    config = schema.load(experiment, clone.cloning_overrides(experiment, [grid]))
    (group,) = build_groups(config, build_world(config.world, 1))
    assert isinstance(group.learner, BC)


@pytest.mark.slow
def test_a_clone_is_a_run_that_resumes_exactly(grid, tmp_path):
    words = [*GRID, *FAST, f"{LEARNED}.validation=0.5", f"{LEARNED}.noise=0.1"]
    whole = coterie.clone("gridworld-cooperative", [grid], words, tmp_path / "whole", quiet=True)
    assert [record["env_steps"] for record in whole.metrics()][-1] == 512
    assert whole.metrics()[-1]["episodes"] == 0  # nothing was played
    assert results(whole)["evaluation"]["groups"]["team"]
    half = coterie.clone("gridworld-cooperative", [grid], words, tmp_path / "half", quiet=True)
    half.cut(448)  # as if it had been killed in its last iteration
    coterie.resume(half.path, quiet=True)
    assert numbers(half) == numbers(whole)
    one, other = (run.load_checkpoint("last")["policies"]["team"]["net"] for run in (whole, half))
    assert all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.slow
def test_a_resumed_ensemble_reports_the_disagreement_of_an_uninterrupted_one(grid, tmp_path):
    text = f"""\
world: {{name: gridworld, grid_size: 4, max_steps: 12}}
groups:
  team:
    policy: {{name: ensemble, members: 2, network: {{hidden: [8]}}}}
    learner: {{name: bc, demonstrations: ["{grid}"]}}
train: {{num_envs: 4, rollout_steps: 8, total_steps: 192, evaluate_episodes: 4, evaluate_every: 2, checkpoint_every: 2,
        video: false, tensorboard: false}}
"""
    experiment = written(tmp_path / "clone.yaml", text)
    whole = train(tmp_path / "whole", experiment=experiment)
    assert [record["iteration"] for record in numbers(whole) if "team/disagreement" in record] == [0, 2, 4, 6]
    half = stopped(tmp_path / "half", experiment=experiment, at=3)
    coterie.resume(half.path, quiet=True)
    assert numbers(half) == numbers(whole)


@pytest.mark.slow
def test_the_command_clones_and_names_what_is_wrong(coterie_, grid, tmp_path):
    words = (*GRID[:2], *FAST, "--out", tmp_path / "run", "--ensemble", "2", "--quiet")
    code, said, errors = coterie_("clone", "gridworld-cooperative", "--demonstrations", grid, *words)
    assert code == 0, errors
    assert "greedy play" in said
    assert "team/disagreement" in Run.open(tmp_path / "run").metrics()[-1]
    code, _, errors = coterie_("clone", "gridworld-cooperative", "--demonstrations", tmp_path / "none")
    assert code
    assert "none" in errors
    assert "demonstrations.json" in errors
