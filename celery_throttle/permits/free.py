"""Grant each permit at once where nothing is throttled, without a store."""

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
    """As `Outside`, but each permit is granted, and none is counted or lost.

    Attributes:
        lease: a permit lasts for ever.
    """

    lease = float("inf")

    def ask(self, needs: str, limit: tuple[str, str], *, waits: bool) -> Asking:  # noqa: ARG002 - as Outside's
        """Return an `Asking` whose permit is granted already."""
        asking = Asking(Arrival("nobody", needs, ""), waits=waits)
        asking.grant("", time.monotonic())
        return asking

    def leave(self, asking: Asking) -> None:
        """Do nothing: the permit was granted at once."""

    def drop(self, asking: Asking) -> None:
        """Do nothing: no permit is counted."""

    def later(self, give_back: Callable[[], object]) -> None:
        """Do nothing: no permit has to be given back."""

    def hold(self, arrival: Arrival, renewed: WeakMethod[Callable[[float | None], None]]) -> None:
        """Do nothing: no permit has a lease."""

    def renew(self, arrival: Arrival) -> bool:  # noqa: ARG002 - as Outside's
        """Return True: the permit is held."""
        return True

    def release(self, arrival: Arrival) -> Future[None]:  # noqa: ARG002 - as Outside's
        """Return a future that is done: no permit is counted."""
        answer: Future[None] = Future()
        answer.set_result(None)
        return answer
