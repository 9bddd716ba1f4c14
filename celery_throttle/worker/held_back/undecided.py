"""The runs that wait for the store's word."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_throttle.worker.runs import State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_throttle.worker.runs import Run

__all__ = ["Undecided"]


class Undecided:
    """Runs in the states ``ASKING``, ``UNSURE`` and ``PARKING``, oldest first.

    Attributes:
        asking: how many are ``ASKING``: each has a slot.
    """

    def __init__(self) -> None:
        self._runs: dict[Run, None] = {}
        self.asking = 0

    def __contains__(self, run: Run) -> bool:
        return run in self._runs

    def __iter__(self) -> Iterator[Run]:
        return iter(tuple(self._runs))

    def of(self, group: str) -> list[Run]:
        """Return those that wait for the store of this group."""
        return [run for run in self._runs if run.group == group]

    def ask(self, run: Run) -> None:
        """It has a slot, and the store is asked for its permits."""
        run.state = State.ASKING
        self.asking += 1
        self._runs[run] = None

    def doubt(self, run: Run) -> None:
        """Its answer takes long, if it asks: somebody else has its slot until then."""
        if run.state is State.ASKING:
            self.asking -= 1
            run.state = State.UNSURE

    def park(self, run: Run) -> None:
        """The store is told to set it aside."""
        self.decide(run, State.PARKING)
        self._runs[run] = None

    def decide(self, run: Run, now: State) -> bool:
        """Take out a run, if it is here, whose state is another now; return whether it was."""
        if run.state is State.ASKING:
            self.asking -= 1
        waited = run in self._runs
        self._runs.pop(run, None)
        run.state = now
        return waited
