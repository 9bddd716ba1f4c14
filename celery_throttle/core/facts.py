"""The effects of the end of a run, as a function of three facts.

The facts are: whether the body began, where the message is now, and the result. ``lua/gate/shared/facts.lua`` has the
same rules; a test compares them.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

__all__ = ["Facts", "LockOutcome", "Message", "Result", "comes_back", "lock_outcome", "second_goes_on"]


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


class LockOutcome(str, Enum):
    """The effect of the end of a run on the identity lock of its task."""

    SUCCESS = "success"
    FAILURE = "failure"
    WAITS = "waits"  #: the lock waits for the next delivery of its task
    LOST = "lost"
    NOTHING = "nothing"


class Facts(NamedTuple):
    """How a run ended."""

    began: bool
    message: Message
    result: Result = Result.NOTHING


#: Places of a message whose task goes back in line.
_KEPT = frozenset({Message.PLACE, Message.TAIL, Message.HEAD, Message.LOST})


def comes_back(facts: Facts, *, stored: bool) -> bool:
    """Return whether the task goes back in line; ``stored``: the store has the message."""
    return stored and facts.message in _KEPT


def second_goes_on(facts: Facts, *, later_attempt: bool) -> bool:
    """Return whether another delivery of the same task, which waited for the end of this run, goes on."""
    never_runs = not facts.began and facts.message is Message.NOBODY
    return later_attempt or (facts.result is Result.NOTHING and not never_runs)


def lock_outcome(facts: Facts, *, goes_on: bool) -> LockOutcome:
    """Return the effect on the lock of a run that does not come back; ``goes_on``: another delivery goes on."""
    if goes_on or facts.result is Result.RETRY:
        return LockOutcome.WAITS
    if facts.result in (Result.SUCCESS, Result.FAILURE):
        return LockOutcome(facts.result.value)
    if facts.message is Message.BROKER:
        return LockOutcome.WAITS
    return LockOutcome.LOST if facts.message is Message.LOST else LockOutcome.NOTHING
