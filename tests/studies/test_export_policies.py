"""Exported policies decide as the policies do, memory and masks included; what is no network is refused."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from coterie.core.types import CoterieError
from coterie.policies.causal_lm.policy import CausalLMPolicy
from coterie.studies import export
from coterie.training import table
from helpers.run import train, written

TRAIN = """
train: {num_envs: 4, rollout_steps: 8, total_steps: 64, evaluate_episodes: 2, evaluate_every: 9, video: false,
        tensorboard: false}
"""
GRID = "world: {name: gridworld, grid_size: 4, num_targets: 2, max_steps: 9, observation: OBSERVATION}\n"
SPREAD = "world: {name: spread, max_steps: 6, continuous_actions: CONTINUOUS}\n"
GAMES = {  # world, group's policy and learner
    "memory": (GRID.replace("OBSERVATION", "flat"), "policy: {name: network, hidden: [8], memory: 5}, learner: ppo"),
    "set": (GRID.replace("OBSERVATION", "dict"), "policy: {name: network, hidden: [8], encoder: set}, learner: ppo"),
    "picture": (GRID.replace("OBSERVATION", "image"), "policy: {name: network, hidden: [8]}, learner: ppo"),
    "own": (
        GRID.replace("OBSERVATION", "image"),
        "policy: {name: network, hidden: [8], network: 'helpers.own_networks:Features'}, learner: ppo",
    ),
    "own values": (
        SPREAD.replace("CONTINUOUS", "false"),
        "parameters: individual, policy: {name: q_network, hidden: [8], network: 'helpers.own_networks:Features'}, "
        "learner: dqn",
    ),
    "masks": ("world: tictactoe\n", "policy: {name: network, hidden: [8]}, learner: ppo"),
    "values": (
        SPREAD.replace("CONTINUOUS", "false"),
        "parameters: individual, policy: {name: q_network, hidden: [8]}, learner: dqn",
    ),
    "beta": (SPREAD.replace("CONTINUOUS", "true"), "policy: {name: network, hidden: [8]}, learner: ppo"),
    "gaussian": (
        SPREAD.replace("CONTINUOUS", "true"),
        "policy: {name: network, hidden: [8], continuous: gaussian}, learner: ppo",
    ),
    "clipped": (
        SPREAD.replace("CONTINUOUS", "true"),
        "policy: {name: deterministic, hidden: [8], squash: clip}, learner: maddpg",
    ),
    "squashed": (SPREAD.replace("CONTINUOUS", "true"), "policy: {name: gaussian, hidden: [8]}, learner: sac"),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A short run of a game, trained once."""
    base, made = tmp_path_factory.mktemp("exported"), {}

    def find(name):
        if name not in made:
            world, group = GAMES[name]
            path = written(base / f"{name}.yaml", f"{world}groups:\n  team: {{{group}}}\n{TRAIN}")
            made[name] = train(base / name, experiment=path).path
        return made[name]

    return find


@pytest.mark.slow
@pytest.mark.parametrize("name", GAMES)
def test_torchscript_decides_as_the_policy(run, tmp_path, name):
    found = export.export(run(name), torchscript=tmp_path / "policy.pt")
    assert found.decisions == export.STEPS
    assert max(found.differences.values()) < 1e-5
    read = torch.jit.load(tmp_path / "policy.pt")
    loaded = table.load(run(name))
    played = export.play(loaded, loaded.groups[0], export.PolicyGraph(loaded.groups[0].policy))
    action = read(*(torch.from_numpy(array) for array in played[5].inputs.values()))[0]
    assert action.detach().numpy() == pytest.approx(played[5].action, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["memory", "values", "squashed", "set", "own", "own values"])
def test_onnx_decides_as_the_policy(run, tmp_path, name):
    found = export.export(run(name), onnx=tmp_path / "deep" / "policy.onnx")
    assert max(found.differences.values()) < 1e-5
    assert ("next_memory" in found.outputs) is (name == "memory")
    assert ("mask" in found.inputs) is (name != "squashed")
    import onnxruntime

    session = onnxruntime.InferenceSession(tmp_path / "deep" / "policy.onnx")
    assert [one.name for one in session.get_inputs()] == list(found.inputs)


@pytest.mark.slow
def test_masks_and_memory_change_decisions(run):
    loaded = table.load(run("memory"))
    loaded.groups[0].policy.net.out.weight.data *= 50
    graph = export.PolicyGraph(loaded.groups[0].policy)
    step = export.play(loaded, loaded.groups[0], graph)[3]
    given = {name: torch.from_numpy(array) for name, array in step.inputs.items()}
    with torch.no_grad():
        plain = graph(*given.values())
        mask = torch.ones_like(given["mask"]).scatter(-1, plain[0].unsqueeze(-1), False)
        other = graph(*(given | {"mask": mask}).values())
        forgotten = graph(*(given | {"memory": torch.zeros_like(given["memory"])}).values())
    assert not (plain[0] == other[0]).any()
    assert not torch.equal(plain[1], forgotten[1])
    assert np.abs(plain[2].numpy() - step.memory).max() < 1e-5


@pytest.mark.slow
def test_a_graph_that_differs_is_not_written(run, tmp_path, monkeypatch):
    real = export.decoder
    monkeypatch.setattr(export, "decoder", lambda policy: lambda out, mask: real(policy)(-out, mask))
    with pytest.raises(CoterieError, match=r"policy.pt was not written: step \d+ of the check differs"):
        export.export(run("beta"), torchscript=tmp_path / "policy.pt")
    assert not (tmp_path / "policy.pt").exists()


@pytest.mark.slow
def test_wrong_requests_are_answered_in_a_sentence(run, tmp_path, coterie_):
    path = run("masks")
    for words, said in (
        ((), "name a file: --onnx FILE, --torchscript FILE"),
        (
            ("--onnx", tmp_path / "p", "--group", "tema"),
            "--group: no group 'tema'; there are team; did you mean 'team'?",
        ),
        (("--onnx", tmp_path / "p", "--checkpoint", "9"), "checkpoint"),
    ):
        code, _, error = coterie_("export", path, *words)
        assert code == 1
        assert said in error
    code, out, _ = coterie_("export", path, "--torchscript", tmp_path / "p.pt")
    assert code == 0
    assert "input    mask [N, 2, 9] bool" in out
    assert "40 steps decided alike" in out


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("random", "group 'team': policy 'random' cannot be exported"),
        ("expert", "group 'team': policy 'expert' cannot be exported"),
        ("search", "group 'team': policy 'search' cannot be exported"),
        ({"name": "language", "lm": "helpers.language:COPIER"}, "policy 'language' cannot be exported"),
    ],
)
def test_what_is_no_network_is_refused(policy, said):
    from coterie.config import schema
    from coterie.training import build

    config = schema.resolve({"world": {"name": "tictactoe"}, "groups": {"team": {"policy": policy}}}, "board")
    groups = build.build_groups(config, build.build_world(config.world, 1), learning=False, training=False)
    for name in (None, "team"):
        with pytest.raises(CoterieError, match=said):
            export.choose_group(groups, name)


def test_a_refused_policy_has_its_name_in_the_settings():
    policy = CausalLMPolicy.__new__(CausalLMPolicy)
    with pytest.raises(CoterieError, match="policy 'causal_lm' cannot be exported"):
        export.refuse(SimpleNamespace(name="team", policy=policy))


def test_a_group_must_be_named_where_several_learned(run):
    loaded = table.load(run("beta"))
    (group,) = loaded.groups
    other = dataclasses.replace(group, actor=dataclasses.replace(group.actor, group_spec=group.actor.group_spec))
    with pytest.raises(CoterieError, match="--group: name one of team, team"):
        export.choose_group([group, other], None)
