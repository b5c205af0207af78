"""Keys go to servers of this user's own choice; a server and a variable that a run names get none unless listed."""

import re
import shutil

import pytest
import yaml

import coterie
from coterie.config import schema
from coterie.config.schema import ConfigError
from coterie.lm.ask.http import HttpSettings
from coterie.lm.ask.key_hosts import LIST, Key, KeyHosts
from coterie.runs.run import Run
from coterie.studies.demonstrate.record import DemonstrationSpec, record
from coterie.studies.exploit.exploit import ExploitSpec, exploit
from helpers.fault_server import FaultServer
from helpers.run import train, written

SECRET, OTHER = "the-cloud-password", "sk-other"
TABLE = """\
world: {name: gridworld, mode: race, grid_size: 4, num_agents: 2, max_steps: 6}
groups:
  model: {agents: agent_0, policy: {name: language, method: complete, lm: "helpers.language:COPIER"}}
  scripts: {agents: agent_1, policy: random}
train: {num_envs: 2, rollout_steps: 4, total_steps: 16, evaluate_episodes: 2, video: false, tensorboard: false}
"""
DUEL = """\
world: {name: gridworld, mode: race, grid_size: 4, num_agents: 2, max_steps: 6}
groups:
  other: {agents: agent_0, policy: {run: RUN, group: model}}
  scripts: {agents: agent_1, policy: random}
train: {num_envs: 2, rollout_steps: 4, total_steps: 16, evaluate_episodes: 2, video: false, tensorboard: false}
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    train(folder / "run", experiment=written(folder / "table.yaml", TABLE))
    return folder / "run"


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("CLOUD_PASSWORD", SECRET)
    monkeypatch.setenv("OPENAI_API_KEY", OTHER)
    monkeypatch.delenv(LIST, raising=False)
    made = FaultServer()
    yield made
    made.close()


def sent(server):
    """The keys that arrived."""
    return {headers.get("authorization", "none") for _, _, headers in server.requests}


def change(run, edit):
    """Change the config that lies in a run, as its author could have."""
    file = run / "config.yaml"
    config = yaml.safe_load(file.read_text())
    edit(config)
    file.write_text(yaml.safe_dump(config))
    (run / "history.json").unlink(missing_ok=True)


@pytest.fixture
def foreign(trained, server, tmp_path):
    """A stranger's run, whose model is at a server of theirs and gets the user's password as its key."""
    run = shutil.copytree(trained, tmp_path / "foreign")

    def edit(config):
        lm = config["groups"]["model"]["policy"]["lm"]
        lm["name"] = server.url
        lm["http"]["api_key_env"] = "CLOUD_PASSWORD"

    change(run, edit)
    return run


def port(server):
    return server.url.split(":")[2].removesuffix("/v1")


def evaluate(run, *words):
    return coterie.load(run, overrides=list(words)).evaluate(episodes=2)


def resume(run):
    (run / "summary.json").unlink(missing_ok=True)
    coterie.resume(run, ["train.total_steps=24"], quiet=True)


def seat(run):
    file = written(run.parent / "duel.yaml", DUEL.replace("RUN", str(run)))
    train(run.parent / "duel", experiment=file)


COMMANDS = {
    "load": evaluate,
    "resume": resume,
    "match": lambda run: coterie.match([str(run), "random"], episodes=2),
    "exploit": lambda run: exploit(run, ExploitSpec(groups=("scripts",), episodes=2, steps=16), quiet=True),
    "demonstrate": lambda run: record(DemonstrationSpec(str(run), episodes=2, group="model"), run.parent / "recorded"),
    "a policy from the run": seat,
}


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_run_that_names_a_key_gets_none(foreign, server, command, monkeypatch):
    said = (
        rf"groups\.model\.policy\.lm: the run '.*foreign' would send the key in CLOUD_PASSWORD to 127\.0\.0\.1:\d+; .*"
        rf"{LIST}=127\.0\.0\.1:{port(server)}=CLOUD_PASSWORD"
    )
    with pytest.raises(ConfigError, match=said) as caught:
        COMMANDS[command](foreign)
    assert SECRET not in str(caught.value)
    assert server.requests == []
    monkeypatch.setenv(LIST, re.search(rf"{LIST}=(\S+),", str(caught.value)).group(1))
    COMMANDS[command](foreign)
    assert sent(server) == {f"Bearer {SECRET}"}


@pytest.mark.slow
def test_a_variable_that_holds_nothing_is_no_key(foreign, server, monkeypatch):
    monkeypatch.delenv("CLOUD_PASSWORD")
    evaluate(foreign)
    assert sent(server) == {"none"}


def test_lists_reports_and_the_config_are_shown_all_the_same(foreign, server):
    assert Run.open(foreign).config().groups["model"].policy.name == "language"
    coterie.report(foreign, out=foreign.parent / "report.html")
    assert SECRET not in (foreign.parent / "report.html").read_text()
    assert server.requests == []


ROUTES = {
    "an advisor": lambda config, lm: config["groups"]["model"].update(
        policy={"name": "random"}, advisor={"name": "language", "lm": lm, "use": {"mode": "kl"}}
    ),
    "a rule in words": lambda config, lm: config["groups"]["scripts"].update(
        constraints={"name": "language", "lm": lm, "rules": ["do not go up"]}
    ),
    "a policy that advises": lambda config, lm: config["groups"]["model"].update(
        policy={"name": "random"},
        advisor={"name": "policy", "policy": f"language:lm={lm['name']},lm.http.api_key_env=CLOUD_PASSWORD"},
    ),
    "a preference": lambda config, lm: config["groups"]["scripts"].update(
        preference={"name": "pairwise_lm", "lm": lm}, learner={"name": "ppo"}, policy={"name": "network"}
    ),
}


@pytest.mark.parametrize("route", ROUTES)
def test_every_route_to_a_server_is_seen(trained, server, tmp_path, route):
    run = shutil.copytree(trained, tmp_path / "foreign")
    lm = {"name": server.url, "http": {"api_key_env": "CLOUD_PASSWORD"}}

    def edit(config):
        config["groups"]["model"]["policy"] = {"name": "random"}
        ROUTES[route](config, lm)

    change(run, edit)
    with pytest.raises(ConfigError, match=r"groups\.(model|scripts)\..* would send the key in CLOUD_PASSWORD"):
        resume(run) if route == "a preference" else evaluate(run)
    assert server.requests == []


def test_a_frozen_policy_of_a_strangers_run_cannot_speak_for_the_user(trained, server, tmp_path):
    run = shutil.copytree(trained, tmp_path / "foreign")
    words = ("groups.model.policy.lm", "groups.model.policy.lm.http.api_key_env")
    policy = {
        "name": "coterie.studies.exploit.deviations:Frozen",
        **{"path": str(trained), "checkpoint": "best", "group": "model"},
        "overrides": [f"{words[0]}={server.url}", f"{words[1]}=CLOUD_PASSWORD"],
    }
    change(run, lambda config: config["groups"]["model"].update(policy=policy))
    with pytest.raises(ConfigError, match="would send the key in CLOUD_PASSWORD"):
        evaluate(run)
    assert server.requests == []


OWN = {
    "both": (["=SERVER", ".http.api_key_env=CLOUD_PASSWORD"], SECRET),
    "the server and the usual variable": (["=SERVER", ".http.api_key_env=OPENAI_API_KEY"], OTHER),
    "the name of the server": ([".name=SERVER", ".http.api_key_env=CLOUD_PASSWORD"], SECRET),
    "the server alone": (["=SERVER"], None),
    "the variable alone": ([".http.api_key_env=CLOUD_PASSWORD"], None),
    "the variable of others alone": ([".http.api_key_env=OPENAI_API_KEY"], None),
}


@pytest.mark.slow
@pytest.mark.parametrize("named", OWN)
def test_what_the_user_names_is_sent_as_in_a_config_of_their_own(foreign, server, named):
    words, key = OWN[named]
    words = [f"groups.model.policy.lm{word.replace('SERVER', server.url)}" for word in words]
    if key is None:
        with pytest.raises(ConfigError, match="would send the key"):
            evaluate(foreign, *words)
        assert server.requests == []
    else:
        evaluate(foreign, *words)
        assert sent(server) == {f"Bearer {key}"}


@pytest.mark.slow
def test_another_name_of_the_same_policy_keeps_the_strangers_server(foreign, server):
    with pytest.raises(ConfigError, match="would send the key in CLOUD_PASSWORD"):
        coterie.load(foreign, policy="language")
    with pytest.raises(ConfigError, match="would send the key in CLOUD_PASSWORD"):
        evaluate(foreign, "groups.model.policy=language")


@pytest.mark.slow
def test_players_and_configs_of_ones_own_send_their_keys(trained, server, tmp_path):
    player = f"language:method=complete,lm={server.url},lm.http.api_key_env=CLOUD_PASSWORD"
    record(DemonstrationSpec(str(trained), episodes=1, group="model", policy=player), tmp_path / "recorded")
    assert sent(server) == {f"Bearer {SECRET}"}
    server.requests.clear()
    words = [f"groups.model.policy.lm={server.url}", "groups.model.policy.lm.http.api_key_env=CLOUD_PASSWORD"]
    train(tmp_path / "run", *words, experiment=written(tmp_path / "table.yaml", TABLE))
    assert sent(server) == {f"Bearer {SECRET}"}
    for file in (tmp_path / "run").rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes(), file


# The list of hosts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listed", "address", "variable", "allowed"),
    [
        ("api.example.com", "https://api.example.com/v1", "OPENAI_API_KEY", True),
        ("api.example.com", "https://API.example.com:8443/v1", "OPENAI_API_KEY", True),
        ("api.example.com", "https://api.example.com/v1", "CLOUD_PASSWORD", False),
        ("api.example.com=CLOUD_PASSWORD", "https://api.example.com/v1", "CLOUD_PASSWORD", True),
        ("api.example.com=CLOUD_PASSWORD", "https://api.example.com/v1", "OPENAI_API_KEY", False),
        ("api.example.com:8443", "https://api.example.com/v1", "OPENAI_API_KEY", False),
        ("one.com, api.example.com:8443=MINE ,", "https://api.example.com:8443/v1", "MINE", True),
        ("example.com", "https://api.example.com/v1", "OPENAI_API_KEY", False),
        ("api.example.com", "https://api.example.com.evil.org/v1", "OPENAI_API_KEY", False),
        ("api.example.com", "https://api.example.com@evil.org/v1", "OPENAI_API_KEY", False),
        ("*", "https://evil.org/v1", "OPENAI_API_KEY", False),
        ("[::1]:8080", "http://[::1]:8080/v1", "OPENAI_API_KEY", True),
        ("[::1]", "http://[::1]:8080/v1", "OPENAI_API_KEY", True),
        ("", "https://api.example.com/v1", "OPENAI_API_KEY", False),
    ],
)
def test_a_host_is_listed_with_or_without_port_and_variable(listed, address, variable, allowed):
    key = Key.of(address, HttpSettings(api_key_env=variable))
    assert KeyHosts.listed({LIST: listed}).allow(key) == allowed


def test_the_entry_that_an_error_names_allows_the_key():
    for address in ("https://api.example.com/v1", "http://[::1]:80/v1"):
        for variable in ("OPENAI_API_KEY", "MINE"):
            key = Key.of(address, HttpSettings(api_key_env=variable))
            assert KeyHosts.listed({LIST: key.entry}).allow(key)


def test_the_origin_of_a_config_is_not_written(foreign):
    config = Run.open(foreign).config(["groups.model.policy.lm.http.timeout=3"])
    assert config.origin.run == foreign
    assert config.origin.changed == {"groups.model.policy.lm.http.timeout"}
    assert "origin" not in schema.to_dict(config)
    assert schema.resolve(schema.to_dict(config), "experiment").origin is None
