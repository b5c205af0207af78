"""A person at the terminal as a policy: shows what each agent sees, lists the legal actions, and reads an answer.

It plays one environment at a time. What is shown goes to the standard error, so that results on the standard output can
be read by a program; answers come from the standard input. At a terminal one key is an answer where all actions have a
key of one character, otherwise a line is; from a pipe or a file, lines are read. How keys and lines are read is in
`Terminal`, which tests replace.
"""

from __future__ import annotations

import os
import select
import stat
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from coterie.core.game import game_of
from coterie.core.group import GroupSpec, PlayStopped, Stateless
from coterie.core.text import HasOwnWords, HasTextCodec, OwnWords, TextCodec, find_text_codec
from coterie.core.types import (
    ActionSpace,
    Array,
    Box,
    CoterieError,
    Decision,
    Discrete,
    MultiDiscrete,
    Text,
    Tree,
    View,
    action_dtype,
    action_shape,
    arrays_of,
    blank,
    map_tree,
)
from coterie.core.validation import one_of
from coterie.core.world import Renderable
from coterie.policies import ansi

WIDTH = 80
MOST_NUMBERS = 160  # that an observation may have to be shown as numbers
KEYS = "0123456789abcdefghijklmnoprstuvwxyz"  # without q, which ends
END = "q"
ARROWS = {"\x1b[A": ("up", "forward"), "\x1b[B": ("down", "backward"), "\x1b[C": ("right",), "\x1b[D": ("left",)}
Shown = Literal["auto", "words", "picture", "numbers"]


@dataclass(frozen=True)
class PersonSettings:
    """Settings of what a person sees."""

    show: Shown = "auto"  # words, picture or numbers; auto: the first that the world has, in board games the picture
    codec: str = "auto"  # text codec: auto (the world's own), or package.module:Name

    def __post_init__(self) -> None:
        one_of("show", self.show, get_args(Shown))


class PersonPolicy(Stateless):
    """Asks a person for the action of every agent of a group, one after the other.

    Its memory is the number of the agent's decisions in this episode.
    """

    memory_size = 1
    max_envs = 1

    def __init__(self, settings: PersonSettings, group_spec: GroupSpec) -> None:
        self.group_spec, self.space = group_spec, group_spec.spaces.action
        self.codec = own_codec(settings, group_spec)
        self.tells_words = settings.codec == "auto" and isinstance(group_spec.world, HasOwnWords)
        self.show = settings.show if settings.show != "auto" else self._default_show()
        worded = self.codec is not None or self.tells_words or isinstance(group_spec.spaces.observation, Text)
        if self.show == "words" and not worded:
            raise ValueError("show: this world has no words for what its agents see; set show=picture or show=numbers")
        if self.show == "picture" and not isinstance(group_spec.world, Renderable):
            raise ValueError("show: this world has no picture; set show=numbers")
        self.terminal = Terminal()
        self.episode = 0
        self._explained = False

    def _default_show(self) -> Shown:
        """Words, as far as there are any; a board, which hides nothing, is clearer as a picture.

        Whether other worlds can be drawn shows when they are: `auto` remains.
        """
        world = self.group_spec.world
        if self.tells_words:
            return "words"
        if isinstance(world, Renderable) and game_of(world) is not None:
            return "picture"
        if self.codec is not None or isinstance(self.group_spec.spaces.observation, Text):
            return "words"
        return "auto" if isinstance(world, Renderable) else "numbers"

    def act(self, view: View) -> Decision:
        num_envs, agents = view.acting.shape
        if num_envs > 1:
            raise CoterieError(
                f"policy 'person' plays one environment at a time, not {num_envs}; use it with 'coterie demonstrate', "
                "'eval', 'match' or 'watch', which play one after the other"
            )
        before = np.zeros((num_envs, agents, 1), np.float32) if view.memory is None else view.memory
        asked = np.flatnonzero(view.acting[0]).tolist()
        if asked and not before.any():
            self._begin_episode()
        action = blank((num_envs, agents, *action_shape(self.space)), action_dtype(self.space))
        for a in asked:
            words = self._own_words(view, a)
            self._show(view, a, int(before[0, a, 0]) + 1, words)
            action[0, a] = self._ask(None if view.mask is None else view.mask[0, a], words)
        return Decision(action, memory=before + view.acting[..., None].astype(np.float32))

    # Showing ------------------------------------------------------------------------------------------------

    def _begin_episode(self) -> None:
        """Number the episode; before the first one, check the input and say how to answer."""
        self.episode += 1
        if not self._explained:
            self.terminal.demand_input()
            self._explained = True
            self.terminal.say(fold(self._explanation()))

    def _explanation(self) -> str:
        """One or two sentences on how to answer."""
        if isinstance(self.space, Discrete):
            _, names, keys = self._choices()
            if self.tells_words or not self._one_key(keys):  # a game's moves and their number change
                return f"Choose an action: type its key or its name, then Enter. {END} ends."
            arrows = any(find(arrow, range(len(names)), names, keys) is not None for arrow in ARROWS)
            return f"Choose an action: press its key{' or an arrow key' if arrows else ''}. {END} ends."
        if isinstance(self.space, Text):
            return f"Type an answer, then Enter; a line that ends with \\ goes on in the next. {END} alone ends."
        between = ", separated by spaces" if int(np.prod(action_shape(self.space))) > 1 else ""
        return f"Type {self._wanted_numbers()}{between}, then Enter. {END} ends."

    def _own_words(self, view: View, a: int) -> OwnWords | None:
        """The game's own words for an agent's position and moves."""
        if not self.tells_words or not isinstance(view.world, HasOwnWords):
            return None
        return view.world.own_words(self.group_spec.agents[a], 0)

    def _show(self, view: View, a: int, step: int, words: OwnWords | None) -> None:
        self.terminal.say(f"\nepisode {self.episode}, step {step}, {self.group_spec.agents[a]}")
        self.terminal.say(words.seen if self.show == "words" and words is not None else self._seen(view, a))

    def _seen(self, view: View, a: int) -> str:
        """An agent's observation, for a terminal."""
        own = map_tree(lambda array: array[:1, a], view.observation)
        if self.show in ("auto", "picture") and isinstance(view.world, Renderable):
            try:
                scene = view.world.ansi(0)
                return scene if ansi.in_colour(sys.stderr) else ansi.without_colours(scene)
            except CoterieError:  # this world is drawn only with other settings
                if self.show == "picture":
                    raise
        if self.show == "words" and isinstance(self.group_spec.spaces.observation, Text):
            return str(own[0])
        if self.show == "words" and self.codec is not None:
            return "\n".join(fold(line) for line in self.codec.describe(own)[0].splitlines())
        return numbers(own)

    # Asking -------------------------------------------------------------------------------------------------

    def _ask(self, mask: Array | None, words: OwnWords | None) -> Array | int | str:
        if isinstance(self.space, Discrete):
            return self._ask_choice(mask, words)
        if isinstance(self.space, Text):
            return self._ask_text()
        return self._ask_numbers()

    def _choices(self, words: OwnWords | None = None) -> tuple[Array, tuple[str, ...], tuple[str, ...]]:
        """Actions, their names and their keys; the world's no-op action, if its codec offers none, is called `wait`."""
        assert isinstance(self.space, Discrete)
        if words is not None:  # of the legal actions alone
            action, names = np.array(list(words.actions)), tuple(words.actions.values())
        elif self.codec is None:
            action, names = np.arange(self.space.n), tuple(f"action {i}" for i in range(self.space.n))
        else:
            action, names = self.codec.actions(np.arange(len(self.codec.choices))), self.codec.choices
            if self.codec.idle is not None and not np.isin(self.codec.idle, action).any():
                action, names = np.append(action, self.codec.idle), (*names, "wait")
        return action, names, keys_of(names)

    def _ask_choice(self, mask: Array | None, words: OwnWords | None) -> int:
        action, names, keys = self._choices(words)
        legal = np.ones(len(action), bool) if mask is None else mask[action]
        if not legal.any() and mask is not None:  # only actions that the codec does not name
            action = np.flatnonzero(mask)
            names = tuple(f"action {i}" for i in action)
            keys, legal = keys_of(names), np.ones(len(action), bool)
        rows = [i for i in range(len(action)) if legal[i]]
        self.terminal.say(menu([(keys[i], names[i]) for i in rows]))
        while True:
            word = self._read_key() if words is None and self._one_key(keys) else self._read_line()
            found = find(word, rows, names, keys)
            if found is not None:
                if word != names[found]:
                    self.terminal.say(f"  {names[found]}")
                return int(action[found])
            barred = find(word, range(len(action)), names, keys)
            why = f"'{shown(word)}' is no key here" if barred is None else f"'{names[barred]}' is not legal now"
            self.terminal.say(fold(f"{why}; choose one of {', '.join(keys[i] for i in rows)}, or {END} to end."))

    def _ask_text(self) -> str:
        assert isinstance(self.space, Text)
        while True:
            lines = [self._read_line()]
            while lines[-1].endswith("\\"):
                lines[-1] = lines[-1][:-1]
                lines.append(self._read_line())
            answer = "\n".join(lines)
            if not answer:
                self.terminal.say(f"An empty line is no answer; type one, or {END} to end.")
            elif len(answer) > self.space.max_length:
                self.terminal.say(
                    f"The answer has {len(answer)} characters; at most {self.space.max_length} are read. Try again."
                )
            else:
                return answer

    def _ask_numbers(self) -> Array:
        self.terminal.say(fold(f"{self._wanted_numbers()}, or {END} to end"))
        while True:
            action, wrong = read_numbers(self._read_line(), self.space)
            if action is not None:
                return action
            self.terminal.say(fold(f"{wrong}; type {self._wanted_numbers()}, or {END} to end."))

    def _wanted_numbers(self) -> str:
        if isinstance(self.space, MultiDiscrete):
            return f"{len(self.space.sizes)} whole numbers, below {', '.join(map(str, self.space.sizes))}"
        assert isinstance(self.space, Box)
        low, high = (np.broadcast_to(bound, self.space.shape).ravel() for bound in (self.space.low, self.space.high))
        count = f"{len(low)} number{'s' if len(low) > 1 else ''}"
        bounds = dict.fromkeys(f"{least:g} … {most:g}" for least, most in zip(low, high, strict=True))
        return f"{count} in {', '.join(bounds)}"

    def _one_key(self, keys: Sequence[str]) -> bool:
        return self.terminal.is_live and all(len(key) == 1 for key in keys)

    def _read_key(self) -> str:
        return self._checked(self.terminal.read_key)

    def _read_line(self) -> str:
        return self._checked(self.terminal.read_line)

    def _checked(self, read: Callable[[], str | None]) -> str:
        """An answer; ends play at `q` and at the end of the input."""
        word = read()
        if word is None:
            raise PlayStopped("the input ended before the episode did", by_choice=False)
        if word.lower() == END:
            raise PlayStopped("the person ended play", by_choice=True)
        return word


# The terminal -----------------------------------------------------------------------------------------------


class Terminal:
    """The standard input and the standard error."""

    @property
    def is_live(self) -> bool:
        """Whether single keys can be read: the input is a terminal of this system."""
        return sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty() and os.name == "posix"

    def demand_input(self) -> None:
        """Refuse an input that can give no answer: none at all, or a device such as /dev/null."""
        dead = sys.stdin is None or sys.stdin.closed
        if not dead and not sys.stdin.isatty():
            try:
                dead = stat.S_ISCHR(os.fstat(sys.stdin.fileno()).st_mode)
            except (OSError, ValueError):  # an input of Python's own, which has no file
                dead = False
        if dead:
            raise CoterieError(
                "policy 'person' needs somebody who answers: run the command at a terminal, or pipe answers into it"
            )

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def read_line(self) -> str | None:
        """A line without its end; None at the end of the input."""
        sys.stderr.write("> ")
        sys.stderr.flush()
        line = sys.stdin.readline()
        if not sys.stdin.isatty():
            self.say(line.rstrip("\r\n"))  # what a terminal would have shown
        return line.strip() if line else None

    def read_key(self) -> str | None:
        """One key, or the sequence of an arrow key; None at Ctrl-D."""
        import termios
        import tty

        sys.stderr.write("> ")
        sys.stderr.flush()
        device = sys.stdin.fileno()
        before = termios.tcgetattr(device)
        try:
            tty.setcbreak(device, termios.TCSADRAIN)
            key = os.read(device, 1)
            while key[:1] == b"\x1b" and len(key) < 3 and select.select([device], [], [], 0.05)[0]:
                key += os.read(device, 1)
        finally:
            termios.tcsetattr(device, termios.TCSADRAIN, before)
        word = key.decode("utf-8", "replace")
        self.say(word if word.isprintable() else "")
        return None if word in ("", "\x04") else word


# Words ------------------------------------------------------------------------------------------------------


def own_codec(settings: PersonSettings, group_spec: GroupSpec) -> TextCodec | None:
    """The codec that names actions and describes observations; None where the world has none for them."""
    if settings.codec != "auto":
        return find_text_codec(settings.codec, group_spec)
    if isinstance(group_spec.spaces.action, Text) or not isinstance(group_spec.world, HasTextCodec):
        return None
    try:
        return group_spec.world.text_codec(group_spec.agent_type)
    except ValueError:  # this world describes itself only in some of its settings
        return None


def keys_of(names: Sequence[str]) -> tuple[str, ...]:
    """A key for each name: its last word where those are single signs (`column 4`), else a sign in order.

    Where there are more names than signs, short names are their own keys; longer ones have numbers.
    """
    last = [name.split()[-1] for name in names]
    if all(len(word) == 1 and word.lower() != END for word in last) and len(set(last)) == len(names):
        return tuple(last)
    if len(names) <= len(KEYS):
        return tuple(KEYS[: len(names)])
    short = all(len(name) <= 4 and name.lower() != END for name in names)
    return tuple(names) if short else tuple(map(str, range(len(names))))


def find(word: str, rows: Sequence[int], names: Sequence[str], keys: Sequence[str]) -> int | None:
    """The row that a key, a name or an arrow key means; in chess `bxc3` and `Bxc3` are different moves."""
    said = word.strip()
    for labels in (keys, names):
        for row in rows:
            if labels[row] == said:
                return row
    for labels in (keys, names):
        for row in rows:
            if labels[row].lower() == said.lower():
                return row
    pointed = ARROWS.get(word, ())
    return next((row for row in rows if pointed and set(pointed) & set(names[row].lower().split())), None)


def shown(word: str) -> str:
    """A word without signs that would move the cursor."""
    return "".join(sign if sign.isprintable() else "?" for sign in word)


def menu(choices: Sequence[tuple[str, str]]) -> str:
    """Keys and names in lines of at most 80 columns; a key that is its own name is written once."""
    words = [name if key == name else f"{key} {name}" for key, name in choices] + [f"{END} end"]
    lines = ["  "]
    for word in words:
        if len(lines[-1]) + len(word) > WIDTH:
            lines.append("  ")
        lines[-1] += f"{word}   "
    return "\n".join(line.rstrip() for line in lines)


def fold(text: str) -> str:
    """The text in lines of at most 80 columns."""
    return textwrap.fill(text, WIDTH, break_on_hyphens=False)


def numbers(observation: Tree) -> str:
    """The numbers of one observation, `[1, …]` each, in lines of at most 80 columns, headed by their names."""
    parts = arrays_of(observation)
    count = sum(array.size for array in parts.values())
    if count > MOST_NUMBERS:
        raise CoterieError(
            f"policy 'person': an observation of {count} numbers is too long to read; this world has neither words nor "
            "a picture for it"
        )
    texts = []
    for name, array in parts.items():
        row = " ".join(f"{value:.3g}" for value in np.ravel(array).astype(float))
        texts.append(textwrap.fill(row, WIDTH, initial_indent=f"{name}: " if name else "", subsequent_indent="  "))
    return "\n".join(texts)


def read_numbers(line: str, space: ActionSpace) -> tuple[Array | None, str]:
    """The action that a line of numbers means; None, and what is wrong, where it means none."""
    try:
        values = np.array([float(word) for word in line.replace(",", " ").split()])
    except ValueError:
        return None, f"'{shown(line)}' is not a list of numbers"
    if isinstance(space, MultiDiscrete):
        shape: tuple[int, ...] = (len(space.sizes),)
        low, high = np.zeros(shape), np.array(space.sizes) - 1.0
    else:
        assert isinstance(space, Box)
        shape = space.shape
        low, high = (np.broadcast_to(np.asarray(bound, float), shape).ravel() for bound in (space.low, space.high))
    if len(values) != len(low):
        return None, f"{len(values)} numbers were given, {len(low)} are needed"
    whole = not isinstance(space, MultiDiscrete) or bool((values == np.rint(values)).all())
    if not whole or not ((values >= low) & (values <= high)).all():
        return None, f"'{shown(line)}' is out of bounds" if whole else f"'{shown(line)}' has fractions"
    return values.reshape(shape).astype(action_dtype(space)), ""
