"""Skills: behaviours with names, each a policy over a world's primitive actions, that a planner chooses among."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from coterie.core.types import Array


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
