"""What answers in place of a store where nothing is throttled: whoever asks for a permit has it."""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import TYPE_CHECKING

from celery_throttle.permits.line import Asking
from celery_throttle.store.exchange import Arrival

if TYPE_CHECKING:
    from collections.abc import Callable
    from weakref import WeakMethod

__all__ = ["Free"]


class Free:
    """As `Outside`, with permits that nobody counts and nobody takes away.

    Attributes:
        lease: a permit lasts for ever.
    """

    lease = float("inf")

    def ask(self, needs: str, limit: tuple[str, str], *, waits: bool) -> Asking:  # noqa: ARG002 - as Outside's
        """Ask for a permit, and have it."""
        asking = Asking(Arrival("nobody", needs, ""), waits=waits)
        asking.grant("", time.monotonic())
        return asking

    def leave(self, asking: Asking) -> None:
        """Stop waiting; the permit was there already."""

    def drop(self, asking: Asking) -> None:
        """Nobody wants the permit any more."""

    def later(self, give_back: Callable[[], object]) -> None:
        """Nothing is to be given back."""

    def hold(self, arrival: Arrival, renewed: WeakMethod[Callable[[float | None], None]]) -> None:
        """Nothing has to be renewed."""

    def renew(self, arrival: Arrival) -> bool:  # noqa: ARG002 - as Outside's
        """Renew nothing; it is held."""
        return True

    def release(self, arrival: Arrival) -> Future[None]:  # noqa: ARG002 - as Outside's
        """Give a permit back to nobody."""
        said: Future[None] = Future()
        said.set_result(None)
        return said
