"""Preferences: rewards, risk measures, and which learners serve their scopes."""

import numpy as np
import pytest

from coterie.config import registry, schema
from coterie.config.schema import ConfigError
from coterie.core import lookup
from coterie.core.group import Risk, RiskParameters
from coterie.preferences import prospect
from coterie.preferences.risk_kernels import make_slopes, risk_value
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


def critic_values(risk, rows):
    """Values `[M]` of rows `[M, K]` of equally likely outcomes, as critics compute them."""
    even, slopes = np.full(rows.shape[1], 1 / rows.shape[1]), make_slopes(rows.shape[1])
    return np.array([risk_value(risk.risk_parameters(), even, row, slopes) for row in rows])


def test_individual_rewards_are_the_worlds_own():
    own = experience([[1, 2], [3, -4]])
    assert np.array_equal(Individual(IndividualSettings()).rewards(own), own.reward)


def test_a_team_shares_the_mean_step_by_step():
    own = experience([[1, 2, 6], [3, -3, 0]])
    shared = Team(TeamSettings()).rewards(own)
    assert shared[:, 0].tolist() == [[3, 3, 3], [0, 0, 0]]
    assert shared.dtype == np.float32
    assert own.reward[:, 0].tolist() == [[1, 2, 6], [3, -3, 0]]  # what is stored stays


# Risk measures -----------------------------------------------------------------------------------------


def test_scopes():
    for name in registry.PREFERENCES:
        made, settings = lookup.look_up(registry.PREFERENCES, name), lookup.settings_type(registry.PREFERENCES, name)
        if name in ("cpt", "cvar", "mean_variance"):
            assert made(settings()).scope == "interim"
            assert isinstance(made(settings()), Risk)
            assert made(settings(scope="episodic")).scope == "episodic"
        else:
            assert made.scope == "step"
            assert not hasattr(made, "influence")


@pytest.mark.parametrize("risk", RISKS.values(), ids=RISKS)
def test_risk_measures_leave_rewards_unchanged(risk):
    own = experience([[1, 2], [3, -4]])
    assert np.array_equal(risk.rewards(own), own.reward)


@pytest.mark.parametrize("count", [1, 7, 32])
@pytest.mark.parametrize("risk", RISKS.values(), ids=RISKS)
def test_critics_judge_as_samples_are_judged(risk, count):
    rows = np.random.default_rng(0).normal(size=(5, count))
    np.testing.assert_allclose(critic_values(risk, rows), risk.value(rows), atol=1e-8)


def test_values_and_influences_are_those_of_prospect():
    rows = np.random.default_rng(1).normal(size=(3, 9))
    for risk, parameters in (
        (RISKS["cpt"], prospect.Prospect(0.7, 0.9, 3.0, 0.5, 0.8, 0.3).risk_parameters()),
        (RISKS["cvar"], RiskParameters(level=0.3)),
        (RISKS["mean_variance"], RiskParameters(aversion=0.7)),
    ):
        assert risk.risk_parameters() == parameters
        assert np.array_equal(risk.value(rows), prospect.value_of_samples(parameters, rows))
        assert np.array_equal(risk.influence(rows), prospect.influence_of_samples(parameters, rows))


@pytest.mark.parametrize(
    ("made", "settings", "setting", "value"),
    [
        *((CPT, CPTSettings, name, 0.5) for name in ("alpha", "beta", "loss_aversion", "gamma_gains", "gamma_losses")),
        (CPT, CPTSettings, "reference", 0.2),
        (CVaR, CVaRSettings, "level", 0.6),
        (MeanVariance, MeanVarianceSettings, "aversion", 0.5),
    ],
)
def test_every_setting_matters_to_all_three(made, settings, setting, value):
    """To values, to what samples move and to compiled critics."""
    usual, other = made(settings()), made(settings(**{setting: value}))
    rows = np.random.default_rng(2).normal(size=(1, 16))
    for ask in (
        lambda risk: risk.value(rows),
        lambda risk: risk.influence(rows),
        lambda risk: critic_values(risk, rows),
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
            "name: cpt, scope: exante",
            r"groups\.x\.preference\.scope: expected one of 'interim' or 'episodic', got 'exante'",
        ),
        ("name: cpt, reference: .inf", r"groups\.x\.preference\.reference: expected finite numbers"),
        ("name: cvar, level: 0", r"groups\.x\.preference: level must lie in \(0, 1\], got 0"),
        ("name: cvar, level: 1.5", r"groups\.x\.preference: level must lie in \(0, 1\], got 1\.5"),
        ("name: mean_variance, aversion: -1", r"groups\.x\.preference: aversion must be at least 0, got -1"),
        ("name: individual, scope: episodic", r"groups\.x\.preference\.scope: no such setting"),
    ],
)
def test_settings_without_sense_are_refused(tmp_path, preference, message):
    with pytest.raises(ConfigError, match=message):
        build_table(tmp_path, preference)


def test_aversion_must_be_a_number():
    with pytest.raises(ValueError, match="aversion must be finite"):
        MeanVarianceSettings(aversion=float("inf"))


@pytest.mark.parametrize(
    ("learner", "preference", "cures"),
    [
        ("ppo", "name: cpt", ["groups.x.preference.scope=episodic", "groups.x.learner.name=maddpg"]),
        ("dqn", "name: cvar", ["groups.x.learner.name=maddpg"]),
        ("dqn", "name: cpt, scope: episodic", ["groups.x.learner.name=ppo"]),
        (
            *("maddpg", "name: mean_variance, scope: episodic"),
            ["groups.x.preference.scope=interim", "groups.x.learner.name=ppo"],
        ),
    ],
)
def test_learners_that_do_not_serve_a_scope_are_refused_with_a_cure(tmp_path, learner, preference, cures):
    with pytest.raises(ConfigError, match=rf"groups\.x\.preference\.scope: .*'{learner}'") as caught:
        build_table(tmp_path, preference, learner)
    assert str(caught.value).endswith(" or ".join(cures))


def test_whole_episodes_are_not_discounted(tmp_path):
    for gamma, got in (("gamma: 0.99", "0.99"), ("", "0.99"), ("gamma: 0", "0")):
        with pytest.raises(ConfigError, match=rf"groups\.x\.learner: gamma.* {got};.*groups\.x\.learner\.gamma=1"):
            build_table(tmp_path, "name: cpt, scope: episodic", gamma=gamma)


@pytest.mark.parametrize("name", ["cpt", "cvar", "mean_variance"])
def test_what_fits_is_built(tmp_path, name):
    group = build_table(tmp_path, f"name: {name}, scope: episodic")
    assert group.learner.preference.scope == "episodic"
    assert build_table(tmp_path, "name: team", gamma="gamma: 0.9").learner.outcomes is None


class Boastful(Individual):
    """A preference that lacks what its scope needs."""

    scope = "episodic"


class Strange(Individual):
    """A preference with an unknown scope."""

    scope = "sometimes"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Boastful", "'test_preferences:Boastful'.*episodic.*must inherit from coterie.Risk"),
        ("Strange", "'test_preferences:Strange'.*'sometimes'"),
    ],
)
def test_user_preferences_are_checked(tmp_path, name, message):
    with pytest.raises(ConfigError, match=f"groups.x.preference: {message}"):
        build_table(tmp_path, f"name: test_preferences:{name}")
