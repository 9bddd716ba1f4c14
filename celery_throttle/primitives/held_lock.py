"""One grant of an identity lock."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from celery_throttle.primitives.held import Held
from celery_throttle.primitives.lock_calls import Grant

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis import Redis

    from celery_throttle.primitives.lock_calls import Attempt, LockCalls

__all__ = ["HeldLock"]


class HeldLock(Held):
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
        grant = Grant(attempt.key, attempt.owner, fencing_token)
        super().__init__(
            client,
            attempt.identity,
            attempt.owner,
            seconds=attempt.lease,
            deadline=deadline,
            on_lost=on_lost,
            renewal=partial(calls.renew, grant),
            giving_back=partial(calls.release, grant),
        )
        self.fencing_token = fencing_token
