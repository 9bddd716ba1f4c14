"""Set-ups of a process that all its workers share: a test may have several workers in one process."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SharedByWorkers"]


class SharedByWorkers:
    """A set-up of the process, which the first worker makes and the last one undoes.

    Args:
        make: makes it, again and again with the same effect.
        undo: undoes it.
    """

    def __init__(self, make: Callable[[], object], undo: Callable[[], object]) -> None:
        self._make, self._undo = make, undo
        self._workers: WeakSet[Any] = WeakSet()  # weak, because a worker may fail before it could end
        self._changes = threading.RLock()

    def begin(self, worker: Any) -> None:
        """Have the set-up while this worker runs, in its process and the children of that."""
        with self._changes:
            self._workers.add(worker)
            self._make()

    def end(self, worker: Any) -> None:
        """Note that a worker has ended."""
        with self._changes:
            if worker in self._workers:
                self._workers.discard(worker)
                if not self._workers:
                    self._undo()
