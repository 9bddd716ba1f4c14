"""Revoked tasks that have left their lines, and a result backend that is away."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from celery_throttle.store.exchange_reply import Withdrawn
from celery_throttle.worker.celery_side.revocation import Withdrawing
from tests.support.timers import Timers


class Backend:
    """Records the revokes that reach it, unless it is away, or the task is one that it never takes."""

    def __init__(self) -> None:
        self.away, self.never, self.heard, self.asked = True, "", list[str](), 0

    def make(self, message: bytes, **_: Any) -> Any:
        return SimpleNamespace(revoked=lambda: self._hear(message.decode()))

    def _hear(self, task: str) -> None:
        self.asked += 1
        if self.away or task == self.never:
            raise OSError("away")
        self.heard.append(task)


def withdrawn() -> tuple[Timers, Backend]:
    """Three tasks have left their lines."""
    timers: Any = Timers()
    backend: Any = Backend()
    withdrawing = Withdrawing(timers, timers)
    for task in ("a", "b", "c"):
        withdrawing.report(Withdrawn(task, task.encode()), backend)
    return timers, backend


def test_all_reports_arrive_once_the_backend_is_back() -> None:
    """Until then it is asked once at a time, because each time may take as long as Celery tries."""
    timers, backend = withdrawn()
    assert backend.asked == 1
    assert timers.ring() == 1
    assert (backend.asked, backend.heard) == (2, [])
    backend.away = False
    timers.ring()
    assert sorted(backend.heard) == ["a", "b", "c"]
    assert timers.ring() == 0


def test_failed_report_delays_no_other() -> None:
    timers, backend = withdrawn()
    backend.away, backend.never = False, "b"
    timers.ring()
    timers.ring()
    assert sorted(backend.heard) == ["a", "c"]
    assert timers.ring() == 1
