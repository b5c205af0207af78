"""Connections to the live page: one that keeps the page waiting is closed, and there is a limit on their number."""

from __future__ import annotations

import asyncio
from typing import cast

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_SECONDS = 10.0  # for a request to arrive whole, and between requests
ANSWER_SECONDS = 300.0  # for an answer to be read
MOST_CONNECTIONS = 100


class Connection(H11Protocol):
    """An HTTP connection with deadlines; uvicorn's own waits for ever for the end of a request or of its reader."""

    deadline: asyncio.TimerHandle | None = None
    answering = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self._allow(REQUEST_SECONDS)
        if len(self.connections) > MOST_CONNECTIONS:
            others = [cast(Connection, one) for one in self.connections if one is not self]
            waiting = [one for one in others if not one.answering]
            min(waiting or [self], key=Connection.ends).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._follow()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._follow()

    def ends(self) -> float:
        """The time of the deadline, on the clock of the loop."""
        return 0.0 if self.deadline is None else self.deadline.when()

    def _follow(self) -> None:
        """Set another deadline where the connection turns from waiting for a request to answering it, and back."""
        answering = self.cycle is not None and not self.cycle.response_complete
        if answering != self.answering:
            self.answering = answering
            self._allow(ANSWER_SECONDS if answering else REQUEST_SECONDS)

    def _allow(self, seconds: float) -> None:
        self._stop()
        if not self.transport.is_closing():
            self.deadline = self.loop.call_later(seconds, self.transport.abort)

    def _stop(self) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None
