"""AT-GRPO (Zhao et al. 2025): language models of a team learn by comparing answers to one and the same prompt.

The policy draws K candidates for every agent and turn, scores each on a fork and goes on with one (`policies/causal_lm`);
this learner compares the candidates within (instance, agent, turn) and raises the probability of the better ones, token
by token, with PPO's clip. `groups: episode` is plain GRPO: episodes of one instance are compared by their returns. Each
set of weights has an UpdateWorker of its own and learns from the answers of its own agents alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np

from coterie.algorithms.at_grpo.groups import Baseline, Flat, Found, by_episode, by_turn
from coterie.algorithms.at_grpo.update_worker import Normalize, UpdateSpec, UpdateWorker
from coterie.algorithms.divergence import demand_finite
from coterie.core.group import GroupSpec, Panel, Preference
from coterie.core.search_space import Choice, Real, Space
from coterie.core.types import Array, Experience, Joint, Metrics, State
from coterie.core.validation import at_least, one_of, positive, whole
from coterie.lm.learn.sampling import PAD
from coterie.policies.causal_lm.policy import CausalLMPolicy
from coterie.preferences.standard import Individual

Groups = Literal["turn", "episode"]
Schedule = Literal["constant", "linear"]


@dataclass(frozen=True)
class ATGRPOSettings:
    """Settings of AT-GRPO and of plain GRPO."""

    groups: Groups = "turn"  # what is compared: candidates of one agent and turn, or episodes of one instance
    baseline: Baseline = "std"  # advantage (R − mean) / std of the group, or mean: R − mean
    learning_rate: float = 1e-4  # of Adam
    learning_rate_schedule: Schedule = "constant"  # linear: to 0 at the run's end, which token_budget may bring
    clip: float = 0.2  # ε of the clipped ratio
    kl: float = 0.0  # weight of the KL to the model as it was when learning began
    entropy: float = 0.0  # weight of the tokens' entropy, which keeps answers varied
    flat_groups: Flat = "skip"  # groups of equally good answers: skip, or regularize: entropy and kl alone act on them
    normalize: Normalize = "token"  # mean over tokens, over answers (sequence), or by the longest possible answer
    epochs: int = 1  # passes over the answers of an iteration
    minibatch_size: int = 64  # prompts per optimiser step
    microbatch_size: int = 64  # prompts per forward and backward pass; gradients accumulate
    max_grad_norm: float = 1.0  # gradients are scaled to at most this norm
    weight_decay: float = 0.0  # of AdamW
    token_budget: int | None = None  # tokens to sample, after which the group plays on as it is; None: no limit

    SEARCH: ClassVar[Space] = {  # what `coterie tune` varies
        "learning_rate": Real(1e-5, 1e-2, log=True),
        "clip": Choice((0.1, 0.2, 0.3)),
        "minibatch_size": Choice((16, 32, 64, 128)),
        "epochs": Choice((1, 2, 4)),
    }

    def __post_init__(self) -> None:
        for name in ("learning_rate", "clip", "max_grad_norm"):
            positive(name, getattr(self, name))
        for name in ("kl", "entropy", "weight_decay"):
            at_least(name, getattr(self, name), 0)
        for name in ("epochs", "minibatch_size", "microbatch_size", "token_budget"):
            if (value := getattr(self, name)) is not None:
                whole(name, value)
                at_least(name, value, 1)
        options: Mapping[str, tuple[str, ...]] = {
            "groups": get_args(Groups),
            "baseline": get_args(Baseline),
            "flat_groups": get_args(Flat),
            "normalize": get_args(Normalize),
            "learning_rate_schedule": get_args(Schedule),
        }
        for name, allowed in options.items():
            one_of(name, getattr(self, name), allowed)


class ATGRPO:
    """Improves language models that write their answers."""

    teaches = CausalLMPolicy
    scopes = ("step",)
    preferences = (Individual,)  # what is compared are the world's own rewards, which the policy scored on forks
    panels = (
        Panel("score of sampled answers", "reward", ("score", "chosen_score")),
        Panel("groups without a better answer", "share of groups", ("flat_groups",)),
        Panel("entropy", "nats per token", ("token_entropy",)),
        Panel("clipped tokens", "share of tokens", ("clip_fraction",)),
    )

    def __init__(
        self, settings: ATGRPOSettings, policy: CausalLMPolicy, group_spec: GroupSpec, preference: Preference
    ) -> None:
        branches = policy.settings.candidates > 1
        if settings.groups == "turn" and not branches:
            raise ValueError("groups=turn compares candidates: set policy.candidates to 2 or more, got 1")
        if settings.groups == "episode" and branches:
            raise ValueError(
                f"groups=episode compares whole episodes: set policy.candidates=1, got {policy.settings.candidates}"
            )
        self.settings, self.policy, self.group_spec = settings, policy, group_spec
        sets = range(policy.router.sets)
        self.workers = [UpdateWorker(policy.weights(number), settings.weight_decay) for number in sets]
        self.tokens = 0  # sampled so far
        self.turns = TurnCounter()

    def learn(self, own: Experience, joint: Joint, random: np.random.Generator) -> Metrics:
        s = self.settings
        turns, table = s.groups == "turn", list(joint.experiences.values())
        how = (s.baseline, s.flat_groups)
        found = by_turn(own, *how) if turns else by_episode(own, table, *how)
        spec = self._spec(joint)
        self.tokens += found.tokens
        metrics = self._scores(own) | self._sizes(found)
        metrics |= metrics_by_turn(own, found, self.turns.count(own), self.group_spec.agents)
        steps: dict[str, list[float]] = {}
        for number, worker in enumerate(self.workers):
            if s.kl and worker.reference is None:
                worker.keep_reference()
            mine = np.flatnonzero(self.policy.router.of_agent[found.answers.agents] == number)
            if len(mine):
                for name, values in worker.update(found.answers.take(mine), spec, random).items():
                    steps.setdefault(name, []).extend(values)
        metrics |= {name: float(np.mean(values)) for name, values in steps.items()}
        metrics["updates"] = float(len(steps.get("loss", ())))
        demand_finite(self.group_spec.group, metrics, [], [worker.optimizer.weight_norms() for worker in self.workers])
        if self.finished:  # where other groups go on, this one draws no more candidates
            self.policy.branches = False
        return metrics

    def _spec(self, joint: Joint) -> UpdateSpec:
        s = self.settings
        left = max(1 - self._progress(joint), 0.0)
        rate = s.learning_rate * (left if s.learning_rate_schedule == "linear" else 1.0)
        sizes = (s.minibatch_size, min(s.microbatch_size, s.minibatch_size))
        temperature = self.policy.settings.temperature
        return UpdateSpec(rate, s.clip, s.kl, s.entropy, s.normalize, *sizes, s.epochs, s.max_grad_norm, temperature)

    def _progress(self, joint: Joint) -> float:
        """The share of the run that is over: of its steps or of its token budget, whichever ends it first."""
        budget = self.settings.token_budget
        return joint.progress if budget is None else max(joint.progress, self.tokens / budget)

    def _sizes(self, found: Found) -> Metrics:
        return {
            "groups": float(found.groups),
            "flat_groups": found.flat / max(found.groups, 1),
            "tokens": float(self.tokens),
        }

    def _scores(self, own: Experience) -> Metrics:
        """Mean scores of all candidates and of the chosen ones, in all and by agent."""
        assert own.trace is not None
        metrics: Metrics = {}
        scores, chosen = own.trace["scores"], own.trace["chosen"]
        branches = scores.shape[-1] > 1
        for column, agent in [(None, ""), *enumerate(self.group_spec.agents)]:
            rows = own.active if column is None else own.active & (np.arange(own.active.shape[2]) == column)
            if not rows.any():
                continue
            prefix = f"{agent}/" if agent else ""
            if branches:
                metrics[f"{prefix}score"] = float(scores[rows].mean())
                taken = np.take_along_axis(scores[rows], chosen[rows][:, None], axis=1)
                metrics[f"{prefix}chosen_score"] = float(taken.mean())
            else:
                metrics[f"{prefix}score"] = float(own.reward[rows].mean())
        return metrics

    @property
    def finished(self) -> bool:
        """Whether the token budget is spent."""
        return self.settings.token_budget is not None and self.tokens >= self.settings.token_budget

    def metrics(self) -> Metrics:
        return {}  # `learn` returns them

    def state(self) -> State:
        workers = [worker.state() for worker in self.workers]
        return {"tokens": self.tokens, "turns": self.turns.state(), "workers": workers}

    def load(self, state: State) -> None:
        if len(state["workers"]) != len(self.workers):
            raise ValueError(f"the saved learner has {len(state['workers'])} workers, this one {len(self.workers)}")
        self.tokens = state["tokens"]
        self.turns.load(state["turns"])
        for worker, saved in zip(self.workers, state["workers"], strict=True):
            worker.load(saved)


# Metrics by role and turn ---------------------------------------------------------------------------------


class TurnCounter:
    """Numbers the decisions of every agent within its episode, from one rollout to the next."""

    def __init__(self) -> None:
        self.made: Array | None = None  # [N, A] decisions of the present episode that have been learned from

    def count(self, own: Experience) -> Array:
        """The turn `[T, N, A]` of every decision that is not pending, from 0; −1 elsewhere."""
        closed, ends = own.closed(), own.ends
        made = np.zeros(closed.shape[1:], np.int64) if self.made is None else self.made
        turns = np.full(closed.shape, -1)
        for t in range(len(closed)):
            turns[t][closed[t]] = made[closed[t]]
            made = np.where(ends[t], 0, made + closed[t])
        self.made = made
        return turns

    def state(self) -> State:
        return {"made": None if self.made is None else self.made.copy()}

    def load(self, state: State) -> None:
        self.made = None if state["made"] is None else state["made"].copy()


def metrics_by_turn(own: Experience, found: Found, turns: Array, agents: Sequence[str]) -> Metrics:
    """By agent and turn, of all answers sampled there.

    score: their mean reward. advantage: the root mean square of R − mean, which is 0 in groups that teach nothing.
    entropy: minus the mean log-probability of the sampled tokens, in nats, which estimates the entropy.
    """
    assert own.trace is not None
    branches = own.trace["scores"].shape[-1] > 1
    learned = turns[tuple(found.rows.T)]
    metrics: Metrics = {}
    for column, agent in enumerate(agents):
        mine = turns[..., column]
        for turn in range(mine.max() + 1):
            t, n = np.nonzero(mine == turn)
            if not len(t):
                continue
            scores = own.trace["scores"][t, n, column] if branches else own.reward[t, n, column, None]
            chosen = (learned == turn) & (found.rows[:, 2] == column)
            sampled = own.trace["tokens"][t, n, column] != PAD
            name = f"{agent}/turn_{turn + 1}"
            metrics[f"{name}/score"] = float(scores.mean())
            metrics[f"{name}/advantage"] = float(np.sqrt((found.centred[chosen] ** 2).sum() / scores.size))
            if sampled.any():
                metrics[f"{name}/entropy"] = float(-own.trace["log_probs"][t, n, column][sampled].mean())
    return metrics
