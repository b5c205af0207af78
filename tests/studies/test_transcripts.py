"""Transcripts of text tasks: on the command line, in the report, and for worlds that have none."""

import re

import numpy as np
import pytest

import coterie
from coterie.cli import main
from coterie.core.text import Utterance
from coterie.core.types import CoterieError
from coterie.runs.run import Run
from coterie.studies import figures
from coterie.studies.report.report import write_report
from coterie.studies.transcripts import Transcript, record_transcripts
from coterie.training.evaluate import actor_metrics, answer_tokens
from coterie.training.table import load
from helpers.run import GRID, written
from helpers.run import train as train_grid

TEAM = """\
world: {name: plan_path, size: 4, turns: 2}
groups:
  tool: {agents: tool, policy: expert}
  planner:
    agents: planner
    policy: {name: causal_lm, tiny: {layers: 1, width: 16, heads: 2, hidden: 16, context: 256}, max_tokens: 4,
             max_prompt_tokens: 240, candidates: 2}
    learner: at_grpo
train: {num_envs: 2, rollout_steps: 4, total_steps: 16, evaluate_episodes: 2, video: false, tensorboard: false}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    base = tmp_path_factory.mktemp("team")
    return coterie.train(str(written(base / "team.yaml", TEAM)), out=base / "run", quiet=True)


def test_a_transcript_has_every_answer_with_its_reward(run):
    for one in record_transcripts(load(run.path), 2):
        assert [(said.turn, said.role) for said in one.utterances] == [
            (turn, role) for turn in range(2) for role in ("tool", "planner")
        ][: len(one.utterances)]
        assert one.success is not None
        text = one.text()
        assert all(said.prompt.rstrip() in text for said in one.utterances)
        assert f"turn 1, tool, reward {one.utterances[0].reward:+.2f}" in text


def test_eval_prints_them_and_the_report_shows_them(run, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["coterie", "eval", str(run.path), "--episodes", "4", "--transcripts", "1"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code in (0, None)
    out = capsys.readouterr().out
    assert "--- turn 1, tool" in out
    head, tool, planner = [line.split() for line in out.splitlines()[out.splitlines().index(_role_line(out)) :][:3]]
    assert head == ["role", "unreadable", "answers", "tokens", "per", "answer"]
    assert tool == ["tool", "0.0%", "-"]  # a script writes no tokens
    assert planner[0] == "planner"
    assert planner[1].endswith("%")
    assert 0 < float(planner[2]) <= 4
    assert any(line.split()[:1] == ["turns"] for line in out.splitlines())
    page = (run.path / "report.html").read_text()
    assert "<h2>Transcripts</h2>" in page
    assert "turn 1, planner" in page


def _role_line(out):
    return next(line for line in out.splitlines() if line.split()[:1] == ["role"])


def test_eval_counts_the_tokens_that_were_written(run):
    table = load(run.path)
    actors = [group.actor for group in table.groups]
    table.evaluate(8)
    found = actor_metrics(actors)
    planner = table.groups[1].policy
    sampled = [len(planner.encode([said.answer])[0]) for one in record_transcripts(table, 8) for said in one.utterances
               if said.role == "planner"]  # fmt: skip
    assert answer_tokens(actors, found)["planner"] == pytest.approx(np.mean(np.minimum(sampled, 4)))
    assert "tool" not in answer_tokens(actors, found)


@pytest.mark.slow
def test_the_report_shows_rewards_advantages_and_entropy_by_role_and_turn(run, tmp_path, drawing):
    page = write_report([Run.open(run.path)], tmp_path / "report.html").read_text()
    assert "<h2>Roles and turns</h2>" in page
    for words in ("reward of an answer, by turn", "spread of advantages, by turn", "entropy, by turn"):
        assert f'<img alt="{words}" src="data:image/png;base64,iVBOR' in page
    last = list(Run.open(run.path).metrics())[-1]
    part = page[page.index("The same in numbers") :]
    for turn in (1, 2):
        row = re.search(rf"<td>planner/planner<td>{turn}<td>(.*?)</tr>", part)
        assert row is not None
        cells = row[1].split("<td>")
        names = ("score", "advantage", "entropy")
        assert cells == [f"{last[f'planner/planner/turn_{turn}/{name}']:.2f}" for name in names]


def test_worlds_that_are_not_played_by_writing_are_refused(tmp_path):
    grid = train_grid(tmp_path / "grid", *GRID)
    with pytest.raises(CoterieError, match="'gridworld'"):
        record_transcripts(load(grid.path), 1)
    assert "Transcripts" not in (grid.path / "report.html").read_text()


def test_a_page_has_a_block_for_every_turn_in_its_roles_colour():
    said = [
        Utterance(0, "tool", "\n<T>", "U\nD", -0.1, True, "two moves"),
        Utterance(0, "planner", "P", "?", 0.0, False, "no move"),
    ]
    page = Transcript(tuple(said), False).html()
    assert page.count("<div class=turn ") == 2
    assert "<pre>&lt;T&gt;</pre><pre class=answer>U\nD</pre>" in page
    assert "<b>turn 1, planner</b> <span class=quiet>reward +0.00, unreadable: no move</span>" in page
    assert all(f"border-color: {figures.colour(i)}" in page for i in range(2))
