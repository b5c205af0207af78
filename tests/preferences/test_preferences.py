"""What a group makes of its rewards, and which learners can follow."""

import numpy as np
import pytest

from coterie.config import registry, schema
from coterie.config.schema import ConfigError
from coterie.core import lookup
from coterie.core.group import Risk
from coterie.preferences import prospect
from coterie.preferences.risk_kernels import judge_rows
from coterie.preferences.standard import (
    CPT,
    CPTSettings,
    CVaR,
    CVaRSettings,
    Individual,
    IndividualSettings,
    MeanVariance,
    MeanVarianceSettings,
    Team,
    TeamSettings,
)
from coterie.training import build
from helpers.small_worlds import experience

RISKS = {
    "cpt": CPT(CPTSettings(0.7, 0.9, 3.0, 0.5, 0.8, 0.3)),
    "cpt, as it comes": CPT(CPTSettings()),
    "cvar": CVaR(CVaRSettings(level=0.3)),
    "cvar, all": CVaR(CVaRSettings(level=1.0)),
    "cvar, hardly any": CVaR(CVaRSettings(level=1e-3)),
    "mean_variance": MeanVariance(MeanVarianceSettings(aversion=0.7)),
}


def test_unchanged_rewards_are_the_worlds_own():
    own = experience([[1, 2], [3, -4]])
    assert np.array_equal(Individual(IndividualSettings()).rewards(own), own.reward)


def test_a_team_shares_the_mean_tick_by_tick():
    own = experience([[1, 2, 6], [3, -3, 0]])
    shared = Team(TeamSettings()).rewards(own)
    assert shared[:, 0].tolist() == [[3, 3, 3], [0, 0, 0]]
    assert shared.dtype == np.float32
    assert own.reward[:, 0].tolist() == [[1, 2, 6], [3, -3, 0]]  # what is stored stays
    shared += 1  # may be worked on


# Tastes for risk ----------------------------------------------------------------------------------------


def test_ways():
    for name in registry.PREFERENCES:
        made, settings = lookup.look_up(registry.PREFERENCES, name), lookup.settings_type(registry.PREFERENCES, name)
        if name in ("cpt", "cvar", "mean_variance"):
            assert made(settings()).way == "interim"
            assert isinstance(made(settings()), Risk)
            assert made(settings(way="episodic")).way == "episodic"
        else:
            assert made.way == "step"
            assert not hasattr(made, "influence")


@pytest.mark.parametrize("risk", RISKS.values(), ids=RISKS)
def test_rewards_are_not_bent(risk):
    own = experience([[1, 2], [3, -4]])
    assert np.array_equal(risk.rewards(own), own.reward)


@pytest.mark.parametrize("count", [1, 7, 32])
@pytest.mark.parametrize("risk", RISKS.values(), ids=RISKS)
def test_critics_judge_as_samples_are_judged(risk, count):
    rows = np.random.default_rng(0).normal(size=(5, count))
    values, _, _ = judge_rows(risk.judge(), np.full((5, count), 1 / count), rows)
    np.testing.assert_allclose(values, risk.value(rows), atol=1e-8)


def test_values_are_those_of_prospect():
    rows = np.random.default_rng(1).normal(size=(3, 9))
    taste = prospect.Prospect(0.7, 0.9, 3.0, 0.5, 0.8, 0.3)
    for risk, value, influence in (
        (
            RISKS["cpt"],
            prospect.value_of_samples(taste, rows),
            prospect.influence_of_samples(taste, rows),
        ),
        (RISKS["cvar"], prospect.cvar_of_samples(rows, 0.3), prospect.cvar_influence_of_samples(rows, 0.3)),
        (
            RISKS["mean_variance"],
            prospect.mean_variance_of_samples(rows, 0.7),
            prospect.mean_variance_influence_of_samples(rows, 0.7),
        ),
    ):
        assert np.array_equal(risk.value(rows), value)
        assert np.array_equal(risk.influence(rows), influence)


@pytest.mark.parametrize(
    ("made", "agent_type", "setting", "value"),
    [
        *((CPT, CPTSettings, name, 0.5) for name in ("alpha", "beta", "loss_aversion", "gamma_gains", "gamma_losses")),
        (CPT, CPTSettings, "reference", 0.2),
        (CVaR, CVaRSettings, "level", 0.6),
        (MeanVariance, MeanVarianceSettings, "aversion", 0.5),
    ],
)
def test_every_setting_matters_to_all_three(made, agent_type, setting, value):
    """To values, to what samples move and to compiled critics."""
    usual, other = made(agent_type()), made(agent_type(**{setting: value}))
    rows = np.random.default_rng(2).normal(size=(1, 16))
    for ask in (
        lambda risk: risk.value(rows),
        lambda risk: risk.influence(rows),
        lambda risk: judge_rows(risk.judge(), np.full((1, 16), 1 / 16), rows)[0],
    ):
        assert not np.allclose(ask(usual), ask(other))


# Refusals -----------------------------------------------------------------------------------------------


def build_table(tmp_path, preference, learner="ppo", gamma="gamma: 1.0"):
    policy = {"ppo": "network", "dqn": "q_network", "maddpg": "deterministic"}[learner]
    text = f"""
world: {{name: gridworld, num_agents: 2}}
groups: {{x: {{agents: "*", policy: {policy}, learner: {{name: {learner}, {gamma}}}, preference: {{{preference}}}}}}}
"""
    (tmp_path / "a.yaml").write_text(text)
    loaded = schema.load(str(tmp_path / "a.yaml"))
    return build.build_groups(loaded, build.build_world(loaded.world, 2))[0]


@pytest.mark.parametrize(
    ("preference", "message"),
    [
        (
            "name: cpt, gamma_gains: 0.2",
            r"groups\.x\.preference: gamma_gains must be at least 0\.28, below .* not monotone; got 0\.2",
        ),
        ("name: cpt, gamma_losses: 0.2", r"groups\.x\.preference: gamma_losses must be at least 0\.28, .* got 0\.2"),
        ("name: cpt, alpha: 0", r"groups\.x\.preference: alpha must be above 0, got 0"),
        (
            "name: cpt, gama_gains: 0.6",
            r"groups\.x\.preference\.gama_gains: no such setting; did you mean 'gamma_gains'",
        ),
        (
            "name: cpt, way: exante",
            r"groups\.x\.preference\.way: expected one of 'interim' or 'episodic', got 'exante'",
        ),
        ("name: cpt, reference: .inf", r"groups\.x\.preference\.reference: expected finite numbers"),
        ("name: cvar, level: 0", r"groups\.x\.preference: level must lie in \(0, 1\], got 0"),
        ("name: cvar, level: 1.5", r"groups\.x\.preference: level must lie in \(0, 1\], got 1\.5"),
        ("name: mean_variance, aversion: -1", r"groups\.x\.preference: aversion must be at least 0, got -1"),
        ("name: individual, way: episodic", r"groups\.x\.preference\.way: no such setting"),
    ],
)
def test_settings_without_sense_are_refused(tmp_path, preference, message):
    with pytest.raises(ConfigError, match=message):
        build_table(tmp_path, preference)


def test_aversion_must_be_a_number():
    with pytest.raises(ValueError, match="aversion must be finite"):
        MeanVarianceSettings(aversion=float("inf"))


@pytest.mark.parametrize(
    ("learner", "preference", "message"),
    [
        (
            *("ppo", "name: cpt"),
            "groups.x.preference.way: 'cpt' judged interim needs a learner whose critic knows distributions; 'ppo' "
            "serves step and episodic; set groups.x.preference.way=episodic or groups.x.learner.name=maddpg",
        ),
        (
            *("dqn", "name: cvar"),
            "groups.x.preference.way: 'cvar' judged interim needs a learner whose critic knows distributions; 'dqn' "
            "serves step; set groups.x.learner.name=maddpg",
        ),
        (
            *("dqn", "name: cpt, way: episodic"),
            "groups.x.preference.way: 'cpt' judged episodic needs a learner that judges whole episodes; 'dqn' serves "
            "step; set groups.x.learner.name=ppo",
        ),
        (
            *("maddpg", "name: mean_variance, way: episodic"),
            "groups.x.preference.way: 'mean_variance' judged episodic needs a learner that judges whole episodes; "
            "'maddpg' serves step and interim; set groups.x.preference.way=interim or groups.x.learner.name=ppo",
        ),
    ],
)
def test_learners_that_cannot_follow_are_refused_with_a_cure(tmp_path, learner, preference, message):
    with pytest.raises(ConfigError) as caught:
        build_table(tmp_path, preference, learner)
    assert str(caught.value) == message


def test_whole_episodes_are_not_discounted(tmp_path):
    for gamma, said in (("gamma: 0.99", "0.99"), ("", "0.99"), ("gamma: 0", "0")):
        with pytest.raises(ConfigError) as caught:
            build_table(tmp_path, "name: cpt, way: episodic", gamma=gamma)
        assert str(caught.value) == (
            f"groups.x.learner: gamma must be 1 where whole episodes are judged, got {said}; "
            "set groups.x.learner.gamma=1"
        )


@pytest.mark.parametrize("name", ["cpt", "cvar", "mean_variance"])
def test_what_fits_is_built(tmp_path, name):
    group = build_table(tmp_path, f"name: {name}, way: episodic")
    assert group.learner.preference.way == "episodic"
    assert build_table(tmp_path, "name: team", gamma="gamma: 0.9").learner.outcomes is None


class Boastful(Individual):
    """One's own preference that says more than it can."""

    way = "episodic"


class Strange(Individual):
    """And one that says what nobody understands."""

    way = "sometimes"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Boastful", "'test_preferences:Boastful' judged episodic must have judge, value and influence"),
        ("Strange", "'test_preferences:Strange' has the way 'sometimes'; there are step, interim, episodic"),
    ],
)
def test_ones_own_must_keep_what_they_say(tmp_path, name, message):
    with pytest.raises(ConfigError, match=f"groups.x.preference: {message}"):
        build_table(tmp_path, f"name: test_preferences:{name}")
