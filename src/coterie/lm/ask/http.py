"""A model on any OpenAI-compatible server; one prompt is one request.

The key comes from an environment variable. The client holds it, and it is taken out of what a server says before
anything else sees that, so that it reaches no repr, log, error or file. wrappers/retry.py retries and
wrappers/concurrency.py sends requests in parallel.

Servers are not trusted: an answer that is late, too long or not of the usual form is `Unavailable`, and token counts
that cannot be are replaced by estimates (`plausible_tokens`).

Choices are scored exactly, by one of the two methods that servers offer. *Echo* (`/completions` with `echo` and
`logprobs`): the server returns the log-probability of every token of prompt and choice. *Forced tokens* (llama.cpp's
server, which does not echo): a large logit bias makes the next token the one in question; llama.cpp reports its
log-probability under the model, before the bias. Tokens that several choices share are requested once. Chat endpoints
return log-probabilities of sampled tokens only, so they cannot score: `Unsupported`.
"""

from __future__ import annotations

import functools
import json
import logging
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NoReturn
from urllib.parse import urlsplit

import numpy as np

from coterie.core import heartbeat
from coterie.core.validation import positive
from coterie.lm.ask.http_client import PORTS, Answer, Client, RequestFailed
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
    sample_generator,
)

log = logging.getLogger("coterie")
BUSY_STATUSES = (408, 409, 425, 429)  # temporary, and not billed
FAULT_STATUSES = (500, 502, 503, 504, 529)  # temporary faults of a server; others, such as 501, are permanent
TOP_LOGPROBS = 40  # most likely tokens that a request for a forced token also returns
LOGIT_BIAS = 100.0  # the most that servers allow; logits lie far closer together
# Limits of answers, far above what tokenizers and servers need
TOKEN_BYTES = 1024  # of the text of one token
ANSWER_BYTES = 2**20  # of an answer, besides its tokens
JSON_BYTES = 2**12  # of an answer for each token: its text, log-probability and alternatives
LIST_BYTES = 2**24  # of a list of models
NAME_LENGTH = 1000  # of a model
OWN_TOKENS = 10_000  # that a server may count beyond those sent and asked for: a system prompt, reasoning
BYTES_PER_TOKEN = 3  # of estimates; English text has about four
MOST_BYTES_PER_TOKEN = 64  # on average; a count that is lower says that the server does not count


@dataclass(frozen=True)
class HttpSettings:
    """The model, key and limits of a server."""

    model: str | None = None  # its name on the server; None: the first that the server lists
    api_key_env: str = "OPENAI_API_KEY"  # environment variable that holds the key; unset: no key
    timeout: float = 60.0  # seconds for a request, from connecting to the last byte of the answer
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
        check_address(url)
        self.url, self.settings = url.rstrip("/"), settings
        self.clean = Cleaner(key or read_key(settings.api_key_env))
        self.client = Client(self.url, settings.timeout, self.clean.headers())
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
        body = {"model": self.model, "input": texts, "encoding_format": "float"}
        answer = self.post("/embeddings", body, tokens=ANSWER_BYTES // JSON_BYTES * len(texts))
        with _reading():
            rows = np.array([one["embedding"] for one in _list_field(answer, "data")], np.float32)
            lengths = np.linalg.norm(rows.astype(np.float64), axis=-1, keepdims=True)
            if rows.ndim != 2 or len(rows) != len(texts) or not (np.isfinite(lengths) & (lengths > 0)).all():
                raise ValueError(f"expected {len(texts)} vectors of finite numbers")
        return (rows / lengths).astype(np.float32)

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
                answer = self.post(path, body, tokens=rest * sampling.max_tokens)
            with _reading():
                samples = [_parse_sample(one, sampling) for one in _list_field(answer, "choices")[:rest]]
                if not samples:
                    raise Unavailable("the server's answer contains no sample", billed=True)
                read, written = self._count(answer, prompt, samples, rest * sampling.max_tokens)
            for place, (one, size) in enumerate(zip(samples, written)):
                counts = (read if place == 0 else 0, size)
                found.append(Completion(one.text, one.tokens, one.logprobs, one.finish, *counts))
        same = Completion(found[0].text, found[0].tokens, found[0].logprobs, found[0].finish, 0, 0)
        return found + [same] * (n - wanted)

    def _count(
        self, answer: Mapping[str, Any], prompt: Prompt, samples: Sequence[Completion], most: int
    ) -> tuple[int, list[int]]:
        """The tokens read, and those written for each sample."""
        usage = _usage(answer)
        longest = self.max_prompt_tokens(prompt)
        read = plausible_tokens(self.url, usage.get("prompt_tokens"), prompt_bytes(prompt), longest)
        sizes = [len(one.text.encode()) for one in samples]
        if all(one.logprobs for one in samples):
            return read, [
                plausible_tokens(self.url, len(one.logprobs), size, most) for one, size in zip(samples, sizes)
            ]
        # no log-probabilities: the server's own count, on the first sample
        counted = plausible_tokens(self.url, usage.get("completion_tokens"), sum(sizes), most)
        return read, [counted] + [0] * (len(samples) - 1)

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

    def post(self, path: str, body: Mapping[str, Any], tokens: int) -> dict[str, Any]:
        """Send one request and return the answer; `path` is relative to the address, or a full URL.

        `tokens` is the most that the answer may contain, which limits its size.
        """
        heartbeat.own.beat()
        url = path if "://" in path else self.url + path
        return self._request("POST", url, json.dumps(body).encode(), ANSWER_BYTES + JSON_BYTES * tokens)

    def root_url(self, path: str) -> str:
        """Return the URL of an endpoint outside /v1."""
        return self.url.removesuffix("/v1") + path

    def _model_entry(self) -> Mapping[str, Any]:
        """Return the server's entry for the model in its list of models."""
        if self.listed_model is None:
            try:
                listed = self._request("GET", f"{self.url}/models", None, LIST_BYTES)
            except Rejected:
                listed = {}  # not every server lists its models
            with _reading():
                models = [_model_entry(one) for one in listed.get("data") or []]
            named = [one for one in models if self.settings.model in (None, one["id"])] or models[:1]
            if not named and self.settings.model is None:
                raise Rejected(f"http.model: {self.url} lists no models; set the name of one")
            self.listed_model = named[0] if named else {}
        return self.listed_model

    def _request(self, method: str, url: str, body: bytes | None, limit: int) -> dict[str, Any]:
        """Send a request and return the answer's JSON, without the key; errors have neither key nor headers."""
        try:
            answer = self.client.request(method, url, body, limit)
        except RequestFailed as error:
            raise Unavailable(str(error), billed=error.sent) from None
        if not 200 <= answer.status < 300:
            raise self._status_error(answer)
        try:
            found = self.clean.tree(json.loads(answer.body, parse_constant=_refuse_constant))
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise Unavailable("the server's answer is not a JSON object", billed=True)
        return found

    def _status_error(self, answer: Answer) -> Rejected | Unavailable:
        """Return our error for an HTTP status."""
        status = answer.status
        if status in (*BUSY_STATUSES, *FAULT_STATUSES):
            wait = answer.headers.get("Retry-After", "")  # model servers do not send dates
            seconds = float(wait) if re.fullmatch(r"[0-9]{1,300}(\.[0-9]*)?", wait) else None
            return Unavailable(f"status {status}", seconds, billed=status not in BUSY_STATUSES)
        if 300 <= status < 400:
            to = self.clean.line(answer.headers.get("Location", "nowhere"))
            cure = "redirects are not followed: set the address of the server itself"
            return Rejected(f"status {status}: the server redirects to {to}; {cure}")
        return Rejected(f"status {status}: {self.clean.line(_reason(answer.body))}")


def _reason(body: bytes) -> str:
    """The message of an error in the usual form, `{"error": {"message": …}}`, or all of what the server sent."""
    with suppress(ValueError, RecursionError, LookupError, TypeError):
        message = json.loads(body)["error"]["message"]
        if isinstance(message, str):
            return message
    return body.decode(errors="replace")


class Cleaner:
    """Takes the key out of what a server says, and what no file or terminal can hold."""

    def __init__(self, key: str) -> None:
        self._key = key

    def headers(self) -> dict[str, str]:
        """The headers of a request that carry the key."""
        return {"Authorization": f"Bearer {self._key}"} if self._key else {}

    def text(self, text: str) -> str:
        """A text without the key and without half characters of UTF-16."""
        kept = text.replace(self._key, "***") if self._key else text
        return kept if kept.isascii() else kept.encode(errors="replace").decode()

    def line(self, text: str) -> str:
        """A short text for an error, without signs that move the cursor of a terminal."""
        kept = "".join(sign if sign.isprintable() else " " for sign in self.text(text)[:300])
        return " ".join(kept.split())

    def tree(self, value: Any) -> Any:
        """JSON with all of its texts cleaned."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.tree(one) for one in value]
        if isinstance(value, dict):
            return {self.text(name): self.tree(one) for name, one in value.items()}
        return value


def check_address(url: str) -> None:
    """Raise `ValueError` for an address that is none, or that holds a secret; the message does not repeat it."""
    try:
        parts = urlsplit(url)
        plain = url.isascii() and url.isprintable() and " " not in url
        unusable = not plain or parts.scheme not in PORTS or not parts.hostname or parts.port == 0
    except ValueError:
        unusable = True
    if unusable:
        raise ValueError("the address of a server must have the form http://host:port/v1")
    if "@" in parts.netloc or "?" in url or "#" in url:
        raise ValueError(
            "the address of a server must not contain a user, password or query; "
            "put the key into the environment variable that http.api_key_env names"
        )


def read_key(variable: str) -> str:
    """The key in an environment variable; empty if there is none."""
    key = os.environ.get(variable, "").strip() if variable else ""
    if not (key.isascii() and key.isprintable()):
        raise ValueError(f"http.api_key_env: the value of {variable} has characters that no header can hold")
    return key


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _model_entry(one: Any) -> Mapping[str, Any]:
    """Check one entry of a list of models."""
    name = one["id"]
    if not isinstance(name, str) or not 0 < len(name) <= NAME_LENGTH:
        raise ValueError(f"a model's id must be a text of at most {NAME_LENGTH} characters")
    return {"id": name, "owned_by": one.get("owned_by")}


# Token counts -----------------------------------------------------------------------------------------


def prompt_bytes(prompt: Prompt) -> int:
    """The bytes of a prompt's text."""
    return len(prompt.encode()) if isinstance(prompt, str) else sum(len(one["content"].encode()) for one in prompt)


def plausible_tokens(server: str, reported: object, size: int, most: int) -> int:
    """Return the server's count of the tokens of a text with `size` bytes, or an estimate where it cannot be.

    A count is too low below a token for every 64 bytes; then, and without one, a token for every 3 bytes is counted.
    A count is too high above `most`, the largest number that was sent or asked for, and 10,000 more; then it is cut.
    """
    ceiling = most + OWN_TOKENS
    if isinstance(reported, int) and not isinstance(reported, bool) and reported * MOST_BYTES_PER_TOKEN >= size:
        if reported > ceiling:
            _say_odd_usage(server)
        if reported >= 0:
            return min(reported, ceiling)
    _say_odd_usage(server)
    return min(-(-size // BYTES_PER_TOKEN), most)


@functools.cache  # once per server and process
def _say_odd_usage(server: str) -> None:
    log.warning("%s does not report how many tokens it used, or not credibly; budgets and usage are estimated", server)


def _usage(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    """The tokens that the server says it used; empty where it says nothing."""
    found = answer.get("usage")
    return found if isinstance(found, dict) else {}


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
    if len(text) > TOKEN_BYTES * sampling.max_tokens:
        raise Unavailable(f"the server's answer is longer than {sampling.max_tokens} tokens can be", billed=True)
    reported = choice.get("logprobs") or {}
    content = reported.get("content") or []
    logprobs = [one["logprob"] for one in content] or reported.get("token_logprobs") or []
    ids = [_whole(one["id"]) for one in content if "id" in one]
    tokens = tuple(ids) if len(ids) == len(logprobs) else ()
    finish = "length" if choice.get("finish_reason") == "length" else "stop"
    return Completion(cut_at_stop(text, sampling.stop)[0], tokens, tuple(map(_logprob, logprobs)), finish, 0, 0)


def _logprob(value: Any) -> float:
    """Check a log-probability; rounding may leave it a little above 0."""
    found = float(value)
    if not math.isfinite(found) or found > 0.01:
        raise ValueError(f"{found:g} is no log-probability")
    return found


def _whole(value: Any) -> int:
    """Check the number of a token."""
    if not isinstance(value, int) or not 0 <= value < 2**31:
        raise ValueError("a token has no such number")
    return value


@contextmanager
def _reading() -> Iterator[None]:
    """Take a wrong shape of the answer that is read inside the block as no answer."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
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
    answer = server.post("/completions", body, tokens=len(whole.encode()) + 1)
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
        reported = _usage(answer).get("total_tokens", len(offsets))
        read = plausible_tokens(server.url, reported, len(whole.encode()), server.max_prompt_tokens(whole))
        return sum(_logprob(logprobs[place]) for place in inside), len(inside), read


# Scores by forced tokens ------------------------------------------------------------------------------


def score_by_forcing(server: Http, prompt: Prompt, choices: Sequence[str]) -> Scores:
    """Score the choices of one prompt with a request per branch of their tokens, and per token that is unlikely."""
    if isinstance(prompt, str):
        text = prompt
    else:
        body = {"messages": [dict(one) for one in prompt]}
        size = server.max_prompt_tokens(prompt) + OWN_TOKENS
        applied = server.post(server.root_url("/apply-template"), body, tokens=size)
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
    size = len(text.encode()) + 8  # a token has at least one byte; a few mark the beginning and the end
    answer = server.post(server.root_url("/tokenize"), body, tokens=size)
    with _reading():
        tokens = [_whole(token) for token in answer["tokens"]]
        if not tokens or len(tokens) > size:
            raise ValueError(f"{len(tokens)} tokens for a text of {size - 8} bytes")
        return tokens


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
    answer = server.post("/completions", body, tokens=2 + TOP_LOGPROBS)
    with _reading():
        content = ((answer.get("choices") or [{}])[0].get("logprobs") or {}).get("content") or [{}]
        if content[0].get("id") != token:
            raise Unavailable(f"the server did not return the forced token {token}", billed=True)
        found = {_whole(one["id"]): _logprob(one["logprob"]) for one in (*content[0]["top_logprobs"], content[0])}
        reported = _usage(answer).get("total_tokens", len(before) + 1)
        return found, plausible_tokens(server.url, reported, len(before) + 1, len(before) + 1)
