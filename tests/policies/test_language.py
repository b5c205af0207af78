"""Language models as players: descriptions, questions, answers, and refused settings."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

import coterie
from coterie.config import schema
from coterie.config.schema import ConfigError
from coterie.core.types import as_metrics
from coterie.lm import prompts
from coterie.lm.ask.budget import BudgetSettings
from coterie.lm.ask.cache import CacheSettings
from coterie.policies.language import Illegal, LanguagePolicy, LanguageSettings, parse_choice
from coterie.studies.match import match
from coterie.testing import check_policy
from coterie.training import start, table
from coterie.worlds.boards.tictactoe import CELL_NAMES, Tictactoe, TictactoeSettings
from coterie.worlds.gridworld.text import describe_nearest_target
from helpers.language import player, race, view_of
from helpers.lm import embedded_file
from helpers.run import written
from helpers.small_worlds import group_spec

TABLE = """\
world: {name: gridworld, mode: race, grid_size: 5, num_agents: 3, max_steps: 20}
groups:
  model: {agents: agent_0, policy: {name: language, lm: "helpers.language:COPIER"}}
  learners: {agents: agent_1, policy: {hidden: [4]}, learner: {name: ppo}}
  scripts: {agents: agent_2, policy: expert}
train: {num_envs: 4, rollout_steps: 5, total_steps: 40, evaluate_episodes: 4, video: false, tensorboard: false}
"""

# Scored choices -------------------------------------------------------------------------------------------


def test_calibration_takes_out_the_favourite():
    world = race(100)
    for calibration, optimal in (("batch", 1.0), ("content_free", 1.0), ("none", None)):
        policy = player(world, calibration=calibration)
        action = policy.act(view_of(world, policy.group_spec)).action
        if optimal is None:
            assert (action == 2).all()  # left, whatever it sees
        else:
            assert as_metrics(policy.metrics())["optimal"] == optimal


def test_log_probs_are_those_of_the_choices():
    world = race(1)
    policy = player(world, calibration="batch", temperature=1.0)
    weights = np.exp(policy.log_probs(["The target is 2 steps up."])[0])
    np.testing.assert_allclose(weights, np.array([np.e**2, 1, 1, 1]) / (np.e**2 + 3), rtol=1e-6)
    half = player(world, temperature=2.0)
    decision = half.act(view_of(world, half.group_spec, greedy=False))
    odds = np.exp(1.0) / (np.exp(1.0) + 3), 1 / (np.exp(1.0) + 3)
    assert all(np.isclose(np.exp(p), odds).any() for p in decision.log_prob.ravel())


def test_at_temperature_0_nothing_is_drawn():
    world = race(20)
    policy = player(world)
    one, other = (policy.act(view_of(world, policy.group_spec, greedy=False)) for _ in range(2))
    np.testing.assert_array_equal(one.action, other.action)
    assert (one.log_prob == 0).all()


def test_every_description_is_asked_about_once():
    world = race(200)
    policy = player(world)
    for _ in range(3):
        policy.act(view_of(world, policy.group_spec))
    described = policy.codec.describe(world.reset(0).agent_types["agent"].observation.reshape(400, -1))
    assert as_metrics(policy.metrics())["lm/calls"] == len({*described, *policy.codec.samples()})
    assert as_metrics(policy.metrics())["decisions"] == 1200


def test_only_legal_cells_are_chosen():
    world = Tictactoe(TictactoeSettings(), 5)
    policy = player(world, calibration="none")
    view = view_of(world, policy.group_spec)
    cells = policy.act(view).action[:, 0]
    world.step({"player": np.stack([cells, cells], axis=1)})
    agent_step = world._timestep.agent_types["player"]
    after = replace(view, observation=agent_step.observation, acting=agent_step.acting, mask=agent_step.mask)
    again = policy.act(after).action[:, 1]
    assert (again != cells).all()


def test_a_spent_budget_is_abstention_and_not_failure():
    world = race(50)
    policy = player(world, around={"budget": BudgetSettings(calls=20)})
    decision = policy.act(view_of(world, policy.group_spec))
    metrics = as_metrics(policy.metrics())
    assert metrics["lm/calls"] == 20  # what still fits is asked
    assert 0 < metrics["abstentions"] < 100
    assert metrics["fallbacks"] == metrics["abstentions"]
    assert np.isclose(decision.log_prob, np.log(0.25)).sum() == metrics["abstentions"]
    assert metrics["optimal"] < 1


def test_a_cache_answers_for_the_model(tmp_path):
    world = race(20)
    kept = {"cache": CacheSettings(str(tmp_path / "answers.db"))}
    first = player(world, around=kept)
    said = first.act(view_of(world, first.group_spec)).action
    again = player(world, around={"cache": CacheSettings(str(tmp_path / "answers.db"), "replay-only")})
    np.testing.assert_array_equal(again.act(view_of(world, again.group_spec)).action, said)
    assert as_metrics(again.metrics())["lm/calls"] == 0
    empty = {"cache": CacheSettings(str(tmp_path / "x.db"), "replay-only"), "max_abstentions": 1.0}
    unheard = player(world, calibration="content_free", around=empty)
    unheard.act(view_of(world, unheard.group_spec))
    assert as_metrics(unheard.metrics())["abstentions"] == 40


# Free text ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (" up", 0),
        ("I go DOWN, then up.", 1),
        ("upwards", None),
        ("", None),
        ("right.", 3),
        ("left", None),  # not legal here
    ],
)
def test_texts_are_understood(text, found):
    legal = np.array([True, True, False, True])
    assert parse_choice(text, ("up", "down", "left", "right"), legal) == (Illegal(text) if found is None else found)


def test_longer_names_come_first_and_numbers_stay_whole():
    free = np.ones(9, bool)
    assert parse_choice("the middle left one", CELL_NAMES, free) == 3
    bids = ("0.1", "0.15", "1.0")
    assert parse_choice("bid 0.15", bids, np.ones(3, bool)) == 1
    assert isinstance(parse_choice("0.155", bids, np.ones(3, bool)), Illegal)
    assert parse_choice("0.1.", bids, np.ones(3, bool)) == 0


def test_a_text_is_played():
    world = race(60)
    policy = player(world, method="complete")
    decision = policy.act(view_of(world, policy.group_spec))
    metrics = as_metrics(policy.metrics())
    assert (metrics["optimal"], metrics["illegal"], decision.log_prob) == (1.0, 0.0, None)


@pytest.mark.parametrize(
    ("illegal", "counts"),
    [
        ("retry", {"illegal": 120, "fallbacks": 40, "forfeits": 0}),
        ("fallback", {"illegal": 40, "fallbacks": 40, "forfeits": 0}),
        ("forfeit", {"illegal": 40, "fallbacks": 0, "forfeits": 40}),
    ],
)
def test_what_is_no_choice_is_counted(illegal, counts):
    world = race(20)
    policy = player(world, "RAMBLER", method="complete", illegal=illegal, retries=2)
    action = policy.act(view_of(world, policy.group_spec)).action
    assert {name: as_metrics(policy.metrics())[name] for name in counts} == counts
    assert (action == 4).all() == (illegal == "forfeit")  # who forfeits stays


@pytest.mark.parametrize(("illegal", "instead"), [("retry", "drawn at random"), ("forfeit", "the no-op is played")])
def test_a_model_of_whose_answers_none_is_read_is_named_once(illegal, instead, caplog):
    world = race(5)
    policy = player(world, "RAMBLER", method="complete", illegal=illegal)
    said = []
    for _ in range(3):
        policy.act(view_of(world, policy.group_spec))  # ten answers
        said.append(caplog.text.count("first 20 answers names a legal choice, for example ' I would'"))
    assert said == [0, 1, 1]
    assert instead in caplog.text


@pytest.mark.parametrize("model", ["COPIER", "REPENTANT"])
def test_a_model_whose_answers_are_read_is_not_named(model, caplog):
    world = race(20)
    policy = player(world, model, method="complete")
    policy.act(view_of(world, policy.group_spec))
    assert not caplog.records


def test_who_forfeits_sends_no_symbol_that_is_none():
    world = race(3, messages=2)
    policy = player(world, "RAMBLER", method="complete", illegal="forfeit")
    assert policy.act(view_of(world, policy.group_spec)).action[0, 0].tolist() == [4, 0]


def test_a_second_question_says_what_may_be_chosen():
    world = race(20)
    policy = player(world, "REPENTANT", method="complete")
    assert (policy.act(view_of(world, policy.group_spec)).action == 1).all()
    assert (as_metrics(policy.metrics())["illegal"], as_metrics(policy.metrics())["fallbacks"]) == (40, 0)


@pytest.mark.slow
def test_drawn_texts_differ_between_equal_rows_and_ticks():
    world = race(200)
    policy = player(world, "FICKLE", method="complete", temperature=1.0)
    view = view_of(world, policy.group_spec, greedy=False)
    one, other = policy.act(view).action, policy.act(view).action
    assert (one != other).mean() > 0.5
    described = policy.codec.describe(view.observation.reshape(400, -1))
    common = max(set(described), key=described.count)
    assert len(set(one.ravel()[[text == common for text in described]])) > 1
    check_policy(lambda where: policy, policy.group_spec, world=world)


def test_completions_also_stop_at_the_budget():
    world = race(50)
    policy = player(world, method="complete", around={"budget": BudgetSettings(calls=5)})
    policy.act(view_of(world, policy.group_spec))
    assert as_metrics(policy.metrics())["lm/calls"] == 5
    assert as_metrics(policy.metrics())["abstentions"] > 0


# Prompts ----------------------------------------------------------------------------------------------------


def test_a_prompt_shows_examples_as_it_asks():
    made = prompts.read("auto", "auto", "gridworld", ("up", "down", "left", "right"))
    text = made.prompt("The target is 1 step up.")
    assert text.count("Move:") == 9
    assert text.endswith("Move: left\n\nThe target is 1 step up.\nMove:")


def test_ones_own_files(tmp_path):
    template = written(tmp_path / "t.txt", "Hello.\n{examples}\nQ {state} A\n")
    examples = written(tmp_path / "e.txt", "a => up\n\nb => down\n")
    made = prompts.read(str(template), str(examples), "gridworld", ("up", "down"))
    assert made.prompt("c") == "Hello.\nQ a A up\n\nQ b A down\n\nQ c A"
    assert prompts.read(str(template), "none", "gridworld", ("up",)).prompt("c") == "Hello.\nQ c A"


@pytest.mark.parametrize("method", ["score", "complete"])
def test_where_no_word_is_allowed_the_first_other_action_is_played(method):
    world = race(4, num_agents=1)
    made = player(world, method=method)
    view = view_of(world, made.group_spec)
    mask = np.zeros((*view.acting.shape, 5), bool)
    mask[..., 4] = True  # to stay has no word here
    mask[0] = True
    said = made.act(replace(view, mask=mask))
    assert (said.action[1:] == 4).all()
    assert (said.action[0] != 4).all()
    assert as_metrics(made.metrics())["fallbacks"] == 3
    if said.log_prob is not None:
        assert (said.log_prob[1:] == 0).all()


@pytest.mark.parametrize(
    ("template", "examples", "reason"),
    [
        ("nowhere.txt", "auto", "no file 'nowhere.txt'"),
        ("auto", "nowhere.txt", "no file 'nowhere.txt'"),
        ("Just go!", None, "{state} must occur once"),
        ("{state} then {examples}", None, "{state} must occur once"),
        ("{state}", "a => up", "has no {examples}"),
        ("{examples}{state}", "a -> up", "line 1: expected 'description => answer'"),
        ("{examples}{state}", "a => up\nb => sideways", "line 2: 'sideways' is not one of up, down"),
    ],
)
def test_prompts_that_are_refused(tmp_path, template, examples, reason):
    if "{" in template or " " in template:
        template = str(written(tmp_path / "t.txt", template))
    examples = "none" if examples is None else examples
    if "=>" in examples or "->" in examples:
        examples = str(written(tmp_path / "e.txt", examples))
    with pytest.raises(ValueError, match=re.escape(reason)):
        prompts.read(template, examples, "gridworld", ("up", "down"))


@pytest.mark.parametrize("name", sorted(path.stem for path in prompts.FOLDER.glob("*-examples.txt")))
def test_shipped_examples_fit_their_templates(name):
    assert (prompts.FOLDER / f"{name.removesuffix('-examples')}.txt").is_file()


# Refusals -----------------------------------------------------------------------------------------------------

WRONG = [  # world, further settings of the policy, why not
    ("name: mpe/simple_spread_v3", "", "no text_codec"),
    ("name: gridworld", "codec: 'helpers.language:Nobody'", "module 'helpers.language' has no 'Nobody'"),
    ("name: gridworld", "codec: 'helpers.language:Speechless'", "offers no choices"),
    ("name: gridworld", "template: nowhere", "template: there is no file 'nowhere'"),
    ("name: gridworld", "illegal: resign", "one of 'retry', 'fallback' or 'forfeit'"),
    ("name: gridworld", "lm: {nam: embedded}", "policy.lm.nam: no such setting; did you mean 'name'?"),
    ("name: tictactoe", "illegal: forfeit", "illegal=forfeit needs a no-op action"),
    ("name: spread, continuous_actions: true", "", "world.continuous_actions"),
    ("name: gymnasium/Pendulum-v1", "", "no finite choices"),
    ("name: auction, bid_levels: 200", "", "at most 101 bids"),
]


@pytest.mark.parametrize(("world", "more", "reason"), WRONG)
def test_what_is_refused_before_anything_starts(world, more, reason, tmp_path):
    policy = f"{{name: language, {more}}}" if more else "language"
    text = f"world: {{{world}}}\ngroups: {{all: {{agents: '*', policy: {policy}}}}}\n"
    with pytest.raises(ConfigError, match=re.escape(reason)):
        start.check(str(written(tmp_path / "t.yaml", text)))


def test_a_place_without_a_world_is_refused():
    with pytest.raises(ValueError, match="needs a world"):
        LanguagePolicy(LanguageSettings(), group_spec())


def test_a_learner_has_nothing_to_improve(tmp_path):
    text = "world: {name: gridworld}\ngroups: {all: {policy: {name: language}, learner: {name: ppo}}}\n"
    with pytest.raises(ConfigError, match="'ppo' improves a NetworkPolicy, not this group's LanguagePolicy"):
        start.check(str(written(tmp_path / "t.yaml", text)))


# Tables -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("language")
    return coterie.train(str(written(path / "t.yaml", TABLE)), out=path / "run", quiet=True)


@pytest.mark.slow
def test_a_model_plays_beside_ppo_and_a_script(run):
    lines = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    assert lines[-1]["model/optimal"] == 1.0
    assert lines[-1]["model/lm/calls"] == lines[-1]["model/distinct"]
    assert lines[-1]["learners/decisions"] > 0


def test_a_run_with_a_model_is_loaded_asked_and_matched(run):
    loaded = table.load(run.path)
    assert loaded.evaluate(4).returns["model"].shape == (4, 1)
    observation = race(7, num_agents=3).reset(0).agent_types["agent"].observation[:, 0]
    assert loaded.act("agent_0", observation).shape == (7,)
    players = match.open_players([str(run.path), "random"], "best")
    assert len(match.cross_play(players, loaded.config, 2, 0)) == 2
    assert match.open_players(["language"], "best")[0].table is None


@pytest.mark.slow
def test_workers_load_models_of_their_own(run, tmp_path, forked):
    again = coterie.train(
        str(written(tmp_path / "t.yaml", TABLE)), ["train.workers=1"], out=tmp_path / "run", quiet=True
    )
    assert again.summary()["evaluation"] == run.summary()["evaluation"]


def test_a_name_is_short_for_a_section(tmp_path):
    settings = schema.load(str(written(tmp_path / "t.yaml", TABLE)))
    assert settings.groups["model"].policy.settings.lm.name == "helpers.language:COPIER"
    assert schema.resolve(schema.to_dict(settings), "t") == settings


@pytest.mark.lm
def test_the_embedded_model_walks_straight():
    """Six fresh states, none among the examples or the samples."""
    embedded_file("folder")
    world = race(1)
    policy = player(world, "embedded")
    states = [(-4, 0), (0, 4), (3, -4), (4, 1), (-1, -4), (2, 0)]
    described = [describe_nearest_target([offset], []) for offset in states]
    best = policy.log_probs(described).argmax(axis=1)
    assert all(policy.codec.choices[i] in text for i, text in zip(best, described, strict=True))
