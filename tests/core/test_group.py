"""Base classes of a group's parts: their defaults, and what an actor makes of its parts."""

from types import SimpleNamespace

import pytest

import coterie
from coterie.core import group, settings, world
from coterie.core.group import Actor


class Still(coterie.Policy):
    def act(self, view): ...


class Halving(coterie.Advisor):
    def advise(self, view, policy):
        return view

    def suggest(self, view): ...

    def weigh(self, own):
        return own / 2

    def findings(self):
        return {"seen": 3}

    def write_findings(self, folder, group, elsewhere):
        (folder / group).write_text(str([self.findings(), *elsewhere]))


class Strict(coterie.ActionShield):
    choices = 4

    def allowed(self, view): ...


def actor(**parts):
    return Actor(SimpleNamespace(group="team"), Still(), **parts)


def test_the_base_classes_are_members_of_the_package():
    assert (coterie.World, coterie.Settings) == (world.World, settings.Settings)
    for name in ("ActionShield", "Advisor", "Learner", "Policy", "Preference", "Risk"):
        assert getattr(coterie, name) is getattr(group, name)
        assert name in coterie.__all__


def test_parts_have_nothing_to_save_or_to_log_unless_they_say_so():
    for part in (Still(), Halving(), Strict()):
        assert (part.state(), part.metrics()) == ({}, {})
        part.load({})


def test_a_policy_takes_over_the_whole_state_unless_it_chooses():
    class Loads(Still):
        def load(self, state):
            self.loaded = state

    one = Loads()
    one.start_from({"weights": 1})
    assert one.loaded == {"weights": 1}


@pytest.mark.parametrize(("parts", "wanted"), [({}, 8), ({"advisor": Halving()}, 4), ({"shield": Strict()}, 8)])
def test_an_advisor_weighs_the_experience_that_its_group_learns_from(parts, wanted):
    assert actor(**parts).for_learning(8) == wanted


def test_findings_of_all_processes_are_written_by_the_part_that_has_them(tmp_path):
    one = actor(advisor=Halving(), shield=Strict())
    assert one.findings() == [None, {"seen": 3}, None]
    one.write_findings(tmp_path, [[None, {"seen": 5}, None]])
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("team", "[{'seen': 3}, {'seen': 5}]")]


@pytest.mark.parametrize(("parts", "actions"), [({}, None), ({"shield": Strict()}, 4)])
def test_rollouts_have_room_for_the_masks_of_a_shield(parts, actions):
    shown = actor(**parts).room((2, 3, 1), None)
    assert shown.advice is None
    assert (shown.mask is None) if actions is None else shown.mask.shape == (2, 3, 1, actions)
