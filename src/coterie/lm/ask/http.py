"""A model on any OpenAI-compatible server, through the `openai` client; one prompt is one request.

The key comes from an environment variable and is passed to the client only, never into reprs, logs, errors or files.
wrappers/retry.py retries and wrappers/concurrency.py sends requests in parallel.

Choices are scored exactly, by one of the two methods that servers offer. *Echo* (`/completions` with `echo` and
`logprobs`): the server returns the log-probability of every token of prompt and choice. *Forced tokens* (llama.cpp's
server, which does not echo): a large logit bias makes the next token the one in question; llama.cpp reports its
log-probability under the model, before the bias. Tokens that several choices share are requested once. Chat endpoints
return log-probabilities of sampled tokens only, so they cannot score: `Unsupported`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from coterie.core.validation import positive
from coterie.lm.ask.interface import (
    Completion,
    LanguageModel,
    Prompt,
    Rejected,
    Sampling,
    Scores,
    Unavailable,
    Unsupported,
    check_choices,
    cut_at_stop,
    import_extra,
    sample_generator,
)

BUSY_STATUSES = (408, 409, 425, 429)  # temporary, and not billed
FAULT_STATUSES = (500, 502, 503, 504, 529)  # temporary faults of a server; others, such as 501, are permanent
TOP_LOGPROBS = 40  # most likely tokens that a request for a forced token also returns
LOGIT_BIAS = 100.0  # the most that servers allow; logits lie far closer together


@dataclass(frozen=True)
class HttpSettings:
    """The model, key and limits of a server."""

    model: str | None = None  # its name on the server; None: the first that the server lists
    api_key_env: str = "OPENAI_API_KEY"  # environment variable that holds the key; unset: no key
    timeout: float = 60.0  # seconds without data before a request counts as failed
    max_concurrency: int = 8  # requests in parallel
    logprobs: bool = True  # request the log-probabilities of completions; some servers refuse them
    chat: bool = False  # send texts as a user's message, for servers that only chat

    def __post_init__(self) -> None:
        positive("timeout", self.timeout)
        positive("max_concurrency", self.max_concurrency)


class Http(LanguageModel):
    """A model behind an address such as http://localhost:8080/v1."""

    def __init__(self, url: str, settings: HttpSettings = HttpSettings(), key: str | None = None) -> None:
        """`key` replaces the environment variable; only the client holds it."""
        openai = import_extra("openai", "lm")
        parts = urlsplit(url)
        if parts.username or parts.password or parts.query:
            raise ValueError(
                "the address of a server must not contain a user, password or query; "
                "put the key into the environment variable that http.api_key_env names"
            )
        self.url, self.settings, self.openai = url.rstrip("/"), settings, openai
        self.client = openai.OpenAI(
            base_url=self.url,
            api_key=key or os.environ.get(settings.api_key_env) or "none",
            max_retries=0,
            timeout=settings.timeout,
        )
        self.listed_model: Mapping[str, Any] | None = None

    def __repr__(self) -> str:
        return f"Http({self.url!r}, model={self.settings.model!r})"

    @property
    def identity(self) -> str:
        return f"http {self.url} chat={self.settings.chat} logprobs={self.settings.logprobs} {self.model}"

    @property
    def model(self) -> str:
        """The model's name on the server."""
        return self.settings.model or str(self._model_entry()["id"])

    @property
    def is_llamacpp(self) -> bool:
        """Whether this is llama.cpp's own server, which has endpoints and parameters that others refuse."""
        return self._model_entry().get("owned_by") == "llamacpp"

    def complete(
        self, prompts: Sequence[Prompt], n: int = 1, sampling: Sampling = Sampling(), first: int = 0
    ) -> list[list[Completion]]:
        return [self._complete(self._as_message(prompt), n, sampling, first) for prompt in prompts]

    def scores(self, prompts: Sequence[Prompt], choices: Sequence[Sequence[str]]) -> Scores:
        check_choices(prompts, choices)
        if self.settings.chat:
            raise Unsupported(
                "http.chat=true: a chat endpoint cannot score words; a language policy can use method=complete instead"
            )
        score = score_by_forcing if self.is_llamacpp else score_by_echo
        return Scores.concatenate([score(self, prompt, options) for prompt, options in zip(prompts, choices)])

    def embed(self, prompts: Sequence[Prompt]) -> np.ndarray:
        texts = [prompt for prompt in prompts if isinstance(prompt, str)]
        if len(texts) < len(prompts):
            raise Unsupported("a server embeds text, not messages")
        answer = self.post("/embeddings", {"model": self.model, "input": texts, "encoding_format": "float"})
        with _reading():
            rows = np.array([one["embedding"] for one in _list_field(answer, "data")], np.float32)
        return rows / np.linalg.norm(rows, axis=-1, keepdims=True)

    def close(self) -> None:
        self.client.close()

    # Completions --------------------------------------------------------------------------------------

    def _as_message(self, prompt: Prompt) -> Prompt:
        return [{"role": "user", "content": prompt}] if self.settings.chat and isinstance(prompt, str) else prompt

    def _complete(self, prompt: Prompt, n: int, sampling: Sampling, first: int) -> list[Completion]:
        wanted = 1 if sampling.temperature == 0 else n
        found: list[Completion] = []
        while len(found) < wanted:  # some servers return fewer samples than requested
            # llama.cpp returns no more samples than it has slots, and reads a prompt once anyway
            rest = 1 if self.is_llamacpp else wanted - len(found)
            body = self._body(prompt, rest, sampling, first + len(found))
            path = "/completions" if isinstance(prompt, str) else "/chat/completions"
            with billed_if(bool(found)):
                answer = self.post(path, body)
            with _reading():
                usage = answer.get("usage") or {}
                samples = [_parse_sample(one, sampling) for one in _list_field(answer, "choices")[:rest]]
                if not samples:
                    raise Unavailable("the server's answer contains no sample", billed=True)
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
            body["seed"] = int(sample_generator(sampling, prompt, first).integers(2**31))
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        if self.is_llamacpp:  # its defaults truncate the distribution
            body |= {"top_k": sampling.top_k, "min_p": 0.0}
        elif sampling.top_k:
            body["top_k"] = sampling.top_k
        if isinstance(prompt, str):
            return body | {"prompt": prompt} | ({"logprobs": 1} if self.settings.logprobs else {})
        messages = {"messages": [dict(message) for message in prompt]}
        return body | messages | ({"logprobs": True, "top_logprobs": 1} if self.settings.logprobs else {})

    # Requests -----------------------------------------------------------------------------------------

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send one request; `path` is relative to the address, or a full URL."""
        return self._parse_answer(lambda: self.client.post(path, cast_to=str, body=body))

    def root_url(self, path: str) -> str:
        """Return the URL of an endpoint outside /v1."""
        return self.url.removesuffix("/v1") + path

    def _model_entry(self) -> Mapping[str, Any]:
        """Return the server's entry for the model in its list of models."""
        if self.listed_model is None:
            try:
                models = self._parse_answer(lambda: self.client.get("/models", cast_to=str)).get("data") or []
            except Rejected:
                models = []  # not every server lists its models
            named = [one for one in models if self.settings.model in (None, one.get("id"))] or models[:1]
            if not named and self.settings.model is None:
                raise Rejected(f"http.model: {self.url} lists no models; set the name of one")
            self.listed_model = named[0] if named else {}
        return self.listed_model

    def _parse_answer(self, request: Any) -> dict[str, Any]:
        """Return the answer as JSON; raise errors that contain neither key nor headers."""
        errors = self.openai
        try:
            text = request()
        except errors.APIStatusError as error:
            raise _status_error(error, self.client.api_key) from None
        except errors.APITimeoutError:
            raise Unavailable(f"no answer within {self.settings.timeout:g} s", billed=True) from None
        except errors.APIConnectionError as error:
            refused = "Connect" in type(error.__cause__).__name__
            what = "cannot reach the server" if refused else "the connection broke"
            raise Unavailable(f"{what} ({type(error.__cause__).__name__})", billed=not refused) from None
        try:
            answer = json.loads(text)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise Unavailable("the server's answer is not a JSON object", billed=True)
        return answer


def _status_error(error: Any, key: str) -> Rejected | Unavailable:
    """Return our error for an HTTP status."""
    status = error.status_code
    message = str(error.message).replace(key, "***")[:300]
    if status in (*BUSY_STATUSES, *FAULT_STATUSES):
        header = error.response.headers.get("retry-after", "")
        wait = float(header) if header.replace(".", "", 1).isdigit() else None  # model servers do not send dates
        return Unavailable(f"status {status}", wait, billed=status not in BUSY_STATUSES)
    return Rejected(f"status {status}: {message}")


def _list_field(answer: Mapping[str, Any], name: str) -> list[Any]:
    if not isinstance(answer.get(name), list):
        raise Unavailable(f"the server's answer has no '{name}'", billed=True)
    found: list[Any] = answer[name]
    return found


def _parse_sample(choice: Mapping[str, Any], sampling: Sampling) -> Completion:
    """Parse one sample; /completions and /chat/completions have different shapes of log-probabilities."""
    text = choice["text"] if "text" in choice else (choice.get("message") or {}).get("content")
    if not isinstance(text, str):
        raise Unavailable("the server's answer has no text", billed=True)
    reported = choice.get("logprobs") or {}
    content = reported.get("content") or []
    logprobs = [one["logprob"] for one in content] or reported.get("token_logprobs") or []
    ids = [one["id"] for one in content if "id" in one]
    tokens = tuple(ids) if len(ids) == len(logprobs) else ()
    finish = str(choice.get("finish_reason") or "stop")
    return Completion(cut_at_stop(text, sampling.stop)[0], tokens, tuple(map(float, logprobs)), finish, 0, 0)


@contextmanager
def _reading() -> Iterator[None]:
    """Take a wrong shape of the answer that is read inside the block as no answer."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        said = f"{type(error).__name__}: {error}"
        raise Unavailable(f"the server's answer is not of the usual form ({said:.100})", billed=True) from error


@contextmanager
def billed_if(earlier_requests: bool) -> Iterator[None]:
    """Mark a failure inside the block as billed if earlier requests of the same call were answered."""
    try:
        yield
    except Unavailable as error:
        error.billed = error.billed or earlier_requests
        raise


# Scores by echo ---------------------------------------------------------------------------------------


def score_by_echo(server: Http, prompt: Prompt, choices: Sequence[str]) -> Scores:
    """Score the choices of one prompt with one request per choice."""
    if not isinstance(prompt, str):
        raise Unsupported("this server scores choices after text, not after messages")
    rows: list[tuple[float, int, int]] = []
    for choice in choices:
        with billed_if(bool(rows)):
            rows.append(_echo(server, prompt, choice))
    logprobs, tokens, read = zip(*rows)
    return Scores(np.array([logprobs]), np.array([tokens], np.int64), np.array([sum(read)], np.int64))


def _echo(server: Http, prompt: str, choice: str) -> tuple[float, int, int]:
    """Return the log-probability of a choice, its number of tokens, and the number of tokens read."""
    whole = prompt + choice
    body = {"model": server.model, "prompt": whole, "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 1}
    answer = server.post("/completions", body)
    with _reading():
        echoed = (answer.get("choices") or [{}])[0]
        reported = echoed.get("logprobs") or {}
        offsets, logprobs = reported.get("text_offset"), reported.get("token_logprobs")
        echoes = str(echoed.get("text", "")).startswith(whole)
        if not echoes or not offsets or not logprobs or len(offsets) != len(logprobs):
            raise Unsupported("this server returns no log-probabilities of a prompt (echo), so it cannot score choices")
        inside = [place for place, at in enumerate(offsets) if len(prompt) <= at < len(whole)]
        if not inside or offsets[inside[0]] != len(prompt) or logprobs[inside[0]] is None:
            raise Unsupported(
                f"a token of the server spans the end of the prompt and the choice {choice!r}: "
                "begin choices with a space, and do not end prompts with one"
            )
        read = int((answer.get("usage") or {}).get("total_tokens", len(offsets)))
        return sum(float(logprobs[place]) for place in inside), len(inside), read


# Scores by forced tokens ------------------------------------------------------------------------------


def score_by_forcing(server: Http, prompt: Prompt, choices: Sequence[str]) -> Scores:
    """Score the choices of one prompt with a request per branch of their tokens, and per token that is unlikely."""
    if isinstance(prompt, str):
        text = prompt
    else:
        body = {"messages": [dict(one) for one in prompt]}
        applied = server.post(server.root_url("/apply-template"), body)
        with _reading():
            text = str(applied["prompt"])
    start = _tokenize(server, text, special=True)
    options = [_tokenize(server, choice, special=False) for choice in choices]
    known: dict[tuple[tuple[int, ...], int], float] = {}  # (tokens before, token) -> log-probability
    read = 0
    for tokens in options:
        for place, token in enumerate(tokens):
            before = tuple(tokens[:place])
            if (before, token) not in known:
                with billed_if(read > 0):
                    found, size = _force(server, [*start, *before], token)
                read += size
                # the other tokens that the server returns may belong to other choices
                known |= {(before, other): logprob for other, logprob in found.items()}
    sums = [sum(known[tuple(tokens[:place]), token] for place, token in enumerate(tokens)) for tokens in options]
    return Scores(np.array([sums]), np.array([[len(tokens) for tokens in options]]), np.array([read]))


def _tokenize(server: Http, text: str, special: bool) -> list[int]:
    body = {"content": text, "add_special": special, "parse_special": True}
    answer = server.post(server.root_url("/tokenize"), body)
    with _reading():
        return [int(token) for token in answer["tokens"]]


def _force(server: Http, before: list[int], token: int) -> tuple[dict[int, float], int]:
    """Return log-probabilities of the token and of the most likely ones after `before`, and the tokens read."""
    body = {
        "model": server.model,
        "prompt": before,
        "max_tokens": 1,
        "temperature": 0,
        "logprobs": TOP_LOGPROBS,
        "logit_bias": {str(token): LOGIT_BIAS},
    }
    answer = server.post("/completions", body)
    with _reading():
        content = ((answer.get("choices") or [{}])[0].get("logprobs") or {}).get("content") or [{}]
        if content[0].get("id") != token:
            raise Unavailable(f"the server did not return the forced token {token}", billed=True)
        found = {int(one["id"]): float(one["logprob"]) for one in (*content[0]["top_logprobs"], content[0])}
        return found, int((answer.get("usage") or {}).get("total_tokens", len(before) + 1))
