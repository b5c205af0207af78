"""Supervised fine-tuning on transcripts of a scripted solver, and the start of a team from it."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch

import coterie
from coterie.algorithms.divergence import Diverged
from coterie.algorithms.imitation import demonstrations, sft
from coterie.config.schema import ConfigError
from coterie.lm.learn.updates import Optimizer, Weights
from coterie.runs.run import Run
from helpers.run import numbers, written

TEAM = """\
world: {name: "helpers.teams:EchoWorld", turns: 2}
groups:
  writers:
    policy: {name: causal_lm, tiny: {layers: 1, width: 16, heads: 2, hidden: 16, context: 16}, max_tokens: 2,
             max_prompt_tokens: 8, candidates: 3}
    learner: {name: at_grpo, learning_rate: 1.0e-3}
train: {num_envs: 4, rollout_steps: 4, total_steps: 32, evaluate_episodes: 20, video: false, tensorboard: false}
"""


pytestmark = pytest.mark.slow  # all of them look at a clone that is trained first


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    """An experiment, demonstrations of its solver, and a run that imitated them."""
    from coterie.studies.demonstrate import record

    base = tmp_path_factory.mktemp("warm")
    experiment = str(written(base / "team.yaml", TEAM))
    record.record(record.DemonstrationSpec(experiment, "expert", 60), base / "demos")
    words = ["train.total_steps=20480", "train.rollout_steps=2048", "groups.writers.learner.learning_rate=0.01"]
    return experiment, base / "demos", coterie.clone(experiment, [base / "demos"], words, out=base / "run", quiet=True)


def weights(run, checkpoint="last"):
    return run.load_checkpoint(checkpoint)["policies"]["writers"]["networks"]


def test_a_clone_writes_as_the_solver_does(warm):
    _, _, run = warm
    summary = run.summary()
    assert summary["step_0"]["success_rate"] < 0.2
    assert summary["evaluation"]["success_rate"] > 0.9
    losses = [record["writers/validation_loss"] for record in run.metrics() if "writers/validation_loss" in record]
    assert losses[-1] < 0.2 * losses[0]


def test_validation_reads_few_of_many_answers(tmp_path, warm, monkeypatch):
    experiment, demos, _ = warm
    read = []
    monkeypatch.setattr(sft, "VALIDATED", 5)
    monkeypatch.setattr(sft.SFT, "_validate", lambda self: read.append(self.held_out) or {})
    coterie.clone(experiment, [demos], ["train.total_steps=64"], out=tmp_path / "run", quiet=True)
    assert len(read[0].prompts) == len(read[0].answers) == len(read[0].sets) == 5


def test_thinned_answers_lie_at_even_distances():
    texts = sft.Texts([[row] for row in range(10)], np.arange(10)[:, None], np.arange(10) % 2)
    for most, rows in ((4, [0, 2, 5, 7]), (10, range(10)), (99, range(10))):
        thin = texts.thinned(most)
        assert thin.prompts == [[row] for row in rows]
        assert thin.answers[:, 0].tolist() == [*rows]
        assert thin.sets.tolist() == [row % 2 for row in rows]
    assert len(sft.Texts([], np.zeros((0, 2)), np.zeros(0)).thinned(5).sets) == 0


@pytest.mark.parametrize("kind", ["shared", "individual", "lora"])
def test_a_team_starts_from_the_clone(tmp_path, warm, kind):
    experiment, _, run = warm
    words = [f"groups.writers.start={run.path}"]
    if kind != "shared":
        words.append("groups.writers.parameters=individual")
    if kind == "lora":
        words.append("groups.writers.policy.weights=lora")
    team = coterie.train(experiment, words, out=tmp_path / "run", quiet=True)
    assert team.summary()["step_0"]["success_rate"] > 0.9  # 0 without the start
    assert len(weights(team)) == (2 if kind == "individual" else 1)
    if kind == "lora":
        base = {name: a for name, a in weights(team)[0].items() if ".lora_" not in name}
        best = weights(run, "best")[0]
        assert base.keys() == best.keys()
        assert all(np.array_equal(base[name], best[name]) for name in base)


def test_a_team_starts_with_the_adapters_of_a_clone(tmp_path, warm):
    experiment, demos, _ = warm
    lora = ["groups.writers.policy.weights=lora", "groups.writers.parameters=individual"]
    words = [*lora, "train.total_steps=2048", "train.rollout_steps=2048", "groups.writers.learner.learning_rate=0.01"]
    clone = coterie.clone(experiment, [demos], words, out=tmp_path / "clone", quiet=True)
    team = coterie.train(
        experiment,
        [*lora, f"groups.writers.start={clone.path}", "groups.writers.learner.learning_rate=1e-12"],
        out=tmp_path / "team",
        quiet=True,
    )
    mine, theirs = weights(team)[0], weights(clone, "best")[0]
    adapters = [name for name in theirs if ".lora_b" in name]
    assert adapters
    assert all(np.allclose(mine[name], theirs[name], atol=1e-6) and np.abs(theirs[name]).max() > 0 for name in adapters)


@pytest.mark.parametrize("validation", [0.0, 0.1])
def test_a_weight_that_is_not_finite_stops_a_clone_before_it_is_saved(tmp_path, warm, monkeypatch, validation):
    experiment, demos, _ = warm
    step, left = Optimizer.step, [16]

    def overflowing(self, *words):
        norm = step(self, *words)
        left[0] -= 1
        if not left[0]:  # after the second iteration's last loss
            with torch.no_grad():
                self.parameters[0][0] = float("nan")
        return norm

    monkeypatch.setattr(Optimizer, "step", overflowing)
    words = ["train.total_steps=2048", "train.rollout_steps=512", f"groups.writers.learner.validation={validation}"]
    words += ["train.checkpoint_every=1", "groups.writers.learner.batch_size=64"]
    with pytest.raises(Diverged, match="writers"):
        coterie.clone(experiment, [demos], words, out=tmp_path / "run", quiet=True)
    (saved,) = weights(Run.open(tmp_path / "run"))
    assert all(np.isfinite(array).all() for array in saved.values())


def test_memory_that_runs_out_halves_the_answers_that_are_read_at_once(tmp_path, warm, monkeypatch, caplog):
    experiment, demos, _ = warm
    words = ["train.total_steps=64", "train.rollout_steps=64", "groups.writers.learner.batch_size=64"]
    real, trained, norms = Weights.grade, [], []
    step = Optimizer.step
    monkeypatch.setattr(Optimizer, "step", lambda *given: norms.append(step(*given)) or norms[-1])
    for scarce in (False, True):
        calls = itertools.count(1)

        def grade(self, prompts, *given, scarce=scarce, calls=calls):
            if scarce and (len(prompts) > 32 or next(calls) == 2) and torch.is_grad_enabled():
                raise torch.OutOfMemoryError("CUDA out of memory")
            return real(self, prompts, *given)

        monkeypatch.setattr(Weights, "grade", grade)
        trained.append(coterie.clone(experiment, [demos], words, out=tmp_path / str(scarce), quiet=True))
    losses = [run.metrics()[-1]["writers/loss"] for run in trained]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert float(norms[1]) == pytest.approx(float(norms[0]), rel=1e-4)
    assert "16 prompts at once" in caplog.text


CHANGES = (
    *("learning_rate=0.02", "batch_size=32", "weight_decay=0.5", "max_grad_norm=0.01", "validation=0.5"),
    "only_successful=false",
)


@pytest.mark.parametrize("change", CHANGES)
def test_every_setting_changes_what_is_learned(tmp_path, warm, change):
    experiment, demos, _ = warm
    part = demonstrations.load(demos)
    failed = [dataclasses.replace(one, success=number % 2 == 0) for number, one in enumerate(part.episodes)]
    demonstrations.save(tmp_path / "demos", [dataclasses.replace(part, episodes=tuple(failed))])
    words = ["train.total_steps=256", "train.rollout_steps=128", "groups.writers.learner.learning_rate=0.01"]
    found = []
    for number, more in enumerate(([], [f"groups.writers.learner.{change}"])):
        out = tmp_path / str(number)
        found.append(weights(coterie.clone(experiment, [tmp_path / "demos"], [*words, *more], out=out, quiet=True))[0])
    assert any(not np.array_equal(found[0][name], found[1][name]) for name in found[0])


def test_the_learning_rate_falls_to_the_end_and_patience_ends_a_clone(tmp_path, warm):
    experiment, demos, _ = warm
    words = ["train.total_steps=640", "train.rollout_steps=64", "groups.writers.learner.learning_rate=1e-12"]
    run = coterie.clone(experiment, [demos], words, out=tmp_path / "whole", quiet=True)
    rates = [record["writers/learning_rate"] for record in run.metrics() if "writers/learning_rate" in record]
    np.testing.assert_allclose(rates, 1e-12 * (1 - np.arange(10) / 10), rtol=1e-6)
    patient = [*words, "groups.writers.learner.patience=2"]
    short = coterie.clone(experiment, [demos], patient, out=tmp_path / "short", quiet=True)
    assert len(short.metrics()) < len(run.metrics())


def test_a_clone_that_is_cut_resumes_exactly(tmp_path, warm):
    experiment, demos, _ = warm
    words = ["train.total_steps=640", "train.rollout_steps=64", "train.checkpoint_every=4"]
    whole, half = (coterie.clone(experiment, [demos], words, out=tmp_path / n, quiet=True) for n in ("whole", "half"))
    half.cut(512)  # it goes on from the checkpoint of the eighth iteration
    coterie.resume(half.path, quiet=True)
    assert numbers(half) == numbers(whole)
    (one,), (other,) = weights(whole), weights(half)
    assert all(np.array_equal(one[name], other[name]) for name in one)


def test_answers_that_are_too_long_are_refused(warm):
    experiment, demos, _ = warm
    with pytest.raises(ConfigError, match=r"max_tokens.*got 1"):
        coterie.clone(experiment, [demos], ["groups.writers.policy.max_tokens=1"], quiet=True)


def test_prompts_that_are_too_long_are_refused(warm):
    experiment, demos, _ = warm
    words = ["groups.writers.policy.max_prompt_tokens=2"]
    with pytest.raises(ConfigError, match=r"max_prompt_tokens.*got 2"):
        coterie.clone(experiment, [demos], words, quiet=True)


def test_prompts_without_a_token_are_refused(tmp_path, warm):
    experiment, demos, _ = warm
    part = demonstrations.load(demos)
    part.observation[np.flatnonzero(part.labelled)[-1]] = ""
    demonstrations.save(tmp_path / "demos", [part])
    with pytest.raises(ConfigError, match="a prompt is empty"):
        coterie.clone(experiment, [tmp_path / "demos"], quiet=True)


def test_a_start_that_does_not_fit_is_refused(tmp_path, warm):
    experiment, _, run = warm
    for words, said in (
        ([f"groups.writers.start={tmp_path}/none"], r"groups\.writers\.start"),
        ([f"groups.writers.start={run.path}", "groups.writers.policy.tiny.width=8"], r"groups\.writers\.start.*shape"),
        ([f"groups.writers.start={run.path}", "groups.writers.policy.tiny.layers=2"], r"groups\.writers\.start.*tiny"),
    ):
        with pytest.raises(ConfigError, match=said):
            coterie.train(experiment, words, out=tmp_path / "run", quiet=True)
