"""Transcripts: what the agents of a table wrote in a few held-out episodes, as text and for the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from coterie.config import registry
from coterie.core import lookup
from coterie.core.text import HasTranscript, Utterance
from coterie.core.types import CoterieError
from coterie.runs.run import Run
from coterie.studies import figures
from coterie.training.build import build_evaluation_world
from coterie.training.loop import evaluation_seed
from coterie.training.runner import Runner, play_episodes
from coterie.training.table import Table, load

SHOWN = 3  # episodes in a report
NOTE = "Held-out instances, greedy answers of the best checkpoint: first what was read, then in blue what was written."


@dataclass(frozen=True)
class Transcript:
    """One episode."""

    utterances: tuple[Utterance, ...]
    success: bool | None

    def text(self) -> str:
        """The episode as readable text."""
        end = {True: "solved", False: "not solved", None: "over"}[self.success]
        lines = []
        for one in self.utterances:
            lines += [f"--- turn {one.turn + 1}, {one.role}, {_outcome(one)}", one.prompt.rstrip("\n")]
            lines += [f"  > {line}" for line in one.answer.split("\n")]
        return "\n".join([*lines, f"--- {end}"])

    def html(self) -> str:
        """The episode as part of a page: a block for every turn, with a colour for every role."""
        roles = list(dict.fromkeys(one.role for one in self.utterances))
        blocks = []
        for one in self.utterances:
            head = f"<b>turn {one.turn + 1}, {escape(one.role)}</b> <span class=quiet>{escape(_outcome(one))}</span>"
            texts = f"<pre>{escape(one.prompt.strip(chr(10)))}</pre><pre class=answer>{escape(one.answer)}</pre>"
            colour = figures.colour(roles.index(one.role))
            blocks.append(f'<div class=turn style="border-color: {colour}"><p>{head}</p>{texts}</div>')
        return f"<div class=transcript>{''.join(blocks)}</div>"


def _outcome(one: Utterance) -> str:
    """The outcome of an answer: its reward, and what it did."""
    return f"reward {one.reward:+.2f}{'' if one.readable else ', unreadable'}: {one.note}"


def record_transcripts(table: Table, episodes: int, seed: int = 0, greedy: bool = True) -> list[Transcript]:
    """Play whole episodes on held-out instances and keep what was written."""
    world = build_evaluation_world(table.config.world, episodes)
    if not isinstance(world, HasTranscript):
        raise CoterieError(f"world '{table.config.world.name}' is not played by writing; it has no transcripts")
    runner = Runner(world, [group.actor for group in table.groups], evaluation_seed(seed), greedy=greedy)
    found: dict[int, Transcript] = {}
    for _ in play_episodes(runner):
        for copy in np.flatnonzero(runner.timestep.ended).tolist():
            success = runner.timestep.success
            ended = None if success is None else bool(success[copy])
            found.setdefault(copy, Transcript(tuple(world.transcript(copy, final=True)), ended))
        if len(found) == world.num_envs:
            break
    return [found[copy] for copy in sorted(found)]


def report_section(runs: Sequence[Run]) -> list[str]:
    """A few transcripts of the first run's best policies; nothing for worlds that are not played by writing."""
    if not isinstance(lookup.look_up(registry.WORLDS, runs[0].config().world.name), HasTranscript):
        return []  # the class, not an instance: worlds may be expensive
    table = load(runs[0].path)
    parts = ["<h2>Transcripts</h2>", f"<p class=quiet>{NOTE}</p>"]
    for number, one in enumerate(record_transcripts(table, SHOWN)):
        end = "solved" if one.success else "not solved"
        parts.append(
            f"<details{' open' if number == 0 else ''}><summary>Episode {number + 1}: {end}</summary>"
            f"{one.html()}</details>"
        )
    return parts
