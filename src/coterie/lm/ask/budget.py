"""Limits calls, tokens and money across crashes and processes.

Before a call, its worst case with all retries is reserved in a journal; after the call, the reservation is replaced by
the actual cost. A call whose worst case does not fit is denied and no request is sent. A reservation that was never
settled (the process was killed) counts as spent, because its actual cost is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from coterie.core.validation import at_least
from coterie.lm.ask.interface import (
    BudgetDenied,
    BudgetExceeded,
    Completion,
    LanguageModel,
    LMError,
    Prompt,
    Sampling,
    Scores,
    Unavailable,
)
from coterie.lm.ask.sqlite import SqliteStore
from coterie.lm.ask.usage import UsageCounter
from coterie.lm.ask.wrapper import Wrapper


@dataclass(frozen=True)
class BudgetSettings:
    """Limits, and the prices of tokens."""

    calls: int | None = None  # number of prompts, retries included; None: no limit
    tokens: int | None = None  # prompt and completion tokens together; None: no limit
    money: float | None = None  # in the currency of the prices; None: no limit
    prompt_price: float = 0.0  # per million prompt tokens
    completion_price: float = 0.0  # per million completion tokens
    account: str = "default"  # budgets with the same cache file and account share their limit
    at_limit: Literal["abstain", "stop"] = "abstain"  # continue without answers, or end the run

    def __post_init__(self) -> None:
        for name in ("calls", "tokens", "money"):
            at_least(name, getattr(self, name) or 0, 0)
        at_least("prompt_price", self.prompt_price, 0)
        at_least("completion_price", self.completion_price, 0)


@dataclass(frozen=True)
class Cost:
    """The cost of calls."""

    calls: int = 0
    tokens: int = 0
    money: float = 0.0

    def times(self, count: int) -> Cost:
        return Cost(self.calls * count, self.tokens * count, self.money * count)

    def plus(self, other: Cost) -> Cost:
        return Cost(self.calls + other.calls, self.tokens + other.tokens, self.money + other.money)


class Journal:
    """One account in the store: the cost that is settled or reserved."""

    def __init__(self, store: SqliteStore, account: str) -> None:
        self.store, self.account = store, account
        with store.transaction() as connection:
            connection.execute("insert or ignore into accounts values (?, 0, 0, 0.0)", (account,))

    def spent(self) -> Cost:
        """Return the settled and the reserved cost together."""
        query = "select calls, tokens, money from accounts where name = ?"
        with self.store.reading() as connection:
            return Cost(*connection.execute(query, (self.account,)).fetchone())

    def reserve(self, worst: Cost, settings: BudgetSettings) -> int:
        """Reserve the worst case and return the reservation's number; raise `BudgetDenied` if it does not fit."""
        with self.store.transaction() as connection:
            after = self.spent().plus(worst)
            for name in ("calls", "tokens", "money"):
                limit, total = getattr(settings, name), getattr(after, name)
                if limit is not None and total > limit:
                    need = getattr(worst, name)
                    spent = total - need
                    left = f"{limit - spent:g} of {limit:g} left" if spent <= limit else f"{spent:g} of {limit:g} spent"
                    shared = "" if spent <= limit else ", which budgets with the same cache file and account share"
                    raise BudgetDenied(
                        f"budget.{name}: {left}, the call may need {need:g} (account '{self.account}'{shared})"
                    )
            self._add(connection, worst)
            row = (self.account, worst.calls, worst.tokens, worst.money)
            made = connection.execute(
                "insert into reservations (account, calls, tokens, money) values (?, ?, ?, ?)", row
            )
            return int(made.lastrowid or 0)

    def settle(self, number: int, worst: Cost, actual: Cost) -> None:
        """Replace a reservation by the actual cost."""
        with self.store.transaction() as connection:
            deleted = connection.execute("delete from reservations where id = ?", (number,))
            if deleted.rowcount:
                self._add(connection, actual.plus(worst.times(-1)))

    def raise_to(self, least: Cost) -> None:
        """Raise the account to the cost in a checkpoint: the store may have been deleted since."""
        with self.store.transaction() as connection:
            known = self.spent()
            missing = Cost(*(max(getattr(least, n) - getattr(known, n), 0) for n in ("calls", "tokens", "money")))
            self._add(connection, missing)

    def _add(self, connection: Any, cost: Cost) -> None:
        connection.execute(
            "update accounts set calls = calls + ?, tokens = tokens + ?, money = money + ? where name = ?",
            (cost.calls, cost.tokens, cost.money, self.account),
        )


class Budget(Wrapper):
    """Denies calls that the budget does not cover."""

    def __init__(
        self,
        inner: LanguageModel,
        settings: BudgetSettings,
        store: SqliteStore | None = None,
        usage: UsageCounter | None = None,
        attempts: int = 1,
        billed_failures: Callable[[], int] = lambda: 0,
    ) -> None:
        """`attempts`: most attempts of one call; `billed_failures`: failed attempts of the latest call that count."""
        super().__init__(inner)
        self.settings = settings
        self.attempts, self.billed_failures = attempts, billed_failures
        self.journal = Journal(store or SqliteStore(None), settings.account)
        self.usage = usage or UsageCounter()

    def complete(
        self, prompts: Sequence[Prompt], n: int = 1, sampling: Sampling = Sampling(), first: int = 0
    ) -> list[list[Completion]]:
        # a server may read a prompt once for every sample
        read = sum(map(self.inner.max_prompt_tokens, prompts)) * n
        worst = self._cost(len(prompts), read, len(prompts) * n * sampling.max_tokens)
        with self._reserved(worst) as settle:
            found = self.inner.complete(prompts, n, sampling, first)
            samples = [sample for of_prompt in found for sample in of_prompt]
            read = sum(sample.prompt_tokens for sample in samples)
            written = sum(sample.completion_tokens for sample in samples)
            settle(self._cost(len(prompts), read, written))
        return found

    def scores(self, prompts: Sequence[Prompt], choices: Sequence[Sequence[str]]) -> Scores:
        read = sum(self.inner.max_prompt_tokens(prompt, options) for prompt, options in zip(prompts, choices))
        with self._reserved(self._cost(len(prompts), read, 0)) as settle:
            found = self.inner.scores(prompts, choices)
            settle(self._cost(len(prompts), int(found.tokens_read.sum()), 0))
        return found

    def embed(self, prompts: Sequence[Prompt]) -> np.ndarray:
        worst = self._cost(len(prompts), sum(map(self.inner.max_prompt_tokens, prompts)), 0)
        with self._reserved(worst) as settle:
            found = self.inner.embed(prompts)
            settle(worst)  # the actual number of tokens is not reported
        return found

    def state(self) -> dict[str, float]:
        """Return the cost so far for a checkpoint; the journal stays authoritative."""
        return vars(self.journal.spent()).copy()

    def load(self, state: dict[str, float]) -> None:
        """Restore from a checkpoint; what was spent after it stays spent."""
        self.journal.raise_to(Cost(int(state["calls"]), int(state["tokens"]), state["money"]))

    def _cost(self, calls: int, read: int, written: int) -> Cost:
        money = (read * self.settings.prompt_price + written * self.settings.completion_price) / 1e6
        return Cost(calls, read + written, money)

    @contextmanager
    def _reserved(self, one: Cost) -> Iterator[Callable[[Cost], None]]:
        """Reserve the worst case of every attempt; settle the actual cost plus the worst case of billed failures."""
        worst = one.times(self.attempts)
        try:
            number = self.journal.reserve(worst, self.settings)
        except BudgetDenied as error:
            self.usage.add(refusals=1)
            if self.settings.at_limit == "stop":
                raise BudgetExceeded(
                    f"{error}; budget.at_limit=stop ends the run: raise the limit and resume it"
                ) from None
            raise
        actual = Cost()

        def settle(cost: Cost) -> None:
            nonlocal actual
            actual = cost

        try:
            yield settle
        except LMError as error:
            billed = self.billed_failures() + (isinstance(error, Unavailable) and error.billed)
            self.journal.settle(number, worst, one.times(billed))
            raise
        # any other exception leaves the reservation in place: the actual cost is unknown
        self.journal.settle(number, worst, actual.plus(one.times(self.billed_failures())))
