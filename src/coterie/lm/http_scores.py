"""Scores of choices from a server, exactly, in the two ways that servers allow.

*Echo* (`/completions` with `echo` and `logprobs`): the server gives the log-probability of every token of
prompt and choice. *Force* (llama.cpp's server, which does not echo): a large bias makes the next token the
one that is asked about; llama.cpp reports its log-probability under the model itself, before the bias.
Tokens that several choices share are asked about once. Both sum the choice's tokens. Chat end points show
log-probabilities of sampled tokens only: no way to a score, hence `Unsupported`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from coterie.lm.interface import Prompt, Scores, Unavailable, Unsupported

SHOWN = 40  # likeliest tokens that a forced request shows beside its own
BIAS = 100.0  # the most that servers allow; logits lie far closer together


class Server(Protocol):
    """What scoring needs of a connection."""

    @property
    def model(self) -> str: ...

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]: ...

    def root(self, path: str) -> str: ...


# Echo -------------------------------------------------------------------------------------------------


def score_by_echo(server: Server, prompt: Prompt, choices: Sequence[str]) -> Scores:
    """One request for each choice."""
    if not isinstance(prompt, str):
        raise Unsupported("this server scores choices after text, not after messages")
    rows: list[tuple[float, int, int]] = []
    for choice in choices:
        with after_others(bool(rows)):
            rows.append(_echo(server, prompt, choice))
    logprobs, tokens, read = zip(*rows)
    return Scores(np.array([logprobs]), np.array([tokens], np.int64), np.array([sum(read)], np.int64))


def _echo(server: Server, prompt: str, choice: str) -> tuple[float, int, int]:
    whole = prompt + choice
    body = {"model": server.model, "prompt": whole, "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 1}
    answer = server.post("/completions", body)
    shown = (answer.get("choices") or [{}])[0]
    told = shown.get("logprobs") or {}
    offsets, each = told.get("text_offset"), told.get("token_logprobs")
    if not str(shown.get("text", "")).startswith(whole) or not offsets or not each or len(offsets) != len(each):
        raise Unsupported("this server gives no log-probabilities of a prompt (echo): it cannot score choices")
    mine = [place for place, at in enumerate(offsets) if len(prompt) <= at < len(whole)]
    if not mine or offsets[mine[0]] != len(prompt) or each[mine[0]] is None:
        raise Unsupported(
            f"the server's tokens run across the end of the prompt and the choice {choice!r}: "
            "begin choices with a space, and do not end prompts with one"
        )
    read = int((answer.get("usage") or {}).get("total_tokens", len(offsets)))
    return sum(float(each[place]) for place in mine), len(mine), read


# Force ------------------------------------------------------------------------------------------------


def score_by_force(server: Server, prompt: Prompt, choices: Sequence[str]) -> Scores:
    """One request for each branching of the choices' tokens, and for each token that is none of the likeliest."""
    if isinstance(prompt, str):
        text = prompt
    else:
        text = str(server.post(server.root("/apply-template"), {"messages": [dict(one) for one in prompt]})["prompt"])
    start = _tokens(server, text, special=True)
    asked = [_tokens(server, choice, special=False) for choice in choices]
    known: dict[tuple[tuple[int, ...], int], float] = {}
    read = 0
    for tokens in asked:
        for place, token in enumerate(tokens):
            before = tuple(tokens[:place])
            if (before, token) not in known:
                with after_others(read > 0):
                    found, size = _force(server, [*start, *before], token)
                read += size
                # what else was shown answers for other choices
                known |= {(before, other): logprob for other, logprob in found.items()}
    sums = [sum(known[tuple(tokens[:place]), token] for place, token in enumerate(tokens)) for tokens in asked]
    return Scores(np.array([sums]), np.array([[len(tokens) for tokens in asked]]), np.array([read]))


def _tokens(server: Server, text: str, special: bool) -> list[int]:
    body = {"content": text, "add_special": special, "parse_special": True}
    tokens: list[int] = server.post(server.root("/tokenize"), body)["tokens"]
    return tokens


def _force(server: Server, before: list[int], token: int) -> tuple[dict[int, float], int]:
    """Log-probabilities of the token and of the likeliest ones after `before`, and how much was read."""
    body = {
        "model": server.model,
        "prompt": before,
        "max_tokens": 1,
        "temperature": 0,
        "logprobs": SHOWN,
        "logit_bias": {str(token): BIAS},
    }
    answer = server.post("/completions", body)
    content = ((answer.get("choices") or [{}])[0].get("logprobs") or {}).get("content") or [{}]
    if content[0].get("id") != token:
        raise Unavailable(f"the server was to show token {token} and did not", billed=True)
    found = {int(one["id"]): float(one["logprob"]) for one in (*content[0]["top_logprobs"], content[0])}
    return found, int((answer.get("usage") or {}).get("total_tokens", len(before) + 1))


@contextmanager
def after_others(something: bool) -> Iterator[None]:
    """A failure after requests that were answered has cost something, whatever it is itself."""
    try:
        yield
    except Unavailable as error:
        error.billed = error.billed or something
        raise
