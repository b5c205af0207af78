"""AT-GRPO: groups, advantages and gradients against references written from the papers, and whose weights change."""

import copy
import itertools
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from coterie.algorithms.at_grpo.at_grpo import ATGRPOSettings, TurnCounter
from coterie.algorithms.at_grpo.groups import advantages, by_episode, by_turn
from coterie.algorithms.at_grpo.update_worker import minibatches, token_loss, token_weights
from coterie.algorithms.divergence import Diverged
from coterie.config import schema
from coterie.config.schema import ConfigError
from coterie.core.group import Actor
from coterie.core.types import CoterieError, Joint
from coterie.lm.learn.sampling import PAD
from coterie.lm.learn.updates import Optimizer, Weights
from coterie.policies.causal_lm.policy import CausalLMPolicy
from coterie.training import build
from coterie.training.runner import Runner
from helpers.teams import iterate, team


def weights(policy):
    return {f"{i}/{n}": a for i, part in enumerate(policy.state()["networks"]) for n, a in part.items()}


def changed(before, after):
    return {name for name, array in after.items() if not np.array_equal(array, before[name])}


def first_prompt(own, copy):
    return own.observation[int(np.flatnonzero(own.active[:, copy, 0])[0]), copy, 0]


# Groups and advantages ----------------------------------------------------------------------------------


def test_advantages_are_hand_computed():
    rewards = np.array([[0.0, 1.0, 1.0, 2.0], [3.0, 3.0, 3.0, 3.0]])
    deviation = np.sqrt(0.5)
    assert np.allclose(advantages(rewards, "std"), [[-1 / deviation, 0, 0, 1 / deviation], [0, 0, 0, 0]])
    assert np.allclose(advantages(rewards, "mean"), [[-1, 0, 0, 1], [0, 0, 0, 0]])


@pytest.mark.slow
def test_every_decision_is_a_group_of_its_own_candidates():
    runner, _ = team(num_envs=6)
    own = runner.play(2, 1, 0.0).experiences["writers"]
    found = by_turn(own, "std")
    t, n, a = np.nonzero(own.active)
    scores = own.trace["scores"][t, n, a]
    uneven = np.flatnonzero(np.ptp(scores, axis=1) > 1e-6)
    assert found.groups == 12
    assert found.flat == 12 - len(uneven)
    for row, group in zip(uneven, range(len(uneven)), strict=True):
        wanted = (scores[row] - scores[row].mean()) / scores[row].std()
        assert np.allclose(found.answers.advantages[group], wanted, atol=1e-5)
        assert found.answers.agents[group] == a[row]
        assert (found.answers.tokens[group] == own.trace["tokens"][t[row], n[row], a[row]]).all()
    assert len(uneven)
    assert found.tokens == (own.trace["tokens"][t, n, a] != PAD).sum()


def test_each_candidate_is_scored_by_its_own_outcome_and_the_chosen_one_is_what_happens():
    for choose in ("best", "random", "first"):
        runner, _ = team(num_envs=16, choose=choose)
        own = runner.play(2, 1, 0.0).experiences["writers"]
        t, n, a = np.nonzero(own.active)
        scores, chosen = own.trace["scores"][t, n, a], own.trace["chosen"][t, n, a]
        assert np.allclose(own.reward[t, n, a], scores[np.arange(len(t)), chosen])
        assert np.ptp(scores, axis=1).max() > 0
        if choose == "best":
            assert (scores[np.arange(len(t)), chosen] == scores.max(axis=1)).all()
        if choose == "first":
            assert (chosen == 0).all()
        if choose == "random":
            assert len(set(chosen.tolist())) > 1


def test_the_second_role_reads_what_the_first_wrote_in_the_same_turn():
    runner, _ = team(num_envs=8)
    own = runner.play(2, 1, 0.0).experiences["writers"]
    for n in range(8):
        t = int(np.flatnonzero(own.active[:, n, 0])[0])
        said = own.action[t, n, 0][:1] or "-"
        assert own.observation[t + 1, n, 1].startswith(said)


def test_episodes_of_one_instance_share_a_group_and_its_advantage_goes_to_every_answer():
    runner, _ = team(num_envs=8, candidates=1, world={"group_size": 4}, learner={"groups": "episode"})
    own = runner.play(2, 1, 0.0).experiences["writers"]
    found = by_episode(own, [own], "mean")
    assert 1 <= found.groups <= 2
    returns = own.reward.sum(axis=(0, 2))
    prompts = [first_prompt(own, n) for n in range(8)]
    wanted = {}
    for n in range(8):
        peers = [m for m in range(8) if prompts[m] == prompts[n]]
        wanted[n] = returns[n] - np.mean(returns[peers])
    total = sorted(round(float(v), 4) for v in found.answers.advantages[:, 0])
    kept = [n for n in range(8) if np.ptp([returns[m] for m in range(8) if prompts[m] == prompts[n]]) > 1e-6]
    assert total == sorted(round(float(wanted[n]), 4) for n in kept for _ in range(2))


def test_roles_in_groups_of_their_own_are_compared_within_one_instance():
    """The second role reads what the first wrote, so its own prompts differ between episodes of one instance."""
    runner, learner = team(num_envs=8, candidates=1, world={"group_size": 4}, learner={"groups": "episode"})
    actor = runner.actors[0]
    specs = [
        replace(actor.group_spec, group=role, agents=(role,), columns=np.array([column]))
        for column, role in enumerate(actor.group_spec.agents)
    ]
    apart = [Actor(spec, CausalLMPolicy(learner.policy.settings, spec)) for spec in specs]
    table = Runner(runner.world, apart, 0).play(2, 1, 0.0).experiences
    second = table["second"]
    instances = [first_prompt(table["first"], n) for n in range(8)]
    assert len({first_prompt(second, n) for n in range(8)}) > len(set(instances))
    found = by_episode(second, list(table.values()), "mean")
    assert found.groups == len(set(instances))
    returns = second.reward.sum(axis=(0, 2))
    wanted = [returns[n] - np.mean(returns[[m for m in range(8) if instances[m] == instances[n]]]) for n in range(8)]
    assert np.allclose(sorted(found.answers.advantages[:, 0]), sorted(wanted), atol=1e-5)


def _compare_episodes(rollout):
    return by_episode(rollout.experiences["writers"], list(rollout.experiences.values()), "std")


def test_groups_that_cannot_be_compared_are_refused():
    with pytest.raises(ValueError, match=r"candidates to 2"):
        team(candidates=1)
    with pytest.raises(ValueError, match=r"candidates=1, got 4"):
        team(learner={"groups": "episode"})
    runner, _ = team(num_envs=1, candidates=1, learner={"groups": "episode"})
    with pytest.raises(CoterieError, match=r"world\.group_size"):
        _compare_episodes(runner.play(2, 1, 0.0))
    runner, _ = team(num_envs=4, candidates=1, world={"group_size": 4, "turns": 2}, learner={"groups": "episode"})
    with pytest.raises(CoterieError, match=r"train\.rollout_steps"):
        _compare_episodes(runner.play(3, 1, 0.0))


def test_metrics_by_role_and_turn_are_hand_computed():
    runner, learner = team(num_envs=6, world={"turns": 2})
    rollout = runner.play(4, 1, 0.0)
    own = rollout.experiences["writers"]
    metrics = learner.learn(own, Joint(rollout.experiences, 1, 0.0), np.random.default_rng(0))
    for column, role in enumerate(("first", "second")):
        for turn in range(2):
            at = [np.flatnonzero(own.active[:, n, column]) for n in range(6)]
            rows = [(t[turn], n) for n, t in enumerate(at) if len(t) > turn]
            scores = np.array([own.trace["scores"][t, n, column] for t, n in rows])
            tokens = np.array([own.trace["tokens"][t, n, column] for t, n in rows])
            log_probs = np.array([own.trace["log_probs"][t, n, column] for t, n in rows])
            name = f"{role}/turn_{turn + 1}"
            assert metrics[f"{name}/score"] == pytest.approx(scores.mean(), abs=1e-6)
            assert metrics[f"{name}/advantage"] == pytest.approx(np.sqrt(scores.var(axis=1).mean()), abs=1e-5)
            assert metrics[f"{name}/entropy"] == pytest.approx(-log_probs[tokens != PAD].mean(), abs=1e-5)
    assert not any("turn_3" in name for name in metrics)


def test_turns_are_counted_on_from_one_rollout_to_the_next():
    runner, _ = team(num_envs=4, world={"turns": 3})
    counter, seen = TurnCounter(), []
    for iteration in range(1, 7):  # 30 steps: five episodes of six
        own = runner.play(5, iteration, 0.0).experiences["writers"]
        turns = counter.count(own)
        assert ((turns >= 0) == own.closed()).all()
        seen += [turns[t, 0, 1] for t in range(6) if turns[t, 0, 1] >= 0]
        again = TurnCounter()
        again.load(counter.state())
        counter = again
    starts = [i for i, turn in enumerate(seen) if turn == 0]
    assert len(starts) >= 4
    for first, following in itertools.pairwise(starts):
        assert seen[first:following] == list(range(following - first))
        assert following - first <= 3


def test_episodes_have_the_spread_of_their_returns():
    runner, learner = team(num_envs=8, candidates=1, world={"group_size": 8}, learner={"groups": "episode"})
    rollout = runner.play(2, 1, 0.0)
    own = rollout.experiences["writers"]
    metrics = learner.learn(own, Joint(rollout.experiences, 1, 0.0), np.random.default_rng(0))
    assert metrics["second/turn_1/advantage"] == pytest.approx(own.reward.sum(axis=(0, 2)).std(), abs=1e-5)
    assert metrics["second/turn_1/score"] == pytest.approx(own.reward[:, :, 1].sum(axis=0).mean(), abs=1e-5)


@pytest.mark.parametrize("groups", ["turn", "episode"])
def test_groups_of_equally_good_answers_are_skipped_or_regularized(groups):
    found = {}
    for flat, entropy in (("skip", 1.0), ("regularize", 1.0), ("regularize", 0.0)):
        runner, learner = team(
            num_envs=4,
            candidates=4 if groups == "turn" else 1,
            world={"alpha": 0.0, "reward": "sparse", "group_size": 4},  # every reward is 0
            learner={"groups": groups, "flat_groups": flat, "entropy": entropy, "learning_rate": 1e-2},
        )
        before = weights(learner.policy)
        metrics = iterate(runner, learner, 1)
        assert metrics["flat_groups"] == 1.0
        assert metrics["second/turn_1/advantage"] == 0.0
        found[flat, entropy] = bool(changed(before, weights(learner.policy))), metrics["updates"]
    assert found == {("skip", 1.0): (False, 0), ("regularize", 1.0): (True, 1), ("regularize", 0.0): (False, 1)}


# The loss -----------------------------------------------------------------------------------------------


def test_the_token_loss_is_hand_computed():
    log_probs = torch.tensor([[[0.0, 0.5], [0.1, -0.9]]], requires_grad=True)
    old = torch.zeros(1, 2, 2)
    found = token_loss(log_probs, old, torch.tensor([[2.0, -1.0]]), clip=0.2)
    up = np.exp(0.5)
    wanted = [[-2.0, -2 * 1.2], [np.exp(0.1), 0.8]]
    assert up > 1.2
    assert np.allclose(found.loss.detach().numpy()[0], wanted)
    assert found.clipped.tolist() == [[[False, True], [False, True]]]
    found.loss.sum().backward()
    assert np.allclose(log_probs.grad.numpy()[0], [[-2.0, 0.0], [np.exp(0.1), 0.0]])


def test_the_reference_pulls_back():
    log_probs = torch.tensor([[[-1.0]]], requires_grad=True)
    found = token_loss(log_probs, log_probs.detach(), torch.zeros(1, 1), 0.2, torch.tensor([[[-1.5]]]), kl=0.5)
    assert np.allclose(found.divergence.item(), np.exp(-0.5) - 1 + 0.5)
    found.loss.sum().backward()
    assert np.allclose(log_probs.grad.item(), 0.5 * (1 - np.exp(-0.5)))  # less likely again


def test_weights_of_tokens():
    valid = torch.tensor([[[True, False, False], [True, True, True]]])
    assert np.allclose(token_weights(valid, "token").sum(-1).numpy(), [[0.25, 0.75]])
    assert np.allclose(token_weights(valid, "sequence").sum(-1).numpy(), [[0.5, 0.5]])
    assert np.allclose(token_weights(valid, "constant").sum(-1).numpy(), [[1 / 6, 3 / 6]])


def test_one_update_equals_a_reference_written_from_the_papers():
    """A naive loop over answers and tokens, plain forward passes, Adam by hand."""
    runner, learner = team(num_envs=6, learner={"minibatch_size": 100, "learning_rate": 0.01})
    own = runner.play(2, 1, 0.0).experiences["writers"]
    policy = learner.policy
    twin = copy.deepcopy(policy.networks[0])
    learner.learn(own, _joint(own), np.random.default_rng(0))
    losses, tokens, groups = [], 0, 0
    for t, n, a in zip(*np.nonzero(own.active), strict=True):
        scores = own.trace["scores"][t, n, a].astype(np.float64)
        if np.ptp(scores) < 1e-6:
            continue
        groups += 1
        prompt = own.trace["prompt"][t, n, a]
        prompt = prompt[prompt != PAD].tolist()
        for k, answer in enumerate(own.trace["tokens"][t, n, a]):
            advantage = (scores[k] - scores.mean()) / scores.std()
            kept = answer[answer != PAD].tolist()
            logits = twin.logits(twin(torch.tensor([prompt + kept])))[0].log_softmax(-1)
            for i, token in enumerate(kept):
                ratio = (logits[len(prompt) + i - 1, token] - float(own.trace["log_probs"][t, n, a, k, i])).exp()
                losses.append(-torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage))
                tokens += 1
    (sum(losses) / tokens).backward()
    norm = torch.sqrt(sum((p.grad**2).sum() for p in twin.parameters()))
    rate = 0.01 * groups / 100  # the minibatch is not full
    for (name, parameter), mine in zip(twin.named_parameters(), policy.networks[0].parameters(), strict=True):
        gradient = parameter.grad * min(1.0, 1.0 / (float(norm) + 1e-6))
        wanted = parameter - rate * gradient / (gradient.abs() + 1e-8)  # Adam's first step: m / sqrt(v)
        close = torch.isclose(mine, wanted, atol=rate / 100) | (gradient.abs() < 1e-6)
        assert close.all(), name


def test_minibatches_have_no_remainder():
    sizes = {count: [len(part) for part in minibatches(np.arange(count), 32)] for count in (1, 20, 35, 64, 80, 100)}
    assert sizes == {1: [1], 20: [20], 35: [35], 64: [32, 32], 80: [40, 40], 100: [34, 33, 33]}
    assert np.concatenate(minibatches(np.arange(100), 32)).tolist() == list(range(100))


def test_gradients_accumulate_over_microbatches(monkeypatch):
    found, norms = [], []
    for micro in (100, 1):
        runner, learner = team(num_envs=6, learner={"minibatch_size": 100, "microbatch_size": micro})
        real, sizes = Weights.grade, []
        monkeypatch.setattr(Weights, "grade", lambda self, p, *w, r=real, s=sizes: s.append(len(p)) or r(self, p, *w))
        metrics = iterate(runner, learner, 1)
        monkeypatch.undo()
        assert max(sizes) == min(micro, sum(sizes))
        found.append(weights(learner.policy))
        norms.append(metrics["grad_norm"])
    assert all(np.allclose(found[0][name], found[1][name], atol=2e-5) for name in found[0])
    assert norms[1] == pytest.approx(norms[0], rel=1e-4)  # Adam's first step hides the gradients' size


def test_memory_that_runs_out_halves_the_microbatch_and_changes_nothing_else(monkeypatch, caplog):
    found = []
    for most in (100, 3):
        runner, learner = team(num_envs=6, learner={"minibatch_size": 100, "microbatch_size": 100})
        grade, graded = Weights.grade, []

        def scarce(self, prompts, *words, most=most, grade=grade, graded=graded):
            graded.append(len(prompts))
            if len(prompts) > most:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return grade(self, prompts, *words)

        monkeypatch.setattr(Weights, "grade", scarce)
        iterate(runner, learner, 1)
        monkeypatch.undo()
        found.append(weights(learner.policy))
    assert max(graded[-3:]) <= 3
    assert "prompts at once" in caplog.text
    assert all(np.allclose(found[0][name], found[1][name], atol=2e-5) for name in found[0])


def test_memory_that_runs_out_after_a_part_of_the_gradients_counts_no_prompt_twice(monkeypatch):
    found = []
    for scarce in (False, True):
        runner, learner = team(num_envs=6, learner={"minibatch_size": 100, "microbatch_size": 4, "kl": 0.1})
        real, calls = Weights.grade, itertools.count(1)

        def grade(self, *words, scarce=scarce, real=real, calls=calls):
            if next(calls) == 4 and scarce:  # the second micro-batch, after the reference has read it
                raise torch.OutOfMemoryError("CUDA out of memory")
            return real(self, *words)

        monkeypatch.setattr(Weights, "grade", grade)
        metrics = iterate(runner, learner, 1)
        monkeypatch.undo()
        found.append((metrics["grad_norm"], learner.workers[0].parts.most))
    (norm, whole), (again, halved) = found
    assert again == pytest.approx(norm, rel=1e-4)
    assert (whole, halved) == (None, 2)


def test_memory_that_runs_out_is_taken_back_from_captured_passes(monkeypatch):
    runner, learner = team(num_envs=6, learner={"minibatch_size": 100, "microbatch_size": 100})
    passes = Mock()
    monkeypatch.setattr(Weights, "passes", passes)
    grade = Weights.grade

    def scarce(self, prompts, *words):
        if not passes.clear.called:  # what graphs keep would not fit beside the batch
            raise torch.OutOfMemoryError("CUDA out of memory")
        return grade(self, prompts, *words)

    monkeypatch.setattr(Weights, "grade", scarce)
    iterate(runner, learner, 1)
    passes.clear.assert_called_once()


def test_a_weight_that_is_not_finite_stops_learning():
    runner, learner = team(num_envs=6)
    own = runner.play(2, 1, 0.0).experiences["writers"]
    with torch.no_grad():
        learner.policy.networks[0].norm[0] = torch.nan
    with pytest.raises(Diverged, match="diverged") as caught:
        learner.learn(own, _joint(own), np.random.default_rng(0))
    assert "loss=nan" in str(caught.value)
    assert "turn_1" not in str(caught.value)  # there may be hundreds of these


def test_a_weight_that_the_last_step_made_infinite_stops_learning(monkeypatch):
    runner, learner = team(num_envs=6, learner={"minibatch_size": 100})
    step = Optimizer.step

    def overflowing(self, *words):
        norm = step(self, *words)
        with torch.no_grad():
            self.parameters[-1][0] = torch.inf
        return norm

    monkeypatch.setattr(Optimizer, "step", overflowing)
    with pytest.raises(Diverged, match="diverged"):
        iterate(runner, learner, 1)


def _joint(own):
    return Joint({"writers": own}, 1, 0.0)


# Whose weights change -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "mine"), [("full", "1/"), ("lora", ".1")])
def test_an_update_of_one_role_leaves_the_other_roles_weights_untouched(kind, mine):
    runner, learner = team(num_envs=8, parameters="individual", weights=kind, rank=2)
    iterate(runner, learner, 2)  # both optimisers have momentum now
    before = weights(learner.policy)
    own = runner.play(2, 3, 0.0).experiences["writers"]
    second = replace(own, active=own.active & np.array([False, True]))  # only the second role has decided anything
    learner.learn(second, _joint(second), np.random.default_rng(0))
    found = changed(before, weights(learner.policy))
    assert found
    assert all(name.startswith(mine) or name.endswith(mine) for name in found)


def test_roles_share_weights_where_parameters_are_shared():
    runner, learner = team(num_envs=8)
    assert len(learner.policy.networks) == len(learner.workers) == 1
    before = weights(learner.policy)
    iterate(runner, learner, 1)
    assert changed(before, weights(learner.policy)) == set(before)


@pytest.mark.slow
def test_the_kl_to_the_reference_holds_the_model_back():
    distance = []
    for kl in (0.0, 50.0):
        runner, learner = team(num_envs=16, learner={"kl": kl, "learning_rate": 3e-3, "minibatch_size": 8})
        before = weights(learner.policy)
        iterate(runner, learner, 6)
        after = weights(learner.policy)
        distance.append(sum(float(np.abs(after[name] - before[name]).sum()) for name in before))
    assert distance[1] < 0.8 * distance[0]


def test_the_reference_leaves_the_model_as_it_is():
    found = []
    for kl in (0.0, 1e-30):
        runner, learner = team(num_envs=6, learner={"kl": kl, "learning_rate": 3e-3, "minibatch_size": 8})
        iterate(runner, learner, 2)
        found.append(weights(learner.policy))
    assert not changed(*found)


# Settings -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        *({"baseline": "mean"}, {"learning_rate": 2e-3}, {"clip": 0.001}, {"kl": 0.5}, {"entropy": 0.5}),
        *({"normalize": "sequence"}, {"normalize": "constant"}, {"epochs": 1}, {"minibatch_size": 4}),
        *({"max_grad_norm": 0.01}, {"weight_decay": 0.5}, {"alpha": 4.0}, {"temperature": 0.5}),
    ],
    ids=str,
)
def test_every_setting_changes_what_is_learned(change):
    policy = {name: change[name] for name in ("alpha", "temperature") if name in change}
    learner = {name: value for name, value in change.items() if name not in policy}
    base = {"learning_rate": 3e-3, "epochs": 2, "minibatch_size": 8}
    found = []
    for more, written in (({}, {}), (learner, policy)):
        runner, made = team(num_envs=6, weights="lora", rank=2, learner=base | more, **written)
        iterate(runner, made, 3)
        found.append(weights(made.policy))
    assert changed(*found)


def test_the_rank_is_that_of_the_adapters():
    sizes = {
        p.shape[0] for n, p in team(weights="lora", rank=3)[1].policy.networks[0].named_parameters() if "lora_a" in n
    }
    assert sizes == {3}


def test_answers_are_graded_at_the_temperature_that_they_were_sampled_at():
    runner, learner = team(num_envs=6, temperature=0.4)
    (worker,) = learner.workers
    update, compared = worker.update, []

    def comparing(answers, spec, random):
        prompts = [row[row != PAD] for row in answers.prompts]
        compared.append((worker.weights.grade(prompts, answers.tokens, spec.temperature).log_probs, answers.log_probs))
        return update(answers, spec, random)

    worker.update = comparing
    iterate(runner, learner, 1)
    ((graded, sampled),) = compared
    np.testing.assert_allclose(graded.detach().numpy(), sampled, atol=1e-5)
    assert np.abs(sampled).max() > 0


# Learning -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("parameters", ["shared", "individual"])
def test_a_team_learns_the_echo_task_from_nothing(parameters):
    runner, learner = team(
        num_envs=32,
        parameters=parameters,
        max_tokens=1,
        candidates=8,
        learner={"learning_rate": 3e-3, "minibatch_size": 16},
    )
    first = iterate(runner, learner, 1)["score"]
    last = iterate(runner, learner, 80, first=2)["score"]
    assert first < -0.2
    assert last > 0.4


def test_state_and_load_continue_exactly():
    runner, learner = team(learner={"kl": 0.1, "learning_rate": 3e-3})
    iterate(runner, learner, 2)
    saved = copy.deepcopy((runner.save(), learner.policy.state(), learner.state()))
    iterate(runner, learner, 2, first=3)
    wanted = weights(learner.policy)
    again, other = team(learner={"kl": 0.1, "learning_rate": 3e-3})
    again.load(saved[0])
    other.policy.load(saved[1])
    other.load(saved[2])
    iterate(again, other, 2, first=3)
    assert not changed(wanted, weights(other.policy))
    assert other.tokens == learner.tokens


def test_the_learning_rate_falls_to_the_end_that_comes_first():
    _, learner = team(learner={"token_budget": 1000, "learning_rate": 0.1, "learning_rate_schedule": "linear"})
    own = Joint({}, 1, progress=0.2)
    assert learner._spec(own).learning_rate == pytest.approx(0.08)
    learner.tokens = 750
    assert learner._spec(own).learning_rate == pytest.approx(0.025)
    learner.tokens = 2000
    assert learner._spec(own).learning_rate == 0
    _, constant = team(learner={"token_budget": 1000, "learning_rate": 0.1})
    constant.tokens = 750
    assert constant._spec(own).learning_rate == 0.1


def test_the_token_budget_ends_the_run():
    runner, learner = team(learner={"token_budget": 50})
    assert not learner.finished
    metrics = iterate(runner, learner, 3)
    assert learner.finished
    assert metrics["tokens"] == learner.tokens >= 50


@pytest.mark.slow
def test_the_entropy_bonus_keeps_answers_varied():
    found = []
    for bonus in (0.0, 1.0):
        runner, learner = team(num_envs=16, learner={"entropy": bonus, "learning_rate": 3e-3, "minibatch_size": 8})
        found.append(iterate(runner, learner, 25)["token_entropy"])
    assert found[1] > found[0] + 0.3


@pytest.mark.parametrize(
    ("setting", "value"), [("groups", "team"), ("clip", 0.0), ("kl", -1.0), ("epochs", 0), ("token_budget", 0)]
)
def test_wrong_settings_are_refused(setting, value):
    with pytest.raises(ValueError, match=setting):
        ATGRPOSettings(**{setting: value})


def test_a_preference_that_would_have_no_effect_is_refused():
    config = schema.load("plan-path-shared", ["groups.team.preference=team"])
    with pytest.raises(ConfigError, match=r"^groups\.team\.preference: .*'team'; set .*preference=individual"):
        build.build_groups(config, build.build_world(config.world, 1))


def test_decisions_of_a_rollout_that_cuts_episodes_are_learned_from_once():
    runner, _ = team(num_envs=4, world={"turns": 2})
    groups = answers = 0
    for iteration in range(1, 5):  # 12 steps: three episodes of four
        own = runner.play(3, iteration, 0.0).experiences["writers"]
        groups += by_turn(own, "std").groups
        answers += int(own.active[1:].sum())
    assert groups == answers


def test_a_frozen_writer_does_not_branch():
    runner, learner = team(num_envs=4)
    policy = learner.policy
    policy.group_spec = replace(policy.group_spec, learns=False)
    own = runner.play(2, 1, 0.0).experiences["writers"]
    assert own.trace["scores"].shape[-1] == 1


@pytest.mark.slow
def test_a_run_with_groups_of_copies_can_be_loaded(tmp_path):
    import coterie
    from helpers.run import written

    text = """\
world: {name: "helpers.teams:EchoWorld", group_size: 4}
groups:
  writers:
    policy: {name: causal_lm, tiny: {layers: 1, width: 16, heads: 2, hidden: 16, context: 16}, max_tokens: 1,
             max_prompt_tokens: 8}
    learner: {name: at_grpo, groups: episode}
train: {num_envs: 4, rollout_steps: 2, total_steps: 16, evaluate_episodes: 4, video: false, tensorboard: false}
"""
    run = coterie.train(str(written(tmp_path / "team.yaml", text)), out=tmp_path / "run", quiet=True)
    assert coterie.load(run.path).evaluate(episodes=3).success.shape == (3,)
