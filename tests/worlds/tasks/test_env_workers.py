"""EnvWorkers: equal answers are applied once, and the answers that were given least recently are forgotten."""

from coterie.worlds.tasks import env_workers
from coterie.worlds.tasks.env_workers import EnvWorkers
from coterie.worlds.tasks.task import Outcome


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
