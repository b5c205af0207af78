"""Board games as worlds: `BoardWorld` makes a turn-based world of N copies from a game's compiled rules.

A game is one file: its rules, a `CompiledGame`, a settings dataclass and a subclass of `BoardWorld`. What the player to
move sees are planes `[channels, rows, columns]`: its own stones, its opponent's stones, and more if the game wants. The
other player sees the same position as if it were to move. The kernels that step copies are
compiled for every game with its rules inside.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from coterie.core import seeding
from coterie.core.alphabeta import best_actions
from coterie.core.game import CompiledGame, Rules, Symmetry, inline_rules
from coterie.core.jit import device_function, jit
from coterie.core.splitmix import seed_copies, uniform
from coterie.core.text import TextCodec
from coterie.core.types import AgentStep, AgentType, Array, Box, CoterieError, Discrete, State, TimeStep, Tree
from coterie.core.world import Sign, World, rebuild
from coterie.nn.launch import Kernel, kernel
from coterie.worlds.actions import first_outside
from coterie.worlds.boards.render import COLOURS, SIGNS, board_text, cell_names, draw_board

AGENTS = ("player_0", "player_1")
STUCK, UNOPENED = 1, 2  # faults of a game: there is no legal action; no opening was found
OPENINGS = 10_000  # random games that may end too early before an opening is given up


class _Arrays(NamedTuple):
    """The state of N games and the arrays of a time step."""

    position: Array  # [N, S] int64
    last: Array  # [N] int64: the latest action; −1 at the start
    final_position: Array  # [N, S] int64: the end of each copy's latest game
    final_last: Array  # [N] int64
    random: Array  # [N] uint64: one splitmix64 state per copy
    observation: Array  # [N, 2, D] float32
    final_observation: Array  # [N, 2, D] float32
    mask: Array  # [N, 2, K] bool
    acting: Array  # [N, 2] bool
    reward: Array  # [N, 2] float32
    terminated: Array  # [N, 2] bool
    ended: Array  # [N] bool
    payoffs: Array  # [N, 2] float32: scratch
    fault: Array  # [N] int8: STUCK and UNOPENED


class _Setup(NamedTuple):
    """The beginning of games, and their payoffs."""

    start: Array  # [S] int64
    rewards: Array  # [3] float32: of a win, a draw and a loss
    random_first: bool
    opening_moves: int


class BoardWorld(World):
    """N games of a board game; both players get their rewards when a game ends."""

    agent_types: Mapping[str, AgentType]
    num_envs: int
    simultaneous = False
    draws_final = True
    expert_depth = 2  # moves that the expert looks ahead

    def __init__(
        self,
        settings: Any,
        num_envs: int,
        game: CompiledGame,
        observation: str = "vector",  # or "planes": [channels, rows, columns] instead of a row of numbers
        rewards: tuple[float, float, float] = (1.0, 0.0, -1.0),  # of a win, a draw and a loss, times payoff_unit
        random_first: bool = False,  # whether chance decides who moves first
        opening_moves: int = 0,  # random moves before the players' first, drawn for every game
        choices: tuple[str, ...] | None = None,  # names of the actions; None: of the cells, or numbers
    ) -> None:
        if num_envs < 1:
            raise ValueError(f"num_envs must be at least 1, got {num_envs}")
        if len(game.observation.shape) != 3 or game.observation.shape[0] < 2:
            raise ValueError(
                f"game '{game.name}': the observation must be planes [2 or more, rows, columns], "
                f"got shape {game.observation.shape}"
            )
        if not 0 <= opening_moves < game.max_moves:
            raise ValueError(f"opening_moves must lie in [0, {game.max_moves - 1}], got {opening_moves}")
        _, self.rows, self.columns = game.observation.shape
        names = cell_names(self.rows, self.columns)
        names = names if game.actions == len(names) else tuple(str(action) for action in range(game.actions))
        self.choices = names if choices is None else choices
        self.settings, self.num_envs = settings, num_envs
        self._game = game
        self._setup = _Setup(
            game.start, np.array(rewards, np.float32) * np.float32(game.payoff_unit), random_first, opening_moves
        )
        self._start, self._observe, self._step = _make_kernels(game.rules)
        size = int(np.prod(game.observation.shape))
        box = game.observation
        low, high = (bound if np.ndim(bound) == 0 else np.ravel(bound) for bound in (box.low, box.high))
        seen = box if observation == "planes" else Box((size,), low, high)
        self.agent_types = {"player": AgentType(AGENTS, seen, Discrete(game.actions))}
        self._arrays = _Arrays(
            position=np.empty((num_envs, len(game.start)), np.int64),
            last=np.empty(num_envs, np.int64),
            final_position=np.tile(game.start, (num_envs, 1)),
            final_last=np.full(num_envs, -1),
            random=np.empty(num_envs, np.uint64),
            observation=np.empty((num_envs, 2, size), np.float32),
            final_observation=np.zeros((num_envs, 2, size), np.float32),
            mask=np.empty((num_envs, 2, game.actions), np.bool_),
            acting=np.empty((num_envs, 2), np.bool_),
            reward=np.empty((num_envs, 2), np.float32),
            terminated=np.empty((num_envs, 2), np.bool_),
            ended=np.empty(num_envs, np.bool_),
            payoffs=np.zeros((num_envs, 2), np.float32),
            fault=np.zeros(num_envs, np.int8),
        )
        agent_step = AgentStep(
            observation=self._arrays.observation.reshape(num_envs, 2, *seen.shape),
            acting=self._arrays.acting,
            reward=self._arrays.reward,
            terminated=self._arrays.terminated,
            truncated=np.zeros((num_envs, 2), np.bool_),
            final_observation=self._arrays.final_observation.reshape(num_envs, 2, *seen.shape),
            mask=self._arrays.mask,
        )
        self._timestep = TimeStep({"player": agent_step}, self._arrays.ended)
        self.reset(0)  # a new world is valid before its first reset
        self._step.over(0, self._arrays, np.zeros((num_envs, 2), np.int64), self._setup)  # compiled here

    @property
    def game(self) -> CompiledGame:
        """The rules, for search."""
        return self._game

    def positions(self) -> Array:
        """The present positions, `[N, S]`; a copy of its own."""
        return self._arrays.position.copy()

    def reset(self, seed: int) -> TimeStep:
        """Reset every game."""
        seed_copies(self._arrays.random, seed, self._game.name)
        self._start.over(self.num_envs, self._arrays, self._setup)
        self._check_faults()
        return self._present()

    def step(self, actions: Mapping[str, Array]) -> TimeStep:
        """Play one move in every copy; an illegal move raises ValueError and changes nothing."""
        chosen = np.asarray(actions["player"]).astype(np.int64, casting="same_kind", copy=False)
        if chosen.shape != (self.num_envs, 2):
            raise ValueError(f"actions of 'player' must have shape {(self.num_envs, 2)}, got {chosen.shape}")
        copy = _find_illegal(self._arrays, chosen)
        if copy >= 0:
            mover = int(self._arrays.position[copy, 0])
            reason = self.why_illegal(int(chosen[copy, mover]))
            raise ValueError(f"illegal move in copy {copy} by {AGENTS[mover]}: {reason}")
        self._step.over(self.num_envs, self._arrays, chosen, self._setup)
        self._check_faults()
        return self._timestep

    def _present(self) -> TimeStep:
        """The time step of the present positions, without rewards and ends."""
        self._observe.over(self.num_envs, self._arrays)
        self._check_faults()
        return self._timestep

    def _check_faults(self) -> None:
        """Raise an error if a game could not begin or cannot go on."""
        fault, name = self._arrays.fault, self._game.name
        copy = first_outside(fault, 0, 0)
        if copy < 0:
            return
        if (fault & UNOPENED).any():
            raise ValueError(
                f"opening_moves={self._setup.opening_moves}: {OPENINGS:,} random games of '{name}' in a row were "
                "over by then; choose fewer"
            )
        raise CoterieError(
            f"game '{name}', copy {copy}: the game is not over and there is no legal action; "
            "outcome must end it, or legal must allow a pass"
        )

    def why_illegal(self, action: int) -> str:
        """The reason for which an action is refused."""
        if 0 <= action < self._game.actions:
            return f"action {action} ({self.choices[action]}) is not legal in this position"
        return f"action {action} is not one of 0 … {self._game.actions - 1}"

    def __reduce__(self) -> tuple[Any, ...]:
        return rebuild, (type(self), (self.settings, self.num_envs), self.save())

    def save(self) -> State:
        """Positions, latest actions and random states."""
        a = self._arrays
        return {"position": a.position.copy(), "last": a.last.copy(), "random": a.random.copy()}

    def load(self, state: State) -> TimeStep:
        """Restore a saved state."""
        if state["position"].shape != self._arrays.position.shape:
            raise ValueError(f"state holds {len(state['position'])} copies, this world has {self.num_envs}")
        self._arrays.position[:] = state["position"]
        self._arrays.last[:] = state["last"]
        self._arrays.random[:] = state["random"]
        return self._present()

    def text_codec(self, agent_type: str) -> TextCodec:
        """The text codec of the game."""
        return BoardText(self, agent_type)

    def expert(self, agent_type: str, random: np.random.Generator) -> Array:
        """The best move by alpha-beta search to `expert_depth`; random among equal ones."""
        self.check_agent_type(agent_type)
        actions = np.zeros((self.num_envs, 2), np.int64)
        copies = np.arange(self.num_envs)
        movers = self._arrays.position[:, 0]
        # Every copy uses one random number, needed or not, so that games do not influence each other.
        chance = random.random(self.num_envs)
        allowed = self._arrays.mask[copies, movers]
        actions[copies, movers] = best_actions(self._game, self._arrays.position, self.expert_depth, allowed, chance)
        return actions

    def check_agent_type(self, agent_type: str) -> None:
        """Raise ValueError unless the world has this agent type."""
        if agent_type not in self.agent_types:
            raise ValueError(f"agent_type must be one of {sorted(self.agent_types)}, got {agent_type!r}")

    # Pictures -----------------------------------------------------------------------------------------

    def marks(self, position: Array) -> Array:
        """The owner of the stone in each cell, `[rows, columns]`: 0, 1, or −1 for an empty cell."""
        seen = position.copy()
        seen[0] = 0
        own, others = self._game.observe(seen[None])[0].reshape(-1, self.rows, self.columns)[:2] > 0
        return np.where(own, 0, np.where(others, 1, -1))

    def cell_of(self, position: Array, action: int, played: bool) -> int:
        """The cell of an action that was just `played`, or that may be played next; −1 if it has none."""
        return action if 0 <= action < self.rows * self.columns else -1

    def labels(self) -> tuple[str, ...] | None:
        """Labels of columns in games whose actions are columns; None: cells have letters and numbers."""
        return None

    def _scene(self, copy: int, final: bool) -> tuple[Array, int]:
        """Position and latest action, of the present game or of the finished one."""
        a = self._arrays
        return (a.final_position[copy], int(a.final_last[copy])) if final else (a.position[copy], int(a.last[copy]))

    def frame(self, copy: int, final: bool = False) -> Array:
        """An image of one game; dots show where the player to move may play, a ring the latest move."""
        position, last = self._scene(copy, final)
        legal = [] if final else np.flatnonzero(self._game.legal(position[None])[0]).tolist()
        hints = [self.cell_of(position, action, played=False) for action in legal]
        shown = self.cell_of(position, last, played=True) if last >= 0 else -1
        return draw_board(self.marks(position), hints, int(position[0]), shown, self.labels())

    def ansi(self, copy: int, final: bool = False) -> str:
        """The board as text, the latest move in brackets."""
        position, last = self._scene(copy, final)
        shown = self.cell_of(position, last, played=True) if last >= 0 else -1
        return f"{board_text(self.marks(position), shown, self.labels())}\n{self.standing(position)}"

    def legend(self) -> tuple[Sign, ...]:
        """The stones of both players."""
        return tuple(Sign(*one) for one in zip(SIGNS, AGENTS, COLOURS, strict=True))

    def standing(self, position: Array) -> str:
        """The player to move, or the result of the game, in words."""
        over, payoffs = self._game.outcome(position[None])
        if not over[0]:
            mover = int(position[0])
            return f"{AGENTS[mover]} ({SIGNS[mover]}) to move"
        winner = int(payoffs[0].argmax())
        return f"{AGENTS[winner]} ({SIGNS[winner]}) has won" if payoffs[0, winner] > 0 else "a draw"


class BoardText:
    """Describes boards: the reader's stones are X, the opponent's O. The choices are the names of the actions."""

    prompt = "board"
    idle = None

    def __init__(self, world: BoardWorld, agent_type: str) -> None:
        world.check_agent_type(agent_type)
        self.game, self.shape, self.choices = world.game, world.game.observation.shape, world.choices

    def describe(self, observation: Tree) -> list[str]:
        assert isinstance(observation, np.ndarray)
        planes = observation.reshape(len(observation), *self.shape) > 0
        return [self.describe_board(own, others) for own, others in planes[:, :2]]

    def describe_board(self, own: Array, others: Array) -> str:
        """One board; `own` and `others` are `[rows, columns]` bool."""
        return f"You are X: {board_line(own, others)}."

    def actions(self, chosen: Array) -> Array:
        return chosen

    def samples(self) -> list[str]:
        """Positions of random games."""
        random = seeding.generator(0, "board samples")
        positions, seen = np.tile(self.game.start, (8, 1)), []
        for _ in range(min(8, self.game.max_moves)):
            seen += self.describe(self.game.observe(positions))
            legal = self.game.legal(positions)
            self.game.apply(positions, (random.random(legal.shape) * legal).argmax(axis=1))
            over, _ = self.game.outcome(positions)
            positions[over] = self.game.start
        return list(dict.fromkeys(seen))


def board_line(own: Array, others: Array) -> str:
    """A board in one line, rows separated by slashes."""
    signs = np.where(own, "X", np.where(others, "O", "."))
    return " / ".join("".join(row) for row in signs)


def grid_symmetries(
    rows: int, columns: int, planes: int, kept: tuple[int, ...], passes: int = 0
) -> tuple[Symmetry, ...]:
    """Symmetries of a board whose actions are its cells, followed by `passes` actions that stay what they are.

    `kept` lists which: 0 … 3 are rotations by so many quarter turns, 4 … 7 the same after a reflection of left and
    right. Quarter turns need a square board.
    """
    cells = np.arange(rows * columns).reshape(rows, columns)
    found = []
    for index in kept:
        turned = np.rot90(cells if index < 4 else cells[:, ::-1], index % 4).ravel()
        shifted = [turned + plane * rows * columns for plane in range(planes)]
        found.append(Symmetry(np.concatenate(shifted), np.concatenate([turned, rows * columns + np.arange(passes)])))
    return tuple(found)


# Kernels ---------------------------------------------------------------------------------------------------


@jit
def _find_illegal(a: _Arrays, actions: Array) -> int:
    """The first copy whose move is illegal, or −1."""
    for n in range(len(actions)):
        mover = a.position[n, 0]
        action = actions[n, mover]
        if action < 0 or action >= a.mask.shape[2] or not a.mask[n, mover, action]:
            return n
    return -1


@functools.cache
def _make_kernels(
    pointers: Rules,
) -> tuple[Kernel[[_Arrays, _Setup]], Kernel[[_Arrays]], Kernel[[_Arrays, Array, _Setup]]]:
    """Compile a game's rules into kernels of its own: to start games, to observe them, and to step them."""
    rules = inline_rules(pointers)
    start, write_scene = _make_start(rules), _make_write_scene(rules)

    @kernel
    def observe(n: int, a: _Arrays) -> None:
        """Write the time step without rewards and ends."""
        for player in range(2):
            a.reward[n, player], a.terminated[n, player] = 0.0, False
        a.ended[n] = False
        write_scene(a, n)

    return start, observe, _make_step(rules, start, write_scene)


def _make_start(rules: Rules) -> Kernel[[_Arrays, _Setup]]:
    legal, apply, outcome = rules.legal, rules.apply, rules.outcome

    @device_function
    def play_random_move(a: _Arrays, n: int) -> bool:
        """Play a random legal move, if there is one; the mask is overwritten by the observation that follows."""
        mask, legal_moves = a.mask[n, a.position[n, 0]], 0
        for action in range(len(mask)):
            mask[action] = False
        legal(a.position[n], mask)
        for action in range(len(mask)):
            legal_moves += mask[action]
        if legal_moves == 0:
            return False
        left = int(uniform(a.random, n) * legal_moves)
        for action in range(len(mask)):
            if mask[action]:
                if left == 0:
                    a.last[n] = action
                    break
                left -= 1
        apply(a.position[n], a.last[n])
        return True

    @kernel
    def start(n: int, a: _Arrays, setup: _Setup) -> None:
        """Begin a game with its random moves; one that would be over is drawn again, up to `OPENINGS` times."""
        position, first, played, over = a.position[n], setup.start[0], 0, 0
        if setup.random_first:
            first = int(uniform(a.random, n) < 0.5)
        for i in range(len(position)):
            position[i] = setup.start[i]
        position[0] = first
        a.last[n], a.fault[n] = -1, 0
        while played < setup.opening_moves and play_random_move(a, n):  # without a move the observation reports it
            played += 1
            if outcome(position, a.payoffs[n]):
                for i in range(len(position)):
                    position[i] = setup.start[i]
                position[0], played = first, 0
                over += 1
                if over == OPENINGS:
                    a.fault[n] = UNOPENED
                    return

    return start


def _make_write_scene(rules: Rules) -> Callable[[_Arrays, int], None]:
    legal, write_seen = rules.legal, rules.observe

    @device_function
    def write_scene(a: _Arrays, n: int) -> None:
        """Write observations, acting player and action masks; it is a fault if there is no legal action."""
        mover = a.position[n, 0]
        for player in range(2):
            a.position[n, 0] = player
            write_seen(a.position[n], a.observation[n, player])
            a.acting[n, player] = player == mover
            for action in range(a.mask.shape[2]):
                # the row of an idle player is all legal, so that a masked softmax stays finite
                a.mask[n, player, action] = player != mover
        a.position[n, 0] = mover
        legal(a.position[n], a.mask[n, mover])
        for action in range(a.mask.shape[2]):
            if a.mask[n, mover, action]:
                return
        a.fault[n] |= STUCK

    return write_scene


def _make_step(
    rules: Rules, start: Kernel[[_Arrays, _Setup]], write_scene: Callable[[_Arrays, int], None]
) -> Kernel[[_Arrays, Array, _Setup]]:
    apply, outcome, write_seen = rules.apply, rules.outcome, rules.observe

    @device_function
    def keep_final(a: _Arrays, n: int) -> None:
        """Keep the end of a game, and what both players see of it."""
        mover = a.position[n, 0]
        for player in range(2):
            a.position[n, 0] = player
            write_seen(a.position[n], a.final_observation[n, player])
        a.position[n, 0] = mover
        for i in range(a.position.shape[1]):
            a.final_position[n, i] = a.position[n, i]
        a.final_last[n] = a.last[n]

    @kernel
    def step(n: int, a: _Arrays, actions: Array, setup: _Setup) -> None:
        """Play one legal move, and begin the next game where one ends."""
        rewards, payoffs = setup.rewards, a.payoffs[n]
        a.last[n], a.fault[n] = actions[n, a.position[n, 0]], 0
        apply(a.position[n], a.last[n])
        over = outcome(a.position[n], payoffs)
        for player in range(2):
            payoff = payoffs[player]
            won_or_lost = rewards[0] * payoff if payoff > 0 else -rewards[2] * payoff
            a.reward[n, player] = 0.0 if not over else rewards[1] if payoff == 0 else won_or_lost
            a.terminated[n, player] = over
        a.ended[n] = over
        if over:
            keep_final(a, n)
            start(n, a, setup)
        write_scene(a, n)

    return step
