"""Transcripts of text tasks: on the command line, in the report, and for worlds that have none."""

import pytest

import coterie
from coterie.cli import main
from coterie.core.types import CoterieError
from coterie.studies.transcripts import record_transcripts
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
    assert "planner/unreadable" in out
    page = (run.path / "report.html").read_text()
    assert "<h2>Transcripts</h2>" in page
    assert "turn 1, planner" in page


def test_worlds_that_are_not_played_by_writing_are_refused(tmp_path):
    grid = train_grid(tmp_path / "grid", *GRID)
    with pytest.raises(CoterieError, match="'gridworld'"):
        record_transcripts(load(grid.path), 1)
    assert "Transcripts" not in (grid.path / "report.html").read_text()
