"""`coterie check policy` and `check learner`: built-in classes pass, defects and wrong names are one sentence."""

import pytest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("policy", "network", "hidden=[4]", "--world", "tag"), "network: passes the conformance tests in tag: "),
        (("policy", "random", "--world", "gymnasium/CartPole-v1"), "in gymnasium/CartPole-v1: agent (1 agent)"),
        (("policy", "expert", "--world", "gridworld:grid_size=4"), "expert: passes the conformance tests in gridworld"),
        (("learner", "dqn", "batch_size=8", "--world", "spread"), "dqn with q_network: passes"),
        (
            ("learner", "sac", "learner.batch_size=8", "--world", "spread:continuous_actions=true"),
            "sac with gaussian: passes the conformance tests in spread:continuous_actions=true: agent (3 agents)",
        ),
    ],
)
def test_built_in_classes_pass(coterie_, words, said):
    code, out, err = coterie_("check", *words)
    assert code == 0, err
    assert said in out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("policy", "netwrok"), 2, "did you mean 'network'"),
        (("policy", "network", "hiden=[4]"), 2, "did you mean 'hidden'"),
        (("policy", "network", "--world", "gridwrld"), 2, "did you mean 'gridworld'"),
        (("policy", "gaussian", "--world", "spread"), 2, "policy 'gaussian' needs continuous actions"),
        (("learner", "sac"), 2, "checked in 'gridworld', --world names another: spread:continuous_actions=true"),
        (("policy", "search"), 2, "checked in 'gridworld', --world names another: "),
        (("policy", "helpers.run:Ghost"), 2, "has no 'Ghost'"),
        (("learner", "bc"), 2, "learner 'bc' learns from files"),
        (("learner", "ppo", "--policy", "q_network", "--world", "spread"), 2, "improves a NetworkPolicy"),
    ],
)
def test_wrong_names_are_one_sentence(coterie_, words, code, said):
    found, _, err = coterie_("check", *words)
    assert (found, said in err) == (code, True), err


def test_a_defect_is_located(coterie_, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_policies.py").write_text(
        "from dataclasses import replace\n"
        "from coterie.policies.scripted import RandomPolicy, RandomSettings\n\n\n"
        "class Loud(RandomPolicy):\n"
        "    def __init__(self, settings: RandomSettings, group_spec):\n"
        "        super().__init__(settings, group_spec)\n\n"
        "    def act(self, view):\n"
        "        decision = super().act(view)\n"
        "        return replace(decision, action=decision.action + 99)\n"
    )
    code, _, err = coterie_("check", "policy", "my_policies:Loud", "--random-greedy", "--world", "spread")
    assert code == 1
    assert "legal action" in err


def test_missing_members_are_named(coterie_, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_parts.py").write_text(
        "import coterie\n"
        "from coterie.policies.scripted import RandomSettings\n\n\n"
        "class Forgetful(coterie.Policy):\n"
        "    def __init__(self, settings: RandomSettings, group_spec):\n"
        "        pass\n\n\n"
        "class Idle(coterie.Learner):\n"
        "    def __init__(self, settings: RandomSettings, policy, group_spec, preference):\n"
        "        self.policy = policy\n"
    )
    code, _, err = coterie_("check", "policy", "my_parts:Forgetful")
    assert (code, "policy: my_parts:Forgetful lacks the method act of coterie.Policy" in err) == (2, True), err
    code, _, err = coterie_("check", "learner", "my_parts:Idle", "--policy", "network")
    assert (code, "learner: my_parts:Idle lacks the method learn of coterie.Learner" in err) == (2, True), err
    words = ["groups.team.policy.name=my_parts:Forgetful", "groups.team.learner=null"]
    code, _, err = coterie_("train", "gridworld-cooperative", *words, "--out", "runs/no")
    assert (code, "groups.team.policy: my_parts:Forgetful lacks the method act" in err) == (2, True), err


def test_masks_are_drawn_only_in_worlds_that_have_them(coterie_, tmp_path, monkeypatch):
    text = """
from dataclasses import dataclass
import numpy as np
import coterie
from coterie.core.types import Decision

@dataclass(frozen=True)
class Nothing(coterie.Settings):
    pass

class First(coterie.Policy):
    def __init__(self, settings: Nothing, group_spec) -> None:
        pass
    def act(self, view):
        return Decision(np.zeros(view.acting.shape, int))
"""
    (tmp_path / "always_first.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    code, _, err = coterie_("check", "policy", "always_first:First", "--world", "spread")
    assert code == 0, err
    code, _, err = coterie_("check", "policy", "always_first:First", "--world", "tictactoe")
    assert code == 1
    assert "a legal action" in err


@pytest.mark.parametrize(
    ("name", "world", "words"),
    [
        ("gridworld:grid_size=4", "gridworld", ["grid_size=4"]),
        ("pettingzoo/rps:env", "pettingzoo/rps:env", []),
        ("pettingzoo/rps:env:options.rounds=5", "pettingzoo/rps:env", ["options.rounds=5"]),
        ("my_worlds:Maze:goal=my_goals:Far,size=4", "my_worlds:Maze", ["goal=my_goals:Far", "size=4"]),
        ("network:hidden=[8,4],memory.size=2", "network", ["hidden=[8,4]", "memory.size=2"]),
    ],
)
def test_a_colon_separates_a_name_from_its_settings(name, world, words):
    from coterie.cli import conformance

    assert conformance.divide(name) == (world, words)


def test_a_policy_and_a_learner_have_settings_after_a_colon_too(coterie_):
    assert coterie_("check", "policy", "network:hidden=[4,4]")[0] == 0
    assert coterie_("check", "learner", "ppo:minibatches=2,epochs=1")[0] == 0
    assert "policy.hiden: no such setting" in coterie_("check", "policy", "network:hiden=[4]")[2]
