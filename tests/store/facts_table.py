"""The effects of the end of a run, as a function of three facts: a table to compare ``facts.lua`` with."""

from __future__ import annotations

from enum import Enum

from celery_throttle.core.facts import Facts, Message, Result

__all__ = ["LockOutcome", "comes_back", "lock_outcome", "second_goes_on"]


class LockOutcome(str, Enum):
    """The effect of the end of a run on the identity lock of its task."""

    SUCCESS = "success"
    FAILURE = "failure"
    WAITS = "waits"  #: the lock waits for the next delivery of its task
    LOST = "lost"
    NOTHING = "nothing"


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
