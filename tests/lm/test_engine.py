"""The rollout engine against plain sampling: same tokens, whatever the batch, the refills and the adapters."""

import numpy as np
import pytest
import torch

from coterie.lm.learn.engine import Engine, EngineSpec, Request
from coterie.lm.learn.sampling import PAD, SampleSpec, grade, sample
from coterie.lm.learn.transformer import Transformer, TransformerShape

SHAPE = TransformerShape(vocabulary=40, layers=2, width=48, heads=6, kv_heads=2, hidden=64, context=64)
END = 3


DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.fixture(params=DEVICES)
def network(request):
    made = Transformer(SHAPE, seed=5)
    with torch.no_grad():
        made.embedding.mul_(8)  # otherwise every token is about as likely as the others
        for projection in made.projections():
            projection.weight.mul_(3)  # and the latest token would come again and again
    return made.to(request.param)


def prompts(count, seed=0, longest=20):
    random = np.random.default_rng(seed)
    return [random.integers(4, 40, random.integers(1, longest)).tolist() for _ in range(count)]


def noise(prompts, count, length=12, seed=1):
    return np.random.default_rng(seed).random((prompts, count, length), np.float32)


def answer(network, given, count, *, rows=64, slots=64, temperature=1.0, length=12, adapters=None, ends=(END,)):
    engine = Engine(network, EngineSpec(max_prompt=20, max_tokens=length, rows=rows, prompts=slots))
    found = engine.sample(Request(given, count, length, temperature, ends, noise(len(given), count, length), adapters))
    return found, engine


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
def test_tokens_are_those_of_plain_sampling(network, temperature):
    given = prompts(7)
    found, _ = answer(network, given, 3, temperature=temperature)
    expected = sample(network, given, SampleSpec(3, 12, temperature, END), noise(7, 3).reshape(21, 12))
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    np.testing.assert_allclose(found.log_probs, expected.log_probs, atol=2e-4)
    np.testing.assert_allclose(found.entropy, expected.entropy, atol=2e-4)
    lengths = (found.tokens != PAD).sum(axis=2)
    assert lengths.min() < 12 or temperature == 0  # some answers end early


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "slots"), [(16, 64), (16, 3), (64, 5)])
def test_slots_that_free_up_are_given_to_the_next(network, rows, slots):
    given = prompts(40)
    few, engine = answer(network, given, 4, rows=rows, slots=slots)
    many, whole = answer(network, given, 4, rows=160, slots=40)
    np.testing.assert_array_equal(few.tokens, many.tokens)
    np.testing.assert_allclose(few.log_probs, many.log_probs, atol=2e-4)
    if slots > 16:
        assert engine.steps * rows < 1.5 * (few.tokens != PAD).sum() + 12 * rows  # slots do not stand idle
    assert whole.steps <= 12


@pytest.mark.parametrize("slots", [3, 64])
def test_a_prompt_is_read_once_for_all_of_its_answers(network, monkeypatch, slots):
    read, wanted = Engine.read, prompts(9)
    seen: list[list[int]] = []
    monkeypatch.setattr(Engine, "read", lambda self, some, *words: seen.extend(some) or read(self, some, *words))
    answer(network, wanted, 6, rows=16, slots=slots)  # rows begin with part of a prompt's answers
    assert seen == wanted


def test_rows_of_different_adapters_share_a_batch(network):
    network.add_adapters(2, rank=4, alpha=8, seeds=[0, 1])
    with torch.no_grad():
        for projection in network.projections():
            for up in projection.lora_b:
                up.normal_(std=0.3)
    given = prompts(9)
    owner = np.array([0, 1, 0, 1, 1, 0, 0, 1, 0])
    found, engine = answer(network, given, 2, adapters=owner)
    for adapter in (0, 1):
        mine = np.flatnonzero(owner == adapter)
        random = noise(9, 2)[mine].reshape(-1, 12)
        expected = sample(network, [given[i] for i in mine], SampleSpec(2, 12, 1.0, END, adapter), random)
        np.testing.assert_array_equal(found.tokens[mine], expected.tokens)
    with torch.no_grad():
        for up in (b for p in network.projections() for b in p.lora_b):
            up.zero_()  # the adapters change nothing any more; the engine notices
    again = engine.sample(Request(given, 2, 12, 1.0, (END,), noise(9, 2), owner))
    plain = sample(network, given, SampleSpec(2, 12, 1.0, END), noise(9, 2).reshape(18, 12))
    np.testing.assert_array_equal(again.tokens, plain.tokens)


def test_any_of_several_tokens_ends_an_answer_and_calls_do_not_disturb_each_other(network):
    given = prompts(6)
    one, engine = answer(network, given, 2)
    two, _ = answer(network, given, 2, ends=(END, 7, 9))
    assert (two.tokens != PAD).sum() < (one.tokens != PAD).sum()
    for row, short in zip(one.tokens.reshape(12, -1), two.tokens.reshape(12, -1), strict=True):
        kept = short[short != PAD]
        np.testing.assert_array_equal(kept, row[: len(kept)])
        assert kept[-1] in (END, 7, 9) or len(kept) == 12
    longer = engine.sample(Request(prompts(30, seed=4), 3, 8, 1.0, (END,), noise(30, 3)))
    assert longer.tokens.shape == (30, 3, 8)
    again = engine.sample(Request(given, 2, 12, 1.0, (END,), noise(6, 2)))
    np.testing.assert_array_equal(again.tokens, one.tokens)


def test_weights_that_learning_changed_reach_an_engine_of_lower_precision(network):
    network.set_precision(torch.bfloat16)
    given = prompts(6)
    first, engine = answer(network, given, 3)
    with torch.no_grad():
        network.embedding.mul_(-1)
    again = engine.sample(Request(given, 3, 12, 1.0, (END,), noise(6, 3)))
    fresh, _ = answer(network, given, 3)
    np.testing.assert_array_equal(again.tokens, fresh.tokens)
    assert (again.tokens != first.tokens).any()


@pytest.mark.slow
def test_a_vocabulary_of_several_blocks():
    for device in DEVICES:
        large = Transformer(
            TransformerShape(vocabulary=9_001, layers=1, width=32, heads=2, kv_heads=1, hidden=32, context=64), seed=1
        )
        with torch.no_grad():
            large.embedding.mul_(20)
        large.to(device)
        given = [[7, 8_000], [9_000, 2, 5], [4_096]]
        for temperature in (1.0, 0.0):
            found, _ = answer(large, given, 40, temperature=temperature, length=4, ends=(3,))
            random = noise(3, 40, 4).reshape(120, 4)
            expected = sample(large, given, SampleSpec(40, 4, temperature, 3), random)
            equal = (found.tokens == expected.tokens).all(axis=2)
            if device == "cpu" or not temperature:
                assert equal.all()
            # A GPU adds 9,001 probabilities in another order: now and then a number falls on the other side of a bound.
            assert equal.mean() >= 0.98
            np.testing.assert_allclose(found.log_probs[equal], expected.log_probs[equal], atol=1e-3)
        assert found.tokens.max() > 4_096


def test_log_probabilities_at_temperature_1(network):
    given = prompts(5)
    engine = Engine(network, EngineSpec(20, 12))
    cold, plain = (
        engine.sample(Request(given, 4, 12, 0.5, (END,), noise(5, 4), tempered=tempered)) for tempered in (True, False)
    )
    np.testing.assert_array_equal(cold.tokens, plain.tokens)
    graded = grade(network, given, plain.tokens)
    np.testing.assert_allclose(plain.log_probs, graded.log_probs.detach().cpu().numpy(), atol=2e-4)
    assert np.abs(cold.log_probs - plain.log_probs).max() > 0.1


def test_nothing_is_asked():
    engine = Engine(Transformer(SHAPE), EngineSpec(20, 12))
    assert engine.sample(Request([], 3, 5, 1.0, (END,), np.zeros((0, 3, 5)))).tokens.shape == (0, 3, 5)


@pytest.fixture
def scarce(network, monkeypatch):
    """Makes engines whose memory suffices as soon as `enough(engine)` says so."""
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)

    def make(rows, enough):
        engine = Engine(network, EngineSpec(20, 12, rows=rows, prompts=64))
        reserve = engine._reserve

        def attempt(*sizes):
            if not enough(engine):
                raise torch.OutOfMemoryError("CUDA out of memory")
            return reserve(*sizes)

        monkeypatch.setattr(engine, "_reserve", attempt)
        return engine

    return make


@pytest.mark.slow
def test_out_of_memory_goes_on_with_fewer_rows(network, scarce, caplog):
    given = prompts(40)
    expected, _ = answer(network, given, 4, rows=128)
    engine = scarce(128, lambda engine: engine.rows <= 32)
    found = engine.sample(Request(given, 4, 12, 1.0, (END,), noise(40, 4)))
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    assert "32 answers at once" in caplog.text
    assert engine._buffers.prompt_key.shape[1] == 16  # prompts take memory too


def test_prompts_shrink_where_rows_are_few_already(scarce):
    engine = scarce(16, lambda engine: engine.prompts <= 32)
    assert engine.sample(Request(prompts(40), 1, 12, 1.0, (END,), noise(40, 1))).tokens.shape == (40, 1, 12)
    assert (engine.rows, engine.prompts) == (16, 32)


def test_memory_that_never_suffices_is_an_error(scarce):
    with pytest.raises(torch.OutOfMemoryError):
        scarce(64, lambda engine: False).sample(Request(prompts(3), 2, 12, 1.0, (END,), noise(3, 2)))
