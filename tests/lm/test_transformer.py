"""The transformer against a naive one written from the papers, its adapters, and sampling."""

import math

import numpy as np
import pytest
import torch

from coterie.lm.learn.sampling import PAD, SampleSpec, grade, sample
from coterie.lm.learn.tokenizers import CharacterTokenizer
from coterie.lm.learn.transformer import Transformer, TransformerShape

SHAPE = TransformerShape(31, layers=2, width=24, heads=4, kv_heads=2, hidden=20, context=40)


@torch.no_grad()
def naive_logits(net: Transformer, tokens: list[int]) -> torch.Tensor:
    """Logits [L, V] position by position, with loops in place of batched products."""
    s = net.shape
    x = net.embedding[tokens].double()

    def norm(v, weight):
        return v / torch.sqrt((v * v).mean() + s.epsilon) * weight.double()

    def rope(v, position):
        half, out = s.head_size // 2, v.clone()
        for i in range(half):
            angle = position * s.rope_theta ** (-2 * i / s.head_size)
            a, b, cos, sin = v[i], v[i + half], math.cos(angle), math.sin(angle)
            out[i], out[i + half] = a * cos - b * sin, b * cos + a * sin
        return out

    for layer in net.layers:
        heads = [layer.query_key_value.weight.double() @ norm(row, layer.attention_norm) for row in x]
        new = []
        for t in range(len(tokens)):
            mixed = []
            for h in range(s.heads):
                own = slice(h * s.head_size, (h + 1) * s.head_size)
                g = h // (s.heads // s.kv_heads)
                key = slice((s.heads + g) * s.head_size, (s.heads + g + 1) * s.head_size)
                value = slice((s.heads + s.kv_heads + g) * s.head_size, (s.heads + s.kv_heads + g + 1) * s.head_size)
                query = rope(heads[t][own], t)
                scores = torch.stack([query @ rope(heads[u][key], u) for u in range(t + 1)]) / s.head_size**0.5
                weights = scores.softmax(0)
                mixed.append(sum(weights[u] * heads[u][value] for u in range(t + 1)))
            new.append(x[t] + layer.output.weight.double() @ torch.cat(mixed))
        x = torch.stack(new)
        fed = []
        for row in x:
            gate, up = (layer.gate_up.weight.double() @ norm(row, layer.feed_norm)).chunk(2)
            fed.append(row + layer.down.weight.double() @ (gate * gate.sigmoid() * up))
        x = torch.stack(fed)
    return torch.stack([net.embedding.double() @ norm(row, net.norm) for row in x])


def test_logits_equal_a_naive_transformer():
    net = Transformer(SHAPE, seed=5)
    tokens = [3, 1, 4, 1, 5, 9, 2, 6]
    found = net.logits(net(torch.tensor([tokens])))[0]
    assert torch.allclose(found.double(), naive_logits(net, tokens), atol=1e-5)


def prompts_and_samples(count=3, length=6, seed=0):
    net, random = Transformer(SHAPE, seed=1), np.random.default_rng(seed)
    prompts = [random.integers(1, 31, size=n).tolist() for n in (5, 9, 1, 7)]
    spec = SampleSpec(count, length, 1.0, end=0)
    return net, prompts, sample(net, prompts, spec, random.random((4 * count, length)))


@pytest.mark.slow
def test_sampled_log_probs_are_those_of_the_whole_text():
    net, prompts, found = prompts_and_samples()
    for prompt, answers, log_probs in zip(prompts, found.tokens, found.log_probs, strict=True):
        for answer, said in zip(answers, log_probs, strict=True):
            answer = answer[answer != PAD].tolist()
            logits = naive_logits(net, prompt + answer).log_softmax(-1)
            wanted = [float(logits[len(prompt) + i - 1, token]) for i, token in enumerate(answer)]
            assert np.allclose(said[: len(answer)], wanted, atol=1e-5)
            assert (said[len(answer) :] == 0).all()


def test_grades_equal_the_sampled_log_probs_and_have_the_gradient_of_the_plain_forward_pass():
    net, prompts, found = prompts_and_samples()
    graded = grade(net, prompts, found.tokens)
    assert np.allclose(graded.log_probs.detach().numpy(), found.log_probs, atol=1e-5)
    weight = torch.randn(graded.log_probs.shape, generator=torch.Generator().manual_seed(0))
    (graded.log_probs * weight).sum().backward()
    shared = [parameter.grad.clone() for parameter in net.parameters()]
    net.zero_grad()
    for p, prompt in enumerate(prompts):  # every answer read on its own, without shared prompts
        for k, answer in enumerate(found.tokens[p]):
            kept = answer[answer != PAD].tolist()
            logits = net.logits(net(torch.tensor([prompt + kept])))[0].log_softmax(-1)
            for i, token in enumerate(kept):
                (logits[len(prompt) + i - 1, token] * weight[p, k, i]).backward(retain_graph=True)
    for mine, parameter in zip(shared, net.parameters(), strict=True):
        assert torch.allclose(mine, parameter.grad, atol=2e-4)


def test_answers_end_with_the_end_token_and_do_not_depend_on_the_other_rows():
    net, prompts, found = prompts_and_samples(count=4, length=30)
    ended = (found.tokens == 0).any(axis=-1)
    assert ended.any()
    for answer in found.tokens[ended]:
        end = int(np.flatnonzero(answer == 0)[0])
        assert (answer[end + 1 :] == PAD).all()
        assert (answer[:end] > 0).all()
    random = np.random.default_rng(0)
    [random.integers(1, 31, size=n) for n in (5, 9, 1, 7)]
    noise = random.random((16, 30))
    alone = sample(net, prompts[1:2], SampleSpec(4, 30, 1.0, end=0), noise[4:8])
    assert (alone.tokens[0] == found.tokens[1]).all()


def test_samples_have_the_frequencies_of_the_model():
    net, random = Transformer(SHAPE, seed=2), np.random.default_rng(0)
    count = 20_000
    found = sample(net, [[4, 2, 8]], SampleSpec(count, 1, 0.7, end=0), random.random((count, 1)))
    wanted = (naive_logits(net, [4, 2, 8])[-1] / 0.7).softmax(-1).detach().numpy()
    counts = np.bincount(found.tokens[0, :, 0], minlength=31)
    assert ((counts - count * wanted) ** 2 / (count * wanted)).sum() < 60  # chi-square, 30 degrees: p ≈ 0.001
    greedy = sample(net, [[4, 2, 8]], SampleSpec(1, 1, 0.0, end=0), random.random((1, 1)))
    assert greedy.tokens[0, 0, 0] == wanted.argmax()


def test_adapters_change_nothing_at_first_and_only_themselves_later():
    net = Transformer(SHAPE, seed=3)
    plain = net.logits(net(torch.tensor([[1, 2, 3]]))).detach()
    net.add_adapters(2, rank=3, alpha=6.0, seeds=[1, 2])
    assert torch.equal(net.logits(net(torch.tensor([[1, 2, 3]]), adapter=1)), plain)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    first, second = (net.adapter_parameters(number) for number in range(2))
    optimizer = torch.optim.Adam(first, lr=0.1)
    for _ in range(2):
        net.logits(net(torch.tensor([[1, 2, 3]]), adapter=0)).square().sum().backward()
        optimizer.step()
    changed = {name for name, value in net.state_dict().items() if not torch.equal(value, before[name])}
    assert changed
    assert all(".lora_" in name and name.endswith(".0") for name in changed)
    assert all(parameter.grad is None for parameter in second)
    assert torch.equal(net.logits(net(torch.tensor([[1, 2, 3]]), adapter=1)), plain)


def test_wrong_sizes_are_refused():
    with pytest.raises(ValueError, match=r"width \(30\)"):
        TransformerShape(10, width=30, heads=4)
    with pytest.raises(ValueError, match="kv_heads"):
        TransformerShape(10, heads=4, kv_heads=3)


def test_characters_survive_a_round_trip():
    tokenizer = CharacterTokenizer()
    text = "RRD, x = 3\n{}~"
    known, other, unknown = tokenizer.encode_batch([text, "ab", "é"])
    assert tokenizer.decode(known) == text
    assert tokenizer.decode([*other, tokenizer.end]) == "ab"
    assert unknown[0] not in known


@pytest.mark.lm
def test_the_embedded_model_has_the_logits_and_greedy_tokens_of_hugging_face():
    from coterie.lm.ask.loading import LMSettings, load_pretrained, shared_backend

    (net,), tokenizer = load_pretrained("embedded", 1)
    backend = shared_backend(LMSettings(name="embedded"))
    prompts = tokenizer.encode_batch(["The capital of France is", "1 + 1 =", "Once upon a time"])
    for prompt in prompts:
        theirs = backend.model(torch.tensor([prompt])).logits[0]
        assert torch.allclose(net.logits(net(torch.tensor([prompt])))[0], theirs, atol=2e-3)
        wanted = backend.model.generate(torch.tensor([prompt]), max_new_tokens=8, do_sample=False)[0, len(prompt) :]
        found = sample(net, [prompt], SampleSpec(1, 8, 0.0, tokenizer.end), np.zeros((1, 8))).tokens[0, 0]
        assert found[found != PAD].tolist()[: len(wanted)] == wanted.tolist()[: len(found)]
