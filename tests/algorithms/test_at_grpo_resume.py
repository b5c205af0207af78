"""Runs of AT-GRPO that are killed and resumed, or spread over workers, come to the same end, bit for bit."""

import pytest
import torch

from helpers.resume import assert_alike_with_workers, assert_resumed_alike, assert_survives_kill_9, train_all

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
if torch.cuda.is_available():
    GAMES |= {
        "shared on a GPU": TEAM.format(**SHARED | {"device": "cuda"}),
        "adapters on a GPU": TEAM.format(**ADAPTERS | {"device": "cuda"}),
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Every game, uninterrupted: its experiment and its run."""
    return train_all(tmp_path_factory.mktemp("whole"), GAMES)


@pytest.mark.slow
@pytest.mark.parametrize("game", GAMES)
def test_a_stopped_run_resumes_alike(tmp_path, whole, game):
    experiment, run = whole[game]
    assert sum(record.get("writers/updates", 0) for record in run.metrics()) > 10
    assert_resumed_alike(tmp_path / "run", experiment, run, at=5)


@pytest.mark.slow
def test_workers_change_nothing(tmp_path, whole, forked):
    experiment, run = whole["adapters"]
    assert_alike_with_workers(tmp_path / "run", experiment, run)


@pytest.mark.slow
def test_kill_9_changes_nothing(tmp_path):
    longer = SHARED | {"parameters": "individual", "steps": 336}
    assert_survives_kill_9(tmp_path, TEAM.format(**longer))
