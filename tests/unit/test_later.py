"""What is held in a worker for a while, and how many messages more the broker may deliver meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from celery_throttle.worker.later import Later
from celery_throttle.worker.runs import State

if TYPE_CHECKING:
    from collections.abc import Callable


class Timers:
    """Instead of the timekeeper and the loop: what is due happens when the test says so."""

    def __init__(self) -> None:
        self._due: list[Callable[[], None]] = []

    def later(self, seconds: float, function: Callable[[], None]) -> None:
        assert seconds > 0
        self._due.append(function)

    def post(self, function: Callable[..., None], *args: Any) -> None:
        function(*args)

    def ring(self) -> None:
        due, self._due = self._due, []
        for function in due:
            function()


class Held:
    """What is known of a run here."""

    state, refusals, request = State.LATER, 0, None


def test_the_broker_delivers_as_many_as_before_when_nothing_is_held_any_more() -> None:
    """More than count wait since as many are parked as may be; when they come again, the store refuses their call."""
    timers: Any = Timers()
    notices: Any = SimpleNamespace(crowded=lambda request: None)
    changes: list[int] = []
    later = Later(timers, timers, changes.append, notices)
    runs: list[Any] = [Held() for _ in range(250)]
    for run in runs:
        later.crowded(run, lambda run: later.put_off([run], lambda here: None))
    assert sum(changes) == 200
    timers.ring()
    assert sum(changes) == len(later.refused) == 250
    timers.ring()
    assert sum(changes) == 0
