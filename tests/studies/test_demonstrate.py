"""Recording demonstrations: what policies saw and did, episode by episode, and how a recording goes on."""

import json
import sys
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest

from coterie.algorithms.imitation import demonstrations
from coterie.algorithms.imitation.demonstrations import PlayedTable
from coterie.config import schema
from coterie.core.group import Actor
from coterie.core.types import UNLABELLED, CoterieError, Decision
from coterie.studies.demonstrate import record
from helpers.demonstrations import GRID, expert
from helpers.run import DUEL, train, written
from helpers.run import GRID as RUN
from helpers.small_worlds import Rounds, spec_in


class Counting:
    """Plays 0, 1, 2, … and says that every third decision was left to chance."""

    memory_size = 0

    def __init__(self):
        self.calls = 0

    def act(self, view):
        self.calls += 1
        action = np.full(view.acting.shape, self.calls % 5)
        return Decision(action, trace={UNLABELLED: np.full(view.acting.shape, self.calls % 3 == 0)})

    def metrics(self):
        return {}


def test_rewards_belong_to_the_latest_decision_and_chance_is_no_label():
    world = Rounds(num_envs=2, agents=2, length=5)
    seated = record.SeatedTable(None, [Actor(spec_in(world), Counting())], {"team": "counting"})
    found = record.play_batch(world, seated, PlayedTable("t", {"name": "rounds"}, "Rounds", True, 0), 0)[0]
    # copy 0 starts at clock 0: agents 0 and 1 decide in turn at steps 0, 2, 4 and 1, 3
    assert [episode.length for episode in found.episodes] == [5, 4]
    first = found.select([0])
    assert first.agent.tolist() == [0, 0, 0, 1, 1]
    assert first.step.tolist() == [0, 2, 4, 1, 3]
    assert first.action.tolist() == [1, 3, 0, 2, 4]
    assert first.labelled.tolist() == [True, False, True, True, True]
    # rewards are 100·agent + clock at every tick: those of tick 0 reach agent 1 before it has decided anything
    assert first.reward.tolist() == [0 + 1, 2 + 3, 4, 101 + 102, 103 + 104]
    assert first.truncated.tolist() == [False, False, True, False, False]
    assert first.terminated.tolist() == [False, False, False, False, True]
    assert first.observation[:, 1].tolist() == [0, 2, 4, 1, 3]
    assert found.final_observation.shape == (2, 2, 3)


@pytest.mark.slow
def test_long_recordings_are_written_seldom(tmp_path, monkeypatch):
    written = []
    save = demonstrations.save
    monkeypatch.setattr(
        demonstrations, "save", lambda folder, parts: (written.append(len(parts[0])), save(folder, parts))
    )
    monkeypatch.setattr(record, "SECONDS_UNWRITTEN", 1e9)
    spec = record.DemonstrationSpec("tictactoe-alphazero", "random", 40 * record.BATCH)
    (part,) = record.record(spec, tmp_path)
    assert written[:3] == [record.BATCH, 2 * record.BATCH, 3 * record.BATCH]
    assert len(written) < 30
    assert written[-1] == len(part) == len(demonstrations.load(tmp_path)) == spec.episodes


def test_a_recording_can_be_stopped_and_continued(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "BATCH", 2)
    expert(tmp_path / "whole", 5)
    expert(tmp_path / "parts", 2)
    expert(tmp_path / "parts", 5)
    one, other = (demonstrations.load(tmp_path / name) for name in ("whole", "parts"))
    for name in (*demonstrations.COLUMNS, "starts"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert one.episodes == other.episodes
    with pytest.raises(CoterieError, match=r"policy was .*expert.*random"):
        expert(tmp_path / "parts", 6, policy="random")
    with pytest.raises(CoterieError, match="world was"):
        expert(tmp_path / "parts", 6, overrides=[*GRID[1:]])


def test_a_recording_is_not_continued_by_other_players(tmp_path):
    run = train(tmp_path / "run")
    seated = {"overrides": RUN[:3], "policy": str(run.path)}
    expert(tmp_path / "own", 1, **seated)
    expert(tmp_path / "own", 2, **seated)
    with pytest.raises(CoterieError, match="checkpoint last"):
        expert(tmp_path / "own", 3, **seated, checkpoint="last")
    tag = {"experiment": "tag-ppo", "group": "prey", "policy": "random"}
    expert(tmp_path / "tag", 1, **tag, overrides=["groups.hunters.policy.hidden=[4]"])
    with pytest.raises(CoterieError, match=r"groups\.hunters\.policy\.hidden"):
        expert(tmp_path / "tag", 2, **tag, overrides=["groups.hunters.policy.hidden=[8]"])


def test_demonstrations_are_the_episodes_that_the_policies_play(tmp_path):
    run = train(tmp_path / "run")
    part = demonstrations.load(expert(tmp_path / "own", 3, str(run.path), [], policy=None))
    again = demonstrations.load(expert(tmp_path / "seated", 3, overrides=RUN[:3], policy=str(run.path)))
    assert part.group == "team"
    np.testing.assert_array_equal(part.action, again.action)  # the run at its own table, and seated at another
    for e, episode in enumerate(part.episodes):
        rows = part.select([e])
        per_agent = [float(rows.reward[rows.agent == a].sum()) for a in range(2)]
        assert per_agent == pytest.approx(episode.returns["team"], abs=1e-4)


def test_the_command_records_and_writes_readable_episodes(coterie_, tmp_path):
    out = tmp_path / "demonstrations"
    words = (*GRID, "--policy", "expert", "--episodes", "3", "--readable", "2", "--out", out)
    code, said, errors = coterie_("demonstrate", "gridworld-cooperative", *words)
    assert code == 0, errors
    assert "3 episodes by expert" in said
    episodes = json.loads((out / "team.json").read_text())
    assert len(episodes) == 2
    assert episodes[0]["success"] is True
    assert "target" in episodes[0]["steps"][0]["sees"]
    assert isinstance(episodes[0]["steps"][0]["action"], str)
    for words, named in ((("--policy", "nobody"), "nobody"), (("--group", "none"), "--group: no group 'none'")):
        code, _, errors = coterie_("demonstrate", "gridworld-cooperative", *words, "--out", tmp_path / "other")
        assert code
        assert named in errors


def test_a_run_is_no_place_for_a_recording(coterie_, tmp_path):
    (tmp_path / "config.yaml").write_text("seed: 0\n")
    for words in (("--policy", "random", "--episodes", "1"), ("--from-minari", "any")):
        code, _, errors = coterie_("demonstrate", "gridworld-cooperative", *words, "--out", tmp_path)
        assert (code, errors.startswith(f"coterie: --out: '{tmp_path}' is a run; ")) == (2, True), errors
        assert [file.name for file in tmp_path.iterdir()] == ["config.yaml"]


def test_minari_is_asked_for_by_name(monkeypatch, tmp_path):
    from coterie.studies.demonstrate.minari import to_minari

    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(CoterieError, match=r"coterie\[minari\]"):
        to_minari(demonstrations.load(expert(tmp_path, 1)), "coterie/grid-v0")


class Dataset:
    """One episode of a Minari dataset: what is read of it."""

    action_space = observation_space = None

    def __init__(self, part, actions):
        last = part.final_observation[0, :1]
        self.observations = np.concatenate([part.observation, last])
        self.actions, self.rewards, self.infos = actions, part.reward, {}
        self.terminations, self.truncations = part.terminated, part.truncated

    def iterate_episodes(self):
        return [self]


def test_a_missing_minari_is_named_before_anything_is_played(monkeypatch, coterie_, tmp_path):
    monkeypatch.setitem(sys.modules, "minari", None)
    words = ("demonstrate", "gridworld-cooperative", "--policy", "random", "--episodes", "1", "--out", tmp_path / "new")
    code, _, errors = coterie_(*words, "--minari", "coterie/grid-v0")
    assert code
    assert "pip install 'coterie[minari]'" in errors


def test_an_id_that_minari_refuses_is_named_before_anything_is_played(coterie_, tmp_path):
    pytest.importorskip("minari")
    words = ("demonstrate", "gridworld-race", "--policy", "expert", "--out", tmp_path / "a", "--minari", "a b")
    code, _, errors = coterie_(*words)
    assert code == 1
    assert errors.startswith("coterie: --minari: Malformed dataset ID: a b.")
    assert not (tmp_path / "a").exists()
    assert not (tmp_path / "new").exists()


def test_one_sided_actions_of_minari_datasets_are_not_taken_for_squashed_ones(monkeypatch):
    from coterie.studies.demonstrate.minari import from_minari

    space = gymnasium.spaces.Box(0.0, np.inf, (1,))

    def read():
        raise LookupError("the episodes are read")

    dataset = SimpleNamespace(action_space=space, iterate_episodes=read)
    monkeypatch.setitem(sys.modules, "minari", SimpleNamespace(load_dataset=lambda name: dataset))
    odd = ["world.name=gymnasium/helpers.odd_envs:Numbers-v0", "world.options={low: 0, high: inf}"]
    with pytest.raises(CoterieError, match=r"world\.actions\.one_sided=limit"):
        from_minari("loads", "cartpole-ppo", odd)
    with pytest.raises(LookupError, match="are read"):
        from_minari("loads", "cartpole-ppo", [*odd, "world.actions.one_sided=limit"])


def test_actions_of_minari_datasets_are_checked(monkeypatch, coterie_, tmp_path):
    from coterie.studies.demonstrate.minari import from_minari

    one = ["world.num_agents=1", *GRID, "world.observation=flat"]
    part = demonstrations.load(expert(tmp_path / "own", 1, overrides=one))
    held = {"fine": part.action, "large": part.action + 5, "half": part.action + 0.5, "wide": part.action[:, None]}

    class Minari:
        @staticmethod
        def load_dataset(name):
            return Dataset(part, held[name])

    monkeypatch.setitem(sys.modules, "minari", Minari)
    ids = SimpleNamespace(parse_dataset_id=str)
    monkeypatch.setitem(sys.modules, "minari.dataset.minari_dataset", ids)  # or else Minari itself would be imported
    np.testing.assert_array_equal(from_minari("fine", "gridworld-cooperative", one).action, part.action)
    for name, reason in (("large", "has the action"), ("half", "whole numbers"), ("wide", "has actions")):
        with pytest.raises(CoterieError, match=reason):
            from_minari(name, "gridworld-cooperative", one)
    words = ("demonstrate", "gridworld-cooperative", *one, "--out", tmp_path / "own", "--from-minari", "fine")
    code, _, errors = coterie_(*words)
    assert code
    assert "already holds demonstrations" in errors
    words = ("demonstrate", "tag-ppo", "--policy", "random", "--out", tmp_path / "tag", "--minari", "coterie/tag-v0")
    code, _, errors = coterie_(*words)
    assert code
    assert "add --group" in errors
    assert not (tmp_path / "tag" / demonstrations.INDEX).exists()


def test_a_planners_usage_is_reported(coterie_, tmp_path):
    words = ("--policy", "planner:lm=helpers.teacher:FIRST", "--episodes", "2", "--out", tmp_path / "own")
    code, said, errors = coterie_("demonstrate", "gridworld-cooperative", *GRID, *words)
    assert code == 0, errors
    (session,) = json.loads((tmp_path / "own" / "usage.json").read_text())
    counted = session["groups"]["team"]
    assert counted["lm/calls"] >= counted["distinct"] > 0
    assert f"{counted['distinct']:.0f} distinct texts" in said


def test_minari_datasets_hold_the_same_decisions(monkeypatch, tmp_path):
    pytest.importorskip("minari")
    from coterie.studies.demonstrate.minari import from_minari, to_minari

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    one = ["world.num_agents=1", *GRID]
    part = demonstrations.load(expert(tmp_path / "own", 2, overrides=one))
    to_minari(part, "coterie/grid-v0")
    again = from_minari("coterie/grid-v0", "gridworld-cooperative", one)
    for name in demonstrations.COLUMNS:
        np.testing.assert_array_equal(getattr(part, name), getattr(again, name))
    assert [e.success for e in again.episodes] == [e.success for e in part.episodes]


def test_groups_that_learn_are_recorded_unless_one_is_named():
    config = schema.load("tag-ppo")
    assert record.recorded_groups(config, None) == [n for n, g in config.groups.items() if g.learner is not None]
    assert record.recorded_groups(config, next(iter(config.groups))) == [next(iter(config.groups))]


def test_choices_of_minari_datasets_that_do_not_begin_with_0(monkeypatch, tmp_path):
    """`Discrete(2, start=1)` has the choices 1 and 2; ours are 0 and 1."""
    from coterie.studies.demonstrate.minari import from_minari

    part = demonstrations.load(expert(tmp_path, 1, "cartpole-ppo", [], policy="random"))
    dataset = Dataset(part, part.action + 1)
    dataset.action_space = gymnasium.spaces.Discrete(2, start=1)
    monkeypatch.setitem(sys.modules, "minari", SimpleNamespace(load_dataset=lambda name: dataset))
    np.testing.assert_array_equal(from_minari("shifted", "cartpole-ppo").action, part.action)


def test_minari_datasets_with_values_in_other_parts_are_refused(monkeypatch, tmp_path):
    from coterie.studies.demonstrate.minari import from_minari

    part = demonstrations.load(expert(tmp_path, 1, "cartpole-ppo", [], policy="random"))
    dataset = Dataset(part, {"push": part.action})
    monkeypatch.setitem(sys.modules, "minari", SimpleNamespace(load_dataset=lambda name: dataset))
    with pytest.raises(CoterieError, match="'parts' has values in several parts"):
        from_minari("parts", "cartpole-ppo")
    dataset = Dataset(part, part.action)
    with pytest.raises(CoterieError, match="'flat' has other observations than this world, whose parts are"):
        from_minari("flat", "gridworld-cooperative", ["world.num_agents=1", *GRID, "world.observation=dict"])


def test_a_minari_dataset_is_read_for_the_group_and_at_the_table_that_are_named(monkeypatch, coterie_, tmp_path):
    """The table may be a run's, and episodes that are read are played by nobody else."""
    file = written(tmp_path / "duel.yaml", DUEL)
    part = demonstrations.load(expert(tmp_path / "ring", 1, str(file), [], policy="random", group="ring"))
    run = train(tmp_path / "run", "train.total_steps=28", experiment=file)
    dataset = Dataset(part, part.action)
    monkeypatch.setitem(sys.modules, "minari", SimpleNamespace(load_dataset=lambda name: dataset))
    read = ("--from-minari", "ring", "--out")
    for number, source in enumerate((file, run.path)):
        out = tmp_path / f"read-{number}"
        code, _, errors = coterie_("demonstrate", source, *read, out, "--group", "ring")
        assert code == 0, errors
        (found,) = demonstrations.groups(out)
        assert found == "ring"
        np.testing.assert_array_equal(demonstrations.load(out).action, part.action)
    for more in (("--group", "nobody"), ("--policy", "random"), ("--lm", "embedded")):
        code, _, errors = coterie_("demonstrate", file, *read, tmp_path / "refused", *more)
        assert code
        assert more[0] in errors
        assert not (tmp_path / "refused").exists()
    code, _, errors = coterie_("demonstrate", file, *read, tmp_path / "refused")  # two groups learn
    assert code
    assert "--group" in errors
