"""Let a worker answer Celery's remote control in its consumer thread, within a short timeout."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from typing import TYPE_CHECKING, Any

from celery import bootsteps

from celery_throttle.control import panel
from celery_throttle.control.remote import carry_out
from celery_throttle.version import versions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from celery_throttle.worker.loop import Loop

__all__ = ["Remote", "RemoteStep"]

#: The most seconds for which the consumer waits: it answers before it goes on, and the sender waits a second.
_PATIENCE = 0.5


class Remote:
    """Answer the commands of `celery_throttle.control.panel`.

    Args:
        app: the worker's app.
        hostname: the worker's name in Celery.
        loop: the loop of the gate.
        report: returns the worker's own state; called on the loop.
    """

    def __init__(self, app: Any, hostname: str, loop: Loop, report: Callable[[], dict[str, Any]]) -> None:
        self._app, self._hostname, self._loop, self._report = app, hostname, loop, report
        self._one_at_a_time = threading.Lock()

    def inspect(self) -> dict[str, Any]:
        """Return the versions of this worker, and its own state."""
        try:
            return {"versions": versions(), **self._loop.ask(self._report, _PATIENCE)}
        except NotInTime:
            return {"error": f"the gate of this worker is busy: no answer within {_PATIENCE:g} s"}

    def steer(self, command: str, arguments: Mapping[str, Any]) -> dict[str, str]:
        """Change a limit, in a thread, because a store that does not answer must not block the worker's tasks."""
        if not self._one_at_a_time.acquire(blocking=False):
            return {"error": "the store has not answered the last command yet: ask again in a second"}
        answer: Future[dict[str, str]] = Future()
        threading.Thread(
            target=self._carry_out, args=(answer, command, arguments), name="celery-throttle-control", daemon=True
        ).start()
        try:
            return answer.result(_PATIENCE)
        except NotInTime:
            return {"error": f"the store did not answer within {_PATIENCE:g} s: it may be done or not, do it again"}

    def _carry_out(self, answer: Future[dict[str, str]], command: str, arguments: Mapping[str, Any]) -> None:
        try:
            done: Any = carry_out(self._app, command, arguments, by=f"celery control at {self._hostname}")
        except Exception as error:  # noqa: BLE001 - Celery reports it, as for its own commands
            done = error
        self._one_at_a_time.release()  # before the answer, because its receiver may send the next command
        if isinstance(done, Exception):
            answer.set_exception(done)
        else:
            answer.set_result(done)


class RemoteStep(bootsteps.Step):
    """Add the answers to a worker that throttles."""

    requires = ("celery_throttle.worker.bootsteps:WorkerStep",)

    def include_if(self, worker: Any) -> bool:
        """Return whether the worker has the gate."""
        return hasattr(worker, "throttling")

    def create(self, worker: Any) -> None:
        """Register the commands, also in a process without the `celery` command, as with `app.Worker()`."""
        panel.register()
        throttling = worker.throttling
        worker.throttle_remote = Remote(worker.app, worker.hostname, throttling.loop, throttling.report)
