"""Constraints in words: what is vetoed, charged and counted, and how a model is asked."""

import json
from dataclasses import replace

import numpy as np
import pytest

import coterie
from coterie.advice.advisor import PolicyAdvisor, PolicyAdvisorSettings
from coterie.advice.constraints import Case, ChannelJudge, ConstraintSettings, DirectJudge, LanguageShield
from coterie.config.schema import ConfigError
from coterie.core.group import Actor
from coterie.lm.ask.budget import BudgetSettings
from coterie.lm.ask.loading import LMSettings
from coterie.policies.scripted import RandomPolicy, RandomSettings
from coterie.preferences.standard import CPT, CPTSettings, Individual, IndividualSettings, Team, TeamSettings
from coterie.studies.exploit.deviations import Frozen, FrozenSettings
from coterie.studies.match.match import Player
from coterie.training.runner import Runner
from coterie.worlds.adapters.minigrid import AgentView, GridObject, action_effect
from coterie.worlds.mpe.world import Spread, SpreadSettings
from helpers import run as run_cases
from helpers.constraint import ASKED, make_shield, seen
from helpers.language import race
from helpers.lm import embedded_file
from helpers.run import written
from helpers.small_worlds import network, spec_in

UP, DOWN, LEFT, RIGHT, STAY = range(5)


@pytest.fixture(autouse=True)
def _nothing_asked():
    ASKED.clear()


def played(shield, world, steps=40):
    """The experience of a policy that draws among the allowed actions."""
    actor = Actor(spec_in(world), RandomPolicy(RandomSettings(), spec_in(world)), shield=shield)
    return Runner(world, [actor], 0).play(steps, 0, 0.5).experiences["team"]


# Veto -----------------------------------------------------------------------------------------------------


def test_a_veto_prevents_and_is_recorded():
    world = race(8, num_agents=2)
    own = played(make_shield(world), world)
    assert not (own.action == LEFT).any()
    assert set(np.unique(own.action)) == {UP, DOWN, RIGHT, STAY}
    assert not own.mask[..., LEFT].any()
    assert own.mask[..., [UP, DOWN, RIGHT, STAY]].all()


@pytest.mark.parametrize("made", [network, lambda spec: RandomPolicy(RandomSettings(), spec)])
def test_a_policy_that_advises_keeps_its_own_rules(made):
    world = race(8, num_agents=2)
    rules = "never move left", "never move up", "never move down"
    actor = Actor(spec_in(world), made(spec_in(world)), shield=make_shield(world, *rules))
    advisor = PolicyAdvisor(PolicyAdvisorSettings(), spec_in(world), actor)
    advice = advisor.suggest(seen(world))
    assert advice.given.all()
    assert not advice.probabilities[..., [UP, DOWN, LEFT]].any()


@pytest.mark.parametrize("action", ["penalty", "count"])
def test_other_ways_leave_every_action(action):
    world = race(8, num_agents=2)
    own = played(make_shield(world, action=action), world)
    assert own.mask.all()
    assert (own.action == LEFT).any()


def test_illegal_actions_stay_illegal():
    world = race()
    kept = make_shield(world).allowed(seen(world, mask=[True, False, True, True, True]))
    assert (kept == [True, False, False, True, True]).all()


def test_where_everything_is_forbidden_all_that_is_legal_is_allowed_and_counted():
    world = race()
    shield = make_shield(world, "never do anything")
    view = seen(world, mask=[True, True, False, False, False])
    kept = shield.allowed(view)
    assert (kept == view.mask).all()
    shield.observe(replace(view, mask=kept), np.zeros(view.acting.shape, np.int64))
    metrics = shield.metrics()
    assert metrics["constraints/overruled"] == metrics["constraints/decisions"] == view.acting.size
    assert metrics["constraints/violations"] == view.acting.size


@pytest.mark.parametrize("learns", [False, True])
def test_only_what_the_world_allowed_counts_as_vetoed(learns):
    """Up and left are against the rules; up is against the world's, too."""
    world = race()
    shield = make_shield(world, "never move left or up")
    view = replace(seen(world, mask=[False, True, True, True, True]), progress=0.5)
    if learns:
        shield.charge(Individual(IndividualSettings()))
    for rollout in range(2):
        for _ in range(3):
            shield.allowed(replace(view, progress=rollout / 2))
    assert shield.metrics()["constraints/vetoes"] == (1 if learns else 2) * 3 * view.acting.sum()


def test_several_rules_hold_together_and_full_stops_do_not_matter():
    world = race()
    kept = make_shield(world, "never move left.", "never move up").allowed(seen(world))
    assert (kept == [False, True, False, True, True]).all()


def test_the_rest_of_the_table_is_not_asked_for():
    world = race()
    shield = make_shield(world)
    view = seen(world)
    idle = replace(view, acting=np.zeros_like(view.acting))
    assert shield.allowed(idle).all()
    assert not ASKED


# How the model is asked -----------------------------------------------------------------------------------


@pytest.mark.parametrize("ask", ["channel", "direct"])
def test_nothing_is_asked_twice(ask):
    world = race(30)
    shield = make_shield(world, ask=ask, model=ask.upper(), calibration="none")
    shield.allowed(seen(world, 1))
    count = len(ASKED)
    shield.allowed(seen(world, 1))
    shield.verdicts.known.clear()  # the moments are new again, their words are not
    shield.allowed(seen(world, 1))
    assert len(ASKED) == count
    assert shield.metrics()["constraints/lm/calls"] == len(set(ASKED))


def test_a_direct_question_holds_rule_state_and_move():
    shield = make_shield(ask="direct", model="DIRECT", calibration="none")
    assert not shield.allowed(seen(race(num_agents=2)))[..., LEFT].any()
    state, move = ASKED[0]
    assert state.startswith("The target is")
    assert move in ("up", "down", "left", "right")


def test_the_threshold_decides_who_is_sure_enough():
    sure = dict(ask="direct", model="DIRECT", calibration="none")  # noqa: C408  # settings
    world = race()
    assert make_shield(world, "perhaps not left", **sure).allowed(seen(world))[..., LEFT].all()  # σ(1) = 0.73
    assert not make_shield(world, "perhaps not left", threshold=0.7, **sure).allowed(seen(world))[..., LEFT].any()


def test_templates_and_examples_are_files_of_ones_own(tmp_path):
    template = written(tmp_path / "template.txt", "Beware.\n{examples}\n{state}\nForbidden:")
    examples = written(tmp_path / "examples.txt", "Rule: never sing. => sing\n")
    made = ChannelJudge(LMSettings("helpers.constraint:CHANNEL"), str(template), str(examples))
    assert made.breaks([Case("never sing", "", "sing"), Case("never dance", "", "sing")]).shape == (2,)
    assert made.others == ("Rule: never sing.",)
    assert made.template.head.startswith("Beware.\nRule: never sing.\nForbidden: sing")
    shield = make_shield(template=str(template), examples=str(examples))
    assert shield.judge.template == made.template
    direct = make_shield(ask="direct", template=str(template), examples="none").judge.scorer.template
    assert direct.prompt("So?") == "Beware.\nSo?\nForbidden:"


def test_a_channel_compares_with_the_mean_of_other_rules(tmp_path):
    examples = written(tmp_path / "e.txt", "Rule: never sing. => sing\nRule: never hum. => hum\n")
    made = ChannelJudge(LMSettings("helpers.constraint:CHANNEL"), "auto", str(examples))
    sing, left = made.breaks([Case("do not sing", "", "sing"), Case("never move left", "", "left")])
    other = np.log((np.exp(-1) + np.exp(-9)) / 2)  # one of two rules of the examples forbids it, too
    assert sing == pytest.approx(1 / (1 + np.exp(other + 1)))
    assert left == pytest.approx(1 / (1 + np.exp(-8)))
    itself = made.breaks([Case("never sing", "", "sing")])  # is not held against its own example
    assert itself == pytest.approx(1 / (1 + np.exp(-8)))


def test_a_calibrated_question_takes_out_what_the_model_likes():
    def keen(prompt, choice):
        return -1.0 if choice == " yes" else -4.0

    case = [Case("never move", "Here.", "left")]
    for calibration, chance in (("none", 1 / (1 + np.exp(-3))), ("content_free", 0.5)):
        made = DirectJudge(LMSettings("helpers.constraint:DIRECT"), "auto", "auto", calibration)
        made.scorer.lm = coterie.lm.ask.loading.wrap(coterie.lm.ask.scripted.Scripted(None, keen), LMSettings())
        assert made.breaks(case) == pytest.approx(chance)
    assert make_shield(ask="direct", calibration="none").judge.scorer.calibration == "none"


def test_a_spent_budget_forbids_nothing_and_is_counted():
    world = race(20)
    shield = make_shield(world, around={"budget": BudgetSettings(calls=0)})
    view = seen(world)
    assert shield.allowed(view).all()
    shield.observe(view, np.full(view.acting.shape, LEFT))
    metrics = shield.metrics()
    assert metrics["constraints/violations"] == 0
    assert metrics["constraints/abstentions"] == 4 * view.acting.size
    assert not ASKED


def test_a_codec_of_ones_own_is_asked():
    world = race()
    shield = make_shield(world, "never choose 1", codec="helpers.language:Numbers")
    assert (shield.allowed(seen(world)) == [True, False, True, True, True]).all()


# At the learner's door ------------------------------------------------------------------------------------


def test_a_penalty_is_taken_off_where_a_rule_was_broken_and_nowhere_else():
    world = race(8, num_agents=2)
    shield = make_shield(world, action="penalty", penalty=0.5)
    shield.charge(Individual(IndividualSettings()))
    own = played(shield, world)
    stored = own.reward.copy()
    for inner in (Individual(IndividualSettings()), Team(TeamSettings())):
        paid = shield.charge(inner).rewards(own)
        assert paid == pytest.approx(inner.rewards(own) - 0.5 * (own.active & (own.action == LEFT)))
    assert np.array_equal(own.reward, stored)
    metrics = shield.metrics()
    assert metrics["constraints/violations"] == (own.action == LEFT).sum()
    assert metrics["constraints/decisions"] == own.active.sum()


@pytest.mark.parametrize("action", ["veto", "count"])
def test_other_ways_charge_nothing(action):
    world = race(8, num_agents=2)
    shield = make_shield(world, action=action)
    charged = shield.charge(Individual(IndividualSettings()))
    own = played(shield, world)
    assert np.array_equal(charged.rewards(own), own.reward)
    metrics = shield.metrics()
    assert metrics["constraints/violations"] == (own.action == LEFT).sum()
    assert metrics.get("constraints/vetoes") == (None if action == "count" else own.active.sum())


def test_a_risk_preference_takes_no_penalty_but_a_veto():
    preference = CPT(CPTSettings())
    assert make_shield().charge(preference) is preference
    with pytest.raises(ValueError, match="action=veto"):
        make_shield(action="penalty").charge(preference)


def test_what_the_world_tells_of_breaches_is_held_against_the_model():
    world = race(8, num_agents=2)
    shield = make_shield(world, action="count", ground_truth="fatal")
    own = played(shield, world)
    left = own.action == LEFT
    deadly = replace(own, terminated=left, reward=np.where(left, 0, own.reward))
    shield.charge(Individual(IndividualSettings())).rewards(deadly)
    metrics = shield.metrics()
    assert metrics["constraints/fatal"] == metrics["constraints/foreseen"] == left.sum()
    assert metrics["constraints/agreement"] == 1.0
    wrong = replace(own, terminated=own.action == UP, reward=np.zeros_like(own.reward))
    shield.charge(Individual(IndividualSettings())).rewards(wrong)
    assert shield.metrics()["constraints/foreseen"] == 0
    assert shield.metrics()["constraints/agreement"] == pytest.approx(1 - ((own.action == UP) | left).mean(), abs=1e-12)
    without = make_shield(world, action="count")
    without.charge(Individual(IndividualSettings())).rewards(deadly)
    assert "constraints/fatal" not in without.metrics()


# Whole runs -----------------------------------------------------------------------------------------------


def words(action, *more):
    lead = "groups.team.constraints"
    return [
        *(f"{lead}.rules=['never move left']", f"{lead}.lm=helpers.constraint:CHANNEL", f"{lead}.action={action}"),
        *more,
    ]


def judged(run):
    """The share of decisions that broke a rule, iteration by iteration."""
    lead = "team/constraints"
    return [record[f"{lead}/violations"] / record[f"{lead}/decisions"] for record in run.metrics()[1:]]


@pytest.mark.slow
def test_counting_changes_nothing_and_a_penalty_changes_what_is_learned(tmp_path):
    longer = [
        "train.total_steps=16384",
        "train.num_envs=16",
        "train.rollout_steps=64",
        "groups.team.learner.learning_rate=5e-3",
    ]
    plain = run_cases.train(tmp_path / "plain", *longer)
    counted = run_cases.train(tmp_path / "counted", *longer, *words("count"))
    charged = run_cases.train(tmp_path / "charged", *longer, *words("penalty", "groups.team.constraints.penalty=5"))

    def bare(run):
        return [{k: v for k, v in r.items() if "constraints" not in k} for r in run_cases.numbers(run)]

    assert bare(counted) == bare(plain)
    assert 0.1 < judged(counted)[0] < 0.35
    assert judged(charged)[0] == judged(counted)[0]
    assert judged(charged)[-1] < 0.03
    assert judged(counted)[-1] > 0.1


@pytest.mark.slow
def test_a_vetoed_run_resumes_alike_and_never_breaks_the_rule(tmp_path):
    steady = "groups.team.learner.learning_rate_schedule=constant"  # a run's length is then all that is changed
    whole = run_cases.train(tmp_path / "whole", *words("veto", steady))
    assert max(judged(whole)) == 0
    parts = run_cases.train(tmp_path / "parts", *words("veto", steady, "train.total_steps=128"))
    coterie.resume(parts.path, ["train.total_steps=256"], quiet=True)

    def bare(run):
        return [{k: v for k, v in r.items() if "/lm/" not in k} for r in run_cases.numbers(run)]

    assert bare(parts) == bare(whole)


@pytest.mark.slow
def test_a_veto_holds_wherever_the_run_plays(tmp_path, coterie_):
    """Only to stay is left: who asks, plays, meets or responds finds that and nothing else."""
    still = words("veto")[1:] + ["groups.team.constraints.rules=['never move up, down, left or right']"]
    run = run_cases.train(tmp_path / "run", *still, "train.total_steps=32")
    loaded = coterie.load(run.path)
    assert (loaded.act("agent_0", np.random.default_rng(0).random((50, *seen_shape(loaded)))) == STAY).all()
    where = loaded.groups[0].actor.group_spec
    view = seen(where.world)
    assert (Frozen(FrozenSettings(str(run.path), "last", "team"), where).act(view).action == STAY).all()
    player = Player("it", loaded).actor("agent_0", where.world, 0)
    assert not player.shield.allowed(view)[..., :STAY].any()
    code, out, _ = coterie_("eval", run.path, "--episodes", 4, "--json")
    assert code == 0
    report = json.loads(out)["reports"]["team"]
    assert report["constraints/violations"] == 0
    assert report["constraints/vetoes"] == 4 * report["constraints/decisions"]


@pytest.mark.slow
@pytest.mark.parametrize("action", ["veto", "count"])
def test_workers_count_what_one_process_counts(tmp_path, forked, action):
    """Vetoes are counted where actions are taken, whatever the process."""
    shards = words(action, "train.shards=2", "train.total_steps=64")
    alone = run_cases.train(tmp_path / "alone", *shards)
    spread = run_cases.train(tmp_path / "spread", *shards, "train.workers=2")
    assert counted(alone)[-1]["decisions"] == 64
    assert counted(alone)[-1].get("vetoes", 0) == (64 if action == "veto" else 0)
    assert counted(spread) == counted(alone)


RISKY = ["groups.team.preference={name: cvar, scope: episodic}", "groups.team.learner.gamma=1"]
TAUGHT = ["groups.team.learner={name: dagger, updates: 2}", "groups.team.advisor={name: expert, use: {mode: label}}"]


@pytest.mark.slow
@pytest.mark.parametrize("learner", [RISKY, TAUGHT], ids=["risk", "dagger"])
def test_breaches_are_counted_for_learners_that_ask_for_no_rewards(tmp_path, learner):
    run = run_cases.train(tmp_path / "run", *words("count", "train.total_steps=64", *learner))
    assert all(record["decisions"] == 64 and record["violations"] > 0 for record in counted(run))


def counted(run):
    """The counts of decisions, iteration by iteration."""
    lead = "team/constraints/"
    return [
        {key.removeprefix(lead): value for key, value in record.items() if key.startswith(lead) and "/lm/" not in key}
        for record in run.metrics()[1:]
    ]


def seen_shape(loaded):
    return loaded.groups[0].actor.group_spec.spaces.observation.shape


# Refusals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"rules": ()}, "at least one text"),
        ({"rules": ("never sing", " ")}, "no empty one"),
        ({"penalty": -1.0}, "penalty must be at least 0"),
        ({"penalty": float("inf")}, "finite"),
        ({"threshold": 1.5}, "threshold must lie in"),
    ],
)
def test_impossible_settings_are_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        ConstraintSettings(**{"rules": ("never sing",)} | settings)


def test_ways_of_asking_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="content_free or none"):
        make_shield(ask="direct", calibration="batch")
    with pytest.raises(ValueError, match="ask=direct"):
        make_shield(examples="none")
    assert make_shield(ask="direct", examples="none").judge.scorer.template.head.count("Rule:") == 0


def test_actions_that_are_no_choices_are_refused(tmp_path):
    world = Spread(SpreadSettings(continuous_actions=True), 1)
    with pytest.raises(ValueError, match="need discrete actions"):
        LanguageShield(ConstraintSettings(("never sing",)), spec_in(world))
    with pytest.raises(ConfigError, match=r"groups.team.constraints.*: rules must hold"):
        run_cases.train(tmp_path / "run", "groups.team.constraints.action=veto")
    preference = [
        "groups.team.preference.name=cvar",
        "groups.team.preference.scope=episodic",
        "groups.team.learner.gamma=1",
    ]
    with pytest.raises(ConfigError, match=r"groups.team.constraints: action=penalty"):
        run_cases.train(tmp_path / "run", *words("penalty"), *preference)


# MiniGrid and the model that comes along ------------------------------------------------------------------

KEY, OTHER = GridObject("key", "red"), GridObject("key", "blue")


@pytest.mark.parametrize(
    ("front", "carried", "move", "effect"),
    [
        (None, None, "left", "turn left"),
        (None, None, "forward", "go forward on free floor"),
        (GridObject("lava"), None, "forward", "go forward into lava"),
        (GridObject("lava"), None, "right", "turn right"),
        (GridObject("wall"), None, "forward", "bump into a wall"),
        (GridObject("goal"), None, "forward", "go forward to the goal"),
        (GridObject("door", "red", "open"), None, "forward", "go forward through the red door"),
        (GridObject("door", "red", "closed"), None, "forward", "bump into the red door"),
        (KEY, None, "pick up", "pick up the red key"),
        (KEY, OTHER, "pick up", "do nothing"),
        (None, KEY, "drop", "drop the red key"),
        (KEY, KEY, "drop", "do nothing"),
        (GridObject("door", "red", "locked"), KEY, "open", "open the red door"),
        (GridObject("door", "red", "locked"), OTHER, "open", "do nothing"),
        (GridObject("door", "red", "open"), None, "open", "close the red door"),
    ],
)
def test_the_effects_of_moves_are_described(front, carried, move, effect):
    assert action_effect(AgentView(carried, front, ()), move) == effect


@pytest.mark.lm
def test_the_embedded_model_knows_what_a_rule_forbids():
    embedded_file("folder")
    made = ChannelJudge(LMSettings("embedded"), "auto", "auto")
    effects = [
        action_effect(AgentView(None, front, ()), "forward") for front in (None, GridObject("wall"), GridObject("lava"))
    ]
    effects.append("turn left")
    for rule, broken in (("do not walk into lava", 2), ("never bump into a wall", 1)):
        chance = made.breaks([Case(rule, "", effect) for effect in effects])
        assert np.flatnonzero(chance >= 0.9).tolist() == [broken]
