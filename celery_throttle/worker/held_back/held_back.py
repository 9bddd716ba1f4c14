"""Hold all runs that wait in a worker unacknowledged, each for one reason: its state."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from celery_throttle.worker.runs import UNDECIDED, WHY, State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from celery_throttle.worker.loop import Loop
    from celery_throttle.worker.runs import Run
    from celery_throttle.worker.timekeeper import Timekeeper

__all__ = ["HeldBack"]

#: Reasons for which the broker delivers one more message for each held run, and the most runs that count.
_MORE = dict.fromkeys((State.UNSURE, State.MAYBE_PARKED, *WHY), 1000) | {State.CROWDED: 200, State.ID_IN_USE: 200}


class HeldBack:
    """Holds runs until their reason has passed; all on the loop.

    Each held run takes the place of a message that the broker would deliver. So the broker may deliver other messages
    instead, and stops when many runs are held: the rest of a long queue stays at the broker.

    Args:
        loop: the loop that everything happens on.
        timekeeper: ends pauses.
        let_in: called with the number of messages that the broker may deliver beyond Celery's own number.

    Attributes:
        waiting: runs that only wait for a slot, oldest first.
    """

    def __init__(self, loop: Loop, timekeeper: Timekeeper, let_in: Callable[[int], None]) -> None:
        self._loop, self._timekeeper, self._let_in = loop, timekeeper, let_in
        self.waiting: deque[Run] = deque()
        #: By reason: the runs, each with its pause, or None.
        self._held: dict[State, dict[Run, object]] = {why: {} for why in (*UNDECIDED, *WHY)}

    def __contains__(self, run: Run) -> bool:
        return run in self._held.get(run.state, ())

    @property
    def asking(self) -> int:
        """The number of runs that ask the store, each of which has a slot."""
        return len(self._held[State.ASKING])

    def count(self, why: State) -> int:
        """Return the number of runs that are held for this reason."""
        return len(self._held[why])

    def has(self, why: State, group: str) -> bool:
        """Return whether a run of the group is held for this reason."""
        return any(run.group == group for run in self._held[why])

    def of(self, *reasons: State, group: str | None = None) -> list[Run]:
        """Return the runs that are held for these reasons, oldest first."""
        runs = [run for why in reasons for run in self._held[why] if group is None or run.group == group]
        return sorted(runs, key=lambda run: run.came)

    def hold(self, run: Run, why: State, pause: object = None) -> None:
        """Hold a run, for another reason if it is held already."""
        self.release(run, why)
        run.state = why
        self._held[why][run] = pause
        self._changed(why)

    def release(self, run: Run, now: State) -> bool:
        """Give a held run another state; return False if the run was not held."""
        if run not in self:
            return False
        why, run.state = run.state, now
        del self._held[why][run]
        self._changed(why)
        return True

    def pause(self, runs: list[Run], why: State, seconds: float, again: Callable[[list[Run]], None]) -> None:
        """Hold runs for some seconds; then call ``again`` with those that are still in this pause."""
        pause = object()
        for run in runs:
            self.hold(run, why, pause)

        def over() -> None:
            held = self._held[why]
            here = [run for run in runs if held.get(run) is pause]
            for run in here:
                self.release(run, State.WAITING)
            again(here)

        self._timekeeper.later(seconds, lambda: self._loop.post(over))

    def wait_first(self, runs: Iterable[Run]) -> None:
        """Have runs wait for a slot, before all other runs."""
        first = list(runs)
        for run in first:
            self.release(run, State.WAITING)
        self.waiting.extendleft(reversed(first))

    def forget(self, *but: State) -> None:
        """Drop all runs, but for those held for the given reasons: the broker delivers them again."""
        self.waiting.clear()
        for held in (held for why, held in self._held.items() if why not in but):
            for run in held:
                run.state = State.GONE
            held.clear()
        self._changed(*_MORE)

    def _changed(self, *reasons: State) -> None:
        if not _MORE.keys().isdisjoint(reasons):
            self._let_in(sum(min(len(self._held[why]), most) for why, most in _MORE.items()))
