"""The layout of packed rows against a naive loop; sampling itself is tested in `test_transformer.py`."""

import numpy as np
import pytest
import torch

from coterie.lm.learn.sampling import PAD, PackedLayout, grade
from coterie.lm.learn.transformer import Spans, Transformer, TransformerShape
from helpers.packed import packed_by_loops, some_answers


@pytest.mark.parametrize("seed", range(20))
def test_packed_rows_are_those_of_a_loop(seed):
    random = np.random.default_rng(seed)
    for _ in range(10):
        groups, count, longest = random.integers(1, 6), random.integers(1, 5), random.integers(1, 7)
        check(*some_answers(random, groups, count, 8, longest), padding=int(random.integers(0, 5)))


@pytest.mark.parametrize(
    ("prompts", "answers"),
    [
        ([[5]], [[[7]]]),  # one token and another: nothing but the prompt is read
        ([[5]], [[[PAD]]]),
        ([[1, 2], [3]], [[[PAD, PAD], [PAD, PAD]], [[4, PAD], [4, 5]]]),
    ],
)
def test_smallest_packed_rows(prompts, answers):
    check(prompts, np.array(answers, np.int32), padding=3)


def check(prompts, answers, padding):
    tokens, positions, sees, source = packed_by_loops(prompts, answers)
    packed = PackedLayout.of(prompts, answers)
    count = len(tokens)
    assert packed.table[:2].tolist() == [tokens, positions]
    assert packed.source.tolist() == source
    table = packed.padded(count + padding)
    sees = sees + [[i] for i in range(count, count + padding)]  # what pads sees itself
    spans = Spans(*torch.from_numpy(table[2:]))
    assert [row.nonzero()[:, 0].tolist() for row in spans.mask()[0, 0]] == sees
    last = [max(i for i, places in enumerate(sees) if place in places) + 1 for place in range(len(sees))]
    assert spans.last.tolist() == last


def test_answers_without_a_token_have_gradients_of_zero():
    network = Transformer(TransformerShape(40, 1, 16, 2, 2, 16, 32), seed=3)
    graded = grade(network, [[1, 2], [3]], np.full((2, 3, 4), PAD, np.int32))
    assert not graded.valid.any()
    (graded.log_probs.sum() + graded.entropy.sum()).backward()
    assert all(not parameter.grad.any() for parameter in network.parameters() if parameter.grad is not None)
