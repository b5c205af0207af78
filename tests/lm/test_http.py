"""Servers: good answers, every kind of failure, keys that stay secret."""

import logging

import numpy as np
import pytest

from coterie.lm import Sampling, load
from coterie.lm.ask.budget import BudgetSettings
from coterie.lm.ask.http import HttpSettings
from coterie.lm.ask.interface import BudgetDenied, Rejected, RetriesExhausted, Unsupported
from coterie.lm.ask.retry import RetrySettings
from coterie.studies.report.lm_section import read_samples
from helpers.fault_server import FaultServer
from helpers.needs import needs

pytestmark = needs("openai", "lm")
SECRET = "sk-very-secret"
QUICK = RetrySettings(attempts=3, wait=0.001)


@pytest.fixture
def server():
    made = FaultServer()
    yield made
    made.close()


@pytest.fixture
def lm(server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    made = load(server.url, retry=QUICK, http=HttpSettings(timeout=0.3, max_concurrency=3))
    yield made
    made.close()


def test_text_and_messages_go_to_their_endpoints(server, lm):
    texts = lm.complete(["Is it?", [{"role": "user", "content": "Is it?"}]], sampling=Sampling(max_tokens=5))
    assert [mine[0].text for mine in texts] == ["yes", "yes"]
    assert texts[0][0].logprobs == (-3.0,)
    assert {path for path, *_ in server.requests} == {"/v1/completions", "/v1/chat/completions"}
    assert server.requests[0][2]["authorization"] == f"Bearer {SECRET}"


def test_texts_become_messages_for_servers_that_only_chat(server):
    lm = load(server.url, retry=QUICK, http=HttpSettings(timeout=0.3, chat=True))
    assert lm.complete(["Is it?"])[0][0].text == "yes"
    assert [path for path, *_ in server.requests] == ["/v1/chat/completions"]
    assert server.requests[0][1]["messages"] == [{"role": "user", "content": "Is it?"}]
    with pytest.raises(Unsupported, match=r"http\.chat.*method=complete"):
        lm.score(["Is it?"], [["yes", "no"]])
    lm.close()


def test_a_server_that_gives_fewer_samples_is_asked_for_the_rest(server, lm):
    (samples,) = lm.complete(["Is it?"], n=5, sampling=Sampling(temperature=1.0))
    assert len(samples) == 5
    bodies = [body for _, body, _ in server.requests]
    assert [body["n"] for body in bodies] == [5, 3, 1]
    assert len({body["seed"] for body in bodies}) == 3


@pytest.mark.parametrize("fault", [408, 429, 500, 502, 503, 504, "slow", "cut", "garbage"])
def test_temporary_faults_are_retried(server, lm, fault):
    server.faults = [fault]
    assert lm.complete(["Is it?"])[0][0].text == "yes"
    assert len(server.requests) == 2
    assert (lm.metrics()["lm/retries"], lm.metrics()["lm/failures"]) == (1, 1)


@pytest.mark.parametrize("fault", [429, 500, "slow", "cut", "garbage"])
def test_lasting_faults_exhaust_the_retries(server, lm, fault):
    server.faults = [fault] * 9
    with pytest.raises(RetriesExhausted, match="after 3 attempts"):
        lm.complete(["Is it?"])
    assert len(server.requests) == 3


@pytest.mark.parametrize("fault", [501, 505, 511])
def test_a_fault_that_will_not_pass_is_not_retried(server, lm, fault):
    server.faults = [fault] * 9
    with pytest.raises(Rejected, match=f"status {fault}"):
        lm.complete(["Is it?"])
    assert len(server.requests) == 1


def test_a_retry_after_beyond_max_wait_is_not_retried(server, lm):
    server.faults, server.retry_after = [429], "3600"
    with pytest.raises(RetriesExhausted, match=r"3600 s.*max_wait"):
        lm.complete(["Is it?"])
    assert len(server.requests) == 1


def test_a_rejection_is_final_and_the_key_stays_secret(server, lm, caplog):
    caplog.set_level(logging.DEBUG)
    server.faults = [401]
    with pytest.raises(Rejected) as caught:
        lm.complete(["Is it?"])
    assert len(server.requests) == 1
    shown = [str(caught.value), repr(caught.value), repr(lm.backend), str(vars(lm.backend)), lm.identity, caplog.text]
    assert "***" in shown[0]
    assert not any(SECRET in text for text in shown)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_an_unreachable_server_exhausts_the_retries():
    lm = load("http://127.0.0.1:9/v1", retry=QUICK, http=HttpSettings(model="any", timeout=1))
    with pytest.raises(RetriesExhausted, match="cannot reach"):
        lm.complete(["Is it?"])


def test_addresses_hold_no_secrets():
    with pytest.raises(ValueError, match="user, password"):
        load("http://me:word@127.0.0.1:9/v1")


def test_requests_run_in_parallel_up_to_the_limit(server, lm):
    server.delay = 0.05
    assert len(lm.complete([f"Is it {i}?" for i in range(9)])) == 9
    assert server.max_active == 3


def test_answers_are_cached_although_others_fail(server, tmp_path):
    lm = load(
        server.url, cache=tmp_path / "a.db", retry=RetrySettings(attempts=1), http=HttpSettings(max_concurrency=1)
    )
    server.faults = [None, 500, None]
    with pytest.raises(RetriesExhausted):
        lm.complete(["a", "b", "c"])
    assert len(lm.complete(["a", "b", "c"])) == 3
    assert [body["prompt"] for _, body, _ in server.requests] == ["a", "b", "c", "b"]
    lm.close()


def test_words_of_a_request_are_kept_once(server, tmp_path):
    """Two caches see it: one for the batch, and one that stores each answer as it arrives."""
    lm = load(server.url, cache=tmp_path / "a.db", retry=QUICK)
    lm.complete([f"Is it {number}?" for number in range(4)])
    lm.close()
    asked = [sample["prompt"] for sample in read_samples(tmp_path / "a.db")]
    assert asked == ["Is it 0?", "Is it 1?", "Is it 3?"]


def test_failed_attempts_are_billed_at_their_worst_case(server):
    limits = BudgetSettings(calls=100, tokens=10_000)
    lm = load(server.url, budget=limits, retry=QUICK, http=HttpSettings(timeout=0.3))
    server.faults = [429]  # costs nothing
    lm.complete(["Is it?"], sampling=Sampling(max_tokens=20))
    assert lm.budget.state() == {"calls": 1, "tokens": 4, "money": 0.0}
    server.faults = ["cut"]  # the server may have processed it
    lm.complete(["Is it?"], sampling=Sampling(max_tokens=20))
    assert lm.budget.state() == {"calls": 3, "tokens": 8 + 14 + 20, "money": 0.0}


def test_the_worst_case_covers_every_attempt(server):
    lm = load(server.url, budget=BudgetSettings(calls=2), retry=QUICK)
    with pytest.raises(BudgetDenied, match=r"budget.calls: 2 of 2 left, the call may need 3"):
        lm.complete(["Is it?"])
    assert server.requests == []


def test_echo_gives_exact_scores(lm):
    found = lm.scores(["one two", "three"], [[" x", " yy zzz"], [" w"]])
    np.testing.assert_allclose(found.logprobs, [[-2, -7], [-2, -np.inf]])
    assert found.tokens.tolist() == [[1, 2], [1, 0]]


def test_tokens_across_the_boundary_are_refused(lm):
    with pytest.raises(Unsupported, match="begin choices with a space"):
        lm.score(["one two"], [["x"]])


def test_servers_that_cannot_score_raise_unsupported(server, lm):
    with pytest.raises(Unsupported, match="not after messages"):
        lm.score([[{"role": "user", "content": "one"}]], [[" x"]])
    server.echo = False
    with pytest.raises(Unsupported, match="cannot score"):
        lm.score(["one"], [[" x"]])


def test_embeddings_have_length_one(lm):
    found = lm.embed(["abc", "abcd"])
    np.testing.assert_allclose(found, [[3 / 10**0.5, 1 / 10**0.5], [4 / 17**0.5, 1 / 17**0.5]], rtol=1e-6)


def test_a_failure_after_answered_requests_is_billed(server):
    limits = BudgetSettings(tokens=10_000)
    lm = load(server.url, budget=limits, retry=RetrySettings(attempts=1), http=HttpSettings(model="words"))
    server.faults = [None, 429]
    with pytest.raises(RetriesExhausted):
        lm.score(["one two"], [[" x", " y"]])
    assert lm.budget.state()["tokens"] == 2 * (15 + 2) * 2
    lm.close()


def test_the_list_of_models_is_retried(server, tmp_path):
    lm = load(server.url, cache=tmp_path / "a.db", retry=QUICK)
    server.busy_lists = 1
    assert lm.complete(["Is it?"])[0][0].text == "yes"
    assert lm.identity.endswith(" words")
    lm.close()


ODD = [  # JSON, but not what the interface promises
    {"choices": ["yes"]},
    {"choices": [{"text": "yes", "logprobs": {"content": [{"token": "yes"}]}}]},
    {"choices": [{"text": "yes", "logprobs": {"token_logprobs": ["high"]}}]},
    {"choices": [{"text": "yes"}], "usage": {"prompt_tokens": "three"}},
    {"choices": [{"text": "yes", "logprobs": ["high"]}]},
]


@pytest.mark.parametrize("answer", ODD)
def test_answers_of_another_form_are_taken_as_none(server, lm, answer):
    server.faults = [answer]
    assert lm.complete(["Is it?"])[0][0].text == "yes"  # tried again
    server.faults = [answer] * 3
    with pytest.raises(RetriesExhausted, match="not of the usual form"):
        lm.complete(["Is it?"])


def test_scores_and_embeddings_of_another_form_are_taken_as_none(server, lm):
    echoed = {"text": "Is it? yes", "logprobs": {"text_offset": [0, 6], "token_logprobs": [None, "low"]}}
    for answer in ({"choices": ["yes"]}, {"choices": [echoed]}):
        server.faults = [answer] * 3
        with pytest.raises(RetriesExhausted, match="not of the usual form"):
            lm.score(["Is it?"], [[" yes", " no"]])
    server.faults = [{"data": [{"vector": [1.0]}]}] * 3
    with pytest.raises(RetriesExhausted, match="not of the usual form"):
        lm.embed(["Is it?"])


@pytest.mark.parametrize(
    "answers",
    [
        [{"words": [1]}],
        [{"tokens": ["one"]}],
        [{"tokens": [1]}, {"tokens": [2]}, {"tokens": [3]}, {"choices": [{"logprobs": {"content": [{"id": 2}]}}]}],
        [{"tokens": [1]}, {"tokens": [2]}, {"tokens": [3]}, {"choices": [{"logprobs": "none"}]}],
    ],
)
def test_forced_tokens_of_another_form_are_taken_as_none(server, answers):
    server.owner = "llamacpp"
    lm = load(server.url, retry=RetrySettings(attempts=1), http=HttpSettings(timeout=0.3))
    server.faults = list(answers)
    with pytest.raises(RetriesExhausted, match="not of the usual form"):
        lm.score(["Is it?"], [[" yes", " no"]])
    lm.close()
