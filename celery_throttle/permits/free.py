"""Grant each permit at once where nothing is throttled, without a store."""

from __future__ import annotations

import time
from concurrent.futures import Future

from celery_throttle.permits.line import Asking
from celery_throttle.store.exchange import Arrival

__all__ = ["Free"]


class Free:
    """As `Outside`, but each permit is granted, and none is counted or lost.

    Attributes:
        lease: a permit lasts for ever.
        sites: none, because nothing is counted.
    """

    lease = float("inf")
    sites = None

    def ask(self, needs: str, limit: tuple[str, str], *, waits: bool) -> Asking:  # noqa: ARG002 - as Outside's
        """Return an `Asking` whose permit is granted already."""
        asking = Asking(Arrival("nobody", needs, ""), waits=waits)
        asking.grant("", time.monotonic())
        return asking

    def hold(self, *_: object) -> None:
        """Do nothing: no permit is counted or has a lease."""

    leave = drop = later = hold

    def renew(self, *_: object) -> bool:
        """Return True: the permit is held."""
        return True

    def release(self, *_: object) -> Future[None]:
        """Return a future that is done."""
        answer: Future[None] = Future()
        answer.set_result(None)
        return answer
