"""The teacher: skills weighed by a planner, each text state asked about once, and how a student is taught."""

import dataclasses
import json
import re

import numpy as np
import pytest

import coterie
from coterie.advice.teacher import TeacherSettings, mix_skills
from coterie.config import schema
from coterie.config.schema import ConfigError
from coterie.core.decisions import Joint
from coterie.core.skills import HasBestSkills, HasPlanCodec, HasSkills
from coterie.core.types import CoterieError, as_metrics
from coterie.lm import plans
from coterie.lm.ask.interface import Unavailable
from coterie.runs.run import Run
from coterie.training import loop, start, table
from coterie.training.build import build_groups, build_world
from coterie.training.plan_tables import find_plans
from coterie.training.runner import Runner
from coterie.worlds.doorkey.world import DoorKey, DoorKeySettings
from coterie.worlds.mpe.world import Spread, SpreadSettings
from helpers.advisor import grid, seen
from helpers.run import numbers, written
from helpers.small_worlds import network
from helpers.teacher import ADVISE, TABLE, best_plan, teacher


@pytest.fixture
def path(tmp_path):
    return written(tmp_path / "taught.yaml", TABLE)


def counts(made):
    return {name.removeprefix("advice/"): value for name, value in as_metrics(made.metrics()).items()}


# What it says -------------------------------------------------------------------------------------------------------

LEFT, RIGHT, STAY = np.eye(3, dtype=np.float32)
NONE = np.zeros(3, np.float32)


@pytest.mark.parametrize(
    ("plan", "skills", "settings", "expected"),
    [
        ([0.5, 0.3, 0.2], [LEFT, RIGHT, STAY], {}, [0.5, 0.3, 0.2]),
        ([0.5, 0.3, 0.2], [NONE, RIGHT, STAY], {}, [0, 0.6, 0.4]),  # normalised over what is possible
        ([0.5, 0.3, 0.2], [NONE, RIGHT, STAY], {"hard": True}, [0, 1, 0]),
        ([0.5, 0.3, 0.2], [NONE, NONE, NONE], {}, None),
        ([1.0, 0.0, 0.0], [NONE, RIGHT, STAY], {}, None),  # nothing that it wants is possible
        ([np.nan] * 3, [LEFT, RIGHT, STAY], {}, None),
        ([0.5, 0.3, 0.2], [LEFT, RIGHT, STAY], {"adversarial": True}, [0, 0, 1]),
        ([1.0, 0.0, 0.0], [LEFT, LEFT, RIGHT], {"adversarial": True}, [0, 1, 0]),  # of equals, what differs most
        ([0.5, 0.3, 0.2], [LEFT, NONE, NONE], {"adversarial": True}, None),
        ([0.5, 0.3, 0.2], [LEFT, RIGHT, STAY], {"shift": 1}, [0, 1, 0]),
        ([0.5, 0.3, 0.2], [LEFT, NONE, STAY], {"shift": 1}, [0, 0, 1]),  # the next possible one
        ([0.5, 0.3, 0.2], [LEFT, NONE, NONE], {"shift": 2}, None),  # never the right one
    ],
)
def test_the_teacher_is_the_sum_of_its_skills(plan, skills, settings, expected):
    mixed = np.full((1, 3), np.nan)
    how = {"shift": 0, "hard": False, "adversarial": False} | settings
    rows = np.array([plan]), np.array([how["shift"]]), np.stack(skills)[None]
    mix_skills(*rows, how["hard"], how["adversarial"], mixed)
    np.testing.assert_allclose(mixed[0], np.full(3, np.nan) if expected is None else expected, atol=1e-6)


def test_a_models_scores_are_calibrated_and_weigh_the_skills():
    world = grid(30)
    made, where = teacher(world, temperature=2.0)
    advice = made.suggest(seen(world, where))
    odds = np.array([np.e, 1.0]) / (np.e + 1)  # calibrated: 2 nats at temperature 2
    codec = world.plan_codec("agent")
    rows = seen(world, where).observation.reshape(60, -1)
    firsts = [world.skills("agent").index(codec.describe(n).split()[1].strip(",")) for n in codec.states(rows)]
    every = world.skill_actions("agent").reshape(60, 2, 5)
    mixed = np.stack([odds[0] * e[f] + odds[1] * e[1 - f] for e, f in zip(every, firsts, strict=True)])
    np.testing.assert_allclose(advice.probabilities.reshape(60, 5), mixed, atol=1e-5)
    hard, _ = teacher(world, choice="hard")
    best = np.stack([e[f] for e, f in zip(every, firsts, strict=True)])
    np.testing.assert_allclose(hard.suggest(seen(world, where)).probabilities.reshape(60, 5), best, atol=1e-6)
    greedy, _ = teacher(world, temperature=0.0)
    np.testing.assert_allclose(greedy.suggest(seen(world, where)).probabilities.reshape(60, 5), best, atol=1e-6)
    biased, _ = teacher(world, calibration="none")
    biased.suggest(seen(world, where))
    assert all(row[0] > 0.9 for row in biased.skill_source.table().plans.values())  # always red


def test_frequencies_of_samples_are_probabilities_and_unparsable_ones_do_not_count():
    world = grid(30)
    made, where = teacher(world, "WAVERING", samples=40, temperature=1.0)
    assert made.suggest(seen(world, where)).given.all()
    rows = np.array(list(made.findings().plans.values()))
    assert len(rows) > 2
    np.testing.assert_allclose(rows.sum(axis=1), 1)
    red_first = [row for text, row in made.findings().plans.items() if text.startswith("places: red")]
    assert 0.7 < np.mean(red_first, axis=0)[0] < 0.97
    silent, _ = teacher(world, "SILENT", samples=3)
    silent.skill_source.planner.scorer.counter.limit = 1.0
    assert not silent.suggest(seen(world, where)).given.any()


def test_the_number_and_temperature_of_samples_reach_the_model(monkeypatch):
    world, asked = grid(5), []
    made, where = teacher(world, "WAVERING", samples=7, temperature=0.5)
    lm = made.skill_source.planner.scorer.lm
    complete = lm.complete
    monkeypatch.setattr(lm, "complete", lambda prompts, n, how: asked.append((n, how)) or complete(prompts, n, how))
    made.suggest(seen(world, where))
    assert {(n, how.temperature, how.max_tokens, how.stop) for n, how in asked} == {(7, 0.5, 12, ("\n",))}


def test_how_the_planner_is_asked(tmp_path):
    world = grid(20)
    template = written(tmp_path / "mine.txt", "{examples}\nNow {state}\nGo:\n")
    examples = written(tmp_path / "worked.txt", "places: green => green\n")
    made, where = teacher(world, template=str(template), examples=str(examples))
    prompt = made.skill_source.planner.scorer.template.prompt("?")
    assert prompt == "Now places: green\nGo: green\n\nNow ?\nGo:"
    asked, per_token = (teacher(world, normalize=how)[0] for how in ("sum", "mean"))
    view = seen(world, where)
    assert not np.allclose(asked.suggest(view).probabilities, per_token.suggest(view).probabilities)
    smooth, _ = teacher(world, smoothing=0.5)
    assert smooth.suggest(view).probabilities.min() == pytest.approx(0.1)


def test_each_text_state_is_asked_about_once():
    world = grid(200)
    made, where = teacher(world)
    for seed in range(3):
        made.advise(seen(world, where, seed), network(where))
    found = counts(made)
    texts = set(made.findings().plans)
    assert found["distinct"] == len(texts) <= 4  # two targets: red or green, or both in either order
    assert found["lm/calls"] == len(texts | set(made.skill_source.codec.samples()))
    assert found["abstentions"] == 0


def test_an_unparsable_text_is_counted_once_and_not_asked_again():
    world = grid(200)
    made, where = teacher(world, "HESITANT", samples=3)
    policy = network(where)
    for seed in range(30):  # the same text states at every step
        made.advise(seen(world, where, seed), policy)
    found = counts(made)
    assert found["distinct"] == found["lm/questions"] > 1
    assert found["lm/unanswered"] == 1
    assert 0 < found["abstentions"] < 1


def test_a_text_is_asked_again_where_the_server_had_failed():
    world = grid(200)
    made, where = teacher(world, samples=3)
    answers, policy = made.skill_source.planner.scorer.answers, network(where)
    ask_model = answers.ask_model

    def fail(texts):
        raise Unavailable("no server")

    answers.ask_model = fail
    made.advise(seen(world, where), policy)
    assert np.isnan(made.skill_source.plans).all()
    answers.ask_model = ask_model
    for _ in range(2):  # the first call after a failure is skipped
        made.advise(seen(world, where), policy)
    assert not np.isnan(made.skill_source.plans).any()


@pytest.mark.parametrize("by", ["text", "decision"])
def test_noise_chooses_wrong_skills(by):
    """With two skills the wrong one is the other; `text`: everywhere or nowhere in a text state."""
    world = grid(200, num_targets=6)
    right, where = teacher(world, plans="oracle")
    noisy, _ = teacher(world, plans="oracle", noise=0.3, noise_by=by)
    view = seen(world, where)
    chosen = (world.skill_actions("agent") * best_plan(world)[..., None]).sum(axis=2)
    np.testing.assert_allclose(right.suggest(view).probabilities, chosen, atol=1e-6)
    wrong = np.abs(noisy.suggest(view).probabilities - chosen).sum(axis=-1).reshape(-1) > 0.1
    assert 0.1 < wrong.mean() < 0.35  # some wrong skills begin with the same step
    again = np.abs(noisy.suggest(view).probabilities - chosen).sum(axis=-1).reshape(-1) > 0.1
    assert np.array_equal(wrong, again) == (by == "text")
    shifted = noisy.skill_source.shifts[noisy.skill_source.look_up(noisy.skill_source.numbers)] > 0
    assert (0.2 < shifted.mean() < 0.4) == (by == "text")
    other, _ = teacher(world, plans="oracle", noise=0.3, noise_by=by, seed=1)
    assert not np.array_equal(other.suggest(view).probabilities, noisy.suggest(view).probabilities)


def test_an_adversary_never_advises_the_best_skill():
    world = grid(50)
    made, where = teacher(world, plans="oracle", adversarial=True)
    view = seen(world, where)
    other = (world.skill_actions("agent") * ~best_plan(world)[..., None]).sum(axis=2)
    np.testing.assert_allclose(made.suggest(view).probabilities, other, atol=1e-6)


# Plan tables --------------------------------------------------------------------------------------------------------


def test_a_group_without_a_teacher_has_no_plans_to_find(path):
    with pytest.raises(ConfigError, match="'gridworld-cooperative' has no group with the advisor 'teacher'"):
        find_plans("gridworld-cooperative")
    with pytest.raises(ConfigError, match="no teacher of 'nobody'; there are those of team"):
        find_plans(str(path), group="nobody")


def test_a_table_replays_a_planner_without_its_model(path, tmp_path):
    found = find_plans(str(path), episodes=20)
    found.write(tmp_path / "plans.json")
    assert json.loads((tmp_path / "plans.json").read_text())["about"]["model"] == "helpers.teacher:FIRST"
    world = grid(50)
    asked, where = teacher(world)
    replayed, _ = teacher(world, plans=str(tmp_path / "plans.json"))
    view = seen(world, where)
    np.testing.assert_allclose(replayed.suggest(view).probabilities, asked.suggest(view).probabilities, atol=1e-3)
    assert "lm/calls" not in counts(replayed)


def test_a_text_that_is_not_in_the_table_is_an_abstention(tmp_path):
    world = grid(50)
    file = written(tmp_path / "some.json", '{"plans": {"places: red": {"red": 3, "green": 1}}}')
    made, where = teacher(world, plans=str(file))
    made.advise(seen(world, where), network(where))
    assert 0 < counts(made)["abstentions"] < 1
    assert made.findings().plans["places: red"].tolist() == [0.75, 0.25]


def test_a_table_without_a_plan_for_a_text_says_so_once(tmp_path, caplog):
    world = grid(50)
    file = written(tmp_path / "some.json", '{"plans": {"places: red": {"red": 1}}}')
    made, where = teacher(world, plans=str(file))
    for seed in range(3):
        made.advise(seen(world, where, seed), network(where))
    (warning,) = [record.getMessage() for record in caplog.records]
    assert str(file) in warning
    assert "'places: green" in warning
    whole, _ = teacher(world, plans="oracle")
    whole.advise(seen(world, where), network(where))
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"plans": {"a": {"jump": 1}}}', "'jump' is not one of red, green"),
        ('{"plans": {"a": {"red": -1}}}', "expected a weight of at least 0, got -1"),
        ('{"plans": {"a": {"red": 0}}}', "some skill needs a weight above 0"),
        ("[]", "is not a plan table"),
        ('{"plans": {}}', "has no plans"),
    ],
)
def test_wrong_tables_are_refused(content, reason, tmp_path):
    with pytest.raises(ValueError, match=re.escape(reason)):
        plans.read(str(written(tmp_path / "t.json", content)), ("red", "green"))


@pytest.mark.parametrize("file", sorted(plans.FOLDER.glob("*.json")), ids=lambda file: file.stem)
def test_shipped_tables_are_readable(file):
    assert plans.read(file.stem, json.loads(file.read_text())["skills"]).plans


# Worlds -------------------------------------------------------------------------------------------------------------

WORLDS = {
    "gridworld": lambda: grid(20, num_agents=3, num_obstacles=3),
    "gridworld, dict": lambda: grid(20, observation="dict"),
    "gridworld, view": lambda: grid(20, view=1),
    "spread": lambda: Spread(SpreadSettings(), 20),
    "doorkey": lambda: DoorKey(DoorKeySettings(task="doorkey", size=5), 20),
    "colored": lambda: DoorKey(DoorKeySettings(task="colored"), 20),
}


@pytest.mark.parametrize("name", WORLDS)
def test_worlds_with_skills_keep_their_promises(name):
    world = WORLDS[name]()
    assert isinstance(world, HasSkills)
    assert isinstance(world, HasPlanCodec)
    assert isinstance(world, HasBestSkills)
    (agent_type,) = world.agent_types
    spaces, skills, codec = world.agent_types[agent_type], world.skills(agent_type), world.plan_codec(agent_type)
    random = np.random.default_rng(0)
    step = world.reset(0).agent_types[agent_type]
    for _ in range(10):
        actions = world.skill_actions(agent_type)
        assert actions.shape == (20, len(spaces.agents), len(skills), spaces.action.n)
        assert actions.dtype == np.float32
        total = actions.sum(axis=-1)
        assert (np.isclose(total, 1) | (total == 0)).all()
        best = world.best_skills(agent_type)
        assert best.shape == total.shape[:2]
        assert ((best >= -1) & (best < len(skills))).all()
        rows = (
            {k: v.reshape(-1, *v.shape[2:]) for k, v in step.observation.items()}
            if isinstance(step.observation, dict)
            else step.observation.reshape(-1, step.observation.shape[-1])
        )
        states = codec.states(rows)
        assert states.shape == (total[..., 0].size,)
        assert (states >= 0).all()
        assert all(codec.describe(int(number)) for number in np.unique(states))
        step = world.step({agent_type: random.integers(spaces.action.n, size=best.shape)}).agent_types[agent_type]
    assert codec.samples()


def test_the_oracle_of_spread_is_the_assignment_of_least_distance():
    world = Spread(SpreadSettings(), 200)
    world.reset(0)
    goals, orders = world.best_skills("agent"), [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]
    away = np.linalg.norm(world.particles.position[:, :, None] - world.particles.landmarks[:, None], axis=-1)
    sums = np.stack([away[:, range(3), order].sum(axis=1) for order in orders])
    np.testing.assert_array_equal(goals, np.array(orders)[sums.argmin(axis=0)])


def test_texts_of_spread_name_the_landmark_of_the_shortest_assignment_first():
    world = Spread(SpreadSettings(num_agents=4), 50)
    observation = world.reset(0).agent_types["agent"].observation
    codec, names = world.plan_codec("agent"), world.skills("agent")
    texts = [codec.describe(number) for number in codec.states(observation.reshape(200, -1)).tolist()]
    assert all(len(text.split(", ")) == 4 for text in texts)
    first = [names.index(text.removeprefix("places: ").split(",")[0]) for text in texts]
    np.testing.assert_array_equal(np.reshape(first, (50, 4)), world.best_skills("agent"))


# Runs ---------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_after_its_frames_the_teacher_is_not_asked(path, monkeypatch):
    """A hard end in the middle of the second iteration of 32 frames, by `use.frames` or by `ask.frames`."""
    from coterie.advice import teacher as module

    asked = []
    weights = module.SkillSource.weights
    monkeypatch.setattr(
        module.SkillSource, "weights", lambda self, view, rows: asked.append(view.frames) or weights(self, view, rows)
    )
    for number, words in enumerate(
        ([f"{ADVISE}.use.frames=48"], [f"{ADVISE}.use.final=0.5", f"{ADVISE}.ask.frames=48"])
    ):
        asked.clear()
        # in baselines the teacher plays by itself
        monkeypatch.setattr(loop, "score_baselines", lambda groups, world, score: {})
        monkeypatch.setattr(loop, "shortfalls", lambda *_: [])  # it compares with baselines
        coterie.train(str(path), words, out=path.parent / f"run-{number}", quiet=True)
        assert asked == list(range(0, 48, 4))  # 4 environments; a run of 256 frames


def test_a_summary_has_the_teacher_and_drawn_actions(path):
    run = coterie.train(str(path), out=path.parent / "run", quiet=True)
    summary = run.summary()
    assert set(summary["baselines"]) == {"random", "expert", "teacher", "teacher, drawn"}
    assert summary["baselines"]["teacher"]["success_rate"] > summary["baselines"]["random"]["success_rate"]
    assert summary["drawn"] != summary["evaluation"]
    assert summary["step_0"]["drawn"]["groups"]
    assert json.loads((run.path / "plans-team.json").read_text())["plans"]
    taught = table.load(run.path, policy="teacher")
    assert taught.players == {"team": "teacher"}
    assert taught.evaluate(4).to_dict() == summary["baselines"]["teacher"]
    assert table.load(run.path, policy="random").evaluate(4).to_dict() == summary["baselines"]["random"]
    with pytest.raises(CoterieError, match="--policy: expected one of teacher, random"):
        table.load(run.path, policy="nobody")


@pytest.mark.slow
def test_commands_of_teachers(path, coterie_):
    file = path.parent / "plans.json"
    code, out, _ = coterie_("plans", path, "--out", file, "--episodes", 4)
    assert code == 0
    assert f"{len(json.loads(file.read_text())['plans'])} text states, 2 skills" in out
    assert coterie_("plans", path, f"{ADVISE}.plans=oracle", "--out", file)[0] == 2  # there is nothing to write
    code, out, _ = coterie_("train", path, f"{ADVISE}.plans={file}", "--out", path.parent / "run", "--quiet")
    assert code == 0
    assert re.search(r"step 0, drawn +team.*\n(.*\n)*  teacher +team", out)
    assert "teacher, greedy" in coterie_("eval", path.parent / "run", "--policy", "teacher", "--episodes", 2)[1]
    code, _, err = coterie_("eval", path.parent / "run", f"{ADVISE}=none", "--policy", "teacher")
    assert (code, "has an advisor" in err) == (1, True)


@pytest.mark.slow
def test_a_killed_run_goes_on_as_if_nothing_had_happened(path, monkeypatch):
    words = [f"{ADVISE}.noise=0.3", f"{ADVISE}.use.frames=200"]
    straight = coterie.train(str(path), words, out=path.parent / "straight", quiet=True)
    advance = loop.Training.advance

    def breaking(self):
        if self.iteration == 5:
            raise InterruptedError
        return advance(self)

    monkeypatch.setattr(loop.Training, "advance", breaking)
    with pytest.raises(InterruptedError):
        coterie.train(str(path), words, out=path.parent / "broken", quiet=True)
    monkeypatch.setattr(loop.Training, "advance", advance)
    broken = Run.open(path.parent / "broken")
    assert coterie.resume(broken.path, quiet=True)
    apart = [[{k: v for k, v in r.items() if "/lm/" not in k} for r in numbers(run)] for run in (broken, straight)]
    assert apart[0] == apart[1]
    assert broken.summary()["evaluation"] == straight.summary()["evaluation"]


@pytest.mark.slow
def test_texts_that_several_processes_meet_are_counted_and_written_once(path, forked):
    words = ["train.shards=2", f"{ADVISE}.use.frames=1000"]
    alone, apart = (
        coterie.train(str(path), [*words, f"train.workers={count}"], out=path.parent / str(count), quiet=True)
        for count in (0, 2)
    )
    tables = [json.loads((run.path / "plans-team.json").read_text())["plans"] for run in (alone, apart)]
    assert tables[0] == tables[1]
    found = [run.metrics()[-1]["team/advice/distinct"] for run in (alone, apart)]
    assert found == [len(tables[0])] * 2


def test_each_of_several_students_learns_from_its_own_advice(path):
    """Without rewards and entropy only the teacher's loss moves a network: that of the agent that was advised."""
    words = ["groups.team.parameters=individual", "groups.team.learner.entropy_coefficient=0"]
    config = schema.load(str(path), words)
    world = build_world(config.world, 4)
    (group,) = build_groups(config, world)
    own = Runner(world, [group.actor], 0).play(8, 1, 0.0).decisions["team"]
    assert own.advice.given[own.valid].all()
    strength = own.advice.strength.copy()
    strength[..., 1] = 0
    own = dataclasses.replace(own, reward=np.zeros_like(own.reward), advice=own.advice._replace(strength=strength))
    before = group.policy.flat.array.copy()
    group.learner.critic.flat.value.zero_()  # no advantages
    joint = Joint({"team": own}, 1, 0.0, {"team": group.actor.group_spec.spaces})
    group.learner.learn(own, joint, np.random.default_rng(0))
    moved = np.abs(group.policy.flat.array - before).max(axis=1)
    assert moved[0] > 1e-4
    assert moved[1] == 0


@pytest.mark.slow
def test_individual_students_follow_their_teacher(path):
    words = ["groups.team.parameters=individual", f"{ADVISE}.use={{strength: 5, final: 5}}", "train.total_steps=2048"]
    run = coterie.train(
        str(path), [*words, "groups.team.learner.learning_rate=3e-3"], out=path.parent / "r", quiet=True
    )
    kl = [record["team/advice/kl"] for record in run.metrics() if "team/advice/kl" in record]
    assert kl[-1] < 0.8 * kl[0]
    assert run.load_checkpoint("last")["policies"]["team"]["normalizer"]["mean"].shape[0] == 2


WRONG = [
    (["world.name=gymnasium/CartPole-v1"], "needs a world with skills (HasSkills)"),
    (["world.mode=race", "world.num_targets=null"], "groups.team.advisor: skills of the grid world need a mode other"),
    (["world.name=spread", "world.continuous_actions=true"], "is a Box"),
    ([f"{ADVISE}.plans=nowhere"], "plans: there is no file 'nowhere'"),
    ([f"{ADVISE}.noise=1.5"], "noise must lie in [0, 1], got 1.5"),
    ([f"{ADVISE}.noise=0.3", f"{ADVISE}.adversarial=true"], "noise has no effect on an adversarial teacher"),
    ([f"{ADVISE}.trust=true", f"{ADVISE}.use.mode=mixture"], "trust weighs the loss of use.mode=kl"),
    ([f"{ADVISE}.use.until=0.5"], "until and frames both end the schedule"),
    ([f"{ADVISE}.use.frames=0"], "frames must be at least 1"),
]


@pytest.mark.parametrize(("words", "reason"), WRONG)
def test_what_is_refused_before_anything_starts(words, reason, path):
    with pytest.raises(ConfigError, match=re.escape(reason)):
        start.check(str(path), words)


def test_every_setting_has_a_test_here():
    asked = {"lm", "plans", "template", "examples", "normalize", "calibration", "samples", "temperature", "choice"}
    rest = {"noise", "noise_by", "adversarial", "smoothing", "ask", "use"}
    elsewhere = {"trust"}  # test_trust.py
    assert {f.name for f in dataclasses.fields(TeacherSettings)} == asked | rest | elsewhere
