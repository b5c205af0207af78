"""A policy that plans with a language model: it chooses among the world's skills, or among actions, in words.

With `plan: step` the model is asked at every decision, each distinct description once. With `plan: whole` it writes a
plan of several words at an episode's start and again when the plan is used up; each next word is a scored choice, so
that no answer has to be parsed. A skill of a plan is played until it ends. Where the model gives no answer, or none of
its words is possible, chance decides: the decision is counted, and marked so that it is never a label.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from coterie.core.group import GroupSpec, Stateless
from coterie.core.sampling import draw_index
from coterie.core.skills import HasPlanCodec, HasSkills, PlanCodec
from coterie.core.text import TextCodec, find_text_codec
from coterie.core.types import UNLABELLED, Array, Counters, Decision, Discrete, Text, Tree, View, map_tree
from coterie.core.validation import at_least
from coterie.lm import prompts
from coterie.lm.ask import calibration as calibrate
from coterie.lm.ask.choice import Calibration, ChoiceScorer
from coterie.lm.ask.interface import Normalize
from coterie.lm.ask.loading import LMSettings

END = "done"  # the word that ends a plan
SAID = " => "  # between a description and the words of a plan so far, in questions


@dataclass(frozen=True)
class PlannerSettings:
    """Settings of the policy 'planner'."""

    lm: LMSettings = field(default_factory=LMSettings)  # the language model; a bare name is enough
    plan: Literal["step", "whole"] = "step"  # ask at every decision, or for a whole plan at once
    max_plan: int = 10  # most words of a whole plan
    codec: str = "auto"  # describes observations; auto: the world's plan codec or text codec; or package.module:Name
    template: str = "auto"  # prompt template: a file or a built-in name; auto: the codec's; NAME-plan for whole plans
    examples: str = "auto"  # few-shot examples: a file or a built-in name; auto: the template's; none: zero-shot
    normalize: Normalize = "sum"  # combines the log-probabilities of a word's tokens
    calibration: Calibration = "batch"  # removes the model's prior preference for some words; not for whole plans
    temperature: float = 0.0  # of choices that are drawn; 0, or greedy play: the best one

    def __post_init__(self) -> None:
        at_least("max_plan", self.max_plan, 1)
        at_least("temperature", self.temperature, 0)


@dataclass(frozen=True)
class PlanTemplate(prompts.PromptTemplate):
    """A prompt that ends with the words of a plan so far."""

    def prompt(self, state: str) -> str:
        seen, _, said = state.partition(SAID)
        return super().prompt(seen) + said


class PlannerPolicy(Stateless):
    """Acts by a language model's plans."""

    def __init__(self, settings: PlannerSettings, group_spec: GroupSpec) -> None:
        s, world = settings, group_spec.world
        space = group_spec.spaces.action
        if isinstance(space, Text):
            raise ValueError(
                "this world's actions are texts, not choices: a language model writes them as policy 'writer'; "
                f"with coterie demonstrate: --policy writer:lm={s.lm.name} in place of --lm"
            )
        if not isinstance(space, Discrete):
            raise ValueError(
                f"policy 'planner' needs a discrete action space, but these agents act in {space}; "
                "use policy 'network' with learner 'ppo'"
            )
        self.settings, self.group_spec, self.actions = s, group_spec, space.n
        self.choices: tuple[str, ...]
        self.plan_codec: PlanCodec | None = None
        self.text_codec: TextCodec | None = None
        self.of_choice: Array | None = None  # [C]: the action of each choice; None: choices are skills
        skills = skills_of(group_spec)
        if s.codec == "auto" and skills is not None and isinstance(world, HasPlanCodec):
            self.plan_codec, self.choices = world.plan_codec(group_spec.agent_type), skills
            prompt, samples = self.plan_codec.prompt, self.plan_codec.samples()
        else:
            self.text_codec = find_text_codec(s.codec, group_spec)
            self.choices = tuple(self.text_codec.choices)
            prompt, samples = self.text_codec.prompt, self.text_codec.samples()
            if self.choices != skills:
                self.of_choice = self.text_codec.actions(np.arange(len(self.choices)))
        if s.plan == "step":
            template = prompts.read(s.template, s.examples, prompt, None)
            calibrated = samples if s.calibration == "batch" else ()
            self.scorer = ChoiceScorer(s.lm, template, self.choices, calibrated, s.calibration, s.normalize)
        else:
            read = prompts.read(s.template, s.examples, f"{prompt}-plan", None)
            words = (*self.choices, END)
            self.scorer = ChoiceScorer(s.lm, PlanTemplate(read.head, read.question), words, (), "none", s.normalize)
        self.memory_size = 1 + s.max_plan if s.plan == "whole" else 0  # position in the plan, and its words, from 1
        self.decisions = self.abstentions = 0

    def act(self, view: View) -> Decision:
        shape = view.acting.shape
        possible = self.possible(view)  # [N·A, C, K]
        allowed: Array = np.any(possible, axis=2)
        chosen = np.full(view.acting.size, -1)
        rows = np.flatnonzero(view.acting)
        memory = None
        if self.settings.plan == "step":
            chosen[rows] = self.choose(self.describe(view, rows), allowed[rows], view)
        else:
            assert view.memory is not None
            memory = view.memory.reshape(view.acting.size, -1).copy()
            chosen[rows] = self.follow(memory, rows, allowed, view)
            memory = memory.reshape(*shape, -1)
        unknown = (chosen < 0) & view.acting.reshape(-1)
        weights = possible[np.arange(len(chosen)), np.maximum(chosen, 0)]  # [N·A, K]
        legal = np.ones((len(chosen), self.actions), bool) if view.mask is None else view.mask.reshape(len(chosen), -1)
        weights = np.where(unknown[:, None], legal, weights)
        self.decisions += len(rows)
        self.abstentions += int(unknown[rows].sum())
        drawn = draw_index(weights, view.random)
        action = np.where(unknown, drawn, weights.argmax(axis=1)) if view.greedy else drawn
        return Decision(action.reshape(shape), memory=memory, trace={UNLABELLED: unknown.reshape(shape)})

    def possible(self, view: View) -> Array:
        """Each choice's probabilities of actions now, `[N·A, C, K]`; zeros where it is not possible."""
        count = view.acting.size
        if self.of_choice is None:
            assert isinstance(view.world, HasSkills)
            assert view.columns is not None
            found = view.world.skill_actions(view.agent_type)[:, view.columns].reshape(count, -1, self.actions)
        else:
            one_hot = np.eye(self.actions, dtype=np.float32)[self.of_choice]
            found = np.repeat(one_hot[None], count, axis=0)
        return found if view.mask is None else found * view.mask.reshape(count, 1, -1)

    def describe(self, view: View, rows: Array) -> list[str]:
        """The description of each row."""
        if not len(rows):
            return []
        seen: Tree = map_tree(lambda a: a.reshape(view.acting.size, *a.shape[2:])[rows], view.observation)
        if self.plan_codec is not None:
            return [self.plan_codec.describe(number) for number in self.plan_codec.states(seen).tolist()]
        assert self.text_codec is not None
        return self.text_codec.describe(seen)

    def choose(self, texts: list[str], allowed: Array, view: View) -> Array:
        """The choice for each text `[R]` among those allowed `[R, C]`; −1: the model abstains, or none is allowed."""
        distinct = {text: number for number, text in enumerate(dict.fromkeys(texts))}
        if not distinct:
            return np.zeros(0, np.int64)
        scores = self.scorer.log_probs(list(distinct))[[distinct[text] for text in texts]]
        unknown = np.isnan(scores).any(axis=1) | ~allowed.any(axis=1)
        scores = np.where(allowed & ~unknown[:, None], scores, -np.inf)
        scores[unknown] = 0.0
        best = scores.argmax(axis=1)
        if self.settings.temperature and not view.greedy:
            best = draw_index(calibrate.probabilities(scores, self.settings.temperature), view.random)
        return np.where(unknown, -1, best)

    # Whole plans --------------------------------------------------------------------------------------------

    def follow(self, memory: Array, rows: Array, possible: Array, view: View) -> Array:
        """The present word of each row's plan `[R]`, −1 for none; plans that are used up are written anew."""
        chosen = np.array([self.advance(memory[row], possible[row]) for row in rows])
        again = np.flatnonzero(chosen < 0)
        texts = self.describe(view, rows[again])
        for i, plan in zip(again, self.write_plans(texts, possible[rows[again]], view), strict=True):
            row = rows[i]
            memory[row] = 0
            memory[row, 0] = 1
            memory[row, 1 : 1 + len(plan)] = np.array(plan) + 1
            chosen[i] = self.advance(memory[row], possible[row])
        return chosen

    def advance(self, plan: Array, possible: Array) -> int:
        """Move to the first word of the plan, from the present one on, that is possible; −1: there is none."""
        while 0 < plan[0] < len(plan) and plan[int(plan[0])] > 0:
            word = int(plan[int(plan[0])]) - 1
            if possible[word]:
                if self.of_choice is not None:
                    plan[0] += 1  # an action is done once, a skill until it ends
                return word
            plan[0] += 1
        return -1

    def write_plans(self, texts: list[str], possible: Array, view: View) -> list[list[int]]:
        """A plan for each text: words one after the other, until the word that ends it; the first is possible now."""
        plans: list[list[int]] = [[] for _ in texts]
        going = list(range(len(texts)))
        for length in range(self.settings.max_plan):
            questions, allowed = [], []
            for i in going:
                said = "".join(f" {self.choices[word]}," for word in plans[i])
                questions.append(f"{texts[i]}{SAID}{said}")
                legal = np.append(np.ones(len(self.choices), bool) if length else possible[i], length > 0)
                if plans[i] and self.of_choice is None:
                    legal[plans[i][-1]] = False  # a skill that has ended is not begun at once
                allowed.append(legal)
            if not going:
                break
            words = self.choose(questions, np.array(allowed), view)
            for i, word in zip(list(going), words.tolist(), strict=True):
                if 0 <= word < len(self.choices):
                    plans[i].append(word)
                else:
                    going.remove(i)
        return plans

    # Metrics ------------------------------------------------------------------------------------------------

    def metrics(self) -> Counters:
        """Counts of decisions and abstentions, and the model's usage."""
        counted = {"decisions": float(self.decisions), "abstentions": float(self.abstentions)}
        return counted | {"distinct": float(len(self.scorer.known))} | self.scorer.metrics()


def skills_of(group_spec: GroupSpec) -> tuple[str, ...] | None:
    """The skills of the group's agents; None where the world has none, or none in its present settings."""
    if not isinstance(group_spec.world, HasSkills):
        return None
    try:
        return group_spec.world.skills(group_spec.agent_type)
    except ValueError:
        return None
