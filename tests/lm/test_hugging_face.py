"""Models of other families than Llama: sampled and graded by transformers' own code as that code reads them alone."""

import copy

import numpy as np
import pytest
import torch

import coterie
from coterie.config.schema import load, to_yaml
from coterie.lm.ask import loading
from coterie.lm.ask.loading import load_pretrained
from coterie.lm.learn.sampling import PAD, SampleSpec, grade, sample
from helpers.lm import tiny_model
from helpers.needs import needs
from helpers.resume import assert_resumed_alike
from helpers.run import written

pytestmark = needs("transformers", "lm")
SIZES = {"vocab_size": 257, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512}
FAMILIES = {
    "qwen2": {},  # biases
    "qwen3": {"head_dim": 16},  # norms of queries and keys
    "mistral": {"sliding_window": 100},
    "gemma3_text": {"head_dim": 8, "sliding_window": 100},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 512},  # learned positions, no linear layers
}
PROMPTS = [[5, 6, 7, 8], [9], [10, 11]]
ANSWERS = np.array([[[3, 4, 256], [5, PAD, PAD]], [[6, 7, 8], [9, 256, PAD]], [[1, 2, PAD], [PAD, PAD, PAD]]], np.int32)


def model_of(family, seed=0, **settings):
    """A random model of a family; `settings` change its configuration."""
    import transformers

    changes = FAMILIES.get(family, {}) if family == "gpt2" else SIZES | HEADS | FAMILIES.get(family, {})
    changes = {"vocab_size": 257, "initializer_range": 0.4} | changes | settings
    config = transformers.AutoConfig.for_model(family, **changes)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return transformers.AutoModelForCausalLM.from_config(config).eval()


def saved(folder, family, **settings):
    """A random model of a family with a byte tokenizer, as a directory; and the model."""
    model = model_of(family, **settings)
    model.save_pretrained(folder)
    tiny_model()[1].save_pretrained(folder)
    return str(folder), model


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    base = tmp_path_factory.mktemp("models")
    return {family: saved(base / family, family) for family in FAMILIES}


def alone(model, prompt, answer):
    """Log-probabilities of an answer that the model reads by itself."""
    tokens = torch.tensor([[*prompt, *answer]])
    with torch.no_grad():
        found = model(input_ids=tokens).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    return found.gather(1, tokens[0, len(prompt) :, None])[:, 0].numpy()


@pytest.mark.parametrize("family", FAMILIES)
def test_answers_have_the_log_probabilities_that_the_model_gives_them_alone(directories, family):
    folder, model = directories[family]
    (network,), _ = load_pretrained(folder, 1)
    graded = grade(network, PROMPTS, ANSWERS)
    noise = np.random.default_rng(1).random((6, 4), np.float32)
    drawn = sample(network, PROMPTS, SampleSpec(2, 4, 1.0, 256), noise)
    for tokens, log_probs in ((ANSWERS, graded.log_probs.detach().numpy()), (drawn.tokens, drawn.log_probs)):
        for group, prompt in enumerate(PROMPTS):
            for answer, found in zip(tokens[group], log_probs[group], strict=True):
                own = answer[answer != PAD].tolist()
                assert np.allclose(found[: len(own)], alone(model, prompt, own), atol=1e-4)
                assert not found[len(own) :].any()


@pytest.mark.parametrize("family", ["qwen3", "gpt2"])
def test_adapters_change_nothing_at_first_and_are_the_sum_of_two_products(directories, family):
    folder, model = directories[family]
    (network,), _ = load_pretrained(folder, 1)
    before = grade(network, PROMPTS, ANSWERS).log_probs
    network.add_adapters(2, 3, 6.0, [0, 1])
    assert not any(p.requires_grad for name, p in network.named_parameters() if ".lora_" not in name)
    assert torch.equal(grade(network, PROMPTS, ANSWERS, adapter=1).log_probs, before)
    graded = grade(network, PROMPTS, ANSWERS, adapter=1)
    graded.log_probs.sum().backward()
    assert any(p.grad.any() for p in network.adapter_parameters(1))
    assert all(p.grad is None for p in network.adapter_parameters(0))
    merged = copy.deepcopy(model)
    with torch.no_grad():
        for name, module in network.model.named_modules():
            if hasattr(module, "lora_a"):
                module.lora_b[1].normal_(std=0.1)
                change = 2.0 * module.lora_b[1] @ module.lora_a[1]  # alpha / rank
                merged.get_submodule(name).weight += change if isinstance(module, torch.nn.Linear) else change.T
    found = grade(network, PROMPTS, ANSWERS, adapter=1).log_probs.detach()
    assert (found - before).abs().max() > 0.01
    assert np.allclose(found[0, 0], alone(merged, PROMPTS[0], [3, 4, 256]), atol=1e-4)
    assert torch.equal(grade(network, PROMPTS, ANSWERS).log_probs, before)
    drawn = sample(network, PROMPTS, SampleSpec(1, 3, 0.0, 256, adapter=1), np.zeros((3, 3), np.float32))
    own = drawn.tokens[0, 0][drawn.tokens[0, 0] != PAD].tolist()
    assert np.allclose(drawn.log_probs[0, 0][: len(own)], alone(merged, PROMPTS[0], own), atol=1e-4)


def test_a_lower_precision_keeps_trained_weights_and_rounds_frozen_ones(directories):
    (network,), _ = load_pretrained(directories["qwen2"][0], 1)
    exact = grade(network, PROMPTS, ANSWERS).log_probs.detach()
    network.set_precision(torch.bfloat16)
    graded = grade(network, PROMPTS, ANSWERS)
    graded.log_probs.sum().backward()
    assert 0 < (graded.log_probs.detach() - exact).abs().max() < 1
    assert {p.dtype for p in network.parameters()} == {p.grad.dtype for p in network.parameters()} == {torch.float32}
    network.add_adapters(1, 2, 4.0, [0])
    network.set_precision(torch.bfloat16)
    grade(network, PROMPTS, ANSWERS, adapter=0).log_probs.sum().backward()
    kept = {".lora_" in name: p.dtype for name, p in network.named_parameters()}
    assert kept == {False: torch.bfloat16, True: torch.float32}


def test_copies_share_nothing_and_leave_the_loaded_model_alone(directories):
    folder, model = directories["qwen2"]
    (first, second), _ = load_pretrained(folder, 2)
    with torch.no_grad():
        for parameter in first.parameters():
            parameter.zero_()
    (third,), _ = load_pretrained(folder, 1)
    for network in (second, third):
        assert all(torch.equal(a, b) for a, b in zip(network.parameters(), model.parameters(), strict=True))


def test_weights_that_are_tied_are_saved_once(directories):
    (network,), _ = load_pretrained(directories["gpt2"][0], 1)
    saved_numbers = sum(weights.numel() for weights in network.state_dict().values())
    assert saved_numbers == sum(parameter.numel() for parameter in network.parameters())
    (untied,), _ = load_pretrained(directories["qwen2"][0], 1)
    assert untied.state_dict().keys() == dict(untied.named_parameters()).keys()


def test_adapters_are_made_where_the_weights_are(directories):
    (network,), _ = load_pretrained(directories["qwen2"][0], 1)
    network.to("meta").add_adapters(1, 2, 4.0, [0])
    assert {parameter.device.type for parameter in network.adapter_parameters(0)} == {"meta"}


def test_a_window_of_attention_limits_the_context(directories):
    for family, context in (("mistral", 100), ("gemma3_text", 100), ("qwen2", 512), ("gpt2", 512)):
        (network,), _ = load_pretrained(directories[family][0], 1)
        assert network.context == context


def test_a_switch_to_other_rotary_frequencies_limits_the_context(tmp_path):
    """The longest row decides about the frequencies of all rows, so none may pass the switch."""
    factors = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "factor": 2.0, "rope_theta": 10_000.0}
    switch = {"original_max_position_embeddings": 24, "rope_parameters": {"rope_type": "longrope"} | factors}
    folder, model = saved(tmp_path / "model", "phi3", pad_token_id=256, eos_token_id=256, **switch)
    (network,), _ = load_pretrained(folder, 1)
    assert network.context == 24
    long = list(range(20))
    graded = grade(network, [[5, 6], long], ANSWERS[:2, :1]).log_probs.detach().numpy()
    for prompt, answer, found in zip([[5, 6], long], ANSWERS[:2, 0], graded[:, 0], strict=True):
        assert np.allclose(found, alone(model, prompt, answer.tolist()), atol=1e-4)


def test_that_another_code_reads_the_model_is_said_once(directories, caplog):
    folder, _ = directories["qwen2"]
    loading._say_what_reads.cache_clear()
    for _ in range(2):
        load_pretrained(folder, 1)
    assert [record.getMessage() for record in caplog.records] == [
        f"model '{folder}': expected a model of the Llama family, got 'qwen2'; it is read by the code of transformers, "
        "without the engine of a GPU"
    ]


@pytest.mark.parametrize(
    ("family", "named"), [("bloom", "does not take position_ids"), ("mpt", "does not follow position_ids")]
)
def test_models_without_positions_or_masks_are_refused(tmp_path, family, named):
    folder, _ = saved(tmp_path / "model", family)
    with pytest.raises(ValueError, match=f"model: '{folder}' cannot be trained: its code {named}"):
        load_pretrained(folder, 1)


COUNTING = {
    "gpt_neo": {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 16},
    "doge": SIZES | HEADS | {"keep_window_size": 16},
}


@pytest.mark.parametrize("family", COUNTING)
def test_models_that_count_the_keys_of_a_row_are_refused(tmp_path, family):
    """Answers that share a row would push their prompt out of the window."""
    folder, _ = saved(tmp_path / "model", family, **COUNTING[family] | {"hidden_size": 32})
    with pytest.raises(
        ValueError, match=r"cannot be trained: its attention chooses keys by their place .* \((keep_)?window_size\)"
    ):
        load_pretrained(folder, 1)


@pytest.mark.parametrize("family", ["gemma2", "cohere"])
def test_models_that_change_logits_after_the_head_are_refused_however_small_the_logits(tmp_path, family):
    folder, _ = saved(tmp_path / "model", family, initializer_range=0.02, head_dim=8, **SIZES, **HEADS)
    with pytest.raises(ValueError, match=r"cannot be trained: its code changes .* its head, or logits after it"):
        load_pretrained(folder, 1)


def test_a_model_whose_code_fails_an_assertion_is_refused(tmp_path):
    folder, _ = saved(tmp_path / "model", "xlm", emb_dim=32, n_layers=1, n_heads=4)
    with pytest.raises(ValueError, match="cannot be trained: its code does not take position_ids"):
        load_pretrained(folder, 1)


TEAM = """\
world: {{name: "helpers.teams:EchoWorld", turns: 2}}
groups:
  writers:
    policy: {{name: causal_lm, model: {model}, max_tokens: 2, max_prompt_tokens: 8, candidates: 3, device: cpu}}
    learner: {{name: at_grpo, learning_rate: 1.0e-2}}
train: {{num_envs: 4, rollout_steps: 4, total_steps: 160, evaluate_episodes: 20, checkpoint_every: 1, video: false,
        tensorboard: false}}
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["shared", "adapters"])
def test_a_team_of_another_family_trains_and_resumes_alike(tmp_path, directories, kind):
    words = ["groups.writers.parameters=individual", "groups.writers.policy.weights=lora"] if kind == "adapters" else []
    text = to_yaml(load(str(written(tmp_path / "plain.yaml", TEAM.format(model=directories["qwen3"][0]))), words))
    experiment = str(written(tmp_path / "team.yaml", text))
    run = coterie.train(experiment, out=tmp_path / "whole", quiet=True)
    assert sum(record.get("writers/updates", 0) for record in run.metrics()) > 8
    assert_resumed_alike(tmp_path / "run", experiment, run, at=3)
    names = [name for saved in run.load_checkpoint("last")["policies"]["writers"]["networks"] for name in saved]
    assert all(".lora_" in name for name in names) == (kind == "adapters")
