"""A local model behind the rollout engine gives the answers and scores that it gives without."""

import numpy as np
import pytest
import torch

from coterie.lm.ask.interface import Sampling
from coterie.lm.ask.local import Local
from coterie.lm.ask.local_settings import LocalSettings
from coterie.lm.learn import lora
from helpers.lm import tiny, tiny_model
from helpers.needs import needs

pytestmark = needs("transformers", "lm")

PROMPTS = ["You are at A. Go to", "You are at B, far away. Go to", "You are at"]
CHOICES = [["left", "right", "up and then left"], ["left", "no"], ["a", "b", "c"]]


@pytest.fixture
def engine():
    return tiny(engine="on", engine_rows=16)


@pytest.fixture
def plain():
    return tiny(engine="off")


@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.0])
def test_completions(engine, plain, temperature):
    sampling = Sampling(max_tokens=9, temperature=temperature, seed=3)
    for found, wanted in zip(
        engine.complete(PROMPTS, 12, sampling), plain.complete(PROMPTS, 12, sampling), strict=True
    ):
        assert [one.tokens for one in found] == [one.tokens for one in wanted]
        assert [one.finish for one in found] == [one.finish for one in wanted]
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)
    assert engine.engine is not None
    assert engine.engine.engine.steps > 0
    assert engine.engine.engine.rows == 16
    assert engine.identity != plain.identity  # answers are cached under it
    assert plain.engine is None


def test_stop_strings_cut_answers_where_they_stand(engine, plain):
    free = plain.complete(PROMPTS, 4, Sampling(max_tokens=12, temperature=1.0))
    letter = free[0][0].text[3]
    sampling = Sampling(max_tokens=12, temperature=1.0, stop=(letter,))
    found, wanted = engine.complete(PROMPTS, 4, sampling), plain.complete(PROMPTS, 4, sampling)
    assert [[one.text for one in row] for row in found] == [[one.text for one in row] for row in wanted]
    assert [[one.finish for one in row] for row in found] == [[one.finish for one in row] for row in wanted]
    assert found[0][0].finish == "stop"
    assert len(found[0][0].text) < len(free[0][0].text)


def test_scores(engine, plain):
    np.testing.assert_allclose(engine.score(PROMPTS, CHOICES), plain.score(PROMPTS, CHOICES), atol=1e-4)
    others = ["x", "completely different"]  # nothing shared
    np.testing.assert_allclose(engine.score(others, CHOICES[:2]), plain.score(others, CHOICES[:2]), atol=1e-4)


def test_scores_in_parts(engine, plain, monkeypatch):
    from coterie.lm.ask import local_engine

    monkeypatch.setattr(local_engine, "READ_AT_ONCE", 40)
    np.testing.assert_allclose(engine.score(PROMPTS, CHOICES), plain.score(PROMPTS, CHOICES), atol=1e-4)


def test_out_of_memory_scores_fewer_prompts_at_once(engine, plain, monkeypatch, caplog):
    engine.score(PROMPTS, CHOICES)  # makes the engine
    score, sizes = engine.engine._score, []

    def scarce(prompts, *rest):
        sizes.append(len(prompts))
        if len(prompts) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return score(prompts, *rest)

    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(engine.engine, "_score", scarce)
    np.testing.assert_allclose(engine.score(PROMPTS, CHOICES), plain.score(PROMPTS, CHOICES), atol=1e-4)
    assert sizes == [3, 1, 2, 1, 1]
    assert "out of GPU memory" in caplog.text


def test_trained_weights_reach_the_engine(engine):
    import torch

    before = engine.score(PROMPTS, CHOICES)
    with torch.no_grad():
        engine.model.model.layers[0].mlp.down_proj.weight.mul_(2)
    after = engine.score(PROMPTS, CHOICES)
    assert np.abs(after[0, :3] - before[0, :3]).max() > 1e-3
    fresh = Local(engine.model, engine.tokenizer, LocalSettings(device="cpu", engine="off"))
    np.testing.assert_allclose(after, fresh.score(PROMPTS, CHOICES), atol=1e-4)


def test_other_models_decode_as_before_and_say_so(caplog):
    caplog.set_level("INFO", "coterie")
    model, tokenizer = tiny_model(attention_bias=True)
    lm = Local(model, tokenizer, LocalSettings(device="cpu", engine="on"))
    assert len(lm.complete(PROMPTS, 2, Sampling(max_tokens=3))) == 3
    assert lm.engine is None
    assert "does not serve this model" in caplog.text


def test_models_under_training_adapters_decode_as_before(plain):
    model, tokenizer = tiny_model()
    lora.add_adapters(model, lora.LoraAdapterSettings(rank=2), 0)
    lm = Local(model, tokenizer, LocalSettings(device="cpu", engine="on"))
    sampling = Sampling(max_tokens=4, temperature=1.0)
    found, wanted = lm.complete(PROMPTS, 2, sampling), plain.complete(PROMPTS, 2, sampling)
    assert [[one.tokens for one in row] for row in found] == [[one.tokens for one in row] for row in wanted]
    assert lm.engine is None
    assert "engine" not in lm.identity


def test_writes_that_pytorch_does_not_count_reach_the_engine_with_clear_caches(engine, plain):
    before = engine.score(PROMPTS, CHOICES)
    for lm in (engine, plain):
        lm.model.model.layers[0].mlp.down_proj.weight.data[1:] *= 2
        lm.clear_caches()
    after = engine.score(PROMPTS, CHOICES)
    assert np.abs(after[0, :3] - before[0, :3]).max() > 1e-3
    np.testing.assert_allclose(after, plain.score(PROMPTS, CHOICES), atol=1e-4)


@pytest.mark.parametrize("limits", [{"top_k": 3}, {"top_p": 0.5}])
def test_top_k_and_top_p_decode_as_before(plain, monkeypatch, limits):
    from coterie.lm.ask import decoding

    engine, rows = tiny(engine="on", engine_rows=16, batch_size=4), []
    decode = decoding.decode
    monkeypatch.setattr(decoding, "decode", lambda *words: rows.append(len(words[3])) or decode(*words))
    sampling = Sampling(max_tokens=6, temperature=1.0, **limits)
    assert [one.tokens for one in engine.complete(PROMPTS, 3, sampling)[1]] == [
        one.tokens for one in plain.complete(PROMPTS, 3, sampling)[1]
    ]
    assert max(rows[:-1]) <= 4  # batch_size; the last call is the other model's


@pytest.mark.parametrize(("settings", "named"), [({"engine": "fast"}, "engine"), ({"engine_rows": 0}, "engine_rows")])
def test_wrong_settings_are_named(settings, named):
    with pytest.raises(ValueError, match=named):
        LocalSettings(**settings)
