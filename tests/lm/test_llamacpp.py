"""Real llama.cpp servers with a tiny float32 model give the numbers of PyTorch from the same file."""

import numpy as np
import pytest

from coterie.lm import Sampling, load
from coterie.lm.ask.http import HttpSettings
from coterie.lm.ask.interface import Missing, Rejected, Unsupported
from coterie.lm.ask.llamacpp import LlamaCppSettings
from coterie.lm.ask.local_settings import LocalSettings
from helpers.lm import tiny_gguf

xllamacpp = pytest.importorskip("xllamacpp", reason="needs coterie[server]")
PROMPTS = ["A short one:", "A rather longer one, to be sure:", "A rather longer one,"]
CHOICES = [[" up", " down", " a", " and so on"], [" up"], [" an", " apple"]]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return str(tiny_gguf(tmp_path_factory.mktemp("lm") / "tiny.gguf"))


@pytest.fixture(scope="module")
def local(file):
    return load(file, local=LocalSettings(device="cpu"))


@pytest.fixture(scope="module")
def llama(file):
    made = load(file, backend="llamacpp", llamacpp=LlamaCppSettings(context=512, threads=1))
    yield made
    made.close()


@pytest.fixture(scope="module")
def address(file):
    """A llama.cpp server as users run it, with its own key."""
    parameters = xllamacpp.CommonParams()
    parameters.model.path, parameters.n_ctx, parameters.n_parallel = file, 1024, 2
    parameters.verbosity, parameters.warmup, parameters.api_keys = 0, False, ["key-of-the-server"]
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    made = xllamacpp.Server(parameters)
    yield f"{made.listening_address}/v1"
    del made


@pytest.fixture
def served(address, monkeypatch):
    monkeypatch.setenv("MY_SERVER_KEY", "key-of-the-server")
    made = load(address, http=HttpSettings(api_key_env="MY_SERVER_KEY", max_concurrency=2))
    yield made
    made.close()


@pytest.mark.parametrize("which", ["llama", "served"])
def test_forced_tokens_give_exact_scores(local, which, request):
    """The remaining difference, about a thousandth, comes from llama.cpp's 16-bit keys and values."""
    ours, theirs = local.scores(PROMPTS, CHOICES), request.getfixturevalue(which).scores(PROMPTS, CHOICES)
    np.testing.assert_array_equal(ours.tokens, theirs.tokens)
    np.testing.assert_allclose(ours.logprobs, theirs.logprobs, atol=2e-2)


@pytest.mark.parametrize("which", ["llama", "served"])
def test_greedy_completions_agree(local, which, request):
    ours = local.complete(PROMPTS, sampling=Sampling(max_tokens=6))
    theirs = request.getfixturevalue(which).complete(PROMPTS, sampling=Sampling(max_tokens=6))
    for (mine,), (other,) in zip(ours, theirs):
        assert mine.tokens == other.tokens
        np.testing.assert_allclose(mine.logprobs, other.logprobs, atol=2e-2)
        assert mine.completion_tokens == other.completion_tokens == 6


def test_samples_differ_and_are_reproducible(served):
    warm = Sampling(max_tokens=6, temperature=1.0)
    (samples,) = served.complete(PROMPTS[:1], 3, warm)
    assert len({sample.tokens for sample in samples}) == 3
    assert served.complete(PROMPTS[:1], 3, warm)[0][0].tokens == samples[0].tokens


def test_samples_follow_the_models_own_distribution(local, served):
    """llama.cpp's defaults would truncate the distribution to 40 tokens; ours do not."""
    drawn = served.complete(PROMPTS[:1], 60, Sampling(max_tokens=1, temperature=3.0))[0]
    assert len({sample.tokens for sample in drawn}) > 40


def test_a_wrong_key_is_rejected(address, monkeypatch):
    monkeypatch.setenv("MY_SERVER_KEY", "wrong-key")
    lm = load(address, http=HttpSettings(model="any", api_key_env="MY_SERVER_KEY"))
    with pytest.raises(Rejected, match="401"):
        lm.complete(["a"])
    lm.close()


def test_unsupported_requests_and_missing_files(llama):
    with pytest.raises(Unsupported, match="backend 'local'"):
        llama.embed(["a"])
    with pytest.raises(Missing, match="no file"):
        load("no/such.gguf", backend="llamacpp")
    with pytest.raises(Missing, match="needs 'embedded' or a GGUF file"):
        load("some/folder", backend="llamacpp")


def test_the_identity_covers_the_context(llama, file):
    """A shorter context cuts completions."""
    other = load(file, backend="llamacpp", llamacpp=LlamaCppSettings(context=256, threads=1))
    assert other.identity != llama.identity
    other.close()
