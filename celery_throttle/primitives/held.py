"""What is held on one server: a script renews it, another gives it back."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from celery_throttle.primitives.lease import RenewableLease
from celery_throttle.store.scripts import execute

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis import Redis

    from celery_throttle.store.scripts import Call

__all__ = ["Held"]


class Held(RenewableLease):
    """A lease on one server.

    Args:
        client: where it is held.
        identity: what is held.
        owner: by whom.
        seconds: how long a renewal lasts.
        deadline: until when it lasts now, on the clock of ``time.monotonic``.
        on_lost: called once, with this object, when the lease is found to be lost.
        renewal: makes the call that lets the lease end so many seconds from now.
        giving_back: makes the call that gives it back. Both calls return 0 if it is not held any more.
    """

    def __init__(
        self,
        client: Redis,
        identity: str | bytes,
        owner: str,
        *,
        seconds: float,
        deadline: float,
        on_lost: Callable[[Any], object] | None,
        renewal: Callable[[float], Call],
        giving_back: Callable[[], Call],
    ) -> None:
        super().__init__(identity, owner, seconds=seconds, deadline=deadline, on_lost=on_lost)
        self._client, self._renewal, self._giving_back = client, renewal, giving_back

    def renew(self, lease: float | None = None) -> bool:
        """Let the lease end that many seconds from now (by default as many as at first); always True.

        As ``extend`` and ``reacquire`` of redis-py's own lock: nobody has to look at the answer to stay safe.

        Raises:
            LeaseLost: it is not held any more.
            redis.exceptions.RedisError: Redis did not answer; the lease goes on as before, or was renewed.
        """
        self._check_held()
        seconds = self._seconds if lease is None else lease
        call = self._renewal(seconds)
        started = time.monotonic()
        if not execute(self._client, call):
            self._check_held()  # a release that came between is no loss
            raise self._lose()
        self._seconds, self._deadline = seconds, started + seconds
        return True

    def release(self) -> bool:
        """Give it back; False, and nothing is changed, if it was not held any more. Again: the same answer.

        Raises:
            redis.exceptions.RedisError: Redis did not answer; call it again, or leave it to the end of the lease.
        """
        self._releasing = True
        self._stop.put(None)
        if self._released is None:
            released = bool(execute(self._client, self._giving_back()))
            if not released:
                self._lose()
            self._released = released
        return self._released
