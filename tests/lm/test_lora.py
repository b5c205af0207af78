"""Low-rank adapters: what they add, what learns, and that models with shared weights stay apart."""

import numpy as np
import pytest
import torch

from coterie.lm import lora
from coterie.lm.backends.local import Local
from coterie.lm.lora import AdapterSettings
from coterie.nn import networks
from helpers.lm import tiny

PROMPTS, CHOICES = ["one way", "one more"], [[" up", " down"]] * 2
pytest.importorskip("peft", reason="needs coterie[lm]")


def adapted(base, seed=0, **settings):
    """A twin with adapters, over the weights of `base`."""
    model = lora.twin(base.model)
    lora.attach(model, AdapterSettings(**{"rank": 2} | settings), seed)
    return Local(model, base.tokenizer, base.settings)


def train(lm, steps=3):
    flat = networks.FlatParams(lm.model, 1)
    for _ in range(steps):
        loss = -lm.choice_logprobs(PROMPTS, CHOICES).log_softmax(-1)[:, 0].sum()
        networks.adam_step([flat], loss, 1e-2, 1.0)


def test_an_adapted_model_begins_as_it_was():
    base = tiny()
    lm = adapted(base)
    np.testing.assert_array_equal(lm.score(PROMPTS, CHOICES), base.score(PROMPTS, CHOICES))
    train(lm)
    assert np.abs(lm.score(PROMPTS, CHOICES) - base.score(PROMPTS, CHOICES)).min() > 1e-3
    with lora.switched_off(lm.model):
        np.testing.assert_array_equal(lm.score(PROMPTS, CHOICES), base.score(PROMPTS, CHOICES))
    assert np.abs(lm.score(PROMPTS, CHOICES) - base.score(PROMPTS, CHOICES)).min() > 1e-3


def test_an_adapted_layer_by_hand():
    """W x + (alpha / rank) B A x."""
    lm = adapted(tiny(), rank=2, alpha=6.0, targets=("q_proj",))
    (layer, *_) = lora.adapted(lm.model)
    down, up = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    up.data.normal_(generator=torch.Generator().manual_seed(1))
    x = torch.randn(3, 32, generator=torch.Generator().manual_seed(2))
    expected = x @ layer.base_layer.weight.T + 3.0 * (x @ down.T) @ up.T
    torch.testing.assert_close(layer(x), expected)


def test_twins_share_weights_and_learn_apart():
    """Each has only its own gradient: the other, and the model that they come from, stay as they were."""
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


def test_only_adapters_learn_and_are_saved():
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


def test_seeds_decide_the_first_adapters_and_nothing_else():
    state = torch.random.get_rng_state()
    first, same, other = (networks.export(adapted(tiny(), seed=seed).model) for seed in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(np.array_equal(same[name], array) for name, array in first.items())
    assert all(np.array_equal(other[name], array) != ("lora_A" in name) for name, array in first.items())
    assert all(not array.any() for name, array in first.items() if "lora_B" in name)


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"targets": ("q_proj", "v_proj")}, {f"model.layers.{i}.self_attn.{p}_proj" for i in (0, 1) for p in "qv"}),
        ({"targets": ("down_proj",), "layers": 1}, {"model.layers.1.mlp.down_proj"}),
    ],
)
def test_what_is_adapted(settings, names):
    model = adapted(tiny(), **settings).model
    found = {name for name, module in model.named_modules() if module in lora.adapted(model)}
    assert found == names


def test_all_linear_leaves_out_the_head():
    model = adapted(tiny()).model
    assert len(lora.adapted(model)) == 2 * 7
    assert model.get_output_embeddings() not in lora.adapted(model)


def test_adapters_are_precise_beside_coarse_weights():
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
        ({"layers": -1}, "layers must be at least 0"),
        ({"targets": ()}, "targets must name at least one layer"),
        ({"targets": ("q_proj", "query")}, "this model has no layer 'query'; there are down_proj, gate_proj"),
    ],
)
def test_impossible_adapters_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        adapted(tiny(), **settings)


class Bare(torch.nn.Module):
    """A model of one layer, which bears a name and no number."""

    def __init__(self, layer):
        super().__init__()
        self.only = layer

    def get_output_embeddings(self):
        return None


def test_a_model_without_numbered_layers_is_adapted_as_a_whole():
    model = Bare(torch.nn.Linear(3, 2))
    with pytest.raises(ValueError, match="the layers of this model have no numbers; set layers=0"):
        lora.attach(model, AdapterSettings(layers=1), 0)
    lora.attach(model, AdapterSettings(), 0)
    assert len(lora.adapted(model)) == 1
    with pytest.raises(ValueError, match="this model has no linear layers"):
        lora.attach(Bare(torch.nn.ReLU()), AdapterSettings(), 0)


def test_adapters_are_attached_once():
    lm = adapted(tiny())
    with pytest.raises(ValueError, match="has adapters already"):
        lora.attach(lm.model, AdapterSettings(), 0)
