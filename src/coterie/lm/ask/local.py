"""A causal language model in this process, through PyTorch: a Hugging Face directory or a GGUF file.

Scores and completions reuse the keys and values of shared prompt prefixes (prefix_cache.py). The weights can be
trained: `model` and `tokenizer` are public, and `choice_logprobs` and `vectors` have gradients. When the weights
change, cached prefixes are dropped. The identity, which is part of the cache's keys, covers weights, adapters, config,
tokenizer and chat template.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import logging
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coterie.lm.ask import decoding, scoring
from coterie.lm.ask.interface import (
    Completion,
    LanguageModel,
    Missing,
    Prompt,
    Rejected,
    Sampling,
    Scores,
    Unsupported,
    check_choices,
    cut_at_stop,
    import_extra,
    pad_rows,
    sample_generator,
)
from coterie.lm.ask.local_engine import LocalEngine
from coterie.lm.ask.local_settings import DataType, LocalSettings
from coterie.lm.ask.prefix_cache import PrefixCache, fingerprint
from coterie.lm.learn.lora import adapted_layers

log = logging.getLogger("coterie")
ROUNDS = 8  # times the engine's rows are filled in one call
HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")  # name, or owner/name


class Local(LanguageModel):
    """A causal model and its tokenizer."""

    def __init__(self, model: Any, tokenizer: Any, settings: LocalSettings = LocalSettings(), source: str = "") -> None:
        """`source` identifies the weights as they are now; without it, and after training, their digest does."""
        self.settings = settings
        self.model, self.tokenizer = model, tokenizer
        self.prefix_cache = PrefixCache(settings.prefix_cache_size)
        self.setup = SetupDigest()
        self.lock = threading.RLock()
        self.engine: LocalEngine | None = None
        self.engine_of: object = None  # the fingerprint of the weights that the engine has
        self.sources = {fingerprint(model): source} if source else {}  # fingerprint of the weights -> source or digest
        tokenizer.padding_side = "left"

    @classmethod
    def open(cls, path: str | Path, settings: LocalSettings = LocalSettings(), source: str = "") -> Local:
        """Load a model directory, a GGUF file, or a name that transformers can download."""
        device = resolve_device(settings.device)
        dtype = resolve_dtype(settings.dtype, device)
        if str(path).endswith(".gguf"):
            model, tokenizer = read_gguf(Path(path))
            model = model.to(dtype)
        else:
            model, tokenizer = _read_folder(str(path), dtype)
        return cls(model.to(device).eval(), tokenizer, settings, source)

    # The interface ------------------------------------------------------------------------------------

    @property
    def identity(self) -> str:
        now = fingerprint(self.model)
        if now not in self.sources:
            if len(self.sources) > 8:  # weights that training has replaced long ago
                self.sources = {}
            self.sources[now] = weights_digest(self.model, now[1])
        dtype = str(self.model.dtype).removeprefix("torch.")
        engine = "" if self._engine() is None else " engine"  # which rounds differently
        return f"local {self.sources[now]} {dtype}{engine} {self.setup.digest(self.model, self.tokenizer)}"

    def complete(
        self, prompts: Sequence[Prompt], n: int = 1, sampling: Sampling = Sampling(), first: int = 0
    ) -> list[list[Completion]]:
        tokens = [self.tokenize(prompt, sampling.max_tokens) for prompt in prompts]
        drawn = 1 if sampling.temperature == 0 else n  # all greedy samples are equal
        found: list[list[Completion]] = [[] for _ in prompts]
        engine = None if sampling.top_k or sampling.top_p < 1 else self._engine()  # it knows no top_k and top_p
        batch = self.settings.batch_size if engine is None else self.settings.engine_rows * ROUNDS
        per_pass = max(batch // drawn, 1)
        # prompts of similar length share a batch, because padding costs time
        order = sorted(range(len(prompts)), key=lambda i: len(tokens[i]))
        for begin in range(0, len(prompts), per_pass):
            part = order[begin : begin + per_pass]
            for low in range(0, drawn, batch):
                samples = range(first + low, first + min(low + batch, drawn))
                some, read = [prompts[i] for i in part], [tokens[i] for i in part]
                answers = self._decode(some, read, samples, sampling, engine)
                for i, completions in zip(part, answers):
                    found[i] += completions
        return [row if drawn == n else row + [_without_cost(row[0])] * (n - 1) for row in found]

    def scores(self, prompts: Sequence[Prompt], choices: Sequence[Sequence[str]]) -> Scores:
        check_choices(prompts, choices)
        options = [[self.tokenize_choice(choice) for choice in row] for row in choices]
        tokens = [self.tokenize(prompt, max(map(len, row))) for prompt, row in zip(prompts, options)]
        engine = self._engine() if prompts else None
        if not prompts:
            found: list[list[float]] = []
        elif engine is not None:
            with self.lock:
                found = engine.scores(tokens, options)
        elif has_full_attention(self.model):
            with self._evaluating():
                limit = self.settings.max_batch_tokens
                found = scoring.score_packed(self.model, self.prefix_cache, tokens, options, limit)
        else:
            with self._evaluating():
                found = scoring.score_rows(self.model, tokens, options, self.settings.batch_size)
        sizes = [[len(choice) for choice in row] for row in options]
        read = [len(prompt) + sum(row) for prompt, row in zip(tokens, sizes)]
        return Scores(pad_rows(found, -np.inf, np.float64), pad_rows(sizes, 0, np.int64), np.array(read, np.int64))

    def embed(self, prompts: Sequence[Prompt]) -> np.ndarray:
        """Return the last hidden states, averaged over the tokens of a prompt and scaled to length 1."""
        tokens = [self.tokenize(prompt, 0) for prompt in prompts]
        found = np.zeros((len(prompts), self.model.config.get_text_config().hidden_size), np.float32)
        order = sorted(range(len(prompts)), key=lambda i: len(tokens[i]))
        with self._evaluating(), torch.inference_mode():
            for begin in range(0, len(order), self.settings.batch_size):
                part = order[begin : begin + self.settings.batch_size]
                found[part] = self._vectors([tokens[i] for i in part]).cpu().numpy()
        return found

    def max_prompt_tokens(self, prompt: Prompt, choices: Sequence[str] = ()) -> int:
        return len(self.tokenize(prompt, 0)) + sum(len(self.tokenize_choice(choice)) for choice in choices)

    # Training -----------------------------------------------------------------------------------------

    def choice_logprobs(self, prompts: Sequence[Prompt], choices: Sequence[Sequence[str]]) -> torch.Tensor:
        """Return `[P, C]` log-probabilities with gradients, in the current mode (train or eval) of the model."""
        check_choices(prompts, choices)
        if not has_full_attention(self.model):
            raise Unsupported("training on choices needs a model whose layers all have full attention")
        options = [[self.tokenize_choice(choice) for choice in row] for row in choices]
        tokens = [self.tokenize(prompt, max(map(len, row))) for prompt, row in zip(prompts, options)]
        return scoring.score_with_gradients(self.model, tokens, options)

    def vectors(self, prompts: Sequence[Prompt]) -> torch.Tensor:
        """Return embeddings `[P, D]` with gradients, in the current mode (train or eval) of the model."""
        return self._vectors([self.tokenize(prompt, 0) for prompt in prompts])

    def clear_caches(self) -> None:
        """Drop cached prefixes and the identity; needed only after writes that PyTorch does not count."""
        self.prefix_cache.entries.clear()
        self.sources.clear()
        self.engine, self.engine_of = None, None

    # Tokens -------------------------------------------------------------------------------------------

    def tokenize(self, prompt: Prompt, room: int) -> list[int]:
        """Return the token ids of a text or of a conversation in the chat template; `room` more tokens must fit."""
        if isinstance(prompt, str):
            ids: list[int] = self.tokenizer(prompt).input_ids
        else:
            ids = self.tokenizer(self.apply_chat_template(prompt), add_special_tokens=False).input_ids
        ids = ids or [self.tokenizer.bos_token_id or self.tokenizer.eos_token_id]
        limit = vars(self.model.config.get_text_config()).get("max_position_embeddings")
        if limit and len(ids) + room > limit:
            raise Rejected(f"a prompt of {len(ids)} tokens and {room} more exceed the model's limit of {limit}")
        return ids

    def apply_chat_template(self, prompt: Sequence[Any]) -> str:
        """Return a conversation as text; a last message of the assistant is continued."""
        if not self.tokenizer.chat_template:
            raise Unsupported("this model has no chat template: give text instead of messages")
        continued = prompt[-1]["role"] == "assistant"
        text: str = self.tokenizer.apply_chat_template(
            [dict(message) for message in prompt],
            tokenize=False,
            add_generation_prompt=not continued,
            continue_final_message=continued,
        )
        return text

    def tokenize_choice(self, choice: str) -> list[int]:
        """Return the token ids of a choice, tokenised alone so that no token spans prompt and choice."""
        ids: list[int] = self.tokenizer(choice, add_special_tokens=False).input_ids
        if not ids:
            raise Rejected(f"the choice {choice!r} has no tokens in this model")
        return ids

    # Private ------------------------------------------------------------------------------------------

    def _engine(self) -> LocalEngine | None:
        """The rollout engine with the weights as they are now; None where it is off or does not serve the model."""
        mode = self.settings.engine
        if mode == "off" or (mode == "auto" and self.model.device.type != "cuda") or adapted_layers(self.model):
            return None
        with self.lock:
            now = fingerprint(self.model)
            if now != self.engine_of:
                self.engine = None  # its memory is free before a new one is made
                try:
                    self.engine = LocalEngine(self.model, self.settings.engine_rows)
                except ValueError as error:
                    log.warning("the rollout engine does not serve this model, which decodes more slowly: %s", error)
                self.engine_of = now
            return self.engine

    def _decode(
        self,
        prompts: list[Prompt],
        tokens: list[list[int]],
        samples: range,
        sampling: Sampling,
        engine: LocalEngine | None,
    ) -> list[list[Completion]]:
        uniforms = np.zeros((len(prompts) * len(samples), sampling.max_tokens))
        if sampling.temperature:
            generators = [sample_generator(sampling, prompt, sample) for prompt in prompts for sample in samples]
            uniforms = np.array([one.random(sampling.max_tokens) for one in generators])
        window = 4 * max(map(len, sampling.stop), default=0) + 4  # no stop string has more tokens than bytes

        def stopped(generated: Sequence[int]) -> bool:
            return cut_at_stop(self._text(generated[-window:]), sampling.stop)[1]

        stop = decoding.StopCondition(self._end_tokens(), stopped)
        with self._evaluating():
            if engine is not None:
                rows = engine.decode(tokens, uniforms, sampling, stop)
            else:
                rows = decoding.decode(self.model, self.prefix_cache, tokens, uniforms, sampling, stop)
        found: list[list[Completion]] = []
        for number, prompt in enumerate(tokens):
            of_prompt = rows[number * len(samples) : (number + 1) * len(samples)]
            found.append([self._completion(row, sampling, len(prompt) * (i == 0)) for i, row in enumerate(of_prompt)])
        return found

    def _completion(self, row: decoding.DecodedSample, sampling: Sampling, read: int) -> Completion:
        shown = row.tokens[:-1] if row.tokens[-1] in self._end_tokens() else row.tokens
        text, _ = cut_at_stop(self._text(shown), sampling.stop)
        return Completion(text, tuple(row.tokens), tuple(row.logprobs), row.finish, read, len(row.tokens))

    def _text(self, tokens: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(tokens, clean_up_tokenization_spaces=False)
        return text

    def _end_tokens(self) -> frozenset[int]:
        named = self.model.generation_config.eos_token_id
        listed = named if isinstance(named, list) else [named]
        return frozenset(token for token in (*listed, self.tokenizer.eos_token_id) if token is not None)

    def _vectors(self, tokens: list[list[int]]) -> torch.Tensor:
        width = max(map(len, tokens))
        ids = torch.tensor([[0] * (width - len(one)) + one for one in tokens], device=self.model.device)
        mask = torch.tensor([[0] * (width - len(one)) + [1] * len(one) for one in tokens], device=self.model.device)
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        output = self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            output_hidden_states=True,
            logits_to_keep=1,
            use_cache=False,
        )
        return mean_pool(output.hidden_states[-1], mask)

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Run the block in evaluation mode (without dropout), one thread at a time."""
        with self.lock:
            training = self.model.training
            self.model.eval()
            try:
                yield
            finally:
                self.model.train(training)


# Loading ----------------------------------------------------------------------------------------------


def read_gguf(path: Path) -> tuple[Any, Any]:
    """Read a model (float32) and its tokenizer from one GGUF file."""
    if not path.is_file():
        raise Missing(f"there is no file '{path}'")
    transformers = import_extra("transformers", "lm")
    import_extra("gguf", "lm"), import_extra("accelerate", "lm")
    with _loading(str(path), transformers), _no_gguf_progress_bar():
        model = transformers.AutoModelForCausalLM.from_pretrained(
            str(path.parent), gguf_file=path.name, dtype=torch.float32
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    model.hf_quantizer.remove_quantization_config(model)  # otherwise the model can be neither trained nor saved
    return model, tokenizer


def check_source(name: str, what: str = "model") -> None:
    """Raise `Missing` unless `name` is a GGUF file, a model directory or a hub's model; reads no weights."""
    if name.endswith(".gguf"):
        if not Path(name).is_file():
            raise Missing(f"there is no file '{name}'")
        return
    if Path(name).is_dir():
        if not Path(name, "config.json").is_file():
            raise Missing(f"no {what} '{name}': the directory has no config.json")
        return
    if not HUB_NAME.fullmatch(name):
        raise Missing(f"no {what} '{name}': there is no such directory")
    transformers, hub = import_extra("transformers", "lm"), import_extra("huggingface_hub", "lm")
    try:
        with no_progress_bars(transformers):
            hub.snapshot_download(name, allow_patterns="config.json")  # uses the local copy if there is one
        return
    except hub.errors.RepositoryNotFoundError:
        why = "the hub has no model of that name"
    except (OSError, ValueError) as error:  # no connection, or a name that the hub does not allow
        why = str(error).strip().splitlines()[0].removeprefix("Got: ")
    raise Missing(f"no {what} '{name}': it is not a directory and cannot be downloaded: {why}")


def _read_folder(path: str, dtype: torch.dtype) -> tuple[Any, Any]:
    check_source(path)
    transformers = import_extra("transformers", "lm")
    with _loading(path, transformers):
        model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
        return model, transformers.AutoTokenizer.from_pretrained(path)


@contextmanager
def _loading(path: str, transformers: Any) -> Iterator[None]:
    """Run the block without progress bars; what transformers cannot load is `Missing`."""
    damaged = import_extra("safetensors", "lm").SafetensorError
    try:
        with no_progress_bars(transformers):
            yield
    except (OSError, ValueError, damaged) as error:
        first, *more = str(error).strip().splitlines()
        said = " ".join([first.strip(), *(line.strip() for line in more if first.rstrip().endswith(":"))])
        cure = "fetch it again if files are missing or damaged"
        raise Missing(f"no model '{path}': transformers cannot load it: {said.rstrip('.')}; {cure}") from None


@contextmanager
def no_progress_bars(transformers: Any) -> Iterator[None]:
    """Run the block without progress bars."""
    shown = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers.utils.logging.enable_progress_bar()


@contextmanager
def _no_gguf_progress_bar() -> Iterator[None]:
    """Run the block without the progress bar of transformers' GGUF reader, which ignores the library's own switch."""
    reader = vars(importlib.import_module("transformers.modeling_gguf_pytorch_utils"))
    shown = reader.get("tqdm")
    if shown is None:  # later versions may respect the switch
        yield
        return
    reader["tqdm"] = functools.partial(shown, disable=True)
    try:
        yield
    finally:
        reader["tqdm"] = shown


def mean_pool(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Average hidden states `[P, L, D]` where the mask `[P, L]` is 1, and scale to length 1: `[P, D]`."""
    kept = hidden.float() * mask[..., None]
    return torch.nn.functional.normalize(kept.sum(1) / mask.sum(1, keepdim=True), dim=-1)


def has_full_attention(model: Any) -> bool:
    """Return whether every layer attends to all earlier tokens, so that one mask serves all layers."""
    config = vars(model.config.get_text_config())
    layer_types = set(config.get("layer_types") or ["full_attention"])
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    return layer_types == {"full_attention"} and (not window or bool(config.get("layer_types")))


def resolve_device(name: str) -> torch.device:
    """Return the device of a setting; `auto` is cuda if available."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise Missing(f"lm.local.device={name}: PyTorch finds no CUDA device; set lm.local.device=auto or cpu")
    return torch.device(name)


def resolve_dtype(name: DataType, device: torch.device) -> torch.dtype:
    """Return the precision of a setting; `auto` is float32 on a CPU and bfloat16 elsewhere."""
    automatic = "float32" if device.type == "cpu" else "bfloat16"  # bfloat16 is slow on most CPUs
    dtype: torch.dtype = getattr(torch, automatic if name == "auto" else name)
    return dtype


def _without_cost(sample: Completion) -> Completion:
    return Completion(sample.text, sample.tokens, sample.logprobs, sample.finish, 0, 0)


def weights_digest(model: Any, switches: tuple[str, ...]) -> str:
    """Return a digest of the weights and of the state of adapters."""
    digest = hashlib.blake2b(repr(switches).encode(), digest_size=16)
    for name, weight in sorted(model.state_dict().items()):
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
        digest.update(weight.detach().contiguous().cpu().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


class SetupDigest:
    """A digest of all but the weights that changes answers: config, end tokens, tokenizer, chat template."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}  # of what can be read quickly -> digest; a tokenizer takes long to read

    def digest(self, model: Any, tokenizer: Any) -> str:
        """Return the digest for the model and tokenizer as they are now."""
        config = {name: value for name, value in model.config.to_dict().items() if name not in WITHOUT_EFFECT}
        generation = vars(model).get("generation_config")
        quick = _json(
            type(model).__name__,
            config,
            None if generation is None else generation.eos_token_id,
            tokenizer.chat_template,
            tokenizer.special_tokens_map,
        )
        key = f"{id(tokenizer)} {len(tokenizer)} {quick}"
        if key not in self.known:
            whole = f"{quick} {tokenizer_json(tokenizer)}".encode()
            self.known = {key: hashlib.blake2b(whole, digest_size=16).hexdigest()}
        return self.known[key]


# entries of a config that change no answer; the identity has dtype
WITHOUT_EFFECT = ("_name_or_path", "transformers_version", "dtype", "torch_dtype")


def tokenizer_json(tokenizer: Any) -> str:
    """Return all that decides about a tokenizer's ids, as text."""
    options = {
        name: str(value) for name, value in tokenizer.init_kwargs.items() if not name.endswith(("_file", "_path"))
    }
    backend = vars(tokenizer).get("_tokenizer")  # of tokenizers written in Rust: normalisation, merges, special tokens
    pipeline = json.loads(backend.to_str()) if backend is not None else {}
    rules = {name: value for name, value in pipeline.items() if name not in ("padding", "truncation")}  # of a call
    return _json(type(tokenizer).__name__, sorted(tokenizer.get_vocab().items()), options, rules)


def _json(*values: Any) -> str:
    return json.dumps(values, sort_keys=True, default=str)
