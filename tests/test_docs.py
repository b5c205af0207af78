"""Documents are executable: the README's commands and snippets, the tree it prints."""

import dataclasses
import re
import shlex
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from typer.testing import CliRunner

import coterie
from coterie.algorithms.dqn.dqn import DQNSettings, EpsilonSettings, TargetSettings
from coterie.algorithms.maddpg.maddpg import CriticSettings, MADDPGSettings, MemorySettings, NoiseSettings
from coterie.algorithms.maddpg.maddpg import TargetSettings as SlowTargetSettings
from coterie.algorithms.ppo.ppo import PPOSettings
from coterie.algorithms.replay import ReplaySettings
from coterie.cli.app import app
from coterie.config import registry, schema
from coterie.config.schema import SeatedRun, StopSettings, TrainSettings
from coterie.core import lookup
from coterie.core.advice import AskSettings, UseSettings
from coterie.policies.deterministic import DeterministicSettings
from coterie.policies.language import LanguageSettings
from coterie.policies.lora import LoraSettings
from coterie.policies.network import NetworkSettings
from coterie.policies.q_network import QNetworkSettings
from coterie.policies.text_encoder import TextSettings
from coterie.preferences.reward_model import RewardModelSettings
from coterie.preferences.standard import CPTSettings, CVaRSettings, MeanVarianceSettings
from coterie.roles.advisor import LanguageAdvisorSettings
from coterie.roles.bonus import InstructionBonusSettings, PairwiseBonusSettings
from coterie.roles.constraints import ConstraintSettings
from coterie.roles.shaping import PotentialShapingSettings
from helpers.run import MOMENT

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
ROW = re.compile(r"^\| `(\w+)` \| ([^|]+?) \|", re.M)  # a setting and its default


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


@pytest.mark.slow
def test_the_readmes_commands_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    block = next(b for b in re.findall(r"```sh\n(.*?)```", README, re.S) if "coterie list" in b)
    coterie.train("gridworld-cooperative", MOMENT, out="runs/b", quiet=True)
    for line in block.splitlines():
        words = shlex.split(line, comments=True)[1:]
        if words[0] == "train":
            words = [w for w in words if not w.startswith("train.total_steps")]
            words += [*MOMENT, "--quiet"]
        if words[0] == "tune":
            words = [w for w in words if not w.startswith("train.total_steps")]
            words[words.index("--trials") + 1] = "2"
            words += MOMENT
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


def settings_types():
    tables = (
        registry.WORLDS,
        registry.POLICIES,
        registry.LEARNERS,
        registry.PREFERENCES,
        registry.SHIELDS,
        registry.ADVISORS,
    )
    agent_types = [TrainSettings, StopSettings, SeatedRun, *(lookup.settings_type(t, n) for t in tables for n in t)]
    nested = [type(spec.default_factory()) for kind in agent_types for spec in made_settings(kind)]
    return agent_types + nested


def made_settings(kind):
    """The fields whose defaults are settings of their own."""
    return [spec for spec in dataclasses.fields(kind) if dataclasses.is_dataclass(spec.default_factory)]


def test_every_setting_is_documented():
    pages = "".join(page.read_text() for page in (ROOT / "docs").glob("*.md"))
    named = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`\n]+)`", pages))))
    for kind in settings_types():
        assert {spec.name for spec in dataclasses.fields(kind)} - named == set(), kind.__name__


def test_the_documented_defaults_are_the_real_ones():
    page = (ROOT / "docs" / "settings.md").read_text()
    for heading, kind in (
        ("train", TrainSettings),
        ("policy: network", NetworkSettings),
        ("policy: network, text", TextSettings),
        ("learner: ppo", PPOSettings),
        ("policy: q_network", QNetworkSettings),
        ("learner: dqn", DQNSettings),
        ("learner: dqn, epsilon", EpsilonSettings),
        ("learner: dqn, target", TargetSettings),
        ("learner: dqn, replay", ReplaySettings),
        ("policy: deterministic", DeterministicSettings),
        ("learner: maddpg", MADDPGSettings),
        ("learner: maddpg, noise", NoiseSettings),
        ("learner: maddpg, critic", CriticSettings),
        ("learner: maddpg, target", SlowTargetSettings),
        ("learner: maddpg, replay", MemorySettings),
        ("policy: language", LanguageSettings),
        ("policy: lora", LoraSettings),
        ("preference: cpt", CPTSettings),
        ("preference: cvar", CVaRSettings),
        ("preference: mean_variance", MeanVarianceSettings),
        ("preference: potential_shaping", PotentialShapingSettings),
        ("preference: pairwise_lm", PairwiseBonusSettings),
        ("preference: instruction_lm", InstructionBonusSettings),
        ("preference: reward_model", RewardModelSettings),
        ("constraints: language", ConstraintSettings),
        ("advisor: language", LanguageAdvisorSettings),
        ("advisor, ask", AskSettings),
        ("advisor, use", UseSettings),
    ):
        section = re.split(r"\n##+ ", page.split(f"# {heading}\n")[1])[0]
        shown = {name: OmegaConf.create(f"x: {value.strip('`')}").x for name, value in ROW.findall(section)}
        nested = {spec.name: "below" for spec in made_settings(kind)}
        real = {
            f.name: list(f.default) if isinstance(f.default, tuple) else f.default for f in dataclasses.fields(kind)
        } | nested
        none = None if heading not in ("learner: dqn", "policy: lora") else "none"  # a mixer's name, no examples
        assert {k: none if v == "none" else v for k, v in shown.items()} == real, heading


def test_the_example_of_settings_is_valid(tmp_path):
    (text,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "settings.md").read_text(), re.S)
    (tmp_path / "mine.yaml").write_text(text)
    loaded = schema.load(str(tmp_path / "mine.yaml"))
    assert (loaded.world.settings.grid_size, loaded.train.stop) == (6, StopSettings(49.0))


def test_the_examples_of_tastes_for_risk_run(tmp_path):
    examples = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "cpt.md").read_text(), re.S)
    assert len(examples) == 2
    for number, text in enumerate(examples):
        (tmp_path / f"{number}.yaml").write_text(text)
        coterie.train(str(tmp_path / f"{number}.yaml"), MOMENT, out=tmp_path / f"run-{number}", quiet=True)


def test_links_between_documents_hold():
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} points to {target}"
