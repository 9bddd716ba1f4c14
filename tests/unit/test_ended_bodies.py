"""Permits of a worker that hangs: which lapse, and when."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from celery_throttle.core.keys import Keys
from celery_throttle.store.calls import Store
from celery_throttle.worker import runs as module
from celery_throttle.worker.celery_side.watch import watch
from celery_throttle.worker.ended_bodies import EndedBodies
from celery_throttle.worker.runs import Permit, Run, State
from celery_throttle.worker.store_side.renewals import renewals
from tests.unit.runs import run_of

LEASE = 12.0


class Hung:
    """A worker whose loop hangs, with one running task; `look` is a renewal, so many seconds after the last one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.unread: set[Run] = set()
        self._now = 100.0
        monkeypatch.setattr(module, "monotonic", lambda: self._now)
        slots: Any = SimpleNamespace(has_unread_end=self.unread.__contains__)
        self._bodies = EndedBodies(slots, LEASE)
        self.run = run_of("t")
        self.run.state = State.RUNNING
        self.permit = self.run.permit = Permit(self.run)

    def look(self, seconds: float = LEASE / 3) -> int:
        """Return how many permits are renewed."""
        self._now += seconds
        self._bodies.let_lapse([self.permit])
        return sum(len(page.rows) for page in renewals(Store(Keys("x"), LEASE), "w", 1, [self.permit]))

    def end(self) -> None:
        """Have the pool report the end of the body, in a thread."""
        nothing: Any = lambda *_, **__: None  # noqa: E731
        vars(self.run.request).update(on_success=nothing, on_failure=nothing, on_timeout=nothing, reject=nothing)
        watch(self.run, nothing, nothing)
        self.run.request.on_success((0, None, 1.0))


@pytest.fixture
def hung(monkeypatch: pytest.MonkeyPatch) -> Hung:
    return Hung(monkeypatch)


@pytest.mark.parametrize("process", [False, True])
def test_permit_of_an_ended_body_is_renewed_once(hung: Hung, process: bool) -> None:
    assert hung.look(1000) == 1
    if process:
        hung.unread.add(hung.run)
    else:
        hung.end()
    assert [hung.look() for _ in range(3)] == [1, 0, 0]


def test_end_that_is_read_in_time_keeps_the_permit(hung: Hung) -> None:
    hung.unread.add(hung.run)
    assert hung.look() == 1
    hung.unread.clear()  # the next body of that child goes on
    assert hung.look(LEASE) == 1
    hung.unread.add(hung.run)
    assert [hung.look(), hung.look(LEASE / 4)] == [1, 1]


@pytest.mark.parametrize("change", ["goes back", "idle"])
def test_run_that_the_loop_knows_to_be_over_keeps_its_permit(hung: Hung, change: str) -> None:
    """The store is full, say, and does not take its task back."""
    hung.end()
    hung.run.state = State.GONE
    if change == "idle":
        hung.permit.run = None
    assert [hung.look(LEASE) for _ in range(3)] == [1, 1, 1]
