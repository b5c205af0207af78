"""A language model in this process, through PyTorch: any causal model directory, or a GGUF file.

Scores and completions reuse what the model has read before (prefix.py). The model is open to training:
`model`, `tokenizer` and `choice_logprobs`, which has gradients; what was read before is forgotten when
weights change, and so is the identity that the cache goes by.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coterie.lm.backends import decoding, scoring
from coterie.lm.backends.local_settings import DataType, LocalSettings
from coterie.lm.backends.prefix import Prefixes, fingerprint
from coterie.lm.interface import (
    Completion,
    LanguageModel,
    Missing,
    Prompt,
    Rejected,
    Sampling,
    Scores,
    Unsupported,
    check_choices,
    cut,
    needs,
    padded,
    stream,
)


class Local(LanguageModel):
    """A causal model and its tokenizer."""

    def __init__(self, model: Any, tokenizer: Any, settings: LocalSettings = LocalSettings(), source: str = "") -> None:
        self.settings = settings
        self.model, self.tokenizer = model, tokenizer
        self.prefixes = Prefixes(settings.prefixes)
        self.lock = threading.RLock()
        self.sources = {fingerprint(model): source} if source else {}  # state of the weights -> what they are
        tokenizer.padding_side = "left"

    @classmethod
    def open(cls, path: str | Path, settings: LocalSettings = LocalSettings(), source: str = "") -> Local:
        """A model directory, a GGUF file, or a name that transformers can fetch by itself."""
        device = device_of(settings.device)
        dtype = dtype_of(settings.dtype, device)
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
            if len(self.sources) > 8:  # states of the weights that are long gone
                self.sources = {}
            self.sources[now] = digest_of(self.model, now[1])
        return f"local {self.sources[now]} {str(self.model.dtype).removeprefix('torch.')}"

    def complete(
        self, prompts: Sequence[Prompt], n: int = 1, sampling: Sampling = Sampling(), first: int = 0
    ) -> list[list[Completion]]:
        tokens = [self.tokens_of(prompt, sampling.max_tokens) for prompt in prompts]
        drawn = 1 if sampling.temperature == 0 else n  # all greedy samples are one
        found: list[list[Completion]] = [[] for _ in prompts]
        per_pass = max(self.settings.rows // drawn, 1)
        # similar lengths side by side: padding is read, too
        order = sorted(range(len(prompts)), key=lambda i: len(tokens[i]))
        for begin in range(0, len(prompts), per_pass):
            part = order[begin : begin + per_pass]
            for low in range(0, drawn, self.settings.rows):
                samples = range(first + low, first + min(low + self.settings.rows, drawn))
                answers = self._decode([prompts[i] for i in part], [tokens[i] for i in part], samples, sampling)
                for i, mine in zip(part, answers):
                    found[i] += mine
        return [mine if drawn == n else mine + [_unread(mine[0])] * (n - 1) for mine in found]

    def scores(self, prompts: Sequence[Prompt], choices: Sequence[Sequence[str]]) -> Scores:
        check_choices(prompts, choices)
        asked = [[self.tokens_of_choice(choice) for choice in mine] for mine in choices]
        tokens = [self.tokens_of(p, max(map(len, mine))) for p, mine in zip(prompts, asked)]
        if not prompts:
            found: list[list[float]] = []
        elif attends_to_everything(self.model):
            with self._evaluating():
                limit = self.settings.tokens_per_pass
                found = scoring.score_packed(self.model, self.prefixes, tokens, asked, limit)
        else:
            with self._evaluating():
                found = scoring.score_plainly(self.model, tokens, asked, self.settings.rows)
        sizes = [[len(choice) for choice in mine] for mine in asked]
        read = [len(prompt) + sum(mine) for prompt, mine in zip(tokens, sizes)]
        return Scores(padded(found, -np.inf, np.float64), padded(sizes, 0, np.int64), np.array(read, np.int64))

    def embed(self, prompts: Sequence[Prompt]) -> np.ndarray:
        """Last hidden states, averaged over the prompt's tokens (not over padding)."""
        tokens = [self.tokens_of(prompt, 0) for prompt in prompts]
        found = np.zeros((len(prompts), self.model.config.get_text_config().hidden_size), np.float32)
        order = sorted(range(len(prompts)), key=lambda i: len(tokens[i]))
        with self._evaluating(), torch.inference_mode():
            for begin in range(0, len(order), self.settings.rows):
                part = order[begin : begin + self.settings.rows]
                found[part] = self._vectors([tokens[i] for i in part]).cpu().numpy()
        return found

    def max_prompt_tokens(self, prompt: Prompt, choices: Sequence[str] = ()) -> int:
        return len(self.tokens_of(prompt, 0)) + sum(len(self.tokens_of_choice(choice)) for choice in choices)

    # Training -----------------------------------------------------------------------------------------

    def choice_logprobs(self, prompts: Sequence[Prompt], choices: Sequence[Sequence[str]]) -> torch.Tensor:
        """[P, C] with gradients: what `score` gives, in the mode (train or eval) that the model is in."""
        check_choices(prompts, choices)
        if not attends_to_everything(self.model):
            raise Unsupported("gradients of choices need a model whose layers all have full attention")
        asked = [[self.tokens_of_choice(choice) for choice in mine] for mine in choices]
        tokens = [self.tokens_of(p, max(map(len, mine))) for p, mine in zip(prompts, asked)]
        return scoring.score_differentiably(self.model, tokens, asked)

    def vectors(self, prompts: Sequence[Prompt]) -> torch.Tensor:
        """[P, D] with gradients: what `embed` gives, in the mode that the model is in."""
        return self._vectors([self.tokens_of(prompt, 0) for prompt in prompts])

    def forget(self) -> None:
        """Drop what was read and what the weights are called; only needed after writes that PyTorch cannot see."""
        self.prefixes.kept.clear()
        self.sources.clear()

    # Tokens -------------------------------------------------------------------------------------------

    def tokens_of(self, prompt: Prompt, room: int) -> list[int]:
        """Ids of a prompt: text as it is, a conversation through the chat template; `room` more must fit."""
        if isinstance(prompt, str):
            ids: list[int] = self.tokenizer(prompt).input_ids
        else:
            ids = self.tokenizer(self.text_of(prompt), add_special_tokens=False).input_ids
        ids = ids or [self.tokenizer.bos_token_id or self.tokenizer.eos_token_id]
        most = vars(self.model.config.get_text_config()).get("max_position_embeddings")
        if most and len(ids) + room > most:
            raise Rejected(f"a prompt of {len(ids)} tokens and {room} more do not fit into the model's {most}")
        return ids

    def text_of(self, prompt: Sequence[Any]) -> str:
        """A conversation through the model's template; a last message of the assistant's is gone on with."""
        if not self.tokenizer.chat_template:
            raise Unsupported("this model has no chat template: give text instead of messages")
        unfinished = prompt[-1]["role"] == "assistant"
        text: str = self.tokenizer.apply_chat_template(
            [dict(message) for message in prompt],
            tokenize=False,
            add_generation_prompt=not unfinished,
            continue_final_message=unfinished,
        )
        return text

    def tokens_of_choice(self, choice: str) -> list[int]:
        """Ids of a choice, tokenised on its own: where a prompt ends and a choice begins is never blurred."""
        ids: list[int] = self.tokenizer(choice, add_special_tokens=False).input_ids
        if not ids:
            raise Rejected(f"the choice {choice!r} has no tokens in this model")
        return ids

    # Inside -------------------------------------------------------------------------------------------

    def _decode(
        self, prompts: list[Prompt], tokens: list[list[int]], samples: range, sampling: Sampling
    ) -> list[list[Completion]]:
        draws = np.zeros((len(prompts) * len(samples), sampling.max_tokens))
        if sampling.temperature:
            streams = [stream(sampling, prompt, sample) for prompt in prompts for sample in samples]
            draws = np.array([one.random(sampling.max_tokens) for one in streams])
        window = 4 * max(map(len, sampling.stop), default=0) + 4  # no stop word has more tokens than bytes

        def stopped(generated: Sequence[int]) -> bool:
            return cut(self._text(generated[-window:]), sampling.stop)[1]

        ends = decoding.Ends(self._ends(), stopped)
        with self._evaluating():
            rows = decoding.decode(self.model, self.prefixes, tokens, draws, sampling, ends)
        found: list[list[Completion]] = []
        for number, prompt in enumerate(tokens):
            mine = rows[number * len(samples) : (number + 1) * len(samples)]
            found.append([self._completion(row, sampling, len(prompt) * (i == 0)) for i, row in enumerate(mine)])
        return found

    def _completion(self, row: decoding.Row, sampling: Sampling, read: int) -> Completion:
        shown = row.tokens[:-1] if row.tokens[-1] in self._ends() else row.tokens
        text, _ = cut(self._text(shown), sampling.stop)
        return Completion(text, tuple(row.tokens), tuple(row.logprobs), row.finish, read, len(row.tokens))

    def _text(self, tokens: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(tokens, clean_up_tokenization_spaces=False)
        return text

    def _ends(self) -> frozenset[int]:
        named = self.model.generation_config.eos_token_id
        listed = named if isinstance(named, list) else [named]
        return frozenset(token for token in (*listed, self.tokenizer.eos_token_id) if token is not None)

    def _vectors(self, tokens: list[list[int]]) -> torch.Tensor:
        width = max(map(len, tokens))
        ids = torch.tensor([[0] * (width - len(one)) + one for one in tokens], device=self.model.device)
        mask = torch.tensor([[0] * (width - len(one)) + [1] * len(one) for one in tokens], device=self.model.device)
        places = (mask.cumsum(-1) - 1).clamp(min=0)
        output = self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=places,
            output_hidden_states=True,
            logits_to_keep=1,
            use_cache=False,
        )
        return mean_over_tokens(output.hidden_states[-1], mask)

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """One call at a time, without dropout."""
        with self.lock:
            training = self.model.training
            self.model.eval()
            try:
                yield
            finally:
                self.model.train(training)


# Loading ----------------------------------------------------------------------------------------------


def read_gguf(path: Path) -> tuple[Any, Any]:
    """Model (float32) and tokenizer from one GGUF file."""
    if not path.is_file():
        raise Missing(f"there is no file '{path}'")
    transformers = needs("transformers", "lm")
    needs("gguf", "lm"), needs("accelerate", "lm")
    with quietly(transformers), _quiet_gguf():
        model = transformers.AutoModelForCausalLM.from_pretrained(
            str(path.parent), gguf_file=path.name, dtype=torch.float32
        )
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    model.hf_quantizer.remove_quantization_config(model)  # or it can be neither trained nor saved
    return model, tokenizer


def check_source(name: str, what: str = "model") -> None:
    """Refuse what is neither a GGUF file, a directory with a config, nor a model of the hub's; weights are not read."""
    if name.endswith(".gguf"):
        if not Path(name).is_file():
            raise Missing(f"there is no file '{name}'")
        return
    if Path(name).is_dir():
        if not Path(name, "config.json").is_file():
            raise Missing(f"'{name}' is no {what}'s directory: it has no config.json")
        return
    transformers, hub = needs("transformers", "lm"), needs("huggingface_hub", "lm")
    try:
        with quietly(transformers):
            hub.snapshot_download(name, allow_patterns="config.json")  # of a model that is here already: no more
        return
    except hub.errors.RepositoryNotFoundError:
        why = "the hub knows none of that name"
    except (OSError, ValueError) as error:  # no connection, or nothing that may be a name
        why = str(error).strip().splitlines()[0].removeprefix("Got: ")
    raise Missing(f"'{name}' is no {what}'s directory, nor one that can be fetched: {why}")


def _read_folder(path: str, dtype: torch.dtype) -> tuple[Any, Any]:
    check_source(path)
    transformers = needs("transformers", "lm")
    try:
        with quietly(transformers):
            model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
            return model, transformers.AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise Missing(f"'{path}' is no model's directory, nor one that can be fetched: {first}") from None


@contextmanager
def quietly(transformers: Any) -> Iterator[None]:
    """Without progress bars."""
    shown = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers.utils.logging.enable_progress_bar()


@contextmanager
def _quiet_gguf() -> Iterator[None]:
    """Without the bar of transformers' GGUF reader, which does not heed its own switch."""
    reader = vars(importlib.import_module("transformers.modeling_gguf_pytorch_utils"))
    shown = reader.get("tqdm")
    if shown is None:  # a later version's may heed it
        yield
        return
    reader["tqdm"] = functools.partial(shown, disable=True)
    try:
        yield
    finally:
        reader["tqdm"] = shown


def mean_over_tokens(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """[P, D] of length 1: hidden states `[P, L, D]` averaged where the mask `[P, L]` says there is a token."""
    seen = hidden.float() * mask[..., None]
    return torch.nn.functional.normalize(seen.sum(1) / mask.sum(1, keepdim=True), dim=-1)


def attends_to_everything(model: Any) -> bool:
    """Whether every layer attends to all earlier tokens, so that one mask describes who sees whom."""
    config = vars(model.config.get_text_config())
    agent_types = set(config.get("layer_types") or ["full_attention"])
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    return agent_types == {"full_attention"} and (not window or bool(config.get("layer_types")))


def device_of(name: str) -> torch.device:
    """The device that a setting names."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise Missing(f"device '{name}': PyTorch finds no CUDA device here; use cpu or auto")
    return torch.device(name)


def dtype_of(name: DataType, device: torch.device) -> torch.dtype:
    """The precision of weights that a setting names."""
    automatic = "float32" if device.type == "cpu" else "bfloat16"  # bfloat16 is slow on most CPUs
    dtype: torch.dtype = getattr(torch, automatic if name == "auto" else name)
    return dtype


def _unread(sample: Completion) -> Completion:
    return Completion(sample.text, sample.tokens, sample.logprobs, sample.finish, 0, 0)


def digest_of(model: Any, switches: tuple[str, ...]) -> str:
    """Of the weights themselves, and of how adapters are switched."""
    digest = hashlib.blake2b(repr(switches).encode(), digest_size=16)
    for name, weight in sorted(model.state_dict().items()):
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
        digest.update(weight.detach().contiguous().cpu().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
