"""Queues as the store writes them: the code of the broker, and the name.

Two services may share a store and have brokers of their own, each with a queue ``celery``. A parked task must only go
to a worker of its own broker, so the text of a queue begins with eight hexadecimal digits that stand for the broker.
"""

from __future__ import annotations

import re
from hashlib import blake2s
from typing import NamedTuple

__all__ = ["BrokerQueue", "code_of_broker"]

_TEXT = re.compile(r"([0-9a-f]{8}):(.*)", re.DOTALL)


class BrokerQueue(NamedTuple):
    """A queue of one broker.

    Attributes:
        name: the name of the queue at the broker.
        broker: the code of the broker; "" if the broker is unknown, and for permits outside of tasks.
    """

    name: str
    broker: str = ""

    @property
    def text(self) -> str:
        """The queue as the store writes it."""
        return f"{self.broker}:{self.name}" if self.broker else self.name

    @classmethod
    def parse(cls, text: str) -> BrokerQueue:
        """Parse `text`."""
        found = _TEXT.fullmatch(text)
        return cls(found[2], found[1]) if found else cls(text)


def code_of_broker(broker: str) -> str:
    """Return the eight digits that stand for a broker, given its description; "" for an unknown broker ("")."""
    return blake2s(broker.encode(), digest_size=4).hexdigest() if broker else ""
