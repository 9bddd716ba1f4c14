"""Another service: it takes permits of a limit outside of tasks, and has no broker."""

from __future__ import annotations

import threading
import time
import uuid
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from celery_throttle.errors import NotAcquired, StoreUnavailable
from tests.chaos.kinds import OUTSIDE, Call
from tests.chaos.traffic import Published
from tests.support.journal import Journal

__all__ = ["Service"]


class Service:
    """Holds one permit after the other for a moment, from a thread of its own.

    Attributes:
        calls: one for each permit that it had.
    """

    def __init__(self, app: Any, journal: Journal) -> None:
        self.calls: list[Published] = []
        self._app, self._journal, self._over = app, journal, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        self._thread.join(timeout=60)
        if self._thread.is_alive():
            raise AssertionError("The service hangs.")

    def _run(self) -> None:
        [limit] = self._app.tasks["chaos.shared_early"].limit
        while not self._over.wait(0.2):
            with suppress(NotAcquired, StoreUnavailable), limit.acquire(timeout=2, app=self._app):
                self._hold()

    def _hold(self) -> None:
        call = Published(Call(OUTSIDE, f"outside-{len(self.calls)}", {}), uuid.uuid4().hex, time.monotonic())
        self.calls.append(call)
        request = SimpleNamespace(
            id=call.task_id, task="chaos.outside", hostname="outside@x", retries=0, delivery_info=None
        )
        with self._journal.run(request, call.call.label):
            time.sleep(0.05)
