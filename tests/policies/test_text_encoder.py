"""Text as features: read once, joined in three ways, learned from, and the same after a kill."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import coterie
from coterie.config import schema
from coterie.config.schema import ConfigError
from coterie.core.advice import AdviceUse, UseSettings
from coterie.core.group import Actor
from coterie.core.types import Advice, Box
from coterie.lm.ask.budget import BudgetSettings
from coterie.lm.ask.cache import CacheSettings
from coterie.lm.ask.interface import BudgetDenied
from coterie.policies.network import NetworkPolicy, NetworkSettings
from coterie.policies.q_network import QNetworkPolicy, QNetworkSettings
from coterie.policies.text_encoder import EncoderModel, TextSettings
from coterie.runs.run import Run
from coterie.testing import check_learner
from coterie.training import loop
from coterie.training.evaluate import actor_metrics
from coterie.training.runner import Runner
from helpers import encoder as encoder_cases
from helpers.distributions import evaluate_actions
from helpers.dqn import make_learner as make_q_learner
from helpers.encoder import PICTURE, ROWS, THINGS, Hall, learner, outputs, policy, seen, view
from helpers.run import GRID, files, numbers
from helpers.small_worlds import actors, generator, joint, spec_in

# Reading ----------------------------------------------------------------------------------------------------


def test_every_text_is_embedded_once_and_every_row_described_once():
    made, counting = policy(reads="both"), encoder_cases.HASHES
    counting.asked.clear()
    first = made.pack(ROWS)
    asked = [text for _, texts in counting.asked for text in texts]
    assert sorted(asked) == ["Go left.", "Go right.", "There is -0.5 to the left.", "There is 0.5 to the left."]
    assert all(len(texts) == 1 for _, texts in counting.asked)  # a vector's last bit depends on its batch
    assert made.reader.codec.rows == 3  # two of the four rows are alike
    assert np.array_equal(made.pack(ROWS), first)
    assert np.array_equal(made.pack(np.stack([ROWS, ROWS]))[1], first)
    assert len(counting.asked) == 4
    assert made.reader.codec.rows == 3


def test_what_was_read_and_what_it_took_is_reported():
    made = policy(reads="instruction")
    made.pack(ROWS)
    reported = actor_metrics([Actor(made.group_spec, made)])["team"]
    assert (reported["text/distinct"], reported["text/calls"]) == (2, 3)  # one more says how long vectors are
    assert reported["text/seconds"] > 0
    assert reported["text/prompt_tokens"] == sum(
        len(text) for text in ("What is seen, in words.", "Go left.", "Go right.")
    )
    assert NetworkPolicy(NetworkSettings(), spec_in(Hall())).metrics() == {}


def test_answers_are_kept_on_disk(tmp_path):
    cached = {"lm": EncoderModel("helpers.encoder:HASHES", cache=CacheSettings(str(tmp_path / "a.db")))}
    first, again = policy(**cached), policy(**cached)
    rows = first.pack(ROWS)
    encoder_cases.HASHES.asked.clear()
    assert np.array_equal(again.pack(ROWS), rows)
    assert encoder_cases.HASHES.asked == []
    assert again.reader.metrics()["text/cache_hits"] == 3


@pytest.mark.parametrize(("reads", "width"), [("instruction", 6), ("state", 6), ("both", 12)])
def test_reads_decides_what_is_put_into_words(reads, width):
    made = policy(reads=reads)
    packed = made.pack(seen([[0.5, 0.1, 0], [0.5, 0.1, 1], [-0.5, 0.1, 0], [-0.5, 0.1, 1]])).reshape(4, -1)
    left = 3 if reads == "state" else 2  # the last number stands for the instruction
    assert packed.shape[1] == left + width
    features = packed[:, left:]
    assert np.allclose((features**2).mean(1), 1)
    reported = {"instruction": [0, 1, 0, 1], "state": [0, 0, 1, 1], "both": [0, 1, 2, 3]}[reads]
    for i in range(4):
        for j in range(4):
            assert np.array_equal(features[i], features[j]) == (reported[i] == reported[j])
    assert np.allclose(packed[:, :2], [[0.5, 0.1], [0.5, 0.1], [-0.5, 0.1], [-0.5, 0.1]])


# Joining ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("join", ["concat", "add", "alone"])
def test_join_decides_what_the_network_sees(join):
    made = policy(reads="instruction", join=join)
    with torch.no_grad():
        made.net.out.weight.normal_(generator=torch.Generator().manual_seed(0))
    plain, asked, moved = (outputs(made, seen([row] * 2)) for row in ([0.5, 0.1, 0], [0.5, 0.1, 1], [0.2, 0.1, 0]))
    assert not np.allclose(plain, asked)
    assert np.allclose(plain, moved) is (join == "alone")
    size = {"concat": 8, "add": 2, "alone": 6}[join]
    assert made.net.sizes[0] == size + 2  # and who it is
    assert (made.spec is None) is (join == "add")  # a learned sum is PyTorch's
    assert (made.net.words is None) is (join != "add")


@pytest.mark.parametrize("trainable", [False, True])
def test_scale_weighs_the_features_and_nothing_else(trainable):
    given = []
    for scale in (1.0, 0.25):
        made = policy(model="BLIND", reads="both", scale=scale, trainable=trainable)
        made.normalizer.update([generator().normal(2.0, 3.0, (50, made.normalizer.shift.shape[1]))])
        x = torch.from_numpy(made.learning_inputs(ROWS)[0])
        given.append(x if made.net.reader is None else made.net.reader(x).detach())
    assert torch.allclose(given[1][..., 2:10], given[0][..., 2:10] / 4)
    assert torch.equal(given[1][..., :2], given[0][..., :2])
    with pytest.raises(ValueError, match="scale must be above 0"):
        TextSettings(scale=0.0)


def test_adding_is_the_observation_and_a_projection_of_the_features():
    made = policy(reads="instruction", join="add")
    x = torch.from_numpy(made.inputs(ROWS))
    given = []
    made.net.body.register_forward_pre_hook(lambda module, inputs: given.append(inputs[0]))
    made.net(x)
    projected = x[..., 2:8] @ made.net.words.weight + made.net.words.bias
    assert torch.allclose(given[0], torch.cat([x[..., :2] + projected, x[..., 8:]], dim=-1))


@pytest.mark.slow
@pytest.mark.parametrize("join", ["concat", "add"])
@pytest.mark.parametrize(("space", "encoder"), [(PICTURE, "auto"), (PICTURE, "mlp"), (THINGS, "set"), (THINGS, "mlp")])
def test_every_encoder_reads_text(space, encoder, join):
    world = Hall(space)
    made = policy(world, network={"encoder": encoder, "channels": (4,)}, words=False, join=join)
    with torch.no_grad():
        made.net.out.weight.normal_(generator=torch.Generator().manual_seed(0))
    x = torch.from_numpy(made.inputs(world.reset(0).agent_types["player"].observation))
    start = made.layout.size if made.skip_size else made.layout.size - made.reader.width
    changed = x.clone()
    changed[..., start : start + made.reader.width] += 1
    with torch.no_grad():
        assert not torch.allclose(made.net(x)[0], made.net(changed)[0])
    own = learner(made)
    experienced = Runner(world, actors((made.group_spec, made)), seed=0).play(4, 1).decisions["team"]
    before = made.flat.array.copy()
    own.learn(experienced, joint(experienced), generator())
    assert not np.array_equal(made.flat.array, before)


def test_a_set_network_with_text_plays_with_any_number():
    more = dataclasses.replace(THINGS, entries=THINGS.entries | {"at": Box((5, 2), -1.0, 1.0)})
    few, many = Hall(THINGS), Hall(more)
    for join in ("concat", "add"):
        one, other = (policy(w, network={"encoder": "set"}, words=False, join=join) for w in (few, many))
        other.load(one.state())
        assert np.array_equal(other.flat.array, one.flat.array)


# Learning ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("parameters", ["shared", "individual"])
@pytest.mark.parametrize("network", [{}, {"memory": 4}], ids=["plain", "memory"])
@pytest.mark.parametrize("join", ["concat", "add", "alone"])
def test_frozen_features_keep_the_contract_of_learners(parameters, network, join):
    world = Hall()
    check_learner(
        lambda group_spec: learner(policy(world, parameters, network, join=join, reads="both"), minibatches=2),
        spec_in(world, parameters=parameters),
    )


@pytest.mark.slow
@pytest.mark.parametrize("join", ["concat", "add", "alone"])
def test_trained_features_keep_it_too(join):
    world = Hall()
    check_learner(
        lambda group_spec: learner(
            policy(world, model="BLIND", join=join, reads="both", trainable=True), minibatches=2
        ),
        spec_in(world),
    )


@pytest.mark.slow
@pytest.mark.parametrize("parameters", ["shared", "individual"])
@pytest.mark.parametrize("mixer", ["none", "vdn"])
@pytest.mark.parametrize("join", ["concat", "add", "alone"])
def test_action_values_read_as_well(parameters, mixer, join):
    world = Hall()

    def make(group_spec):
        chosen = QNetworkSettings(hidden=(16,), text=encoder_cases.text(join=join, reads="both"))
        return make_q_learner(group_spec, policy=QNetworkPolicy(chosen, group_spec), mixer=mixer)

    group_spec = spec_in(world, parameters=parameters)
    check_learner(make, group_spec, uses_replay=True)
    given = make(group_spec).policy.inputs(world.reset(0).agent_types["player"].observation)
    assert given.shape[-1] == {"concat": 14, "add": 14, "alone": 12}[join] + 2 * (parameters == "shared")


@pytest.mark.slow
@pytest.mark.parametrize("join", ["concat", "add", "alone"])
@pytest.mark.parametrize("trainable", [False, True])
def test_hints_stand_behind_what_is_read(join, trainable):
    """Advice joins the same rows: the actor must see the same input in learning as in acting."""
    hints = AdviceUse(UseSettings("hint"), 2)
    group_spec = dataclasses.replace(spec_in(Hall()), advice=hints)
    chosen = encoder_cases.text("BLIND" if trainable else "HASHES", join=join, reads="both", trainable=trainable)
    made = NetworkPolicy(NetworkSettings(hidden=(16,), text=chosen), group_spec)
    with torch.no_grad():
        made.net.out.weight.normal_(generator=torch.Generator().manual_seed(0))
    lead = ROWS.shape[:2]
    probabilities = generator().random((*lead, 2)).astype(np.float32)
    advice = Advice(np.ones(lead, bool), probabilities, np.ones(lead, np.float32))
    nothing = Advice(*(np.zeros_like(array) for array in advice))
    said, silent = (made.act(view(ROWS, advice=shown)) for shown in (advice, nothing))
    assert not np.allclose(said.log_prob, silent.log_prob)
    x, sight = made.learning_inputs(ROWS)
    own = SimpleNamespace(advice=Advice(*(array[None] for array in advice)))
    out = made.net.unroll(learner(made).add_hints(x, own), None)
    log_prob, _ = evaluate_actions(made.head, out, torch.from_numpy(said.action.reshape(1, -1)), None)
    assert np.allclose(log_prob.detach().numpy().reshape(said.log_prob.shape), said.log_prob, atol=1e-5)
    assert learner(made).evaluate(sight).shape == (1, 4)  # the critic is shown no hints


def trained_for(iterations, **settings):
    world = Hall(num_envs=32, agents=1)
    made = policy(world, network={"memory": settings.pop("memory", 0)}, **settings)
    one = learner(made, learning_rate=0.02, entropy_coefficient=0.0)
    runner = Runner(world, actors((made.group_spec, made)), seed=0)
    for i in range(iterations):
        own = runner.play(4, i).decisions["team"]
        one.learn(own, joint(own, i / iterations), generator(i))
    greedy = Runner(world, actors((made.group_spec, made)), seed=1, greedy=True).play(8, 0).decisions["team"]
    return greedy.reward.mean()


@pytest.mark.slow
@pytest.mark.parametrize("join", ["concat", "add", "alone"])
def test_instructions_in_words_are_followed(join):
    assert trained_for(25, reads="instruction", join=join) == 1


def test_instructions_are_not_followed_by_who_reads_something_else():
    assert trained_for(25, reads="state", join="alone") < 0.65


@pytest.mark.slow
@pytest.mark.parametrize("memory", [0, 8])
def test_adapters_learn_to_tell_texts_apart_that_the_frozen_model_cannot(memory):
    what = {"model": "BLIND", "reads": "instruction", "memory": memory}
    assert trained_for(25, **what) < 0.65
    assert trained_for(25, **what, trainable=True) == 1


def test_memory_is_empty_where_an_episode_begins():
    world = Hall(length=3)
    made = policy(world, network={"memory": 4}, reads="both")
    own = Runner(world, actors((made.group_spec, made)), seed=0).play(9, 1).decisions["team"]
    empty = (own.memory[:9] == 0).all(axis=(1, 2, 3))
    assert empty.tolist() == [True, False, False] * 3


# Runs -------------------------------------------------------------------------------------------------------

TEXT = "groups.team.policy.text"
READING = [f"{TEXT}.lm=helpers.encoder:HASHES", "train.total_steps=192", "train.shards=2"]
LEARNING = [*READING, f"{TEXT}.lm=helpers.encoder:BLIND", f"{TEXT}.trainable=true"]


def train(out, *words):
    return coterie.train("gridworld-cooperative", [*GRID, *words], out=out, quiet=True)


def assert_same_play(left, right):
    """Two runs came to the same end; what was asked of the model begins anew with every process."""
    reported, again = (
        [{k: v for k, v in r.items() if "/text/" not in k} for r in numbers(run)] for run in (left, right)
    )
    assert reported == again
    assert left.steps() == right.steps()
    for step in left.steps():
        assert files(left.checkpoint_path(step, "step")) == files(right.checkpoint_path(step, "step"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [READING, LEARNING, [*LEARNING, "groups.team.policy.memory=4"]], ids=["frozen", "trained", "memory"]
)
def test_a_run_that_was_stopped_comes_to_the_same_end(words, tmp_path, monkeypatch):
    whole = train(tmp_path / "whole", *words)
    advance = loop.Training.advance

    def stop(self):
        if self.iteration == 4:
            raise InterruptedError
        return advance(self)

    monkeypatch.setattr(loop.Training, "advance", stop)
    with pytest.raises(InterruptedError):
        train(tmp_path / "part", *words)
    monkeypatch.setattr(loop.Training, "advance", advance)
    assert coterie.resume(tmp_path / "part", quiet=True)
    assert_same_play(whole, Run.open(tmp_path / "part"))
    assert whole.metrics()[-1]["team/text/distinct"] > 10


@pytest.mark.slow
def test_children_read_the_same(tmp_path, forked):
    assert_same_play(*(train(tmp_path / str(w), *LEARNING, f"train.workers={w}") for w in (0, 1)))


@pytest.mark.slow
def test_a_loaded_run_reads_what_it_is_shown(tmp_path):
    train(tmp_path / "run", *LEARNING)
    table = coterie.load(tmp_path / "run")
    shown = table.groups[0].policy.group_spec.spaces.observation
    actions = table.act("agent_0", np.zeros((2, *shown.shape), np.float32))
    assert actions.shape == (2,)
    assert table.groups[0].policy.reader.texts


def test_the_cache_s_file_keeps_what_was_spent_and_nothing_else_does(tmp_path):
    """A resumed run goes on from its journal; without a cache, a budget begins anew."""

    def reader(cache):
        lm = EncoderModel("helpers.encoder:HASHES", cache=cache, budget=BudgetSettings(calls=3))
        return policy(lm=lm).reader  # reads one text to see how long vectors are

    kept = CacheSettings(str(tmp_path / "a.db"))
    for cache, left in ((kept, 2), (kept, 0), (None, 2), (None, 2)):
        made = reader(cache)
        for number in range(left):
            made.add(f"text {number}")
        with pytest.raises(BudgetDenied):
            made.add("one more")


# Refusals ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"words": False, "reads": "instruction"}, "needs a world with instructions; set text.reads=state"),
        ({"words": False, "reads": "both"}, "text.reads=both needs a world with instructions"),
        ({"model": "HASHES", "trainable": True}, "weights are in this process .*not 'helpers.encoder:HASHES'"),
        ({"lm": EncoderModel("http://localhost:1/v1"), "trainable": True}, "weights are in this process .*; set"),
        ({"model": "BLIND", "trainable": True, "parameters": "individual"}, "set parameters=shared"),
        ({"network": {"encoder": "cnn"}}, "needs an image"),
        ({"network": {"encoder": "set"}, "join": "alone"}, "needs a dict observation"),
        ({"codec": "auto"}, "no text_codec"),
    ],
)
def test_what_cannot_be_read_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        policy(**settings)


def test_a_replay_cannot_train_an_encoder():
    with pytest.raises(ValueError, match="a replay keeps vectors, not texts"):
        QNetworkSettings(text=TextSettings(trainable=True))


@pytest.mark.parametrize("value", ["reads: nothing", "join: behind", "trainable: maybe", "codex: auto"])
def test_unknown_settings_are_refused_with_their_path(value):
    with pytest.raises(ConfigError, match=r"groups\.team\.policy\.text\." + value.split(":")[0]):
        schema.load("gridworld-cooperative", [f"groups.team.policy.text={{{value}}}"])


def test_the_default_model_is_minilm():
    def read(*words):
        return schema.load("gridworld-cooperative", list(words)).groups["team"].policy.settings.text

    assert read() is None
    assert read(f"{TEXT}.reads=state") == TextSettings()
    assert read(f"{TEXT}.lm.cache.path=a.db").lm.name == "minilm"
    assert read(f"{TEXT}.lm=embedded").lm.name == "embedded"
    written_out = schema.resolve(schema.to_dict(schema.load("gridworld-cooperative", [f"{TEXT}.lm=embedded"])), "x")
    assert written_out.groups["team"].policy.settings.text == read(f"{TEXT}.lm=embedded")
