"""A language model that learns to play: exact log-probabilities, one question per text, own adapters, resumption."""

import dataclasses
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import coterie
from coterie.algorithms.ppo.ppo import PPO, PPOSettings
from coterie.config import schema
from coterie.config.schema import ConfigError
from coterie.core.decisions import Joint
from coterie.core.types import as_metrics
from coterie.lm.ask.loading import LMSettings
from coterie.lm.ask.local import Local
from coterie.lm.learn import lora
from coterie.nn import networks
from coterie.policies.lora import LoraPolicy, LoraSettings, WordDistribution
from coterie.preferences.standard import Individual, IndividualSettings
from coterie.runs.run import Run
from coterie.training import table
from coterie.training.build import build_groups, build_world
from coterie.training.runner import Runner
from helpers.distributions import evaluate_actions
from helpers.language import race, view_of
from helpers.lm import embedded_file, tiny
from helpers.needs import needs
from helpers.run import assert_same_end, written
from helpers.small_worlds import generator, spec_in

pytestmark = needs("peft", "lm")

TABLE = """\
world: {name: gridworld, mode: race, grid_size: 3, num_agents: 2, max_steps: 6}
groups:
  model:
    agents: agent_0
    policy: {name: lora, lm: "helpers.lm:tiny", rank: 2, template: numbers, temperature: 4.0}
    learner: {name: ppo, learning_rate: 1e-2, epochs: 2, minibatches: 2}
  twin:
    agents: agent_1
    policy: {name: lora, lm: "helpers.lm:tiny", rank: 2, template: numbers, last_layers: 1}
    learner: {name: ppo, learning_rate: 1e-2, epochs: 1, minibatches: 1}
train: {num_envs: 4, rollout_steps: 4, total_steps: 64, evaluate_episodes: 4, evaluate_every: 2, checkpoint_every: 1,
        video: false, tensorboard: false}
"""


def policy_in(world, columns=None, **settings):
    chosen = {"lm": LMSettings("helpers.lm:tiny"), "rank": 2} | settings
    return LoraPolicy(LoraSettings(**chosen), spec_in(world, columns))


def plain_logits(policy, texts):
    """Scores of the four words by the tiny model, after prompts without examples."""
    asked = [policy.net.template.prompt(text) for text in texts]
    return tiny().score(asked, [[" up", " down", " left", " right"]] * len(texts))


def experience_of(policy, world, steps=6):
    """The experience of a policy's group."""
    from coterie.core.group import Actor

    runner = Runner(world, [Actor(policy.group_spec, policy)], 0)
    return runner.play(steps, 1, 0.0).decisions[policy.group_spec.group]


def learner_of(policy, **settings):
    return PPO(PPOSettings(**settings), policy, policy.group_spec, Individual(IndividualSettings()))


def learn(learner, own, seed=0):
    return learner.learn(own, Joint({learner.group_spec.group: own}, 1, 0.0), generator(seed))


# Acting -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, 5.0])
@pytest.mark.parametrize("normalize", ["sum", "mean"])
def test_choices_are_drawn_from_the_models_own_scores(temperature, normalize):
    world = race(300)
    policy = policy_in(world, temperature=temperature, normalize=normalize)
    view = view_of(world, policy.group_spec, greedy=False)
    decision = policy.act(view)
    texts = policy.codec.describe(view.observation.reshape(600, -1))
    sizes = np.array([3, 5, 5, 6]) if normalize == "mean" else 1  # bytes, the space included
    logits = plain_logits(policy, texts) / sizes / temperature
    expected = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    chosen = np.take_along_axis(expected, decision.action.reshape(-1, 1), 1)
    np.testing.assert_allclose(decision.log_prob.ravel(), chosen[:, 0], atol=1e-4)
    share = np.bincount(decision.action.ravel(), minlength=4) / 600
    np.testing.assert_allclose(share, np.exp(expected).mean(0), atol=0.06)
    greedy = policy.act(replace(view, greedy=True)).action
    np.testing.assert_array_equal(greedy.ravel(), expected.argmax(1))


def test_each_description_is_asked_about_once_until_weights_change():
    world = race(200)
    policy = policy_in(world)
    view = view_of(world, policy.group_spec)
    distinct = len(set(policy.codec.describe(view.observation.reshape(400, -1))))
    for _ in range(2):
        policy.act(view)
    reported = as_metrics(policy.metrics())
    # once to act, once without adapters, to say how far it has moved
    assert (reported["distinct"], reported["lm/calls"]) == (distinct, 2 * distinct)
    policy.load(policy.state())
    policy.act(view)
    assert as_metrics(policy.metrics())["lm/calls"] == 3 * distinct


def test_where_no_word_is_legal_the_first_legal_action_is_played():
    head = WordDistribution(np.arange(4))
    mask = np.array([[True, False, False, True, True], [False, False, False, False, True]])
    out = np.array([[0.0, 9.0, 9.0, 1.0], [1.0, 2.0, 3.0, 4.0]], np.float32)
    action, log_prob = head.act(out, mask, generator(0), True)
    assert action.tolist() == [3, 4]
    judged, entropy = evaluate_actions(head, torch.from_numpy(out), torch.from_numpy(action), torch.from_numpy(mask))
    np.testing.assert_allclose(judged.numpy(), log_prob, atol=1e-6)
    np.testing.assert_allclose(log_prob, [np.log(np.e / (1 + np.e)), 0.0], atol=1e-6)
    assert entropy[1] == 0


def test_actions_that_are_no_numbers_have_words_too():
    """Messages: a move and a symbol."""
    head = WordDistribution(np.array([[0, 0], [1, 0], [2, 0]]))
    action, log_prob = head.act(np.zeros((2, 5, 3), np.float32), None, generator(0), False)
    assert action.shape == (2, 5, 2)
    judged, _ = evaluate_actions(head, torch.zeros(2, 5, 3), torch.from_numpy(action), None)
    np.testing.assert_allclose(judged.numpy(), log_prob)
    assert head.taken(action, None).action[:, 0].tolist() == action[..., 0].reshape(-1).tolist()


# Learning ---------------------------------------------------------------------------------------------


def test_learning_sees_the_probabilities_of_acting():
    """Before the first step the ratio is 1: k3 and the share outside the clip are 0."""
    world = race(8)
    policy = policy_in(world)
    own = experience_of(policy, world)
    reported = learn(learner_of(policy, epochs=1, minibatches=1), own)
    assert reported["kl"] < 1e-7
    assert reported["clip_fraction"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [100, 4096])
def test_each_description_is_read_once_in_a_minibatch(tokens, monkeypatch):
    """In portions or at once: the same gradient, and as many texts as there are distinct ones."""
    world = race(30)
    policy = policy_in(world)
    policy.net.local.settings = replace(policy.net.local.settings, max_batch_tokens=tokens)
    x, _ = policy.learning_inputs(experience_of(policy, world).observation)
    read = []
    plainly = Local.choice_logprobs
    monkeypatch.setattr(
        Local, "choice_logprobs", lambda lm, asked, words: read.append(len(asked)) or plainly(lm, asked, words)
    )
    out = policy.net.unroll(x, None)
    assert sum(read) == len(set(x[0].tolist())) < x.size / 4
    assert (len(read) > 1) == (tokens == 100)
    assert out.shape == (1, x.size, 4)
    np.testing.assert_allclose(out[0, :50].detach(), plain_logits(policy, x[0, :50]), atol=1e-4)
    (out[0, :, 0] * torch.linspace(0, 1, x.size)).sum().backward()
    mine = torch.cat([p.grad.flatten() for p in policy.flat.parameters])
    monkeypatch.undo()
    other = policy_in(world)
    (other.net.unroll(x, None)[0, :, 0] * torch.linspace(0, 1, x.size)).sum().backward()
    torch.testing.assert_close(mine, torch.cat([p.grad.flatten() for p in other.flat.parameters]), rtol=1e-3, atol=1e-4)
    assert mine.abs().max() > 0


@pytest.mark.slow
def test_a_tiny_model_learns_to_go_right():
    """Pay for one word: its probability rises, and nobody else's model moves."""
    world = race(16)
    policy, bystander = (policy_in(world, normalize="mean", temperature=2.0) for _ in range(2))
    learner = learner_of(policy, learning_rate=1e-2, epochs=3, minibatches=1, gamma=0.0)
    before = bystander.net.logits(["The target is here."])
    assert (experience_of(policy, world).action == 3).mean() < 0.6
    for iteration in range(4):
        own = experience_of(policy, world)
        learn(learner, replace(own, reward=(own.action == 3).astype(np.float32)), iteration)
    assert (experience_of(policy, world).action == 3).mean() > 0.9
    np.testing.assert_array_equal(bystander.net.logits(["The target is here."]), before)
    assert as_metrics(policy.metrics())["kl_to_start"] > 0.1


def test_kl_to_start_by_hand():
    world = race(4)
    policy = policy_in(world)
    policy.act(view_of(world, policy.group_spec))
    assert as_metrics(policy.metrics())["kl_to_start"] == pytest.approx(0, abs=1e-6)
    random = generator(3)
    with torch.no_grad():
        for parameter in policy.flat.parameters:
            parameter.add_(torch.from_numpy(random.normal(0, 0.05, parameter.shape).astype(np.float32)))
    policy.loads += 1  # as if they had been loaded
    policy.act(view_of(world, policy.group_spec))
    texts = list(policy.known)
    now, then = policy.net.logits(texts), plain_logits(policy, texts)
    now, then = (a - np.log(np.exp(a).sum(1, keepdims=True)) for a in (now, then))
    expected = (np.exp(now) * (now - then)).sum(1).mean()
    assert as_metrics(policy.metrics())["kl_to_start"] == pytest.approx(expected, rel=1e-3)
    assert expected > 1e-3


# Runs -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    base = tmp_path_factory.mktemp("lora")
    return coterie.train(str(written(base / "table.yaml", TABLE)), [], out=base / "whole", quiet=True)


@pytest.mark.slow
def test_two_groups_have_adapters_of_their_own(run):
    first, last = ({g.name: g.policy.state()["adapters"] for g in loaded.groups} for loaded in both_ends(run))
    for name in ("model", "twin"):
        assert any(not np.array_equal(first[name][key], array) for key, array in last[name].items())
    shared = set(last["model"]) & set(last["twin"])
    assert shared
    assert any(not np.array_equal(last["model"][key], last["twin"][key]) for key in shared)
    assert not [key for key in last["twin"] if ".layers.0." in key]  # only the last layer of two


def both_ends(run):
    chosen = run.config()
    fresh = build_groups(chosen, build_world(chosen.world, 1), learning=False)
    return dataclasses.make_dataclass("Fresh", ["groups"])(fresh), table.load(run.path, "last")


@pytest.mark.slow
def test_a_killed_run_ends_the_same(run, tmp_path, monkeypatch):
    stopped = tmp_path / "stopped"
    calls = []

    class Killed(BaseException):
        pass

    plainly = PPO.learn

    def dies(learner, *rest):
        calls.append(learner)
        if len(calls) == 6:  # the second group's third iteration
            raise Killed
        return plainly(learner, *rest)

    monkeypatch.setattr(PPO, "learn", dies)
    with pytest.raises(Killed):
        coterie.train(str(written(tmp_path / "table.yaml", TABLE)), [], out=stopped, quiet=True)
    monkeypatch.undo()
    coterie.resume(stopped, quiet=True)
    ends = Run.open(run.path), Run.open(stopped)
    for end in ends:
        strip_ledgers(end)
    assert_same_end(*ends)


def strip_ledgers(run):
    """Questions are counted from the start of the process."""
    file = run.path / "metrics.jsonl"
    kept = [{k: v for k, v in json.loads(line).items() if "/lm/" not in k} for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(record) + "\n" for record in kept))


@pytest.mark.slow
def test_child_processes_play_with_the_learned_adapters(run, tmp_path, forked):
    words = ["train.workers=1"]
    other = coterie.train(str(written(tmp_path / "table.yaml", TABLE)), words, out=tmp_path / "run", quiet=True)
    ends = [Run.open(one.path).load_checkpoint("last")["policies"]["model"]["adapters"] for one in (run, other)]
    assert all(np.array_equal(array, ends[1][name]) for name, array in ends[0].items())


@pytest.mark.slow
def test_a_learned_model_is_seated_frozen(run, tmp_path):
    text = f"""\
world: {{name: gridworld, mode: race, grid_size: 3, num_agents: 2, max_steps: 6}}
groups:
  veterans: {{agents: agent_1, policy: {{run: {run.path}, group: model, checkpoint: last}}}}
  learners: {{agents: agent_0, policy: {{hidden: [4]}}, learner: {{name: ppo}}}}
train: {{num_envs: 2, rollout_steps: 4, total_steps: 8, evaluate_episodes: 2, video: false, tensorboard: false}}
"""
    later = coterie.train(str(written(tmp_path / "later.yaml", text)), [], out=tmp_path / "run", quiet=True)
    seated = Run.open(later.path).load_checkpoint("last")["policies"]["veterans"]["adapters"]
    saved = run.load_checkpoint("last")["policies"]["model"]["adapters"]
    assert all(np.array_equal(array, seated[name]) for name, array in saved.items())


def test_what_a_run_records(run):
    records = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert {"model/optimal", "model/agreement", "model/kl_to_start", "model/distinct"} <= set(records[1])
    assert "model/eval/optimal" in records[0]
    assert records[0]["model/kl_to_start"] == pytest.approx(0, abs=1e-6)
    assert records[2]["model/kl_to_start"] > 0
    assert 0 <= records[1]["model/optimal"] <= 1
    assert records[1]["model/distinct"] <= 16


# Refusals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("lm: 'http://localhost:1/v1'", "'http://localhost:1/v1' uses the backend http, which cannot be trained"),
        ("lm: {backend: llamacpp}", "'embedded' uses the backend llamacpp, which cannot be trained"),
        ("lm: 'helpers.language:COPIER'", "'helpers.language:COPIER' is not a local model"),
        ("lm: {name: 'helpers.lm:tiny', cache: {path: a.db}}", "lm.cache is not supported"),
        ("lm: {name: 'helpers.lm:tiny', budget: {calls: 3}}", "lm.budget is not supported"),
        ("lm: 'helpers.lm:tiny', temperature: 0", "temperature must be"),
        ("lm: 'helpers.lm:tiny', rank: 0", "rank must be at least 1"),
        ("lm: 'helpers.lm:tiny', hidden: [0]", "a layer's width must be"),
        ("lm: 'helpers.lm:tiny', target_modules: [query]", "target_modules: .*'query'"),
    ],
)
def test_impossible_settings_are_refused(policy, message, tmp_path):
    text = (
        f"world: {{name: gridworld}}\ngroups: {{all: {{policy: {{name: lora, {policy}}}, learner: {{name: ppo}}}}}}\n"
    )
    file = str(written(tmp_path / "mine.yaml", text))
    with pytest.raises(ConfigError, match=message):
        built(file)


def built(file):
    chosen = schema.load(file)
    return build_groups(chosen, build_world(chosen.world, 1))


def test_one_set_of_adapters_for_a_group():
    with pytest.raises(ValueError, match="put each agent into a separate group"):
        LoraPolicy(LoraSettings(lm=LMSettings("helpers.lm:tiny")), spec_in(race(1), parameters="individual"))


def test_settings_reach_the_model():
    world = race(1)
    sizes = {rank: policy_in(world, rank=rank).flat.array.size for rank in (1, 3)}
    assert sizes[3] == 3 * sizes[1]
    assert policy_in(world, target_modules=("q_proj",)).flat.array.size == 2 * 2 * 64
    assert policy_in(world, last_layers=1).flat.array.size == sizes[1]  # rank 2 in one layer, rank 1 in two
    (scale,) = {layer.scaling["default"] for layer in lora.adapted_layers(policy_in(world, alpha=7.0).net.model)}
    assert scale == 3.5
    assert "steps right" not in policy_in(world).net.template.head
    assert "steps right" in policy_in(world, examples="gridworld-examples", rank=1).net.template.head
    assert "walk" not in policy_in(world, template="numbers").net.template.prompt("")
    assert policy_in(world, codec="helpers.language:Numbers").head.outputs == 2
    critic = learner_of(policy_in(world, hidden=(5,))).critic_network
    assert networks.export(critic)["body.layers.0.weight"].shape == (1, 2 + critic.size, 5)  # two agents share it
    rows = policy_in(world, normalize_observations=False).normalizer
    assert not rows.enabled
    assert policy_in(world).normalizer.enabled


def on_gpu():
    lm = tiny()
    lm.model.to("cuda")
    return lm


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_learns_alike():
    world = race(8)
    here, there = policy_in(world), policy_in(world, lm=LMSettings("test_lora_policy:on_gpu"))
    own = experience_of(here, world)
    reported = [learn(learner_of(policy, learning_rate=1e-3, epochs=2, minibatches=2), own) for policy in (here, there)]
    assert reported[0]["policy_loss"] == pytest.approx(reported[1]["policy_loss"], abs=1e-3)
    states = [policy.state()["adapters"] for policy in (here, there)]
    assert all(np.abs(array - states[1][name]).mean() < 1e-4 for name, array in states[0].items())
    there.load(here.state())
    texts = ["The target is 2 steps up.", "The target is 1 step left."]
    np.testing.assert_allclose(there.net.logits(texts), here.net.logits(texts), atol=1e-2)
    assert next(there.net.parameters()).device.type == "cuda"


@pytest.mark.lm
def test_the_embedded_model_moves():
    """One step of PPO through the embedded model itself."""
    embedded_file("folder")
    world = race(4, grid_size=3, num_agents=1)
    policy = policy_in(world, lm=LMSettings(), last_layers=2)
    own = experience_of(policy, world, 2)
    reported = learn(learner_of(policy, learning_rate=3e-4, epochs=1, minibatches=1), own)
    assert reported["kl"] < 1e-4  # in float32, by two ways of reading
    assert as_metrics(policy.metrics())["kl_to_start"] < 1e-6  # as it was when it was last learned from
    policy.act(view_of(world, policy.group_spec))
    assert as_metrics(policy.metrics())["kl_to_start"] > 1e-6
