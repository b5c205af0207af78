"""Search spaces: ranges that make sense, found wherever settings declare them."""

import dataclasses
import json
import math
import re
import typing
from pathlib import Path

import pytest

from coterie.algorithms.ppo.ppo import PPOSettings
from coterie.algorithms.replay import ReplaySettings
from coterie.config import registry, schema
from coterie.core import lookup
from coterie.core.search_space import Choice, Real, Whole, range_to_dict, written
from coterie.core.settings import Settings, declared
from helpers.tune import MistakenSettings, SkilledSettings, TalentSettings

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Real(1.0, 1.0), "low below high"),
        (lambda: Real(0.0, math.inf), "finite"),
        (lambda: Real(math.nan, 1.0), "finite"),
        (lambda: Real(0.0, 1.0, log=True), "above 0"),
        (lambda: Whole(0, 4, log=True), "above 0"),
        (lambda: Whole(1, 2.5), "cannot hold 2.5"),
        (lambda: Choice((1,)), "at least two"),
        (lambda: Choice(((8, 8), [8, 8])), "at least two"),
        (lambda: Choice((1, object())), "cannot be written"),
    ],
)
def test_a_range_without_sense_is_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_ranges_widen_to_hold_the_present_value():
    assert Real(0.1, 1.0, log=True).including(0.5) == Real(0.1, 1.0, log=True)
    assert Real(0.1, 1.0, log=True).including(2) == Real(0.1, 2.0, log=True)
    assert Real(0.1, 1.0, log=True).including(0.0) == Real(0.0, 1.0)  # no logarithm there
    assert Whole(2, 8, log=True).including(1) == Whole(1, 8, log=True)
    assert Whole(2, 8, log=True).including(0) == Whole(0, 8)
    assert Choice(((8,), (16,))).including([8]).values == ((8,), (16,))
    assert Choice(((8,), (16,))).including((4,)).values == ((8,), (16,), (4,))
    assert Choice((0, 1)).including(True).values == (0, 1, True)  # not the number


@pytest.mark.parametrize("value", [None, "wide", True])
def test_a_range_of_numbers_holds_numbers(value):
    for known in (Real(0.0, 1.0), Whole(0, 1)):
        with pytest.raises(ValueError, match="cannot hold"):
            known.including(value)


def test_nested_settings_declare_their_own():
    found = {path: (known, value) for path, known, value in declared(SkilledSettings(TalentSettings(3.0)), "here")}
    assert found == {
        "here.mood": (Choice((None, "merry", "grim")), None),
        "here.talent.skill": (Real(0.0, 3.0), 3.0),
    }


def test_a_declared_setting_must_exist_and_fit():
    @dataclasses.dataclass(frozen=True)
    class Typo(Settings):
        gamma: float = 0.9
        SEARCH: typing.ClassVar = {"gama": Real(0.0, 1.0)}

    with pytest.raises(ValueError, match=r"x\.gama: Typo\.SEARCH names it, but it is no setting"):
        list(declared(Typo(), "x"))
    with pytest.raises(ValueError, match=r"x\.skill: .* cannot hold None; fix it by an override, or declare a Choice"):
        list(declared(MistakenSettings(), "x"))


def test_a_declaration_outside_of_settings_is_refused():
    @dataclasses.dataclass(frozen=True)
    class Loose:
        gamma: float = 0.9
        SEARCH: typing.ClassVar = {"gamma": Real(0.0, 1.0)}

    @dataclasses.dataclass(frozen=True)
    class Outer(Settings):
        inner: Loose = dataclasses.field(default_factory=Loose)

    with pytest.raises(ValueError, match=r"^x\.inner: Loose declares SEARCH and must inherit from coterie\.Settings"):
        list(declared(Outer(), "x"))


def test_choices_that_the_settings_refuse_are_left_out():
    def sizes(settings):
        return [known.values for path, known, _ in declared(settings, "x") if path == "x.size"]

    assert sizes(ReplaySettings()) == [(10_000, 50_000, 100_000)]
    assert sizes(ReplaySettings(learning_starts=20_000)) == [(50_000, 100_000)]
    assert sizes(ReplaySettings(learning_starts=60_000)) == []  # only its own is left: nothing to choose


def test_the_space_is_no_setting():
    with pytest.raises(schema.ConfigError, match=r"learner\.SEARCH: no such setting"):
        schema.settings_from(PPOSettings, {"SEARCH": {}}, "learner")
    assert "SEARCH" not in dataclasses.asdict(PPOSettings())
    assert "SEARCH" not in schema.to_yaml(schema.load("cartpole-ppo"))


def test_ranges_as_json():
    for known in (Real(0.0, 1.0), Whole(1, 4, log=True), Choice((None, (8, 8), "relu"))):
        assert json.loads(json.dumps(range_to_dict(known))) == range_to_dict(known)
    assert range_to_dict(Whole(1, 4)) != range_to_dict(Real(1, 4))


def test_the_documented_declaration_works():
    (snippet,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "guides" / "tuning.md").read_text(), re.S)
    made: dict = {}
    exec(snippet, made)
    found = {path: value for path, _, value in declared(made["MySettings"](), "x")}
    assert found == {"x.learning_rate": 1e-3, "x.layers": 2, "x.loss": "huber"}


# What comes with Coterie ----------------------------------------------------------------------------------


def spaces_of(kind):
    """(settings class, name, range) of a class and of those nested in it."""
    for name, known in getattr(kind, "SEARCH", {}).items():
        yield kind, name, known
    for hint in typing.get_type_hints(kind).values():
        for option in (hint, *typing.get_args(hint)):
            if dataclasses.is_dataclass(option):
                yield from spaces_of(option)


TABLES = (registry.WORLDS, registry.POLICIES, registry.LEARNERS, registry.PREFERENCES)
EVERY = sorted(
    {(kind, name, known) for t in TABLES for n in t for kind, name, known in spaces_of(lookup.settings_type(t, n))},
    key=lambda row: (row[0].__name__, row[1]),
)


def test_the_usual_suspects_are_searched():
    rows = {(kind.__name__, name) for kind, name, _ in EVERY}
    assert {("PPOSettings", "learning_rate"), ("NetworkSettings", "hidden")} <= rows


@pytest.mark.parametrize(("kind", "name", "known"), EVERY, ids=lambda v: getattr(v, "__name__", str(v))[:40])
def test_every_end_of_every_range_is_a_valid_setting(kind, name, known):
    ends = known.values if isinstance(known, Choice) else (known.low, known.high)
    for value in ends:
        made = schema.settings_from(kind, {name: json.loads(written(value))}, "here")
        assert written(getattr(made, name)) == written(value)
    assert known.including(getattr(kind(), name)) == known  # the default is among what is tried
