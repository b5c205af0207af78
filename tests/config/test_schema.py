"""Layers, overrides, strict checking: every refusal names the path and the cure."""

import dataclasses
import functools
import itertools
import json
import random
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from coterie.config import schema
from coterie.config.schema import ConfigError, Part, SeatedRun, StopSettings, TrainSettings
from helpers import run as run_cases
from helpers.run import written

COOPERATIVE = "gridworld-cooperative"


def refusal(*words, experiment=COOPERATIVE):
    with pytest.raises(ConfigError) as caught:
        schema.load(str(experiment), list(words))
    return str(caught.value)


# Merging ------------------------------------------------------------------------------------------------


def test_defaults_then_file_then_overrides(tmp_path):
    file = written(
        tmp_path / "a.yaml", "world: gridworld\ngroups: {team: {learner: ppo}}\ntrain: {rollout_steps: 7, num_envs: 3}"
    )
    loaded = schema.load(str(file), ["train.num_envs=5"])
    assert loaded.train == TrainSettings(rollout_steps=7, num_envs=5)
    assert loaded.experiment == "a"
    assert loaded.groups["team"].agents == ("*",)
    assert loaded.groups["team"].policy.name == "network"
    assert loaded.groups["team"].preference.name == "individual"


def test_settings_can_be_laid_on_a_part_given_by_its_bare_name(tmp_path):
    file = written(tmp_path / "a.yaml", "world: gridworld\ngroups: {team: {policy: network}}")
    loaded = schema.load(str(file), ["world.grid_size=5", "groups.team.policy.hidden=[3,4]"])
    assert loaded.world.settings.grid_size == 5
    assert loaded.groups["team"].policy.settings.hidden == (3, 4)


def test_numbers_in_scientific_notation_are_numbers(tmp_path):
    loaded = schema.load(COOPERATIVE, ["groups.team.learner.learning_rate=1e-3"])
    assert loaded.groups["team"].learner.settings.learning_rate == 1e-3
    text = "world: gridworld\ngroups: {team: {learner: {name: ppo, learning_rate: 1e-3}}}"
    loaded = schema.load(str(written(tmp_path / "a.yaml", text)))
    assert loaded.groups["team"].learner.settings.learning_rate == 1e-3


def test_whole_numbers_pass_as_reals():
    value = schema.load(COOPERATIVE, ["groups.team.learner.gamma=1"]).groups["team"].learner.settings.gamma
    assert value == 1.0
    assert isinstance(value, float)


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("train.total_steps=1e5", 100_000),
        ("seed=3.0", 3),
        ("world.num_targets=2.0", 2),  # int or null
        ("groups.team.policy.hidden=[8.0,1e1]", (8, 10)),
    ],
)
def test_reals_without_a_fraction_pass_as_whole_numbers(word, found):
    plain = schema.to_dict(schema.load(COOPERATIVE, [word]))
    value = functools.reduce(lambda at, name: at[name], word.partition("=")[0].split("."), plain)
    assert json.dumps(value) == json.dumps(found)


@pytest.mark.parametrize("word", ["on", "off", "auto"])
def test_words_that_yaml_reads_as_booleans_are_words_where_a_setting_takes_them(tmp_path, word):
    lm = "groups.team.policy.lm"
    words = [
        "groups.team.policy=language",
        "groups.team.learner=none",
        f"{lm}.name=embedded",
        f"{lm}.local.engine={word}",
    ]
    loaded = schema.load(COOPERATIVE, words)
    assert loaded.groups["team"].policy.settings.lm.local.engine == word
    text = f"world: gridworld\ngroups: {{team: {{policy: {{name: language, lm: {{local: {{engine: {word}}}}}}}}}}}"
    again = schema.load(str(written(tmp_path / "a.yaml", text)))
    assert again.groups["team"].policy.settings.lm.local.engine == word
    assert "expected one of" in refusal("world.mode=on")


def test_extends_by_name_by_file_and_in_a_chain(tmp_path):
    written(tmp_path / "base.yaml", "extends: gridworld-cooperative\nseed: 3\ntrain: {rollout_steps: 9}")
    (tmp_path / "deeper").mkdir()
    for parent in ("../base.yaml", str(tmp_path / "base.yaml")):
        top = written(tmp_path / "deeper" / "top.yaml", f"extends: {parent}\ntrain: {{num_envs: 2}}")
        loaded = schema.load(str(top))
        assert (loaded.seed, loaded.train.rollout_steps, loaded.train.num_envs) == (3, 9, 2)
        assert loaded.world.settings.grid_size == 8
    beside = written(tmp_path / "beside.yaml", "extends: base")
    assert schema.load(str(beside)).seed == 3


def test_extends_in_a_circle_is_refused(tmp_path):
    written(tmp_path / "a.yaml", "extends: b")
    written(tmp_path / "b.yaml", "extends: a")
    said = refusal(experiment=tmp_path / "a.yaml")
    assert "circle: a.yaml -> b.yaml -> a.yaml" in said


def test_extends_something_unknown_is_refused(tmp_path):
    assert "no experiment or file 'nobody'" in refusal(experiment=written(tmp_path / "a.yaml", "extends: nobody"))


def test_interpolation():
    loaded = schema.load(COOPERATIVE, ["train.rollout_steps=${train.num_envs}", "train.num_envs=32"])
    assert loaded.train.rollout_steps == 32
    assert refusal("train.rollout_steps=${train.nothing}").startswith("train.rollout_steps: cannot be resolved: ")


def test_another_name_drops_the_other_parts_settings(tmp_path):
    loaded = schema.load(COOPERATIVE, ["world.name=tictactoe"])
    assert loaded.world == Part("tictactoe", type(loaded.world.settings)())
    text = "extends: gridworld-cooperative\ngroups: {team: {policy: {hidden: [5]}}}"
    for word in ("groups.team.policy.name=random", "groups.team.policy=random"):
        loaded = schema.load(str(written(tmp_path / "a.yaml", text)), [word])
        assert loaded.groups["team"].policy.name == "random"
    kept = schema.load(COOPERATIVE, ["world.name=gridworld", "world.max_steps=50"])
    assert kept.world.settings == schema.load(COOPERATIVE, ["world.max_steps=50"]).world.settings


SERVER = "http://127.0.0.1:9/v1"
LM = "groups.team.policy.lm"


@pytest.mark.parametrize(
    "words", [*itertools.permutations(["learner=dqn", "learner.batch_size=7", "policy=q_network"])]
)
def test_a_parts_short_form_and_its_settings_are_overrides_in_any_order(words):
    team = schema.load(COOPERATIVE, [f"groups.team.{word}" for word in words]).groups["team"]
    assert (team.learner.name, team.learner.settings.batch_size, team.policy.name) == ("dqn", 7, "q_network")


@pytest.mark.parametrize(
    "words",
    [
        *itertools.permutations(
            ["groups.team.policy=language", f"{LM}={SERVER}", f"{LM}.cache=answers", f"{LM}.cache.mode=record"]
        )
    ],
)
def test_a_sections_short_form_and_its_settings_are_overrides_in_any_order(words):
    lm = schema.load(COOPERATIVE, ["groups.team.learner=none", *words]).groups["team"].policy.settings.lm
    assert (lm.name, lm.cache.path, lm.cache.mode) == (SERVER, "answers", "record")


@pytest.mark.parametrize(
    ("below", "above"),
    [
        ("{name: embedded, cache: {path: f, mode: record}, budget: {calls: 9}}", SERVER),
        ("{name: embedded, cache: {path: f, mode: record}, budget: {calls: 9}}", f"{{name: '{SERVER}'}}"),
        (SERVER, "{cache: {path: f, mode: record}, budget: {calls: 9}}"),
        (f"{{name: '{SERVER}', cache: f}}", "{cache: {mode: record}, budget: {calls: 9}}"),
    ],
)
@pytest.mark.parametrize("where", ["file", "override"])
def test_a_sections_short_form_and_its_settings_merge_across_layers(tmp_path, below, above, where):
    text = f"world: gridworld\ngroups: {{team: {{policy: {{name: language, lm: {below}}}}}}}"
    file = written(tmp_path / "below.yaml", text)
    words = [f"{LM}={above}"]
    if where == "file":
        text = f"extends: below\ngroups: {{team: {{policy: {{lm: {above}}}}}}}"
        file, words = written(tmp_path / "above.yaml", text), []
    lm = schema.load(str(file), words).groups["team"].policy.settings.lm
    assert (lm.name, lm.cache.path, lm.cache.mode, lm.budget.calls) == (SERVER, "f", "record", 9)


@pytest.mark.parametrize("below", [[], ["start=runs/old"], ["start={run: runs/old, group: b}"]])
@pytest.mark.parametrize("words", [*itertools.permutations(["start=runs/a", "start.checkpoint=last"])])
def test_the_short_form_of_a_start_and_its_settings_are_overrides_in_any_order(tmp_path, below, words):
    text = f"extends: {COOPERATIVE}\ngroups: {{team: {{{', '.join(below).replace('=', ': ')}}}}}"
    file = written(tmp_path / "below.yaml", text)
    start = schema.load(str(file), [f"groups.team.{word}" for word in words]).groups["team"].start
    group = "b" if "group: b" in text else None
    assert start == SeatedRun(str(Path("runs/a").absolute()), "last", group)


def test_of_a_short_form_and_the_setting_it_stands_for_the_later_one_counts():
    words = ["groups.team.learner=none", "groups.team.policy=language"]
    for first, last in itertools.permutations([f"{LM}=a:A", f"{LM}.name=b:B"]):
        name = schema.load(COOPERATIVE, [*words, first, last]).groups["team"].policy.settings.lm.name
        assert name == last.partition("=")[2]
        again = schema.load(COOPERATIVE, [*words, last, first, last]).groups["team"].policy.settings.lm.name
        assert again == name


@pytest.mark.parametrize("value", ["[1,2]", "3", "true"])
def test_overrides_that_contradict_each_other_are_refused(value):
    for words in ([f"groups={value}", "groups.team.agents=a"], ["groups.team.agents=a", f"groups={value}"]):
        assert f"'{words[1]}'" in refusal(*words)


def test_a_seated_run_replaces_a_named_policy_and_the_other_way_round():
    base = {"name": "network", "hidden": [3]}
    assert schema.merge(base, {"run": "runs/a"}, "policy") == {"run": "runs/a"}
    assert schema.merge({"run": "runs/a"}, {"name": "random"}, "policy") == {"name": "random"}
    assert schema.merge({"run": "runs/a"}, {"checkpoint": "last"}) == {"run": "runs/a", "checkpoint": "last"}
    loaded = schema.load(COOPERATIVE, ["groups.team.policy.run=runs/a", "groups.team.policy.checkpoint=last"])
    assert loaded.groups["team"].policy == SeatedRun(str(Path("runs/a").absolute()), "last")


def test_a_learner_can_be_taken_away():
    for word in ("null", "none"):
        assert schema.load(COOPERATIVE, [f"groups.team.learner={word}"]).groups["team"].learner is None


def test_a_sweep_is_the_product_and_spares_brackets():
    assert schema.sweep(["seed=0,1", "a.b=1e-3,3e-4"]) == [
        ["seed=0", "a.b=1e-3"],
        ["seed=0", "a.b=3e-4"],
        ["seed=1", "a.b=1e-3"],
        ["seed=1", "a.b=3e-4"],
    ]
    assert schema.sweep(["h=[64,64],[32]", "g={a: 1, b: 2}"]) == [
        ["h=[64,64]", "g={a: 1, b: 2}"],
        ["h=[32]", "g={a: 1, b: 2}"],
    ]
    assert schema.sweep([]) == [[]]
    with pytest.raises(ConfigError, match="'seed': expected key=value"):
        schema.sweep(["seed"])


# Writing and reading back -------------------------------------------------------------------------------


@pytest.mark.parametrize("experiment", schema.experiments())
def test_every_experiment_comes_back_from_its_own_text(experiment):
    loaded = schema.load(experiment)
    plain = OmegaConf.to_container(OmegaConf.create(schema.to_yaml(loaded)))
    assert schema.resolve(plain, "other") == loaded
    assert plain["schema"] == schema.SCHEMA
    assert plain["experiment"] == experiment


def test_everything_unusual_comes_back(tmp_path):
    text = """
world: {name: "helpers.run:Odd", lengths: [3, 4]}
groups:
  a: {agents: [agent_0], policy: {run: runs/a, checkpoint: "12", group: b}, preference: {name: "helpers.run:Scaled"}}
  b: {agents: agent_1, parameters: individual, policy: {name: "helpers.run:Stubborn", action: 1},
      learner: {name: "helpers.run:Counting", first: 4}}
train: {stop: {return_mean: 4, group: b}}
"""
    loaded = schema.load(str(written(tmp_path / "a.yaml", text)))
    assert loaded.world.settings == run_cases.OddSettings(lengths=(3, 4))
    assert loaded.groups["b"].learner.settings == run_cases.CountingSettings(4)
    assert loaded.train.stop == StopSettings(4.0, group="b")
    assert schema.resolve(schema.to_dict(loaded), "a") == loaded


def test_another_schema_is_refused():
    plain = schema.to_dict(schema.load(COOPERATIVE)) | {"schema": schema.SCHEMA + 1}
    with pytest.raises(
        ConfigError, match=f"schema: this version reads schema {schema.SCHEMA}, got {schema.SCHEMA + 1}"
    ):
        schema.resolve(plain, "a")


# Refusals -----------------------------------------------------------------------------------------------

REFUSALS = {
    # unknown
    "wrld.grid_size=4": "wrld: no such setting; did you mean 'world'?",
    "world.grid_sise=4": "world.grid_sise: no such setting; did you mean 'grid_size'?",
    "world.name=gridwrld": "world.name: no 'gridwrld' here",
    "world.name=echo_world.Echo": "; did you mean 'echo_world:Echo'?",
    "groups.team.learnr.name=ppo": "groups.team.learnr: no such setting; did you mean 'learner'?",
    "groups.team.policy.hiden=[4]": "groups.team.policy.hiden: no such setting; did you mean 'hidden'?",
    "groups.team.policy.name=netwrk": "groups.team.policy.name: no 'netwrk' here",
    "groups.team.learner.learnig_rate=1": "groups.team.learner.learnig_rate: no such setting; did you",
    "groups.team.learner.name=pp0": "did you mean 'ppo'?",
    "groups.team.preference.name=tam": "did you mean 'team'?",
    "groups.team.learner={name: none, gamma: 0.5}": "groups.team.learner: none has no settings, got gamma",
    "groups.team.preference.weight=1": "groups.team.preference.weight: no such setting; known: none",
    "train.total_stepz=3": "train.total_stepz: no such setting; did you mean 'total_steps'?",
    "train.stop.retrn_mean=3": "train.stop.retrn_mean: no such setting; did you mean 'return_mean'?",
    "train.stop={return_mean: 3, group: tem}": "train.stop.group: no group 'tem'; there are team",
    "grid_size=4": "grid_size: no such setting; did you mean 'world.grid_size'?",
    "total_steps=4": "total_steps: no such setting; did you mean 'train.total_steps'?",
    "learner.learning_rate=1": "learner: no such setting; did you mean 'groups.team.learner'?",
    "learning_rate=1": "learning_rate: no such setting; did you mean 'groups.team.learner.learning_rate'?",
    "zzz=4": "zzz: no such setting; known: world, groups, train, seed, experiment, schema",
    # missing
    "world=null": "world.name: required setting is missing; one of gridworld, tictactoe",
    "groups=null": "groups: at least one group is needed",
    "groups={a/b: {learner: ppo}}": "groups: a group's name has no '/' and does not begin with '.', got 'a/b'",
    "groups={..: {learner: ppo}}": "groups: a group's name has no '/' and does not begin with '.', got '..'",
    "train.stop.episodes=3": "train.stop.return_mean: required setting is missing",
    "groups.team.policy.checkpoint=best": "groups.team.policy.checkpoint: no such setting",
    # mistyped
    "seed=one": "seed: expected a valid integer, got 'one'",
    "seed=1.5": "seed: expected a valid integer",
    "seed=true": "seed: expected a valid integer, got True",
    "world.grid_size=four": "world.grid_size: expected a valid integer, got 'four'",
    "world.mode=friendly": "world.mode: expected one of 'cooperative'",
    "groups.team=5": "groups.team: expected the settings of a group, got 5",
    "groups.team.agents=5": "groups.team.agents: expected a valid array, got 5",
    "groups.team.parameters=mine": "groups.team.parameters: expected one of 'shared' or 'individual', got 'mine'",
    "groups.team.policy.hidden=wide": "groups.team.policy.hidden: expected",
    "groups.team.policy.identity=1": "groups.team.policy.identity: expected a valid boolean, got 1",
    "groups.team.learner.gamma=much": "groups.team.learner.gamma: expected a valid number, got 'much'",
    "train.num_envs=2.5": "train.num_envs: expected a valid integer",
    "train.stop=5": "train.stop: expected settings, got 5",
    "groups.team.start=5": "groups.team.start: expected settings, got 5",
    "train.video=perhaps": "train.video: expected a valid boolean, got 'perhaps'",
    "train=fast": "train: expected settings, got 'fast'",
    "groups=team": "groups: expected groups by name, got 'team'",
    "train=5": "train: expected settings, got 5",
    "experiment=5": "experiment: expected a valid string, got 5",
    # out of range
    "world.max_steps=999999999999999999999": "world.max_steps: expected whole numbers of less than 64 bits, got 9",
    "groups.team.policy.hidden=[999999999999999999999]": "groups.team.policy.hidden: expected whole numbers of less",
    "train.total_steps=1e30": "train.total_steps: expected whole numbers of less than 64 bits",
    "seed=-1": "seed: seed must be at least 0, got -1",
    "world.grid_size=1": "world: grid_size must be at least 2, got 1",
    "groups.team.policy.hidden=[]": "groups.team.policy: hidden must name at least one layer",
    "groups.team.learner.gamma=1.2": "groups.team.learner: gamma must lie in [0, 1], got 1.2",
    "groups.team.learner.learning_rate=.nan": "groups.team.learner.learning_rate: expected finite numbers, got nan",
    "groups.team.learner.learning_rate=.inf": "groups.team.learner.learning_rate: expected finite numbers, got inf",
    "groups.team.learner.entropy_coefficient=.inf": "entropy_coefficient: expected finite numbers, got inf",
    "train.stop.return_mean=.nan": "train.stop.return_mean: expected finite numbers, got nan",
    "train.num_envs=0": "train: num_envs must be at least 1, got 0",
    "train.workers=-1": "train: workers must be at least 0, got -1",
    "train.shards=3": "train: num_envs must divide evenly into shards, got num_envs=64 and shards=3",
    "train.stop={return_mean: 3, episodes: 0}": "train.stop: episodes must be at least 1, got 0",
    # empty values
    "groups.team.agents=[]": "groups.team.agents: no agents are named; '*' matches all agents",
    "world.name=gymnasium/": "world.name: 'gymnasium/' needs an id after the slash",
    # one's own
    "world.name=helpers.run:Tiny-v0": "an environment that a module registers is named gymnasium/helpers.run:Tiny-v0",
    "world.name=nowhere.at_all:Thing": "world.name: 'nowhere.at_all:Thing' needs the module 'nowhere', which is not f",
    "world.name=helpers.run:Nobody": "world.name: module 'helpers.run' has no 'Nobody'",
    "world.name=math:pi": "world.name: 'math:pi' is neither a class nor a function, but 3.14159",
    "world.name=helpers.run:Unsettled": "its constructor has no annotated 'settings' parameter",
    "world.name=helpers.run:Loose": "its 'settings' must be annotated with a dataclass",
    # words
    "steps": "'steps': expected key=value",
    "train..num_envs=3": "'train..num_envs=3': the name of a setting has a dot too many",
    "..=3": "'..=3': the name of a setting has a dot too many",
    "[=3": "[: cannot read '3' as YAML: the name of the setting ends too early",
    "groups.team.policy.text.lm.local.device=tpu": "groups.team.policy.text.lm.local: device must be auto, cpu, mps,",
    "=3": "'=3': expected key=value",
    "experiment=../../mine": "experiment: expected a name such as 'mine'",
    "experiment=/mine": "experiment: expected a name such as 'mine'",
    "train.num_envs=[": "train.num_envs: cannot read '[' as YAML: ",
}

# words that the YAML parser refuses with several lines, or with an error that is not its own
NOT_YAML = {
    "an open bracket": "{",
    "an open quote": "'",
    "a tag that does not fit": "!!int abc",
    "a switch that is none": "!!bool x",
    "a date that is none": "!!timestamp x",
    "an object of Python": "!!python/object:os.system {}",
    "a control character": "\x1b[31m",
    "a list in itself": "&a [*a]",
    "a key that is none": "{null: 1}",
    "an open interpolation": "${",
    "too many brackets": "[" * 2000 + "]" * 2000,
    "half a character": "\ud800",
}


@pytest.mark.parametrize("word", REFUSALS)
def test_refused_with_path_and_cure(word):
    assert REFUSALS[word] in refusal(word)


@pytest.mark.parametrize("value", NOT_YAML.values(), ids=NOT_YAML)
def test_a_value_that_is_no_yaml_is_refused_in_one_sentence_with_its_path(value):
    said = refusal(f"train.num_envs={value}")
    assert said.startswith("train.num_envs: cannot read ")
    assert said.isprintable()
    assert len(said) < 250


def test_a_file_that_is_no_yaml_is_refused_in_one_sentence_with_the_line(tmp_path):
    said = refusal(experiment=written(tmp_path / "a.yaml", "seed: 1\ntrain: {num_envs: !!int abc}\n"))
    assert said == "a.yaml: not readable as YAML: invalid literal for int() with base 10: 'abc'"
    said = refusal(experiment=written(tmp_path / "b.yaml", "seed: 1\ntrain: [\n"))
    assert said.startswith("b.yaml: not readable as YAML: ")
    assert said.endswith(", line 3, column 1")


@pytest.mark.parametrize("name", [f.name for f in dataclasses.fields(TrainSettings) if isinstance(f.default, int)])
def test_every_number_of_the_loop_has_a_lower_bound(name):
    if isinstance(TrainSettings.__dataclass_fields__[name].default, bool):
        pytest.skip("a switch")
    assert f"train: {name} must be at least" in refusal(f"train.{name}=-5")


def test_an_unknown_experiment_is_refused_with_the_nearest():
    said = refusal(experiment="gridworld-coperative")
    assert said.startswith("no experiment or file 'gridworld-coperative'; did you mean 'gridworld-cooperative'?")
    assert "'coterie list'" in said


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("a: [", "a.yaml"),
        ("groups:\n  off: {policy: random}\n", "a.yaml: groups.False: YAML reads the names on, off, yes"),
        ("world: {name: gridworld, options: [{on: 1}]}", "a.yaml: world.options.0.True: YAML reads the names on, off"),
        ("- 1\n- 2\n", "a.yaml: holds no settings; expected one 'key: value' per line, got [1, 2]"),
        ("", "world.name: required"),
        (
            "some notes\nof mine\n",
            "a.yaml: holds no settings; expected one 'key: value' per line, got 'some notes of mine'",
        ),
        ("notes " * 90, "notes…"),
        ("world:\n", "world.name: required"),
    ],
)
def test_a_file_that_holds_no_settings_is_refused(tmp_path, text, where):
    assert where in refusal(experiment=written(tmp_path / "a.yaml", text))


def test_a_file_that_is_not_text_is_refused(tmp_path):
    (tmp_path / "a.yaml").write_bytes(b"\xff\xfe\x00")
    assert "a.yaml: not readable as YAML" in refusal(experiment=tmp_path / "a.yaml")


# Fuzzing ------------------------------------------------------------------------------------------------

ODD_VALUES = [
    *("null", "~", "true", "-1", "0", "2.5", "1e5", "1e400", ".nan", ".inf", "9" * 25, "9" * 400, "0x10", "2020-01-01"),
    *("[]", "[1,2]", "[1,[2]]", "{}", "{a: 1}", "{name: x}", "'': 3", "text", "none", "ppo", "dqn", "http://x", "a.b"),
    *("${seed}", "${nothing}", "${train}", "${a", "{", "[", "'", "a: b: c", "- 1", "&a [*a]", "*a", "=", "?", "\x00"),
    *("!!python/object:os.system", "\ud800"),
]


def paths(plain, above=""):
    """The dotted paths of all settings and sections."""
    for name, value in plain.items():
        yield f"{above}{name}"
        if isinstance(value, dict):
            yield from paths(value, f"{above}{name}.")


@pytest.mark.slow
@pytest.mark.parametrize("experiment", ["gridworld-cooperative", "auction-neutral", "spread-qmix", "gridworld-advised"])
def test_odd_overrides_are_read_or_refused(experiment):
    draw = random.Random(experiment)
    known = list(paths(schema.to_dict(schema.load(experiment))))
    read = 0
    for _ in range(400):
        words = []
        for _ in range(draw.choice([1, 1, 2, 3])):
            key = draw.choice(known) + draw.choice([""] * 9 + [".x", ".name", ".run", ".0", ".", "[0]"])
            words.append(f"{key}={draw.choice(ODD_VALUES)}")
        try:
            schema.load(experiment, words)
        except ConfigError:
            continue
        except Exception as error:
            raise AssertionError(words) from error
        read += 1
    assert 0 < read < 400


# Files that are read again ----------------------------------------------------------------------------------


def test_a_file_is_read_as_it_is_now_and_nobody_shares_its_settings(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("extends: gridworld-race\ntrain: {num_envs: 3}\n")
    first = schema.read(file)
    first["train"]["num_envs"] = 99
    first["world"]["name"] = "tictactoe"
    assert schema.read(file)["train"]["num_envs"] == 3
    assert schema.read(file)["world"]["name"] == "gridworld"
    file.write_text("extends: gridworld-race\ntrain: {num_envs: 4}\n")
    assert schema.read(file)["train"]["num_envs"] == 4


def test_a_file_that_is_no_yaml_is_named_with_its_line(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("train: {num_envs: 3\nseed: 1\n")
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"^mine\.yaml: not readable as YAML: [^\n]*, line 2, column 5$"):
            schema.read(file)


@pytest.mark.parametrize(
    ("given", "message"), [("[84]", "expected 2 entries, got"), ("[a,2]", r"\[0\]: expected .* 'a'")]
)
def test_lists_of_a_fixed_length(given, message):
    with pytest.raises(schema.ConfigError, match=rf"world\.resize.*{message}"):
        schema.load("cartpole-dqn", [f"world.resize={given}"])
