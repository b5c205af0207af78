"""Search players at a table: views, seats, temperature, playout cap, traces, settings and state."""

from dataclasses import replace
from operator import attrgetter

import numpy as np
import pytest

import coterie
from coterie.config.schema import ConfigError
from coterie.core.types import CoterieError, View
from coterie.policies.scripted import RandomPolicy, RandomSettings
from coterie.policies.search.networks import PositionNetworkSettings
from coterie.policies.search.policy import (
    PlayoutCapSettings,
    SearchPolicy,
    SearchSettings,
    TemperatureSettings,
    draw,
)
from coterie.policies.search.search import GumbelSettings, PuctSettings, RootNoiseSettings
from coterie.testing import check_policy
from coterie.testing.comparison import through_checkpoint
from coterie.training.runner import Runner
from coterie.worlds.boards.tictactoe import GAME, Tictactoe, TictactoeSettings
from helpers.run import written
from helpers.search import random_positions
from helpers.small_worlds import actors, generator, group_spec, network, spec_in

MLP = PositionNetworkSettings(kind="mlp", hidden=(16,))
PLAYERS = {
    "puct": {},
    "gumbel": {"method": "gumbel"},
    "without network": {"network": PositionNetworkSettings()},
    "residual": {
        "network": PositionNetworkSettings(kind="residual", channels=4, blocks=1, value_width=4, device="cpu")
    },
    "transpositions": {"transpositions": True},
    "reuse": {"reuse": True},
    "reuse, transpositions": {"reuse": True, "transpositions": True},
    "network": {"play": "network"},
}


def world_of(copies=4, **settings):
    return Tictactoe(TictactoeSettings(**settings), copies)


def player(world, columns=None, **settings):
    """A search player of random weights, whose evaluations differ."""
    where = spec_in(world, columns, group="team" if columns is None else f"seat {columns}")
    made = SearchPolicy(SearchSettings(**{"simulations": 12, "network": MLP} | settings), where)
    if made.network is not None and made.network.spec is not None:
        shape = made.network.flat.array.shape
        made.network.flat.array[:] = generator(5).standard_normal(shape) / 2
    return where, made


def view_of(world, policy, greedy=False, seed=0, moves=0, progress=0.0, columns=None):
    step, where = world.load(world.save()).agent_types["player"], policy.group_spec
    seats = where.columns
    memory = np.full((world.num_envs, len(seats), 1), moves, np.float32)
    return View(
        step.observation[:, seats], step.acting[:, seats], np.arange(len(seats)), generator(seed), greedy,
        step.mask[:, seats], memory, world, "player", seats, progress=progress,
    )  # fmt: skip


def put(world, positions):
    """Let a world stand at given positions."""
    world.load(world.save() | {"position": np.array(positions)})
    return world


# Playing ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAYERS)
@pytest.mark.parametrize("seats", ["one group", "beside random", "beside ppo"])
def test_games_are_played_to_their_ends(name, seats):
    world = world_of(6, first="random")
    if seats == "one group":
        table = actors(player(world, **PLAYERS[name]))
    else:
        other = spec_in(world, [1], group="other")
        rival = RandomPolicy(RandomSettings(), other) if seats == "beside random" else network(other)
        table = actors(player(world, [0], **PLAYERS[name]), (other, rival))
    runner = Runner(world, table, 0)
    rollout = runner.play(24, 1, 0.0)
    own = rollout.decisions[table[0].group_spec.group]
    assert len(rollout.episodes.length) >= 12
    taken = np.take_along_axis(own.mask, own.action[..., None], axis=-1)[..., 0]
    assert taken[own.valid].all()
    if name != "network":
        assert set(own.trace) == {"policy", "visits", "value", "full", "solved"}


@pytest.mark.slow
@pytest.mark.parametrize("name", PLAYERS)
def test_contract(name):
    world = world_of(3)
    for columns in (None, [0]):
        where = spec_in(world, columns)
        settings = SearchSettings(**{"simulations": 12, "network": MLP} | PLAYERS[name])
        greedy = name != "without network"  # random games differ with the generator
        check_policy(lambda where, s=settings: SearchPolicy(s, where), where, deterministic_greedy=greedy, world=world)


def test_where_nobody_of_the_group_acts_nothing_is_decided():
    world = world_of(3)  # player_0 is to move
    _, ring = player(world, [1], playout_cap=PlayoutCapSettings())
    decision = ring.act(view_of(world, ring))
    assert not decision.trace["full"].any()
    assert not decision.trace["visits"].any()


@pytest.mark.filterwarnings("error")
def test_one_group_per_seat_searches_its_own_copies_without_warnings():
    world = put(world_of(6, first="random"), [[n % 2, 0, 0] for n in range(6)])
    _, cross = player(world, [0])
    decision = cross.act(view_of(world, cross))
    assert decision.trace["visits"].sum(axis=(1, 2)).tolist() == [12, 0, 12, 0, 12, 0]
    assert np.isfinite(decision.trace["policy"]).all()


@pytest.mark.parametrize("method", ["puct", "gumbel"])
def test_greedy_play_is_deterministic(method):
    world = put(world_of(8), random_positions(GAME, 8, 4))
    _, made = player(world, method=method)
    chosen = [made.act(view_of(world, made, greedy=True, seed=seed)).action for seed in range(3)]
    assert np.array_equal(chosen[0], chosen[1])
    assert np.array_equal(chosen[0], chosen[2])
    training = [made.act(view_of(world, made, seed=seed)).trace["visits"] for seed in range(2)]
    assert not np.array_equal(*training)  # noise, or Gumbel numbers


def test_noise_is_for_training_alone():
    world = put(world_of(8), random_positions(GAME, 8, 4))
    _, made = player(world, noise=RootNoiseSettings(0.9))
    greedy = made.act(view_of(world, made, greedy=True)).trace["visits"]
    outside = made.act(view_of(world, made, progress=None)).trace["visits"]
    assert np.array_equal(greedy, outside)
    assert not np.array_equal(greedy, made.act(view_of(world, made)).trace["visits"])
    _, clean = player(world, noise=RootNoiseSettings(0.0))
    assert np.array_equal(greedy, clean.act(view_of(world, clean)).trace["visits"])


def test_gumbel_numbers_draw_moves_outside_of_training_too():
    world = world_of(200)
    _, made = player(world, method="gumbel", gumbel=GumbelSettings(c_scale=0.01))
    drawn = made.act(view_of(world, made, progress=None)).action[:, 0]
    assert len(np.unique(drawn)) > 2
    greedy = made.act(view_of(world, made, greedy=True, progress=None)).action[:, 0]
    assert len(np.unique(greedy)) == 1


def test_a_shield_is_obeyed():
    world = put(world_of(8), random_positions(GAME, 8, 2))
    for settings in PLAYERS.values():
        _, made = player(world, **settings)
        view = view_of(world, made)
        mask = view.mask & (np.arange(9) % 2 == 1)
        mask[~view.acting] = True
        decision = made.act(replace(view, mask=mask))
        rows, seats = np.nonzero(view.acting)
        assert mask[rows, seats, decision.action[rows, seats]].all()
        if decision.trace is not None:
            assert not decision.trace["visits"][view.acting][~mask[view.acting]].any()
        alone = mask & (np.cumsum(mask, axis=-1) == 1)  # one action is left: it needs no search
        alone[~view.acting] = True
        decision = made.act(replace(view, mask=alone))
        assert np.array_equal(decision.action[rows, seats], alone[rows, seats].argmax(axis=1))
        if decision.trace is not None:
            assert not decision.trace["visits"].any()


# Temperature ------------------------------------------------------------------------------------------


def test_the_first_moves_are_drawn_and_later_ones_are_the_most_visited():
    world = world_of(400)
    _, made = player(world, noise=RootNoiseSettings(0.0), temperature=TemperatureSettings(1.0, moves=3))
    for moves, drawn in ((0, True), (2, True), (3, False), (5, False)):
        decision = made.act(view_of(world, made, moves=moves))
        policy = decision.trace["policy"][0, 0]
        shares = np.bincount(decision.action[:, 0], minlength=9) / 400
        if drawn:
            np.testing.assert_allclose(shares, policy, atol=0.1)
            assert (shares > 0).sum() > 1
        else:
            assert shares.max() == 1
            assert shares.argmax() == policy.argmax()


def test_a_low_temperature_draws_the_most_visited_moves_more_often():
    world, shares = world_of(400), []
    for value in (0.4, 2.5):
        _, made = player(world, noise=RootNoiseSettings(0.0), temperature=TemperatureSettings(value))
        decision = made.act(view_of(world, made))
        expected = decision.trace["policy"][0, 0] ** (1 / value)
        shares.append(np.bincount(decision.action[:, 0], minlength=9) / 400)
        np.testing.assert_allclose(shares[-1], expected / expected.sum(), atol=0.1)
    assert shares[0].max() > shares[1].max() + 0.15


def test_the_temperature_counts_a_players_own_moves():
    world = world_of(2)
    runner = Runner(world, actors(player(world)), 0)
    made = runner.play(4, 1, 0.0)
    memory = made.decisions["team"].memory
    assert memory[-1, :, :, 0].tolist() == [[2, 2], [2, 2]]  # four moves, two by each


@pytest.mark.parametrize("temperature", [0.25, 1.0, 2.0])
def test_draws_follow_the_temperature(temperature):
    policy = np.array([0.1, 0.0, 0.6, 0.3], np.float32)
    uniform = (np.arange(5000) + 0.5) / 5000
    shares = np.bincount(draw(np.repeat(policy[None], 5000, axis=0), uniform, temperature), minlength=4) / 5000
    expected = policy ** (1 / temperature)
    np.testing.assert_allclose(shares, expected / expected.sum(), atol=1e-3)


def test_a_very_low_temperature_plays_the_most_visited_move():
    policy = np.array([[0.0, 0.1, 0.6, 0.3], [0.0, 0.2, 0.05, 0.75]], np.float32)
    for temperature in (1e-2, 1e-4, 1e-9):
        for uniform in (1e-6, 0.5, 1 - 1e-12):
            assert draw(policy, np.full(2, uniform), temperature).tolist() == [2, 3]


def test_draws_at_the_edges_are_possible_moves():
    policy = np.array([[0.0, 0.5, 0.0, 0.5, 0.0]], np.float32)
    drawn = [int(draw(policy, np.array([u]), 1.0)[0]) for u in (0.0, 0.4999, 0.5, np.nextafter(1.0, 0))]
    assert drawn == [1, 1, 3, 3]


# Playout cap ------------------------------------------------------------------------------------------


def test_fast_searches_are_marked_and_have_no_noise():
    world = world_of(400)
    cap = PlayoutCapSettings(full=0.6, simulations=5)
    _, made = player(world, playout_cap=cap, noise=RootNoiseSettings(0.9), temperature=TemperatureSettings(moves=0))
    trace = made.act(view_of(world, made)).trace
    full, visits = trace["full"][:, 0], trace["visits"][:, 0]
    assert full.mean() == pytest.approx(0.6, abs=0.08)
    assert (visits[full].sum(axis=1) == 12).all()
    assert (visits[~full].sum(axis=1) == 5).all()
    assert (visits[~full] == visits[~full][0]).all()
    assert not (visits[full] == visits[full][0]).all()
    assert not trace["full"][:, 1].any()  # who does not act


def test_outside_of_training_every_search_is_full():
    world = world_of(20)
    _, made = player(world, playout_cap=PlayoutCapSettings(full=0.3, simulations=5))
    for view in (view_of(world, made, greedy=True), view_of(world, made, progress=None)):
        trace = made.act(view).trace
        assert trace["full"][:, 0].all()
        assert (trace["visits"][:, 0].sum(axis=1) == 12).all()


def test_fast_searches_that_are_larger_than_full_ones_stay_within_their_trees():
    world = world_of(40)
    _, made = player(world, simulations=3, playout_cap=PlayoutCapSettings(full=0.5, simulations=20))
    trace = made.act(view_of(world, made)).trace
    full, visits = trace["full"][:, 0], trace["visits"][:, 0].sum(axis=1)
    assert set(visits[full]) == {3}
    assert set(visits[~full]) == {20}
    trees = made._trees[world]
    assert trees.size.max() <= trees.position.shape[1]


# What a decision tells --------------------------------------------------------------------------------


def test_the_trace_tells_visits_policy_and_value():
    positions = random_positions(GAME, 10, 7)
    world = put(world_of(10), positions)
    _, made = player(world, simulations=20)
    view = view_of(world, made, greedy=True)
    decision, rows = made.act(view), np.arange(10)
    movers = positions[:, 0]
    trace = {name: column[rows, movers] for name, column in decision.trace.items()}
    idle = {name: column[rows, 1 - movers] for name, column in decision.trace.items()}
    assert not any(column.any() for column in idle.values())
    legal = GAME.legal(positions)
    assert not trace["visits"][~legal].any()
    np.testing.assert_allclose(trace["policy"].sum(axis=1), 1, atol=1e-5)
    assert (np.abs(trace["value"]) <= 1).all()
    assert np.array_equal(decision.action[rows, movers], trace["policy"].argmax(axis=1))
    solved = trace["solved"]
    assert 0 < solved.sum() < 10
    assert (trace["visits"][~solved].sum(axis=1) == 20).all()
    assert set(trace["value"][solved]) <= {-1, 0, 1}


def test_a_forced_move_needs_no_search():
    position = random_positions(GAME, 200, 8, 3)
    forced = position[GAME.legal(position).sum(axis=1) == 1][:1]
    world = put(world_of(1), forced)
    for method in ("puct", "gumbel"):
        _, made = player(world, method=method)
        decision = made.act(view_of(world, made))
        only = GAME.legal(forced)[0].argmax()
        assert decision.action[0, forced[0, 0]] == only
        assert decision.trace["policy"][0, forced[0, 0]].tolist() == np.eye(9)[only].tolist()
        assert not decision.trace["visits"].any()


def test_the_network_alone():
    world = put(world_of(2000), np.repeat(random_positions(GAME, 1, 3, 4), 2000, axis=0))
    _, made = player(world, play="network")
    view = view_of(world, made)
    probabilities, mover = np.exp(made.log_probs(view)), int(view.acting[0].argmax())
    legal = view.mask[0, mover]
    assert np.allclose(probabilities[:, mover].sum(axis=-1), 1, atol=1e-5)
    assert (probabilities[0, mover][~legal] < 1e-6).all()
    shares = np.bincount(made.act(view).action[:, mover], minlength=9) / 2000
    np.testing.assert_allclose(shares, probabilities[0, mover], atol=0.05)
    greedy = made.act(replace(view, greedy=True))
    assert (greedy.action[:, mover] == probabilities[0, mover].argmax()).all()
    assert greedy.trace is None


def test_the_networks_draws_in_one_copy_do_not_depend_on_who_acts_in_others():
    world = put(world_of(6), [[0, 0, 0]] * 6)
    _, cross = player(world, [0], play="network")
    every = cross.act(view_of(world, cross)).action[:, 0]
    some = put(world_of(6), [[n % 2, 0, 0] for n in range(6)])
    assert np.array_equal(cross.act(view_of(some, cross)).action[::2, 0], every[::2])


def test_log_probs_are_those_of_the_network():
    positions = random_positions(GAME, 5, 4)
    world = put(world_of(5), positions)
    _, made = player(world)
    found = made.log_probs(view_of(world, made))[np.arange(5), positions[:, 0]]
    logits = made.network.evaluate(GAME.observe(positions))[0]
    for row, logit, legal in zip(found, logits, GAME.legal(positions), strict=True):
        expected = np.log(np.exp(logit[legal]) / np.exp(logit[legal]).sum())
        np.testing.assert_allclose(row[legal], expected, atol=1e-5)
    _, without = player(world, network=PositionNetworkSettings())
    with pytest.raises(CoterieError, match="without a network has no log_probs"):
        without.log_probs(view_of(world, without))


# Reuse and state --------------------------------------------------------------------------------------


def play_and_watch(monkeypatch, made, world, steps):
    """Budgets of the searches `[steps, N]`, and how many copies carried a tree over in each."""
    budgets, carried = [], []
    run = made.search.run

    def watched(trees, roots, positions, fresh, random, kept=()):
        budgets.append(roots.budget.copy())
        carried.append(len(kept))
        return run(trees, roots, positions, fresh, random, kept)

    monkeypatch.setattr(made.search, "run", watched)
    own = Runner(world, actors((made.group_spec, made)), 0).play(steps, 1, 0.0).decisions["team"]
    return np.array(budgets), carried, own


@pytest.mark.parametrize("options", [{}, {"transpositions": True}])
def test_a_search_runs_its_simulations_on_top_of_carried_visits(monkeypatch, options):
    world = world_of(3)
    _, made = player(world, reuse=True, simulations=40, **options)
    budgets, carried, own = play_and_watch(monkeypatch, made, world, 4)
    assert (budgets == 40).all()
    assert carried[:2] == [0, 0]  # the players' first moves
    assert min(carried[2:]) > 0
    visits = own.trace["visits"].sum(axis=-1)[own.valid]
    open_roots = ~own.trace["solved"][own.valid]
    assert (visits[open_roots] >= 40).all()
    assert visits.max() > 40


def test_a_full_search_after_fast_ones_is_a_full_one(monkeypatch):
    """Carried visits of a full search may exceed the simulations of a fast one, and the other way round."""
    world = world_of(20)
    _, made = player(world, reuse=True, simulations=24, playout_cap=PlayoutCapSettings(0.5, 6))
    budgets, carried, own = play_and_watch(monkeypatch, made, world, 5)
    assert sum(carried) > 20
    assert set(budgets.ravel()) == {6, 24}
    full = (own.trace["full"] & ~own.trace["solved"])[own.valid]
    assert (own.trace["visits"].sum(axis=-1)[own.valid][full] >= 24).all()


@pytest.mark.parametrize("change", ["in place", "loaded", "none", "the same loaded"])
def test_trees_of_other_weights_are_not_carried_over(monkeypatch, change):
    world = world_of(4)
    _, made = player(world, reuse=True, simulations=40)
    runner = Runner(world, actors((made.group_spec, made)), 0)
    runner.play(3, 1, 0.0)
    carried = []
    run = made.search.run
    monkeypatch.setattr(made.search, "run", lambda *given: carried.append(len(given[5])) or run(*given))
    if change == "in place":
        made.network.flat.array[:] *= 1.01  # as a gradient step does
    elif change == "loaded":
        made.load(player(world, network=MLP)[1].state() | {"net": scaled(made.state()["net"])})
    elif change == "the same loaded":
        made.load(through_checkpoint(made.state()))  # as a worker process does in every iteration
    runner.play(1, 2, 0.0)
    assert (carried[0] > 0) == (change in ("none", "the same loaded"))


def scaled(state):
    return {name: 1.01 * value for name, value in state.items()}


@pytest.mark.parametrize("same", [True, False])
def test_saved_trees_are_those_of_their_weights(monkeypatch, same):
    """A worker that resumes gets its trees before its weights."""
    world = world_of(4)
    _, made = player(world, reuse=True, simulations=40)
    runner = Runner(world, actors((made.group_spec, made)), 0)
    runner.play(3, 1, 0.0)
    _, other = player(world, reuse=True, simulations=40)
    other.network.flat.array[:] = 0
    resumed = Runner(world_of(4), actors((other.group_spec, other)), 0)
    resumed.load(through_checkpoint(runner.save()))
    if same:
        other.load(made.state())
    carried = []
    run = other.search.run
    monkeypatch.setattr(other.search, "run", lambda *given: carried.append(len(given[5])) or run(*given))
    resumed.play(1, 2, 0.0)
    assert (carried[0] > 0) == same


def test_noise_is_mixed_into_a_carried_root_anew():
    """The prior is 0.75 p + 0.25 noise after a full search, and p after a fast one, whatever it was before."""
    world = world_of(30)
    cap = PlayoutCapSettings(0.5, 20)
    _, made = player(world, reuse=True, simulations=24, playout_cap=cap, noise=RootNoiseSettings(0.25))
    runner, searches = Runner(world, actors((made.group_spec, made)), 0), []
    run = made.search.run
    made.search.run = lambda trees, roots, *more: searches.append((roots, more[3])) or run(trees, roots, *more)
    seen = set()
    for iteration in range(1, 6):
        runner.play(1, iteration, 0.0)
        trees, (roots, carried) = made._trees[world], searches[-1]
        for n in carried:
            legal = trees.legal[n, 0]
            logits = made.network.evaluate(GAME.observe(trees.position[n, :1]))[0][0].astype(np.float64)
            p = np.exp(logits[legal]) / np.exp(logits[legal]).sum()
            full = roots.budget[n] == 24
            expected = 0.75 * p + 0.25 * roots.noise[n][legal] if full else p
            np.testing.assert_allclose(trees.prior[n, 0][legal], expected, atol=1e-5)
            if full:
                assert np.abs(trees.prior[n, 0][legal] - p).max() > 1e-3 or legal.sum() == 1
            seen.add(bool(full))
    assert seen == {True, False}


@pytest.mark.parametrize("options", [{}, {"transpositions": True}])
def test_carried_trees_stay_within_their_room(options):
    world = world_of(16, first="random")
    _, made = player(world, reuse=True, simulations=30, noise=RootNoiseSettings(0.6), **options)
    runner = Runner(world, actors((made.group_spec, made)), 0)
    runner.begin(1)
    for _ in range(40):
        runner.step()
        trees = made._trees[world]
        assert trees.size.max() <= 61
        assert max(trees.visits[n, : trees.size[n]].max() for n in range(16)) < len(made.search.formula.scale)
        for n in range(16):
            assert trees.child[n, : trees.size[n]].max() < trees.size[n]


@pytest.mark.parametrize("options", [{}, {"transpositions": True}, {"playout_cap": PlayoutCapSettings(0.5, 6)}])
def test_play_with_carried_trees_goes_on_the_same_after_save_and_load(options):
    def start():
        world = world_of(5, first="random")
        _, made = player(world, reuse=True, simulations=24, **options)
        return Runner(world, actors((made.group_spec, made)), 0)

    one, other = start(), start()
    one.play(7, 1, 0.0)
    other.play(3, 5, 0.0)  # something else before
    other.load(through_checkpoint(one.save()))
    for iteration in (2, 3):
        left, right = (runner.play(6, iteration, 0.5).decisions["team"] for runner in (one, other))
        assert np.array_equal(left.action, right.action)
        for name, column in left.trace.items():
            assert np.array_equal(column[left.valid], right.trace[name][right.valid])


def test_carried_trees_that_are_too_large_are_refused():
    world = world_of(2)
    _, large = player(world, reuse=True, simulations=30)
    large.act(view_of(world, large))
    saved = large.episode_state(world)
    _, small = player(world, reuse=True, simulations=10)
    with pytest.raises(ValueError, match=r"group 'team': reuse=true: simulations=10 is less than the saved trees hold"):
        small.load_episode_state(world, saved)
    _, larger = player(world, reuse=True, simulations=40)
    larger.load_episode_state(world, saved)
    assert np.array_equal(larger._trees[world].size, large._trees[world].size)


def test_without_reuse_there_is_nothing_to_keep():
    world = world_of(2)
    _, made = player(world)
    made.act(view_of(world, made))
    assert made.episode_state(world) == {}


def test_two_worlds_have_trees_of_their_own():
    worlds = world_of(3), world_of(3)
    _, made = player(worlds[0], reuse=True, simulations=24)
    _, apart = player(worlds[0], reuse=True, simulations=24)
    one, other = (Runner(world, actors((made.group_spec, made)), 0) for world in worlds)
    alone = Runner(world_of(3), actors((apart.group_spec, apart)), 0)
    for runner in (one, other, alone):
        runner.begin(1)
    for _ in range(8):
        first, _, third = one.step(), other.step(), alone.step()
        assert np.array_equal(first["team"][1].action, third["team"][1].action)


def test_state_and_load():
    world = world_of(4)
    _, one = player(world)
    _, other = player(world)
    other.network.flat.array[:] = 0
    other.load(one.state())
    view = view_of(world, one, greedy=True)
    assert np.array_equal(one.act(view).trace["value"], other.act(view).trace["value"])
    with pytest.raises(ValueError, match="group 'team': the saved policy has no network"):
        other.load({})
    _, wide = player(world, network=PositionNetworkSettings(kind="mlp", hidden=(8,)))
    with pytest.raises(ValueError, match="group 'team'"):
        wide.load(one.state())


# Settings ---------------------------------------------------------------------------------------------

TABLE = """\
world: {name: tictactoe}
groups: {all: {policy: {name: search, simulations: 4}}}
train: {num_envs: 2, rollout_steps: 4, total_steps: 16, video: false, tensorboard: false, evaluate_episodes: 2}
"""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["groups.all.policy.simulations=0"], r"groups\.all\.policy.*simulations must be at least 1, got 0"),
        (["groups.all.policy.play=network"], r"groups\.all\.policy.*play=network needs a network"),
        (
            ["groups.all.policy.reuse=true", "groups.all.policy.method=gumbel"],
            r"groups\.all\.policy.*reuse=true needs method=puct",
        ),
        (
            ["groups.all.policy.noise.alpha=0.3", "groups.all.policy.method=gumbel"],
            r"groups\.all\.policy.*noise needs method=puct.*noise\.fraction=0\.25 noise\.alpha=null",
        ),
        (
            ["groups.all.policy.temperature.moves=8", "groups.all.policy.method=gumbel"],
            r"groups\.all\.policy.*temperature needs method=puct.*temperature\.value=1 temperature\.moves=15",
        ),
        (["groups.all.parameters=individual"], r"groups\.all.*parameters=individual"),
        (["groups.all.policy.noise.fraction=1.5"], r"noise.*fraction must lie in \[0, 1\], got 1.5"),
        (["groups.all.policy.noise.alpha=0"], r"noise.*alpha must be above 0, got 0"),
        (["groups.all.policy.temperature.value=0"], r"temperature.*value must be .*0"),
        (["groups.all.policy.gumbel.considered=1"], r"gumbel.*considered must be at least 2, got 1"),
        (["groups.all.policy.puct.c_base=0"], r"puct.*c_base must be at least 1, got 0"),
        (["groups.all.policy.playout_cap.full=0"], r"playout_cap.*full must be .*0"),
        (["groups.all.policy.playouts=-1"], r"playouts must be at least 0, got -1"),
        (["groups.all.policy.network.kind=deep"], r"network\.kind.*deep"),
        (["world.name=gridworld"], r"group 'all'.*search.*needs a world with the capability HasGame; 'Gridworld'"),
        (["world.win_reward=2"], r"world\.win_reward=2.*set it to 1"),
    ],
)
def test_bad_settings(tmp_path, words, said):
    experiment = written(tmp_path / "table.yaml", TABLE)
    with pytest.raises((ConfigError, CoterieError), match=said):
        coterie.train(str(experiment), words, out=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("settings", "where", "expected"),
    [
        ({"playouts": 7}, "playouts", 7),
        ({"transpositions": True}, "transpositions", True),
        ({"gumbel": GumbelSettings(considered=5)}, "considered", 5),
        ({"method": "gumbel"}, "formula.gumbel", True),
        ({"gumbel": GumbelSettings(c_visit=3.0)}, "formula.c_visit", 3.0),
        ({"gumbel": GumbelSettings(c_scale=0.3)}, "formula.c_scale", 0.3),
        ({"puct": PuctSettings(first_play="zero")}, "formula.from_parent", False),
    ],
)
def test_settings_reach_the_search(settings, where, expected):
    world = world_of(1)
    found = [attrgetter(where)(player(world, **one)[1].search) for one in ({}, settings)]
    assert found[0] != expected
    assert found[1] == expected


def test_constants_of_puct_reach_the_search():
    """c(s) √N(s) with c_init 0.7 and c_base 5."""
    _, made = player(world_of(1), puct=PuctSettings(c_init=0.7, c_base=5.0))
    visits = np.arange(14)
    expected = (np.log((1 + visits + 5) / 5) + 0.7) * np.sqrt(visits)
    np.testing.assert_allclose(made.search.formula.scale, expected, rtol=1e-6)


def test_the_sizes_of_networks_are_those_of_the_settings():
    settings = PositionNetworkSettings(kind="residual", channels=6, blocks=3, value_width=5, device="cpu")
    net = player(world_of(1), network=settings)[1].network.net
    assert (net.stem.out_channels, len(net.blocks), net.value_hidden.out_features) == (6, 3, 5)
    wide = player(world_of(1), network=PositionNetworkSettings(kind="mlp", hidden=(7, 5)))[1].network
    assert wide.flat.array.size == (18 * 7 + 7) + (7 * 5 + 5) + (5 * 10 + 10)


def test_a_residual_network_needs_planes():
    class Flat(Tictactoe):
        @property
        def game(self):
            return replace(GAME, observation=replace(GAME.observation, shape=(18,)), symmetries=GAME.symmetries)

    world = Flat(TictactoeSettings(), 1)
    with pytest.raises(ValueError, match=r"network.kind=residual needs planes .*'tictactoe' has \(18,\)"):
        player(world, network=PositionNetworkSettings(kind="residual"))


def test_a_search_player_needs_the_world_itself():
    world = world_of(2)
    _, made = player(world)
    view = replace(view_of(world, made), world=None)
    with pytest.raises(CoterieError, match="group 'team': a search player needs the world itself"):
        made.act(view)


def test_a_search_player_cannot_be_built_without_a_world():
    with pytest.raises(ValueError, match="a search player needs a world with the capability HasGame"):
        SearchPolicy(SearchSettings(), group_spec())
