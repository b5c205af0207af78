"""The GPU's kernels of a transformer's layers against plain PyTorch, values and gradients."""

import pytest
import torch

from coterie.lm.sampling import PAD, grade
from coterie.lm.transformer import Rotation, Transformer, TransformerShape, gate, rotate

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no CUDA device")


@pytest.mark.parametrize("size", [16, 24, 64])
@pytest.mark.parametrize("rows", [1, 3])
def test_rotations(size, rows):
    x = torch.randn(3, 7, 5, size, dtype=torch.float64).transpose(1, 2).float().requires_grad_()
    angles = torch.randn(rows, 1, 7, size // 2).repeat(1, 1, 1, 2)
    turn = Rotation(angles.cos(), angles.sin(), None)
    there = x.detach().cuda().requires_grad_()
    on_gpu = Rotation(turn.cosine.cuda(), turn.sine.cuda(), None)
    slope = torch.randn(x.shape)
    expected, found = rotate(x, turn), rotate(there, on_gpu)
    torch.testing.assert_close(found.cpu(), expected)
    expected.backward(slope)
    found.backward(slope.cuda())
    torch.testing.assert_close(there.grad.cpu(), x.grad)


@pytest.mark.parametrize("hidden", [16, 1000, 1536])
def test_gates(hidden):
    x = torch.randn(3, 5, 2 * hidden, requires_grad=True)
    there = x.detach().cuda().requires_grad_()
    slope = torch.randn(3, 5, hidden)
    gate(x).backward(slope)
    gate(there).backward(slope.cuda())
    torch.testing.assert_close(gate(there).cpu(), gate(x))
    torch.testing.assert_close(there.grad.cpu(), x.grad)


def test_gradients_of_answers():
    network = Transformer(TransformerShape(40, 2, 48, 6, 2, 64, 64), seed=3)
    there = Transformer(network.shape, seed=3).cuda()
    answers = torch.randint(0, 40, (5, 3, 6)).int()
    answers[1, 2, 2:], answers[4, :, 5] = PAD, PAD
    prompts = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10], [3] * 9, [2, 2]]
    for one in (network, there):
        graded = grade(one, prompts, answers.numpy(), 0.8)
        (graded.log_probs.sum() + 0.1 * graded.entropy.sum()).backward()
    for (name, one), other in zip(network.named_parameters(), there.parameters(), strict=True):
        torch.testing.assert_close(other.grad.cpu(), one.grad, atol=2e-4, rtol=1e-3, msg=name)
