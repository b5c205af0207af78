"""A language model that plans: scored choices over what is possible, whole plans, and answers that are missing."""

import pytest

from coterie.algorithms.imitation import demonstrations
from coterie.core.types import CoterieError
from coterie.studies.demonstrate.record import DemonstrationSpec, record

DOORKEY = """\
world: {name: doorkey, task: doorkey, size: 5}
groups: {agent: {policy: {name: network, hidden: [8]}, learner: {name: ppo}}}
train: {num_envs: 2, rollout_steps: 8, total_steps: 16, video: false, tensorboard: false}
"""
CODEC = "codec=coterie.worlds.doorkey.text:SkillText"


def play(tmp_path, player, episodes=4, greedy=True, out="d"):
    path = tmp_path / "doorkey.yaml"
    path.write_text(DOORKEY)
    return record(DemonstrationSpec(str(path), player, episodes, greedy=greedy), tmp_path / out)[0]


@pytest.mark.parametrize("plan", ["whole", "step"])
def test_plans_over_skills_reach_the_goal(tmp_path, plan):
    part = play(tmp_path, f"planner:lm=helpers.planner:{plan.upper()},plan={plan},calibration=none,{CODEC}")
    assert all(episode.success for episode in part.episodes)
    assert part.labelled.all()
    assert (tmp_path / "d" / "answers.sqlite").exists()  # nothing is asked again after a restart


def test_a_plan_has_at_most_so_many_words(tmp_path):
    """With one word, what was said before never comes into a question, so the same first word is chosen every time."""
    part = play(tmp_path, f"planner:lm=helpers.planner:WHOLE,plan=whole,max_plan=1,{CODEC}", 2)
    assert not all(episode.success for episode in part.episodes)


def test_choices_are_drawn_by_temperature(tmp_path):
    words = f"lm=helpers.planner:STEP,calibration=none,{CODEC}"
    best, drawn = (play(tmp_path, f"planner:{words},temperature={t}", greedy=False, out=f"d{t}") for t in (0, 1000))
    assert all(episode.success for episode in best.episodes)
    assert len(drawn.action) > 2 * len(best.action)


@pytest.mark.parametrize(("calibration", "succeeds"), [("batch", True), ("none", False)])
def test_calibration_removes_a_prior_for_some_words(tmp_path, calibration, succeeds):
    part = play(tmp_path, f"planner:lm=helpers.planner:BIASED,calibration={calibration},{CODEC}", 2)
    assert all(episode.success is succeeds for episode in part.episodes)


def test_answers_that_are_missing_are_never_labels(tmp_path):
    words = "lm.name=helpers.planner:SILENT,lm.max_abstentions=1"
    part = play(tmp_path, f"planner:{words},calibration=none,{CODEC}", 1)
    assert len(part.action)
    assert not demonstrations.load(tmp_path / "d").labelled.any()


def test_a_world_without_skills_is_planned_in_actions(tmp_path):
    spec = DemonstrationSpec("gridworld-race", "planner:lm=helpers.language:COPIER,calibration=none", 2)
    part = record(spec, tmp_path / "d", ["world.max_steps=6"])[0]
    assert part.labelled.all()


def test_a_world_of_texts_is_refused_with_the_words_that_work(tmp_path):
    spec = DemonstrationSpec("math-shared", "planner:lm=helpers.language:COPIER", 1)
    with pytest.raises(CoterieError, match=r"--policy writer:lm=helpers\.language:COPIER in place of --lm"):
        record(spec, tmp_path / "d")
