"""OpenSpiel games by name, as turn-based worlds with masks; imperfect information and chance included.

A player sees its own tensor: the information state (all it has seen) where information is imperfect, otherwise the
observation. Chance is drawn from the episode's seed. Games of simultaneous moves are played in OpenSpiel's turn-based
form, in which a player does not see what the others have chosen in the same round. Games that can be searched have
their rules in `openspiel_game.py`.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from coterie.core.game import NoGame
from coterie.core.text import OwnWords, TextCodec
from coterie.core.types import AgentType, Array, Box, CoterieError, Discrete, State, TimeStep, UnknownName
from coterie.worlds.adapters.batch import EnvArrays, EnvSpec
from coterie.worlds.adapters.external import ExternalSettings, ExternalWorld, WorldWrapper, import_external
from coterie.worlds.adapters.openspiel_game import OpenSpielGame, why_not_searchable
from coterie.worlds.adapters.text import ObservationText

AGENT_TYPE = "player"
Tensor = Literal["auto", "information_state", "observation"]


@dataclass(frozen=True)
class OpenSpielSettings(ExternalSettings):
    """An OpenSpiel game: `leduc_poker`; `options` are the game's parameters, for example `{players: 3}`."""

    tensor: Tensor = "auto"  # what a player sees; auto: information_state where information is imperfect


class OpenSpielWorld(WorldWrapper):
    """N copies of an OpenSpiel game; it has the capability `HasGame` where the game can be searched."""

    def __init__(self, settings: OpenSpielSettings, num_envs: int) -> None:
        make_env, name = functools.partial(make_openspiel, settings), f"openspiel/{settings.id}"
        super().__init__(ExternalWorld(name, settings, make_env, num_envs))
        self._game, self._why_no_game = find_game(name, make_env())
        self._positions: Array | None = None  # [N, S]; None: there is no game
        if self._game is not None:
            self._positions = np.tile(self._game.start, (num_envs, 1))

    @property
    def game(self) -> OpenSpielGame:
        """The rules, for search; raises NoGame where the game cannot be searched."""
        if self._game is None:
            raise NoGame(self._why_no_game)
        return self._game

    def positions(self) -> Array:
        """The present positions, `[N, S]`; a copy of its own."""
        if self._positions is None:
            raise NoGame(self._why_no_game)
        return self._positions.copy()

    def reset(self, seed: int) -> TimeStep:
        """Reset every copy."""
        if self._game is not None and self._positions is not None:
            self._positions[:] = self._game.start
        return super().reset(seed)

    def step(self, actions: Mapping[str, Array]) -> TimeStep:
        """Step every copy; a copy whose episode ends is reset at once."""
        if self._game is None or self._positions is None:
            return super().step(actions)
        movers = self._positions[:, 0].copy()
        acting = self.inner.timestep.agent_types[AGENT_TYPE].acting.any(axis=1)  # not those that are paused
        timestep = super().step(actions)
        ended = timestep.ended
        self._positions[ended] = self._game.start
        rows = np.flatnonzero(acting & ~ended)
        moved = self._positions[rows]
        self._game.apply(moved, np.asarray(actions[AGENT_TYPE])[rows, movers[rows]])
        self._positions[rows] = moved
        return timestep

    def load(self, state: State) -> TimeStep:
        """Return to a saved state."""
        timestep = super().load(state)
        if self._game is not None and self._positions is not None:
            for copy in range(self.num_envs):
                self._positions[copy] = self._replayed(self._game, copy)
        return timestep

    def _replayed(self, game: OpenSpielGame, copy: int) -> Array:
        """The position that the actions of one copy's current episode lead to."""
        position = game.start.copy()
        for actions in self.inner.episode_actions(copy)[AGENT_TYPE]:
            game.apply(position[None], actions[position[:1]])
        return position

    def text_codec(self, agent_type: str) -> TextCodec:
        """Describes observations in words."""
        return ObservationText(self, agent_type)

    def own_words(self, agent: str, copy: int) -> OwnWords:
        """A player's view and legal moves, in the game's own words."""
        words: OwnWords = self.inner.ask(copy, "words", self.agent_types[AGENT_TYPE].agents.index(agent))
        return words


def make_openspiel(settings: OpenSpielSettings) -> ExternalOpenSpielEnv:
    """Build one game."""
    pyspiel = import_external("pyspiel", "'coterie[openspiel]'")
    names = pyspiel.registered_names()
    if settings.id not in names:
        close = difflib.get_close_matches(settings.id, names, n=1, cutoff=0.6)
        hint = f"; did you mean 'openspiel/{close[0]}'?" if close else ""
        raise UnknownName(f"openspiel/{settings.id}: OpenSpiel has no such game{hint}")
    return ExternalOpenSpielEnv(pyspiel, settings)


def find_game(name: str, env: ExternalOpenSpielEnv) -> tuple[OpenSpielGame | None, str]:
    """The rules of an environment's game, or None and why it cannot be searched."""
    reason = why_not_searchable(env.pyspiel, env.game, env.settings.max_episode_steps)
    if reason is not None:
        return None, f"{name} cannot be searched: {reason}"
    return OpenSpielGame(name, env.game, env.tensor, Box(env.shape, -np.inf, np.inf)), ""


class ExternalOpenSpielEnv:
    """One OpenSpiel game."""

    def __init__(self, pyspiel: Any, settings: OpenSpielSettings) -> None:
        self.pyspiel, self.settings = pyspiel, settings
        if settings.changes_frames:
            raise CoterieError(
                f"openspiel/{settings.id}: world.frame_stack, world.grey and world.resize are for Gymnasium and "
                "PettingZoo environments; remove them"
            )
        try:
            self.game = self._load({})
        except pyspiel.SpielError as error:
            raise CoterieError(f"openspiel/{settings.id}: world.options: {str(error).splitlines()[0]}") from None
        kind = self.game.get_type()
        if kind.dynamics == pyspiel.GameType.Dynamics.MEAN_FIELD:
            raise CoterieError(f"openspiel/{settings.id}: mean-field games are not supported")
        self._seeded = "rng_seed" in kind.parameter_specification  # draws inside the game, not at chance nodes
        self.tensor = _tensor(settings, kind, pyspiel)
        self.shape = tuple(getattr(self.game, f"{self.tensor}_tensor_shape")()) or (1,)
        self.players = self.game.num_players()
        agents = tuple(f"player_{i}" for i in range(self.players))
        agent_type = AgentType(agents, Box(self.shape, -np.inf, np.inf), Discrete(self.game.num_distinct_actions()))
        self.env_spec = EnvSpec({AGENT_TYPE: agent_type}, simultaneous=False, masked=(AGENT_TYPE,), limited=True)
        self._limit = settings.max_episode_steps or 2**62

    def _load(self, seed: dict[str, int]) -> Any:
        game = self.pyspiel.load_game(self.settings.id, self.settings.options | seed)
        if game.get_type().dynamics == self.pyspiel.GameType.Dynamics.SIMULTANEOUS:
            return self.pyspiel.convert_to_turn_based(game)
        return game

    def bind(self, arrays: EnvArrays) -> None:
        """Read actions from these arrays and write results into them from now on."""
        self._arrays = arrays[AGENT_TYPE]
        assert isinstance(self._arrays.observation, np.ndarray)
        self._observation = self._arrays.observation

    def reset(self, seed: int) -> None:
        """Start an episode."""
        if self._seeded:
            self.game = self._load({"rng_seed": seed})
        self._random = np.random.default_rng(seed)
        self.state = self.game.new_initial_state()
        self._elapsed_steps = 0
        own = self._arrays
        own.done[:] = False
        self._observation[...] = 0
        self._play_chance()
        self._returns = np.zeros(self.players)  # what chance pays before the first move counts at that move
        self._write_mover()

    def step(self) -> bool:
        """Take the move of the player whose turn it is."""
        own, state = self._arrays, self.state
        state.apply_action(int(own.action[state.current_player()]))
        self._play_chance()
        self._elapsed_steps += 1
        over = state.is_terminal()
        returns = np.array(state.returns())
        own.reward[:], self._returns = returns - self._returns, returns
        cut = not over and self._elapsed_steps >= self._limit
        own.terminated[:], own.truncated[:] = over, cut
        own.acting[:] = False
        if over or cut:
            if cut:  # everybody's last observation is bootstrapped from; at the game's end none is needed
                for player in range(self.players):
                    self._write_observation(player)
            own.done[:] = True
            return True
        self._write_mover()
        return False

    def _play_chance(self) -> None:
        while self.state.is_chance_node():
            outcomes, probabilities = zip(*self.state.chance_outcomes(), strict=True)
            weights = np.array(probabilities)
            self.state.apply_action(int(self._random.choice(outcomes, p=weights / weights.sum())))

    def _write_mover(self) -> None:
        own, player = self._arrays, self.state.current_player()
        assert own.mask is not None
        own.acting[:], own.mask[:] = False, True
        own.acting[player] = True
        own.mask[player] = False
        own.mask[player, self.state.legal_actions(player)] = True
        self._write_observation(player)

    def _write_observation(self, player: int) -> None:
        values = getattr(self.state, f"{self.tensor}_tensor")(player)
        self._observation[player] = np.asarray(values, np.float32).reshape(self.shape)

    def success(self) -> bool:
        """OpenSpiel does not define success."""
        return False

    def words(self, player: int) -> OwnWords:
        """A player's view and legal moves; nothing that the game hides from it.

        A game of perfect information hides nothing, so that its state is shown where it tells no observation.
        """
        kind, state = self.game.get_type(), self.state
        texts = [state.information_state_string(player)] if kind.provides_information_state_string else []
        if kind.provides_observation_string:
            texts.append(state.observation_string(player))
        perfect = kind.information == self.pyspiel.GameType.Information.PERFECT_INFORMATION
        if perfect:  # an information state is then only the list of moves
            texts = texts[int(kind.provides_information_state_string) :] or [str(state)]
        elif len(texts) == 2:  # the observation may be a board, or say less than the information state
            texts = texts[:1] if texts[1].strip().count("\n") <= texts[0].strip().count("\n") else texts[::-1]
        names = {action: state.action_to_string(player, action) for action in state.legal_actions(player)}
        return OwnWords("\n".join(text.strip("\n") for text in texts), names)

    def frame(self) -> Array:
        """The state as text, drawn."""
        from PIL import Image, ImageDraw

        text = str(self.state)
        lines = text.splitlines() or [""]
        size = max(240, 8 * max(map(len, lines)) + 20), max(120, 16 * len(lines) + 20)
        picture = Image.new("RGB", size, "white")
        ImageDraw.Draw(picture).multiline_text((10, 10), text, fill="black")
        width, height = min(size[0], 640), min(size[1], 480)
        canvas = Image.new("RGB", (640, 480), "white")  # states differ in length, frames of a video may not
        canvas.paste(picture.crop((0, 0, width, height)))
        return np.asarray(canvas)

    def close(self) -> None:
        """Does nothing: there is nothing to release."""


def _tensor(settings: OpenSpielSettings, kind: Any, pyspiel: Any) -> str:
    """The name of the tensor that a player sees."""
    provided = {
        "information_state": kind.provides_information_state_tensor,
        "observation": kind.provides_observation_tensor,
    }
    perfect = kind.information == pyspiel.GameType.Information.PERFECT_INFORMATION
    order = ["observation", "information_state"] if perfect else ["information_state", "observation"]
    wanted = order if settings.tensor == "auto" else [settings.tensor]
    found = next((name for name in wanted if provided[name]), None)
    if found is None:
        there = [name for name, is_there in provided.items() if is_there]
        raise CoterieError(
            f"openspiel/{settings.id}: world.tensor: {settings.tensor}: the game provides {', '.join(there) or 'none'}"
        )
    return found
