"""What follows when a run ends: three facts about it, and one table of what each means.

The facts are whether its body began, who has its message now, and what came of it. ``lua/gate/shared/facts.lua`` acts
on the same table; a test holds them together.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

__all__ = ["Facts", "LockOutcome", "Message", "Result", "comes_back", "lock_outcome", "second_goes_on"]


class Message(str, Enum):
    """Who has the message of a run that has ended."""

    NOBODY = "nobody"  #: the run was the last of it
    BROKER = "broker"  #: it will be delivered again, and runs again if nothing came of this run
    PLACE = "place"  #: the store has it: back to its own place in line
    TAIL = "tail"  #: the same, behind all others (rejected, to be delivered again)
    HEAD = "head"  #: the same, before all others (the outside said that it is asked too often)
    LOST = "lost"  #: nobody can tell, since the holder is gone: its own place if the store has it


class Result(str, Enum):
    """What came of a run."""

    SUCCESS = "success"
    FAILURE = "failure"
    RETRY = "retry"  #: another delivery, with one more attempt, follows
    NOTHING = "nothing"


class LockOutcome(str, Enum):
    """What the end of a run means for the identity lock of its task."""

    SUCCESS = "success"
    FAILURE = "failure"
    WAITS = "waits"  #: for the next delivery of its task
    LOST = "lost"
    NOTHING = "nothing"


class Facts(NamedTuple):
    """How a run ended."""

    began: bool
    message: Message
    result: Result = Result.NOTHING


#: Where the message may be that goes back to its line.
_KEPT = frozenset({Message.PLACE, Message.TAIL, Message.HEAD, Message.LOST})


def comes_back(facts: Facts, *, stored: bool) -> bool:
    """Whether its task goes back in line; ``stored``: the store has its message."""
    return stored and facts.message in _KEPT


def second_goes_on(facts: Facts, *, later_attempt: bool) -> bool:
    """Whether another delivery of the same task, that waited for this one to end, goes on."""
    only_told = not facts.began and facts.message is Message.NOBODY
    return later_attempt or (facts.result is Result.NOTHING and not only_told)


def lock_outcome(facts: Facts, *, goes_on: bool) -> LockOutcome:
    """Return what a run that does not come back means for its lock; ``goes_on``: another delivery of its task does."""
    if goes_on or facts.result is Result.RETRY:
        return LockOutcome.WAITS
    if facts.result in (Result.SUCCESS, Result.FAILURE):
        return LockOutcome(facts.result.value)
    if facts.message is Message.BROKER:
        return LockOutcome.WAITS
    return LockOutcome.LOST if facts.message is Message.LOST else LockOutcome.NOTHING
