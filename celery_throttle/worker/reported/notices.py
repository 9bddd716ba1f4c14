"""Log which tasks were parked, with the reason, or resumed: the first at once, then one a second with a count.

A worker may park thousands of tasks a second, so the others are only counted. The store is asked for the reason of the
one that is logged.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from celery_throttle.core.wording import one_line, seconds, shortened
from celery_throttle.store.explain import explained
from celery_throttle.store.holders import read_holders
from celery_throttle.store.task_view import read_task_view
from celery_throttle.worker.reported.paced_log import EVERY, OncePerSecond, and_more
from celery_throttle.worker.runs import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_throttle.store.explain import Explanation
    from celery_throttle.store.holders import Holder
    from celery_throttle.tasks.rate_limited import RateLimited
    from celery_throttle.worker.loop import Loop
    from celery_throttle.worker.runs import Run
    from celery_throttle.worker.store_side.calls import Calls
    from celery_throttle.worker.timekeeper import Timekeeper

__all__ = ["Notices"]

logger = logging.getLogger(__name__)

#: The number of holders to read, of all limits of the group, and the number to name.
_LOOKED_AT, _NAMED = 50, 3
#: Why a task may not be parked now.
_PUT_OFF = {
    State.CROWDED: "as many are parked as max_parked allows",
    State.ID_IN_USE: "another call with this task id goes first",
}


class Notices:
    """Logs the tasks that wait, if the log level is INFO or lower; all on the loop.

    Args:
        loop: the loop that everything happens on.
        timekeeper: calls each second, because Celery empties the loop's own timer when the broker connection is lost.
    """

    def __init__(self, loop: Loop, timekeeper: Timekeeper) -> None:

        def later(flush: Callable[[], None]) -> None:
            timekeeper.later(EVERY, lambda: loop.post(flush))

        self._parked = OncePerSecond(later, _ask_why)
        self._resumed = OncePerSecond(later, _log_resumed)
        self._limited = OncePerSecond(later, _log_limited)
        self._put_off = OncePerSecond(later, _log_put_off)

    def close(self) -> None:
        """Ask the store for no more reasons, because the worker is about to stop."""
        self._parked.close()

    def parked(self, run: Run, calls: Calls) -> None:
        """Log a run that the store has parked."""
        logger.debug("Task %s[%s] parked", run.request.name, run.id)  # each task; at INFO one a second
        if logger.isEnabledFor(logging.INFO):
            self._parked.count(run.request, run.id, calls)

    def resumed(self, request: Any, waited: float) -> None:
        """Log a task that starts after waiting in line."""
        if logger.isEnabledFor(logging.INFO):
            self._resumed.count(request, waited)

    def limited(self, request: Any, error: RateLimited) -> None:
        """Log a task whose body has raised `RateLimited`."""
        logger.debug("Task %s[%s] is rate limited", request.name, request.id)
        if logger.isEnabledFor(logging.INFO):
            self._limited.count(request, error)

    def put_off(self, request: Any, why: State) -> None:
        """Log a task that may not be parked."""
        logger.debug("Task %s[%s] waits here", request.name, request.id)
        if logger.isEnabledFor(logging.INFO):
            self._put_off.count(request, why)

    @staticmethod
    def dropped(request: Any, *, has_run: bool) -> None:
        """Log a delivery that does not run, because it is a copy of a message that has run, or is parked."""
        text = "Task %s[%s] is dropped: a copy of a message that %s"
        state = "has run" if has_run else "is parked"
        logger.info(text, request.name, request.id, state, extra=_about(request, "copy_dropped"))


def _log_resumed(request: Any, waited: float, others: int) -> None:
    text = f"Task {request.name}[{request.id}] resumed after {seconds(waited)}"
    _log(text, others, _about(request, "task_resumed") | {"waited": waited})


def _log_limited(request: Any, error: RateLimited, others: int) -> None:
    _log(f"Task {request.name}[{request.id}] is rate limited: {error}", others, _about(request, "rate_limited"))


def _log_put_off(request: Any, why: State, others: int) -> None:
    text = f"Task {request.name}[{request.id}] waits here, unacknowledged: {_PUT_OFF[why]}"
    _log(text, others, _about(request, why.name.lower()))


def _ask_why(request: Any, stored: str, calls: Calls, others: int) -> None:
    """Ask the store for the place of a task and for the holders, and log both when the answers are there."""
    task, about = f"Task {request.name}[{request.id}] parked", _about(request, "task_parked")
    if not calls.link.up:
        _log(task, others, about)
        return
    answers: dict[str, Any] = {}

    def answered(question: str, answer: Any) -> None:
        # In any order: if the server does not have a script, the call is sent again, after the others.
        answers[question] = answer
        if answers.keys() == {"view", "holders"}:
            _log_parked(task, about, others, **answers)

    calls.link.send(calls.store.explain(stored), partial(answered, "view"))
    calls.link.send(calls.store.holders(0, _LOOKED_AT), partial(answered, "holders"))


def _log_parked(task: str, about: dict[str, Any], others: int, view: Any, holders: Any) -> None:
    if isinstance(view, Exception) or isinstance(holders, Exception):
        _log(task, others, about)  # the store is away, which `Outage` logs
        return
    why = explained(str(about["task_id"]), read_task_view(view))
    if why.state == "unknown" and not others:  # ended by now: "parked" would be its last line in the log
        return
    if why.state in ("held", "unknown"):
        _log(f"{task} for a moment", others, about)
        return
    place = f": place {why.place} in the line of {why.bucket}" if why.bucket else ""
    _log(f"{task}{place}{_held_by(why, *read_holders(holders))}. {why.reasons[0].removesuffix('.')}", others, about)


def _held_by(why: Explanation, holders: tuple[Holder, ...], more: bool) -> str:
    ids = [each.task_id for each in holders if any(need.bucket == why.bucket for need in each.needs)]
    return f", held by {shortened(ids, _NAMED, at_least=more)}" if ids else ""


def _about(request: Any, action: str) -> dict[str, Any]:
    return {"action": action, "task_id": request.id, "task_name": request.name}


def _log(text: str, others: int, about: dict[str, Any]) -> None:
    logger.info("%s%s", one_line(text), and_more(others), extra=about | {"others": others})
