"""Runs of other people are data: lists and pages import nothing, what plays them asks for --trust."""

import base64
import json
import os
import pickle
import shutil
import sys

import pytest
import yaml

import coterie
from coterie.config import trust
from coterie.config.schema import ConfigError
from coterie.config.trust import Untrusted
from coterie.runs.run import Run
from helpers.needs import needs
from helpers.run import GRID, train, written

MODULE = "canary"
CANARY = """\
from pathlib import Path
Path({mark!r}).touch()
"""
SECRET = "hunter2"


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A run of two groups that somebody trained."""
    return train(tmp_path_factory.mktemp("trained") / "run").path


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with a module whose import leaves a mark; every name in it exists."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SECRET", SECRET)
    (tmp_path / f"{MODULE}.py").write_text(CANARY.format(mark=str(tmp_path / "imported")))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield tmp_path
    sys.modules.pop(MODULE, None)


def imported(folder):
    return (folder / "imported").exists()


def copied(trained, path, change=None):
    """The run under another path with a changed config, as another person sends it."""
    shutil.copytree(trained, path, dirs_exist_ok=True)
    (path / trust.SIGNATURE).unlink()
    if change is not None:
        settings = yaml.safe_load((path / "config.yaml").read_text())
        change(settings)
        (path / "config.yaml").write_text(yaml.safe_dump(settings))
    return path


def at(*names, value):
    """Set one setting of a config."""

    def change(settings):
        for name in names[:-1]:
            settings = settings[name]
        settings[names[-1]] = value

    return change


def extends(settings):
    settings["world"] = {"name": f"{MODULE}:World"}
    written_out = yaml.safe_dump(dict(settings))
    settings.clear()
    settings["extends"] = "hidden.yaml"
    with open("runs/evil/hidden.yaml", "w") as file:
        file.write(written_out)


TEAM = ("groups", "team")
FROZEN = {"name": "coterie.studies.exploit.deviations:Frozen", "checkpoint": "best", "group": "team"}
KINDS = {
    "world": at("world", value={"name": f"{MODULE}:World"}),
    "policy": at(*TEAM, "policy", value={"name": f"{MODULE}:Net"}),
    "learner": at(*TEAM, "learner", value={"name": f"{MODULE}:Learner"}),
    "preference": at(*TEAM, "preference", value={"name": f"{MODULE}:Preference"}),
    "advisor": at(*TEAM, "advisor", value={"name": f"{MODULE}:Advisor"}),
    "constraints": at(*TEAM, "constraints", value={"name": f"{MODULE}:Shield"}),
    "gymnasium": at("world", value={"name": f"gymnasium/{MODULE}:Env-v0"}),
    "pettingzoo": at("world", value={"name": f"pettingzoo/{MODULE}"}),
    "model": at(*TEAM, "advisor", value={"name": "language", "lm": {"name": f"{MODULE}:Model"}}),
    "codec": at(*TEAM, "advisor", value={"name": "language", "codec": f"{MODULE}:Codec"}),
    "player": at(*TEAM, "advisor", value={"name": "policy", "policy": f"language:lm={MODULE}:Model"}),
    "loss": at(*TEAM, "learner", value={"name": "bc", "demonstrations": ["d"], "extra_loss": f"{MODULE}:loss"}),
    "valuations": at("world", value={"name": "auction", "valuations": {"name": f"{MODULE}:quantile"}}),
    "frozen": at(
        *(*TEAM, "policy"), value=FROZEN | {"path": "runs/plain", "overrides": [f"world.name={MODULE}:World"]}
    ),
    "seated": at(*TEAM, "policy", value={"run": "runs/second"}),
    "start": at(*TEAM, "start", value={"run": "runs/second"}),
    "reference": lambda settings: settings.update(experiment=MODULE, world={"name": "${experiment}:World"}),
    "extends": extends,
    "server": at(*TEAM, "advisor", value={"name": "language", "lm": {"name": "http://somewhere.invalid/v1"}}),
    "key": at(*TEAM, "advisor", value={"name": "language", "lm": {"http": {"model": "${oc.env:SECRET}"}}}),
}


@pytest.fixture
def evil(trained, folder, request):
    """runs/evil of the kind that the test names; runs/second names code, too; runs/plain does not."""
    (folder / "runs").mkdir()
    copied(trained, folder / "runs" / "plain")
    copied(trained, folder / "runs" / "second", KINDS["world"])
    (folder / "runs" / "evil").mkdir()  # where one kind writes a file
    path = copied(trained, folder / "runs" / "evil", KINDS[getattr(request, "param", "world")])
    return path


every_kind = pytest.mark.parametrize("evil", KINDS, indirect=True)

LISTING = {
    "runs": ("runs", "--in", "runs"),
    "tag": ("runs", "tag", "runs/evil", "--add", "good"),
    "report": ("report", "runs/evil", "--out", "report.html"),
    "reports": ("report", "runs", "--out", "report.html"),
    "compare": ("compare", "runs/evil"),
    "delete": ("runs", "delete", "runs/evil", "--yes"),
}


@every_kind
def test_lists_and_reports_import_nothing(coterie_, folder, evil):
    for name, words in LISTING.items():
        code, out, err = coterie_(*words)
        assert not imported(folder), name
        assert code == 0, (name, err)
        assert SECRET not in out + err
    assert SECRET not in (folder / "report.html").read_text()


@every_kind
@needs("starlette", "web")
@needs("httpx", "web")
@needs("plotly", "web")
def test_pages_import_nothing(folder, evil):
    from starlette.testclient import TestClient

    from coterie.app.pages import make_app

    client = TestClient(make_app(folder / "runs"), base_url="http://127.0.0.1")
    for address in ("/", "/api/runs", "/run/evil", "/api/run/evil"):
        answer = client.get(address)
        assert (answer.status_code, SECRET in answer.text) == (200, False)
    assert not imported(folder)


@needs("starlette", "web")
@needs("httpx", "web")
@needs("plotly", "web")
def test_a_page_that_lies_in_a_run_cannot_read_others(folder, evil):
    from starlette.testclient import TestClient

    from coterie.app.pages import make_app

    (evil / "report.html").write_text("<script>fetch('/api/runs')</script>")
    answer = TestClient(make_app(folder / "runs"), base_url="http://127.0.0.1").get("/file/evil/report.html")
    assert answer.headers["content-security-policy"].startswith("sandbox allow-scripts")


@every_kind
def test_a_report_shows_what_it_can(coterie_, folder, evil):
    """Scores, curves and settings need no code of others."""
    coterie_("report", "runs/evil", "--out", "report.html")
    page = (folder / "report.html").read_text()
    assert all(f"<h2>{section}" in page for section in ("Scores", "Curves", "Settings"))
    config = yaml.safe_load((evil / "config.yaml").read_text())
    if "world" in config and MODULE in str(config["world"]):
        assert MODULE in page  # the settings tell what it names


PLAYING = {
    "resume": ("resume", "runs/evil", "train.total_steps=512"),
    "eval": ("eval", "runs/evil", "--episodes", "2"),
    "watch": ("watch", "runs/evil", "--out", "x.gif"),
    "match": ("match", "runs/evil", "random", "--episodes", "2"),
    "match in its world": ("match", "random", "expert", "--world", "runs/evil", "--episodes", "2"),
    "exploit": ("exploit", "runs/evil", "--steps", "64", "--episodes", "2"),
    "exploit by": ("exploit", "runs/plain", "--by", "runs/evil", "--episodes", "2"),
    "rate": ("rate", "runs/evil", "runs/plain", "--judge", "return", "--pairs", "1", "--episodes", "1"),
    "demonstrate": ("demonstrate", "runs/evil", "--out", "d", "--episodes", "1"),
    "demonstrate with another policy": ("demonstrate", "runs/evil", "--out", "d", "--policy", "random"),
    "demonstrate by": ("demonstrate", "gridworld-cooperative", "--out", "d", "--policy", "runs/evil"),
    "export": ("export", "runs/evil", "--torchscript", "x.pt"),
    "play": ("play", "runs/evil"),
    "play against": ("play", "gridworld-cooperative", "--against", "runs/evil"),
    "train its config": ("train", "runs/evil/config.yaml", "--out", "new"),
    "train what extends it": ("train", "mine.yaml", "--out", "new"),
    "train with its policy": ("train", "seat.yaml", "--out", "new"),
    "train from its weights": ("train", "start.yaml", "--out", "new"),
    "sweep": ("train", "seat.yaml", "-m", "seed=0,1", "--out", "new"),
    "tune": ("tune", "seat.yaml", "--trials", "1"),
    "tune a population": ("tune", "seat.yaml", "--trials", "2", "--sampler", "pbt", "--rounds", "2"),
    "plans": ("plans", "runs/evil/config.yaml"),
    "validate": ("config", "validate", "seat.yaml"),
    "show": ("config", "show", "runs/evil/config.yaml"),
}


@pytest.fixture
def experiments(folder):
    """Experiments of one's own that name the run."""
    base = {"extends": "gridworld-cooperative"}
    (folder / "mine.yaml").write_text(yaml.safe_dump({"extends": "runs/evil/config.yaml"}))
    seat = base | {"groups": {"team": {"policy": {"run": "runs/evil"}}}}
    (folder / "seat.yaml").write_text(yaml.safe_dump(seat))
    start = base | {"groups": {"team": {"start": {"run": "runs/evil"}}}}
    (folder / "start.yaml").write_text(yaml.safe_dump(start))


def refused(answer, path="runs/evil"):
    code, out, err = answer
    assert code in (1, 2)
    assert "--trust" in err, err
    assert path in err
    assert SECRET not in out + err


@pytest.mark.parametrize("command", PLAYING)
def test_what_plays_a_run_refuses_its_code(coterie_, folder, evil, experiments, command):
    refused(coterie_(*PLAYING[command]))
    assert not imported(folder)
    assert not (folder / "new").exists()


@pytest.mark.parametrize("command", [name for name in PLAYING if name not in ("plans", "export")])
def test_what_plays_a_run_runs_its_code_with_trust(coterie_, folder, evil, experiments, command):
    coterie_(*PLAYING[command], "--trust")
    assert imported(folder)


@every_kind
@pytest.mark.parametrize("command", ["eval", "resume"])
def test_every_kind_of_code_is_refused(coterie_, folder, evil, command):
    config = yaml.safe_load((evil / "config.yaml").read_text())
    if "groups" in config and config["groups"]["team"]["start"]:
        shutil.rmtree(evil / "checkpoints")  # what it begins with counts at its beginning alone
        (evil / "history.json").unlink()
        command = "resume"
    code, out, err = coterie_(*PLAYING[command])
    assert (code in (1, 2), "--trust" in err) == (True, True), err
    assert not imported(folder)
    assert SECRET not in out + err
    assert SECRET not in (evil / "config.yaml").read_text()


def test_the_error_names_the_run_and_every_setting(coterie_, folder, evil, trained):
    settings = yaml.safe_load((evil / "config.yaml").read_text())
    KINDS["learner"](settings)
    (evil / "config.yaml").write_text(yaml.safe_dump(settings))
    _, _, err = coterie_("eval", "runs/evil")
    for said in ("'runs/evil'", f"world.name={MODULE}:World", f"groups.team.learner.name={MODULE}:Learner"):
        assert said in err


def test_trust_is_an_argument_in_python(folder, evil):
    for call in (coterie.load, coterie.resume, coterie.match):
        with pytest.raises(Untrusted, match=r"world\.name"):
            call("runs/evil")
        assert not imported(folder)
    with pytest.raises(ConfigError, match=MODULE):  # which has no such class
        coterie.load("runs/evil", trust=True)
    assert imported(folder)


def test_a_signed_run_runs_its_code(coterie_, folder, evil):
    trust.sign(evil / "config.yaml")
    coterie_("eval", "runs/evil")
    assert imported(folder)


def test_a_signed_run_is_listed_without_its_code(coterie_, folder, evil):
    trust.sign(evil / "config.yaml")
    for name, words in LISTING.items():
        code, _, err = coterie_(*words)
        assert (code, imported(folder)) == (0, False), (name, err)


def test_a_config_that_was_changed_after_signing_is_refused(coterie_, folder, evil):
    trust.sign(evil / "config.yaml")
    with open(evil / "config.yaml", "a") as file:
        file.write("# changed\n")
    refused(coterie_("eval", "runs/evil"))
    assert not imported(folder)


def test_a_signature_of_one_run_says_nothing_of_another(coterie_, folder, evil):
    """A user's own run that plays with somebody else's asks about that one."""
    settings = yaml.safe_load((folder / "runs" / "plain" / "config.yaml").read_text())
    KINDS["seated"](settings)
    (folder / "runs" / "plain" / "config.yaml").write_text(yaml.safe_dump(settings))
    trust.sign(folder / "runs" / "plain" / "config.yaml")
    refused(coterie_("eval", "runs/plain"), "runs/second")
    assert not imported(folder)


@pytest.mark.parametrize("words", [(), ("--trust",)])
def test_a_run_that_names_nothing_foreign_needs_no_trust(coterie_, trained, folder, words):
    copied(trained, folder / "theirs")
    code, out, err = coterie_("eval", "theirs", "--episodes", "2", *words)
    assert (code, "checkpoint best" in out) == (0, True), err
    assert coterie_("resume", "theirs", "train.total_steps=320", *words)[0] == 0
    assert trust.is_signed(folder / "theirs" / "config.yaml")


# Runs of one's own --------------------------------------------------------------------------------------

OWN = """\
from helpers.run import Odd, OddSettings

class World(Odd):
    def __init__(self, settings: OddSettings, num_envs: int) -> None:
        super().__init__(settings, num_envs)
"""
MINE = """\
world: {name: "canary:World"}
groups: {all: {policy: {name: network, hidden: [4]}, learner: {name: ppo}}}
train: {num_envs: 4, rollout_steps: 6, total_steps: 48, evaluate_episodes: 4, video: false, tensorboard: false}
"""


@pytest.fixture
def own(folder):
    """A run with a world of one's own, trained by its experiment."""
    (folder / f"{MODULE}.py").write_text(CANARY.format(mark=str(folder / "imported")) + OWN)
    coterie.train(str(written(folder / "mine.yaml", MINE)), out="own", quiet=True)
    sys.modules.pop(MODULE)
    (folder / "imported").unlink()
    return folder / "own"


def test_a_run_of_one_s_own_plays_as_before(coterie_, own, folder):
    shutil.move(own, folder / "moved")
    shutil.copytree(folder / "moved", folder / "copy")
    for path in ("moved", "copy"):
        code, _, err = coterie_("eval", path, "--episodes", "2")
        assert code == 0, err
    code, _, err = coterie_("resume", "moved", "train.total_steps=96")
    assert code == 0, err
    code, _, err = coterie_("eval", "moved", "--episodes", "2")
    assert code == 0, err


def test_a_run_of_one_s_own_is_listed_without_import(coterie_, own, folder):
    for words in (("runs", "--in", "."), ("report", "own"), ("compare", "own")):
        code, _, err = coterie_(*words)
        assert (code, imported(folder)) == (0, False), err


def test_the_report_after_training_has_the_settings_of_a_world_of_one_s_own(own):
    page = (own / "report.html").read_text()
    assert "left out" not in page
    assert f"{MODULE}:World" in page


def test_sweeps_go_on_with_runs_of_one_s_own(coterie_, own, folder):
    words = ("train", "mine.yaml", "-m", "seed=1,2", "--out", "sweep", "--quiet")
    assert coterie_(*words)[0] == 0
    (folder / "sweep" / "seed=1" / "summary.json").unlink()
    code, _, err = coterie_(*words)
    assert code == 0, err


# Other ways out of a run --------------------------------------------------------------------------------


class Payload:
    def __reduce__(self):
        return (os.mkdir, ("pwned",))


@pytest.mark.parametrize("file", ["state.json", "arrays.safetensors", "manifest.json"])
def test_a_pickled_checkpoint_is_not_unpickled(coterie_, trained, folder, file):
    path = copied(trained, folder / "runs" / "evil")
    for checkpoint in (path / "checkpoints").iterdir():
        (checkpoint / file).write_bytes(pickle.dumps(Payload()))
    for words in (*LISTING.values(), PLAYING["eval"], ("eval", "runs/evil", "--trust")):
        coterie_(*words)
        assert not (folder / "pwned").exists()


@pytest.mark.parametrize("tag", ["!!python/object/apply:os.mkdir ['pwned']", "!!python/name:os.system ''"])
def test_tags_of_yaml_make_no_objects(coterie_, trained, folder, tag):
    path = copied(trained, folder / "runs" / "evil")
    with open(path / "config.yaml", "a") as file:
        file.write(f"extra: {tag}\n")
    for words in (("runs", "--in", "runs"), ("report", "runs/evil"), ("eval", "runs/evil", "--trust")):
        coterie_(*words)
        assert not (folder / "pwned").exists()


def test_links_that_lead_out_of_a_run_are_not_followed_by_what_plays(coterie_, trained, folder):
    path = copied(trained, folder / "runs" / "evil")
    (folder / "elsewhere").mkdir()
    shutil.rmtree(path / "tensorboard", ignore_errors=True)
    (path / "tensorboard").symlink_to(folder / "elsewhere")
    code, _, err = coterie_("resume", "runs/evil", "train.total_steps=320", "train.tensorboard=true")
    assert (code, "tensorboard" in err, "--trust" in err) == (1, True, True)
    assert not list((folder / "elsewhere").iterdir())


@pytest.mark.parametrize(
    "name", ["run.lock", ".metrics.jsonl.tmp", ".config.yaml.tmp", ".signature.tmp", "report.html"]
)
def test_files_of_a_run_that_are_links_do_not_overwrite_others(coterie_, trained, folder, name):
    path = copied(trained, folder / "runs" / "evil")
    (folder / "precious").write_text("kept")
    (path / name).unlink(missing_ok=True)
    (path / name).symlink_to(folder / "precious")
    coterie_("runs", "--in", "runs")
    coterie_("report", "runs/evil")
    coterie_("resume", "runs/evil", "train.total_steps=320", "--trust")
    assert (folder / "precious").read_text() == "kept"


def test_a_video_that_is_a_link_is_not_put_into_a_report(coterie_, trained, folder):
    path = copied(trained, folder / "runs" / "evil")
    (folder / "precious.gif").write_bytes(b"GIF89a precious")
    (path / "videos" / "eval").mkdir(parents=True, exist_ok=True)
    (path / "videos" / "eval" / "step-000000000064.gif").symlink_to(folder / "precious.gif")
    assert Run(path).videos() == []
    assert coterie_("report", "runs/evil", "--out", "report.html")[0] == 0
    assert base64.b64encode(b"GIF89a precious").decode() not in (folder / "report.html").read_text()


CONFIG = {"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 8}


@needs("transformers", "lm")
@pytest.mark.parametrize("way", ["code", "pickle"])
def test_a_model_s_folder_is_data(folder, way):
    """Neither code beside its weights nor objects among them run, with --trust neither."""
    from coterie.lm.ask.interface import LMError

    made = folder / "model"
    made.mkdir()
    (made / "evil.py").write_text((folder / f"{MODULE}.py").read_text())
    own = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model", "AutoTokenizer": "evil.Tokenizer"}
    config = CONFIG | ({"auto_map": own, "model_type": "evil"} if way == "code" else {"intermediate_size": 8})
    (made / "config.json").write_text(json.dumps(config))
    (made / "tokenizer_config.json").write_text(json.dumps({"auto_map": own} if way == "code" else {}))
    (made / "pytorch_model.bin").write_bytes(pickle.dumps(Payload()))
    with pytest.raises((LMError, ValueError)):
        coterie.lm.load(str(made))
    assert not imported(folder)
    assert not (folder / "pwned").exists()


SCRIPT = "<script>alert(1)</script><img src=x onerror=alert(1)>"


def test_markup_in_a_run_is_text_in_its_report(coterie_, trained, folder):
    path = copied(trained, folder / "runs" / "evil")
    settings = yaml.safe_load((path / "config.yaml").read_text())
    settings["groups"] = {SCRIPT.replace("/", ""): settings["groups"]["team"]}
    settings["experiment"] = SCRIPT
    settings["world"] = {"name": f"{MODULE}:World", SCRIPT: SCRIPT}
    (path / "config.yaml").write_text(yaml.safe_dump(settings))
    name = SCRIPT.replace("/", "")
    for file in ("metrics.jsonl", "summary.json"):
        text = (path / file).read_text().replace('"team', f'"{name}')
        (path / file).write_text(text)
    summary = json.loads((path / "summary.json").read_text()) | {"best_reason": SCRIPT, "experiment": SCRIPT}
    (path / "summary.json").write_text(json.dumps(summary))
    provenance = [dict.fromkeys(("command", "date", "version", "python", "machine"), SCRIPT)]
    (path / "provenance.json").write_text(json.dumps(provenance))
    (path / "labels.json").write_text(json.dumps({"tags": [SCRIPT], "archived": False}))
    code, _, err = coterie_("report", "runs/evil", "--out", "report.html")
    assert code == 0, err
    page = (folder / "report.html").read_text()
    assert "<script>alert" not in page
    assert "<img src=x" not in page
    code, _, err = coterie_("compare", "runs/evil", "--out", "compare.html")
    assert code == 0, err
    assert "<script>alert" not in (folder / "compare.html").read_text()


def test_a_run_cannot_change_the_terminal(coterie_, trained, folder):
    path = copied(trained, folder / "runs" / "evil")
    (path / "labels.json").write_text(json.dumps({"tags": ["\x1b]0;owned\x07"], "archived": False}))
    code, out, _ = coterie_("runs", "--in", "runs")
    assert (code, "\x1b" in out) == (0, False)


# The environment ----------------------------------------------------------------------------------------


def everything(folder):
    return b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())


def test_what_a_config_reads_from_the_environment_is_written_nowhere(coterie_, folder):
    words = ["experiment=${oc.env:SECRET}", "world.max_steps=${oc.decode:${oc.env:STEPS}}"]
    os.environ["STEPS"] = "7919"
    try:
        code, _, err = coterie_("train", "gridworld-cooperative", *GRID, *words, "--out", "own", "--quiet")
        assert code == 0, err
        config = yaml.safe_load((folder / "own" / "config.yaml").read_text())
        assert config["experiment"] == "${oc.env:SECRET}"
        assert config["world"]["max_steps"] == "${oc.decode:${oc.env:STEPS}}"
        assert coterie.load("own").config.world.settings.max_steps == 7919
        assert coterie_("report", "own")[0] == coterie_("runs", "--in", ".")[0] == 0
        assert coterie_("resume", "own", "train.total_steps=320")[0] == 0
        assert SECRET.encode() not in everything(folder / "own")
    finally:
        del os.environ["STEPS"]


@pytest.mark.parametrize("path", [("experiment",), ("seed",), ("world", "grid_size"), ("train", "total_steps")])
def test_lists_of_other_peoples_runs_do_not_read_the_environment(coterie_, trained, folder, path):
    copied(trained, folder / "runs" / "evil", at(*path, value="${oc.env:SECRET}"))
    for words in (("runs", "--in", "runs"), ("runs", "--in", "runs", "--json"), LISTING["report"]):
        _, out, err = coterie_(*words)
        assert SECRET not in out + err
        assert coterie_("runs", "--in", "runs")[0] == 0
    refused(coterie_("eval", "runs/evil"))
    assert SECRET.encode() not in everything(folder / "runs")
