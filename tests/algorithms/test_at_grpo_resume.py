"""Runs of AT-GRPO that are killed and resumed, or spread over workers, come to the same end, bit for bit."""

import numpy as np
import pytest
import torch

from helpers.resume import assert_alike_with_workers, assert_resumed_alike, assert_survives_kill_9

TEAM = """\
world: {{name: "helpers.teams:EchoWorld", turns: 2, group_size: {group_size}}}
groups:
  writers:
    parameters: {parameters}
    policy: {{name: causal_lm, tiny: {{layers: 1, width: 16, heads: 2, hidden: 16, context: 16}}, max_tokens: 2,
             max_prompt_tokens: 8, candidates: {candidates}, choose: random, weights: {weights}, rank: 2,
             device: {device}, deterministic: true}}
    learner: {{name: at_grpo, groups: {groups}, learning_rate: 3.0e-3, kl: 0.05, minibatch_size: 4}}
train: {{num_envs: 4, rollout_steps: 4, total_steps: {steps}, evaluate_episodes: 4, evaluate_every: 3,
        checkpoint_every: 2, shards: 2, video: false, tensorboard: false}}
"""
SHARED = {
    "group_size": 1,
    "parameters": "shared",
    "candidates": 3,
    "weights": "full",
    "groups": "turn",
    "device": "cpu",
    "steps": 176,
}
ADAPTERS = SHARED | {"parameters": "individual", "weights": "lora"}
GAMES = {
    "shared": TEAM.format(**SHARED),
    "separate": TEAM.format(**SHARED | {"parameters": "individual"}),
    "adapters": TEAM.format(**ADAPTERS),
    "plain GRPO": TEAM.format(**SHARED | {"candidates": 1, "groups": "episode", "group_size": 2}),
}
BUDGETS = """\
world: {name: "helpers.teams:EchoWorld", turns: 2}
groups:
  short: {agents: first, policy: &policy {name: causal_lm, max_tokens: 2, max_prompt_tokens: 8, candidates: 3,
          tiny: {layers: 1, width: 16, heads: 2, hidden: 16, context: 16}},
          learner: {name: at_grpo, learning_rate: 3.0e-3, flat_groups: regularize, entropy: 0.1, token_budget: 60}}
  long: {agents: second, policy: *policy,
         learner: {name: at_grpo, learning_rate: 3.0e-3, flat_groups: regularize, entropy: 0.1, token_budget: 500}}
train: {num_envs: 4, rollout_steps: 4, total_steps: 1600, evaluate_episodes: 2, evaluate_every: 2, checkpoint_every: 1,
        shards: 2, video: false, tensorboard: false, keep_checkpoints: 100}
"""
GAMES["two budgets"] = BUDGETS
if torch.cuda.is_available():
    GAMES |= {
        "shared on a GPU": TEAM.format(**SHARED | {"device": "cuda"}),
        "adapters on a GPU": TEAM.format(**ADAPTERS | {"device": "cuda"}),
    }


def arrays(policy):
    return [policy["networks"][0][name] for name in sorted(policy["networks"][0])]


@pytest.mark.slow
@pytest.mark.parametrize("game", GAMES)
def test_a_stopped_run_resumes_alike(tmp_path, whole, game):
    experiment, run = whole[game]
    updates = [value for record in run.metrics() for name, value in record.items() if name.endswith("/updates")]
    assert sum(updates) > 8
    assert_resumed_alike(tmp_path / "run", experiment, run, at=5)


@pytest.mark.slow
def test_a_group_that_has_spent_its_tokens_plays_on_as_it_is(whole):
    _, run = whole["two budgets"]
    records = run.metrics()
    learned = {name: [r["iteration"] for r in records if f"{name}/updates" in r] for name in ("short", "long")}
    tokens = {name: [r[f"{name}/tokens"] for r in records if f"{name}/tokens" in r] for name in ("short", "long")}
    assert (
        learned["short"][-1] < learned["long"][-1] == records[-1]["iteration"] < 100
    )  # the longer budget ends the run
    assert tokens["short"][-2] < 60 <= tokens["short"][-1]
    assert tokens["long"][-2] < 500 <= tokens["long"][-1]
    late = [r for r in records if r["iteration"] > learned["short"][-1]]
    assert all(r["short/first/answer_tokens"] > 0 for r in late)  # it plays on
    early, last = (run.load_checkpoint(str(r["env_steps"]))["policies"] for r in (late[1], late[-1]))
    same = {name: all(map(np.array_equal, arrays(early[name]), arrays(last[name]))) for name in ("short", "long")}
    assert same == {"short": True, "long": False}


@pytest.mark.slow
def test_workers_change_nothing(tmp_path, whole, forked):
    experiment, run = whole["adapters"]
    assert_alike_with_workers(tmp_path / "run", experiment, run)


@pytest.mark.slow
def test_kill_9_changes_nothing(tmp_path):
    longer = SHARED | {"parameters": "individual", "steps": 336}
    assert_survives_kill_9(tmp_path, TEAM.format(**longer))
