"""Low-rank adapters: outputs, trained weights, and models that share frozen weights."""

import numpy as np
import pytest
import torch

from coterie.lm.ask.local import Local
from coterie.lm.learn import lora
from coterie.lm.learn.lora import LoraAdapterSettings
from coterie.nn import networks
from helpers.lm import tiny
from helpers.needs import needs

PROMPTS, CHOICES = ["one way", "one more"], [[" up", " down"]] * 2
pytestmark = needs("peft", "lm")


def adapted(base, seed=0, **settings):
    """A frozen copy of `base` with adapters."""
    model = lora.frozen_copy(base.model)
    lora.add_adapters(model, LoraAdapterSettings(**{"rank": 2} | settings), seed)
    return Local(model, base.tokenizer, base.settings)


def train(lm, steps=3):
    flat = networks.FlatParams(lm.model, 1)
    for _ in range(steps):
        loss = -lm.choice_logprobs(PROMPTS, CHOICES).log_softmax(-1)[:, 0].sum()
        networks.adam_step([flat], loss, 1e-2, 1.0)


def test_an_adapted_model_starts_with_the_outputs_of_its_base():
    base = tiny()
    lm = adapted(base)
    np.testing.assert_array_equal(lm.score(PROMPTS, CHOICES), base.score(PROMPTS, CHOICES))
    train(lm)
    assert np.abs(lm.score(PROMPTS, CHOICES) - base.score(PROMPTS, CHOICES)).min() > 1e-3
    with lora.adapters_disabled(lm.model):
        np.testing.assert_array_equal(lm.score(PROMPTS, CHOICES), base.score(PROMPTS, CHOICES))
    assert np.abs(lm.score(PROMPTS, CHOICES) - base.score(PROMPTS, CHOICES)).min() > 1e-3


def test_an_adapted_layer_by_hand():
    """W x + (alpha / rank) B A x."""
    lm = adapted(tiny(), rank=2, alpha=6.0, target_modules=("q_proj",))
    (layer, *_) = lora.adapted_layers(lm.model)
    down, up = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    up.data.normal_(generator=torch.Generator().manual_seed(1))
    x = torch.randn(3, 32, generator=torch.Generator().manual_seed(2))
    expected = x @ layer.base_layer.weight.T + 3.0 * (x @ down.T) @ up.T
    torch.testing.assert_close(layer(x), expected)


def test_frozen_copies_share_weights_and_learn_separately():
    """Training one leaves the other and the base model unchanged."""
    base = tiny()
    one, other = adapted(base), adapted(base)
    before, weights = base.score(PROMPTS, CHOICES), networks.export(other.model)
    train(one)
    np.testing.assert_array_equal(other.score(PROMPTS, CHOICES), before)
    np.testing.assert_array_equal(base.score(PROMPTS, CHOICES), before)
    assert all(np.array_equal(now, weights[name]) for name, now in networks.export(other.model).items())
    assert all(parameter.grad is None for parameter in other.model.parameters())
    shared = {p.data_ptr() for p in one.model.parameters()} & {p.data_ptr() for p in base.model.parameters()}
    assert len(shared) == len(list(base.model.parameters()))
    assert all(parameter.requires_grad for parameter in base.model.parameters())  # it may be trained elsewhere


def test_only_adapters_are_trained_and_saved():
    lm = adapted(tiny(), rank=2)
    saved = networks.export(lm.model)
    assert all("lora_" in name for name in saved)
    # per layer: q, o 32→32, k, v 32→16, gate, up 32→48, down 48→32
    assert sum(array.size for array in saved.values()) == 2 * 2 * (2 * 64 + 2 * 48 + 3 * 80)
    train(lm)
    scores, learned = lm.score(PROMPTS, CHOICES), networks.export(lm.model)
    again = adapted(tiny(), seed=5)
    networks.restore(again.model, learned, "adapters")
    np.testing.assert_array_equal(again.score(PROMPTS, CHOICES), scores)


def test_the_seed_decides_the_initial_adapters():
    state = torch.random.get_rng_state()
    first, same, other = (networks.export(adapted(tiny(), seed=seed).model) for seed in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(np.array_equal(same[name], array) for name, array in first.items())
    assert all(np.array_equal(other[name], array) != ("lora_A" in name) for name, array in first.items())
    assert all(not array.any() for name, array in first.items() if "lora_B" in name)


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        (
            {"target_modules": ("q_proj", "v_proj")},
            {f"model.layers.{i}.self_attn.{p}_proj" for i in (0, 1) for p in "qv"},
        ),
        ({"target_modules": ("down_proj",), "last_layers": 1}, {"model.layers.1.mlp.down_proj"}),
    ],
)
def test_target_modules_and_last_layers(settings, names):
    model = adapted(tiny(), **settings).model
    found = {name for name, module in model.named_modules() if module in lora.adapted_layers(model)}
    assert found == names


def test_all_linear_leaves_out_the_head():
    model = adapted(tiny()).model
    assert len(lora.adapted_layers(model)) == 2 * 7
    assert model.get_output_embeddings() not in lora.adapted_layers(model)


def test_adapters_are_float32_on_bfloat16_weights():
    base = tiny()
    base.model.to(torch.bfloat16)
    lm = adapted(base)
    assert {p.dtype for p in lm.model.parameters() if p.requires_grad} == {torch.float32}
    train(lm, 1)
    assert np.isfinite(lm.score(PROMPTS, CHOICES)).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": 0}, "rank must be at least 1"),
        ({"alpha": 0.0}, "alpha must be"),
        ({"last_layers": -1}, "last_layers must be at least 0"),
        ({"target_modules": ()}, "target_modules must name at least one"),
        ({"target_modules": ("q_proj", "query")}, "target_modules: .*'query'; it has down_proj, gate_proj"),
    ],
)
def test_impossible_adapters_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        adapted(tiny(), **settings)


class Bare(torch.nn.Module):
    """A model whose only layer has a name without a number."""

    def __init__(self, layer):
        super().__init__()
        self.only = layer

    def get_output_embeddings(self):
        return None


def test_a_model_without_numbered_layers_needs_last_layers_0():
    model = Bare(torch.nn.Linear(3, 2))
    with pytest.raises(ValueError, match=r"last_layers: .*set last_layers=0"):
        lora.add_adapters(model, LoraAdapterSettings(last_layers=1), 0)
    lora.add_adapters(model, LoraAdapterSettings(), 0)
    assert len(lora.adapted_layers(model)) == 1
    with pytest.raises(ValueError, match=r"target_modules: .*no linear layers"):
        lora.add_adapters(Bare(torch.nn.ReLU()), LoraAdapterSettings(), 0)


def test_adapters_are_attached_once():
    lm = adapted(tiny())
    with pytest.raises(ValueError, match="already has adapters"):
        lora.add_adapters(lm.model, LoraAdapterSettings(), 0)
