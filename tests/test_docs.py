"""Documents are executable: experiments, the README's commands and snippets, the tree it prints."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

import coterie
from coterie import config
from coterie.cli import app

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
MOMENT = [
    *("train.total_steps=64", "train.copies=4", "train.steps=8", "train.evaluate_episodes=2"),
    *("train.video=false", "train.tensorboard=false"),
]


@pytest.mark.parametrize("name", config.experiments())
def test_every_experiment_runs_for_a_moment(name, tmp_path):
    run = coterie.train(name, MOMENT, out=tmp_path / "run", quiet=True)
    assert run.summary()["env_steps"] == 64


def test_the_readmes_python_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (snippet,) = re.findall(r"```python\n(.*?)```", README, re.S)
    assert "train.total_steps=200000" in snippet
    short = snippet.replace('"train.total_steps=200000"', ", ".join(f'"{word}"' for word in MOMENT))
    names: dict = {}
    exec(short, names)
    assert names["actions"].shape == (1,)


def test_the_readmes_table_of_groups_is_valid(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    world = ["world.mode=competitive", "world.num_agents=3", "world.num_targets=3"]
    coterie.train("gridworld-competitive", [*MOMENT, *world], out="runs/a", quiet=True)
    (table,) = re.findall(r"```yaml\n(.*?)```", README, re.S)
    Path("table.yaml").write_text(table)
    run = coterie.train("table.yaml", MOMENT, out="runs/b", quiet=True)
    assert set(run.config().groups) == {"learners", "veterans", "scripts"}


def test_the_readmes_commands_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    block = next(b for b in re.findall(r"```sh\n(.*?)```", README, re.S) if "coterie list" in b)
    coterie.train("gridworld-cooperative", MOMENT, out="runs/b", quiet=True)
    for line in block.splitlines():
        words = shlex.split(line, comments=True)[1:]
        if words[0] == "train":
            words = [w for w in words if not w.startswith("train.total_steps")]
            words += [*MOMENT, "--quiet"]
        if words[0] in ("eval", "match"):
            words += ["--episodes", "2"]
        result = CliRunner().invoke(app, words, catch_exceptions=False)
        assert result.exit_code == 0, f"{line}: {result.output}"


def test_the_readmes_tree_names_every_file():
    (tree,) = re.findall(r"```\n(src/coterie/.*?)```", README, re.S)
    listed = set(re.findall(r"([\w-]+\.py)", tree))
    there = {p.name for p in (ROOT / "src" / "coterie").rglob("*.py") if p.name != "__init__.py"}
    assert there - listed == set()
    assert {name for name in listed if name.endswith(".py")} - there == set()


def test_links_between_documents_hold():
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} points to {target}"
