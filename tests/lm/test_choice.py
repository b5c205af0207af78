"""Memoised questions, and servers that do not answer."""

import logging

import numpy as np
import pytest

from coterie.lm.ask.choice import MAX_SKIPS, WINDOW, AnswerCounter, AnswerMemo, ChoiceScorer
from coterie.lm.ask.interface import BudgetDenied, Rejected, RetriesExhausted, TooManyAbstentions, Unavailable
from coterie.lm.ask.loading import LMSettings, wrap
from coterie.lm.ask.scripted import Scripted
from coterie.lm.prompts import PromptTemplate
from helpers.language import player, race, view_of
from helpers.lm import Counting

DEAD = RetriesExhausted("gave up after 5 attempts: cannot reach the server")


def memo_of(fails):
    """An AnswerMemo of a model that raises what `fails` returns, and the questions that reached the model."""
    asked = []

    def score(questions):
        asked.append(list(questions))
        if fails(len(asked), questions):
            raise fails(len(asked), questions)
        return [np.array([float(one)]) for one in questions]

    return AnswerMemo(score), asked


def test_known_and_refused_questions_are_not_asked_again():
    answers, asked = memo_of(lambda _, questions: BudgetDenied("spent") if 3 in questions else None)
    answers.ask([1, 2, 2, 3])
    assert asked == [[1, 2, 3], [1], [2, 3], [2], [3]]  # bisection finds the questions that fit
    assert (set(answers.known), answers.refused) == ({1, 2}, {3})
    answers.ask([3, 2, 1])
    assert len(asked) == 5


def test_a_failing_server_is_skipped_for_longer_and_longer(caplog):
    answers, asked = memo_of(lambda time, _: DEAD)
    tried = []
    for agent_step in range(300):
        before = len(asked)
        answers.ask([1])
        tried += [agent_step] * (len(asked) - before)
    assert tried == [0, 2, 5, 10, 19, 36, 69, 134, 199, 264]
    assert np.diff(tried).max() == MAX_SKIPS + 1
    assert [r.message for r in caplog.records if r.levelno == logging.WARNING] == [
        f"language model: {DEAD}; unanswered questions count as abstentions"
    ]


def test_a_server_that_answers_again_resets_the_backoff():
    answers, asked = memo_of(lambda time, _: DEAD if time in (1, 2, 4) else None)
    for one in range(8):
        answers.ask([one])
    assert asked == [[0], [2], [5], [6]]  # skipped for one call, then for two; it answers 5 and fails again
    assert list(answers.known) == [5]
    answers.ask([7])
    assert answers.known[7] == 7  # skipped for one call: earlier failures no longer count


def test_after_a_failure_of_one_half_the_other_is_not_asked():
    answers, asked = memo_of(lambda time, _: BudgetDenied("spent") if time == 1 else DEAD)
    answers.ask([1, 2])
    assert asked == [[1, 2], [1]]
    assert not answers.refused


def test_texts_without_an_answer_have_nan_scores():
    scorer = ChoiceScorer(LMSettings("helpers.language:COPIER"), PromptTemplate("", "{state}"), ("up", "down"))
    inner = Counting(Scripted(lambda prompt, random: "", lambda prompt, choice: -1.0), [DEAD])
    scorer.lm = wrap(inner, LMSettings())
    for asked in (1, 1):
        assert np.isnan(scorer.log_probs(["here", "there"])).all()
        assert len(inner.asked) == asked
    assert not np.isnan(scorer.log_probs(["here", "there"])).any()


@pytest.mark.parametrize(("method", "timesteps"), [("score", 12), ("complete", 12)])
def test_a_policy_counts_every_decision_without_an_answer(method, timesteps):
    world = race(4)
    policy = player(world, method=method, calibration="none", around={"max_abstentions": 1.0})
    inner = Counting(policy.lm.backend, [DEAD] * 4)
    policy.scorer.lm = wrap(inner, LMSettings())
    view = view_of(world, policy.group_spec)
    for _ in range(timesteps):
        policy.act(view)
    assert len(inner.asked) == 4  # at time steps 0, 2, 5 and 10
    counts = policy.metrics()
    assert counts["abstentions"] == counts["fallbacks"] == counts["decisions"] == timesteps * view.acting.sum()
    assert counts["lm/questions"] == counts["lm/unanswered"] == counts["decisions"]


@pytest.mark.parametrize("method", ["score", "complete"])
def test_a_policy_whose_model_never_answers_ends_the_run(method):
    world = race(16)
    policy = player(world, method=method)
    policy.scorer.lm = wrap(Counting(policy.lm.backend, [DEAD]), LMSettings())
    with pytest.raises(TooManyAbstentions, match=r"no answer came .*max_abstentions is 0\.5; .*cannot reach"):
        policy.act(view_of(world, policy.group_spec))


@pytest.mark.parametrize(("limit", "most"), [(0.0, 0), (0.1, 2), (0.5, 10), (0.9, 18)])
def test_too_many_abstentions_end_the_run(limit, most):
    """Few questions count as 20, so that one failure at the start ends nothing."""
    counter = AnswerCounter(limit)
    for _ in range(most):
        counter.add(1, 1, DEAD)
    with pytest.raises(TooManyAbstentions):
        counter.add(1, 1, DEAD)
    never = AnswerCounter(1.0)
    never.add(1000, 1000, DEAD)
    assert never.metrics() == {"lm/questions": 1000, "lm/unanswered": 1000}


def test_a_server_that_fails_late_ends_the_run_soon():
    counter = AnswerCounter(0.5)
    for _ in range(1000):
        counter.add(1000, 0, None)
    for _ in range(0, WINDOW // 4, 100):
        counter.add(100, 100, DEAD)
    with pytest.raises(TooManyAbstentions):
        counter.add(2 * WINDOW, 2 * WINDOW, DEAD)


def test_a_spent_budget_does_not_count_towards_the_limit():
    counter = AnswerCounter(0.5)
    counter.add(1000, 1000, BudgetDenied("budget.calls: 0 of 9 left"))
    assert counter.metrics() == {"lm/questions": 1000, "lm/unanswered": 1000}


def test_a_question_that_is_rejected_counts_as_an_abstention(caplog):
    answers, _ = memo_of(lambda _, questions: Rejected("the prompt is too long") if 3 in questions else None)
    answers.ask([1, 3, 2])
    assert (set(answers.known), answers.refused) == ({1, 2}, {3})
    assert "the prompt is too long; the question counts as an abstention" in caplog.text
    answers.ask([3])  # known to be rejected


def test_a_server_that_rejects_everything_ends_the_run_with_one_sentence(caplog):
    answers, _ = memo_of(lambda _, questions: Rejected("401: no such key"))
    with pytest.raises(Rejected, match=r"all questions: 401: no such key.*http\.model.*http\.api_key_env"):
        answers.ask([1, 2])
    assert not caplog.messages


def test_an_unavailable_back_end_is_asked_later():
    answers, asked = memo_of(lambda time, _: Unavailable("busy") if time == 1 else None)
    for _ in range(3):
        answers.ask([1])
    assert len(asked) == 2
    assert list(answers.known) == [1]
