"""EnvWorkers: equal answers are applied once, and the answers that were given least recently are forgotten."""

import multiprocessing
import time

import pytest

from coterie.core.types import CoterieError
from coterie.worlds.tasks import env_workers
from coterie.worlds.tasks.env_workers import EnvWorkers
from coterie.worlds.tasks.task import Outcome
from helpers.tasks import Troubled


class Counting:
    """A task whose outcome says which answer it was, and that remembers what it has applied."""

    def __init__(self):
        self.applied = []

    def apply(self, state, role, text):
        self.applied.append((state, role, text))
        return Outcome(state=f"{state}{role}{text}")


def answers(words):
    return [("s", "r", letter) for letter in words]


def states(outcomes):
    return "".join(outcome.state[-1] for outcome in outcomes)


def test_equal_answers_are_applied_once_and_outcomes_keep_their_order():
    task = Counting()
    workers = EnvWorkers(task, 0)
    assert states(workers.apply(answers("abacab"))) == "abacab"
    assert states(workers.apply(answers("dbda"))) == "dbda"
    assert task.applied == answers("abcd")
    assert workers.apply([]) == []


def test_the_answers_given_least_recently_are_forgotten(monkeypatch):
    monkeypatch.setattr(env_workers, "REMEMBERED", 3)
    task = Counting()
    workers = EnvWorkers(task, 0)
    workers.apply(answers("abc"))
    workers.apply(answers("a"))
    assert states(workers.apply(answers("d"))) == "d"
    assert [text for *_, text in workers.known] == ["c", "a", "d"]
    assert states(workers.apply(answers("ebae"))) == "ebae"  # more than are remembered
    assert "".join(text for *_, text in task.applied) == "abcdeb"
    assert [text for *_, text in workers.known] == ["e", "b", "a"]


# Child processes ------------------------------------------------------------------------------------------


@pytest.fixture
def troubled(forked):
    workers = EnvWorkers(Troubled(), 2, timeout=1.0)
    yield workers
    workers.close()
    assert multiprocessing.active_children() == []


def given(*texts):
    return [("s", "coder", text) for text in texts]


@pytest.mark.slow
def test_outcomes_of_processes_keep_their_order(troubled):
    texts = ["slow", *"abcdefghijklmnopq", "slow "]
    assert [outcome.state for outcome in troubled.apply(given(*texts))] == [f"coder: {text}" for text in texts]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (
            "hang",
            CoterieError,
            r"^world\.env_workers: no sign of life for 1 s \(world\.timeout\) .*'hang' of 'coder'",
        ),
        ("exit", CoterieError, r"^a process of world\.env_workers was lost: its process exited with code 3;.*resume"),
        ("raise", RuntimeError, r"(?s)world\.env_workers failed:\nTraceback.*ValueError: no such move"),
    ],
)
def test_an_answer_that_hangs_or_fails_is_named_and_the_next_batch_is_applied(text, error, message, troubled):
    since = time.monotonic()
    with pytest.raises(error, match=message):
        troubled.apply(given("a", "b", text, "c"))
    assert time.monotonic() - since < 20
    assert [outcome.state for outcome in troubled.apply(given("d", "e"))] == ["coder: d", "coder: e"]


@pytest.mark.slow
def test_a_batch_may_take_longer_than_one_answer(troubled):
    answers = [(state, "coder", "slow") for state in range(16)]  # two shares of 0.6 s in turn, 1.2 s for each process
    assert len(troubled.apply(answers)) == 16
