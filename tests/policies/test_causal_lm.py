"""The policy `causal_lm`: who answers, branching in training alone, refused prompts, wrong settings."""

from unittest.mock import Mock

import numpy as np
import pytest
import torch

from coterie.core import validation
from coterie.core.types import CoterieError
from coterie.core.world import Forkable
from coterie.lm.learn.hugging_face import HuggingFaceNetwork
from coterie.lm.learn.sampling import SampleSpec, sample
from coterie.policies.causal_lm import rollout_worker
from coterie.policies.causal_lm.branching import demand_same_prompts
from coterie.policies.causal_lm.policy import CausalLMSettings, TinySettings
from helpers.lm import tiny_model
from helpers.needs import needs
from helpers.teams import EchoSettings, EchoWorld, iterate, team


def test_evaluation_never_branches():
    class Unforkable(EchoWorld):
        def fork(self, index):
            raise AssertionError("an evaluation forked its world")

    runner, _ = team(num_envs=4)
    runner.world = Unforkable(EchoSettings(), 4)
    runner.timestep = runner.world.reset(0)
    runner.begin(1)
    for _ in range(4):
        decision = runner.step()["writers"][1]
        assert decision.trace is None
    runner.progress = 0.0
    with pytest.raises(AssertionError, match="forked"):
        runner.step()


def test_greedy_answers_are_the_likeliest_and_repeat():
    runner, learner = team(num_envs=4)
    runner.greedy = True
    runner.begin(1)
    view = runner.view(runner.actors[0])
    first, again = (learner.policy.act(view).action for _ in range(2))
    assert (first == again).all()


def test_a_prompt_that_is_too_long_is_refused_and_counted(caplog):
    runner, learner = team(num_envs=4, max_prompt_tokens=2)
    own = runner.play(2, 1, 0.0).experiences["writers"]
    assert (own.action[own.active] == "").all()
    candidates = learner.policy.settings.candidates
    assert learner.policy.metrics()["first/refused"] == (4.0 * candidates, 4.0 * candidates)
    assert iterate(runner, learner, 1, first=2)["updates"] == 0
    assert [record.getMessage().split(";")[0] for record in caplog.records] == [
        "groups.writers.policy.max_prompt_tokens=2: a prompt of 3 tokens is refused"
    ]


def test_each_agent_is_served_by_its_own_weights():
    runner, learner = team(num_envs=2, parameters="individual")
    served = []
    for number, worker in enumerate(learner.policy.workers):
        real = worker.sample
        worker.sample = lambda prompts, *rest, real=real, number=number: served.append(number) or real(prompts, *rest)
    runner.play(2, 1, 0.0)
    assert served == [0, 1]
    states = learner.policy.state()["networks"]
    assert not np.array_equal(states[0]["embedding"], states[1]["embedding"])


def test_rows_of_all_adapters_go_to_the_network_that_they_share():
    policy = team(num_envs=2, parameters="individual", weights="lora", rank=2)[1].policy
    (route,) = policy.router.route(np.array([0, 1, 1, 0]), np.array([True, True, False, True]))
    assert (route.network, route.rows.tolist(), route.adapters.tolist()) == (0, [0, 1, 3], [0, 1, 0])
    separate = team(num_envs=2, parameters="individual")[1].policy
    routes = list(separate.router.route(np.array([0, 1, 1, 0]), np.array([True, True, False, True])))
    assert [(one.network, one.rows.tolist(), one.adapters) for one in routes] == [(0, [0, 3], None), (1, [1], None)]


def test_adapters_keep_the_base_that_they_began_on(tmp_path):
    pytest.importorskip("transformers", reason="needs coterie[lm]")
    model, tokenizer = tiny_model()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    whole = {"model": str(tmp_path), "device": "cpu"}
    lora = {**whole, "weights": "lora", "rank": 2}
    base = team(num_envs=2, **whole)[1].policy
    with torch.no_grad():
        for parameter in base.networks[0].parameters():
            parameter.mul_(1.5)
    one, other = (team(num_envs=2, parameters="individual", **lora)[1].policy for _ in range(2))
    assert all(".lora_" in name for name in one.state()["networks"][0])  # the pretrained base is not saved
    one.start_from(base.state())
    other.load(one.state())
    prompt = torch.tensor([[3, 4, 5]])
    assert torch.equal(other.networks[0](prompt, 1), one.networks[0](prompt, 1))
    assert torch.equal(one.networks[0](prompt, 1), base.networks[0](prompt))  # new adapters change nothing
    assert other.state()["networks"][0].keys() == one.state()["networks"][0].keys()


@needs("transformers", "lm")
@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"head_dim": 16}, "head_dim"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}, "rope_type"),
    ],
)
def test_unusual_llama_models_are_read_by_the_code_of_transformers(tmp_path, caplog, changes, named):
    model, tokenizer = tiny_model(**changes)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    runner, learner = team(num_envs=2, model=str(tmp_path / "model"), device="cpu", max_prompt_tokens=11)
    assert isinstance(learner.policy.networks[0], HuggingFaceNetwork)
    assert f"this one has another {named}; it is read by the code of transformers" in caplog.text
    assert iterate(runner, learner, 1)["updates"] > 0


@needs("transformers", "lm")
@pytest.mark.parametrize(
    ("changes", "named"), [({"max_position_embeddings": 12}, "context of"), ({"eos_token": None}, "eos_token")]
)
def test_models_that_cannot_be_trained_are_refused(tmp_path, changes, named):
    model, tokenizer = tiny_model(**{k: v for k, v in changes.items() if k != "eos_token"})
    if "eos_token" in changes:
        tokenizer.eos_token = None
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match=named) as caught:
        team(num_envs=2, model=str(tmp_path / "model"), device="cpu", max_prompt_tokens=11)
    assert str(tmp_path / "model") in str(caught.value)


@needs("transformers", "lm")
def test_a_pretrained_model_may_need_more_memory_for_training_from_scratch_than_there_is(tmp_path, monkeypatch):
    model, tokenizer = tiny_model()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    monkeypatch.setattr(validation.os, "sysconf", lambda name: 100)  # of pages, and pages
    team(num_envs=2, model=str(tmp_path), device="cpu", weights="lora")
    with pytest.raises(ValueError, match="GB of memory"):
        team(num_envs=2)


def test_each_agent_starts_with_its_own_weights_of_another_team():
    first, second = (team(num_envs=2, parameters="individual", seed=seed)[1].policy for seed in (1, 2))
    one = team(num_envs=2, seed=3)[1].policy
    second.start_from(first.state())
    for mine, theirs in zip(second.networks, first.networks, strict=True):
        assert torch.equal(mine.embedding, theirs.embedding)
    second.start_from(one.state())  # one network serves both
    assert all(torch.equal(mine.embedding, one.networks[0].embedding) for mine in second.networks)
    with pytest.raises(ValueError, match=r"2 networks, this one 1; set parameters"):
        one.start_from(first.state())


def test_precision_is_that_of_products_and_trained_weights_stay_float32():
    plain, half = (team(num_envs=2, precision=name)[1].policy for name in ("float32", "bfloat16"))
    prompt = torch.tensor([[3, 4, 5]])
    assert plain.networks[0](prompt).dtype == torch.float32
    assert half.networks[0](prompt).dtype == torch.bfloat16
    assert {p.dtype for p in half.networks[0].parameters()} == {torch.float32}
    adapters = team(num_envs=2, parameters="individual", weights="lora", rank=2, precision="bfloat16")[1].policy
    found = {".lora_" in name: p.dtype for name, p in adapters.networks[0].named_parameters()}
    assert found == {True: torch.float32, False: torch.bfloat16}  # a frozen base is kept once, and small
    runner, learner = team(num_envs=4, precision="bfloat16")
    assert iterate(runner, learner, 2)["updates"] > 0


def test_the_engine_has_the_rows_of_the_settings():
    policy = team(num_envs=2, engine_rows=48)[1].policy
    assert policy.workers[0].room.rows == 48
    assert policy.workers[0].room.max_tokens == policy.settings.max_tokens


def test_deterministic_kernels_are_demanded_on_a_gpu_before_anything_is_computed(monkeypatch):
    class DemandedError(Exception):
        pass

    monkeypatch.setattr(
        "coterie.policies.causal_lm.policy.resolve_device", lambda *words, **names: torch.device("cuda")
    )
    monkeypatch.setattr("coterie.policies.causal_lm.policy.demand_deterministic", Mock(side_effect=DemandedError))
    with pytest.raises(DemandedError):
        team(num_envs=2, deterministic=True)


def test_metrics_start_anew_after_each_call():
    runner, learner = team(num_envs=2)
    runner.play(2, 1, 0.0)
    assert learner.policy.metrics()["second/answer_tokens"].weight == 2 * learner.policy.settings.candidates
    assert learner.policy.metrics()["second/answer_tokens"].weight == 0


def test_candidates_that_answer_different_prompts_are_an_error():
    read = np.array(["a", "b"], object)
    demand_same_prompts(read, np.array([["a", "a"], ["b", "b"]], object))
    with pytest.raises(AssertionError, match="group 1"):
        demand_same_prompts(read, np.array([["a", "a"], ["b", "c"]], object))

    class Shifted(EchoWorld):  # all candidates of a group meet the same state, but of another copy
        def fork(self, index):
            return super().fork((np.asarray(index) + 1) % self.num_envs)

    runner, _ = team(num_envs=4)
    runner.world = Shifted(EchoSettings(), 4)
    runner.timestep = runner.world.reset(0)
    with pytest.raises(AssertionError, match="answer different prompts"):
        runner.play(2, 1, 0.0)


def test_a_fork_has_the_outcomes_of_the_world_and_leaves_it_alone():
    world = EchoWorld(EchoSettings(), 3)
    assert isinstance(world, Forkable)
    world.reset(4)
    before = world.save()
    actions = {"team": np.array([["a", ""], ["b", ""], ["", ""]], object)}
    tried = world.fork(np.array([2, 0])).step({"team": actions["team"][[2, 0]]}).agent_types["team"].reward
    assert world.save()["states"] == before["states"]
    done = world.step(actions).agent_types["team"].reward
    assert (tried == done[[2, 0]]).all()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"candidates": 0}, "candidates"),
        ({"temperature": 0.0}, "temperature"),
        ({"weights": "half"}, "weights"),
        ({"choose": "worst"}, "choose"),
        ({"tiny": TinySettings(context=32), "max_tokens": 32}, r"tiny\.context \(32\)"),
    ],
)
def test_wrong_settings_are_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        CausalLMSettings(**settings)


def test_worlds_without_texts_are_refused():
    import coterie

    words = ["groups.team.policy.name=causal_lm", "groups.team.learner=none"]
    with pytest.raises(CoterieError, match=r"groups\.team\.policy.*texts"):
        coterie.train("gridworld-cooperative", words, quiet=True)


def test_sampling_that_runs_out_of_memory_goes_on_with_fewer_rows(monkeypatch, caplog):
    policy = team(num_envs=2)[1].policy
    worker, noise = policy.workers[0], np.random.default_rng(0).random((9, 3, 2), np.float32)
    prompts, spec = [[2 + row, 5] for row in range(9)], SampleSpec(3, 2, 1.0, 0)
    expected = worker.sample(prompts, spec, noise, None)
    largest = []

    def scarce(network, prompts, spec, noise):
        if len(noise) > 6:
            raise torch.OutOfMemoryError("CUDA out of memory")
        largest.append(len(noise))
        return sample(network, prompts, spec, noise)

    monkeypatch.setattr(rollout_worker, "sample", scarce)
    found = worker.sample(prompts, spec, noise, None)
    assert all(np.allclose(a, b, atol=1e-6) for a, b in zip(found, expected, strict=True))
    assert largest == [6, 6, 6, 6, 3]
    assert [record.getMessage() for record in caplog.records] == [
        "out of GPU memory: sampling goes on with 12 answers at once",
        "out of GPU memory: sampling goes on with 6 answers at once",
    ]
    monkeypatch.setattr(rollout_worker, "sample", Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory")))
    with pytest.raises(torch.OutOfMemoryError):
        worker.sample(prompts, spec, noise, None)


@needs("transformers", "lm")
def test_a_model_that_is_not_there_is_refused_where_it_is_named(coterie_, tmp_path):
    words = ("train", "plan-path-shared", f"groups.team.policy.model={tmp_path}/none", "--out", tmp_path / "run")
    assert coterie_(*words)[2] == (
        f"coterie: groups.team.policy: model: no model '{tmp_path}/none': there is no such directory\n"
    )
