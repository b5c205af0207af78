"""From a config to objects: who sits where, and what fits together."""

import re
from typing import Protocol, runtime_checkable

import numpy as np
import pytest

import coterie
from coterie.config import schema
from coterie.config.schema import ConfigError
from coterie.core.group import Stateless
from coterie.core.types import CoterieError, Decision
from coterie.lm.ask.interface import Missing
from coterie.policies.network import NetworkPolicy
from coterie.policies.scripted import ExpertPolicy, RandomPolicy, RandomSettings
from coterie.runs.run import Run
from coterie.testing import ContractError, check_policy, check_world
from coterie.training import build, language_models, start, workers
from coterie.training.players import seated_policy
from coterie.training.runner import Runner
from coterie.worlds.gridworld.world import Gridworld
from helpers import run as run_cases
from helpers.run import train, written

PLAIN = "world: {name: gridworld, grid_size: 4, num_agents: 3, num_targets: 1}\ngroups:\n"


def table(tmp_path, groups, *words, world=PLAIN):
    loaded = schema.load(str(written(tmp_path / "a.yaml", world + groups)), list(words))
    return loaded, build.build_groups(loaded, build.build_world(loaded.world, 2))


def refusal(tmp_path, groups, *words, world=PLAIN):
    with pytest.raises(ConfigError) as caught:
        table(tmp_path, groups, *words, world=world)
    return str(caught.value)


@pytest.fixture(scope="module")
def earlier(tmp_path_factory):
    """A run with one group, and one with two."""
    base = tmp_path_factory.mktemp("earlier")
    one = train(base / "one")
    text = """
extends: gridworld-cooperative
groups:
  team: {agents: agent_0, policy: {hidden: [5]}}
  other: {agents: agent_1, policy: {hidden: [6]}, learner: {name: ppo}}
"""
    return one, train(base / "two", *run_cases.GRID, experiment=written(base / "a.yaml", text))


# Who sits where -----------------------------------------------------------------------------------------


def test_patterns_names_and_order(tmp_path):
    _, groups = table(
        tmp_path, "  a: {agents: [agent_2, agent_0], policy: random}\n  b: {agents: '*_1', policy: random}"
    )
    assert [g.actor.group_spec.agents for g in groups] == [("agent_0", "agent_2"), ("agent_1",)]
    assert [g.actor.group_spec.columns.tolist() for g in groups] == [[0, 2], [1]]


def test_a_world_without_state_size_is_refused(tmp_path, monkeypatch):
    monkeypatch.delattr(Gridworld, "state_size")
    with pytest.raises(CoterieError, match=r"Gridworld.*state_size"):
        table(tmp_path, "  team: {policy: random}")


MODELS = [
    ("policy: {name: language, lm: no such model}", "policy.lm"),
    ("policy: {text: {lm: no such model}}, learner: {name: ppo}", "policy.text.lm"),
    ("advisor: {lm: no such model}, learner: {name: ppo}", "advisor.lm"),
    ("constraints: {rules: [never sing], lm: no such model}, learner: {name: ppo}", "constraints.lm"),
    ("preference: {name: potential_shaping, lm: no such model}, learner: {name: ppo}", "preference.lm"),
]


@pytest.mark.parametrize(("parts", "path"), MODELS)
def test_a_model_that_no_name_leads_to_is_refused_before_a_run_is_made(tmp_path, parts, path):
    text = f"{PLAIN}  team: {{{parts}}}"
    with pytest.raises(ConfigError, match=rf"^groups\.team\.{path}: no model 'no such model'"):
        coterie.train(str(written(tmp_path / "a.yaml", text)), out=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_world_without_a_method_is_refused(tmp_path, monkeypatch):
    for name in ("reset", "step", "save", "load"):
        with monkeypatch.context() as patch:
            patch.setattr(run_cases.Odd, name, None)
            if name == "reset":
                patch.setattr(run_cases.Odd, "__init__", lambda self, settings, num_envs: None)
            with pytest.raises(ConfigError, match=f"world: 'Odd' has no method '{name}'"):
                build.build_world(schema.Part("helpers.run:Odd", run_cases.OddSettings()), 1)


@pytest.mark.parametrize(
    ("experiment", "word", "where"),
    [
        ("gridworld-cooperative", "world.grid_size=1000000", "world: a grid of grid_size=1000000 in 1 environments"),
        ("auction-neutral", "world.num_bidders=999999999999", "world: num_bidders=999999999999 in 1 environments"),
        ("spread-ippo", "world.num_agents=99999999", "world: num_agents=99999999 in 1 environments needs about"),
        ("tag-ppo", "world.num_good=99999999", "num_good=99999999 and num_obstacles=2 in 1 environments needs about"),
        ("auction-neutral", "world.bid_levels=1000000000000", "groups.bidders.policy: a layer of"),
        ("spread-qmix", "groups.team.learner.replay.size=999999999999", "groups.team.learner: Unable to allocate"),
        ("plan-path-shared", "groups.team.policy.tiny.layers=1000000000000", "groups.team.policy: a transformer of"),
        ("plan-path-shared", "groups.team.policy.tiny.context=1000000000000", "groups.team.policy: a transformer of"),
    ],
)
def test_what_does_not_fit_into_memory_is_refused(experiment, word, where):
    with pytest.raises(ConfigError) as caught:
        start.check(experiment, [word])
    assert where in str(caught.value)
    assert re.search(r"[\d,.]+ (GB|TiB)", str(caught.value))


def test_a_built_in_model_is_not_suggested_in_its_own_place(tmp_path, monkeypatch):
    def lack(settings):
        raise Missing("'transformers' is not installed: pip install 'coterie[lm]'")

    monkeypatch.setattr(language_models, "check_model", lack)
    said = refusal(tmp_path, "  team: {policy: {name: language, lm: embedded}}")
    assert said == "groups.team.policy.lm: 'transformers' is not installed: pip install 'coterie[lm]'"


def test_a_model_that_is_nearly_named_is_suggested(tmp_path):
    said = refusal(tmp_path, "  team: {policy: {name: language, lm: embeded~}}")
    assert said.endswith("; did you mean 'embedded'?")


def test_who_only_plays_needs_no_model_that_advised_it(tmp_path):
    text = PLAIN + "  team: {advisor: {lm: no such model}, learner: {name: ppo}}"
    loaded = schema.load(str(written(tmp_path / "a.yaml", text)))
    assert build.build_groups(loaded, build.build_world(loaded.world, 2), learning=False)


def test_every_agent_must_be_in_a_group(tmp_path):
    said = refusal(tmp_path, "  a: {agents: agent_1, policy: random}")
    assert said == "groups: no group contains agent_0, agent_2; add them to the agents of a group"


def test_an_agent_cannot_be_in_two_groups(tmp_path):
    said = refusal(tmp_path, "  a: {agents: '*', policy: random}\n  b: {agents: agent_1, policy: random}")
    assert said == "groups.b.agents: 'agent_1' is already in group 'a'"


def test_a_pattern_must_match_somebody(tmp_path):
    said = refusal(tmp_path, "  a: {agents: [bob, alice_*], policy: random}")
    assert said == "groups.a.agents: no agent is called bob or alice_*; there are agent_0, agent_1, agent_2"


# What fits together -------------------------------------------------------------------------------------


class HasWeather(Protocol):
    """A capability that no shipped world has."""

    def weather(self): ...


class Sailor(RandomPolicy):
    """A policy that asks its world for a capability of its own."""

    needs = runtime_checkable(HasWeather)


class FewAtOnce(RandomPolicy):
    """Acts in at most 16 environments at once."""

    max_envs = 16


def test_a_policy_plays_a_training_that_is_not_too_wide_for_it(tmp_path):
    groups = f"  a: {{policy: '{__name__}:FewAtOnce'}}"
    table(tmp_path, groups, "train.num_envs=32", "train.shards=2", "train.evaluate_episodes=16")
    for wide in (["train.num_envs=17"], ["train.num_envs=16", "train.evaluate_episodes=17"]):
        said = refusal(tmp_path, groups, "train.evaluate_episodes=16", *wide)
        assert said.startswith("groups.a.policy: ")
        assert [number for number in (" 17 ", " 16;") if number not in said] == []


class Careless(RandomPolicy):
    """Returns actions in place of a decision."""

    def act(self, view):
        return super().act(view).action


class Short(RandomPolicy):
    """Leaves out the axis of the agents."""

    def act(self, view):
        return Decision(super().act(view).action[:, 0])


class NoMetrics(Stateless):
    """A learner that returns nothing."""

    def __init__(self, settings: RandomSettings, policy, group_spec, preference) -> None:
        self.policy = policy

    def learn(self, own, joint, random):
        return None


@pytest.mark.parametrize(
    ("policy", "said"),
    [("Careless", "Careless.act must return a Decision, got ndarray"), ("Short", "[2 environments, 3 agents, …], got")],
)
def test_a_decision_of_the_wrong_form_names_the_policy(tmp_path, policy, said):
    _, (group,) = table(tmp_path, f"  a: {{policy: '{__name__}:{policy}'}}")
    runner = Runner(group.actor.group_spec.world, [group.actor], 0)
    with pytest.raises(CoterieError) as refused:
        runner.play(1, 1)
    assert str(refused.value).startswith("groups.a.policy: ")
    assert said in str(refused.value)
    with pytest.raises(ContractError, match="act: expected"):
        check_policy(lambda spec: globals()[policy](RandomSettings(), spec), group.actor.group_spec)


@pytest.mark.slow
def test_a_learner_without_metrics_is_named(tmp_path):
    groups = f"  a: {{policy: random, learner: '{__name__}:NoMetrics'}}"
    file = written(tmp_path / "a.yaml", PLAIN + groups)
    with pytest.raises(CoterieError, match=r"^groups\.a\.learner: NoMetrics\.learn must return a dict .*NoneType"):
        coterie.train(str(file), run_cases.MOMENT, tmp_path / "run", quiet=True)


class Forgetful(RandomPolicy):
    """One whose capability cannot be checked."""

    needs = type("Unchecked", (Protocol,), {})


@pytest.mark.parametrize(
    ("policy", "words"), [("Sailor", ("HasWeather", "'Gridworld'")), ("Forgetful", ("groups.a.policy", "Unchecked"))]
)
def test_a_capability_of_ones_own_is_named(tmp_path, policy, words):
    said = refusal(tmp_path, f"  a: {{policy: '{__name__}:{policy}'}}")
    assert [word for word in words if word not in said] == []


def test_the_expert_policy_needs_a_world_with_a_scripted_expert(tmp_path):
    world = "world: {name: 'helpers.run:Odd'}\ngroups:\n"
    said = refusal(tmp_path, "  a: {policy: expert}", world=world)
    assert "group 'a': policy 'expert'" in said
    assert "HasExpert" in said
    assert "'Odd'" in said


class Silent(Stateless):
    """An advisor that has nothing to say."""

    def __init__(self, settings: RandomSettings, group_spec): ...


def test_an_advisor_without_the_methods_of_one_is_refused(tmp_path):
    said = refusal(tmp_path, f"  a: {{advisor: {{name: '{__name__}:Silent'}}, learner: {{name: ppo}}}}")
    assert said.startswith("groups.a.advisor: ")
    assert "suggest" in said


def test_ppo_improves_networks_only(tmp_path):
    said = refusal(tmp_path, "  a: {policy: random, learner: ppo}")
    assert said.startswith("group 'a': learner 'ppo' improves a NetworkPolicy, not this group's RandomPolicy; ")
    assert [cure for cure in ("groups.a.policy.name=network", "groups.a.learner=none") if cure not in said] == []


def test_a_network_that_does_not_fit_the_world_is_refused_with_its_path(tmp_path):
    assert refusal(tmp_path, "  a: {policy: {encoder: cnn}}").startswith("groups.a.policy: ")


def test_scripted_frozen_and_learning_groups_at_one_table(tmp_path):
    groups = """
  a: {agents: agent_0, policy: {hidden: [5]}, learner: {name: ppo, learning_rate: 1e-3}}
  b: {agents: agent_1, policy: expert}
  c: {agents: agent_2, policy: {hidden: [6]}}
"""
    loaded, (a, b, c) = table(tmp_path, groups, "train.num_envs=2", "train.rollout_steps=3")
    assert a.learner.settings.learning_rate == 1e-3
    assert isinstance(b.policy, ExpertPolicy)
    assert b.learner is None
    assert isinstance(c.policy, NetworkPolicy)
    assert c.learner is None
    rollout = workers.LocalWorkers(loaded, [a, b, c]).play(1)
    assert {name: e.action.shape for name, e in rollout.experiences.items()} == dict.fromkeys("abc", (3, 2, 1))


def test_two_groups_keep_their_own_learners_settings(tmp_path):
    groups = """
  a: {agents: agent_0, learner: {name: ppo, learning_rate: 1e-3, gamma: 0.9}, preference: team}
  b: {agents: "agent_[12]", learner: {name: ppo, epochs: 7}, parameters: individual}
"""
    _, (a, b) = table(tmp_path, groups)
    assert (a.learner.settings.learning_rate, a.learner.settings.gamma, a.learner.settings.epochs) == (1e-3, 0.9, 4)
    assert (b.learner.settings.learning_rate, b.learner.settings.gamma, b.learner.settings.epochs) == (2.5e-4, 0.99, 7)
    assert type(a.learner.preference).__name__ == "Team"
    assert type(b.learner.preference).__name__ == "Individual"
    assert (a.actor.group_spec.parameter_sets, b.actor.group_spec.parameter_sets) == (1, 2)


def test_individual_parameters_differ_from_the_start(tmp_path):
    _, (group,) = table(tmp_path, "  a: {parameters: individual, learner: ppo}")
    for array in group.policy.state()["net"].values():
        assert len(array) == 3
    weights = max(group.policy.state()["net"].values(), key=np.size)
    assert not np.array_equal(weights[0], weights[1])


def test_parts_of_ones_own(tmp_path):
    groups = """
  a: {agents: agent_0, policy: {name: "helpers.run:Stubborn", action: 1},
      learner: {name: "helpers.run:Counting", first: 5},
      preference: {name: "helpers.run:Scaled", factor: 3}}
  b: {agents: agent_1, policy: random, learner: "helpers.run:Counting"}
"""
    text = "world: {name: 'helpers.run:Odd', lengths: [50]}\n"
    text += "train: {num_envs: 2, rollout_steps: 4, total_steps: 16}\ngroups:\n"
    file = written(tmp_path / "a.yaml", text + groups)
    run = train(tmp_path / "run", *run_cases.QUIET, "train.evaluate_episodes=2", experiment=file)
    last = run.metrics()[-1]
    assert last["a/count"] == 7  # two iterations after the first five
    assert last["a/paid"] == 3 * 2 * 4
    assert last["b/paid"] == 2 * 2 * 4
    assert run.load_checkpoint("last")["policies"]["a"] == {"action": 1}


@pytest.mark.parametrize("name", ["helpers.run:Odd"])
def test_the_odd_world_of_these_tests_keeps_the_contract(name):
    part = schema.part({}, {"name": name}, "world")
    check_world(lambda num_envs: build.build_world(part, num_envs), steps=60)


# Seated from an earlier run -----------------------------------------------------------------------------

RIVALS = "world: {name: gridworld, grid_size: 4, num_agents: 2, max_steps: 12}\ngroups:\n"


def seated(tmp_path, run, more="", *, group="team", learner="null", world="num_agents: 2"):
    text = f"""
world: {{name: gridworld, grid_size: 4, max_steps: 12, {world}}}
groups:
  {group}: {{agents: "agent_*", policy: {{run: "{run.path}"{more}}}, learner: {learner}}}
"""
    return table(tmp_path, "", world=text)[1][0]


@pytest.mark.slow
def test_a_seated_policy_has_the_weights_of_its_checkpoint(tmp_path, earlier):
    for which in ("best", "last", 128):
        group = seated(tmp_path, earlier[0], f", checkpoint: {which}")
        saved = earlier[0].load_checkpoint(str(which))["policies"]["team"]["net"]
        assert all(np.array_equal(v, saved[k]) for k, v in group.policy.state()["net"].items())
        assert group.learner is None


def test_another_name_takes_the_only_group_and_asks_among_several(tmp_path, earlier):
    assert seated(tmp_path, earlier[0], group="crew").policy.shape.hidden == (8,)
    groups = f"""
  crew: {{agents: agent_0, policy: {{run: "{earlier[1].path}", group: other}}}}
  rest: {{agents: agent_1, policy: random}}
"""
    assert table(tmp_path, groups, world=RIVALS)[1][0].policy.shape.hidden == (6,)
    with pytest.raises(ConfigError, match=r"groups\.crew\.policy\.group: .* has the groups team, other; name one"):
        seated(tmp_path, earlier[1], group="crew")
    with pytest.raises(ConfigError, match=r"groups\.team\.policy\.group: .* has no group 'nobody'"):
        seated(tmp_path, earlier[1], ", group: nobody")


def test_a_start_asks_among_several_groups(tmp_path, earlier):
    text = f"{RIVALS}  crew: {{agents: 'agent_*', learner: {{name: ppo}}, start: {{run: '{earlier[1].path}'%s}}}}"
    for group, said in (("", "has the groups team, other; name one"), (", group: nobody", "has no group 'nobody'")):
        file = written(tmp_path / "a.yaml", text % group)
        with pytest.raises(ConfigError, match=rf"groups\.crew\.start\.group: .*{said}"):
            start.check(str(file))


def test_a_seated_policy_that_does_not_fit_is_refused(tmp_path, earlier):
    with pytest.raises(ConfigError, match=r"groups\.team\.policy: .*differs from the one that was trained"):
        seated(tmp_path, earlier[0], world="num_agents: 3")


def test_a_seated_run_must_be_one(tmp_path):
    class Nowhere:
        path = tmp_path / "nowhere"

    with pytest.raises(ConfigError, match=r"groups\.team\.policy: .*is not a run: it has no config\.yaml"):
        seated(tmp_path, Nowhere)


def test_a_group_that_plays_with_its_own_policy_is_refused(tmp_path, earlier):
    text = f"{RIVALS}  team: {{agents: 'agent_*', policy: {{run: '{earlier[0].path}'}}}}"
    run = Run.create(tmp_path / "run", schema.load(str(written(tmp_path / "a.yaml", text))))
    itself = [f"groups.team.policy.run={run.path}", "train.total_steps=512"]
    with pytest.raises(ConfigError, match="'team' would play with its own policy"):
        coterie.resume(run.path, itself, quiet=True)
    written(run.config_file, run.config_file.read_text().replace(str(earlier[0].path), str(run.path)))
    with pytest.raises(ConfigError, match=r"group 'team' of .* plays with its own policy"):
        build.build_groups(run.config(), build.build_world(run.config().world, 2))


def test_a_seated_run_of_a_seated_run_is_found_by_its_own_groups_name(tmp_path, earlier):
    text = f"{RIVALS}  other: {{agents: 'agent_*', policy: {{run: '{earlier[1].path}'}}, learner: {{name: ppo}}}}"
    between = Run.create(tmp_path / "run", schema.load(str(written(tmp_path / "b.yaml", text))))
    state = {"policies": earlier[1].load_checkpoint("best")["policies"], "env_steps": 1}
    between.save_checkpoint(state, 1)
    for group in ("crew", "team"):  # the first run has a group 'team', too, with another network
        found = seated(tmp_path, between, ", checkpoint: last", group=group)
        assert found.policy.shape.hidden == (6,)


def test_a_seated_run_is_found_from_any_directory(tmp_path, earlier, monkeypatch):
    monkeypatch.chdir(earlier[0].path.parent)
    text = f"""
world: {{name: gridworld, grid_size: 4, max_steps: 12, num_agents: 2}}
groups: {{team: {{agents: "agent_*", policy: {{run: {earlier[0].path.name}}}}}}}
"""
    run = Run.create(tmp_path / "later", schema.load(str(written(tmp_path / "a.yaml", text))))
    monkeypatch.chdir(tmp_path)
    settings = run.config()
    assert settings.groups["team"].policy.run == str(earlier[0].path)
    (group,) = build.build_groups(settings, build.build_world(settings.world, 1))
    saved = earlier[0].load_checkpoint("best")["policies"]["team"]["net"]
    assert all(np.array_equal(v, saved[k]) for k, v in group.policy.state()["net"].items())


@pytest.mark.parametrize(("learner", "frozen"), [("null", True), ("{name: ppo}", False)])
def test_a_seated_policy_stays_frozen_and_one_with_a_learner_starts_warm(tmp_path, earlier, learner, frozen):
    text = f"""
extends: gridworld-cooperative
groups: {{team: {{policy: {{run: "{earlier[0].path}"}}, learner: {learner}}}}}
"""
    words = [w for w in run_cases.GRID if "policy" not in w] + ["train.total_steps=64"]
    run = train(tmp_path / "run", *words, experiment=written(tmp_path / "a.yaml", text))
    saved = earlier[0].load_checkpoint("best")["policies"]["team"]["net"]
    first, last = (run.load_checkpoint(which)["policies"]["team"]["net"] for which in ("0", "last"))
    assert all(np.array_equal(first[k], v) for k, v in saved.items())
    assert all(np.array_equal(last[k], v) for k, v in saved.items()) == frozen


def test_a_scripted_policy_can_be_seated_too(tmp_path):
    run = train(tmp_path / "random", "groups.team.policy=random", "groups.team.learner=null", "train.total_steps=32")
    assert isinstance(seated(tmp_path, run).policy, RandomPolicy)


@pytest.mark.slow
def test_a_shared_policy_of_many_takes_one_seat_as_the_agent_of_that_name(tmp_path):
    """A network that knows three agents plays one of them; its other seats are not needed."""
    tiny = ["train.total_steps=64", "train.num_envs=4", "train.rollout_steps=8", "train.evaluate_episodes=2"]
    world = ["world.grid_size=4", "world.num_agents=3", "train.video=false", "train.tensorboard=false"]
    coterie.train("gridworld-cooperative", [*tiny, *world], out=tmp_path / "a", quiet=True)
    table = {
        "world": {"name": "gridworld", "grid_size": 4, "num_agents": 3},
        "groups": {
            "veteran": {"agents": "agent_1", "policy": {"run": str(tmp_path / "a")}},
            "rest": {"agents": ["agent_0", "agent_2"], "policy": {"name": "random"}},
        },
    }
    settings = schema.resolve(table, "table")
    stage = build.build_world(settings.world, 1)
    groups = build.build_groups(settings, stage, learning=False)
    assert groups[0].actor.members.tolist() == [1]
    seated, original = groups[0].policy, coterie.load(tmp_path / "a")
    seen = np.random.default_rng(0).random((64, 15), np.float32)
    assert (seated.layout.size,) == seen.shape[1:]
    expected = original.act("agent_1", seen)
    there = coterie.Table(settings, groups, 0)
    np.testing.assert_array_equal(there.act("agent_1", seen), expected)
    learner = {"name": "ppo"}
    table["groups"]["veteran"]["learner"] = learner
    with pytest.raises(schema.ConfigError, match=r"groups\.veteran\.policy: .*differs"):
        build.build_groups(schema.resolve(table, "table"), stage)


@pytest.mark.slow
def test_rules_come_along_with_a_group_of_an_earlier_run(tmp_path):
    """The constraints of a group hold at another table, too, unless that table sets its own."""
    text = (
        "world: {name: gridworld, mode: race, grid_size: 4, num_agents: 1}\n"
        'groups: {all: {learner: ppo, constraints: {rules: [never move left], lm: "helpers.constraint:CHANNEL"}}}\n'
        "train: {total_steps: 32, num_envs: 4, rollout_steps: 8, evaluate_episodes: 2,\n"
        "        video: false, tensorboard: false}\n"
    )
    run = coterie.train(str(written(tmp_path / "a.yaml", text)), out=tmp_path / "run", quiet=True)
    seated = [f"groups.all.policy.run={run.path}", "groups.all.learner=none"]
    settings = schema.load(str(tmp_path / "a.yaml"), [*seated, "groups.all.constraints=none"])
    (group,) = build.build_groups(settings, build.build_world(settings.world, 1))
    assert group.actor.shield.settings.rules == ("never move left",)
    own = schema.load(str(tmp_path / "a.yaml"), [*seated, "groups.all.constraints.rules=[never move up]"])
    (group,) = build.build_groups(own, build.build_world(own.world, 1))
    assert group.actor.shield.settings.rules == ("never move up",)


class Advises(Stateless):
    """An advisor that suggests nothing."""

    def __init__(self, settings: RandomSettings, group_spec):
        pass


class Shields(Stateless):
    """A shield that allows nothing."""

    def __init__(self, settings: RandomSettings, group_spec):
        pass


class Prefers(Stateless):
    """A preference without rewards."""

    scope = "step"

    def __init__(self, settings: RandomSettings, group_spec, gamma):
        pass


@pytest.mark.parametrize(
    ("part", "name", "lacks"),
    [
        ("advisor", "Advises", "advice_use, in_evaluation"),
        ("constraints", "Shields", "choices, allowed, observe, charge;"),
        ("preference", "Prefers", "rewards;"),
    ],
)
def test_members_that_a_part_of_ones_own_lacks_are_named(tmp_path, part, name, lacks):
    team = f"  team: {{agents: 'agent_*', learner: {{name: ppo}}, {part}: {{name: '{__name__}:{name}'}}}}"
    assert f"groups.team.{part}: '{name}' lacks {lacks}" in refusal(tmp_path, team)


def test_a_player_of_ones_own_may_lie_in_a_module_without_a_package(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    text = "from coterie.policies.scripted import RandomPolicy\n\n\nclass Own(RandomPolicy):\n    pass\n"
    (tmp_path / "lone_module.py").write_text(text)
    assert seated_policy("lone_module:Own") == schema.Part("lone_module:Own", RandomSettings())
    with pytest.raises(CoterieError, match="neither a run nor a policy"):
        seated_policy("alphabetta:depth=6")
