"""Conformance tests for games that can be searched: `check_game`, a part of `check_world`.

The rules must say what the world does: which actions are legal, what they lead to, what players see, how games end.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from coterie.core import seeding
from coterie.core.game import Game, HasGame, Symmetry, game_of
from coterie.core.sampling import random_actions
from coterie.core.types import Array, Discrete
from coterie.core.world import World
from coterie.testing.comparison import check_array, expect

GAMES = 8  # played at once to compare mirrored games
NOT_ZERO_SUM = " (search is for zero-sum games; the property `game` of a world of another kind raises NoGame)"
BEYOND = " (divide them by the largest one and declare that as payoff_unit)"


def check_game(world: World, steps: int, seed: int) -> None:
    """Raise `ContractError` unless the world's game and its steps agree; do nothing for a world without a game."""
    game = game_of(world)
    if game is None:
        return
    assert isinstance(world, HasGame)  # `game_of` has found a game
    check_declaration(world, game)
    check_play(world, game, steps, seed)
    for number, symmetry in enumerate(game.symmetries):
        check_symmetry(game, symmetry, f"game, symmetry {number}", steps, seed)


def check_declaration(world: Any, game: Game) -> None:
    """Two agents of one type take turns; the game's sizes are those of the world."""
    expect(not world.simultaneous, "game", "a turn-based world", "simultaneous=True")
    expect(len(world.agent_types) == 1, "game", "one agent type", [*world.agent_types])
    (spaces,) = world.agent_types.values()
    expect(len(spaces.agents) == 2, "game", "two agents", spaces.agents)
    expect(spaces.action == Discrete(game.actions), "game", f"actions={game.actions} as in the world", spaces.action)
    expect(game.max_moves >= 1, "game", "max_moves of at least 1", game.max_moves)
    check_array("game", "start", game.start, game.start.shape, "int64")
    expect(game.start.ndim == 1 and game.start[0] in (0, 1), "game", "start [S], 0 or 1 to move first", game.start)
    expect(isinstance(game.describe(game.start), str), "game", "text from describe", type(game.describe(game.start)))
    identity = [np.array_equal(one.actions, np.arange(game.actions)) for one in game.symmetries]
    expect(any(identity), "game", "the identity among the symmetries", "none")


def check_play(world: Any, game: Game, steps: int, seed: int) -> None:
    """In random play, legal actions, observations, positions and outcomes are those of the world."""
    ((name, _),) = world.agent_types.items()
    random, timestep = seeding.generator(seed, "check_game"), world.reset(seed)
    moves, copies = np.zeros(world.num_envs, np.int64), np.arange(world.num_envs)
    for step in range(steps):
        where, agent_step, positions = f"game, step {step}", timestep.agent_types[name], world.positions()
        check_array(where, "positions()", positions, (world.num_envs, len(game.start)), "int64")
        movers = positions[:, 0]
        _expect_rows(agent_step.acting.argmax(1) == movers, where, "the acting player first in the position")
        legal, over, seen = _asked(game, positions, where)
        _expect_rows(~over, where, "a position that is not over")
        if agent_step.mask is not None:
            _expect_rows((legal == agent_step.mask[copies, movers]).all(1), where, "legal() equal to the mask")
        observed = np.asarray(agent_step.observation).reshape(world.num_envs, 2, -1)[copies, movers]
        same = observed.shape == seen.shape and (observed == seen).all(1)
        _expect_rows(np.broadcast_to(same, copies.shape), where, "observe() equal to the observation")
        actions = random_actions(timestep, world.agent_types, random)
        before, after = positions.copy(), positions.copy()
        game.apply(after, actions[name][copies, movers])
        timestep = world.step(actions)
        moves += 1
        over, payoffs = game.outcome(after)
        where = f"game, step {step + 1}"
        _expect_rows((positions == before).all(1), where, "positions() to return a copy, which a step does not change")
        _expect_rows(over == timestep.ended, where, "outcome() to end a game when the world does")
        _expect_rows(np.isfinite(payoffs).all(1), where, "finite payoffs")
        _expect_rows(np.isclose(payoffs.sum(1), 0), where, f"payoffs that sum to zero{NOT_ZERO_SUM}")
        _expect_rows((np.abs(payoffs) <= 1).all(1), where, f"payoffs between −1 and 1{BEYOND}")
        _expect_rows(over | (payoffs == 0).all(1), where, "payoffs of 0 before the end")
        rewards = timestep.agent_types[name].reward / game.payoff_unit
        _expect_rows(np.isclose(payoffs, rewards).all(1), where, "payoffs equal to the rewards / payoff_unit")
        _expect_rows(over | (after == world.positions()).all(1), where, "apply() to lead where step does")
        _expect_rows(moves <= game.max_moves, where, f"no game longer than max_moves={game.max_moves}")
        moves[over] = 0


def check_symmetry(game: Game, symmetry: Symmetry, where: str, steps: int, seed: int) -> None:
    """A game and its mirror image, played by mirrored actions, stay mirror images of each other."""
    size = int(np.prod(game.observation.shape))
    for name, entries, count in (("cells", symmetry.cells, size), ("actions", symmetry.actions, game.actions)):
        permutes = np.array_equal(np.sort(entries), np.arange(count))
        expect(permutes, where, f"{name} to be a permutation of 0 … {count - 1}", entries)
    random, mirror_of = seeding.generator(seed, "check_symmetry"), np.argsort(symmetry.actions)
    positions = np.tile(game.start, (GAMES, 1))
    mirrored = positions.copy()
    for step in range(steps):
        at = f"{where}, move {step}"
        legal = game.legal(positions)
        _expect_rows(positions[:, 0] == mirrored[:, 0], at, "the same player to move")
        seen = game.observe(positions)[:, symmetry.cells]
        _expect_rows((game.observe(mirrored) == seen).all(1), at, "observe() to commute")
        _expect_rows((game.legal(mirrored) == legal[:, symmetry.actions]).all(1), at, "legal() to commute")
        actions = (random.random(legal.shape) * legal).argmax(1)
        game.apply(positions, actions)
        game.apply(mirrored, mirror_of[actions])
        over, payoffs = game.outcome(positions)
        over_mirrored, payoffs_mirrored = game.outcome(mirrored)
        same = (over == over_mirrored) & (payoffs == payoffs_mirrored).all(1)
        _expect_rows(same, at, "outcome() to commute")
        positions[over] = game.start
        mirrored[over] = game.start


def _asked(game: Game, positions: Array, where: str) -> tuple[Array, Array, Array]:
    """Legal actions, ends and observations, with their shapes checked; asking must not change the positions."""
    before, rows = positions.copy(), len(positions)
    legal, (over, payoffs), seen = game.legal(positions), game.outcome(positions), game.observe(positions)
    _expect_rows((before == positions).all(1), where, "positions unchanged by legal(), outcome() and observe()")
    check_array(where, "legal()", legal, (rows, game.actions), "bool")
    check_array(where, "outcome()[0]", over, (rows,), "bool")
    check_array(where, "outcome()[1]", payoffs, (rows, 2), "float32")
    check_array(where, "observe()", seen, (rows, int(np.prod(game.observation.shape))), "float32")
    return legal, over, seen


def _expect_rows(valid: Array, where: str, expected: str) -> None:
    expect(valid.all(), f"{where}, copy {int(np.argmin(valid))}", expected, "another")
