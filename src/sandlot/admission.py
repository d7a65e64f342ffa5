"""The async side of the pace: callers wait here until the gate lets them start."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from itertools import count

from sandlot.errors import Closed
from sandlot.pacing import Gate, GateStatistics, Outcome, Pace


class Turnstile:
    """Lets creates in as a `Gate` decides. Must be made while the event loop runs.

    A waiter that is cancelled leaves the queue; one whose turn came in the very moment of its cancellation gives it back.
    """

    def __init__(self, pace: Pace) -> None:
        self._loop = asyncio.get_running_loop()
        self._gate = Gate(pace, self._loop.time())
        self._tickets = count(1)
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.closed = False

    async def enter(self, kind: Hashable) -> int:
        """Wait for a turn; the ticket must be given to `leave` when the create has ended.

        Raises:
            Closed: the turnstile was closed before the turn came.
        """
        if self.closed:
            raise Closed("the provider is closed")
        ticket = next(self._tickets)
        turn = self._waiting[ticket] = self._loop.create_future()
        self._gate.ask(ticket, kind)
        self._let_in()
        try:
            await turn
        except (asyncio.CancelledError, Closed):
            self._waiting.pop(ticket, None)
            if not self._gate.withdraw(ticket):
                self.leave(ticket, Outcome("other"))
            raise
        return ticket

    def leave(self, ticket: int, outcome: Outcome) -> bool:
        """A create that was let in has ended. True when that cut the adaptive limit."""
        cut = self._gate.done(ticket, self._loop.time(), outcome)
        self._let_in()
        return cut

    def statistics(self) -> GateStatistics:
        return self._gate.statistics()

    def close(self) -> None:
        """Send every waiter away with `Closed`. Idempotent."""
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        for turn in self._waiting.values():
            if not turn.done():
                turn.set_exception(Closed("the provider was closed while this create waited for its turn"))
                turn.exception()  # its waiter may have been cancelled in this moment: nobody else would look

    def __repr__(self) -> str:
        return repr(self._gate).replace("Gate", "Turnstile", 1)

    def _let_in(self) -> None:
        turn = self._gate.poll(self._loop.time())
        for ticket in turn.start:
            waiter = self._waiting.pop(ticket)
            if not waiter.done():
                waiter.set_result(None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if turn.again_at_s is not None and not self.closed:
            self._timer = self._loop.call_at(turn.again_at_s, self._let_in)
