"""Have kombu call back while it tries to connect to the broker, which keeps a thread for as long as the broker is away.

Celery's consumer waits there for the broker, and so does a heartbeat or any other event that is sent meanwhile.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from functools import wraps
from typing import TYPE_CHECKING, Any

from kombu import connection as kombu_connection
from kombu.utils import functional

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

__all__ = ["between_attempts", "no_more", "sleep_without_blocking"]

logger = logging.getLogger(__name__)

#: By process and thread, because a child of the pool has the thread of its parent: called between its attempts.
_between: dict[tuple[int, int], Callable[[], None]] = {}
#: Code that may be half through a change of the pool, or of the gate.
_CHANGES = ("billiard.", "celery.concurrency.", "celery_throttle.worker.")

_attempts_of_kombu: Any = vars(kombu_connection)["retry_over_time"]


@wraps(_attempts_of_kombu)
def _attempts(
    fun: Any,
    catch: Any,
    args: Any = None,
    kwargs: Any = None,
    errback: Any = None,
    max_retries: Any = None,
    interval_start: float = 2,
    interval_step: float = 2,
    interval_max: float = 30,
    callback: Any = None,
    **others: Any,
) -> Any:
    turn = _between.get(_here())

    def between() -> None:
        if callback is not None:
            callback()  # Celery's own ends the worker if it is to stop
        if turn is not None:
            _call(turn)

    return _attempts_of_kombu(
        fun, catch, args, kwargs, errback, max_retries, interval_start, interval_step, interval_max,
        callback if turn is None else between, **others,
    )  # fmt: skip


def _call(turn: Callable[[], None]) -> None:
    try:
        if not _amid_a_change():
            turn()
    except Exception:
        logger.exception("celery_throttle: error while the broker is away")


def _amid_a_change() -> bool:
    frame: FrameType | None = sys._getframe()  # noqa: SLF001
    while frame is not None and (_module_of(frame) == __name__ or not _module_of(frame).startswith(_CHANGES)):
        frame = frame.f_back
    return frame is not None


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))


def _here() -> tuple[int, int]:
    return os.getpid(), threading.get_ident()


def between_attempts(turn: Callable[[], None]) -> None:
    """Have kombu call a function after each failed attempt of the calling thread, and each second until the next one.

    It is not called while code of the pool or of the gate is half done. An error that it raises is logged.
    """
    _between[_here()] = turn
    vars(kombu_connection)["retry_over_time"] = _attempts  # harmless for other threads, so for good


def no_more(turn: Callable[[], None]) -> None:
    """Do not call the function any more."""
    for here in [here for here, each in _between.items() if each == turn]:
        del _between[here]


def sleep_without_blocking() -> None:
    """Have kombu sleep between its attempts as the other code of a green process does.

    Celery imports kombu while gevent replaces the functions that block (gevent looks at Celery's lazy attributes), so
    kombu has the function that was there before. With that, no greenlet runs while the broker is away.
    """
    vars(functional)["sleep"] = time.sleep
