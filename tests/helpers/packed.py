"""Packed rows and attention over them, token by token, from their definition.

An answer's token sees its prompt, the earlier tokens of its own answer, and itself.
"""

import numpy as np
import torch

from coterie.lm.learn.sampling import PAD


def some_answers(random, groups, answers, longest_prompt, longest, vocabulary=40):
    """Random prompts, and answers `[groups, answers, longest]`, some of which are empty."""
    prompts = [random.integers(1, vocabulary, random.integers(1, longest_prompt + 1)).tolist() for _ in range(groups)]
    tokens = random.integers(1, vocabulary, (groups, answers, longest)).astype(np.int32)
    lengths = random.integers(0, longest + 1, (groups, answers)) * (random.random((groups, answers)) < random.random())
    tokens[np.arange(longest) >= lengths[..., None]] = PAD
    return prompts, tokens


def packed_by_loops(prompts, answers):
    """Tokens, positions, the places that each token sees, and the places that predict the answers' tokens."""
    tokens, positions, sees, source = [], [], [], []
    for prompt, row in zip(prompts, answers.tolist(), strict=True):
        asked = list(range(len(tokens), len(tokens) + len(prompt)))  # places of the prompt
        for i, token in enumerate(prompt):
            tokens.append(token)
            positions.append(i)
            sees.append(asked[: i + 1])
        for answer in row:
            own = []  # places of the answer
            written = [token for token in answer if token != PAD]
            for i, token in enumerate(written):
                source.append(own[-1] if own else asked[-1])
                if i + 1 < len(written):  # the last one is not read
                    own.append(len(tokens))
                    tokens.append(token)
                    positions.append(len(prompt) + i)
                    sees.append(asked + own)
    return tokens, positions, sees, source


def attention_by_loops(heads, count, sees):
    """Attention in float64 over heads `[M, count + 2 kv, size]`: queries, keys and values side by side."""
    kv = (heads.shape[1] - count) // 2
    query, key, value = heads.double().split((count, kv, kv), dim=1)
    rows = []
    for i, places in enumerate(sees):
        for head in range(count):
            mine = head // (count // kv)
            weight = torch.softmax(key[places, mine] @ query[i, head] * heads.shape[2] ** -0.5, dim=0)
            rows.append(weight @ value[places, mine])
    return torch.stack(rows).view(len(sees), count, -1)
