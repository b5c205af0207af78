"""Advisors: who is asked what, how advice is followed, and that it is accounted for in what is learned."""

import dataclasses
import re

import numpy as np
import pytest
import torch

import coterie
from coterie.advice.advisor import ExpertAdvisorSettings, LanguageAdvisorSettings
from coterie.config import schema
from coterie.config.schema import ConfigError
from coterie.core.advice import AskSettings, UseSettings
from coterie.core.group import Actor
from coterie.core.types import as_metrics
from coterie.lm.ask.budget import BudgetSettings
from coterie.lm.ask.cache import CacheSettings
from coterie.runs.run import Run
from coterie.studies.exploit.deviations import Frozen, FrozenSettings
from coterie.studies.match import match
from coterie.training import build, loop, start, table
from coterie.training.evaluate import evaluate
from coterie.training.runner import Runner
from coterie.worlds.boards.tictactoe import Tictactoe, TictactoeSettings
from helpers.advisor import TABLE, advised, advisor, grid, noted, seen
from helpers.resume import stopped
from helpers.run import numbers, train, written
from helpers.small_worlds import network

ADVISE = "groups.team.advisor"
PLAYERS = "groups.players.advisor"


@pytest.fixture
def path(tmp_path):
    return written(tmp_path / "advised.yaml", TABLE)


# When it is asked ---------------------------------------------------------------------------------------------------


def counts(made):
    return {name.removeprefix("advice/"): value for name, value in as_metrics(made.metrics()).items()}


@pytest.mark.slow
def test_every_so_many_ticks():
    world = grid()
    made, where = advisor(world, ask={"every": 3})
    policy = network(where)
    given = [not np.isnan(noted(made.advise(seen(world, where, step_count=t), policy))).all() for t in range(7)]
    assert given == [True, False, False, True, False, False, True]


def test_only_in_the_first_frames_of_a_run():
    world = grid()
    made, where = advisor(world, ask={"frames": 100})
    policy = network(where)
    moments = [{"frames": 96}, {"frames": 100}, {"frames": 100, "progress": None}]  # the last one is no training
    given = [not np.isnan(noted(made.advise(seen(world, where, **m), policy))).all() for m in moments]
    assert given == [True, False, True]


@pytest.mark.slow
def test_frames_are_counted_over_all_shards(path, forked):
    words = ["train.shards=2", f"{ADVISE}.ask.frames=40"]  # 4 copies: rows 0 … 9 of the first iterations
    run = coterie.train(str(path), words, out=path.parent / "run", quiet=True)
    assert run.metrics()[-1]["team/advice/asked"] == 80
    apart = coterie.train(str(path), ["train.workers=1", *words], out=path.parent / "apart", quiet=True)
    assert apart.summary()["evaluation"] == run.summary()["evaluation"]


def test_a_random_share():
    made, where = advisor(grid(500), None, ask={"fraction": 0.2})
    given = ~np.isnan(advised(made, where)[..., 0])
    assert 0.15 < given.mean() < 0.25
    np.testing.assert_array_equal(given, ~np.isnan(advised(made, where)[..., 0]))  # the same stream, the same rows


def test_where_the_policy_is_unsure():
    world = grid(50)
    _, where = advisor(world, None)
    policy = network(where)
    view = seen(world, where)
    own = policy.log_probs(view)
    entropy = -(np.exp(own) * own).sum(-1)
    made, _ = advisor(world, None, ask={"entropy": float(np.median(entropy))})
    np.testing.assert_array_equal(~np.isnan(noted(made.advise(view, policy))[..., 0]), entropy > np.median(entropy))


@pytest.mark.parametrize("model", ["COPIER", None])
def test_where_the_policy_disagrees(model):
    world = grid(50)
    made, where = advisor(world, model, ask={"disagreement": True})
    policy = network(where)
    view = seen(world, where)
    first = noted(made.advise(view, policy))
    again = noted(made.advise(seen(world, where), policy))
    greedy = policy.log_probs(view).argmax(-1)
    every, _ = advisor(world, model)
    other = noted(every.advise(seen(world, where), policy))[..., 1:].argmax(-1) != greedy
    assert 0 < other.mean() < 1
    np.testing.assert_array_equal(~np.isnan(again[..., 0]), other)
    assert np.isnan(first).any() == (model is None)  # a model knows nothing before it was asked


def test_a_budget_is_kept_and_its_refusals_are_abstentions():
    made, where = advisor(grid(50), around={"budget": BudgetSettings(calls=20)})
    notes = advised(made, where)
    found = counts(made)
    assert (found["lm/calls"], found["distinct"]) == (20, 20)
    assert 0 < found["abstentions"] == pytest.approx(np.isnan(notes[..., 0]).mean())
    assert found["share"] == pytest.approx(1 - found["abstentions"])


def test_a_replay_has_the_answers_that_the_budget_allowed_for(tmp_path):
    kept = str(tmp_path / "answers.db")
    made, where = advisor(grid(50), around={"budget": BudgetSettings(calls=20), "cache": CacheSettings(kept)})
    again, _ = advisor(grid(50), around={"cache": CacheSettings(kept, "replay-only")})
    np.testing.assert_array_equal(advised(made, where), advised(again, where))
    assert counts(again)["lm/calls"] == 0
    assert counts(again)["abstentions"] == counts(made)["abstentions"] > 0


def test_evaluations_are_played_alone_unless_wanted():
    world = grid(4, max_steps=8)
    for use, always in (
        ({"mode": "mixture"}, False),
        ({"mode": "hint"}, True),
        ({"mode": "mixture", "evaluate": True}, True),
    ):
        made, where = advisor(world, None, use=use)
        evaluate(world, [Actor(where, network(where), advisor=made)], 4, seed=0)
        assert (made.metrics()["advice/decisions"] > 0) == always
    made, _ = advisor(world, None, use={"mode": "hint", "evaluate": False})
    assert not made.in_evaluation


def test_what_is_barred_is_not_advised():
    made, where = advisor(grid(4), None, use={"mode": "kl"}, smoothing=0.2)
    view, policy = seen(where.world, where), network(where)
    best = noted(made.advise(view, policy))[..., 1:].argmax(-1)
    assert np.allclose(noted(made.advise(view, policy))[..., 1:].max(-1), 0.8 + 0.2 / 5)
    barred = dataclasses.replace(view, mask=~np.eye(5, dtype=bool)[best])
    made.counts["advised"] = 0
    assert np.isnan(noted(made.advise(barred, policy))).all()
    assert made.counts["advised"] == 0
    only = dataclasses.replace(view, mask=np.eye(5, dtype=bool)[best])
    assert np.allclose(noted(made.advise(only, policy))[..., 1:], only.mask)


def test_refused_texts_are_offered_once():
    made, where = advisor(grid(8), around={"budget": BudgetSettings(calls=18)})
    view, policy = seen(where.world, where), network(where)
    made.advise(view, policy)
    refusals = made.source.metrics()["lm/refusals"]
    assert refusals > 0
    again = noted(made.advise(view, policy))
    assert made.source.metrics()["lm/refusals"] == refusals
    assert np.isnan(again).any()
    assert not np.isnan(again).all()


# What it says -------------------------------------------------------------------------------------------------------


def test_advice_is_the_models_distribution_smoothed():
    world = grid(30)
    made, where = advisor(world, temperature=2.0, smoothing=0.2)
    notes = advised(made, where)
    odds = np.array([np.e, 1.0, 1.0, 1.0]) / (np.e + 3)  # calibrated: 2 nats at temperature 2
    likely, others, never = 0.8 * odds[0] + 0.04, 0.8 * odds[1] + 0.04, 0.04  # nobody is ever advised to stay
    np.testing.assert_allclose(np.sort(notes[..., 1:], axis=-1)[0, 0], [never, others, others, others, likely], 1e-5)
    np.testing.assert_allclose(notes[..., 1:].sum(-1), 1, rtol=1e-5)
    cold, _ = advisor(world, temperature=0.0, smoothing=0.0)
    assert set(np.unique(advised(cold, where)[..., 1:])) == {0.0, 1.0}


@pytest.mark.parametrize(
    "settings",
    [
        *({"calibration": "none"}, {"normalize": "mean"}),
        *({"codec": "helpers.language:Numbers", "calibration": "none"},),
    ],
)
def test_how_it_is_asked_matters(settings):
    world = grid(20)
    made, where = advisor(world, **({"calibration": "none"} if "codec" in settings else {}))  # only that differs
    other, _ = advisor(world, **settings)
    assert not np.allclose(advised(made, where), advised(other, where), equal_nan=True)


def test_ones_own_template_and_examples_are_shown_to_it(tmp_path):
    template = written(tmp_path / "mine.txt", "{examples}\nYou see: {state}\nGo:\n")
    examples = written(tmp_path / "worked.txt", "The target is here. => up\n")
    made, _ = advisor(grid(1), template=str(template), examples=str(examples))
    assert made.source.scorer.template.prompt("?") == "You see: The target is here.\nGo: up\n\nYou see: ?\nGo:"


def test_each_observation_is_described_once_and_each_text_asked_once(monkeypatch):
    world = grid(40)
    made, where = advisor(world)
    rows = []
    describe = made.source.codec.describe
    monkeypatch.setattr(made.source.codec, "describe", lambda o: rows.append(len(o)) or describe(o))
    policy = network(where)
    for _ in range(3):
        made.advise(seen(world, where), policy)
    observation = seen(world, where).observation.reshape(80, -1)
    assert sum(rows) == len(np.unique(observation, axis=0))
    texts = {*describe(observation), *made.source.codec.samples()}
    assert counts(made)["lm/calls"] == counts(made)["distinct"] == len(texts)


def test_alignment_is_measured():
    world = grid(50)
    made, where = advisor(world)
    policy = network(where)
    view = seen(world, where)
    notes = noted(made.advise(view, policy)).astype(np.float64)[..., 1:]
    own = policy.log_probs(view)
    found = counts(made)
    assert found["agreement"] == (notes.argmax(-1) == own.argmax(-1)).mean()
    assert found["kl"] == pytest.approx((notes * (np.log(notes) - own)).sum(-1).mean(), rel=1e-5)
    assert found["optimal"] == 1.0
    assert (found["decisions"], found["asked"], found["advised"], found["share"]) == (100, 100, 100, 1.0)
    for text, scores in made.source.scorer.known.items():
        made.source.scorer.known[text] = scores[[1, 0, 3, 2]]  # everything the other way round
    made.advise(view, policy)
    assert 0.4 < counts(made)["optimal"] < 0.75


def test_a_policy_that_follows_hints_agrees_with_them():
    world = grid(50)
    made, where = advisor(world, None, use={"mode": "hint"})
    policy = network(where)
    with torch.no_grad():  # the hint's weights, and then they lead to the output
        policy.net.out.weight.zero_()
        (layer,) = policy.net.body.layers if hasattr(policy.net, "body") else (policy.net.hidden.layers[0],)
        layer.weight[0, :, :5].zero_()
        layer.weight[0, -5:, :5] = torch.eye(5) * 3
        policy.net.out.weight[0, :5, :] = torch.eye(5)
    made.advise(seen(world, where), policy)
    assert counts(made)["agreement"] == 1.0


# Refusals -----------------------------------------------------------------------------------------------------------

WRONG = [
    (
        ["groups.team.learner.name=dqn", "groups.team.policy.name=q_network"],
        "'dqn' does not; set groups.team",
    ),
    (["groups.team.learner=none"], "the group has no learner; set groups.team.learner.name=ppo"),
    (["world.messages=3"], "groups.team.advisor: advisors need one discrete action per decision"),
    (["world.name=spread", "world.continuous_actions=true"], "is a Box"),
    ([f"{ADVISE}.use.mode=prior", f"{ADVISE}.smoothing=0"], "smoothing must be above 0"),
    ([f"{ADVISE}.smoothing=1"], "leaves nothing of the advice; set it below 1"),
    ([f"{ADVISE}.use.mode=mixture", f"{ADVISE}.use.strength=1.5"], "strength must lie in [0, 1], got 1.5"),
    ([f"{ADVISE}.use.until=0"], "until must be above 0"),
    ([f"{ADVISE}.use.margin=0"], "margin must be above 0"),
    ([f"{ADVISE}.use.mode=margin"], "'ppo' does not; set groups.team.learner.name=dqn"),
    ([f"{ADVISE}.ask.every=0"], "groups.team.advisor.ask: every must be at least 1"),
    ([f"{ADVISE}.ask.fraction=2"], "fraction must lie in [0, 1]"),
    ([f"{ADVISE}.ask.fraction=0"], "fraction must be above 0"),
    ([f"{ADVISE}.ask.frames=0"], "frames must be at least 1"),
    ([f"{ADVISE}.use.strength=0"], "strength and final are both 0"),
    ([f"{ADVISE}.ask.entropy=-1"], "entropy must be at least 0"),
    ([f"{ADVISE}.name=expert", "world.name=gymnasium/CartPole-v1"], "needs a world with a scripted expert"),
    ([f"{ADVISE}.lm=minilm"], "groups.team.advisor: lm: 'minilm' only embeds texts; name a model that can score"),
    ([f"{ADVISE}.lm.budget.calls=5"], "lm.budget.calls: 5 "),
    (
        [f"{ADVISE}.lm.budget.calls=50", "train.workers=1"],
        "groups.team.advisor.lm.budget: a budget cannot be shared by train.workers; set",
    ),
    ([f"{ADVISE}.temperature=-1"], "temperature must be at least 0"),
    ([f"{ADVISE}.name=nobody"], "groups.team.advisor.name: no 'nobody' here (known: language, expert"),
]


@pytest.mark.parametrize(("words", "reason"), WRONG)
def test_what_is_refused_before_anything_starts(words, reason, path):
    with pytest.raises(ConfigError, match=re.escape(reason)):
        start.check(str(path), words)


# Runs ---------------------------------------------------------------------------------------------------------------


def apart(run):
    """The records without the clock and without what the model was asked."""
    return [{k: v for k, v in record.items() if "/lm/" not in k} for record in numbers(run)]


@pytest.mark.slow
def test_a_run_replayed_from_the_cache_asks_nothing_and_is_the_same(path):
    kept = [f"{ADVISE}.lm.cache.path={path.parent / 'answers.db'}", f"{ADVISE}.lm.budget.calls=25"]
    runs = [
        coterie.train(str(path), [*kept, *more], out=path.parent / f"run-{i}", quiet=True)
        for i, more in enumerate(([], [f"{ADVISE}.lm.cache.mode=replay-only"]))
    ]
    first, again = (run.metrics()[-1] for run in runs)
    assert (first["team/advice/lm/calls"], again["team/advice/lm/calls"]) == (25, 0)
    assert 0 < first["team/advice/abstentions"] < 0.5
    assert apart(runs[0]) == apart(runs[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [(), (f"{ADVISE}.lm.budget.calls=20", f"{ADVISE}.use.mode=mixture", f"{ADVISE}.ask.fraction=0.5")]
)
def test_a_killed_run_goes_on_as_if_nothing_had_happened(path, words, monkeypatch):
    straight = coterie.train(str(path), list(words), out=path.parent / "straight", quiet=True)
    advance = loop.Training.advance

    def breaking(self):
        if self.iteration == 3:
            raise InterruptedError
        return advance(self)

    monkeypatch.setattr(loop.Training, "advance", breaking)
    with pytest.raises(InterruptedError):
        coterie.train(str(path), list(words), out=path.parent / "broken", quiet=True)
    monkeypatch.setattr(loop.Training, "advance", advance)
    broken = Run.open(path.parent / "broken")
    assert coterie.resume(broken.path, quiet=True)
    assert apart(broken) == apart(straight)
    calls = [run.metrics()[-1]["team/advice/lm/calls"] for run in (broken, straight)]
    assert calls[0] <= calls[1]  # what was answered before the kill is not asked again
    assert broken.summary()["evaluation"] == straight.summary()["evaluation"]


@pytest.mark.slow
def test_hints_are_given_wherever_a_run_plays(path):
    run = coterie.train(str(path), [f"{ADVISE}.use.mode=hint"], out=path.parent / "run", quiet=True)
    loaded = table.load(run.path)
    assert loaded.evaluate(4).returns["team"].shape == (4, 2)
    (group,) = loaded.groups
    assert group.actor.advisor.metrics()["advice/decisions"] > 0
    players = match.open_players([str(run.path), "random"], "best")
    assert len(match.cross_play(players, loaded.config, 2, 0)) == 2


@pytest.mark.slow
def test_bare_observations_and_seats_elsewhere_bring_hints_along(path):
    run = coterie.train(str(path), [f"{ADVISE}.use.mode=hint"], out=path.parent / "run", quiet=True)
    loaded = table.load(run.path)
    observations = build.build_world(loaded.config.world, 3).reset(0).agent_types["agent"].observation[:, 0]
    before = loaded.groups[0].actor.advisor.counts["asked"]
    loaded.act("agent_0", observations)
    assert loaded.groups[0].actor.advisor.counts["asked"] == before + 3
    seated = [f"groups.team.policy.run={run.path}", "groups.team.learner=none", "groups.team.advisor=none"]
    (group,) = build.build_groups(schema.load(str(path), seated), build.build_world(loaded.config.world, 1))
    assert group.actor.advisor.in_evaluation
    assert group.policy.act(dataclasses.replace(seen(grid(2), group.actor.group_spec), advice=None)).action.shape == (
        2,
        2,
    )
    frozen = Frozen(FrozenSettings(str(run.path), "best", "team", True), loaded.groups[0].actor.group_spec)
    frozen.act(seen(grid(2), loaded.groups[0].actor.group_spec))
    assert frozen.actor.advisor.counts["asked"] == 4


def test_every_setting_has_a_test_here():
    ways = {"ask", "use", "smoothing"}
    asked = {"lm", "codec", "template", "examples", "normalize", "calibration", "temperature"}
    assert {f.name for f in dataclasses.fields(LanguageAdvisorSettings)} == asked | ways
    assert {f.name for f in dataclasses.fields(ExpertAdvisorSettings)} == ways
    assert {f.name for f in dataclasses.fields(AskSettings)} == {
        "every",
        "entropy",
        "disagreement",
        "fraction",
        "frames",
    }
    used = {"mode", "strength", "final", "until", "frames", "evaluate", "margin"}  # margin in test_dqn.py
    assert {f.name for f in dataclasses.fields(UseSettings)} == used


DUEL = """\
world: {name: tictactoe}
groups:
  cross:
    agents: player_0
    policy: {hidden: [8], normalize_observations: false}  # so that the policy stays what it is
    learner: {name: ppo, epochs: 1, minibatches: 1, learning_rate: 1e-12}
    advisor: {lm: "helpers.advisor:CENTRE", use: {mode: prior, strength: 3}, calibration: none}
  ring: {agents: player_1, policy: random}
train: {num_envs: 8, rollout_steps: 7, total_steps: 224, evaluate_episodes: 4, video: false, tensorboard: false}
"""


@pytest.mark.slow
def test_advice_in_turns_and_among_legal_actions(tmp_path):
    """Decisions stay open from one iteration to the next, by which the strength has changed."""
    run = coterie.train(str(written(tmp_path / "duel.yaml", DUEL)), out=tmp_path / "run", quiet=True)
    records = run.metrics()[1:]
    assert all(record["cross/kl"] < 1e-7 for record in records)
    assert records[-1]["cross/advice/abstentions"] == 0
    world, settings = Tictactoe(TictactoeSettings(), 3), UseSettings("prior")
    made, where = advisor(world, "CENTRE", use=dataclasses.asdict(settings), home="helpers.advisor", calibration="none")
    agent_step = world.reset(0).agent_types["player"]
    mask = agent_step.mask.copy()
    mask[0, :, 4] = False
    view = dataclasses.replace(seen(world, where), acting=agent_step.acting, mask=mask)
    notes = noted(made.advise(view, network(where)))
    acting = np.flatnonzero(agent_step.acting[0])[0]
    assert notes[0, acting, 1 + 4] == 0  # the centre is taken here, and advised elsewhere
    assert notes[1, acting, 1:].argmax() == 4
    np.testing.assert_allclose(notes[:, acting, 1:].sum(-1), 1, rtol=1e-5)
    assert np.isnan(notes[:, 1 - acting]).all()  # nobody advises who is not to move


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0), (2, 1)])
def test_a_run_resumed_with_other_workers_counts_as_if_never_stopped(tmp_path, forked, before, after):
    """Every process restores what its advisors counted: more or fewer of them than before."""
    text = TABLE.replace('{lm: "helpers.language:COPIER"}', "{name: expert}").replace("num_envs", "shards: 2, num_envs")
    table = written(tmp_path / "table.yaml", text)
    whole = train(tmp_path / "whole", experiment=table)
    run = stopped(tmp_path / "run", f"train.workers={before}", experiment=table, at=3)
    coterie.resume(run.path, [f"train.workers={after}"], quiet=True)
    for found, expected in zip(numbers(run), numbers(whole), strict=True):
        assert found == pytest.approx(expected, rel=1e-12)  # sums of divergences depend on their order


SEARCHED = """
world: {name: tictactoe}
groups:
  players:
    agents: "*"
    policy: {hidden: [8]}
    learner: {name: dagger, updates: 2, batch_size: 16}
    advisor: {name: policy, policy: "search:simulations=32", use: {mode: label}}
train: {num_envs: 8, rollout_steps: 9, total_steps: 216, evaluate_episodes: 4, video: false, tensorboard: false}
"""


def labelled(path, *words):
    config = schema.load(str(path), words)
    world = build.build_world(config.world, 8)
    played = Runner(world, [build.build_groups(config, world)[0].actor], 0).play(9, 1, 0.0)
    return played.experiences["players"]


@pytest.mark.slow
@pytest.mark.parametrize("settings", ["simulations=64", "simulations=64,method=gumbel", "simulations=64,reuse=true"])
def test_a_search_advises_by_its_visits(tmp_path, settings):
    """Whoever can win at once is advised to."""
    own = labelled(
        written(tmp_path / "a.yaml", SEARCHED.replace("simulations=32", settings)),
        *("groups.players.learner={name: ppo}", f"{PLAYERS}.use={{mode: kl}}"),
    )
    assert own.advice.given[own.active].all()
    np.testing.assert_allclose(own.advice.probabilities[own.active].sum(-1), 1, rtol=1e-5)
    winning = 0
    for t, n, a in np.argwhere(own.active):
        planes = own.observation[t, n, a].reshape(2, 9).astype(bool)  # own marks, the other's
        wins = [cell for cell in range(9) if not planes[:, cell].any() and has_line(planes[0] | (np.arange(9) == cell))]
        advised = own.advice.probabilities[t, n, a]
        assert not advised[planes.any(0)].any()  # of what is taken
        assert not wins or advised.argmax() in wins
        winning += bool(wins)
    assert winning > 10


def has_line(marks):
    board = marks.reshape(3, 3)
    return bool((board.all(0) | board.all(1)).any() or board.diagonal().all() or board[:, ::-1].diagonal().all())


@pytest.mark.slow
def test_the_network_of_a_run_that_searches_advises_by_its_search_and_a_killed_student_goes_on_exactly(tmp_path):
    small = ["groups.players.policy.network.hidden=[8]", "groups.players.policy.simulations=8", "train.total_steps=64"]
    teacher = coterie.train("tictactoe-alphazero", [*small, "train.num_envs=8"], out=tmp_path / "az", quiet=True)
    path = written(tmp_path / "a.yaml", SEARCHED.replace('"search:simulations=32"', str(teacher.path)))
    whole = coterie.train(str(path), out=tmp_path / "whole", quiet=True)
    assert whole.metrics()[-1]["players/labels"] > 0
    half = stopped(tmp_path / "half", "train.checkpoint_every=1", experiment=path, at=2)
    coterie.resume(half.path, quiet=True)
    assert numbers(half) == numbers(whole)
