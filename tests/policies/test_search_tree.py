"""Search trees against a plain search written from the papers, and against cases computed by hand."""

import dataclasses

import numpy as np
import pytest
import torch

from coterie.core.game import CompiledGame, compile_rules
from coterie.core.types import Box, CoterieError
from coterie.nn.threads import fixed_threads
from coterie.policies.search import nodes, tree
from coterie.policies.search.networks import PositionNetwork, PositionNetworkSettings
from coterie.policies.search.search import RootNoiseSettings, play_out
from coterie.worlds.boards.connect_four import GAME as CONNECT_FOUR
from coterie.worlds.boards.othello import othello_game
from coterie.worlds.boards.tictactoe import GAME as TICTACTOE
from helpers.search import (
    GUMBEL,
    NO_NOISE,
    PUCT,
    PUCT_FROM_ZERO,
    THICKET,
    Later,
    PlainSearch,
    Said,
    ScriptedNetwork,
    Table,
    Uncompiled,
    after,
    minimax,
    random_positions,
    search_of,
    searched,
    sequential_halving,
    stirred,
)
from helpers.small_worlds import generator

GAMES = {"tictactoe": (TICTACTOE, 6), "thicket": (THICKET, 3)}
BOARDS = GAMES | {"connect_four": (CONNECT_FOUR, 34), "othello": (othello_game(6), 30)}  # late positions: ends, passes
FORMULAS = {
    "puct": PUCT,
    "first play 0": PUCT_FROM_ZERO,
    "c_base": PUCT._replace(c_base=5.0, c_init=0.7),
    "gumbel": GUMBEL,
    "gumbel mild": GUMBEL._replace(c_visit=2.0, c_scale=0.3),
}


def row(mapping, actions):
    return np.array([mapping.get(a, 0) for a in range(actions)])


# Golden trees -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("game", BOARDS)
@pytest.mark.parametrize("formula", FORMULAS)
def test_every_root_equals_that_of_the_plain_search(game, formula):
    (rules, moves), formula = BOARDS[game], FORMULAS[formula]
    compared = 0
    for seed, simulations in enumerate((1, 2, 7, 30, 60)):
        network = stirred(rules, seed)
        positions = random_positions(rules, 12, moves, seed)
        search = search_of(rules, network, formula, considered=5)
        found, _, roots = searched(search, positions, simulations, generator(seed), RootNoiseSettings(0.3))
        for n, position in enumerate(positions):
            plain = PlainSearch(rules, network.evaluate, formula, considered=5)
            share = 0.0 if formula.gumbel else 0.3
            root = plain.run(position, simulations, roots.gumbel[n], roots.noise[n], share)
            policy, value, action = plain.answer()
            if plain.close:
                continue
            compared += 1
            assert found.visits[n].tolist() == row(root.count, rules.actions).tolist(), (seed, n)
            np.testing.assert_allclose(found.policy[n], policy, atol=1e-5)
            np.testing.assert_allclose(found.value[n], value, atol=1e-5)
            assert found.action[n] == action
    assert compared >= 48  # of 60


def walk(plain, ours, n, node, at, seen):
    """Compare every node of one tree."""
    seen.append(at)
    assert ours.position[n, at, 0] == node.player
    assert bool(ours.solved[n, at]) == (node.exact is not None)
    if node.exact is not None:
        np.testing.assert_allclose(ours.exact[n, at], node.exact, atol=1e-6)
    np.testing.assert_allclose(ours.value[n, at], node.value, atol=1e-5)
    np.testing.assert_allclose(ours.total[n, at] / ours.visits[n, at], node.mean, atol=1e-5)
    assert ours.visits[n, at] == node.visits
    for action, child in node.child.items():
        assert ours.count[n, at, action] == node.count[action]
        np.testing.assert_allclose(ours.gain[n, at, action], node.total[action], atol=1e-4)
        walk(plain, ours, n, child, ours.child[n, at, action], seen)


@pytest.mark.slow
@pytest.mark.parametrize("formula", ["puct", "gumbel mild"])
@pytest.mark.parametrize("game", GAMES)
def test_every_node_equals_that_of_the_plain_search(game, formula):
    rules, moves = GAMES[game]
    compared = 0
    for seed in range(4):
        network, positions = stirred(rules, seed), random_positions(rules, 4, moves, seed)
        _, trees, _ = searched(search_of(rules, network, FORMULAS[formula]), positions, 40)
        for n, position in enumerate(positions):
            plain = PlainSearch(rules, network.evaluate, FORMULAS[formula])
            root = plain.run(position, 40)
            if not plain.close:
                seen = []
                walk(plain, trees, n, root, 0, seen)
                assert sorted(seen) == list(range(trees.size[n]))
                compared += 1
    assert compared >= 12


def test_positions_of_one_batch_do_not_influence_each_other():
    network, positions = stirred(TICTACTOE), random_positions(TICTACTOE, 9, 5)
    for formula in (PUCT, GUMBEL):
        search = search_of(TICTACTOE, network, formula)
        together, _, _ = searched(search, positions, 25)
        for n in range(len(positions)):
            alone, _, _ = searched(search, positions[n : n + 1], 25)
            assert np.array_equal(alone.visits[0], together.visits[n])
            # the last digit of a product depends on how many rows it has, on some processors
            assert alone.value[0] == pytest.approx(together.value[n], abs=1e-6)


@pytest.mark.parametrize("formula", [PUCT, GUMBEL])
@pytest.mark.parametrize("copies", [1, 7])
def test_halves_that_wait_for_their_evaluations_in_turns_find_the_same(formula, copies):
    """On a GPU one half of the trees grows while the other's leaves are evaluated; no visit may change."""
    network, positions = stirred(TICTACTOE, 2), random_positions(TICTACTOE, copies, 4, 3)

    def evaluate(x):  # one by one: the last digits of a product depend on how many rows it has
        logits, values = zip(*(network.evaluate(row[None]) for row in x), strict=True)
        return np.concatenate(logits), np.concatenate(values)

    later = Later(evaluate, 18, 10)
    with fixed_threads(1):
        at_once, trees, _ = searched(
            search_of(TICTACTOE, ScriptedNetwork(evaluate), formula), positions, 30, generator(2)
        )
        in_turns, others, _ = searched(search_of(TICTACTOE, later, formula), positions, 30, generator(2))
    assert np.array_equal(at_once.visits, in_turns.visits)
    assert np.array_equal(at_once.value, in_turns.value)
    assert np.array_equal(trees.size, others.size)
    first = ["start 0", "start 1", "finish 0", "start 0", "finish 1"] if copies > 1 else ["start 0", "finish 0"]
    assert [
        f"{what} {part}" for what, part in later.log[: len(first)]
    ] == first  # both are under way before one is read
    starts = [entry for entry in later.log if entry[0] == "start"]
    assert len(later.log) == 2 * len(starts)  # every evaluation was waited for


@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no CUDA device")
def test_a_search_on_a_gpu_finds_what_it_finds_on_a_cpu():
    settings = PositionNetworkSettings(kind="residual", channels=8, blocks=1, device="cpu")
    here = PositionNetwork(settings, TICTACTOE, 1)
    there = PositionNetwork(dataclasses.replace(settings, device="cuda"), TICTACTOE, 2)
    there.load(here.state(), "network")
    positions = random_positions(TICTACTOE, 7, 4, 3)
    views, evaluation = TICTACTOE.observe(positions), there.evaluation(7, 0)
    evaluation.x[:7] = views
    evaluation.start(np.ones(7, bool))
    evaluation.finish()
    logits, values = here.evaluate(views)
    np.testing.assert_allclose(evaluation.out[:7, :-1], logits, atol=1e-4)
    np.testing.assert_allclose(evaluation.out[:7, -1], values, atol=1e-4)
    both = [searched(search_of(TICTACTOE, network), positions, 30)[0] for network in (here, there)]
    assert np.array_equal(both[0].visits.sum(axis=1), both[1].visits.sum(axis=1))
    np.testing.assert_allclose(both[0].value, both[1].value, atol=1e-3)


# Selection --------------------------------------------------------------------------------------------


def bush(width, depth=3, player=lambda depth: depth % 2):
    """A game in which `width` actions lead on at every node, and which is drawn after `depth` moves."""
    nodes, layer = {}, [0]
    for level in range(depth):
        first = layer[-1] + 1
        for i, node in enumerate(layer):
            nodes[node] = (player(level), {a: first + i * width + a for a in range(width)})
        layer = list(range(first, first + len(layer) * width))
    return Table(nodes | dict.fromkeys(layer, 0.0), width)


def test_puct_by_hand():
    """Values 0 everywhere: the scores are proportional to P / (1 + n)."""
    game, network = bush(3), Said({0: np.log([0.61, 0.29, 0.1])})
    chosen = [0, 0, 1, 0, 0, 1, 0, 2]  # .61 .305 | .29 (.203) | .203 .153 | .145 .122 (.1) | .102 .1
    by_hand = np.cumsum(np.eye(3, dtype=int)[[0, 0, 1, 0, 0, 1, 0, 0, 2]], axis=0)
    assert by_hand[len(chosen) - 2].tolist() == [5, 2, 0]
    for simulations, expected in enumerate(by_hand, 1):
        found, _, _ = searched(search_of(game, network), game.start[None], simulations)
        assert found.visits[0].tolist() == expected.tolist()


def root_with(formula, prior, count, q):
    """A tree whose root has these edges."""
    game = bush(2)
    _, trees, _ = searched(search_of(game, Said({0: np.log(prior)}, actions=2), formula), game.start[None], 1)
    trees.count[0, 0], trees.gain[0, 0] = count, np.multiply(count, q)
    trees.visits[0, 0], trees.total[0, 0] = 1 + sum(count), np.dot(count, q)
    return trees


@pytest.mark.parametrize(("visits", "chosen"), [(1, 0), (20, 0), (36, 1), (60, 1)])
def test_the_bonus_grows_with_the_root_of_the_visits(visits, chosen):
    """Against Q = .5 an action of prior .1 is tried once c √N × .1 exceeds it; c √log N × .1 never would."""
    n = 1 + visits
    c = np.log((1 + n + 19652) / 19652) + 1.25
    assert int(c * np.sqrt(n) * 0.1 > 0.5 + c * np.sqrt(n) * 0.9 / n) == chosen
    assert c * np.sqrt(np.log(n)) * 0.1 < 0.5
    trees = root_with(PUCT_FROM_ZERO, [0.9, 0.1], [visits, 0], [0.5, 0])
    assert tree._select_puct(trees, 0, 0, PUCT_FROM_ZERO.ours) == chosen


@pytest.mark.parametrize(("c_base", "chosen"), [(1e9, 0), (1.0, 1)])
def test_c_grows_with_the_visits(c_base, chosen):
    """N = 71, √71 / 2 = 4.21: .4 + 4.21 c / 51 against 4.21 c / 21 turns at c = 3.4; c = 1.25 or log 73 + 1.25."""
    formula = PUCT_FROM_ZERO._replace(c_base=c_base)
    trees = root_with(formula, [0.5, 0.5], [50, 20], [0.4, 0])
    assert tree._select_puct(trees, 0, 0, formula.ours) == chosen


@pytest.mark.parametrize(("formula", "second"), [(PUCT, 1), (PUCT_FROM_ZERO, 0)])
def test_first_play(formula, second):
    """N = 2, c √2 = 1.77: .3 + 1.77 × .3 = .83 against .4 × 1.77 = .71, plus the node's mean (.9 + .3) / 2."""
    game, network = bush(2), Said({0: np.log([0.6, 0.4])}, {0: 0.9, 1: -0.3}, actions=2)
    found, _, _ = searched(search_of(game, network, formula), game.start[None], 2)
    assert found.visits[0].tolist() == ([1, 1] if second else [2, 0])


def test_values_are_those_of_the_player_to_move():
    """Player 0 moves twice, then player 1 twice; each leaf's value belongs to whoever moves there."""
    movers, values = [0, 0, 1, 1, 0], [0.1, 0.2, 0.4, 0.8, -0.5]
    game = Table({n: (movers[n], {0: n + 1}) for n in range(5)} | {5: 0.0}, 1)
    _, trees, _ = searched(search_of(game, Said({}, dict(enumerate(values)), 1)), game.start[None], 4)
    assert trees.count[0, :5, 0].tolist() == [4, 3, 2, 1, 0]
    by_hand = [0.2 - 0.4 - 0.8 - 0.5, -0.4 - 0.8 - 0.5, 0.8 + 0.5, 0.5, 0.0]
    np.testing.assert_allclose(trees.gain[0, :5, 0], by_hand, atol=1e-6)
    np.testing.assert_allclose(trees.total[0, :5], np.add(values, by_hand), atol=1e-6)


@pytest.mark.parametrize("gets", [1.0, -1.0, 0.0, 0.4])
@pytest.mark.parametrize("mover", [0, 1])
def test_the_value_of_an_end_is_the_movers_payoff(mover, gets):
    game = Table({0: (mover, {0: 1}), 1: gets}, 1)
    found, trees, _ = searched(search_of(game, Said({}, {}, 1)), game.start[None], 3)
    assert found.value[0] == pytest.approx(gets if mover == 0 else -gets)
    assert trees.solved[0, 0]
    assert found.visits[0, 0] == 1  # a solved root is not searched further


def test_gumbel_by_hand():
    """Equations 8, 10, 11, 14 and 33 with c_visit 1, c_scale 1 on a root with Q = (.5, −.5), counts (2, 1, 0)."""
    game, formula = bush(3), GUMBEL._replace(c_visit=1.0)
    prior, value = np.array([0.5, 0.3, 0.2]), 0.25
    _, trees, _ = searched(search_of(game, Said({0: np.log(prior)}, {0: value}), formula), game.start[None], 1)
    trees.count[0, 0], trees.gain[0, 0], trees.visits[0, 0] = (2, 1, 0), (1.0, -0.5, 0.0), 4
    mixed = (value + 3 * (0.5 * 0.5 - 0.3 * 0.5) / 0.8) / 4
    assert tree._mixed_value(trees, 0, 0) == pytest.approx(mixed, abs=1e-6)
    scale = (1 + 2) * 1.0 / 2
    logits = np.log(prior) + scale * (np.array([0.5, -0.5, mixed]) + 1)
    work = np.zeros(3)
    tree._gumbel_logits(trees, 0, 0, formula.ours, work)
    np.testing.assert_allclose(work, logits, atol=1e-6)
    policy = np.exp(logits) / np.exp(logits).sum()
    scores = policy - np.array([2, 1, 0]) / 4
    assert tree._select_gumbel(trees, 0, 0, formula.ours, work) == scores.argmax()


# Sequential halving -----------------------------------------------------------------------------------


@pytest.mark.parametrize("considered", [1, 2, 3, 5, 8, 16, 30])
def test_the_schedule_of_sequential_halving(considered):
    for simulations in (1, 2, 3, 7, 16, 50, 200):
        ours = tree.halving_schedule(considered, simulations).tolist()
        assert ours == sequential_halving(considered, simulations)
        counts = [0] * considered  # every asked-for count exists
        for wanted in ours:
            counts[counts.index(wanted)] += 1


@pytest.mark.parametrize(
    ("width", "considered", "simulations", "visits"),
    [
        (8, 4, 16, [6, 6, 2, 2]),  # 2 phases of 8: 4 × 2, 2 × 4
        (8, 8, 24, [7, 7, 3, 3, 1, 1, 1, 1]),  # 3 phases of 8: 8 × 1, 4 × 2, 2 × 4
        (5, 16, 12, [5, 4, 1, 1, 1]),  # fewer actions than considered: 5 × 1, 2 × 2, and 3 of 2 × 2
        (8, 16, 5, [1, 1, 1, 1, 1]),  # fewer simulations than actions: the five of highest prior
    ],
)
def test_visits_per_phase(width, considered, simulations, visits):
    game, logits = bush(width, 2), np.arange(width, 0, -1) * 0.5
    search = search_of(game, Said({0: logits}, actions=width), GUMBEL, considered=considered)
    found, _, _ = searched(search, game.start[None], simulations)
    counts = found.visits[0]
    assert counts[counts > 0].tolist() == visits
    assert np.flatnonzero(counts).tolist() == list(range((counts > 0).sum()))  # by prior: all values are equal


def test_gumbel_numbers_decide_who_takes_part():
    game = bush(6, 2)
    search = search_of(game, Said(actions=6), GUMBEL, considered=3)
    positions = np.repeat(game.start[None], 40, axis=0)
    found, _, roots = searched(search, positions, 3, generator(3))
    for counts, g in zip(found.visits, roots.gumbel, strict=True):
        assert set(np.flatnonzero(counts)) == set(np.argsort(-g)[:3])
    drawn = roots.gumbel.ravel()
    assert drawn.mean() == pytest.approx(0.5772, abs=0.2)


def test_lost_actions_leave_sequential_halving():
    """Two of four actions lose at once: after one visit each they get no more."""
    nodes = {0: (0, {a: a + 1 for a in range(4)}), 1: -1.0, 2: -1.0}
    nodes |= {n: (1, {0: 5, 1: 6}) for n in (3, 4)} | {n: (0, {0: 7, 1: 8}) for n in (5, 6)}
    nodes |= {n: (1, {0: 9, 1: 9}) for n in (7, 8)} | {9: 0.0}
    game = Table(nodes, 4)
    network = Said({0: [5.0, 4.0, 0.0, -1.0]}, actions=4)  # the losing ones look best
    for simulations in (4, 8, 12):
        found, _, _ = searched(search_of(game, network, GUMBEL), game.start[None], simulations)
        assert found.visits[0, :2].tolist() == [1, 1]
        assert found.visits[0].sum() == simulations
        assert found.action[0] in (2, 3)
        assert found.policy[0, :2].tolist() == [0, 0]


def test_the_best_action_is_the_most_visited_of_those_not_lost():
    """The most visited action turns out to lose; of the others the visited one is played, not one without a visit."""
    nodes = {
        0: (0, {0: 1, 1: 2, 2: 3}),
        1: (1, {0: 4}),
        4: -1.0,
        2: (1, {0: 5}),
        3: (1, {0: 5}),
        5: (0, {0: 6}),
        6: 0.0,
    }
    game, formula = Table(nodes), GUMBEL._replace(c_visit=1.0, c_scale=0.1)
    network = Said({0: [3.0, 1.0, 0.9]}, {2: 0.9})
    search = search_of(game, network, formula, considered=2)
    found, _, _ = searched(search, game.start[None], 3)
    assert found.visits[0].tolist() == [2, 1, 0]
    assert found.action[0] == 1
    assert found.value[0] < 0


# Masks and noise --------------------------------------------------------------------------------------


@pytest.mark.parametrize("formula", [PUCT, GUMBEL])
def test_illegal_actions_are_never_visited(formula):
    network = stirred(TICTACTOE, 3, scale=3.0)
    positions = random_positions(TICTACTOE, 40, 7)
    found, trees, _ = searched(search_of(TICTACTOE, network, formula), positions, 30, generator(), RootNoiseSettings())
    legal = TICTACTOE.legal(positions)
    assert not found.visits[~legal].any()
    assert not found.policy[~legal].any()
    assert not trees.count[~trees.legal].any()
    np.testing.assert_allclose(found.policy.sum(axis=1), 1, atol=1e-5)
    assert legal[np.arange(40), found.action].all()


@pytest.mark.parametrize("formula", [PUCT, GUMBEL])
@pytest.mark.parametrize("low", [-1e9, -1e30])
def test_priors_are_valid_where_the_network_gives_legal_actions_nothing(formula, low):
    def evaluate(x):
        taken = (x[:, :9] + x[:, 9:]) > 0
        return np.where(taken, -low, low).astype(np.float32), np.zeros(len(x), np.float32)

    position = after(TICTACTOE, [0, 4, 8])
    found, trees, _ = searched(search_of(TICTACTOE, ScriptedNetwork(evaluate), formula), position[None], 20)
    legal = TICTACTOE.legal(position[None])[0]
    np.testing.assert_allclose(trees.prior[0, 0][legal], 1 / 6, rtol=1e-5)
    assert not trees.prior[0, 0][~legal].any()
    assert np.isfinite(found.policy).all()
    assert found.visits[0].sum() == 20
    assert not found.visits[0][~legal].any()


def test_one_legal_action_of_very_low_prior_is_searched_too():
    game, network = bush(3), Said({0: [0.0, -1e9, -1e9]}, {1: 0.9})  # 1 is bad for player 0
    for formula in (PUCT_FROM_ZERO, GUMBEL):
        found, _, _ = searched(search_of(game, network, formula), game.start[None], 9)
        assert np.isfinite(found.policy).all()
        assert found.visits[0].sum() == 9
        assert (found.visits[0][1:] > 0).any()


def test_noise_takes_its_share_of_legal_actions_alone():
    network, positions = stirred(TICTACTOE), random_positions(TICTACTOE, 50, 6)
    search, legal = search_of(TICTACTOE, network), TICTACTOE.legal(positions)
    _, clean, _ = searched(search, positions, 1)
    _, noisy, roots = searched(search, positions, 1, generator(), RootNoiseSettings(0.25, 0.5))
    assert not roots.noise[~legal].any()
    np.testing.assert_allclose(roots.noise.sum(axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(noisy.prior[:, 0], 0.75 * clean.prior[:, 0] + 0.25 * roots.noise, atol=1e-6)
    assert np.array_equal(noisy.logit[:, 0], clean.logit[:, 0])  # what the policy target reads stays clean
    np.testing.assert_allclose(noisy.prior[:, 0].sum(axis=1), 1, atol=1e-5)
    children = (np.arange(50), noisy.child[:, 0].max(axis=1))
    np.testing.assert_allclose(noisy.prior[children].sum(axis=1), ~noisy.solved[children], atol=1e-5)  # below: no noise


@pytest.mark.parametrize(("alpha", "used"), [(None, 10 / 9), (0.3, 0.3)])
def test_noise_is_dirichlet(alpha, used):
    search, legal = search_of(TICTACTOE, stirred(TICTACTOE)), np.ones((4000, 9), bool)
    legal[:, 5:] = False
    noise = search.roots(legal, np.ones(4000, int), generator(), RootNoiseSettings(0.25, alpha)).noise[:, :5]
    np.testing.assert_allclose(noise.mean(axis=0), 0.2, atol=0.02)
    np.testing.assert_allclose(noise.var(axis=0), 0.2 * 0.8 / (5 * used + 1), rtol=0.12)


@pytest.mark.filterwarnings("error")
def test_copies_that_are_not_searched_get_no_noise():
    search, legal = search_of(TICTACTOE, stirred(TICTACTOE)), np.ones((2, 9), bool)
    legal[1] = False
    assert not search.roots(legal, np.array([5, 0]), generator(), RootNoiseSettings()).noise[1].any()


@pytest.mark.parametrize("formula", [PUCT, GUMBEL])
@pytest.mark.parametrize("game", [TICTACTOE, Uncompiled(TICTACTOE)])
def test_actions_that_are_not_allowed_are_not_searched(game, formula):
    """A shield may narrow the root's legal actions; the tree below it follows the rules."""
    positions = random_positions(TICTACTOE, 6, 3)
    search = search_of(game, stirred(TICTACTOE), formula)
    allowed = TICTACTOE.legal(positions) & (np.arange(9) % 2 == 0)
    trees = search.trees(6, 30)
    roots = search.roots(allowed, np.full(6, 30), generator(), RootNoiseSettings())
    found = search.run(trees, roots, positions, np.arange(6), generator())
    assert not found.visits[~allowed].any()
    assert not found.policy[~allowed].any()
    assert allowed[np.arange(6), found.action].all()
    assert trees.legal[:, 1:].sum(axis=(0, 1))[1::2].all()


# Solved positions -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"transpositions": True}], ids=["tree", "transpositions"])
@pytest.mark.parametrize("formula", [PUCT, GUMBEL])
@pytest.mark.parametrize("game", GAMES)
def test_solved_roots_have_the_value_of_best_play(game, formula, options):
    rules, moves = GAMES[game]
    positions = random_positions(rules, 30, moves, 5)
    found, trees, _ = searched(search_of(rules, stirred(rules, 1), formula, **options), positions, 500)
    solved = trees.solved[:, 0]
    assert solved.sum() >= 6
    for n in np.flatnonzero(solved):
        best = minimax(rules, positions[n])
        assert trees.exact[n, 0] == pytest.approx(best, abs=1e-6)
        assert found.value[n] == pytest.approx(best, abs=1e-6)
        there = positions[n : n + 1].copy()
        rules.apply(there, found.action[n : n + 1])
        over, gets = rules.outcome(there)
        after_it = gets[0, there[0, 0]] if over[0] else minimax(rules, there[0])
        assert (after_it if there[0, 0] == positions[n, 0] else -after_it) == pytest.approx(best, abs=1e-6)
        for node in np.flatnonzero(trees.solved[n, : trees.size[n]]):
            assert trees.exact[n, node] == pytest.approx(minimax(rules, trees.position[n, node]), abs=1e-6)


def winning_moves(position):
    found = []
    for action in np.flatnonzero(TICTACTOE.legal(position[None])[0]):
        there = position[None].copy()
        TICTACTOE.apply(there, np.array([action]))
        over, gets = TICTACTOE.outcome(there)
        if over[0] and gets[0, position[0]] == 1:
            found.append(int(action))
    return found


@pytest.mark.parametrize("formula", [PUCT, GUMBEL])
@pytest.mark.parametrize("network", [None, "random"])
def test_a_mate_in_one_is_always_played(formula, network):
    positions = random_positions(TICTACTOE, 300, 7, 2)
    mates = [winning_moves(p) for p in positions]
    positions, mates = positions[[bool(m) for m in mates]], [m for m in mates if m]
    assert len(mates) > 60
    net = None if network is None else stirred(TICTACTOE, scale=0.3)
    found, trees, _ = searched(search_of(TICTACTOE, net, formula, playouts=0), positions, 32)
    for n, winning in enumerate(mates):
        assert found.action[n] in winning
        assert found.value[n] == 1
        assert found.policy[n, winning].sum() == pytest.approx(1, abs=1e-5)
        assert trees.solved[n, 0]


@pytest.mark.parametrize("formula", [PUCT, GUMBEL])
def test_lost_moves_are_never_chosen_while_others_exist(formula):
    """A network that loves losing moves: the opponent threatens to complete a line, and the rest is open."""
    position = after(TICTACTOE, [0, 8, 1])  # cross threatens 2; every other move of ring loses
    rules, logits = TICTACTOE, np.array([0, 0, -1.0, 1, 1, 1, 1, 1, 0], np.float32)

    def evaluate(x):
        return np.repeat(logits[None], len(x), axis=0), np.zeros(len(x), np.float32)

    for simulations in (30, 100, 600):
        found, trees, _ = searched(search_of(rules, ScriptedNetwork(evaluate), formula), position[None], simulations)
        lost = trees.fate[0, 0] == nodes.LOST
        assert not found.policy[0][lost].any()
        assert not lost[found.action[0]]
    assert lost.sum() >= 2
    assert found.action[0] == 2


def test_where_everything_is_lost_some_legal_move_is_played():
    position = after(TICTACTOE, [0, 1, 4, 2, 3])  # cross threatens 5, 6 and 8
    for formula in (PUCT, GUMBEL):
        found, trees, _ = searched(search_of(TICTACTOE, stirred(TICTACTOE), formula), position[None], 200)
        assert trees.solved[0, 0]
        assert found.value[0] == -1
        assert TICTACTOE.legal(position[None])[0, found.action[0]]
        assert found.policy[0].sum() == pytest.approx(1, abs=1e-5)


def test_what_comes_back_through_a_solved_node_is_its_result():
    """1 has a draw (found first) and then a loss: solved as 0, which is what the root's mean and 0's parent get."""
    chain = {0: (0, {0: 1, 1: 7}), 1: (0, {0: 2, 1: 8}), 2: (0, {0: 3, 1: 4}), 3: 0.0, 4: -1.0}
    chain |= {7: (0, {0: 9}), 8: (0, {0: 9}), 9: (0, {0: 10}), 10: 0.0}
    game = Table(chain, 2)
    network = Said({0: [9.0, 0.0], 1: [9.0, 0.0], 2: [0.1, 0.0]}, {1: 0.5, 2: 0.5}, 2)
    _, trees, _ = searched(search_of(game, network), game.start[None], 4)
    assert trees.count[0, 0, 0] == 4
    assert trees.solved[0, 2]
    # simulations: node 1 (.5), node 2 (.5), the draw (0), and the loss, through node 2 which is a draw
    np.testing.assert_allclose(trees.gain[0, 0, 0], 0.5 + 0.5 + 0 + 0, atol=1e-6)
    np.testing.assert_allclose(trees.gain[0, 1, 0], 0, atol=1e-6)


@pytest.mark.parametrize("formula", [PUCT, GUMBEL])
def test_wins_that_are_not_whole_numbers_are_exact_too(formula):
    """0.3 × 5 / 5 is not 0.3 in float32: results are read from the nodes, not from sums."""
    game = Table({0: (0, {0: 1, 1: 2, 2: 3}), 1: 0.3, 2: -0.7, 3: (0, {0: 4, 1: 5}), 4: 0.2, 5: 0.1})
    for high in np.linspace(0, 3, 25):
        found, trees, _ = searched(search_of(game, Said({0: [high, 0, 0]}), formula), game.start[None], 400)
        assert trees.solved[0, 0]
        assert trees.exact[0, 0] == np.float32(0.3)
        assert found.action[0] == 0
        assert found.policy[0].tolist() == [1, 0, 0]


# Transpositions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("game", GAMES)
@pytest.mark.parametrize("formula", [PUCT, GUMBEL])
def test_transpositions_share_nodes(game, formula):
    rules, _ = GAMES[game]
    positions = random_positions(rules, 8, 1, 4)
    plain, shared = (
        searched(search_of(rules, stirred(rules, 2), formula, transpositions=on), positions, 300)[1]
        for on in (False, True)
    )
    assert shared.size.sum() < plain.size.sum()
    doubles = 0
    for n in range(len(positions)):
        for trees, expected in ((plain, None), (shared, 0)):
            nodes = {tuple(p) for p in trees.position[n, : trees.size[n]]}
            double = trees.size[n] - len(nodes)
            doubles += double
            assert expected is None or double == expected  # in both games a position tells its depth
        for node in range(shared.size[n]):
            for end in shared.child[n, node]:
                assert end < 0 or shared.depth[n, end] == shared.depth[n, node] + 1  # so there are no cycles
        both = plain.solved[n, 0] & shared.solved[n, 0]
        assert not both or plain.exact[n, 0] == pytest.approx(shared.exact[n, 0], abs=1e-6)
    assert doubles > 20


def test_a_position_that_returns_makes_no_cycle():
    """Two moves there and back: the same position, deeper, is another node."""
    found, trees, _ = searched(search_of(SHUTTLE, stirred(SHUTTLE), transpositions=True), SHUTTLE.start[None], 100)
    assert trees.depth[0, : trees.size[0]].max() > 3
    assert found.visits[0].sum() == 100


# Carrying a subtree over ------------------------------------------------------------------------------


def subtree(trees, n, root):
    """Everything below a node, by the actions that lead there."""
    found = {}

    def enter(node, path):
        columns = ("value", "visits", "total", "solved", "legal", "logit", "count", "gain", "fate")
        found[path] = [getattr(trees, name)[n, node].copy() for name in columns] + [trees.position[n, node].copy()]
        for action, end in enumerate(trees.child[n, node]):
            if end >= 0:
                enter(end, (*path, action))

    enter(root, ())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("transpositions", [False, True])
def test_a_kept_subtree_is_the_subtree(transpositions):
    network, positions = stirred(TICTACTOE, 2), random_positions(TICTACTOE, 10, 2)
    search = search_of(TICTACTOE, network, transpositions=transpositions)
    _, trees, _ = searched(search, positions, 80)
    for n in range(len(positions)):
        node = trees.child[n, 0, trees.count[n, 0].argmax()]
        if trees.solved[n, node] and not trees.legal[n, node].any():
            continue
        before, there = subtree(trees, n, node), trees.position[n, node].copy()
        assert nodes.find_position(trees, n, there) == node
        nodes.keep_subtree(trees, n, node)
        kept = subtree(trees, n, 0)
        assert kept.keys() == before.keys()
        for path, columns in before.items():
            assert all(np.array_equal(a, b) for a, b in zip(columns, kept[path], strict=True))
        assert trees.depth[n, 0] == 0
        assert np.array_equal(trees.position[n, 0], there)
        if transpositions:
            for at in range(trees.size[n]):
                slot = nodes.slot_of(trees, n, trees.position[n, at], trees.depth[n, at])
                assert trees.table[n, slot] == at


def test_a_search_that_goes_on_equals_one_that_never_stopped():
    """20 simulations and 20 more are 40, once the first root's evaluation is the only difference."""
    network, positions = stirred(TICTACTOE), random_positions(TICTACTOE, 5, 3)
    search = search_of(TICTACTOE, network)
    whole, _, _ = searched(search, positions, 40)
    trees = search.trees(5, 40)
    legal = TICTACTOE.legal(positions)
    search.run(trees, search.roots(legal, np.full(5, 20), None, NO_NOISE), positions, np.arange(5), generator())
    again = search.roots(legal, np.full(5, 20), None, NO_NOISE)
    found = search.run(trees, again, positions, np.zeros(0, np.int64), generator(), list(range(5)))
    assert np.array_equal(found.visits, whole.visits)
    assert np.array_equal(found.value, whole.value)


@pytest.mark.parametrize("carried", [False, True])
def test_more_simulations_than_a_tree_has_room_for_are_refused(carried):
    search, positions = search_of(TICTACTOE, stirred(TICTACTOE)), random_positions(TICTACTOE, 3, 1)
    _, trees, _ = searched(search, positions, 20)
    simulations = 1 if carried else 21
    roots = search.roots(TICTACTOE.legal(positions), np.full(3, simulations), None, NO_NOISE)
    rows = range(3)
    with pytest.raises(ValueError, match=f"trees of 21 nodes have no room for .* {simulations} simulations"):
        search.run(trees, roots, positions, [] if carried else rows, generator(), rows if carried else [])


def test_saved_trees_go_on_as_they_were():
    network, positions = stirred(TICTACTOE), random_positions(TICTACTOE, 5, 2)
    for transpositions in (False, True):
        search = search_of(TICTACTOE, network, transpositions=transpositions)
        _, trees, _ = searched(search, positions, 30)
        other = search.trees(5, 30)
        nodes.load_state(other, nodes.as_state(trees))
        moved = []
        for one in (trees, other):
            for n in range(5):
                nodes.keep_subtree(one, n, one.child[n, 0, one.count[n, 0].argmax()])
            roots = search.roots(one.legal[:, 0].copy(), np.minimum(8, 31 - one.size), None, NO_NOISE)
            moved.append(
                search.run(one, roots, one.position[:, 0].copy(), np.zeros(0, np.int64), generator(), range(5))
            )
        assert np.array_equal(moved[0].visits, moved[1].visits)
        assert np.array_equal(moved[0].value, moved[1].value)


# Without a network ------------------------------------------------------------------------------------


def random_value(game, position):
    """What the player to move gets on average when both play at random."""
    over, gets = game.outcome(position[None])
    if over[0]:
        return float(gets[0, position[0]])
    values = []
    for action in np.flatnonzero(game.legal(position[None])[0]):
        there = position[None].copy()
        game.apply(there, np.array([action]))
        value = random_value(game, there[0])
        values.append(value if there[0, 0] == position[0] else -value)
    return float(np.mean(values))


@pytest.mark.slow
@pytest.mark.parametrize(
    "game", [TICTACTOE, THICKET, Uncompiled(TICTACTOE)], ids=["tictactoe", "thicket", "uncompiled"]
)
def test_random_games_converge_to_the_value_of_random_play(game):
    positions = random_positions(game, 4, 4, 1)
    count = 600 if game.rules is None else 20_000
    positions = np.array([p for p in positions if game is THICKET or (p[1] | p[2]).bit_count() >= 3])
    _, trees, _ = searched(search_of(game, None, playouts=count), positions, 1)
    for n, position in enumerate(positions):
        assert trees.value[n, 0] == pytest.approx(random_value(game, position), abs=4 / np.sqrt(count))


def test_random_games_depend_on_the_generator_alone():
    positions = random_positions(TICTACTOE, 6, 2)
    search = search_of(TICTACTOE, None, playouts=3)
    found = []
    for seed in (1, 1, 2):
        trees = search.trees(6, 20)
        roots = search.roots(TICTACTOE.legal(positions), np.full(6, 20), None, NO_NOISE)
        found.append(search.run(trees, roots, positions, np.arange(6), generator(seed)))
    assert np.array_equal(found[0].value, found[1].value)
    assert np.array_equal(found[0].visits, found[1].visits)
    assert not np.array_equal(found[0].value, found[2].value)


def test_without_playouts_open_positions_count_nothing():
    _, trees, _ = searched(search_of(TICTACTOE, None, playouts=0), random_positions(TICTACTOE, 5, 2), 30)
    assert not trees.value[~trees.solved].any()


# Paths ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("formula", [PUCT, GUMBEL])
@pytest.mark.parametrize("game", GAMES)
def test_games_without_compiled_rules_are_searched_alike(game, formula):
    rules, moves = GAMES[game]
    network, positions = stirred(rules, 1), random_positions(rules, 10, moves)
    ours, trees, _ = searched(search_of(rules, network, formula), positions, 40, generator(), RootNoiseSettings())
    network.spec = None  # the same network in PyTorch
    slow, others, _ = searched(
        search_of(Uncompiled(rules), network, formula), positions, 40, generator(), RootNoiseSettings()
    )
    torch, _, _ = searched(search_of(rules, network, formula), positions, 40, generator(), RootNoiseSettings())
    for found in (slow, torch):
        same = (found.visits == ours.visits).all(axis=1)
        assert same.mean() >= 0.9  # two ways to compute a float32 may choose differently once in a while
        np.testing.assert_allclose(found.value[same], ours.value[same], atol=1e-5)
        np.testing.assert_allclose(found.policy[same], ours.policy[same], atol=1e-5)
        assert np.array_equal(found.action[same], ours.action[same])
    assert np.array_equal(others.size[same], trees.size[same])


def test_every_leaf_is_evaluated_once():
    game, network = bush(3, 3), Said({0: [0.3, 0.2, 0.1]})
    _, trees, _ = searched(search_of(game, network), game.start[None], 20)
    assert len(network.calls) == len(set(network.calls))
    open_nodes = trees.legal[0, : trees.size[0]].any(axis=1)
    assert sorted(network.calls) == sorted(trees.position[0, : trees.size[0], 1][open_nodes])


# Rules and networks that cannot be searched -----------------------------------------------------------


def _legal(position, mask):
    mask[0] = position[1] != 1  # at 1 there is nothing to do
    mask[1] = position[1] == 0


def _shuttle(position, mask):
    mask[:] = True


def _apply(position, action):
    position[0] = 1 - position[0]
    position[1] = (position[1] + 1 + action) % 4


def _outcome(position, payoffs):
    payoffs[:] = 0.0
    return False


def _observe(position, values):
    values[:] = 0.0
    values[position[1]] = 1.0


def endless(name, legal, max_moves=5):
    rules = compile_rules(legal, _apply, _outcome, _observe)
    return CompiledGame(name, 2, np.zeros(2, np.int64), Box((1, 2, 2), 0.0, 1.0), max_moves, rules, str)


STUCK, SHUTTLE = endless("stuck", _legal), endless("shuttle", _shuttle)


@pytest.mark.parametrize("network", [True, False])
@pytest.mark.parametrize("wrap", [lambda game: game, Uncompiled], ids=["compiled", "uncompiled"])
@pytest.mark.parametrize("state", [0, 1], ids=["later", "at once"])
def test_no_legal_action_and_no_outcome(network, wrap, state):
    search = search_of(wrap(STUCK), stirred(STUCK) if network else None)
    with pytest.raises(CoterieError, match=r"'stuck'.*no action is legal.*`outcome` does not say"):
        searched(search, np.array([[0, state]]), 10)


@pytest.mark.parametrize("wrap", [lambda game: game, Uncompiled], ids=["compiled", "uncompiled"])
def test_a_random_game_that_does_not_end(wrap):
    with pytest.raises(CoterieError, match=r"'shuttle'.*did not end within max_moves=5"):
        searched(search_of(wrap(SHUTTLE), None), SHUTTLE.start[None], 3)
    with pytest.raises(CoterieError, match=r"'stuck'.*no action is legal"):
        play_out(STUCK, np.array([[0, 1]]), generator())


def _two_points(position, payoffs):
    if position[1] == 1:
        payoffs[0], payoffs[1] = 2.0, -2.0
    return position[1] == 1


TWO_POINTS = dataclasses.replace(
    SHUTTLE, name="two points", rules=compile_rules(_shuttle, _apply, _two_points, _observe)
)


@pytest.mark.parametrize("wrap", [lambda game: game, Uncompiled], ids=["compiled", "uncompiled"])
def test_payoffs_beyond_one_are_refused(wrap):
    with pytest.raises(CoterieError, match=r"'two points'.*a payoff beyond −1 … 1; .*payoff_unit"):
        searched(search_of(wrap(TWO_POINTS), stirred(TWO_POINTS)), TWO_POINTS.start[None], 3)


@pytest.mark.parametrize("path", ["compiled", "torch", "uncompiled"])
def test_a_network_that_has_diverged(path):
    network = stirred(TICTACTOE)
    network.flat.array[:] = np.nan
    if path != "compiled":
        network.spec = None
    search = search_of(Uncompiled(TICTACTOE) if path == "uncompiled" else TICTACTOE, network)
    with pytest.raises(CoterieError, match=r"'tictactoe': the network's evaluation .* is not finite"):
        searched(search, TICTACTOE.start[None], 3)


def test_transpositions_need_compiled_rules():
    with pytest.raises(ValueError, match="transpositions=true needs compiled rules, which 'tictactoe' does not have"):
        search_of(Uncompiled(TICTACTOE), None, transpositions=True)
