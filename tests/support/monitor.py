"""A monitor of the events of an app, as `celery events` and Flower are."""

from __future__ import annotations

import threading
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

from tests.support.waiting import HANGS_AFTER, until

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Monitor"]


class Monitor:
    """Receives all events of the workers of an app in the time of the block.

    Attributes:
        state: the view that `celery events` and Flower have.
        seen: the events, in the order in which they came.
    """

    def __init__(self, app: Any) -> None:
        self.state, self.seen = app.events.State(), list[dict[str, Any]]()
        self._app, self._stack, self._stopped = app, ExitStack(), threading.Event()
        self._thread = threading.Thread(target=self._listen)

    def __enter__(self) -> Self:
        connection = self._stack.enter_context(self._app.connection_for_read())
        receiver = self._app.events.Receiver(connection, handlers={"*": self._hear})
        self._connection, *_ = self._stack.enter_context(receiver.consumer_context())  # a clone
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join(HANGS_AFTER)
        self._stack.close()

    def _listen(self) -> None:
        while not self._stopped.is_set():
            with suppress(TimeoutError):
                self._connection.drain_events(timeout=0.05)

    def _hear(self, event: dict[str, Any]) -> None:
        self.seen.append(event)
        self.state.event(event)

    def types(self, task_id: str) -> list[str]:
        """Return the types of the events of a task."""
        return [event["type"] for event in list(self.seen) if event.get("uuid") == task_id]

    def count(self, task_id: str, type_: str) -> int:
        """Return the number of events of a task of this type."""
        return self.types(task_id).count(type_)

    def wait_for(self, task_id: str, *types: str) -> None:
        """Wait until a task has had events of these types."""
        until(lambda: set(types) <= set(self.types(task_id)), describe=lambda: self.types(task_id))
