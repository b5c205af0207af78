"""The networks of search players: where they run, and in which precision."""

import contextlib

import numpy as np
import pytest
import torch

from coterie.policies.search.networks import PositionNetwork, PositionNetworkSettings
from coterie.worlds.boards.connect_four import GAME
from helpers.search import random_positions

SMALL = {"hidden": (8,), "channels": 4, "blocks": 1, "value_width": 4}


def network(kind="residual", **settings):
    return PositionNetwork(PositionNetworkSettings(kind=kind, **SMALL | settings), GAME, 0)


@pytest.mark.parametrize(
    ("kind", "device", "there", "expected"),
    [
        ("residual", "auto", True, "cuda"),
        ("residual", "auto", False, "cpu"),
        ("residual", "cpu", True, "cpu"),
        ("residual", "cuda", True, "cuda"),
        ("mlp", "auto", True, "cpu"),
        ("mlp", "cuda", True, "cuda"),
    ],
)
def test_the_device(monkeypatch, kind, device, there, expected):
    moved = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    monkeypatch.setattr(torch.nn.Module, "to", lambda self, *where, **form: moved.extend(where) or self)
    made = network(kind, device=device)
    assert made.device.type == expected
    assert [where.type for where in moved] == [expected]
    assert (made.perceptron is not None) == (kind == "mlp" and device != "cuda")  # compiled search


@pytest.mark.parametrize("kind", ["mlp", "residual"])
def test_a_gpu_that_is_not_there(monkeypatch, kind):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="device=cuda: PyTorch finds no CUDA device; set device=auto or device=cpu"):
        network(kind, device="cuda")


@pytest.mark.parametrize(
    ("device", "precision", "half"),
    [("cuda", "bfloat16", True), ("cuda", "float32", False), ("cpu", "bfloat16", False)],
)
def test_every_evaluation_on_a_gpu_has_the_precision_of_the_settings(monkeypatch, device, precision, half):
    made, asked, as_tensor = network(device="cpu", precision=precision), [], torch.as_tensor

    def autocast(kind, dtype, enabled, **more):
        asked.append((kind, dtype, enabled))
        return contextlib.nullcontext()

    monkeypatch.setattr(made, "device", torch.device(device))
    monkeypatch.setattr(torch, "as_tensor", lambda x, device: as_tensor(x))
    monkeypatch.setattr(torch, "autocast", autocast)
    logits, values = made.evaluate(GAME.observe(random_positions(GAME, 3, 4)))
    assert asked == [(device, torch.bfloat16, half)]
    assert (logits.shape, values.shape) == ((3, 7), (3,))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no CUDA device")
@pytest.mark.parametrize("kind", ["mlp", "residual"])
def test_search_and_network_alone_evaluate_alike_on_a_gpu(kind):
    seen = GAME.observe(random_positions(GAME, 64, 12)).reshape(64, -1)
    found = {}
    for precision in ("float32", "bfloat16"):
        made = network(kind, device="cuda", precision=precision)
        graph = made.evaluation(64, 0)
        graph.x[:] = seen
        graph.start(np.ones(64, bool))
        graph.finish()
        logits, values = made.evaluate(seen)
        np.testing.assert_allclose(graph.out, np.concatenate([logits, values[:, None]], axis=1), atol=1e-5)
        found[precision] = logits
    apart = np.abs(found["float32"] - found["bfloat16"]).max()
    assert 1e-6 < apart < 0.05
