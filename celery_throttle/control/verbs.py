"""The changes of a limit at run time: their names, words and arguments, once for all.

`LimitControl` has a method for each. The command line, ``celery control`` and the page are made from this table. Each
call of ``celery`` loads this module, so it imports nothing.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["DROP", "DROPPABLE", "VERBS", "Ending", "Verb"]

#: The changes that end another change.
Ending = Literal["reset", "resume", "enable", "release-hold"]


class Verb(NamedTuple):
    """A change of a limit, or of one key of it.

    Attributes:
        name: its name on the command line and on the page.
        method: its method of `LimitControl`; after ``throttle_``, its name in ``celery control``.
        stored: the name of what it sets or ends, in the store.
        state: what the limit is after it, or is no longer.
        help: its effect, in one sentence.
        details: further sentences.
        permits: whether it takes permits, a rate and a burst.
        ends: the attributes of `LimitStatus` that it ends; empty if it begins something, and so takes an end.
    """

    name: str
    method: str
    stored: str
    state: str
    help: str
    details: str = ""
    permits: bool = False
    ends: tuple[str, ...] = ()

    @property
    def lasts(self) -> bool:
        """Whether it takes the time when it ends by itself."""
        return bool(self.state) and not self.ends

    @property
    def label(self) -> str:
        """Its name on a button."""
        return self.method.replace("_", " ").capitalize()

    @property
    def done(self) -> str:
        """Its outcome, with ``{}`` for the limit."""
        return f"{{}} is not {self.state} any more." if self.ends else f"{{}} is {self.state}."

    @property
    def nothing(self) -> str:
        """Its outcome where there was nothing to end, with ``{}`` for the limit."""
        return f"{{}} was not {self.state}."


_VERBS = (
    Verb(
        "set", "override", "override", "overridden",
        "Set another number of permits, another rate, or both for now.",
        "More permits take effect at once. With fewer, running tasks go on, and no task starts until there is room. "
        "Another rate counts from the last start. The declared numbers stay visible; reset ends the override.",
        permits=True,
    ),
    Verb(
        "reset", "reset", "override", "overridden",
        "End the overrides of permits and of rates: the code's numbers hold again.",
        ends=("override", "rate_override"),
    ),
    Verb(
        "pause", "pause", "pause", "paused",
        "Let no task start: running tasks go on, and arriving tasks are parked.",
        "resume ends the pause.",
    ),
    Verb(
        "resume", "resume", "pause", "paused",
        "End a pause: parked tasks start at once, as far as there is room.",
        ends=("paused",),
    ),
    Verb(
        "disable", "disable", "disable", "disabled",
        "Enforce neither permits nor rates: all parked tasks start at once.",
        "Running tasks are still counted. enable ends that.",
    ),
    Verb(
        "enable", "enable", "disable", "disabled",
        "Enforce the limit again: running tasks go on.",
        ends=("disabled",),
    ),
    Verb(
        "release-hold", "release_hold", "hold", "held back",
        "Let the tasks start at once that a task's RateLimited holds back.",
        "Without a key: those of the limit and of all its keys.",
        ends=("held_back",),
    ),
)  # fmt: skip
#: By name.
VERBS = {each.name: each for each in _VERBS}
#: The states of tasks that can be dropped.
DROPPABLE = ("parked", "waiting for its identity lock")
DROP = Verb("drop", "drop", "", "", "Drop all parked tasks: they do not run, and end as revoked.")
