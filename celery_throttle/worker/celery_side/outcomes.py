"""Keep the outcome of a body that the result backend cannot take now, and store it when the backend is back.

Celery stores its own error in place of such an outcome, or nothing: then a message that was not acknowledged comes
again. A body that has ended must not run again for that. So here the task ends as its body has, and the outcome waits.
If the process ends first, a task that is acknowledged late is published again, as its acknowledgement promises.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from celery._state import get_current_task
from celery.backends.base import Backend
from celery.signals import worker_process_shutdown

from celery_throttle.tasks.publish import HEADER
from celery_throttle.tasks.registry import dedup_of, policies_of
from celery_throttle.worker.celery_side import remember
from celery_throttle.worker.celery_side.failing import may_pass
from celery_throttle.worker.celery_side.in_process import SharedByWorkers
from celery_throttle.worker.user_code import call

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["keeping"]

logger = logging.getLogger(__name__)

_store = {name: getattr(Backend, name) for name in ("mark_as_done", "mark_as_failure", "mark_as_retry")}

#: Seconds until the first try, and the most between two.
_FIRST, _MOST = 1.0, 30.0
#: Seconds that an ending process waits for the backend, and between two tries then.
_LAST, _BEFORE_END = 3.0, 0.2
#: The most outcomes that a process keeps.
_KEPT = 1000


class _Outcome(NamedTuple):
    task: Any
    task_id: str
    name: str
    args: tuple[Any, ...]
    options: dict[str, Any]
    again: Any = None  # the call that is published if the process ends first

    def store(self) -> None:
        """Store it by the backend of the calling thread."""
        _store[self.name](self.task.backend, self.task_id, *self.args, **self.options)


class _Kept:
    """The outcomes that a process keeps, and the thread that stores them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._outcomes: deque[_Outcome] = deque()
        self._thread: threading.Thread | None = None
        self._ends_at: float | None = None

    def keep(self, outcome: _Outcome) -> None:
        """Store an outcome later."""
        with self._changed:
            self._outcomes.append(outcome)
            self._ends_at = None  # a test may have several workers in one process, one after the other
            if len(self._outcomes) > _KEPT:
                _log_lost(self._outcomes.popleft(), f"more than {_KEPT} wait for the result backend")
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="celery-throttle-outcomes", daemon=True)
                with suppress(RuntimeError):  # no thread can be started now: the next outcome tries again
                    self._thread.start()

    def end(self) -> None:
        """Store what can be stored within a few seconds, and drop the rest."""
        with self._changed:
            thread, self._ends_at = self._thread, monotonic() + _LAST
            self._changed.notify_all()
        if thread is not None and thread.is_alive():
            thread.join(_LAST)
        with self._changed:
            left, self._outcomes = self._outcomes, deque()
        for outcome in left:
            _give_back(outcome)

    def _run(self) -> None:
        pause = _FIRST
        while (outcome := self._next(pause)) is not None:
            try:
                call(outcome.store)
            except Exception as error:  # noqa: BLE001 - each backend has errors of its own
                pause = min(max(2 * pause, _FIRST), _MOST)
                if may_pass(error):
                    continue
                _log_lost(outcome, repr(error))
            else:
                pause = 0.0
                logger.info("Task %s[%s]: its outcome is stored now", outcome.task.name, outcome.task_id)
            self._drop(outcome)

    def _next(self, pause: float) -> _Outcome | None:
        """Wait for the next try; return the oldest outcome, None if there is none, or no time is left."""
        with self._changed:
            self._changed.wait(pause if self._ends_at is None else min(pause, _BEFORE_END))
            is_over = self._ends_at is not None and monotonic() > self._ends_at
            if is_over or not self._outcomes:
                self._thread = None
                return None
            return self._outcomes[0]

    def _drop(self, outcome: _Outcome) -> None:
        with self._changed:
            if self._outcomes and self._outcomes[0] is outcome:
                self._outcomes.popleft()


_kept = _Kept()


def _begin() -> None:
    for name in _store:
        setattr(Backend, name, _keeping(name))
    worker_process_shutdown.connect(_process_ends, weak=False, dispatch_uid=__name__)


def _end() -> None:
    for name, store in _store.items():
        setattr(Backend, name, store)
    worker_process_shutdown.disconnect(_process_ends, dispatch_uid=__name__)
    _kept.end()


def _process_ends(**_: Any) -> None:
    _kept.end()


def _keeping(name: str) -> Callable[..., Any]:
    """Return a function that stores an outcome as Celery does, or later."""
    store = _store[name]

    def mark(backend: Any, task_id: str, *args: Any, **options: Any) -> Any:
        try:
            return store(backend, task_id, *args, **options)
        except Exception as error:
            task: Any = get_current_task()
            if task is None or task.request.id != task_id or not _is_ours(task):
                raise
            if name == "mark_as_done" and remember.lost(task, error):
                return None
            if not may_pass(error):
                raise
            logger.error(  # noqa: TRY400 - its traceback is of no use
                "Task %s[%s] has ended, and its outcome is kept here until the result backend is back: %r",
                task.name, task_id, error,
            )  # fmt: skip
            _kept.keep(_Outcome(task, task_id, name, args, options, None if name == "mark_as_retry" else _again(task)))
            return None

    return mark


def _is_ours(task: Any) -> bool:
    return str(task.name) in policies_of(task.app) or dedup_of(task) is not None


def _again(task: Any) -> Any:
    """Return the call that runs a task again which is acknowledged late, None for any other task."""
    if not task.acks_late:
        return None
    call = task.signature_from_request(task.request, countdown=_FIRST)
    headers = call.options.get("headers") or {}
    header = {name: value for name, value in (headers.get(HEADER) or {}).items() if name != "publication"}
    return call.set(headers={**headers, HEADER: header})


def _give_back(outcome: _Outcome) -> None:
    if outcome.again is None:
        _log_lost(outcome, "the process has ended")
        return
    try:
        outcome.again.apply_async()
    except Exception as error:  # noqa: BLE001 - each broker has errors of its own
        _log_lost(outcome, f"the process has ended, and it cannot be published again: {error!r}")
    else:
        logger.warning(
            "Task %s[%s] has ended, and runs again, because this process ends before the result backend is back",
            outcome.task.name, outcome.task_id,
        )  # fmt: skip


def _log_lost(outcome: _Outcome, why: str) -> None:
    logger.error("Task %s[%s] has ended, and its outcome is lost: %s", outcome.task.name, outcome.task_id, why)


#: Keeps outcomes in a process with workers, and in its children.
keeping = SharedByWorkers(_begin, _end)
