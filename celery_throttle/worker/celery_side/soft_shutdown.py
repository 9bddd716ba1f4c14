"""Read the results of Celery's pool of processes while the worker's hub takes no turns.

Celery's soft shutdown sleeps in a signal handler, and kombu sleeps while the broker is away. So the ends of tasks stay
in the pipes of the pool.
"""

from __future__ import annotations

import logging
import sys
from types import FrameType, GeneratorType
from typing import Any

__all__ = ["PoolResults", "is_interrupted_wait"]

logger = logging.getLogger(__name__)

_HANDLERS = "celery.apps.worker"
_POLLERS = "kombu.utils.eventio"


def is_interrupted_wait(hub: Any) -> bool:
    """Return whether the signal handler that runs now has interrupted the hub while it waited for events.

    Only then no code of the pool, of the broker connection or of the gate is half done.
    """
    frame: FrameType | None = sys._getframe()  # noqa: SLF001
    handler = False
    while frame is not None and (not handler or _module_of(frame) == _HANDLERS):
        handler = handler or _module_of(frame) == _HANDLERS
        frame = frame.f_back
    if frame is None or _module_of(frame) != _POLLERS or frame.f_code.co_name != "poll":
        return False
    waits = frame.f_back
    return waits is not None and waits.f_locals.get("self") is hub


def _module_of(frame: FrameType) -> object:
    return frame.f_globals.get("__name__")


class PoolResults:
    """The pipes of a pool's processes, which another hub than the worker's reads for a while.

    Args:
        pool: Celery's `AsynPool`; None for another pool, which has no pipes.
        hub: the worker's hub, which has the callbacks for the pipes and does not turn.
    """

    def __init__(self, pool: Any, hub: Any) -> None:
        self._pool, self._hub = pool, hub
        self._pipes: list[int] = []

    def read_on(self, hub: Any) -> None:
        """Have a hub read the pipes; in its thread."""
        pool = self._pool
        self._pipes = list(pool._fileno_to_outq) if pool is not None else []  # noqa: SLF001
        for pipe in self._pipes:
            if pipe not in self._hub.readers:  # Celery has reset it, and sets it up again with the next connection
                self._hub.add_reader(pipe, pool.handle_result_event, pipe)
            hub.add_reader(pipe, self._read, hub, pipe)

    @property
    def half_read(self) -> bool:
        """Whether a part of a result was read: with the next broker connection Celery would read from its middle."""
        return any(isinstance(self._hub.readers.get(pipe, (None,))[0], GeneratorType) for pipe in self._pipes)

    def leave(self, hub: Any) -> None:
        """Have the hub read them no more; in its thread."""
        for pipe in self._pipes:
            hub.remove(pipe)
        self._pipes.clear()

    def _read(self, hub: Any, pipe: int) -> None:
        """Call the callback of the worker's hub, as that hub would; it may be half a message, a generator."""
        callback, arguments = self._hub.readers.get(pipe, (None, ()))
        if callback is None:  # its process is gone
            hub.remove(pipe)
            return
        try:
            if isinstance(callback, GeneratorType):
                next(callback, None)
            else:
                callback(*arguments)
        except Exception:
            logger.exception("celery_throttle: a result of the pool cannot be read")
            self._hub.remove(pipe)
