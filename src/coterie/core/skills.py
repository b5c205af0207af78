"""Skills: behaviours with names, each a policy over a world's primitive actions, that a planner chooses among.

A planner reads a *text state*: a short description that leaves out what does not matter for the choice of a skill, so
that a task has few of them and a language model is asked about each one once.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from coterie.core.types import Array, Tree


@runtime_checkable
class HasSkills(Protocol):
    """A world whose agents have skills. All skills can be asked at every state; the world plays none of them itself."""

    def skills(self, agent_type: str) -> tuple[str, ...]:
        """Return the names of the skills of a type's agents, in words that a planner may say."""
        ...

    def skill_actions(self, agent_type: str) -> Array:
        """Return each skill's probabilities over the actions at the present states, `[N, A, S, K]` float32.

        A row of zeros says that the skill has ended or cannot begin there. Rows of agents that do not act are ignored.
        """
        ...


class PlanCodec(Protocol):
    """Describes observations to a planner. It reads observations alone; equal numbers stand for equal texts."""

    prompt: str  # the name of the shipped prompt template and examples that ask for a skill

    def states(self, observation: Tree) -> Array:
        """Return the number of the text state of each row of `[R, …]`, `[R]` int64, not negative."""
        ...

    def describe(self, number: int) -> str:
        """Return the text state of this number."""
        ...

    def samples(self) -> list[str]:
        """Return texts of various states, to calibrate a model with; [] where there are none."""
        ...


@runtime_checkable
class HasPlanCodec(Protocol):
    """A world that describes itself to planners."""

    def plan_codec(self, agent_type: str) -> PlanCodec:
        """Return the plan codec of one agent type."""
        ...


@runtime_checkable
class HasBestSkills(Protocol):
    """A world that knows which skill is best: an oracle for planners, which may use the whole state."""

    def best_skills(self, agent_type: str) -> Array:
        """Return the index of each agent's best skill, `[N, A]` int64; −1 where none is of use."""
        ...
