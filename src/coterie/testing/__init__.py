"""Conformance tests for worlds, policies and learners: run them on your own classes.

Each raises `ContractError` with the location of the first violation. They do not check that a learner learns
anything useful.
"""

from coterie.testing.comparison import ContractError
from coterie.testing.learners import check_learner
from coterie.testing.policies import check_policy
from coterie.testing.worlds import check_world

__all__ = ["ContractError", "check_learner", "check_policy", "check_world"]
