"""A limit on calls, tokens and money that holds across crashes and processes.

Before a call its worst case, every attempt included, is reserved in a journal; after it, what it really
took is settled. A call whose worst case does not fit is refused and nothing is asked. A reservation that
nobody settled (the process was killed) counts as spent: what is unknown is never billed as free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from coterie.core.validation import at_least
from coterie.lm.interface import (
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
from coterie.lm.wrappers.sqlite import Store
from coterie.lm.wrappers.usage import Ledger


@dataclass(frozen=True)
class BudgetSettings:
    """What may be spent, and what tokens cost."""

    calls: int | None = None  # prompts asked, retries included; None: no limit
    tokens: int | None = None  # read and written; None: no limit
    money: float | None = None  # in the unit of the prices; None: no limit
    prompt_price: float = 0.0  # per million tokens read
    completion_price: float = 0.0  # per million tokens written
    account: str = "default"  # whoever shares a store and an account shares its limit
    at_limit: Literal["abstain", "stop"] = "abstain"  # go on without answers, or end the run

    def __post_init__(self) -> None:
        for name in ("calls", "tokens", "money"):
            at_least(name, getattr(self, name) or 0, 0)
        at_least("prompt_price", self.prompt_price, 0)
        at_least("completion_price", self.completion_price, 0)


@dataclass(frozen=True)
class Cost:
    """What a call takes, or took."""

    calls: int = 0
    tokens: int = 0
    money: float = 0.0

    def times(self, count: int) -> Cost:
        return Cost(self.calls * count, self.tokens * count, self.money * count)

    def plus(self, other: Cost) -> Cost:
        return Cost(self.calls + other.calls, self.tokens + other.tokens, self.money + other.money)


class Journal:
    """One account: what was spent or is reserved, in the store."""

    def __init__(self, store: Store, account: str) -> None:
        self.store, self.account = store, account
        with store.writing() as connection:
            connection.execute("insert or ignore into accounts values (?, 0, 0, 0.0)", (account,))

    def spent(self) -> Cost:
        """Settled and reserved together."""
        query = "select calls, tokens, money from accounts where name = ?"
        with self.store.reading() as connection:
            return Cost(*connection.execute(query, (self.account,)).fetchone())

    def reserve(self, worst: Cost, settings: BudgetSettings) -> int:
        """Put the worst case aside, or refuse."""
        with self.store.writing() as connection:
            after = self.spent().plus(worst)
            for name in ("calls", "tokens", "money"):
                limit, would = getattr(settings, name), getattr(after, name)
                if limit is not None and would > limit:
                    left = limit - (would - getattr(worst, name))
                    need = getattr(worst, name)
                    raise BudgetDenied(f"budget: {left:g} of {limit:g} {name} left, the call may need {need:g}")
            self._add(connection, worst)
            row = (self.account, worst.calls, worst.tokens, worst.money)
            made = connection.execute(
                "insert into reservations (account, calls, tokens, money) values (?, ?, ?, ?)", row
            )
            return int(made.lastrowid or 0)

    def settle(self, number: int, worst: Cost, real: Cost) -> None:
        """Replace a reservation by what was really spent."""
        with self.store.writing() as connection:
            gone = connection.execute("delete from reservations where id = ?", (number,))
            if gone.rowcount:
                self._add(connection, real.plus(worst.times(-1)))

    def raise_to(self, least: Cost) -> None:
        """Never know of less than a checkpoint did: the store may have been lost since."""
        with self.store.writing() as connection:
            known = self.spent()
            missing = Cost(*(max(getattr(least, n) - getattr(known, n), 0) for n in ("calls", "tokens", "money")))
            self._add(connection, missing)

    def _add(self, connection: Any, cost: Cost) -> None:
        connection.execute(
            "update accounts set calls = calls + ?, tokens = tokens + ?, money = money + ? where name = ?",
            (cost.calls, cost.tokens, cost.money, self.account),
        )


class Budget(LanguageModel):
    """Refuses what the budget does not cover."""

    def __init__(
        self,
        inner: LanguageModel,
        settings: BudgetSettings,
        store: Store | None = None,
        ledger: Ledger | None = None,
        attempts: int = 1,
        lost: Callable[[], int] = lambda: 0,
    ) -> None:
        """`attempts`: how often one call may be tried; `lost`: how many tries of the latest call were in vain."""
        self.inner, self.settings, self.attempts, self.lost = inner, settings, attempts, lost
        self.journal = Journal(store or Store(None), settings.account)
        self.ledger = ledger or Ledger()

    @property
    def identity(self) -> str:
        return self.inner.identity

    def complete(
        self, prompts: Sequence[Prompt], n: int = 1, sampling: Sampling = Sampling(), first: int = 0
    ) -> list[list[Completion]]:
        # a server may read a prompt once for every sample
        read = sum(map(self.inner.max_prompt_tokens, prompts)) * n
        worst = self._cost(len(prompts), read, len(prompts) * n * sampling.max_tokens)
        with self._reserved(worst) as settle:
            found = self.inner.complete(prompts, n, sampling, first)
            samples = [sample for mine in found for sample in mine]
            read, written = (sum(getattr(s, kind) for s in samples) for kind in ("prompt_tokens", "completion_tokens"))
            settle(self._cost(len(prompts), read, written))
        return found

    def scores(self, prompts: Sequence[Prompt], choices: Sequence[Sequence[str]]) -> Scores:
        read = sum(self.inner.max_prompt_tokens(prompt, mine) for prompt, mine in zip(prompts, choices))
        with self._reserved(self._cost(len(prompts), read, 0)) as settle:
            found = self.inner.scores(prompts, choices)
            settle(self._cost(len(prompts), int(found.read.sum()), 0))
        return found

    def embed(self, prompts: Sequence[Prompt]) -> np.ndarray:
        worst = self._cost(len(prompts), sum(map(self.inner.max_prompt_tokens, prompts)), 0)
        with self._reserved(worst) as settle:
            found = self.inner.embed(prompts)
            settle(worst)  # what was read is not told
        return found

    def max_prompt_tokens(self, prompt: Prompt, choices: Sequence[str] = ()) -> int:
        return self.inner.max_prompt_tokens(prompt, choices)

    def close(self) -> None:
        self.inner.close()

    def state(self) -> dict[str, float]:
        """For a checkpoint; the journal itself is the truth."""
        return vars(self.journal.spent()).copy()

    def load(self, state: dict[str, float]) -> None:
        """Go on from a checkpoint: what was spent after it stays spent."""
        self.journal.raise_to(Cost(int(state["calls"]), int(state["tokens"]), state["money"]))

    def _cost(self, calls: int, read: int, written: int) -> Cost:
        money = (read * self.settings.prompt_price + written * self.settings.completion_price) / 1e6
        return Cost(calls, read + written, money)

    @contextmanager
    def _reserved(self, one: Cost) -> Iterator[Callable[[Cost], None]]:
        """Reserve for every attempt; settle what the good one took and, for those in vain, the worst case."""
        worst = one.times(self.attempts)
        try:
            number = self.journal.reserve(worst, self.settings)
        except BudgetDenied as error:
            self.ledger.add(refusals=1)
            if self.settings.at_limit == "stop":
                raise BudgetExceeded(
                    f"{error}; at_limit=stop ends the run: raise the limit and go on with it"
                ) from None
            raise
        took = Cost()

        def settle(real: Cost) -> None:
            nonlocal took
            took = real

        try:
            yield settle
        except LMError as error:
            in_vain = self.lost() + (isinstance(error, Unavailable) and error.billed)
            self.journal.settle(number, worst, one.times(in_vain))
            raise
        # anything else that ends the call leaves its reservation: what it took is unknown
        self.journal.settle(number, worst, took.plus(one.times(self.lost())))
