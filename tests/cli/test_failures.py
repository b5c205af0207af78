"""Failures of commands: exit codes as documented, one sentence, and the traceback for those who ask for it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.core import own_code
from helpers import own_classes
from helpers.run import GRID, environment, train

SHORT = tuple(word for word in GRID if not word.startswith("groups."))
FAILING = ("groups.team.policy=helpers.own_classes:FailingPolicy", "groups.team.learner=none")
LINE = 1 + Path(own_classes.__file__).read_text().split("\n").index(
    '    return table["missing"]  # the line that is to be named'
)


@pytest.fixture
def _short_paths(monkeypatch):
    monkeypatch.chdir(Path(own_classes.__file__).parent.parent)
    monkeypatch.delenv(own_code.DEBUG, raising=False)


@pytest.mark.usefixtures("_short_paths")
@pytest.mark.parametrize(
    "more",
    [
        (),
        pytest.param(("train.workers=1",), marks=pytest.mark.slow),
        pytest.param(("-m", "seed=0,1", "--jobs", "2"), marks=pytest.mark.slow),
    ],
    ids=["here", "in a worker", "in a job"],
)
def test_an_exception_of_ones_own_policy_is_one_sentence_with_its_line(coterie_, tmp_path, more):
    code, _, err = coterie_(
        "train", "gridworld-cooperative", *SHORT, *FAILING, *more, "--out", tmp_path / "a", "--quiet"
    )
    assert code == 1
    assert len(err.splitlines()) == 1
    assert f"your code raised KeyError: 'missing' (helpers/own_classes.py:{LINE}, look_up)" in err


def test_the_traceback_is_printed_on_request(tmp_path):
    words = ["-m", "coterie", "--debug", "train", "gridworld-cooperative", *SHORT, *FAILING]
    done = subprocess.run(
        [sys.executable, *words, "--out", tmp_path / "a", "--quiet"], capture_output=True, text=True, env=environment()
    )
    assert done.returncode == 1
    assert "Traceback (most recent call last):" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("coterie: your code raised KeyError: 'missing'")


def test_an_error_that_nobody_foresaw_keeps_its_traceback(coterie_, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError

    monkeypatch.setattr("coterie.cli.doctor.examine", broken)
    monkeypatch.setattr(own_code, "_is_own", lambda file: False)  # as if it were a file of Coterie's
    with pytest.raises(ZeroDivisionError):
        coterie_("doctor")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise RuntimeError('boom')", "module 'mine' cannot be imported: RuntimeError: boom (mine.py:1)"),
        ("def f(:", "module 'mine' cannot be imported: SyntaxError: invalid syntax (mine.py:1)"),
        ("import os\nos.nothing", "module 'mine' cannot be imported: AttributeError: module 'os' has no attribute"),
        ("import no_such_package", "'mine:World' needs the module 'no_such_package', which is not installed"),
        ("class Word: pass", "module 'mine' has no 'World'; did you mean 'Word'?"),
        ("class World: pass", "mine:World must inherit from coterie.World"),
    ],
)
def test_a_world_of_ones_own_that_cannot_be_used_is_refused_for_its_reason(
    coterie_, tmp_path, monkeypatch, source, said
):
    (tmp_path / "mine.py").write_text(f"{source}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    code, _, err = coterie_("train", "gridworld-cooperative", "world=mine:World", "--out", tmp_path / "a")
    assert code == 2
    assert err.startswith(f"coterie: world.name: {said}") or err == f"coterie: world: {said}\n"
    assert "gymnasium" not in err


@pytest.mark.parametrize(
    ("experiment", "learner", "said"),
    [
        ("pendulum-sac", "dqn", "policy 'q_network' needs a discrete action space, but 'agent_0' acts in Box"),
        ("cartpole-dqn", "sac", "policy 'gaussian' needs continuous actions, but 'agent_0' acts in Discrete"),
    ],
)
def test_a_learner_that_does_not_fit_the_actions_is_not_given_a_policy_that_does_not_either(
    coterie_, tmp_path, experiment, learner, said
):
    words = (f"groups.agent.learner={learner}", "--out", tmp_path / "a")
    code, _, err = coterie_("train", experiment, *words)
    assert code == 2
    assert said in err
    assert "set groups.agent.policy" not in err


@pytest.mark.parametrize(
    ("command", "option", "said"),
    [
        ("train", ("--seed", "3"), "seed=VALUE"),
        ("clone", ("--seed=3",), "seed=VALUE"),
        ("train", ("--num-envs", "4"), "train.num_envs=VALUE"),
        ("train", ("--world.grid_size=7",), "world.grid_size=VALUE"),
        ("train", ("--quite",), "(Possible options: --out, --quiet)"),
    ],
)
def test_a_setting_that_is_written_as_an_option_is_hinted_at(coterie_, command, option, said):
    code, _, err = coterie_(command, "gridworld-cooperative", *option)
    assert code == 2
    assert said in " ".join(err.replace("│", " ").split())


INTERRUPTED_IMPORT = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, *rest):
        if name == "typer":
            signal.raise_signal(signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where the tests run in the background
sys.meta_path.insert(0, Interrupting())
sys.argv = ["coterie", "list"]
from coterie.cli import main
main()
"""


def test_ctrl_c_while_the_command_is_being_imported_has_no_traceback():
    done = subprocess.run([sys.executable, "-c", INTERRUPTED_IMPORT], capture_output=True, text=True, env=environment())
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "coterie: interrupted\n")


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return train(tmp_path_factory.mktemp("shared") / "run")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("groups.team.policy.identity=false",), "has inputs for which of 2 agents it plays; set groups.team.policy.i"),
        (("world.num_agents=3",), "A set network"),
        (("groups.team.policy.hidden=[9]",), "A set network"),
    ],
)
def test_a_start_that_differs_in_identity_alone_is_told_so(coterie_, shared, tmp_path, more, said):
    words = (*GRID, *more, f"groups.team.start={shared.path}", "--out", tmp_path / "a", "--quiet")
    code, _, err = coterie_("train", "gridworld-cooperative", *words)
    assert code == 2
    assert said in err
    assert ("identity" in err) == (more[0].startswith("groups.team.policy.identity"))


def test_a_start_without_identity_is_refused_by_a_network_that_has_it(coterie_, tmp_path):
    plain = train(tmp_path / "plain", "groups.team.policy.identity=false")
    words = (*GRID, f"groups.team.start={plain.path}", "--out", tmp_path / "a", "--quiet")
    code, _, err = coterie_("train", "gridworld-cooperative", *words)
    assert code == 2
    assert "has no inputs for which of 2 agents it plays; set groups.team.policy.identity=false" in err


REFUSED = 2
FAILED = 1


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("train",), REFUSED),
        (("train", "no-such-experiment"), REFUSED),
        (("train", "gridworld-meet", "seed"), REFUSED),
        (("train", "gridworld-meet", "sede=1"), REFUSED),
        (("train", "gridworld-meet", "world.grid_size=1"), REFUSED),
        (("train", "gridworld-meet", "--jobs", "x"), REFUSED),
        (("nonsense",), REFUSED),
        (("resume", "nowhere"), FAILED),
        (("eval", "nowhere"), FAILED),
        (("watch", "nowhere"), FAILED),
        (("report", "nowhere"), FAILED),
        (("compare", "nowhere"), FAILED),
        (("runs", "--in", "nowhere"), FAILED),
        (("match", "nowhere", "random"), FAILED),
        (("check", "world", "nowhere"), REFUSED),
        (("config", "show", "nowhere"), REFUSED),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_exit_codes_are_those_of_the_documentation(coterie_, tmp_path, monkeypatch, words, expected):
    monkeypatch.chdir(tmp_path)
    code, out, err = coterie_(*words)
    assert (code, out) == (expected, "")
    assert err
    assert not re.search(r"Traceback", err)
