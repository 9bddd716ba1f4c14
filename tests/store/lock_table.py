"""The states of an identity lock, its events, and one table with the effect of each event in each state.

The lock of a call belongs to its *first* task. *Another* call has the same identity. A *follower* is another task that
is parked until the first has an outcome. With ``keep_last`` one more task, the *next*, is parked until it runs after
the first. The scripts (``lua/gate/shared/locks.lua``, ``claims.lua``, ``lock_runs.lua``) implement this table: one test
drives each cell on the scripts, another one compares the docs with `printed`.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

__all__ = ["IMPOSSIBLE", "TABLE", "Cell", "Event", "Fate", "Owner", "State", "Why", "printed"]


class State(str, Enum):
    """States of the lock; in ``none`` and ``taken`` there is no lock."""

    NONE = "none"  #: the lock was never claimed, or has expired, or the store was emptied
    TAKEN = "taken"  #: an operator took the lock away from a task that still runs
    QUEUED = "queued"  #: the first is published, or parked, or will be delivered again
    RUNNING = "running"  #: the first runs
    STARTED = "started"  #: the first runs, and with ``lock_until="started"`` others may be published
    DONE = "done"  #: the first has succeeded, and is remembered until the lock expires
    FAILED = "failed"  #: the first has failed, and keeps the lock until it expires


class Event(str, Enum):
    """Events that can change a lock."""

    PUBLISHED = "another call is published"
    PUBLISHED_REPLACE = "another call is published, `replace`"
    PUBLISHED_LAST = "another call is published, `keep_last`"
    PUBLISHED_AGAIN = "the first is published again (a retry)"
    ARRIVES = "a delivery of the first arrives, its limit is full"
    STARTS = "a delivery of the first arrives, and there is room"
    ANOTHER_ARRIVES = "another task arrives"
    RAISING_ARRIVES = "another task arrives, `raise`"
    SKIPPED_ARRIVES = "another task arrives, `skip`"
    NEWER_ARRIVES = "a newer task arrives, `replace`"
    LAST_ARRIVES = "a newer task arrives, `keep_last`"
    OLDER_ARRIVES = "an older task arrives, `replace` or `keep_last`"
    RENEWED = "the run renews its lease"
    TOLD = "the run reports its success at once (`remember`)"
    SUCCEEDS = "the run succeeds"
    SUCCEEDS_KEPT = "the run succeeds, `remember` or before it expires"
    FAILS = "the run fails"
    FAILS_KEPT = "the run fails before its lock expires"
    WAITS = "the run ends, and a delivery follows (a retry, or back in line)"
    WAITS_NEVER = "the same, but it was revoked while it ran"
    UNCLAIMED = "the run ends, and a delivery follows; nothing had claimed the lock"
    NOTHING = "the run ends with nothing (ignored, rejected)"
    NOTHING_KEPT = "the run ends with nothing before its lock expires"
    LOST = "the lease of the run ends"
    LOST_AGAIN = "the lease of the run ends after a retry was published"
    GIVEN_UP = "the first will never run (revoked, expired, not published)"
    NEXT_GIVEN_UP = "the next will never run"
    UNLOCKED = "an operator takes the lock away"
    LAPSES = "its time is over"


class Owner(str, Enum):
    """The task that has the lock after the event."""

    FIRST = "first"
    ANOTHER = "another"  #: the task that the event is about
    HEIR = "heir"  #: the next; else the first follower; else the lock is gone
    NO_TASK = "no task"


class Fate(str, Enum):
    """The effect on a task that is parked for the lock."""

    WAITS = "waits"  #: the task waits for the new owner of the lock, unless the task is the new owner
    OUTCOME = "outcome"  #: the task ends with the outcome of the first
    REPLACED = "replaced"  #: the task ends as revoked


class Cell(NamedTuple):
    """The effect of an event in a state.

    Attributes:
        state: the new state of the lock, if ``owner`` is the first or another.
        owner: the new owner of the lock.
        event_task: the answer to the task that is published or arrives: that of a claim, or a verdict.
        follower: the effect on followers.
        next: the effect on the next.
    """

    state: State
    owner: Owner = Owner.FIRST
    event_task: str = ""
    follower: Fate = Fate.WAITS
    next: Fate = Fate.WAITS


_S, _E, _O, _F = State, Event, Owner, Fate
_FREE = (_S.NONE, _S.TAKEN)
_HEIR = Cell(_S.QUEUED, _O.HEIR)
_ENDED = Cell(_S.QUEUED, _O.HEIR, follower=_F.OUTCOME)
_DONE = Cell(_S.DONE, _O.FIRST, follower=_F.OUTCOME)


def _same(*states: State, answer: str = "") -> dict[State, Cell]:
    """Return cells that leave the lock as it is."""
    return {state: Cell(state, _O.NO_TASK if state in _FREE else _O.FIRST, answer) for state in states}


def _to(cell: Cell, *states: State) -> dict[State, Cell]:
    return dict.fromkeys(states, cell)


def _another(answer: str, *states: State) -> dict[State, Cell]:
    return _to(Cell(_S.QUEUED, _O.ANOTHER, answer), *states)


#: The effect of each event, by the state before it.
TABLE: dict[Event, dict[State, Cell]] = {
    _E.PUBLISHED: {
        **_another("claimed", *_FREE, _S.STARTED),
        **_same(_S.QUEUED, _S.RUNNING, _S.DONE, _S.FAILED, answer="taken"),
    },
    _E.PUBLISHED_REPLACE: {
        **_another("claimed", *_FREE, _S.STARTED),
        **_another("replaces", _S.QUEUED),
        **_same(_S.RUNNING, answer="taken"),
    },
    _E.PUBLISHED_LAST: {
        **_another("claimed", *_FREE),
        **_another("replaces", _S.QUEUED),
        **_same(_S.RUNNING, answer="next"),
    },
    _E.PUBLISHED_AGAIN: {
        **_to(Cell(_S.QUEUED, _O.FIRST, "claimed"), *_FREE),
        **_same(_S.QUEUED, _S.RUNNING, _S.STARTED, _S.FAILED, answer="ours"),
        **_same(_S.DONE, answer="taken"),
    },
    _E.ARRIVES: {
        **_to(Cell(_S.QUEUED, _O.FIRST, "run"), _S.NONE, _S.QUEUED, _S.FAILED),
        **_same(_S.TAKEN, _S.RUNNING, _S.STARTED, answer="second"),
        **_same(_S.DONE, answer="done"),
    },
    _E.STARTS: {
        **_to(Cell(_S.RUNNING, _O.FIRST, "started"), _S.NONE, _S.QUEUED, _S.FAILED),
        **_same(_S.TAKEN, _S.RUNNING, _S.STARTED, answer="second"),
        **_same(_S.DONE, answer="done"),
    },
    _E.ANOTHER_ARRIVES: {
        **_another("run", *_FREE, _S.STARTED),
        **_same(_S.QUEUED, _S.RUNNING, answer="follow"),
        **_same(_S.DONE, _S.FAILED, answer="conclude"),
    },
    _E.RAISING_ARRIVES: {
        **_another("run", *_FREE, _S.STARTED),
        **_same(_S.QUEUED, _S.RUNNING, _S.DONE, _S.FAILED, answer="duplicate"),
    },
    _E.SKIPPED_ARRIVES: {
        **_another("run", *_FREE, _S.STARTED),
        **_same(_S.QUEUED, _S.RUNNING, _S.DONE, _S.FAILED, answer="skip"),
    },
    _E.NEWER_ARRIVES: {
        **_another("run", *_FREE, _S.STARTED),
        _S.QUEUED: Cell(_S.QUEUED, _O.ANOTHER, "run", next=_F.REPLACED),
        **_same(_S.RUNNING, answer="follow"),
    },
    _E.LAST_ARRIVES: {
        **_another("run", *_FREE),
        _S.QUEUED: Cell(_S.QUEUED, _O.ANOTHER, "run", next=_F.REPLACED),
        _S.RUNNING: Cell(_S.RUNNING, _O.FIRST, "next", next=_F.REPLACED),
    },
    _E.OLDER_ARRIVES: {**_another("run", *_FREE, _S.STARTED), **_same(_S.QUEUED, _S.RUNNING, answer="replaced")},
    _E.RENEWED: {**_to(Cell(_S.RUNNING), _S.NONE, _S.QUEUED, _S.RUNNING), **_same(_S.TAKEN, _S.STARTED, _S.DONE)},
    _E.TOLD: {**_same(_S.TAKEN), **_to(_DONE, _S.NONE, _S.QUEUED, _S.RUNNING, _S.DONE)},
    _E.SUCCEEDS: {**_same(*_FREE), **_to(_ENDED, _S.QUEUED, _S.RUNNING, _S.STARTED)},
    _E.SUCCEEDS_KEPT: {**_same(*_FREE), **_to(_DONE, _S.QUEUED, _S.RUNNING, _S.DONE)},
    _E.FAILS: {**_same(*_FREE, _S.QUEUED, _S.DONE), **_to(_ENDED, _S.RUNNING, _S.STARTED)},
    _E.FAILS_KEPT: {**_same(*_FREE, _S.QUEUED), _S.RUNNING: Cell(_S.FAILED, follower=_F.OUTCOME)},
    _E.WAITS: {**_same(*_FREE, _S.QUEUED, _S.DONE), **_to(Cell(_S.QUEUED), _S.RUNNING, _S.STARTED)},
    _E.WAITS_NEVER: {**_same(*_FREE, _S.DONE), **_to(_HEIR, _S.QUEUED, _S.RUNNING, _S.STARTED)},
    _E.UNCLAIMED: {**_same(*_FREE, _S.QUEUED), **_to(_HEIR, _S.RUNNING, _S.STARTED)},
    _E.NOTHING: {**_same(*_FREE, _S.QUEUED, _S.DONE), **_to(_HEIR, _S.RUNNING, _S.STARTED)},
    _E.NOTHING_KEPT: {**_same(*_FREE, _S.QUEUED), _S.RUNNING: Cell(_S.QUEUED)},
    _E.LOST: {**_same(*_FREE, _S.DONE), **_to(_HEIR, _S.RUNNING, _S.STARTED)},
    _E.LOST_AGAIN: {**_same(_S.DONE), **_to(Cell(_S.QUEUED), _S.RUNNING, _S.STARTED)},
    _E.GIVEN_UP: {**_same(*_FREE, _S.RUNNING, _S.STARTED, _S.DONE, _S.FAILED), _S.QUEUED: _HEIR},
    _E.NEXT_GIVEN_UP: _same(_S.QUEUED, _S.RUNNING),
    _E.UNLOCKED: {**_same(*_FREE, _S.STARTED), **_to(_HEIR, _S.QUEUED, _S.RUNNING, _S.DONE, _S.FAILED)},
    _E.LAPSES: _to(_HEIR, _S.QUEUED, _S.DONE, _S.FAILED),
}


class Why(str, Enum):
    """Reasons why an event cannot occur in a state."""

    REFUSED = "such options are refused together, or are two values of one option"
    NO_RUN = "no run of the task is left that could end"
    NO_NEXT = "no task is next"
    NO_LOCK = "there is no lock"
    LATER = "the lock outlasts the lease of its run"
    CLAIMED = "the retry has claimed the lock again"


_REFUSED, _NO_RUN, _NO_NEXT = Why.REFUSED, Why.NO_RUN, Why.NO_NEXT
_NO_LOCK, _LATER, _CLAIMED = Why.NO_LOCK, Why.LATER, Why.CLAIMED

#: The reason for each cell that `TABLE` does not have.
IMPOSSIBLE: dict[Event, dict[State, Why]] = {
    _E.PUBLISHED_REPLACE: dict.fromkeys((_S.DONE, _S.FAILED), _REFUSED),
    _E.PUBLISHED_LAST: dict.fromkeys((_S.STARTED, _S.DONE, _S.FAILED), _REFUSED),
    _E.NEWER_ARRIVES: dict.fromkeys((_S.DONE, _S.FAILED), _REFUSED),
    _E.LAST_ARRIVES: dict.fromkeys((_S.STARTED, _S.DONE, _S.FAILED), _REFUSED),
    _E.OLDER_ARRIVES: dict.fromkeys((_S.DONE, _S.FAILED), _REFUSED),
    _E.RENEWED: {_S.FAILED: _NO_RUN},
    _E.TOLD: {_S.STARTED: _REFUSED, _S.FAILED: _REFUSED},
    _E.SUCCEEDS: {_S.DONE: _NO_RUN, _S.FAILED: _NO_RUN},
    _E.SUCCEEDS_KEPT: {_S.STARTED: _REFUSED, _S.FAILED: _NO_RUN},
    _E.FAILS: {_S.FAILED: _NO_RUN},
    _E.FAILS_KEPT: {_S.STARTED: _REFUSED, _S.DONE: _NO_RUN, _S.FAILED: _NO_RUN},
    _E.WAITS: {_S.FAILED: _NO_RUN},
    _E.WAITS_NEVER: {_S.FAILED: _NO_RUN},
    _E.UNCLAIMED: {_S.DONE: _NO_RUN, _S.FAILED: _NO_RUN},
    _E.NOTHING: {_S.FAILED: _NO_RUN},
    _E.NOTHING_KEPT: {_S.STARTED: _REFUSED, _S.DONE: _NO_RUN, _S.FAILED: _NO_RUN},
    _E.LOST: {_S.QUEUED: _NO_RUN, _S.FAILED: _NO_RUN},
    _E.LOST_AGAIN: {**dict.fromkeys(_FREE, _CLAIMED), _S.QUEUED: _NO_RUN, _S.FAILED: _NO_RUN},
    _E.NEXT_GIVEN_UP: dict.fromkeys((*_FREE, _S.STARTED, _S.DONE, _S.FAILED), _NO_NEXT),
    _E.LAPSES: {**dict.fromkeys(_FREE, _NO_LOCK), **dict.fromkeys((_S.RUNNING, _S.STARTED), _LATER)},
}


def printed() -> str:
    """Return the table as Markdown, for docs/internals/locks.md."""
    lines = [f"| event | {' | '.join(state.value for state in State)} |", "|---" * (len(State) + 1) + "|"]
    for event in Event:
        cells = [TABLE[event].get(state) for state in State]
        texts = [_written(cell, state) if cell else "-" for cell, state in zip(cells, State, strict=True)]
        lines.append(f"| {event.value} | {' | '.join(texts)} |")
    return "\n".join(lines)


def _written(cell: Cell, before: State) -> str:
    stays = cell.owner is Owner.NO_TASK or (cell.owner is Owner.FIRST and cell.state is before)
    whose = {Owner.FIRST: f"{cell.state.value}, first", Owner.ANOTHER: f"{cell.state.value}, another"}
    parts = ["stays" if stays else whose.get(cell.owner, "heir")]
    if cell.event_task:
        parts.append(f"*{cell.event_task}*")
    if cell.follower is Fate.OUTCOME:
        parts.append("followers end")
    if cell.next is Fate.REPLACED:
        parts.append("next replaced")
    return "; ".join(parts)
