"""How a run ended, as three facts: whether the body began, where the message is now, and the result.

``lua/gate/shared/facts.lua`` has the effects of each combination.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

__all__ = ["Facts", "Message", "Result"]


class Message(str, Enum):
    """Where the message of an ended run is."""

    NOBODY = "nobody"  #: used up: no delivery of it follows
    BROKER = "broker"  #: at the broker, for another delivery, which runs if this run had no result
    PLACE = "place"  #: in the store: the task goes back to its own place in line
    TAIL = "tail"  #: in the store: the task goes behind all others (it was rejected with requeue)
    HEAD = "head"  #: in the store: the task goes before all others (it raised ``RateLimited``)
    LOST = "lost"  #: unknown, because the lease ended: back to its own place in line if the store has the message


class Result(str, Enum):
    """The result of a run."""

    SUCCESS = "success"
    FAILURE = "failure"
    RETRY = "retry"  #: another delivery, with one more attempt, follows
    NOTHING = "nothing"


class Facts(NamedTuple):
    """How a run ended."""

    began: bool
    message: Message
    result: Result = Result.NOTHING
