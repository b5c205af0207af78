"""A report's section on search players: a few positions of a game, each with the moves that the search prefers.

The game is the player's own against itself, greedy, in the run's world. What the numbers mean is in
`docs/guides/search.md`.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from coterie.config import schema
from coterie.core import seeding
from coterie.core.text import HasTextCodec
from coterie.core.types import Array, CoterieError
from coterie.core.world import Renderable
from coterie.policies.search import nodes
from coterie.policies.search.policy import SearchPolicy, make_search
from coterie.policies.search.search import RootNoiseSettings
from coterie.runs.run import Run
from coterie.studies import html
from coterie.training import build, table

POSITIONS = 4  # shown, spread evenly over the game
MOVES = 5  # shown of each position
LONGEST = 60  # moves of the game, and
LONGEST_SLOW = 8  # of one without compiled rules, whose searches take seconds
WIDTH = 220  # pixels of a picture


@dataclass(frozen=True)
class Move:
    """One move at the root of a search."""

    name: str
    visits: int
    value: float | None  # its mean for the player to move; None without visits
    prior: float  # the network's probability, or a uniform one
    solved: bool  # its result under best play is known


@dataclass(frozen=True)
class Searched:
    """A position and what the search says about it."""

    number: int  # of moves before it
    player: str
    picture: str  # HTML
    value: float  # for the player to move
    solved: bool  # the value is the result under best play
    moves: tuple[Move, ...]  # all legal ones, the most visited first


def report_section(runs: Sequence[Run]) -> Iterable[str]:
    """The section for the first of these runs that has a checkpoint; nothing where nobody searches."""
    ready = [run for run in runs if run.steps() or run.steps("best")]
    if not ready or not _searching(ready[0]):
        return
    loaded = table.load(ready[0].path)
    for group in loaded.groups:
        policy = group.policy
        if isinstance(policy, SearchPolicy) and policy.settings.play == "search":
            yield f"<h2>Search: {escape(group.name)}</h2>"
            yield (
                f"<p class=quiet>Positions of a game against itself, greedy, {policy.settings.simulations} simulations "
                f"per move, seed {ready[0].config().seed}. Value: for the player to move, 1 is a win; = marks results "
                "that are certain. Network: its probability of the move before the search.</p>"
            )
            yield "<div class=positions>"
            yield from map(_html, spread(searched_game(policy, build.build_world(loaded.config.world, 1))))
            yield "</div>"


def _searching(run: Run) -> bool:
    """Whether a group of the run has a policy of its own that searches."""
    policies = [group.policy for group in run.config().groups.values()]
    return any(isinstance(policy, schema.Part) and policy.name == "search" for policy in policies)


def searched_game(policy: SearchPolicy, world: Any) -> list[Searched]:
    """Every position of a greedy game of a player against itself in which there is a choice."""
    game, simulations = policy.game, policy.settings.simulations
    search, random = make_search(policy.settings, game, policy.network), seeding.generator(0, "searched game")
    trees, found = search.trees(1, simulations), []
    ((agent_type, spaces),) = world.agent_types.items()
    names = _names(world, agent_type, game.actions)
    world.reset(0)
    for number in range(LONGEST if game.rules is not None else LONGEST_SLOW):
        position = world.positions()
        legal = game.legal(position)
        choice = int(legal.sum()) > 1
        roots = search.roots(legal, np.array([simulations if choice else 0]), None, RootNoiseSettings())
        result = search.run(trees, roots, position, np.arange(1), random)
        if choice:
            player = spaces.agents[int(position[0, 0])]
            moves, solved = root_moves(trees, names), bool(trees.solved[0, 0])
            picture = _picture(world, game.describe(position[0]))
            found.append(Searched(number, player, picture, float(result.value[0]), solved, moves))
        timestep = world.step({agent_type: np.full((1, 2), result.action[0])})
        if timestep.ended[0]:
            break
    return found


def root_moves(trees: nodes.Trees, names: Sequence[str]) -> tuple[Move, ...]:
    """The legal moves at the root of the first tree, the most visited first."""
    count, gain, prior = trees.count[0, 0], trees.gain[0, 0], trees.prior[0, 0]
    solved = trees.fate[0, 0] != nodes.OPEN
    legal: Array = np.flatnonzero(trees.legal[0, 0])
    order = legal[np.lexsort((-prior[legal], -count[legal]))]
    return tuple(
        Move(
            names[a],
            int(count[a]),
            float(gain[a] / count[a]) if count[a] else None,
            float(prior[a]),
            bool(solved[a]),
        )
        for a in order.tolist()
    )


def spread(positions: Sequence[Searched]) -> list[Searched]:
    """Some positions, from the first to the last."""
    if not positions:
        return []
    return [positions[i] for i in np.unique(np.linspace(0, len(positions) - 1, POSITIONS).round().astype(int))]


def _names(world: Any, agent_type: str, actions: int) -> tuple[str, ...]:
    """The actions' names; numbers where the world has no words for them."""
    try:
        if isinstance(world, HasTextCodec):
            return world.text_codec(agent_type).choices
    except ValueError:  # its observations cannot be put into words
        pass
    return tuple(map(str, range(actions)))


def _picture(world: Any, text: str) -> str:
    """A picture of the world's first copy; text where it draws none."""
    from PIL import Image

    try:
        frame = world.frame(0) if isinstance(world, Renderable) else None
    except CoterieError:  # third-party environments draw only with world.render
        frame = None
    if frame is None:
        return f"<pre>{escape(text)}</pre>"
    image = Image.fromarray(frame)
    image = image.resize((WIDTH, round(WIDTH * image.height / image.width)), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return html.image(buffer.getvalue(), "image/png", text)


def _html(one: Searched) -> str:
    """A position's picture and its moves."""
    rows = []
    for move in one.moves[:MOVES]:
        value = "–" if move.value is None else f"{'= ' if move.solved else ''}{move.value:+.2f}"
        rows.append([move.name, str(move.visits), value, f"{move.prior:.0%}"])
    shown = "" if len(one.moves) <= MOVES else f", {MOVES} shown"
    value = f"{'= ' if one.solved else ''}{one.value:+.2f}"
    return (
        f"<div>{one.picture}<p>Move {one.number + 1}, {escape(one.player)}: value {value}</p>"
        f"{html.table(['move', 'visits', 'value', 'network'], rows)}"
        f"<p class=quiet>{len(one.moves)} legal moves{shown}</p></div>"
    )
