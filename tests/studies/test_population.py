"""Population-based training: who copies whom, what changes, and the same numbers after a kill or with several jobs."""

import dataclasses
import json

import numpy as np
import pytest

from coterie.config import schema
from coterie.config.schema import ConfigError
from coterie.core.search_space import Real
from coterie.core.types import CoterieError
from coterie.runs.run import Run
from coterie.studies.tune import population as pbt
from coterie.studies.tune.population import Member, Population, tune_population
from coterie.studies.tune.tune import Plan
from helpers.run import GRID, files

WORDS = (
    *(word for word in GRID if "total_steps" not in word and "evaluate_every" not in word),
    "train.total_steps=256",
)
LEARNER = "groups.team.learner."


def plan(path, name="p", members=4, **more):
    fields = {"only": ("*.learning_rate", "*.entropy_coefficient"), "sampler": "pbt", "rounds": 4} | more
    return Plan("gridworld-cooperative", WORDS, members, str(path / name), **fields)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("population")
    return tune_population(plan(path))


def weights(found, number):
    run = Run.open(found.files.trial(number))
    return files(run.checkpoint_path(run.steps()[-1]))[0]


def assert_alike(one, other):
    assert one.population == other.population
    for member in one.population.members:
        assert weights(one, member.number) == weights(other, member.number)


@pytest.mark.slow
def test_a_population_trains_in_rounds_and_shares_steps(whole):
    assert not whole.interrupted
    assert whole.population.round == 3
    assert len(whole.population.history) == 3
    assert [m.parent is not None for m in whole.population.members].count(True) == 1  # a quarter of four
    own = schema.load("gridworld-cooperative", list(WORDS)).groups["team"].learner.settings
    assert whole.population.history[0][0].values[LEARNER + "learning_rate"] == own.learning_rate
    for member in whole.population.members:
        run = Run.open(whole.files.trial(member.number))
        assert run.summary()["env_steps"] == 256  # nobody trains longer
        assert run.config().groups["team"].learner.settings.learning_rate == member.values[LEARNER + "learning_rate"]
    kept = json.loads(whole.files.best.with_suffix(".json").read_text())
    assert kept["score"] == whole.population.best.score
    assert len(kept["schedule"]) == 4


@pytest.mark.slow
@pytest.mark.parametrize("cut", ["training", "copying"])
def test_a_population_cut_off_goes_on_alike(tmp_path, whole, monkeypatch, cut):
    count = 0
    owner, name, most = (pbt, "advance", 6) if cut == "training" else (pbt.shutil, "copytree", 2)
    real = getattr(owner, name)

    def broken(*arguments, **more):
        nonlocal count
        count += 1
        if count == most:
            raise KeyboardInterrupt
        return real(*arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, broken)
        with pytest.raises(KeyboardInterrupt):
            tune_population(plan(tmp_path))
    assert_alike(tune_population(plan(tmp_path)), whole)


@pytest.mark.slow
def test_jobs_do_not_change_a_population(tmp_path, forked):
    one, two = (tune_population(plan(tmp_path, f"{jobs}", rounds=2, jobs=jobs)) for jobs in (1, 2))
    assert len(two.population.history) == 1
    assert any(member.parent is not None for member in two.population.members)
    assert_alike(two, one)


@pytest.mark.slow
def test_members_that_fail_are_replaced(tmp_path, monkeypatch):
    real, said = pbt.loop.train, "group 'team': learning diverged"

    def train(settings, run, state, **more):
        if run.path.name.endswith("1") and state is not None and state["env_steps"] == 64:  # in its second round
            raise CoterieError(said)
        return real(settings, run, state, **more)

    monkeypatch.setattr(pbt.loop, "train", train)
    found = tune_population(plan(tmp_path, rounds=4))
    assert not found.interrupted
    second, third = found.population.history[1:]
    assert [member.failed for member in second] == ["", said, "", ""]
    assert second[1].score is None
    assert third[1].parent in (0, 2, 3)
    assert third[1].failed == ""
    assert third[1].score is not None
    assert json.loads(found.files.best.with_suffix(".json").read_text())["score"] == found.population.best.score


@pytest.mark.slow
def test_a_population_of_which_all_members_fail_is_an_error(tmp_path, monkeypatch):
    def train(*arguments, **more):
        raise CoterieError("learning diverged")

    monkeypatch.setattr(pbt.loop, "train", train)
    with pytest.raises(CoterieError, match="all 4 members failed; the first one: learning diverged"):
        tune_population(plan(tmp_path))


def test_more_than_a_quarter_may_fail():
    members = [Member(n, {"a": 0.5}, None if n < 6 else float(n), failed="diverged" if n < 6 else "") for n in range(8)]
    after = pbt.exploit_and_explore(Population(0, members), {"a": Real(0.1, 1.0)}, 0)
    assert all(member.parent in (6, 7) for member in after.members[:6])
    assert [member.parent for member in after.members[6:]] == [None, None]


def test_the_worst_quarter_copies_the_best_and_changes_it():
    space = {"a": Real(0.1, 1.0), "b": Real(1e-4, 1e-2, log=True)}
    members = [Member(n, {"a": 0.1 * (n + 1), "b": 1e-4 * (n + 1)}, float(n)) for n in range(8)]
    after = pbt.exploit_and_explore(Population(2, members), space, 0)
    assert after.round == 3
    assert after.copying
    assert [m.parent in (6, 7) for m in after.members[:2]] == [True, True]
    assert [m.parent for m in after.members[2:]] == [None] * 6
    assert [m.values for m in after.members[2:]] == [m.values for m in members[2:]]
    for member in after.members[:2]:
        taken = members[member.parent].values
        ratios = {path: member.values[path] / taken[path] for path in space}
        assert all(
            np.isclose(ratio, [0.8, 1.25]).any() or member.values[p] == space[p].high for p, ratio in ratios.items()
        )
    assert after == pbt.exploit_and_explore(Population(2, members), space, 0)
    assert after.members != pbt.exploit_and_explore(Population(2, members), space, 1).members


def test_first_values_are_drawn_from_their_ranges():
    assert pbt.draw(Real(1e-4, 1e-2, log=True), 0.5) == pytest.approx(1e-3)
    assert pbt.draw(Real(0.0, 4.0), 0.25) == 1.0


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"members": 1}, "--trials: a population needs at least 2 members, got 1"),
        ({"rounds": 99}, "--rounds: expected 2 to 8, the iterations of this experiment, got 99"),
        ({"seeds": 2}, "--seeds: members of a population have a seed each"),
        ({"jobs": 0}, "--jobs: expected at least 1 process, got 0"),
        ({"only": ("*.hidden",)}, "--sampler pbt: no real number of a learner is searched"),
    ],
)
def test_impossible_populations_are_refused(tmp_path, fields, said):
    overrides = tuple(word for word in WORDS if "hidden" not in word)
    with pytest.raises(CoterieError, match=said):
        tune_population(dataclasses.replace(plan(tmp_path, **fields), overrides=overrides))
    assert not (tmp_path / "p.json").exists()


@pytest.mark.slow
def test_another_population_in_the_file_is_refused(tmp_path, coterie_):
    (tmp_path / "p.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"p.json' is not a population; choose another file with --study"):
        tune_population(plan(tmp_path))
    code, _, err = coterie_("tune", "gridworld-cooperative", "--sampler", "tep")
    assert code == 2
    assert "--sampler: expected 'tpe' or 'pbt', got 'tep'" in err


@pytest.mark.parametrize("learned", [True, False])
def test_what_is_read_at_the_start_alone_is_not_searched(learned):
    """A learned temperature goes on from the checkpoint; its start would change without any effect."""
    words = [f"groups.agent.learner.temperature.learned={str(learned).lower()}"]
    base = schema.load("pendulum-sac", words)
    space = pbt.changeable(base, Plan("pendulum-sac", tuple(words)))
    assert ("groups.agent.learner.temperature.start" in space) == (not learned)
    assert "groups.agent.learner.learning_rate" in space
