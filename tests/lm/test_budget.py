"""Budget (across crashes, retries and partly failed batches), retry, usage counting and concurrency."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from coterie.lm import Sampling
from coterie.lm.ask.budget import Budget, BudgetSettings
from coterie.lm.ask.concurrency import Concurrent
from coterie.lm.ask.interface import BudgetDenied, BudgetExceeded, Rejected, RetriesExhausted, Unavailable
from coterie.lm.ask.retry import Retry, RetrySettings, wait_before
from coterie.lm.ask.sqlite import SqliteStore
from coterie.lm.ask.usage import UsageCounter, UsageTracking
from helpers.lm import Counting
from helpers.run import environment

TEN = Sampling(max_tokens=10)


def test_the_worst_case_is_reserved_and_the_actual_cost_settled():
    seen = []
    inner = Counting()
    lm = Budget(inner, BudgetSettings(tokens=100, prompt_price=1e6, completion_price=2e6))
    ask = inner.complete
    inner.complete = lambda *words: (seen.append(lm.journal.spent()), ask(*words))[1]
    lm.complete(["sky?", "grass?"], 1, TEN)  # 4 + 6 bytes read, at most 20 written; "blue", "green" were
    assert (seen[0].calls, seen[0].tokens, seen[0].money) == (2, 30, 50.0)
    assert lm.state() == {"calls": 2, "tokens": 19, "money": 28.0}


@pytest.mark.parametrize(
    ("limit", "ask"),
    [
        ({"calls": 1}, lambda lm: lm.complete(["sky?", "grass?"], 1, TEN)),
        ({"tokens": 13}, lambda lm: lm.complete(["sky?"], 1, TEN)),
        ({"money": 0.0000139, "prompt_price": 1, "completion_price": 1}, lambda lm: lm.complete(["sky?"], 1, TEN)),
        ({"tokens": 7}, lambda lm: lm.score(["sky?"], [["blue"]])),
        ({"tokens": 3}, lambda lm: lm.embed(["sky?"])),
        ({"calls": 0}, lambda lm: lm.embed(["sky?"])),
    ],
)
def test_calls_that_may_exceed_the_limit_are_denied_without_a_request(limit, ask):
    inner, usage = Counting(), UsageCounter()
    with pytest.raises(BudgetDenied, match="left"):
        ask(Budget(inner, BudgetSettings(**limit), usage=usage))
    assert inner.asked == []
    assert usage.metrics()["lm/refusals"] == 1


def test_calls_that_just_fit_are_sent():
    lm = Budget(Counting(), BudgetSettings(calls=1, tokens=14))
    assert lm.complete(["sky?"], 1, TEN)[0][0].text == "blue"
    with pytest.raises(BudgetDenied):
        lm.complete(["sky?"], 1, TEN)


def test_failed_calls_cost_nothing_unless_the_server_may_bill_them():
    lm = Budget(Counting(failures=[Rejected("no")]), BudgetSettings())
    with pytest.raises(Rejected):
        lm.complete(["sky?"], 1, TEN)
    assert lm.state()["calls"] == 0
    retry = Retry(Counting(failures=[Unavailable("lost", billed=True)] * 3), RetrySettings(3), sleep=lambda s: None)
    lm = Budget(retry, BudgetSettings(), attempts=3, billed_failures=retry.billed_failures)
    with pytest.raises(RetriesExhausted):
        lm.complete(["sky?"], 1, TEN)
    assert lm.state() == {"calls": 3, "tokens": 42, "money": 0.0}


def test_other_exceptions_leave_the_worst_case_reserved():
    lm = Budget(Counting(failures=[KeyboardInterrupt()]), BudgetSettings())
    with pytest.raises(KeyboardInterrupt):
        lm.complete(["sky?"], 1, TEN)
    assert lm.state()["tokens"] == 14
    lm = Budget(Counting(failures=[Unavailable("lost", billed=True)]), BudgetSettings())
    with pytest.raises(Unavailable):
        lm.complete(["sky?"], 1, TEN)
    assert lm.state()["tokens"] == 14


KILLED = """
import os, signal, sys
from coterie.lm.ask.budget import Budget, BudgetSettings
from coterie.lm.ask.interface import Sampling
from coterie.lm.ask.scripted import Scripted
from coterie.lm.ask.sqlite import SqliteStore
asked = []
def answer(prompt, random):
    asked.append(prompt)
    if len(asked) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return "ok"
lm = Budget(Scripted(answer), BudgetSettings(), SqliteStore(sys.argv[1]))
for i in range(5):
    lm.complete(["12345678"], 1, Sampling(max_tokens=10))
"""


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_a_kill_during_a_call_bills_its_worst_case_once(tmp_path):
    path = tmp_path / "journal.db"
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], env=environment())
    assert done.returncode == -signal.SIGKILL
    lm = Budget(Counting(), BudgetSettings(), SqliteStore(path))
    assert lm.state() == {"calls": 3, "tokens": 10 + 10 + 18, "money": 0.0}
    # loading an older checkpoint changes nothing
    lm.load({"calls": 1, "tokens": 10, "money": 0.0})
    assert lm.state()["tokens"] == 38
    # without the store, the checkpoint counts
    other = Budget(Counting(), BudgetSettings(), SqliteStore(tmp_path / "other.db"))
    other.load(lm.state())
    assert other.state() == lm.state()


RESUMED = """
import os, signal, sys
from coterie.lm import LMSettings
from coterie.lm.ask.budget import BudgetSettings
from coterie.lm.ask.cache import CacheSettings
from coterie.lm.ask.loading import wrap
from coterie.lm.ask.scripted import Scripted
asked = []
def answer(prompt, random):
    asked.append(prompt)
    if prompt == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)
    return "ok"
lm = wrap(Scripted(answer), LMSettings(cache=CacheSettings(sys.argv[1]), budget=BudgetSettings()))
for i in range(5):
    lm.complete([f"question {i}"])
print(asked, lm.state()["budget"]["calls"])
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_a_resumed_run_sends_no_answered_request_again(tmp_path):
    command = [sys.executable, "-c", RESUMED, str(tmp_path / "answers.db")]
    assert subprocess.run([*command, "question 2"], env=environment()).returncode == -signal.SIGKILL
    done = subprocess.run([*command, "none"], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['question 2', 'question 3', 'question 4'] 6"  # the killed call counts


def test_an_account_is_shared_through_the_store(tmp_path):
    first = Budget(Counting(), BudgetSettings(calls=3), SqliteStore(tmp_path / "j.db"))
    second = Budget(Counting(), BudgetSettings(calls=3), SqliteStore(tmp_path / "j.db"))
    third = Budget(Counting(), BudgetSettings(calls=3, account="mine"), SqliteStore(tmp_path / "j.db"))
    small = Budget(Counting(), BudgetSettings(calls=1, at_limit="stop"), SqliteStore(tmp_path / "j.db"))
    first.embed(["a", "b"])
    with pytest.raises(BudgetDenied, match=r"budget.calls: 1 of 3 left, the call may need 2 \(account 'default'\)"):
        second.embed(["a", "b"])
    with pytest.raises(BudgetExceeded, match=r"budget.calls: 2 of 1 spent, .* \(account 'default', which .* share\)"):
        small.embed(["a"])
    third.embed(["a", "b", "c"])


# Retry ------------------------------------------------------------------------------------------------


def test_waits_grow_and_respect_retry_after():
    waits = []
    failures = [Unavailable("busy"), Unavailable("busy", retry_after=7.0), Unavailable("busy"), None]
    lm = Retry(Counting(failures=failures), RetrySettings(wait=1.0, jitter=0.0), sleep=waits.append)
    lm.complete(["sky?"], 1, TEN)
    assert waits == [1.0, 7.0, 4.0]
    assert lm.usage.metrics()["lm/retries"] == 3


def test_jitter_depends_on_the_prompt_alone():
    settings = RetrySettings(wait=8.0, jitter=0.5, max_wait=30.0)
    waits = [wait_before(settings, 1, f"question {i}", None) for i in range(200)]
    assert waits[0] == wait_before(settings, 1, "question 0", None)
    assert len(set(waits)) == 200
    assert 4.0 <= min(waits) < 4.5
    assert 7.5 < max(waits) <= 8.0
    assert wait_before(settings, 9, "q", None) <= 30


def test_rejections_are_not_retried():
    inner = Counting(failures=[Rejected("no")])
    with pytest.raises(Rejected):
        Retry(inner, sleep=lambda s: None).embed(["a"])
    assert len(inner.asked) == 1


# Usage and concurrency ------------------------------------------------------------------------------------


def test_usage_counts_requests_and_tokens():
    usage = UsageCounter()
    lm = UsageTracking(Counting(failures=[None, None, Rejected("no")]), usage)
    lm.complete(["sky?", "grass?"], 2, TEN)
    lm.scores(["sky?"], [["blue", "grey"]])
    with pytest.raises(Rejected):
        lm.embed(["a"])
    assert usage.counts["prompt_tokens"] == 10  # the failed call reported no tokens
    lm.embed(["sky?"])
    assert usage.counts["prompt_tokens"] == 14
    found = usage.metrics()
    assert found.pop("lm/seconds") > 0
    assert {name: count for name, count in found.items() if count} == {
        **{"lm/calls": 5, "lm/failures": 1, "lm/prompt_tokens": 14},
        **{"lm/completion_tokens": 18, "lm/scored_tokens": 12},
    }
    again = UsageCounter()
    again.load(usage.state())
    assert again.metrics() == usage.metrics()


def test_concurrent_batches_keep_their_order_and_continue_after_a_failure():
    inner = Counting()
    lm = Concurrent(inner, 3)
    prompts = ["sky?", "grass?"] * 4
    assert lm.complete(prompts, 2, TEN) == inner.inner.complete(prompts, 2, TEN)
    ragged = [["blue"], ["green", "blue", "grey"]] * 4
    np.testing.assert_array_equal(lm.score(prompts, ragged), inner.inner.score(prompts, ragged))
    np.testing.assert_array_equal(lm.embed(prompts), inner.inner.embed(prompts))
    inner.failures = [Rejected("no")]
    before = len(inner.asked)
    with pytest.raises(Rejected):
        lm.complete(prompts, 1, TEN)
    assert len(inner.asked) == before + 8  # the others were sent all the same
    lm.close()
