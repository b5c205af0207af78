"""Any OpenAI-compatible server, through the `openai` client: one prompt is one request.

The key comes from an environment variable and goes nowhere else: not into reprs, logs, errors or files.
Asking again is left to retry.py, asking several at once to spread.py. Scores are in http_scores.py.

Scores of choices from a server, exactly, in the two ways that servers allow.

*Echo* (`/completions` with `echo` and `logprobs`): the server gives the log-probability of every token of
prompt and choice. *Force* (llama.cpp's server, which does not echo): a large bias makes the next token the
one that is asked about; llama.cpp reports its log-probability under the model itself, before the bias.
Tokens that several choices share are asked about once. Both sum the choice's tokens. Chat end points show
log-probabilities of sampled tokens only: no way to a score, hence `Unsupported`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

import numpy as np

from coterie.core.validation import positive
from coterie.lm.interface import (
    Completion,
    LanguageModel,
    Prompt,
    Rejected,
    Sampling,
    Scores,
    Unavailable,
    Unsupported,
    check_choices,
    cut,
    needs,
    stream,
)
from coterie.lm.wrappers.concurrency import joined

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


BUSY = (408, 409, 425, 429)  # statuses that cost nothing and pass


@dataclass(frozen=True)
class HttpSettings:
    """How a server is spoken to."""

    model: str | None = None  # its name on the server; None: the first that the server lists
    key_variable: str = "OPENAI_API_KEY"  # environment variable that holds the key; unset: no key
    timeout: float = 60.0  # seconds without a sign of life before a request counts as lost
    at_once: int = 8  # requests under way at the same time
    logprobs: bool = True  # ask for the log-probabilities of completions; some servers refuse them
    chat: bool = False  # send texts as a user's message, for servers that take nothing else

    def __post_init__(self) -> None:
        positive("timeout", self.timeout)
        positive("at_once", self.at_once)


class Http(LanguageModel):
    """A model behind an address such as http://localhost:8080/v1."""

    def __init__(self, url: str, settings: HttpSettings = HttpSettings(), key: str | None = None) -> None:
        """`key` stands in for the environment variable; it is kept by the client alone."""
        openai = needs("openai", "lm")
        parts = urlsplit(url)
        if parts.username or parts.password or parts.query:
            raise ValueError("the address of a server may hold no user, password or query; put keys into a variable")
        self.url, self.settings, self.openai = url.rstrip("/"), settings, openai
        self.client = openai.OpenAI(
            base_url=self.url,
            api_key=key or os.environ.get(settings.key_variable) or "none",
            max_retries=0,
            timeout=settings.timeout,
        )
        self.listed: Mapping[str, Any] | None = None

    def __repr__(self) -> str:
        return f"Http({self.url!r}, model={self.settings.model!r})"

    @property
    def identity(self) -> str:
        return f"http {self.url} {self.model}"

    @property
    def model(self) -> str:
        return self.settings.model or str(self._served()["id"])

    @property
    def is_llamacpp(self) -> bool:
        """llama.cpp's own server: it has end points and parameters that others refuse."""
        return self._served().get("owned_by") == "llamacpp"

    def complete(
        self, prompts: Sequence[Prompt], n: int = 1, sampling: Sampling = Sampling(), first: int = 0
    ) -> list[list[Completion]]:
        return [self._complete(self._message(prompt), n, sampling, first) for prompt in prompts]

    def scores(self, prompts: Sequence[Prompt], choices: Sequence[Sequence[str]]) -> Scores:
        check_choices(prompts, choices)
        if self.settings.chat:
            raise Unsupported("a server that only chats scores no words; a policy may ask for texts: way=complete")
        ask = score_by_force if self.is_llamacpp else score_by_echo
        return joined([ask(self, prompt, mine) for prompt, mine in zip(prompts, choices)])

    def embed(self, prompts: Sequence[Prompt]) -> np.ndarray:
        texts = [prompt for prompt in prompts if isinstance(prompt, str)]
        if len(texts) < len(prompts):
            raise Unsupported("a server embeds text, not messages")
        answer = self.post("/embeddings", {"model": self.model, "input": texts, "encoding_format": "float"})
        rows = np.array([one["embedding"] for one in _field(answer, "data")], np.float32)
        return rows / np.linalg.norm(rows, axis=-1, keepdims=True)

    def close(self) -> None:
        self.client.close()

    # Requests -----------------------------------------------------------------------------------------

    def _message(self, prompt: Prompt) -> Prompt:
        return [{"role": "user", "content": prompt}] if self.settings.chat and isinstance(prompt, str) else prompt

    def _complete(self, prompt: Prompt, n: int, sampling: Sampling, first: int) -> list[Completion]:
        wanted = 1 if sampling.temperature == 0 else n
        found: list[Completion] = []
        while len(found) < wanted:  # some servers give fewer samples than asked for
            # llama.cpp has as many samples at once as it has slots, and reads a prompt once anyway
            rest = 1 if self.is_llamacpp else wanted - len(found)
            body = self._body(prompt, rest, sampling, first + len(found))
            path = "/completions" if isinstance(prompt, str) else "/chat/completions"
            with after_others(bool(found)):
                answer = self.post(path, body)
            usage = answer.get("usage") or {}
            samples = [_sample(one, sampling) for one in _field(answer, "choices")[:rest]]
            if not samples:
                raise Unavailable("the server answered without a sample", billed=True)
            read = int(usage.get("prompt_tokens", 0))
            written = [len(one.logprobs) for one in samples]
            if not all(written):  # no log-probabilities: the server's own count, on the first sample
                written = [int(usage.get("completion_tokens", 0))] + [0] * (len(samples) - 1)
            for place, (one, size) in enumerate(zip(samples, written)):
                counts = (read if place == 0 else 0, size)
                found.append(Completion(one.text, one.tokens, one.logprobs, one.finish, *counts))
        same = Completion(found[0].text, found[0].tokens, found[0].logprobs, found[0].finish, 0, 0)
        return found + [same] * (n - wanted)

    def _body(self, prompt: Prompt, n: int, sampling: Sampling, first: int) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model,
            "n": n,
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
        }
        if sampling.temperature:
            body["seed"] = int(stream(sampling, prompt, first).integers(2**31))
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        if self.is_llamacpp:  # its defaults cut the distribution
            body |= {"top_k": sampling.top_k, "min_p": 0.0}
        elif sampling.top_k:
            body["top_k"] = sampling.top_k
        if isinstance(prompt, str):
            return body | {"prompt": prompt} | ({"logprobs": 1} if self.settings.logprobs else {})
        messages = {"messages": [dict(message) for message in prompt]}
        return body | messages | ({"logprobs": True, "top_logprobs": 1} if self.settings.logprobs else {})

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send one request; `path` under the address, or a whole address."""
        return self._answer(lambda: self.client.post(path, cast_to=str, body=body))

    def root(self, path: str) -> str:
        """An end point beside /v1."""
        return self.url.removesuffix("/v1") + path

    def _served(self) -> Mapping[str, Any]:
        """What the server says of our model."""
        if self.listed is None:
            try:
                models = self._answer(lambda: self.client.get("/models", cast_to=str)).get("data") or []
            except Rejected:
                models = []  # not every server lists its models
            named = [one for one in models if self.settings.model in (None, one.get("id"))] or models[:1]
            if not named and self.settings.model is None:
                raise Rejected(f"{self.url} lists no models: name one (http.model)")
            self.listed = named[0] if named else {}
        return self.listed

    def _answer(self, ask: Any) -> dict[str, Any]:
        """The answer as JSON, or a failure of ours that names neither key nor headers."""
        errors = self.openai
        try:
            text = ask()
        except errors.APIStatusError as error:
            raise _failed(error, self.client.api_key) from None
        except errors.APITimeoutError:
            raise Unavailable(f"no answer within {self.settings.timeout:g} s", billed=True) from None
        except errors.APIConnectionError as error:
            refused = "Connect" in type(error.__cause__).__name__
            what = "cannot reach the server" if refused else "the connection broke off"
            raise Unavailable(f"{what} ({type(error.__cause__).__name__})", billed=not refused) from None
        try:
            answer = json.loads(text)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise Unavailable("the server's answer is not the JSON it should be", billed=True)
        return answer


def _failed(error: Any, key: str) -> Rejected | Unavailable:
    """A refusal by status."""
    status = error.status_code
    said = str(error.message).replace(key, "***")[:300]
    if status in BUSY or status >= 500:
        asked = error.response.headers.get("retry-after", "")
        wait = float(asked) if asked.replace(".", "", 1).isdigit() else None  # dates are not used by model servers
        return Unavailable(f"status {status}", wait, billed=status not in BUSY)
    return Rejected(f"status {status}: {said}")


def _field(answer: Mapping[str, Any], name: str) -> list[Any]:
    if not isinstance(answer.get(name), list):
        raise Unavailable(f"the server's answer has no '{name}'", billed=True)
    found: list[Any] = answer[name]
    return found


def _sample(choice: Mapping[str, Any], sampling: Sampling) -> Completion:
    """One sample; log-probabilities come in two shapes."""
    text = choice["text"] if "text" in choice else (choice.get("message") or {}).get("content")
    if not isinstance(text, str):
        raise Unavailable("the server's answer has no text", billed=True)
    told = choice.get("logprobs") or {}
    content = told.get("content") or []
    logprobs = [one["logprob"] for one in content] or told.get("token_logprobs") or []
    ids = [one["id"] for one in content if "id" in one]
    tokens = tuple(ids) if len(ids) == len(logprobs) else ()
    finish = str(choice.get("finish_reason") or "stop")
    return Completion(cut(text, sampling.stop)[0], tokens, tuple(map(float, logprobs)), finish, 0, 0)
