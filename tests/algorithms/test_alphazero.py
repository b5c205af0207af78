"""AlphaZero: what it learns from, its loss, symmetries, gate and ratings, and that it learns."""

from dataclasses import replace

import numpy as np
import pytest

import coterie
from coterie.algorithms.alphazero import alphazero, arena
from coterie.algorithms.alphazero.alphazero import (
    AlphaZeroSettings,
    GateSettings,
    PositionReplaySettings,
    Positions,
    turned,
)
from coterie.algorithms.alphazero.arena import EloPool, EloSettings, Match, play_match
from coterie.config.schema import ConfigError
from coterie.core.types import CoterieError
from coterie.policies.search.networks import PositionNetwork, PositionNetworkSettings
from coterie.policies.search.policy import PlayoutCapSettings, SearchSettings, TemperatureSettings, make_search
from coterie.policies.search.search import RootNoiseSettings
from coterie.preferences.standard import Team, TeamSettings
from coterie.testing.comparison import through_checkpoint
from coterie.worlds.boards.tictactoe import GAME, Tictactoe, TictactoeSettings
from helpers.alphazero import MLP, Watched, learn, make_learner, stored
from helpers.search import after, random_positions, stirred
from helpers.small_worlds import generator

RESIDUAL = PositionNetworkSettings(kind="residual", channels=4, blocks=1, value_width=4, device="cpu")


# Targets ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("first", ["player_0", "random"])
@pytest.mark.parametrize("columns", [None, [0], [1]], ids=["both seats", "seat 0", "seat 1"])
@pytest.mark.parametrize("steps", [1, 2, 3, 7, 20])
def test_every_decision_of_a_finished_game_is_stored_once_with_its_outcome(steps, columns, first):
    one = make_learner(Tictactoe(TictactoeSettings(first=first), 3), columns)
    watched, made = Watched(one), 0
    for iteration in range(1, 60 // steps + 2):
        own = watched.play(steps, iteration)
        made += one.store(own)
        np.testing.assert_allclose(stored(one), watched.expected(), atol=1e-6)
    assert len(watched.finished) > 40
    assert {won for _, won in watched.finished} == {-1.0, 0.0, 1.0} or columns is not None
    opened = int(watched.runner.opened["team"].row.active.sum())  # they are stored once their outcome is known
    assert made == len(watched.finished) + sum(map(len, watched.running)) - opened
    assert one.replay.size == len(watched.finished)


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_targets_mix_outcomes_with_root_values(share):
    one = make_learner(root_value=share)
    watched = Watched(one)
    for iteration in range(1, 6):
        one.store(watched.play(5, iteration))
    assert one.replay.size > 20
    np.testing.assert_allclose(stored(one), watched.expected(share), atol=1e-5)


def test_fast_searches_are_not_learned_from():
    one = make_learner(search={"playout_cap": PlayoutCapSettings(full=0.4, simulations=2)})
    watched = Watched(one)
    for iteration in range(1, 10):
        one.store(watched.play(6, iteration))
    full = sum(bool(d["full"]) for d, _ in watched.finished)
    assert one.replay.size == full
    assert 0.2 < full / len(watched.finished) < 0.6
    np.testing.assert_allclose(stored(one), watched.expected(), atol=1e-6)


def test_policies_are_those_of_legal_actions():
    one = make_learner()
    watched = Watched(one)
    one.store(watched.play(30, 1))
    rows, size = one.replay.rows, one.replay.size
    assert size > 40
    assert not rows.policy[:size][~rows.legal[:size]].any()
    np.testing.assert_allclose(rows.policy[:size].sum(axis=1), 1, atol=1e-5)
    taken = rows.observation[:size, :9] + rows.observation[:size, 9:]
    assert np.array_equal(rows.legal[:size], taken == 0)


def test_a_game_that_is_cut_off_is_refused():
    one = make_learner()
    own = Watched(one).play(4, 1)
    cut = own.truncated.copy()
    cut[-1, 0] = True
    with pytest.raises(CoterieError, match="group 'team': a game was cut off before its end and has no outcome"):
        one.store(replace(own, truncated=cut))


def test_experience_without_searches_is_refused():
    one = make_learner()
    with pytest.raises(CoterieError, match="group 'team': alphazero learns from searches"):
        one.store(replace(Watched(one).play(4, 1), trace=None))


@pytest.mark.parametrize(
    ("search", "said"),
    [
        ({"network": PositionNetworkSettings()}, "set groups.team.policy.network.kind=mlp"),
        ({"play": "network"}, "set groups.team.policy.play=search"),
        (
            {"simulations": 8, "playout_cap": PlayoutCapSettings()},
            r"groups\.team\.policy\.playout_cap\.simulations=16: .* at most the 8 simulations of a full one",
        ),
    ],
)
def test_players_that_cannot_learn_are_refused(search, said):
    with pytest.raises(ValueError, match=said):
        make_learner(search=search)


@pytest.mark.parametrize("preference", ["team", "cvar", "potential_shaping"])
def test_preferences_that_change_the_outcome_are_refused(tmp_path, preference):
    """With `team`, the rewards of both players average to 0, and the network would learn that every game is drawn."""
    table = {"world": "tictactoe", "groups": {"duo": {"policy": DUO, "learner": "alphazero"}}}
    said = rf"groups\.duo\.preference: .*'alphazero' does not support '{preference}'; set .*preference=individual"
    with pytest.raises(ConfigError, match=said):
        coterie.train(table, [f"groups.duo.preference={preference}"], out=tmp_path / "run", quiet=True)


DUO = {"name": "search", "simulations": 2, "network": {"kind": "mlp", "hidden": [8]}}


def test_a_penalty_on_outcomes_is_refused():
    one = make_learner()
    one.preference = Team(TeamSettings())
    with pytest.raises(
        CoterieError, match=r"groups\.team: .*set groups\.team\.preference=individual and .*action=veto"
    ):
        learn(one, Watched(one).play(20, 1))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (lambda: AlphaZeroSettings(learning_rate=0.0), "learning_rate"),
        (lambda: AlphaZeroSettings(root_value=1.5), "root_value must lie in"),
        (lambda: AlphaZeroSettings(batch_size=0), "batch_size must be at least 1"),
        (lambda: PositionReplaySettings(100, 200), "learning_starts must be at most size"),
        (lambda: GateSettings(games=5), "games must be even, half of them from each seat; got 5"),
        (lambda: GateSettings(score=1.2), "score must lie in"),
        (lambda: EloSettings(games=0), "games must be at least 2, got 0"),
        (lambda: EloSettings(simulations=0), "simulations must be at least 1, got 0"),
    ],
)
def test_bad_settings(settings, said):
    with pytest.raises(ValueError, match=said):
        settings()


@pytest.mark.parametrize("columns", [None, [0], [1]], ids=["both seats", "seat 0", "seat 1"])
def test_metrics_count_every_finished_game_once(columns):
    one = make_learner(columns=columns)
    runner, finished = Watched(one).runner, 0
    for iteration in range(1, 7):
        rollout = runner.play(5, iteration, 0.0)
        finished += len(rollout.episodes.length)
        assert learn(one, rollout.decisions["team"], iteration)["games"] == finished
    assert finished > 10


@pytest.mark.slow
def test_metrics_tell_of_the_searches_of_this_rollout():
    one = make_learner(search={"simulations": 12})
    watched = Watched(one)
    for iteration in (1, 2, 3):
        own = watched.play(5, iteration)
        metrics = learn(one, own, iteration)
        assert own.valid.sum() >= 18
        visits = own.trace["visits"][own.valid].sum(axis=-1)
        assert metrics["search/visits"] == pytest.approx(visits.mean())
        assert metrics["search/solved"] == pytest.approx(own.trace["solved"][own.valid].mean())
        assert metrics["search/certainty"] == pytest.approx(np.abs(own.trace["value"][own.valid]).mean())


# The loss ---------------------------------------------------------------------------------------------


def filled(one, count=64, seed=0):
    """Random rows in the replay: positions of tic-tac-toe with random policies and outcomes."""
    random, positions = generator(seed), random_positions(GAME, count, 6, seed)
    legal = GAME.legal(positions)
    policy = np.where(legal, random.random(legal.shape), 0)
    policy /= policy.sum(axis=1, keepdims=True)
    target = random.choice([-1.0, 0.0, 1.0], count)
    one.replay.add(Positions(GAME.observe(positions), legal, policy.astype(np.float32), target.astype(np.float32)))
    return one


@pytest.mark.parametrize("network", [MLP, RESIDUAL], ids=["mlp", "residual"])
@pytest.mark.parametrize("value_weight", [1.0, 0.3])
def test_the_loss_against_numpy(network, value_weight):
    one = filled(make_learner(search={"network": network}, symmetries=False, value_weight=value_weight, batch_size=32))
    rows = (generator(3).random(32) * one.replay.size).astype(int)
    batch = Positions(*(column[rows] for column in one.replay.rows))
    logits, value = (a.astype(np.float64) for a in one.network.evaluate(batch.observation))
    crossed = []
    for logit, legal, policy in zip(logits, batch.legal, batch.policy, strict=True):
        log_probs = logit[legal] - np.log(np.exp(logit[legal]).sum())
        crossed.append(-(policy[legal] * log_probs).sum())
    expected = np.mean(crossed), np.mean((batch.target - value) ** 2)
    found = one.step(generator(3), 1e-3)
    np.testing.assert_allclose(found, [expected[0] + value_weight * expected[1], *expected], rtol=1e-4)


@pytest.mark.parametrize("network", [MLP, RESIDUAL], ids=["mlp", "residual"])
def test_steps_lower_both_losses(network):
    one = filled(make_learner(search={"network": network}, batch_size=64, symmetries=False))
    first = one.step(generator(0), 1e-2)
    for _ in range(60):
        last = one.step(generator(0), 1e-2)
    assert (last[1:] < first[1:]).all()


def test_weight_decay():
    plain, decayed = (filled(make_learner(weight_decay=decay)) for decay in (0.0, 0.1))
    for one in (plain, decayed):
        one.step(generator(), 0.01)
    np.testing.assert_allclose(decayed.network.flat.array, plain.network.flat.array * (1 - 0.01 * 0.1), rtol=1e-6)


@pytest.mark.parametrize(
    ("schedule", "rates"), [("constant", [1, 1, 1]), ("linear", [1, 0.5, 0]), ("cosine", [1, 0.5, 0])]
)
def test_the_learning_rate_follows_its_schedule(schedule, rates):
    settings = AlphaZeroSettings(learning_rate=0.01, learning_rate_schedule=schedule)
    np.testing.assert_allclose([settings.rate(at) for at in (0, 0.5, 1)], np.multiply(0.01, rates), atol=1e-9)


@pytest.mark.parametrize(("progress", "rate"), [(0.0, 0.04), (0.75, 0.01)])
def test_steps_take_the_learning_rate_of_their_time_and_the_largest_gradient(monkeypatch, progress, rate):
    taken, adam_step = [], alphazero.networks.adam_step
    monkeypatch.setattr(
        alphazero.networks, "adam_step", lambda flats, loss, *more: taken.append(more) or adam_step(flats, loss, *more)
    )
    one = filled(make_learner(learning_rate=0.04, learning_rate_schedule="linear", max_grad_norm=0.3))
    metrics = learn(one, Watched(one).play(5, 1), progress=progress)
    assert metrics["learning_rate"] == pytest.approx(rate)
    assert set(taken) == {(metrics["learning_rate"], 0.3)}


def test_learning_starts_with_enough_positions_and_the_oldest_go():
    one = make_learner(replay=PositionReplaySettings(60, 40))
    watched, sizes = Watched(one), []
    for iteration in range(1, 12):
        metrics = learn(one, watched.play(5, iteration), iteration)
        sizes.append(metrics["replay"])
        assert ("updates" in metrics) == (metrics["replay"] >= 40)
    assert 0 < sizes[1] < 40
    assert sizes[-1] == 60


def test_updates_are_due_per_decision():
    one = make_learner(updates_per_step=0.3, replay=PositionReplaySettings(500, 1))
    watched, decisions, updates = Watched(one), 0, 0.0
    for iteration in range(1, 8):
        own = watched.play(5, iteration)
        before = one.replay.ready
        metrics = learn(one, own, iteration)
        if before or one.replay.ready:
            decisions += int(own.valid.sum())
        updates += metrics.get("updates", 0)
    assert updates == int(0.3 * decisions + 1e-9)
    assert updates > 10


# Symmetries -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(8))
def test_turned_positions_are_those_of_the_turned_game(number):
    symmetry, random = GAME.symmetries[number], generator(number)
    inverse = np.argsort(symmetry.actions)
    for _ in range(20):
        moves = random.permutation(9)[: random.integers(0, 5)]
        position, mirrored = after(GAME, moves), after(GAME, inverse[moves])
        policy = np.where(GAME.legal(position[None]), random.random((1, 9)), 0).astype(np.float32)
        batch = Positions(GAME.observe(position[None]), GAME.legal(position[None]), policy, np.ones(1, np.float32))
        found = turned(batch, symmetry.cells[None], symmetry.actions[None])
        assert np.array_equal(found.observation, GAME.observe(mirrored[None]))
        assert np.array_equal(found.legal, GAME.legal(mirrored[None]))
        for action in np.flatnonzero(found.legal[0]):  # playing either action leads to turned positions again
            assert found.policy[0, action] == policy[0, symmetry.actions[action]]
            here, there = position[None].copy(), mirrored[None].copy()
            GAME.apply(here, symmetry.actions[action : action + 1])
            GAME.apply(there, np.array([action]))
            assert np.array_equal(GAME.observe(there)[0], GAME.observe(here)[0, symmetry.cells])
        assert found.target[0] == 1


def test_symmetries_are_used_unless_switched_off(monkeypatch):
    seen = []
    monkeypatch.setattr(
        alphazero, "turned", lambda batch, cells, moves: seen.append(cells) or turned(batch, cells, moves)
    )
    filled(make_learner(batch_size=200)).step(generator(), 1e-3)
    filled(make_learner(symmetries=False)).step(generator(), 1e-3)
    (cells,) = seen
    assert len(np.unique(cells, axis=0)) == 8


# Matches ----------------------------------------------------------------------------------------------


def search_with(network, simulations=8, **settings):
    return make_search(SearchSettings(simulations=simulations, network=MLP, **settings), GAME, network)


@pytest.mark.slow
def test_a_match_is_played_from_both_seats(monkeypatch):
    seats = []
    strong, weak = search_with(None, 60, playouts=2), search_with(None, 60, playouts=2)
    run = strong.run
    monkeypatch.setattr(
        strong, "run", lambda t, r, p, rows, *more: seats.append(p[rows, 0]) or run(t, r, p, rows, *more)
    )
    match = play_match(GAME, [strong, weak], 60, 20, generator(), drawn=1)
    assert sum(match) == 20
    first = seats[0].tolist() + seats[1].tolist()
    assert sorted(first).count(0) >= 10
    assert sorted(first).count(1) >= 10
    assert match.draws >= 5
    assert match.score == (match.wins + match.draws / 2) / 20


def test_the_stronger_player_wins_whatever_its_place():
    strong, weak = search_with(None, 60, playouts=4), search_with(stirred(GAME, 3, scale=2.0), 60)
    monkey = weak.run
    weak.run = lambda trees, roots, *more: monkey(trees, roots._replace(budget=np.minimum(roots.budget, 1)), *more)
    ahead = play_match(GAME, [strong, weak], 60, 60, generator())
    behind = play_match(GAME, [weak, strong], 60, 60, generator())
    assert ahead.score > 0.7
    assert behind.score < 0.3
    assert ahead.wins > 30


def test_a_game_longer_than_its_limit_is_an_error():
    short = replace(GAME, max_moves=4)
    pair = [make_search(SearchSettings(simulations=2), short, None, 2) for _ in range(2)]
    for search in pair:
        search.playouts = 0
    with pytest.raises(CoterieError, match="'tictactoe': a match game did not end within max_moves=4"):
        play_match(short, pair, 2, 4, generator())


def weights(one):
    return one.policy.network.flat.array.copy()


@pytest.mark.parametrize(
    ("points", "passed"), [((30, 0, 10), True), ((22, 0, 18), True), ((21, 0, 19), False), ((0, 40, 0), False)]
)
def test_the_gate_lets_a_better_network_through(monkeypatch, points, passed):
    asked = []
    monkeypatch.setattr(alphazero, "play_match", lambda *words: asked.append(words[2:4]) or Match(*points))
    one = make_learner(gate=GateSettings(every=3, games=38, score=0.55))
    watched, before = Watched(one), weights(one)
    for iteration in (1, 2):
        assert "gate_score" not in learn(one, watched.play(20, iteration), iteration, iteration)
        assert np.array_equal(weights(one), before)  # what plays stays; what learns does not
        assert not np.array_equal(one.network.flat.array, before)
    metrics = learn(one, watched.play(20, 3), 3, 3)
    assert asked == [(6, 38)]  # simulations, games
    assert metrics["gate_score"] == Match(*points).score
    assert metrics["gate_passed"] == float(passed)
    assert np.array_equal(weights(one), one.network.flat.array if passed else before)
    learn(one, watched.play(20, 4), 4, 4)
    assert not np.array_equal(weights(one), one.network.flat.array)  # they are apart again


def test_a_worse_candidate_is_refused_and_a_better_one_accepted():
    """Real matches: a value head that is right about threats against its negation."""
    one = make_learner(search={"simulations": 10}, gate=GateSettings(every=1, games=60, score=0.55))
    good, bad = liking(3.0), liking(-3.0)
    for candidate, acting, passed in ((bad, good, 0.0), (good, bad, 1.0)):
        one.network.flat.array[:], one.acting.flat.array[:] = candidate, acting
        metrics = one.hold_matches(1, generator())
        assert metrics["gate_passed"] == passed, metrics
        assert np.array_equal(one.acting.flat.array, candidate if passed else acting)


def liking(centre):
    """Weights of a network that likes (or avoids) the centre and the corners."""
    network = PositionNetwork(MLP, GAME, 0)
    network.flat.array[:] = 0
    network.net.out.bias.data.reshape(-1)[[4, 0, 2, 6, 8]] = centre
    return network.flat.array.copy()


def test_a_network_without_a_gate_plays_at_once():
    one = make_learner()
    watched, before = Watched(one), weights(one)
    learn(one, watched.play(30, 1))
    assert not np.array_equal(weights(one), before)
    assert one.network is one.acting


def test_elo_by_hand(monkeypatch):
    """Scores of 40 games against past selves; a score s means 400 log10((s + ½) / (n − s + ½)) points."""
    asked = []
    results = iter([Match(20, 10, 10), Match(10, 20, 10), Match(30, 10, 0), Match(40, 0, 0), Match(0, 0, 40)])

    def play(game, players, simulations, games, random):
        asked.append((players[1].network.flat.array[0, 0], simulations, games))
        return next(results)

    monkeypatch.setattr(arena, "play_match", play)
    now, past = PositionNetwork(MLP, GAME, 0), PositionNetwork(MLP, GAME, 0)
    pool = EloPool(EloSettings(every=1, games=40, opponents=2, simulations=9), np.full_like(now.flat.array[0], 7.0))
    pair, ratings = [search_with(now), search_with(past)], []
    for mark in (1.0, 2.0, 3.0):
        now.flat.array[:] = mark
        ratings.append(pool.rate(GAME, pair, now, past, generator()))

    def gap(points):
        return 400 * np.log10((points + 0.5) / (40.5 - points))

    first = gap(25)
    second = (0 + gap(20) + first + gap(35)) / 2
    third = (first + gap(40) + second + gap(0)) / 2
    np.testing.assert_allclose(ratings, [first, second, third], rtol=1e-9)
    assert asked == [(7.0, 9, 40), (7.0, 9, 40), (1.0, 9, 40), (1.0, 9, 40), (2.0, 9, 40)]
    other = EloPool(pool.settings, np.zeros(3, np.float32))
    other.load(through_checkpoint(pool.state()))
    assert other.ratings == pool.ratings
    assert all(np.array_equal(a, b) for a, b in zip(other.weights, pool.weights, strict=True))


def test_elo_of_an_equal_network_is_near_zero():
    one = make_learner(elo=EloSettings(every=2, games=40, opponents=1, simulations=4))
    assert one.hold_matches(1, generator()) == {}
    assert abs(one.hold_matches(2, generator())["elo"]) < 120


# State ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [{}, {"gate": GateSettings(every=2, games=4, score=0.0)}, {"elo": EloSettings(every=2, games=4, simulations=2)}],
    ids=["plain", "gate", "elo"],
)
def test_a_loaded_learner_goes_on_as_the_saved_one(settings):
    one, other = (make_learner(**settings) for _ in range(2))
    watched = Watched(one)
    for iteration in (1, 2, 3):
        learn(one, watched.play(7, iteration), iteration, iteration)
    learn(other, Watched(other, 5).play(20, 1), 9)
    policy, state = through_checkpoint(one.policy.state()), through_checkpoint(one.state())
    own = [watched.play(7, iteration) for iteration in (4, 5)]
    other.policy.load(policy)
    other.load(state)
    for iteration, rollout in enumerate(own, 4):
        left, right = (learn(each, rollout, iteration, iteration) for each in (one, other))
        assert left == right
    assert np.array_equal(weights(one), weights(other))
    assert np.array_equal(one.network.flat.array, other.network.flat.array)
    assert np.array_equal(stored(one), stored(other))


@pytest.mark.parametrize("name", ["gate", "elo"])
def test_gate_and_ratings_cannot_come_or_go_on_resume(name):
    settings = {"gate": GateSettings(), "elo": EloSettings()}[name]
    for saved, loaded in ((settings, None), (None, settings)):
        one, other = make_learner(**{name: saved}), make_learner(**{name: loaded})
        with pytest.raises(ValueError, match=f"group 'team': learner.{name} cannot be added or removed"):
            other.load(one.state())


# It learns --------------------------------------------------------------------------------------------


def points_against_random(network, games=300):
    """The share of points of the network alone, without search, against random moves, both seats."""
    random, positions = generator(11), np.tile(GAME.start, (games, 1))
    seat, result, going = np.arange(games) % 2, np.zeros(games), np.arange(games)
    while len(going):
        legal = GAME.legal(positions[going])
        logits = network.evaluate(GAME.observe(positions[going]))[0]
        own = np.where(legal, logits, -np.inf).argmax(axis=1)
        chance = np.where(legal, random.random(legal.shape), -1).argmax(axis=1)
        moved = positions[going]
        GAME.apply(moved, np.where(moved[:, 0] == seat[going], own, chance))
        positions[going] = moved
        over, gets = GAME.outcome(moved)
        result[going[over]] = gets[over, seat[going[over]]]
        going = going[~over]
    return float((result > 0).mean() + (result == 0).mean() / 2)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["puct", "gumbel"])
def test_it_learns_tictactoe(method):
    world = Tictactoe(TictactoeSettings(), 64)
    one = make_learner(
        world,
        search={"simulations": 16, "method": method, "network": PositionNetworkSettings(kind="mlp", hidden=(64,))},
        batch_size=128,
        updates_per_step=0.06,
        learning_rate=5e-3,
        replay=PositionReplaySettings(6000, 200),
    )
    before = points_against_random(one.network)
    runner = Watched(one).runner
    for iteration in range(1, 11):
        learn(one, runner.play(10, iteration, iteration / 11).decisions["team"], iteration, iteration)
    found = points_against_random(one.network)
    assert before < 0.75
    assert found > 0.9


def lines_against(search, seat, simulations):
    """Games against every line of an opponent, all at once: (played, lost)."""
    positions, played, lost = GAME.start[None], 0, 0
    while len(positions):
        legal = GAME.legal(positions)
        if positions[0, 0] == seat:  # players alternate, so all positions have the same one to move
            roots = search.roots(legal, np.full(len(positions), simulations), None, RootNoiseSettings())
            trees = search.trees(len(positions), simulations)
            found = search.run(trees, roots, positions, np.arange(len(positions)), generator())
            legal = np.eye(9, dtype=bool)[found.action]
        rows, actions = np.nonzero(legal)
        positions = positions[rows]
        GAME.apply(positions, actions)
        over, payoffs = GAME.outcome(positions)
        played, lost = played + over.sum(), lost + (payoffs[over, seat] < 0).sum()
        positions = positions[~over]
    return int(played), int(lost)


@pytest.mark.slow
def test_a_short_training_never_loses_at_tictactoe():
    """With 32 simulations, from both seats, whatever the opponent plays."""
    network = PositionNetworkSettings(kind="mlp", hidden=(64,))
    one = make_learner(
        Tictactoe(TictactoeSettings(), 64),
        search={"simulations": 32, "network": network, "temperature": TemperatureSettings(2.0, 9)},
        batch_size=128,
        updates_per_step=0.06,
        learning_rate=5e-3,
        learning_rate_schedule="cosine",
        replay=PositionReplaySettings(8000, 200),
    )
    before = [lines_against(one.policy.search, seat, 32)[1] for seat in (0, 1)]
    runner = Watched(one).runner
    for iteration in range(1, 51):
        own = runner.play(10, iteration, iteration / 51).decisions["team"]
        learn(one, own, iteration, iteration, progress=iteration / 51)
    played, lost = zip(*(lines_against(one.policy.search, seat, 32) for seat in (0, 1)), strict=True)
    assert sum(before) > 20
    assert min(played) > 50
    assert lost == (0, 0)
