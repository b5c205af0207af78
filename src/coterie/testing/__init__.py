"""Conformance tests for worlds, policies and learners, for anyone's own classes."""

from coterie.testing.learners import check_learner, check_policy
from coterie.testing.worlds import ContractError, check_world

__all__ = ["ContractError", "check_learner", "check_policy", "check_world"]
