"""`coterie runs`: list, filter, tag, archive, delete; `doctor`, help and completion."""

import fcntl
import json
import subprocess
import sys
import time
import tomllib

import pytest

from coterie.cli import doctor, runs
from coterie.runs import index as run_index
from coterie.runs.provenance import locked
from coterie.runs.run import LOCK, STUDY_LOCK, Run
from helpers.compare import GRID, fabricate
from helpers.run import SOURCES, environment, train


@pytest.fixture
def two_runs(tmp_path, monkeypatch):
    """Two runs below runs/, one finished and one not."""
    monkeypatch.chdir(tmp_path)
    fabricate(tmp_path / "runs" / "a", "seed=3", score=8.0)
    fabricate(tmp_path / "runs" / "deep" / "b", "seed=4", finished=False)
    return tmp_path / "runs"


def listed(coterie_, *words):
    code, out, err = coterie_("runs", *words, "--json")
    assert code == 0, err
    return [one["path"] for one in json.loads(out)]


# Listing ------------------------------------------------------------------------------------------------


def test_runs_are_listed_with_state_steps_score_and_size(coterie_, two_runs):
    code, out, _ = coterie_("runs")
    assert code == 0
    head, first, second, last = out.splitlines()
    assert head.split() == ["run", "state", "steps", "return", "size"]
    assert first.split()[:4] == ["a", "finished", "200", "8.00"]
    assert second.split()[:3] == ["deep/b", "stopped", "0"]
    assert last.startswith("2 runs below runs, ")
    (one, _) = json.loads(coterie_("runs", "--json")[1])
    assert (one["experiment"], one["seed"], one["state"], one["score"]) == (GRID, 3, "finished", 8.0)
    assert one["size"] > 100


def test_list_is_also_a_command(coterie_, two_runs):
    assert coterie_("runs", "list") == coterie_("runs")
    code, _, err = coterie_("runs", "--state", "stopped", "list")  # would be left out silently
    assert (code, "options go after the command: coterie runs list" in err) == (2, True)
    code, out, _ = coterie_("runs", "list", "--state", "stopped", "--json")
    assert (code, [one["path"] for one in json.loads(out)]) == (0, ["runs/deep/b"])


def test_a_directory_without_its_option_is_answered_with_the_option(coterie_, two_runs):
    code, _, err = coterie_("runs", "runs/deep")
    assert (code, "coterie runs --in runs/deep" in err) == (2, True)
    code, _, err = coterie_("runs", "nowhere")
    assert (code, "No such command 'nowhere'" in err) == (2, True)


def test_runs_inside_runs_are_no_runs_of_their_own(coterie_, two_runs):
    fabricate(two_runs / "a" / "exploit" / "team")
    assert listed(coterie_) == ["runs/a", "runs/deep/b"]


@pytest.mark.slow
def test_lists_can_be_filtered(coterie_, two_runs):
    assert listed(coterie_, "--state", "stopped") == ["runs/deep/b"]
    assert listed(coterie_, "--experiment", "other") == []
    assert listed(coterie_, "--in", "runs/deep") == ["runs/deep/b"]
    assert "no such run below 'runs'" in coterie_("runs", "--experiment", "other")[1]
    code, _, err = coterie_("runs", "--state", "done")
    assert (code, err) == (1, "coterie: --state: expected finished, running, stopped, got 'done'\n")
    code, _, err = coterie_("runs", "--in", "nowhere")
    assert code == 1
    assert err.startswith("coterie: 'nowhere' is not a directory; name one with runs below it: coterie runs --in ")


def test_a_run_whose_config_cannot_be_read_is_listed(coterie_, two_runs):
    (two_runs / "a" / "config.yaml").write_text("world: {name: gone}\n")
    assert "?" in [one["experiment"] for one in json.loads(coterie_("runs", "--json")[1])]


@pytest.mark.parametrize("summary", ["[]", "{", '{"evaluation": 1, "env_steps": 200}', "\udcff"])
def test_a_run_whose_summary_is_damaged_is_listed_and_not_resumed(coterie_, two_runs, summary):
    (two_runs / "a" / "summary.json").write_bytes(summary.encode(errors="surrogateescape"))
    assert listed(coterie_) == ["runs/a", "runs/deep/b"]
    code, _, err = coterie_("resume", "runs/a")
    assert (code, "summary.json' is damaged" in err) == (1, True)


REPLACE = """
import itertools, pathlib, shutil, sys
for number in itertools.count():
    folder = pathlib.Path(sys.argv[1]) / f"step-{number}"
    folder.mkdir()
    for name in ("config.yaml", "state.json"):
        (folder / name).write_text("{}")
    shutil.rmtree(folder)
"""


@pytest.mark.slow
def test_files_that_a_training_replaces_do_not_disturb_a_list(tmp_path):
    training = subprocess.Popen([sys.executable, "-c", REPLACE, str(tmp_path)])
    try:
        while not list(tmp_path.iterdir()):
            time.sleep(0.01)
        for _ in range(5000):
            run_index.size(tmp_path)
            run_index.find(tmp_path)
    finally:
        training.kill()
        training.wait()


def test_long_names_fit_80_columns(coterie_, two_runs):
    fabricate(two_runs / ("long" * 25), "seed=5")
    assert max(map(len, coterie_("runs")[1].splitlines()[:3])) <= 80


# Labels -------------------------------------------------------------------------------------------------


def test_tags_are_added_removed_and_filter_lists(coterie_, two_runs):
    code, out, _ = coterie_("runs", "tag", "runs/a", "runs/deep/b", "--add", "good", "--add", "v1.2")
    assert (code, out) == (0, "runs/a: good, v1.2\nruns/deep/b: good, v1.2\n")
    assert coterie_("runs", "tag", "runs/a", "--remove", "good")[1] == "runs/a: v1.2\n"
    assert listed(coterie_, "--tag", "good") == ["runs/deep/b"]
    assert listed(coterie_, "--tag", "v1.2") == ["runs/a", "runs/deep/b"]
    assert coterie_("runs")[1].splitlines()[0].endswith("tags")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tag", "runs/a"], "name a tag with --add or --remove: coterie runs tag RUN --add NAME"),
        (["tag", "runs/a", "good"], "name a tag with --add or --remove: coterie runs tag RUN --add NAME"),
        (
            ["tag", "runs/a", "--add", "two words"],
            "--add: a tag has letters, digits, '.', '_' and '-', got 'two words'",
        ),
        (["tag", "runs/none", "--add", "x"], "'runs/none' is not a run: it has no config.yaml"),
        (["archive", "runs"], "'runs' is not a run: it has no config.yaml; below it there are runs/a"),
        (["delete", "runs/none", "--yes"], "'runs/none' is not a run: it has no config.yaml"),
        (["delete", "runs/a"], "deleting needs a yes: add --yes. Nothing was deleted"),
    ],
)
def test_bad_words_are_a_sentence_and_change_nothing(coterie_, two_runs, monkeypatch, words, said):
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False)
    code, _, err = coterie_("runs", *words)
    assert (code, err) == (1, f"coterie: {said}\n")
    assert listed(coterie_) == ["runs/a", "runs/deep/b"]
    assert not list(two_runs.rglob(run_index.LABELS))


def test_damaged_labels_are_named(coterie_, two_runs):
    (two_runs / "a" / run_index.LABELS).write_text("{")
    code, out, err = coterie_("runs")
    assert (code, "2 runs below runs" in out, "labels.json' is damaged" in err) == (0, True, True)
    code, _, err = coterie_("runs", "tag", "runs/a", "--add", "good")
    assert (code, "labels.json' is damaged" in err) == (1, True)


@pytest.mark.slow
def test_an_archived_run_is_hidden_and_kept(coterie_, two_runs):
    assert coterie_("runs", "archive", "runs/a")[1] == "runs/a: archived\n"
    assert (listed(coterie_), listed(coterie_, "--archived")) == (["runs/deep/b"], ["runs/a"])
    assert Run.open(two_runs / "a").summary() is not None
    assert coterie_("runs", "archive", "runs/a", "--back")[1] == "runs/a: listed again\n"
    assert listed(coterie_) == ["runs/a", "runs/deep/b"]


# Deleting -----------------------------------------------------------------------------------------------


def test_a_deleted_run_is_gone_and_others_stay(coterie_, two_runs):
    code, out, _ = coterie_("runs", "delete", "runs/a", "runs/a/", "--yes")
    assert code == 0
    assert out.splitlines()[0] == "runs/a: deleted"
    assert out.splitlines()[1].endswith("freed")
    assert [path.name for path in two_runs.iterdir()] == ["deep"]


def test_what_a_stopped_deletion_left_is_in_no_later_ones_way(coterie_, two_runs):
    left = two_runs / ".a.deleted" / "checkpoints"
    left.mkdir(parents=True)
    (left / "half").write_text("")
    assert coterie_("runs", "delete", "runs/a", "--yes")[0] == 0
    assert [path.name for path in two_runs.iterdir()] == ["deep"]


@pytest.mark.slow
def test_a_run_in_training_is_not_deleted(coterie_, two_runs):
    with open(two_runs / "deep" / "b" / LOCK, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert listed(coterie_, "--state", "running") == ["runs/deep/b"]
        code, _, err = coterie_("runs", "delete", "runs/a", "runs/deep/b", "--yes")
        assert (code, err) == (1, "coterie: 'runs/deep/b' is being trained; stop it first. Nothing was deleted\n")
    assert listed(coterie_) == ["runs/a", "runs/deep/b"]
    assert listed(coterie_, "--state", "running") == []


def test_a_run_of_a_study_that_goes_on_is_not_deleted(coterie_, two_runs):
    """Between its rounds, a population's members are not being trained, and are needed all the same."""
    with open(two_runs / "deep" / STUDY_LOCK, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        code, _, err = coterie_("runs", "delete", "runs/deep/b", "--yes")
        said = "'runs/deep/b' belongs to a study that goes on; stop it first. Nothing was deleted"
        assert (code, err) == (1, f"coterie: {said}\n")
    assert listed(coterie_) == ["runs/a", "runs/deep/b"]
    assert coterie_("runs", "delete", "runs/deep/b", "--yes")[0] == 0


def test_a_run_that_another_plays_with_is_not_deleted(coterie_, two_runs):
    fabricate(two_runs / "c", f"groups.team.policy={{run: {two_runs / 'a'}}}", "groups.team.learner=null")
    code, _, err = coterie_("runs", "delete", "runs/a", "--yes")
    assert code == 1
    assert "'runs/c' plays with policies of 'runs/a'; delete it first, or both together. Nothing was deleted" in err
    assert coterie_("runs", "delete", "runs/a", "runs/c", "--yes")[0] == 0
    assert listed(coterie_) == ["runs/deep/b"]


@pytest.mark.slow
def test_a_run_is_trained_by_one_process_at_a_time(coterie_, tmp_path):
    run = train(tmp_path / "run")
    before = run.metrics_file.read_text()
    with locked(run):
        code, _, err = coterie_("resume", run.path, "train.total_steps=512")
    assert code == 1
    assert "is being trained by another process; wait for it, or stop it" in err
    assert run.metrics_file.read_text() == before
    assert run.summary() is not None


@pytest.mark.parametrize(("size", "words"), [(999, "999 B"), (1500, "1.5 kB"), (2.5e6, "2.5 MB"), (3e9, "3.0 GB")])
def test_sizes_are_said_as_people_do(size, words):
    assert runs.readable(int(size)) == words


# Doctor, help, completion -------------------------------------------------------------------------------


def test_the_doctor_knows_the_packages_of_the_project():
    project = tomllib.loads((SOURCES.parent / "pyproject.toml").read_text())["project"]

    def names(requirements):
        return {one.split("[")[0].split(">")[0].split("<")[0].strip() for one in requirements}

    assert names(project["dependencies"]) == set(doctor.NEEDED)
    for extra, (_, packages) in doctor.EXTRAS.items():
        assert names(project["optional-dependencies"][extra]) == set(packages)
    assert set(project["optional-dependencies"]) - set(doctor.EXTRAS) == {"bench", "docs", "dev"}


def test_the_doctor_names_what_is_missing_in_80_columns(coterie_, monkeypatch):
    monkeypatch.setattr(doctor, "version", lambda name: None if name in ("plotly", "peft") else "1.0")
    code, out, _ = coterie_("doctor")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80 or "/" in max(out.splitlines(), key=len)  # a path may be longer
    flat = " ".join(out.split())
    assert "charts not installed: charts of reports that can be zoomed; pip install 'coterie[charts]'" in flat
    assert "lm not installed (missing: peft): language models" in flat
    assert "disk" in out
    assert "embedded not fetched: 93 MB, by 'make lm' or first use" in flat


@pytest.mark.slow
def test_h_is_help_everywhere(coterie_):
    for words in (["-h"], ["train", "-h"], ["runs", "-h"], ["runs", "delete", "-h"], ["check", "world", "-h"]):
        code, out, _ = coterie_(*words)
        assert code == 0
        assert "Usage:" in out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "expected"),
    [("coterie train gridworld-coop", GRID), ("coterie tun", "tune"), ("coterie eval here/ru", "here/run")],
)
def test_a_shell_completes_commands_experiments_and_runs(tmp_path, line, expected):
    fabricate(tmp_path / "here" / "run")
    words = {"_COTERIE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    command = [sys.executable, "-c", "import sys; sys.argv = ['coterie']; from coterie.cli import main; main()"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment() | words, cwd=tmp_path)
    assert done.stdout.split() == [expected], done.stderr


def test_the_doctor_keeps_a_package_and_its_version_on_one_line(coterie_, monkeypatch):
    monkeypatch.setattr(doctor, "version", lambda name: "123.456.7")
    code, out, _ = coterie_("doctor")
    assert code == 0
    for _, packages in doctor.EXTRAS.values():
        for name in packages:
            assert any(f"{name} 123.456.7" in line for line in out.splitlines()), name
    assert max(map(len, out.splitlines()[:40])) <= 80
    assert doctor.TOGETHER not in out
