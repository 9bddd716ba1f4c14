"""The state THROTTLED in the result backend, for tasks that are about to be parked (``throttle_result_state``).

A late THROTTLED over a SUCCESS would be a lost result, and no backend writes on a condition. So it is written before
the store hears of the task, while its message is unacknowledged here: until then nobody else can run it, and whatever
is written of it later is later. Not of one that the broker delivers again, since whoever had it may still run it; and
only over what a task has that does not run: the same id may have been sent twice, and a worker that was stopped for a
while has lost its message without knowing it.

Backends wait for their servers, and try for long. So they are asked in a thread. A task waits for its own write however
long that takes, or it could come too late; those behind it wait for a second, and are parked without.
"""

from __future__ import annotations

import logging
import threading
from datetime import datetime, timedelta, timezone
from queue import Queue
from time import monotonic
from typing import TYPE_CHECKING, Any

from celery import states
from celery.app.task import Context

from celery_throttle.worker.runs import State
from celery_throttle.worker.telling import limits_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_throttle.worker.loop import Loop
    from celery_throttle.worker.runs import Run
    from celery_throttle.worker.timekeeper import Timekeeper

__all__ = ["THROTTLED", "ResultStates"]

logger = logging.getLogger(__name__)

THROTTLED = "THROTTLED"
#: What a task that does not run may have: nothing, or that its last attempt is to be repeated.
_OVER = (states.PENDING, states.RETRY)
#: Seconds that one waits behind others, and for which nothing is written after it has failed.
_PATIENCE, _PAUSE = 1.0, 30.0


class ResultStates:
    """Writes states; all but the writing on the loop.

    Args:
        loop: everything else happens on it.
        timekeeper: says when those behind a slow write have waited for long enough.
        park: parks a run; called once for each that was given.
    """

    def __init__(self, loop: Loop, timekeeper: Timekeeper, park: Callable[[Run], None]) -> None:
        self._loop, self._timekeeper, self._park = loop, timekeeper, park
        self._behind: dict[Run, float] = {}  # not begun, since when; whoever takes one out has to see to it
        self._todo: Queue[Run] = Queue()
        self._thread: threading.Thread | None = None
        self._paused_until = 0.0
        self._timed = False  # whether somebody will look whether those behind have waited for long

    def write_and_park(self, run: Run) -> None:
        """Write the state of a run, if it is to have one, and park it."""
        if not run.gets_state() or monotonic() < self._paused_until:
            self._park(run)
            return
        self._behind[run] = monotonic()
        self._todo.put(run)
        if not self._timed:
            self._hurry_later()
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_all, name="celery-throttle-states", daemon=True)
            self._thread.start()

    def _hurry_later(self) -> None:
        self._timed = True
        self._timekeeper.later(_PATIENCE / 2, lambda: self._loop.post(self._hurry))

    def _hurry(self) -> None:
        """Park those that have waited for too long behind others."""
        late = monotonic() - _PATIENCE
        for run in [run for run, since in list(self._behind.items()) if since <= late]:
            if self._behind.pop(run, None) is not None:
                self._park(run)
        self._timed = False
        if self._behind:
            self._hurry_later()

    def _write_all(self) -> None:
        while True:
            run = self._todo.get()
            if self._behind.pop(run, None) is None:
                continue
            # One that is dropped meanwhile is left to the broker, which may have given it to another worker.
            if run.state is State.PARKING and monotonic() >= self._paused_until:
                self._try(run)
            self._loop.post(self._park, run)

    def _try(self, run: Run) -> None:
        try:
            _write(run)
        except Exception as error:  # noqa: BLE001 - each backend has its own
            self._paused_until = monotonic() + _PAUSE
            logger.warning(
                "celery_throttle: cannot write the state of %s[%s] (%r): parked tasks have none for %g s",
                run.request.name, run.request.id, error, _PAUSE,
            )  # fmt: skip


def _write(run: Run) -> None:
    request, backend = run.request, _backend_of(run.request.task)
    # `rpc://` cannot tell, but its client takes them in the order in which they were sent.
    tells = hasattr(backend, "_get_task_meta_for")
    if tells and backend.get_task_meta(request.id, cache=False)["status"] not in _OVER:
        return
    since = datetime.now(timezone.utc) - timedelta(seconds=monotonic() - run.came)
    about = {"limits": limits_of(run), "since": since.isoformat(timespec="milliseconds")}
    backend.store_result(request.id, about, THROTTLED, request=Context(request.request_dict))


def _backend_of(task: Any) -> Any:
    """Return the backend of a task; one that is this thread's own does not try again and again."""
    backend = task.backend
    if backend is task.app.backend and not backend.thread_safe:
        backend.always_retry = False
        backend.retry_policy = {**backend.retry_policy, "max_retries": 0}
    return backend
