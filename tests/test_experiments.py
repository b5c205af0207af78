"""Every shipped experiment runs for a moment."""

import numpy as np
import pytest

import coterie
from coterie.config import schema
from coterie.core.group import Actor
from coterie.policies.scripted import ExpertPolicy, ExpertSettings
from coterie.runs.run import Run
from coterie.training import build, start
from coterie.training.evaluate import evaluate
from coterie.training.loop import Training
from coterie.worlds.tasks.sudoku import rows
from helpers.run import MOMENT

NEED_WEIGHTS = (  # of the embedded language model or the sentence encoder
    *("cartpole-lm-head", "doorkey5-shaped", "gridworld-advised", "gridworld-instructed", "gridworld-lm"),
    *("gridworld-lm-lora", "lavagap-constrained"),
    "plan-path-smollm",
)
TEAM = [  # of a model made for a GPU: few short answers
    *("world.turns=1", "train.num_envs=1", "train.rollout_steps=2", "train.total_steps=2", "train.evaluate_episodes=1"),
    *("groups.team.policy.candidates=2", "groups.team.policy.max_tokens=2"),
]
TINY_TEAM = [  # every answer is up to 256 passes through a tiny model, and a program in the sandbox
    *("train.num_envs=2", "train.rollout_steps=4", "train.total_steps=16"),
    *("groups.team.policy.candidates=2", "groups.team.policy.max_tokens=16"),
]
ADAPTERS = [*TEAM, "groups.team.policy.weights=lora"]  # small checkpoints
STAND_IN = [  # a tiny model, which reads characters: one experiment loads the real one
    *(*TEAM, "groups.team.policy.model=tiny"),
    *("groups.team.policy.max_prompt_tokens=1000", "groups.team.policy.tiny.context=1002"),
]
SHORT = {  # every decision and every sample of a minibatch is a pass through the language model
    "gridworld-lm-lora": [
        "world.max_steps=4",
        "train.num_envs=2",
        "train.rollout_steps=4",
        "train.total_steps=8",
        "train.evaluate_episodes=1",
        "train.threads=1",
    ],
    **{f"{task}-{kind}": TINY_TEAM for task in ("code", "sokoban") for kind in ("adapters", "separate", "shared")},
    "plan-path-smollm": ADAPTERS,
    **{f"{task}-smollm": STAND_IN for task in ("math", "sokoban", "sudoku")},
}
EXPERIMENTS = [
    pytest.param(name, marks=[pytest.mark.slow, *([pytest.mark.lm] if name in NEED_WEIGHTS else [])])
    for name in schema.experiments()
]


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_runs_for_a_moment(name, tmp_path, forked):
    groups = schema.load(name).groups
    central = [
        group for group, one in groups.items() if one.learner is not None and one.learner.name in ("maddpg", "sac")
    ]
    short = [f"groups.{group}.learner.replay.learning_starts=8" for group in central]
    often = [f"groups.{group}.learner.updates_per_step=0.1" for group in central]
    run = coterie.train(name, [*MOMENT, *short, *often, *SHORT.get(name, [])], out=tmp_path / "run", quiet=True)
    assert run.summary()["env_steps"] == run.config().train.total_steps <= 64
    for group in central:
        assert run.metrics()[-1][f"{group}/updates"] > 0


@pytest.mark.slow
@pytest.mark.lm
@pytest.mark.parametrize("task", ["math", "sokoban", "sudoku"])
def test_what_a_stand_in_plays_is_valid_with_the_real_model_too(task):
    start.check(f"{task}-smollm")


ONE_ITERATION = [  # groups of equally bad answers count too: an untrained model writes few others
    *("train.num_envs=2", "train.rollout_steps=2", "train.evaluate_episodes=1"),
    *("world.turns=1", "world.env_workers=0", "train.threads=1"),
    *("groups.team.policy.candidates=2", "groups.team.policy.max_tokens=4"),
    *("groups.team.learner.flat_groups=regularize", "groups.team.learner.entropy=0.05"),
]


@pytest.mark.slow
@pytest.mark.parametrize("task", ["code", "math", "plan-path", "sokoban", "sudoku"])
def test_an_iteration_of_at_grpo_updates_the_weights_in_every_task(task, tmp_path):
    training = Training(schema.load(f"{task}-shared", ONE_ITERATION), Run(tmp_path / "run"))
    (before,) = training.policies()["team"]["networks"]
    metrics = training.advance()
    (after,) = training.policies()["team"]["networks"]
    assert metrics["team/updates"] > 0
    assert metrics["team/groups"] == 4  # two copies, two roles
    assert all(np.isfinite(array).all() for array in after.values())
    assert any(not np.array_equal(array, before[name]) for name, array in after.items())


@pytest.mark.slow
@pytest.mark.parametrize("task", ["math", "plan-path", "sokoban", "sudoku"])
def test_the_solver_solves_every_instance_of_a_shipped_team(task):
    config = schema.load(f"{task}-shared")
    world = build.build_evaluation_world(config.world, 200)
    (spec,) = build.build_group_specs(config, world).values()
    assert evaluate(world, [Actor(spec, ExpertPolicy(ExpertSettings(), spec))], 200, 0).success.all()


@pytest.mark.parametrize(
    ("name", "wrong", "shown"),
    [
        ("math-shared", "-77", "-77 is wrong"),
        ("math-separate", "-77", "-77 is wrong"),
        ("math-adapters", "-77", "-77 is wrong"),
        ("sudoku-shared", None, None),
    ],
)
def test_prompts_of_the_second_turn_show_what_the_first_has_done(name, wrong, shown):
    config = schema.load(name)
    world = build.build_world(config.world, 1)
    first = world.reset(0).agent_types["team"].observation[0, 0]
    if wrong is None:  # the clues, and the digit 1 in all blanks
        wrong = rows("".join("1" if c == "." else c for c in world._states[0].clues), 2)
    second = first
    for _ in range(2):
        assert len(second) + 1 <= config.groups["team"].policy.settings.max_prompt_tokens
        second = max(world.step({"team": [[wrong, wrong]]}).agent_types["team"].observation[0])
    assert second != first
    assert (shown or world.task.fields(world._states[0], "tool")["puzzle"]) in second


@pytest.mark.parametrize("bidders", range(2, 7))
def test_every_second_bidder_of_the_mixed_auction_is_a_prospect_theorist(bidders):
    mixed = schema.load("auction-mixed", [f"world.num_bidders={bidders}"])
    group_specs = build.build_group_specs(mixed, build.build_world(mixed.world, 1))
    everybody = [f"bidder_{i}" for i in range(bidders)]
    assert {name: list(group_spec.agents) for name, group_spec in group_specs.items()} == {
        "prospect": everybody[::2],
        "neutral": everybody[1::2],
    }
    assert {name: group.preference.name for name, group in mixed.groups.items()} == {
        "prospect": "cpt",
        "neutral": "individual",
    }


@pytest.mark.parametrize("name", [name for name in schema.experiments() if name.startswith(("auction", "tag-maddpg"))])
def test_where_returns_say_nothing_of_quality_the_last_policy_is_kept(name):
    assert schema.load(name).train.best == "last"
