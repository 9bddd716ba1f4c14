"""How long a worker waits for an answer, and how many bytes it sends: as much as the network moves in time."""

from __future__ import annotations

from celery_throttle.store.servers.client import TIMEOUT
from celery_throttle.worker.store_side.outbox import MOST_BYTES

__all__ = ["FEWEST_BYTES", "Patience"]

#: The bytes of messages that a call may always have, and the most seconds of silence after a call.
FEWEST_BYTES, _LONGEST = 1 << 16, 16 * TIMEOUT


class Patience:
    """Follows the answers of one store.

    Attributes:
        seconds: of silence after which a call is sent again.
        most_bytes: of messages in a call.
    """

    def __init__(self) -> None:
        self.seconds, self.most_bytes = TIMEOUT, MOST_BYTES

    def no_answer(self) -> None:
        """Wait longer for answers and send fewer bytes: a call may have had more than the network moves in time."""
        self.most_bytes = max(self.most_bytes // 2, FEWEST_BYTES)
        self.seconds = min(self.seconds * 2, _LONGEST)

    def answered(self, took: float) -> None:
        """Go back after an answer that came soon."""
        if took < self.seconds / 4:
            self.most_bytes = min(self.most_bytes * 2, MOST_BYTES)
            self.seconds = max(self.seconds / 2, TIMEOUT)
