"""Counts that parts restore from checkpoints go on, with whatever number of processes."""

from types import SimpleNamespace

import pytest

from coterie.core.group import Actor, Advisor, Policy
from coterie.core.types import Distinct, Mean
from coterie.training.totals import Totals


class Counts(Advisor):
    """Only its metrics' names matter here."""

    def advise(self, view, policy):
        return view

    def suggest(self, view): ...


class Plays(Policy):
    """Restores nothing of what it counts."""

    def act(self, view): ...


def totals():
    return Totals([Actor(SimpleNamespace(group="team"), Plays(), advisor=Counts())])


SAVED = {"advice/asked": 6.0, "advice/kl": Mean(3.0, 6.0), "advice/met": Distinct(frozenset("ab")), "lm/calls": 5.0}


@pytest.mark.parametrize("restoring", [1, 2, 3])
def test_counts_go_on_from_what_was_saved(restoring):
    """Six decisions were asked about; every process that restores them counts all six."""
    before, after = totals(), totals()
    before.record({"team": SAVED})
    now = {
        "advice/asked": 6.0 * restoring,
        "advice/kl": Mean(3.0 * restoring, 6.0 * restoring),
        "advice/met": Distinct(frozenset("ab")),
        "lm/calls": 0.0,
    }
    after.load(before.state(), {"team": now})
    later = now | {"advice/asked": 6.0 * restoring + 1, "lm/calls": 2.0, "advice/new": 4.0}
    assert after.corrected({"team": later}) == {
        "team": {
            "advice/asked": 7.0,
            "advice/kl": Mean(3.0, 6.0),
            "advice/met": Distinct(frozenset("ab")),
            "lm/calls": 2.0,  # not restored, so it counts from the resumption on
            "advice/new": 4.0,
        }
    }


def test_checkpoints_without_counts_are_read():
    one = totals()
    one.load({}, {"team": SAVED})
    assert one.corrected({"team": dict(SAVED)}) == {"team": SAVED}
