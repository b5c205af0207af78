"""Local models, tested on a tiny random one: packing, prefix cache, batches, sampling, training."""

import dataclasses

import numpy as np
import pytest
import torch

from coterie.lm import Sampling
from coterie.lm.ask import decoding, scoring
from coterie.lm.ask.cache import Cache, CacheSettings
from coterie.lm.ask.interface import Missing, NotRecorded, Rejected
from coterie.lm.ask.local import Local, has_full_attention, resolve_device
from coterie.lm.ask.local_settings import LocalSettings
from coterie.lm.ask.packing import group_by_prefix, pack, shared_prefix_length, split_by_size
from helpers.lm import tiny, tiny_gguf, tiny_model
from helpers.needs import needs

pytestmark = needs("transformers", "lm")

START = "A long beginning that every prompt of the batch has in common. "
PROMPTS = [START + end for end in ("go:", "the fox is two steps above you, go:", "x", "wolves are near. go:")]
CHOICES = [[" up", " down", " stay where you are"], [" left"], [" a", " b", " c", " dd"], [" up", " up there"]]


@pytest.fixture(scope="module")
def lm():
    return tiny()


def scores_by_row(lm, prompts=PROMPTS, choices=CHOICES):
    """Scores with one forward pass per choice."""
    tokens = [lm.tokenize(prompt, 0) for prompt in prompts]
    rows = [[lm.tokenize_choice(choice) for choice in mine] for mine in choices]
    found = scoring.score_rows(lm.model, tokens, rows)
    return np.array([mine + [-np.inf] * (max(map(len, found)) - len(mine)) for mine in found])


# Packing ----------------------------------------------------------------------------------------------


def test_a_packed_row_by_hand():
    """Prompts 1 2 3 and 1 2 4 5 with choices (6 7) (8) and (9): attention mask, and positions of the logits."""
    packed = pack([[1, 2, 3], [1, 2, 4, 5]], [[[6, 7], [8]], [[9]]], start=2, cached=False)
    assert packed.tokens.tolist() == [1, 2, 3, 6, 4, 5]
    assert packed.positions.tolist() == [0, 1, 2, 3, 2, 3]
    assert packed.mask.astype(int).tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 0, 0, 1, 0],
        [1, 1, 0, 0, 1, 1],
    ]
    assert packed.keep[packed.place].tolist() == [2, 3, 2, 5]
    assert packed.target.tolist() == [6, 7, 8, 9]
    after = pack([[1, 2, 3], [1, 2, 4, 5]], [[[6, 7], [8]], [[9]]], start=2, cached=True)
    assert after.tokens.tolist() == [3, 6, 4, 5]
    np.testing.assert_array_equal(after.mask, packed.mask[2:])


def test_shared_prefix_length():
    assert shared_prefix_length([[1, 2, 3], [1, 2], [1, 2, 9]]) == 2
    assert shared_prefix_length([[5], [6]]) == 0
    assert shared_prefix_length([[1, 2]]) == 2


def test_group_by_prefix_by_hand():
    one, other = list(range(40)), list(range(50, 90))
    rows = [[*one, 1], [*other, 1], [*one, 2, 2], [7, 8], [*other, 3], [9], [*range(100, 250)]]
    assert sorted(group_by_prefix(rows)) == [[0, 2], [1, 4], [3, 5], [6]]
    common = [3] * 30  # as a system prompt would be
    rows = [common + row for row in ([*one, 1], [*other, 1], [*one, 2], [*other, 2])]
    assert sorted(group_by_prefix(rows)) == [[0, 2], [1, 3]]
    assert group_by_prefix([[1, 2, 3], [1, 2, 4], [1, 2]]) == [[0, 1, 2]]
    assert group_by_prefix([[5, 6], [5, 6]]) == [[0, 1]]
    assert group_by_prefix([]) == []


def test_split_by_size_covers_every_prompt_once():
    prompts, choices = [[0] * size for size in (5, 9, 3, 30, 2)], [[[1, 1]]] * 5
    ranges = split_by_size(prompts, choices, 2, 12)
    assert ranges == [(0, 2), (2, 3), (3, 4), (4, 5)]


# Scores -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix_cache_size", [0, 4])
@pytest.mark.parametrize("max_batch_tokens", [1, 40, 4096])
def test_packed_scores_equal_row_scores(prefix_cache_size, max_batch_tokens):
    lm = tiny(prefix_cache_size=prefix_cache_size, max_batch_tokens=max_batch_tokens)
    expected = scores_by_row(lm)
    for _ in range(2):  # the second time the prefix is cached
        np.testing.assert_allclose(lm.score(PROMPTS, CHOICES), expected, atol=1e-4)
    assert lm.prefix_cache.hits == (1 if prefix_cache_size else 0)
    sizes = lm.scores(PROMPTS, CHOICES).tokens
    assert sizes.tolist() == [[3, 5, 19, 0], [5, 0, 0, 0], [2, 2, 2, 3], [3, 9, 0, 0]]
    np.testing.assert_allclose(lm.score(PROMPTS, CHOICES, "mean")[0, :3], expected[0, :3] / sizes[0, :3], atol=1e-4)


def test_scores_do_not_depend_on_the_batch(lm):
    together = lm.score(PROMPTS, CHOICES)
    for number, (prompt, mine) in enumerate(zip(PROMPTS, CHOICES)):
        alone = lm.score([prompt], [mine])
        np.testing.assert_allclose(alone[0], together[number, : len(mine)], atol=1e-4)
    unlike = lm.score(["completely different", *PROMPTS], [[" x"], *CHOICES])
    np.testing.assert_allclose(unlike[1:], together, atol=1e-4)


def test_a_choice_is_a_chain_of_conditional_probabilities(lm):
    """Summed over all bytes, next-token probabilities come to 1; a longer choice is the product of its steps."""
    steps = lm.score(["ab", "abc"], [["c", "cd"], ["d", "e"]])
    assert steps[0, 1] == pytest.approx(steps[0, 0] + steps[1, 0], abs=1e-4)


def test_single_prompts_read_the_shared_prefix_once(lm):
    lm = tiny()
    expected = scores_by_row(lm)
    for number, (prompt, mine) in enumerate(zip(PROMPTS, CHOICES)):
        np.testing.assert_allclose(lm.score([prompt], [mine])[0], expected[number, : len(mine)], atol=1e-4)
    assert (lm.prefix_cache.hits, lm.prefix_cache.misses) == (3, 1)


def test_two_prefixes_in_one_batch_are_both_cached():
    lm = tiny()
    prompts = [
        ("Hunters begin like this. " * 2 if i % 2 else "Farmers begin like that. " * 2) + str(i) for i in range(6)
    ]
    choices = [[" up", " down"]] * 6
    for _ in range(2):
        np.testing.assert_allclose(lm.score(prompts, choices), scores_by_row(lm, prompts, choices), atol=1e-4)
    assert (lm.prefix_cache.hits, lm.prefix_cache.misses) == (2, 2)


def test_models_with_windows_are_scored_row_by_row():
    model, tokenizer = tiny_model()
    model.config.sliding_window = 8
    assert not has_full_attention(model)
    lm = Local(model, tokenizer, LocalSettings(device="cpu", batch_size=3))
    np.testing.assert_allclose(lm.score(PROMPTS, CHOICES), scores_by_row(lm), atol=1e-4)


# Completions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_greedy_completions_are_those_of_generate(lm, batch_size):
    ours = Local(lm.model, lm.tokenizer, LocalSettings(device="cpu", batch_size=batch_size))
    found = ours.complete([*PROMPTS, "short"], sampling=Sampling(max_tokens=12))
    for prompt, (sample,) in zip([*PROMPTS, "short"], found):
        ids = torch.tensor([ours.tokenize(prompt, 0)])
        reference = lm.model.generate(ids, max_new_tokens=12, do_sample=False)[0, ids.shape[1] :]
        assert list(sample.tokens) == reference.tolist()
        logprobs = scoring.score_rows(lm.model, ids.tolist(), [[list(sample.tokens)]])[0][0]
        assert sum(sample.logprobs) == pytest.approx(logprobs, abs=1e-3)


def test_a_sample_does_not_depend_on_the_batch(lm):
    warm = Sampling(max_tokens=8, temperature=0.8, top_p=0.9, top_k=50, seed=3)
    (four,) = lm.complete([PROMPTS[0]], 4, warm)
    assert len({sample.tokens for sample in four}) == 4
    in_batch = lm.complete([*PROMPTS[1:], PROMPTS[0]], 2, warm, first=1)[-1]
    assert [sample.tokens for sample in in_batch] == [sample.tokens for sample in four[1:3]]
    others = lm.complete([PROMPTS[0]], 1, Sampling(max_tokens=8, temperature=0.8, seed=4))
    assert others[0][0].tokens != four[0].tokens
    assert [sample.prompt_tokens for sample in four] == [len(PROMPTS[0]), 0, 0, 0]


def test_stop_strings_and_end_tokens(lm):
    (whole,) = lm.complete([PROMPTS[0]], sampling=Sampling(max_tokens=30))[0]
    assert whole.finish == "length"
    word = whole.text[5:7]
    (short,) = lm.complete([PROMPTS[0]], sampling=Sampling(max_tokens=30, stop=(word, "never")))[0]
    assert short.text == whole.text[: whole.text.index(word)]
    assert short.finish == "stop"
    assert short.tokens == whole.tokens[: len(short.tokens)]
    ends = Local(*tiny_model())
    ends.model.generation_config.eos_token_id = whole.tokens[3]
    (ended,) = ends.complete([PROMPTS[0]], sampling=Sampling(max_tokens=30))[0]
    assert (ended.finish, ended.tokens) == ("stop", whole.tokens[: whole.tokens.index(whole.tokens[3]) + 1])


def test_sampling_follows_the_distribution():
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]])).repeat(2000, 1)
    uniform = torch.arange(2000) / 2000

    def shares(**words):
        chosen, _ = decoding.sample_tokens(logits, uniform, Sampling(**words))
        return (torch.bincount(chosen, minlength=4) / 2000).tolist()

    np.testing.assert_allclose(shares(temperature=1.0), [0.5, 0.3, 0.15, 0.05], atol=2e-3)
    np.testing.assert_allclose(shares(temperature=1.0, top_k=2), [0.625, 0.375, 0, 0], atol=2e-3)
    np.testing.assert_allclose(shares(temperature=1.0, top_p=0.6), [0.625, 0.375, 0, 0], atol=2e-3)
    squares = np.array([0.25, 0.09, 0.0225, 0.0025])
    np.testing.assert_allclose(shares(temperature=0.5), squares / squares.sum(), atol=2e-3)
    assert shares(temperature=0.0) == [1, 0, 0, 0]


# The rest ---------------------------------------------------------------------------------------------


def test_padding_is_not_averaged(lm):
    together = lm.embed(PROMPTS)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)
    for prompt, row in zip(PROMPTS, together):
        np.testing.assert_allclose(lm.embed([prompt])[0], row, atol=1e-5)


def test_messages_go_through_the_template(lm):
    talk = [{"role": "user", "content": "hi"}]
    assert lm.apply_chat_template(talk) == "user: hi\n"
    np.testing.assert_array_equal(lm.score([talk], [[" x"]]), lm.score(["user: hi\n"], [[" x"]]))


def test_long_prompts_and_missing_files_are_refused(lm):
    with pytest.raises(Rejected, match=r"500 tokens and 20 more.*512"):
        lm.complete(["x" * 500], sampling=Sampling(max_tokens=20))
    for name in ("no/such/model", "./model", "/models/none", "a model"):  # no names of the hub: no request is sent
        with pytest.raises(Missing, match=f"no model '{name}': there is no such directory"):
            Local.open(name)
    with pytest.raises(Missing, match="no file"):
        Local.open("no/such/model.gguf")


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "tiny.gguf"])
def test_damaged_files_are_named_with_a_cure(tmp_path, name):
    whole = tiny_gguf(tmp_path / "tiny.gguf")
    for part in tiny_model():
        part.save_pretrained(tmp_path)
    damaged = tmp_path / name
    damaged.write_bytes(damaged.read_bytes()[: damaged.stat().st_size // 2])
    source = str(whole if name == "tiny.gguf" else tmp_path)
    with pytest.raises(Missing, match="fetch it again") as caught:
        Local.open(source, LocalSettings(device="cpu"))
    assert source in str(caught.value)
    assert "\n" not in str(caught.value)


def test_gradients_of_choices():
    lm = tiny()
    found = lm.choice_logprobs(PROMPTS, CHOICES)
    np.testing.assert_allclose(found.detach().numpy(), scores_by_row(lm), atol=1e-4)
    found[0, 2].backward()
    weight = lm.model.model.layers[0].mlp.up_proj.weight
    packed = weight.grad.clone()
    lm.model.zero_grad()
    whole = [*lm.tokenize(PROMPTS[0], 0), *lm.tokenize_choice(CHOICES[0][2])]
    scoring.row_logprobs(lm.model, [whole], [19]).sum().backward()
    torch.testing.assert_close(packed, weight.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", [{}, {"fused": True}, {"foreach": True}])
def test_training_changes_the_identity_and_drops_cached_prefixes(kind):
    lm = tiny()
    before, same = lm.identity, tiny().identity
    assert before == same  # the weights count, not where they came from
    lm.score(PROMPTS, CHOICES)
    optimizer = torch.optim.Adam(lm.model.parameters(), 1e-2, **kind)
    lm.choice_logprobs(PROMPTS, CHOICES)[:, 0].sum().neg().backward()
    optimizer.step()
    assert lm.identity != before
    np.testing.assert_allclose(lm.score(PROMPTS, CHOICES), scores_by_row(lm), atol=1e-4)
    assert lm.score(PROMPTS, CHOICES)[0, 0] > tiny().score(PROMPTS, CHOICES)[0, 0]


def other_template(model, tokenizer):
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] + '\\n' }}{% endfor %}"


def other_tokens(model, tokenizer):
    tokenizer.add_tokens(["up"])


def other_rules(model, tokenizer):
    from tokenizers import normalizers

    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()


def other_end(model, tokenizer):
    model.generation_config.eos_token_id = [256, 10]


@pytest.mark.parametrize("change", [other_template, other_tokens, other_rules, other_end])
def test_the_identity_covers_all_that_changes_answers(change):
    model, tokenizer = tiny_model()
    change(model, tokenizer)
    assert Local(model, tokenizer).identity != tiny().identity
    assert Local(model, tokenizer, source="given").identity != Local(*tiny_model(), source="given").identity


@pytest.mark.parametrize("changed", [{"rope_theta": 1e5}, {"rms_norm_eps": 1e-3}, {"max_position_embeddings": 256}])
def test_the_identity_covers_the_config(changed):
    assert Local(*tiny_model(**changed)).identity != Local(*tiny_model()).identity


@pytest.mark.parametrize("change", [other_template, other_tokens, other_end])
def test_a_change_of_a_loaded_model_changes_its_identity(change):
    lm = tiny()
    before = lm.identity
    change(lm.model, lm.tokenizer)
    assert lm.identity != before


def test_another_chat_template_replays_nothing(tmp_path):
    settings, asked = CacheSettings(str(tmp_path / "a.db")), [[{"role": "user", "content": "Is it?"}]]
    Cache(tiny(), settings).score(asked, [[" yes", " no"]])
    Cache(tiny(), dataclasses.replace(settings, mode="replay-only")).score(asked, [[" yes", " no"]])
    model, tokenizer = tiny_model()
    other_template(model, tokenizer)
    other = Cache(Local(model, tokenizer), dataclasses.replace(settings, mode="replay-only"))
    with pytest.raises(NotRecorded):
        other.score(asked, [[" yes", " no"]])


def test_sentence_encoders_have_an_identity_of_their_setup():
    from transformers import BertConfig, BertModel

    from coterie.lm.ask.sentence_encoder import SentenceEncoder

    def made(change=None, **config):
        sizes = {"vocab_size": 257, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = BertModel(BertConfig(**sizes, intermediate_size=8, **config))
        tokenizer = tiny_model()[1]
        if change:
            change(model, tokenizer)
        return SentenceEncoder(model, tokenizer, source="given").identity

    names = [made(), made(other_tokens), made(other_rules), made(layer_norm_eps=1e-3)]
    assert made() == names[0]
    assert len(set(names)) == len(names)


def test_the_identity_covers_the_scale_of_adapters():
    peft = pytest.importorskip("peft")
    names = []
    for alpha in (8, 16):
        lm = tiny()
        config = peft.LoraConfig(r=2, lora_alpha=alpha, target_modules=["q_proj"], init_lora_weights=False)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            peft.inject_adapter_in_model(config, lm.model)
        names.append(lm.identity)
    assert names[0] != names[1]


def test_clear_caches_after_writes_that_pytorch_does_not_count():
    lm = tiny()
    before = lm.identity
    lm.score(PROMPTS, CHOICES)
    lm.model.lm_head.weight.data.mul_(2)
    lm.clear_caches()
    assert lm.identity != before
    np.testing.assert_allclose(lm.score(PROMPTS, CHOICES), scores_by_row(lm), atol=1e-4)


def test_adapters_can_be_switched():
    peft = pytest.importorskip("peft")
    lm = tiny()
    plain = lm.score(PROMPTS, CHOICES)
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        lm.model = peft.get_peft_model(lm.model, config)
    adapted, identity = lm.score(PROMPTS, CHOICES), lm.identity
    assert np.abs(adapted[0, :3] - plain[0, :3]).max() > 1e-2
    with lm.model.disable_adapter():
        np.testing.assert_allclose(lm.score(PROMPTS, CHOICES), plain, atol=1e-4)
        assert lm.identity != identity
    assert lm.identity == identity


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_gives_the_same_numbers(lm):
    model, tokenizer = tiny_model()
    there = Local(model.to("cuda"), tokenizer)
    np.testing.assert_allclose(there.score(PROMPTS, CHOICES), lm.score(PROMPTS, CHOICES), atol=1e-3)
    warm = Sampling(max_tokens=8, temperature=0.8)
    assert [s.tokens for s in there.complete(PROMPTS, 2, warm)[1]] == [
        s.tokens for s in lm.complete(PROMPTS, 2, warm)[1]
    ]


def test_a_missing_gpu_is_named_by_its_setting(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(Missing, match=r"lm\.local\.device=cuda:1: PyTorch finds no CUDA device"):
        resolve_device("cuda:1")
