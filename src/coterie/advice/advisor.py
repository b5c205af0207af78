"""Advisors: probabilities over a group's actions, suggested by a language model or by the world's scripted expert.

A language model reads descriptions of observations, each distinct text once. Rows without an answer (the budget is
spent, or no advised action is legal) are abstentions: they are counted, and the policy decides them without advice.
The settings that say when to ask and how advice is used are in `core/advice.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import numpy as np

from coterie.core.advice import AdviceUse, AskSettings, UseSettings
from coterie.core.group import Actor, GroupSpec, HasAdvice, HasLogProbs, Policy, Stateful, Stateless
from coterie.core.memoize import Memoized
from coterie.core.text import Oracle, find_text_codec
from coterie.core.types import Advice, Array, Counters, Discrete, Mean, State, View, map_tree
from coterie.core.validation import at_least, within
from coterie.core.world import HasExpert
from coterie.lm import prompts
from coterie.lm.ask import calibration as calibrate
from coterie.lm.ask.choice import Calibration, ChoiceScorer
from coterie.lm.ask.loading import LMSettings

# sums since the advisor was built
COUNTS = ("decisions", "asked", "advised", "measured", "agreed", "kl", "judged", "optimal")


@dataclass(frozen=True)
class LanguageAdvisorSettings:
    """Settings of the advisor 'language'."""

    lm: LMSettings = field(default_factory=LMSettings)  # the language model; a bare name is enough
    codec: str = "auto"  # text codec for observations; auto: the codec of the world; or package.module:Name
    template: str = "auto"  # prompt template: a file or the name of a built-in one; auto: the codec's default
    examples: str = "auto"  # few-shot examples: a file or a built-in name; auto: the codec's default; none: zero-shot
    normalize: Literal["sum", "mean"] = "sum"  # combines the log-probabilities of a word's tokens
    calibration: Calibration = "batch"  # removes the model's prior preference for some words
    temperature: float = 1.0  # divides the log-probabilities; 0: all weight on the best action
    smoothing: float = 0.01  # fraction of the probability spread evenly over the legal actions
    ask: AskSettings = field(default_factory=AskSettings)  # which decisions are advised
    use: UseSettings = field(default_factory=UseSettings)  # how the learner uses the advice

    def __post_init__(self) -> None:
        at_least("temperature", self.temperature, 0)
        check_smoothing(self.smoothing, self.use)


@dataclass(frozen=True)
class ExpertAdvisorSettings:
    """Settings of the advisor 'expert'."""

    smoothing: float = 0.01  # fraction of the probability spread evenly over the legal actions
    ask: AskSettings = field(default_factory=AskSettings)  # which decisions are advised
    use: UseSettings = field(default_factory=UseSettings)  # how the learner uses the advice

    def __post_init__(self) -> None:
        check_smoothing(self.smoothing, self.use)


def check_smoothing(smoothing: float, use: UseSettings) -> None:
    """Require smoothing in [0, 1), and above 0 where the learner takes logarithms of the advice."""
    within("smoothing", smoothing, 0, 1)
    if smoothing == 1:
        raise ValueError("smoothing=1 leaves nothing of the advice; set it below 1, for example 0.01")
    if use.mode == "prior" and not smoothing:
        raise ValueError("use.mode=prior takes logarithms of the advice: smoothing must be above 0, for example 0.01")


class AdviceSource(Stateful, Protocol):
    """Produces action probabilities for decisions. Rows are indices into the flattened `[N·A]` decisions."""

    def known(self, view: View, rows: Array) -> Array:
        """Return the advised actions `[R]` that need no query; −1 where a query would be needed."""
        ...

    def weights(self, view: View, rows: Array) -> Array:
        """Return advised probabilities `[R, K]` over the legal actions; NaN in rows where the source abstains."""
        ...


class SourcedAdvisor:
    """Adds advice from a source to the decisions that the settings select, and counts agreement."""

    measure_every = 1  # steps between measurements of the policy's agreement, which need its probabilities
    scored_alone = False  # summaries of runs show how well the advisor does by itself

    def __init__(
        self, ask: AskSettings, use: UseSettings, smoothing: float, group_spec: GroupSpec, source: AdviceSource
    ) -> None:
        self.ask, self.smoothing, self.group_spec, self.source = ask, smoothing, group_spec, source
        self.advice_use = AdviceUse(use, count_actions(group_spec))
        self.in_evaluation = use.in_evaluation
        self.oracle: Oracle | None = None  # knows the optimal actions, where the world's codec does
        self.counts = dict.fromkeys(COUNTS, 0.0)

    def advise(self, view: View, policy: Policy) -> View:
        """Return the view with advice for the selected decisions; abstentions are marked as not given."""
        assert isinstance(policy, HasLogProbs)  # the build step has checked it
        strength = self.advice_use.use.at(view.progress, view.frames)
        self.counts["decisions"] += int(view.acting.sum())
        wanted = strength > 0
        if self.advice_use.use.mode == "label":
            wanted = not getattr(policy, "labels_complete", False)
        if not wanted or not self.ask.due(view):
            return replace(view, advice=self.advice(view, np.zeros(0, np.int64), strength))
        measured = view.step_count % self.measure_every == 0
        log_probs = None
        if measured or self.ask.reads_policy:
            log_probs = policy.log_probs(view).reshape(view.acting.size, -1)  # [N·A, K]
        rows = self.select(view, log_probs)
        advice = self.advice(view, rows, strength)
        advised = np.flatnonzero(advice.given)
        self.counts["asked"] += len(rows)
        self.counts["advised"] += len(advised)
        shown = replace(view, advice=advice)
        if measured and len(advised) and log_probs is not None:
            if self.advice_use.hint_size:  # a policy that reads hints is compared as it acts with them
                log_probs = policy.log_probs(shown).reshape(log_probs.shape)
            found = advice.probabilities.reshape(log_probs.shape)[advised]
            self.count_agreement(view, advised, found, log_probs[advised])
        return shown

    def advice(self, view: View, rows: Array, strength: float) -> Advice:
        """Return advice for these decisions, indices `[R]`; the others, and those of abstentions, have none."""
        lead, actions = view.acting.shape, self.advice_use.actions
        given, probabilities = np.zeros(view.acting.size, bool), np.zeros((view.acting.size, actions), np.float32)
        if len(rows):
            found = self.source.weights(view, rows)
            legal = legal_actions(view, rows, actions)
            found = np.where(legal, found, 0 * found)  # NaN stays
            answered = found.sum(axis=1) > 0  # some legal action has weight
            rows, found, legal = rows[answered], found[answered], legal[answered]
            found = found / found.sum(axis=1, keepdims=True)
            even = legal / legal.sum(axis=1, keepdims=True)
            given[rows], probabilities[rows] = True, (1 - self.smoothing) * found + self.smoothing * even
        weight = np.where(given, np.float32(strength), np.float32(0))
        return Advice(given.reshape(lead), probabilities.reshape(*lead, actions), weight.reshape(lead))

    def suggest(self, view: View) -> Advice:
        """Return what the advisor itself would do, for every agent that acts; whatever the settings say of asking."""
        return self.advice(view, np.flatnonzero(view.acting), 1.0)

    def select(self, view: View, log_probs: Array | None) -> Array:
        """Return the indices `[R]` of the decisions to advise, given the policy's log-probabilities `[N·A, K]`.

        They are None only where the settings do not read the policy.
        """
        wanted = view.acting.reshape(-1).copy()
        if self.ask.entropy is not None and log_probs is not None:
            wanted &= -(np.exp(log_probs) * log_probs).sum(axis=1) > self.ask.entropy
        if self.ask.fraction < 1:
            wanted &= view.random.random(len(wanted)) < self.ask.fraction
        if self.ask.disagreement and log_probs is not None:
            rows = np.flatnonzero(wanted)
            # −1 (unknown) equals no action.
            wanted[rows] = self.source.known(view, rows) != log_probs[rows].argmax(axis=1)
        return np.flatnonzero(wanted)

    # Metrics ------------------------------------------------------------------------------------------

    def count_agreement(self, view: View, rows: Array, found: Array, log_probs: Array) -> None:
        """Count the agreement of policy and advice, and how often the advice is optimal."""
        best = found.argmax(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            each = np.where(found > 0, found * (np.log(found) - log_probs), 0.0)
        self.counts["measured"] += len(rows)
        self.counts["agreed"] += int((best == log_probs.argmax(axis=1)).sum())
        self.counts["kl"] += float(each.sum())
        if self.oracle is None or view.world is None or view.columns is None:
            return
        joint = np.zeros((view.acting.shape[0], len(self.group_spec.spaces.agents)), np.int64)
        mine = np.zeros(view.acting.size, np.int64)
        mine[rows] = best
        joint[:, view.columns] = mine.reshape(view.acting.shape)
        good = self.oracle.optimal(view.world, joint)[:, view.columns].reshape(-1)[rows]
        self.counts["optimal"] += int(good.sum())
        self.counts["judged"] += len(rows)

    def metrics(self) -> Counters:
        """Fractions of advised decisions, abstentions and agreement, the mean KL(advice ‖ policy), and accuracy."""
        c = self.counts
        found = {"decisions": c["decisions"], "asked": c["asked"], "advised": c["advised"]}
        shares = {
            "share": (c["advised"], c["decisions"]),
            "abstentions": (c["asked"] - c["advised"], c["asked"]),
            "agreement": (c["agreed"], c["measured"]),
            "kl": (c["kl"], c["measured"]),
            "optimal": (c["optimal"], c["judged"]),
        }
        means = {name: Mean(part, whole) for name, (part, whole) in shares.items()}
        return {f"advice/{name}": value for name, value in {**found, **means, **self.source.metrics()}.items()}

    def state(self) -> State:
        return {"counts": dict(self.counts), "source": self.source.state()}

    def load(self, state: State) -> None:
        self.counts |= state["counts"]
        self.source.load(state["source"])


def count_actions(group_spec: GroupSpec) -> int:
    """Return the number of actions K; raise where the action space is not discrete."""
    space = group_spec.spaces.action
    if not isinstance(space, Discrete):
        what = type(space).__name__
        raise ValueError(
            f"advisors need one discrete action per decision; the action space of these agents is a {what}"
        )
    return space.n


def legal_actions(view: View, rows: Array, actions: int) -> Array:
    """Return which actions are legal in each row, `[R, K]` bool."""
    return np.ones((len(rows), actions), bool) if view.mask is None else view.mask.reshape(-1, actions)[rows]


# Language models --------------------------------------------------------------------------------------------


class LanguageAdvisor(SourcedAdvisor):
    """Advice from a language model."""

    def __init__(self, settings: LanguageAdvisorSettings, group_spec: GroupSpec) -> None:
        s = settings
        count_actions(group_spec)  # raises before a codec is looked up
        source = LanguageSource(s, group_spec)
        super().__init__(s.ask, s.use, s.smoothing, group_spec, source)
        self.oracle = source.codec if isinstance(source.codec, Oracle) else None


class LanguageSource:
    """Scores the words for actions with a language model, once per distinct description."""

    def __init__(self, settings: LanguageAdvisorSettings, group_spec: GroupSpec) -> None:
        s = settings
        self.temperature, self.actions = s.temperature, count_actions(group_spec)
        self.codec = find_text_codec(s.codec, group_spec)
        words = self.codec.choices
        self.of_choice = self.codec.actions(np.arange(len(words)))  # [C]
        template = prompts.read(s.template, s.examples, self.codec.prompt, words)
        samples = self.codec.samples() if s.calibration == "batch" else ()
        self.scorer = ChoiceScorer(s.lm, template, words, samples, s.calibration, s.normalize)
        self.described = Memoized(lambda seen, tags: self.codec.describe(seen))

    def known(self, view: View, rows: Array) -> Array:
        texts = self.describe(view, rows)
        answered = np.array([text in self.scorer.known for text in texts], bool)
        best = np.full(len(rows), -1)
        if answered.any():
            weights = self.weights(view, rows[answered])
            abstained = np.isnan(weights).any(axis=1)
            best[answered] = np.where(abstained, -1, np.nan_to_num(weights).argmax(axis=1))
        return best

    def weights(self, view: View, rows: Array) -> Array:
        texts = self.describe(view, rows)
        position = {text: number for number, text in enumerate(dict.fromkeys(texts))}
        if not position:
            return np.zeros((0, self.actions))
        scores = self.scorer.log_probs(list(position))[[position[text] for text in texts]]  # [R, C]
        scores = np.where(legal_actions(view, rows, self.actions)[:, self.of_choice], scores, -np.inf)
        answered = np.isfinite(scores).any(axis=1) & ~np.isnan(scores).any(axis=1)
        found = np.full((len(rows), self.actions), np.nan)
        if answered.any():
            found[answered] = 0.0
            np.add.at(found, (np.flatnonzero(answered)[:, None], self.of_choice[None]), self.tempered(scores[answered]))
        return found

    def tempered(self, scores: Array) -> Array:
        """Return probabilities `[R, C]` at the temperature of the settings."""
        if self.temperature:
            return calibrate.probabilities(scores, self.temperature)
        return (np.arange(scores.shape[1]) == scores.argmax(axis=1)[:, None]).astype(np.float64)

    def describe(self, view: View, rows: Array) -> list[str]:
        """Return the description of each row; equal observations are described once."""
        if not len(rows):
            return []
        seen = map_tree(lambda a: a.reshape(view.acting.size, *a.shape[2:])[rows], view.observation)
        return self.described.of(seen)

    def metrics(self) -> Counters:
        return {"distinct": float(len(self.scorer.known))} | self.scorer.metrics()  # adds up over workers

    def state(self) -> State:
        """Return the answers and, if the model is loaded, its usage and budget."""
        return self.scorer.state()

    def load(self, state: State) -> None:
        self.scorer.load(state)


# Scripted expert --------------------------------------------------------------------------------------------


class ExpertAdvisor(SourcedAdvisor):
    """Advice from the world's scripted expert."""

    def __init__(self, settings: ExpertAdvisorSettings, group_spec: GroupSpec) -> None:
        actions = count_actions(group_spec)
        if not isinstance(group_spec.world, HasExpert):
            raise ValueError("the advisor 'expert' needs a world with a scripted expert; set advisor.name=language")
        super().__init__(settings.ask, settings.use, settings.smoothing, group_spec, ExpertSource(actions))


class ExpertSource(Stateless):
    """Puts all probability on the action of the world's scripted expert."""

    def __init__(self, actions: int) -> None:
        self.actions = actions
        self.drawn: tuple[View, Array] | None = None  # the latest view and the expert's actions in it

    def known(self, view: View, rows: Array) -> Array:
        if not isinstance(view.world, HasExpert) or view.columns is None:
            return np.full(len(rows), -1)  # the expert needs the state of the world
        if self.drawn is None or self.drawn[0] is not view:  # one draw per view, so `known` and `weights` agree
            self.drawn = view, view.world.expert(view.agent_type, view.random)[:, view.columns].reshape(-1).copy()
        return self.drawn[1][rows]

    def weights(self, view: View, rows: Array) -> Array:
        best = self.known(view, rows)
        found = (np.arange(self.actions) == best[:, None]).astype(np.float64)
        found[best < 0] = np.nan
        return found


# Any policy -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PolicyAdvisorSettings:
    """Settings of the advisor 'policy'."""

    policy: str = "expert"  # a run, or a policy that needs no training: expert, alphabeta:depth=4, package.module:Name
    checkpoint: str = "best"  # of a run
    smoothing: float = 0.0  # fraction of the probability spread evenly over the legal actions
    ask: AskSettings = field(default_factory=AskSettings)  # which decisions are advised
    use: UseSettings = field(default_factory=UseSettings)  # how the learner uses the advice

    def __post_init__(self) -> None:
        check_smoothing(self.smoothing, self.use)


class PolicyAdvisor(SourcedAdvisor):
    """Advice from another policy: an earlier run such as the clone that a group began with, a script, a search."""

    takes_actor = True  # the build step seats `settings.policy`

    def __init__(self, settings: PolicyAdvisorSettings, group_spec: GroupSpec, actor: Actor) -> None:
        s = settings
        if actor.policy.memory_size and not isinstance(actor.policy, HasAdvice):
            raise ValueError(f"policy: '{s.policy}' remembers earlier decisions; only policies without memory advise")
        super().__init__(s.ask, s.use, s.smoothing, group_spec, PolicySource(count_actions(group_spec), actor))


class PolicySource(Stateless):
    """Probabilities that a policy advises or acts by, or all probability on the action that it would take."""

    def __init__(self, actions: int, actor: Actor) -> None:
        self.actions, self.actor = actions, actor
        self.asked: tuple[View, Array] | None = None  # the latest view and the probabilities in it

    def known(self, view: View, rows: Array) -> Array:
        return self.weights(view, rows).argmax(axis=1)

    def weights(self, view: View, rows: Array) -> Array:
        if self.asked is None or self.asked[0] is not view:  # one draw per view, so `known` and `weights` agree
            members = view.agents if self.actor.members is None else self.actor.members[view.agents]
            shown = replace(view, agents=members, greedy=True, memory=None, advice=None)
            policy = self.actor.policy
            if isinstance(policy, HasAdvice):
                found = policy.advice(self.actor.shown(shown))
            elif isinstance(policy, HasLogProbs):
                found = np.exp(policy.log_probs(self.actor.shown(shown)))
            else:
                found = np.arange(self.actions) == self.actor.act(shown)[1].action[..., None]
            self.asked = view, found.reshape(view.acting.size, self.actions).astype(np.float64)
        return self.asked[1][rows]
