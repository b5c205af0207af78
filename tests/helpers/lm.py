"""Language models for tests: one that records its requests, a tiny random one, the embedded one."""

import functools
import threading

import numpy as np
import pytest

from coterie.lm.ask.interface import LanguageModel, Missing
from coterie.lm.ask.scripted import Scripted

TABLE = {"sky?": {"blue": 0.75, "grey": 0.25}, "grass?": {"green": 1.0}}
GRID = "Answer with one word.\n" + "".join(
    f"The {thing} is {far} steps {where} you. Go: {go}\n"
    for thing, far, where, go in (
        ("apple", 2, "above", "up"),
        ("pear", 3, "below", "down"),
        ("plum", 1, "left of", "left"),
        ("fig", 4, "right of", "right"),
    )
)


class Counting(LanguageModel):
    """A scripted model that records every request and raises the given failures first."""

    def __init__(self, inner=None, failures=()):
        self.inner = inner or Scripted.from_table(TABLE)
        self.failures = list(failures)
        self.asked = []
        self.name = self.inner.identity
        self.lock = threading.Lock()

    @property
    def identity(self):
        return self.name

    def _record(self, *request):
        with self.lock:
            self.asked.append(request)
            if self.failures:
                failure = self.failures.pop(0)
                if failure is not None:
                    raise failure

    def complete(self, prompts, n=1, sampling=None, first=0):
        self._record("complete", list(prompts), n, first)
        return self.inner.complete(prompts, n, sampling, first)

    def scores(self, prompts, choices):
        self._record("score", list(prompts), [list(options) for options in choices])
        return self.inner.scores(prompts, choices)

    def embed(self, prompts):
        self._record("embed", list(prompts))
        return self.inner.embed(prompts)

    def max_prompt_tokens(self, prompt, choices=()):
        return self.inner.max_prompt_tokens(prompt, choices)


def tiny_model(seed=0, **changes):
    """A random two-layer Llama with a byte tokenizer; `changes` override its config."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers", reason="needs coterie[lm]")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(letters)} | {"<end>": 256}
    byte_tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    byte_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    byte_tokenizer.decoder = decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=byte_tokenizer, eos_token="<end>", pad_token="<end>"
    )
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"
    config = transformers.LlamaConfig(
        **{
            **{"vocab_size": 257, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
            **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512},
            **{"eos_token_id": 256, "pad_token_id": 256, "bos_token_id": None, "initializer_range": 0.4},
        }
        | changes
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = transformers.LlamaForCausalLM(config)
    return model.eval(), tokenizer


def tiny(seed=0, **settings):
    from coterie.lm.ask.local import Local
    from coterie.lm.ask.local_settings import LocalSettings

    return Local(*tiny_model(seed), LocalSettings(device="cpu", **settings))


@functools.cache
def _embedded(kind):
    from coterie.lm.ask import embedded

    try:
        return embedded.gguf_file() if kind == "gguf" else embedded.folder()
    except Missing as error:
        return error


def embedded_file(kind):
    """The embedded model's file ('gguf') or directory ('folder'); skips where it cannot be fetched."""
    pytest.importorskip("transformers", reason="needs coterie[lm]")
    found = _embedded(kind)
    if isinstance(found, Missing):
        if "could not be fetched" not in str(found):
            raise found
        pytest.skip(f"offline: {found}")
    return found


def tiny_gguf(path, seed=0):
    """Write a random float32 Llama as a GGUF file, which PyTorch and llama.cpp can both read."""
    gguf = pytest.importorskip("gguf", reason="needs coterie[lm]")
    # only bytes below 128, as byte-level tokenizers write them: with others a random text would not be UTF-8
    letters = [chr(byte if 32 < byte < 127 else 256 + min(byte, 33)) for byte in range(128)]
    random = np.random.default_rng(seed)
    width, inner, heads, vocabulary = 64, 96, 2, 130

    def weights(*shape):
        return (random.normal(size=shape) * 0.3).astype(np.float32)

    writer = gguf.GGUFWriter(path, "llama")
    for add, value in (
        *((writer.add_context_length, 512), (writer.add_embedding_length, width), (writer.add_block_count, 2)),
        *((writer.add_feed_forward_length, inner), (writer.add_head_count, heads), (writer.add_head_count_kv, 1)),
        *((writer.add_layer_norm_rms_eps, 1e-5), (writer.add_rope_dimension_count, width // heads)),
        *((writer.add_rope_freq_base, 10000.0), (writer.add_vocab_size, vocabulary)),
        *((writer.add_tokenizer_model, "gpt2"), (writer.add_tokenizer_pre, "default")),
        (writer.add_token_list, [*letters, "Ġa", "<end>"]),
        *((writer.add_token_types, [1] * 129 + [3]), (writer.add_token_merges, ["Ġ a"])),
        *((writer.add_eos_token_id, 129), (writer.add_bos_token_id, 129), (writer.add_add_bos_token, False)),
    ):
        add(value)
    writer.add_tensor("token_embd.weight", weights(vocabulary, width))
    writer.add_tensor("output.weight", weights(vocabulary, width))
    writer.add_tensor("output_norm.weight", np.ones(width, np.float32))
    for layer in range(2):
        for name, shape in (
            *(("attn_norm", (width,)), ("attn_q", (width, width)), ("attn_k", (width // 2, width))),
            *(("attn_v", (width // 2, width)), ("attn_output", (width, width)), ("ffn_norm", (width,))),
            *(("ffn_gate", (inner, width)), ("ffn_up", (inner, width)), ("ffn_down", (width, inner))),
        ):
            writer.add_tensor(f"blk.{layer}.{name}.weight", 1 + weights(*shape) if "norm" in name else weights(*shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
