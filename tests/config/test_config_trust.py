"""What of a config is foreign, and which runs are signed."""

import dataclasses
import os
import stat

import pytest

from coterie.config import registry, schema, trust
from coterie.config.interpolation import interpolate
from coterie.core import lookup


def kinds(settings):
    return {one.path: one.kind for one in trust.foreign(settings)}


@pytest.mark.parametrize("name", schema.experiments())
def test_nothing_in_a_shipped_experiment_is_foreign(name):
    assert kinds(schema.to_dict(schema.load(name))) == {}


@pytest.mark.parametrize(
    "text",
    [
        "mygame:World",
        "package.module:Name",
        "os:system",
        "coterie.sandbox.unsafe:allow",  # ours, but no part that a config names
        "gymnasium/mygame:Env-v0",
        "gymnasium/mygame:Env=1-v0",
        "minigrid/mygame:Env-v0",
        "language:lm=mygame:Model",
        "groups.team.policy.name=mygame:Net",
        'groups.team.policy.name="mygame\\x3aNet"',  # YAML reads an escaped colon
        "groups.team.policy.name=${groups.team.agents}:Net",
    ],
)
@pytest.mark.parametrize("place", ["text", "list", "nested"])
def test_names_of_code_are_foreign_wherever_they_stand(text, place):
    text = text.replace("${", "\\${")  # an interpolation of another config, which reads these words later
    settings = {"text": {"a": text}, "list": {"a": ["x", text]}, "nested": {"a": {"b": {"c": text}}}}[place]
    assert list(kinds(settings).values()) == ["code"]


@pytest.mark.parametrize(
    "text",
    [
        *("gridworld", "gymnasium/CartPole-v1", "pettingzoo/classic/tictactoe_v3", "mpe/simple_tag", "agent_*"),
        *("alphabeta:depth=6", "runs/four:simulations=400", "/home/somebody/runs/a", "12:30", "a: b", "yes, no: maybe"),
        *("http://localhost:8080/v1", "http://127.0.0.1:8000", "coterie.worlds.doorkey.text:SkillText", "x = 3:b"),
        *registry.WORLDS.values(),
        *trust.ADDRESSES,
    ],
)
def test_other_texts_are_not_foreign(text):
    assert kinds({"a": text}) == {}


def test_every_class_of_the_list_exists():
    for address in trust.ADDRESSES:
        if "minigrid" not in address:  # an extra
            assert callable(lookup.look_up({}, address))


def test_look_up_imports_nothing_that_is_not_foreign(tmp_path, monkeypatch):
    """Names that `foreign` does not see are not looked up either: files may have any name."""
    monkeypatch.syspath_prepend(tmp_path)
    for stem in ("evil-module", "evil module", "1evil"):
        (tmp_path / f"{stem}.py").write_text("raise AssertionError('imported')")
        assert kinds({"a": f"{stem}:Name"}) == {}
        with pytest.raises(LookupError):
            lookup.look_up({}, f"{stem}:Name")


def test_own_modules_of_pettingzoo_need_no_colon():
    assert kinds({"world": {"name": "pettingzoo/mygame"}}) == {"world.name": "code"}
    assert kinds({"world": {"name": "pettingzoo/my.game"}}) == {"world.name": "code"}


def test_options_of_an_environment_may_name_another():
    settings = {"world": {"name": "gymnasium/GymV26Environment-v0", "options": {"env_id": "mygame:Env-v0"}}}
    assert kinds(settings) == {"world.options.env_id": "code"}


def test_a_name_put_together_by_references_is_foreign():
    assert kinds({"experiment": "mygame", "world": {"name": "${experiment}:World"}}) == {"world.name": "code"}


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({"lm": {"name": "https://somewhere.org/v1"}}, "lm.name"),
        ({"lm": {"name": "HTTP://somewhere.org/v1"}}, "lm.name"),
        ({"lm": {"name": "http://localhost@somewhere.org/v1"}}, "lm.name"),
        ({"lm": {"name": "somewhere.org", "backend": "http"}}, "lm.name"),
        ({"train": {"ray": {"address": "somewhere.org:6379"}}}, "train.ray.address"),
    ],
)
def test_servers_of_others_are_foreign(settings, path):
    assert kinds(settings) == {path: "server"}


def test_a_cache_outside_of_the_working_directory_is_foreign():
    assert kinds({"lm": {"cache": {"path": "/home/somebody/x.pth"}}}) == {"lm.cache.path": "file"}
    assert kinds({"lm": {"cache": "../../x"}}) == {"lm.cache": "file"}
    assert kinds({"lm": {"cache": "answers.sqlite"}}) == {}


# Interpolation ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["${oc.env:SECRET}", "x-${oc.env:SECRET}", "${${resolver}:SECRET}", "${oc.${end}:SECRET}", "${b}", "${${b}}"],
)
def test_calls_stay_as_they_are_written(text, monkeypatch):
    monkeypatch.setenv("SECRET", "hunter2")
    layer = {"a": text, "b": "${oc.env:SECRET}", "resolver": "oc.env", "end": "env"}
    found = interpolate(layer, call=False)
    assert "hunter2" not in repr(found)
    assert ("a",) in found.calls
    assert kinds(layer)["a"] == "environment"


def test_references_are_replaced():
    found = interpolate({"a": {"b": 3, "c": "${.b}"}, "d": ["${a.b}", "x${a.b}"]}, call=False)
    assert found.settings == {"a": {"b": 3, "c": 3}, "d": [3, "x3"]}
    assert found.calls == found.literal == {}


EXPERIMENT = {
    "experiment": "${oc.env:NAME}",
    "seed": "${oc.decode:${oc.env:SIZE}}",
    "world": {"name": "gymnasium/${oc.env:ENVIRONMENT}"},
    "groups": {
        "a.b": {
            "agents": ["${oc.env:AGENTS}"],
            "policy": "${oc.env:POLICY}",
            "advisor": {"name": "language", "lm": {"": "${oc.env:MODEL}"}},
            "learner": "ppo",
        }
    },
    "train": {"num_envs": "${oc.decode:${oc.env:SIZE}}"},
}
VALUES = {
    "NAME": "n-1a2b",
    "SIZE": "4711",
    "ENVIRONMENT": "Odd1a2b-v0",
    "AGENTS": "a-1a2b*",
    "POLICY": "network",
    "MODEL": "m-1a2b",
}


def test_what_comes_from_outside_is_used_but_not_written(monkeypatch):
    for name, value in VALUES.items():
        monkeypatch.setenv(name, value)
    config = schema.load(EXPERIMENT)
    assert (config.experiment, config.seed, config.train.num_envs) == ("n-1a2b", 4711, 4711)
    assert config.world.settings.id == "Odd1a2b-v0"
    group = config.groups["a.b"]
    assert (group.agents, group.policy.name, group.advisor.settings.lm.name) == (("a-1a2b*",), "network", "m-1a2b")
    text = schema.to_yaml(config)
    assert "1a2b" not in text
    assert "4711" not in text
    again = schema.resolve(schema.to_dict(config), "x")
    assert again == config
    assert schema.to_yaml(again) == text


def test_a_setting_that_a_study_replaces_is_written_as_it_is(monkeypatch):
    monkeypatch.setenv("SEED", "3")
    config = schema.load("gridworld-cooperative", ["seed=${oc.decode:${oc.env:SEED}}"])
    assert schema.to_dict(config)["seed"] == "${oc.decode:${oc.env:SEED}}"
    assert schema.to_dict(dataclasses.replace(config, seed=4))["seed"] == 4


def test_texts_that_only_look_like_interpolations_stay():
    config = schema.load("gridworld-cooperative", [r"experiment=\${seed}"])
    assert config.experiment == "${seed}"
    assert schema.resolve(schema.to_dict(config), "x").experiment == "${seed}"


# The signature ------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    return tmp_path


def test_a_signature_holds_for_the_config_that_it_was_made_for(home):
    (home / "run").mkdir()
    config = home / "run" / "config.yaml"
    config.write_text("world: mygame:World")
    assert not trust.is_signed(config)
    trust.sign(config)
    assert trust.is_signed(config)
    config.write_text("world: mygame:Worle")
    assert not trust.is_signed(config)


def test_the_key_is_the_user_s_alone(home):
    (home / "config.yaml").write_text("x")
    trust.sign(home / "config.yaml")
    mode = stat.S_IMODE(trust.key_file().stat().st_mode)
    assert mode == 0o600
    assert trust.key_file().is_relative_to(home / "home")
    os.chmod(trust.key_file(), 0o640)  # another user could sign runs
    assert not trust.is_signed(home / "config.yaml")


def test_another_user_s_signature_does_not_count(home, monkeypatch):
    config = home / "config.yaml"
    config.write_text("x")
    trust.sign(config)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "other"))
    assert not trust.is_signed(config)
    (home / "x.yaml").write_text("y")
    trust.sign(home / "x.yaml")  # the other user has a key
    assert not trust.is_signed(config)


def test_without_a_place_for_the_key_the_run_is_not_signed(home, monkeypatch, caplog):
    (home / "file").write_text("")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "file"))
    config = home / "config.yaml"
    config.write_text("x")
    trust.sign(config)
    assert not trust.is_signed(config)
    assert "--trust" in caplog.text
