"""One grant of an identity lock."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from celery_throttle.primitives.lease import RenewableLease
from celery_throttle.primitives.lock_calls import Grant
from celery_throttle.store.scripts import execute

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis import Redis

    from celery_throttle.primitives.lock_calls import Attempt, LockCalls

__all__ = ["HeldLock"]


class HeldLock(RenewableLease):
    """One grant of an identity lock; in a ``with`` statement it is released at the end of the block.

    Leaving the block raises `LeaseLost` if the lock was lost meanwhile, unless the block raises something itself.

    Attributes:
        identity: what is locked, as given.
        owner: by whom.
        fencing_token: grows with every grant under this prefix; for the resource to check.
        lost: whether somebody else may have the lock: the store said so, or the lease was not renewed in time.
        lease_left: seconds that are left for certain.
    """

    def __init__(
        self,
        client: Redis,
        calls: LockCalls,
        attempt: Attempt,
        *,
        fencing_token: int,
        deadline: float,
        on_lost: Callable[[HeldLock], object] | None,
    ) -> None:
        super().__init__(attempt.identity, attempt.owner, seconds=attempt.lease, deadline=deadline, on_lost=on_lost)
        self.fencing_token = fencing_token
        self._client, self._calls = client, calls
        self._grant = Grant(attempt.key, attempt.owner, fencing_token)

    def renew(self, lease: float | None = None) -> bool:
        """Let the lease end that many seconds from now (by default as many as at first); always True.

        As ``extend`` and ``reacquire`` of redis-py's own lock: nobody has to look at the answer to stay safe.

        Raises:
            LeaseLost: it is not held any more.
            redis.exceptions.RedisError: Redis did not answer; the lease goes on as before, or was renewed.
        """
        self._check_held()
        seconds = self._seconds if lease is None else lease
        call = self._calls.renew(self._grant, seconds)
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
            released = bool(execute(self._client, self._calls.release(self._grant)))
            if not released:
                self._lose()
            self._released = released
        return self._released
