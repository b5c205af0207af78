"""Budgets that hold across crashes, retries, batches that fail in part."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from coterie.lm import Sampling
from coterie.lm.interface import BudgetDenied, Rejected, RetriesExhausted, Unavailable
from coterie.lm.wrappers.budget import Budget, BudgetSettings
from coterie.lm.wrappers.concurrency import Spread
from coterie.lm.wrappers.retry import Retry, RetrySettings, wait_before
from coterie.lm.wrappers.sqlite import Store
from coterie.lm.wrappers.usage import Ledger, Metered
from helpers.lm import Counting
from helpers.run import environment

TEN = Sampling(max_tokens=10)


def test_the_worst_case_is_reserved_and_the_real_one_settled():
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
def test_what_may_not_fit_is_refused_and_not_asked(limit, ask):
    inner, ledger = Counting(), Ledger()
    with pytest.raises(BudgetDenied, match="left"):
        ask(Budget(inner, BudgetSettings(**limit), ledger=ledger))
    assert inner.asked == []
    assert ledger.metrics()["lm/refusals"] == 1


def test_what_just_fits_is_asked():
    lm = Budget(Counting(), BudgetSettings(calls=1, tokens=14))
    assert lm.complete(["sky?"], 1, TEN)[0][0].text == "blue"
    with pytest.raises(BudgetDenied):
        lm.complete(["sky?"], 1, TEN)


def test_a_failed_call_costs_nothing_unless_it_may_have_been_worked_for():
    lm = Budget(Counting(failures=[Rejected("no")]), BudgetSettings())
    with pytest.raises(Rejected):
        lm.complete(["sky?"], 1, TEN)
    assert lm.state()["calls"] == 0
    retry = Retry(Counting(failures=[Unavailable("lost", billed=True)] * 3), RetrySettings(3), sleep=lambda s: None)
    lm = Budget(retry, BudgetSettings(), attempts=3, lost=retry.lost)
    with pytest.raises(RetriesExhausted):
        lm.complete(["sky?"], 1, TEN)
    assert lm.state() == {"calls": 3, "tokens": 42, "money": 0.0}


def test_what_ends_a_call_otherwise_leaves_its_worst_case():
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
from coterie.lm.wrappers.budget import Budget, BudgetSettings
from coterie.lm.interface import Sampling
from coterie.lm.backends.scripted import Scripted
from coterie.lm.wrappers.sqlite import Store
asked = []
def answer(prompt, random):
    asked.append(prompt)
    if len(asked) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return "ok"
lm = Budget(Scripted(answer), BudgetSettings(), Store(sys.argv[1]))
for i in range(5):
    lm.complete(["12345678"], 1, Sampling(max_tokens=10))
"""


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_a_kill_in_the_middle_of_a_call_bills_its_worst_case_once(tmp_path):
    path = tmp_path / "journal.db"
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], env=environment())
    assert done.returncode == -signal.SIGKILL
    lm = Budget(Counting(), BudgetSettings(), Store(path))
    assert lm.state() == {"calls": 3, "tokens": 10 + 10 + 18, "money": 0.0}
    # a checkpoint from before the last calls takes nothing back, nor does it add
    lm.load({"calls": 1, "tokens": 10, "money": 0.0})
    assert lm.state()["tokens"] == 38
    # without its store, a checkpoint is what is known
    other = Budget(Counting(), BudgetSettings(), Store(tmp_path / "other.db"))
    other.load(lm.state())
    assert other.state() == lm.state()


RESUMED = """
import os, signal, sys
from coterie.lm import LMSettings
from coterie.lm.wrappers.budget import BudgetSettings
from coterie.lm.wrappers.cache import CacheSettings
from coterie.lm.load import surround
from coterie.lm.backends.scripted import Scripted
asked = []
def answer(prompt, random):
    asked.append(prompt)
    if prompt == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)
    return "ok"
lm = surround(Scripted(answer), LMSettings(cache=CacheSettings(sys.argv[1]), budget=BudgetSettings()))
for i in range(5):
    lm.complete([f"question {i}"])
print(asked, lm.state()["budget"]["calls"])
"""


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_a_resumed_run_asks_for_nothing_that_it_was_told(tmp_path):
    command = [sys.executable, "-c", RESUMED, str(tmp_path / "answers.db")]
    assert subprocess.run([*command, "question 2"], env=environment()).returncode == -signal.SIGKILL
    done = subprocess.run([*command, "none"], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['question 2', 'question 3', 'question 4'] 6"  # the killed call counts


def test_an_account_is_shared_through_the_store(tmp_path):
    first = Budget(Counting(), BudgetSettings(calls=3), Store(tmp_path / "j.db"))
    second = Budget(Counting(), BudgetSettings(calls=3), Store(tmp_path / "j.db"))
    third = Budget(Counting(), BudgetSettings(calls=3, account="mine"), Store(tmp_path / "j.db"))
    first.embed(["a", "b"])
    with pytest.raises(BudgetDenied):
        second.embed(["a", "b"])
    third.embed(["a", "b", "c"])


# Retry ------------------------------------------------------------------------------------------------


def test_waits_grow_and_honour_the_server():
    waits = []
    failures = [Unavailable("busy"), Unavailable("busy", retry_after=7.0), Unavailable("busy"), None]
    lm = Retry(Counting(failures=failures), RetrySettings(wait=1.0, jitter=0.0), sleep=waits.append)
    lm.complete(["sky?"], 1, TEN)
    assert waits == [1.0, 7.0, 4.0]
    assert lm.ledger.metrics()["lm/retries"] == 3


def test_jitter_is_the_same_for_the_same_question_and_differs_between_questions():
    settings = RetrySettings(wait=8.0, jitter=0.5, longest_wait=30.0)
    waits = [wait_before(settings, 1, f"question {i}", None) for i in range(200)]
    assert waits[0] == wait_before(settings, 1, "question 0", None)
    assert len(set(waits)) == 200
    assert 4.0 <= min(waits) < 4.5
    assert 7.5 < max(waits) <= 8.0
    assert wait_before(settings, 9, "q", None) <= 30


def test_what_no_retry_can_cure_is_not_retried():
    inner = Counting(failures=[Rejected("no")])
    with pytest.raises(Rejected):
        Retry(inner, sleep=lambda s: None).embed(["a"])
    assert len(inner.asked) == 1


# Ledger and spread ------------------------------------------------------------------------------------


def test_the_ledger_counts_what_was_asked():
    ledger = Ledger()
    lm = Metered(Counting(failures=[None, None, Rejected("no")]), ledger)
    lm.complete(["sky?", "grass?"], 2, TEN)
    lm.scores(["sky?"], [["blue", "grey"]])
    with pytest.raises(Rejected):
        lm.embed(["a"])
    assert ledger.counts["prompt_tokens"] == 10  # a failure has read nothing that is known of
    lm.embed(["sky?"])
    assert ledger.counts["prompt_tokens"] == 14
    found = ledger.metrics()
    assert found.pop("lm/seconds") > 0
    assert {name: count for name, count in found.items() if count} == {
        **{"lm/calls": 5, "lm/failures": 1, "lm/prompt_tokens": 14},
        **{"lm/completion_tokens": 18, "lm/scored_tokens": 12},
    }
    again = Ledger()
    again.load(ledger.state())
    assert again.metrics() == ledger.metrics()


def test_a_spread_batch_keeps_its_order_and_goes_on_after_a_failure():
    inner = Counting()
    lm = Spread(inner, 3)
    prompts = ["sky?", "grass?"] * 4
    assert lm.complete(prompts, 2, TEN) == inner.inner.complete(prompts, 2, TEN)
    ragged = [["blue"], ["green", "blue", "grey"]] * 4
    np.testing.assert_array_equal(lm.score(prompts, ragged), inner.inner.score(prompts, ragged))
    np.testing.assert_array_equal(lm.embed(prompts), inner.inner.embed(prompts))
    inner.failures = [Rejected("no")]
    before = len(inner.asked)
    with pytest.raises(Rejected):
        lm.complete(prompts, 1, TEN)
    assert len(inner.asked) == before + 8  # the others were asked nonetheless
    lm.close()
