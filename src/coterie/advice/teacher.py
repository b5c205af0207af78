"""The advisor 'teacher': a planner chooses among a world's skills, and the skills' actions are what it advises.

    teacher(action | state) = Σ over skills of p(skill | text state) · skill(action | state)

The planner is a language model, a table of its plans, or an oracle of the world. A language model is asked once for
each distinct text state (`core/skills.py`), whatever the number of environments and steps. Skills that have ended or
cannot begin drop out and the others are normalised; where none is left, the teacher abstains. With `use.mode=kl`, the
default, the student acts always by itself and is pulled to the teacher by a loss (Zhou et al. 2023, LLM4Teach).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from numba import njit

from coterie.advice.advisor import SourcedAdvisor, check_smoothing, count_actions
from coterie.advice.trust import Trust
from coterie.core import seeding
from coterie.core.advice import AskSettings, UseSettings
from coterie.core.group import GroupSpec, Stateful, Stateless
from coterie.core.skills import HasBestSkills, HasPlanCodec, HasSkills, PlanCodec
from coterie.core.types import Array, Counters, Distinct, Experience, Mean, State, View, map_tree
from coterie.core.validation import at_least, within
from coterie.lm import plans, prompts
from coterie.lm.ask import calibration as calibrate
from coterie.lm.ask.choice import Calibration, ChoiceScorer
from coterie.lm.ask.interface import Sampling
from coterie.lm.ask.loading import LMSettings
from coterie.lm.plans import PlanTable

log = logging.getLogger("coterie")
ORACLE = "oracle"  # the value of `plans` that asks the world instead
SAMPLE_TOKENS = 12  # longest answer that is parsed for a skill


@dataclass(frozen=True)
class TeacherSettings:
    """Settings of the advisor 'teacher'."""

    lm: LMSettings = field(default_factory=LMSettings)  # the planner; a bare name is enough
    plans: str | None = None  # instead of the model: a table, by file or shipped name; oracle: the world's best skills
    template: str = "auto"  # prompt template: a file or the name of a built-in one; auto: the plan codec's default
    examples: str = "auto"  # few-shot examples: a file or a built-in name; auto: the codec's default; none: zero-shot
    normalize: Literal["sum", "mean"] = "sum"  # combines the log-probabilities of a skill name's tokens
    calibration: Calibration = "batch"  # removes the model's prior preference for some names; not for samples
    samples: int = 0  # p(skill) is its frequency among so many samples of the model; 0: its scores
    temperature: float = 1.0  # of the samples, or divides the scores; 0: all weight on the best skill
    choice: Literal["soft", "hard"] = "soft"  # follow all skills by their probabilities, or the best possible one alone
    noise: float = 0.0  # share of text states in which a wrong skill is chosen, for tests of robustness
    noise_by: Literal["text", "decision"] = "text"  # the wrong skill is fixed for a text state, or drawn every time
    adversarial: bool = False  # choose the worst possible skill everywhere, for tests of robustness
    smoothing: float = 0.01  # fraction of the probability spread evenly over the legal actions
    trust: bool = False  # the loss counts less in text states where following the advice does not lead on
    ask: AskSettings = field(default_factory=AskSettings)  # which decisions are advised; ask.frames is a hard end
    use: UseSettings = field(default_factory=UseSettings)  # how the learner uses the advice

    def __post_init__(self) -> None:
        at_least("samples", self.samples, 0)
        at_least("temperature", self.temperature, 0)
        within("noise", self.noise, 0, 1)
        check_smoothing(self.smoothing, self.use)
        if self.trust and self.use.mode != "kl":
            raise ValueError(f"trust weighs the loss of use.mode=kl; leave one out, got use.mode={self.use.mode}")
        if self.noise and self.adversarial:
            raise ValueError(f"noise has no effect on an adversarial teacher; leave one out, got noise={self.noise:g}")


class TeacherAdvisor(SourcedAdvisor):
    """Advice from a planner over skills."""

    measure_every = 16  # its answers are cached, so reading the policy at every step would take most of the time
    scored_alone = True

    def __init__(self, settings: TeacherSettings, group_spec: GroupSpec) -> None:
        count_actions(group_spec)  # raises before skills are looked up
        self.skill_source = SkillSource(settings, group_spec)
        super().__init__(settings.ask, settings.use, settings.smoothing, group_spec, self.skill_source)
        self.trust = Trust(self.skill_source.codec) if settings.trust else None

    def weigh(self, own: Experience) -> Experience:
        """Return the experience with the strength of advice that it earns, with `trust`."""
        return own if self.trust is None else self.trust.weigh(own)

    def metrics(self) -> Counters:
        if self.trust is None:
            return super().metrics()
        return {**super().metrics(), "advice/trust": Mean(self.trust.weight, self.trust.given)}

    def state(self) -> State:
        return super().state() | ({} if self.trust is None else {"trust": self.trust.state()})

    def load(self, state: State) -> None:
        super().load(state)
        if self.trust is not None:
            self.trust.load(state["trust"])

    def plan_table(self) -> PlanTable:
        """Return the plans of all text states met so far; empty where the world is the planner."""
        return self.skill_source.table()


class Planner(Stateful, Protocol):
    """Chooses among skills, given text states."""

    def of(self, texts: list[str]) -> Array:
        """Return probabilities of skills `[R, S]`; NaN in rows without an answer."""
        ...

    def may_answer(self, texts: list[str]) -> Array:
        """Return for which of these texts, all without an answer, asking again may bring one, `[R]` bool."""
        ...


class ModelPlanner:
    """A language model: scores of the skills' names, or their frequencies among samples."""

    def __init__(self, settings: TeacherSettings, codec: PlanCodec, skills: tuple[str, ...]) -> None:
        s, sampled = settings, settings.samples > 0
        # Shipped examples may name more skills than this world has.
        words = None if s.examples == "auto" else skills
        template = prompts.read(s.template, s.examples, codec.prompt, words)
        calibration: Calibration = "none" if sampled else s.calibration
        sampling = (s.samples, Sampling(SAMPLE_TOKENS, s.temperature, stop=("\n",))) if sampled else None
        samples = codec.samples() if calibration == "batch" else ()
        self.scorer = ChoiceScorer(s.lm, template, skills, samples, calibration, s.normalize, sampling)
        self.temperature = 1.0 if sampled else s.temperature

    def of(self, texts: list[str]) -> Array:
        scores = self.scorer.log_probs(texts)
        answered = ~np.isnan(scores).any(axis=1)
        if self.temperature:
            scores[answered] = calibrate.probabilities(scores[answered], self.temperature)
        else:
            scores[answered] = np.arange(scores.shape[1]) == scores[answered].argmax(axis=1)[:, None]
        return scores

    def may_answer(self, texts: list[str]) -> Array:
        return self.scorer.may_answer(texts)

    def metrics(self) -> Counters:
        return dict(self.scorer.metrics())

    def state(self) -> State:
        return self.scorer.state()

    def load(self, state: State) -> None:
        self.scorer.load(state)


class TablePlanner(Stateless):
    """A table of plans, which do not change."""

    def __init__(self, name: str, table: PlanTable) -> None:
        self.name, self.table = name, table
        self.warned = False

    def of(self, texts: list[str]) -> Array:
        missing = [text for text in texts if text not in self.table.plans]
        if missing and not self.warned:
            self.warned = True
            log.warning("plans: '%s' has no plan for '%s'; such texts are abstentions", self.name, missing[0])
        return self.table.of(texts)

    def may_answer(self, texts: list[str]) -> Array:
        return np.zeros(len(texts), bool)  # tables do not change


def find_skills(group_spec: GroupSpec) -> tuple[tuple[str, ...], PlanCodec]:
    """Return the names of a group's skills and its plan codec; raise where its world has none."""
    world, agent_type = group_spec.world, group_spec.agent_type
    if not isinstance(world, HasSkills):
        raise ValueError(
            "the advisor 'teacher' needs a world with skills (HasSkills); "
            f"'{type(world).__name__}' has none; set advisor.name=language"
        )
    skills = world.skills(agent_type)
    if not isinstance(world, HasPlanCodec):
        raise ValueError(f"the advisor 'teacher' needs a world with a plan codec; '{type(world).__name__}' has none")
    return skills, world.plan_codec(agent_type)


class SkillSource:
    """Mixes the actions of skills by the plan of each decision's text state."""

    def __init__(self, settings: TeacherSettings, group_spec: GroupSpec) -> None:
        s, world = settings, group_spec.world
        self.settings, self.actions, self.seed = s, count_actions(group_spec), group_spec.seed
        self.skills, self.codec = find_skills(group_spec)
        self.planner: Planner | None = None  # None: the world's oracle
        if s.plans is None:
            self.planner = ModelPlanner(s, self.codec, self.skills)
        elif s.plans != ORACLE:
            self.planner = TablePlanner(s.plans, plans.read(s.plans, self.skills))
        elif not isinstance(world, HasBestSkills):
            raise ValueError(f"plans=oracle: world '{type(world).__name__}' does not know its best skills")
        self.numbers = np.zeros(0, np.int64)  # [P]: text states met so far, sorted
        self.plans = np.zeros((0, len(self.skills)))  # [P, S]: their plans; NaN where the planner abstains
        self.shifts = np.zeros(0, np.int64)  # [P]: above 0 in text states where a wrong skill is chosen
        self.texts: set[str] = set()  # of these states; several numbers may stand for one text

    def known(self, view: View, rows: Array) -> Array:
        numbers = self.codec.states(observed(view, rows))
        met = np.isin(numbers, self.numbers)
        best = np.full(len(rows), -1)
        weights = self.weights(view, rows[met])
        best[met] = np.where(np.isnan(weights[:, 0]), -1, weights.argmax(axis=1))
        return best

    def weights(self, view: View, rows: Array) -> Array:
        found = np.full((len(rows), self.actions), np.nan)
        if not isinstance(view.world, HasSkills) or view.columns is None or not len(rows):
            return found  # skills need the state of the world
        where = self.look_up(self.codec.states(observed(view, rows)))
        every = view.world.skill_actions(view.agent_type)[:, view.columns].reshape(view.acting.size, -1, self.actions)
        chosen, shifts = self.plans[where], self.shifts[where]
        if self.planner is None:
            assert isinstance(view.world, HasBestSkills)  # the constructor has checked it
            best = view.world.best_skills(view.agent_type)[:, view.columns].reshape(-1)[rows]
            chosen = np.where(best[:, None] < 0, np.nan, np.arange(len(self.skills)) == best[:, None])
        if self.settings.noise and self.settings.noise_by == "decision":
            wrong = view.random.random(len(rows)) < self.settings.noise
            shifts = np.where(wrong, view.random.integers(1, max(len(self.skills), 2), len(rows)), 0)
        mix_skills(chosen, shifts, every[rows], self.settings.choice == "hard", self.settings.adversarial, found)
        return found

    def look_up(self, numbers: Array) -> Array:
        """Return where the text states `[R]` lie in `self.plans`; the planner is asked about those not met before."""
        where = np.searchsorted(self.numbers, numbers)
        met = where < len(self.numbers)
        met[met] = self.numbers[where[met]] == numbers[met]
        if not met.all():
            self.add(np.unique(numbers[~met]))
            where = np.searchsorted(self.numbers, numbers)
        elif self.planner is not None and np.isnan(self.plans[where, 0]).any():
            self.ask_again(self.planner, np.unique(where[np.isnan(self.plans[where, 0])]))
        return where

    def add(self, new: Array) -> None:
        """Ask the planner about new text states."""
        texts = [self.codec.describe(number) for number in new.tolist()]
        self.texts |= set(texts)
        every = np.concatenate([self.numbers, new])
        order = np.argsort(every)
        blank = np.zeros((len(new), len(self.skills)))  # an oracle's plans come from the world
        rows = blank if self.planner is None else self.planner.of(texts)
        self.numbers = every[order]
        self.plans = np.concatenate([self.plans, rows])[order]
        self.shifts = np.concatenate([self.shifts, [self.shift(text) for text in texts]])[order].astype(np.int64)

    def ask_again(self, planner: Planner, where: Array) -> None:
        """Ask once more where no answer came, since a server may be back; an unparsable answer stays one."""
        texts = [self.codec.describe(number) for number in self.numbers[where].tolist()]
        open_ = planner.may_answer(texts)
        if open_.any():
            self.plans[where[open_]] = planner.of([text for text, asked in zip(texts, open_, strict=True) if asked])

    def shift(self, text: str) -> int:
        """Return by how many places the best skill of a text is missed: 0, or a fixed number in noisy texts."""
        if not self.settings.noise or self.settings.noise_by != "text" or len(self.skills) < 2:
            return 0
        random = seeding.generator(self.seed, "teacher noise", text)
        return int(random.integers(1, len(self.skills))) if random.random() < self.settings.noise else 0

    def table(self) -> PlanTable:
        """Return the plans of the text states met so far, without those that have none."""
        texts = [self.codec.describe(number) for number in self.numbers.tolist()]
        rows = zip(texts, self.plans, strict=True)
        found = {text: row for text, row in rows if not np.isnan(row).any() and row.any()}
        s, about = self.settings, {}
        if isinstance(self.planner, ModelPlanner):
            how = f"frequencies of {s.samples} samples" if s.samples else f"scores, calibration {s.calibration}"
            about = {"model": s.lm.name, "prompt": self.codec.prompt, "probabilities": how}
        return PlanTable(self.skills, found, about)

    def metrics(self) -> Counters:
        """Return the number of distinct text states met, and the usage of the model."""
        more: Counters = {} if self.planner is None else self.planner.metrics()
        return {"distinct": Distinct(frozenset(self.texts)), **more}

    def state(self) -> State:
        return {"numbers": self.numbers.copy(), "planner": {} if self.planner is None else self.planner.state()}

    def load(self, state: State) -> None:
        if self.planner is not None:
            self.planner.load(state["planner"])
        self.numbers, self.plans, self.shifts = self.numbers[:0], self.plans[:0], self.shifts[:0]
        self.texts = set()
        self.add(state["numbers"])


def observed(view: View, rows: Array) -> Array:
    """Return the observations of these decisions, `[R, …]`."""
    whole = len(rows) == view.acting.size

    def pick(array: Array) -> Array:
        flat = array.reshape(view.acting.size, *array.shape[2:])
        return flat if whole else flat[rows]

    return map_tree(pick, view.observation)


@njit(cache=True)
def mix_skills(plan: Array, shifts: Array, actions: Array, hard: bool, adversarial: bool, mixed: Array) -> None:
    """Write the teacher's probabilities of actions `mixed [R, K]`; rows of abstentions are left as they are.

    `plan [R, S]` has the probabilities of skills, `actions [R, S, K]` their policies, rows of zeros where a skill is
    not possible. A shift d > 0 chooses the d-th skill after the best one instead, or the next possible one. The worst
    skill is the least likely one; among equals the one whose actions have least in common with the best one's.
    """
    rows, skills, choices = actions.shape
    possible = np.empty(skills, np.bool_)
    for r in range(rows):
        if np.isnan(plan[r, 0]):
            continue
        best, total, count = -1, 0.0, 0
        for s in range(skills):
            possible[s] = actions[r, s].sum() > 0
            if possible[s]:
                count += 1
                total += plan[r, s]
                if best < 0 or plan[r, s] > plan[r, best]:
                    best = s
        if adversarial or shifts[r] > 0:
            named = plan[r].argmax()  # what the planner says, possible or not
            chosen, least = -1, np.inf
            if adversarial:
                for s in range(skills):
                    if possible[s] and s != named:
                        common = (actions[r, s] * actions[r, named]).sum()
                        if (
                            chosen < 0
                            or plan[r, s] < plan[r, chosen]
                            or (plan[r, s] == plan[r, chosen] and common < least)
                        ):
                            chosen, least = s, common
            else:
                for step in range(skills):
                    s = (named + shifts[r] + step) % skills
                    if possible[s] and s != named and chosen < 0:
                        chosen = s
            if chosen >= 0:
                mixed[r] = actions[r, chosen]
            continue
        if not total > 0:
            continue
        if hard:
            mixed[r] = actions[r, best]
            continue
        mixed[r] = 0
        for s in range(skills):
            if possible[s] and plan[r, s] > 0:
                for k in range(choices):
                    mixed[r, k] += plan[r, s] / total * actions[r, s, k]
