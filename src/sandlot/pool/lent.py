"""The handle that a lease gives: the sandbox for as long as the lease lasts, and no longer."""

from __future__ import annotations

from sandlot.errors import Closed
from sandlot.sandbox import Sandbox


class Lent(Sandbox):
    """A sandbox on loan. Closing it gives nothing back early: the end of the `lease` block does.

    A handle that someone kept beyond its lease answers `Closed`, so that it can never reach into the next episode.
    """

    def __init__(self, owned: Sandbox) -> None:
        super().__init__(owned.connection, name=owned.name)

    async def aclose(self, *, grace_s: float = 0.0) -> None:
        """No more calls through this handle. The sandbox goes back to its pool when the block is left."""
        self.end()

    def end(self) -> None:
        self._closed = self._closed or Closed(f"the lease of {self.name} has ended", hint="lease another one")
