"""The calls that this process has published and the bodies that it has begun, from Celery's signals."""

from __future__ import annotations

import itertools
import threading
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NamedTuple

from celery.signals import after_task_publish, before_task_publish, task_postrun, task_prerun, task_revoked
from celery.utils.time import maybe_iso8601

from celery_throttle.core.policy import costs_of
from celery_throttle.signals import duplicate_dropped
from celery_throttle.tasks.ours import CONCLUDE
from celery_throttle.tasks.registry import call_of, policies_of
from celery_throttle.testing.bodies import Body

if TYPE_CHECKING:
    from celery_throttle.testing.bodies import Gate

__all__ = ["Call", "Seen"]


class Call(NamedTuple):
    """A task id that this process has published.

    Attributes:
        name: the name of the task.
        args: its positional arguments.
        kwargs: its arguments by name.
        headers: the headers of its message.
        queue: its queue.
        eta: the time before which it must not start.
        published: how often it was published; a retry is one more.
    """

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    headers: dict[str, Any]
    queue: str
    eta: datetime | None
    published: int

    @property
    def is_early(self) -> bool:
        """Whether its ETA has not come, by the real clock."""
        return self.eta is not None and self.eta > datetime.now(timezone.utc)


class Seen:
    """Records the calls and bodies of one app, from `connect` to `disconnect`.

    Args:
        app: the Celery app.

    Attributes:
        calls: the published calls, by task id.
        bodies: the bodies, in the order of their begin.
        over: the ids of tasks that ended without a body.
        gates: the gates that hold bodies.
        version: changes with each record.
    """

    def __init__(self, app: Any) -> None:
        self._app, self._versions, self.version = app, itertools.count(1), 0
        self.calls: dict[str, Call] = {}
        self.bodies: list[Body] = []
        self.over: set[str] = set()
        self.gates: list[Gate] = []
        self._publishing: dict[str, Call] = {}
        self._receivers: list[tuple[Any, Any]] = [
            (before_task_publish, self._publishes),
            (after_task_publish, self._published),
            (task_prerun, self._begins),
            (task_postrun, self._ended),
            (task_revoked, lambda request, **_: self._without_body(request.id)),
            (duplicate_dropped, lambda event, **_: self._without_body(event.task_id)),
        ]

    def connect(self) -> None:
        """Begin to record."""
        # Celery before 5.7 takes the bound methods of two objects for one receiver.
        for signal, receiver in self._receivers:
            signal.connect(receiver, weak=False, dispatch_uid=str(id(self)))

    def disconnect(self) -> None:
        """Record no more."""
        for signal, receiver in self._receivers:
            signal.disconnect(receiver, dispatch_uid=str(id(self)))

    def clear(self) -> None:
        """Forget all records."""
        self.calls.clear()
        self._publishing.clear()
        self.bodies.clear()
        self.over.clear()

    def bodies_of(self, task_id: str) -> list[Body]:
        """Return the bodies of a task."""
        return [each for each in list(self.bodies) if each.task_id == task_id]

    def is_decided(self, task_id: str) -> bool:
        """Return whether the task has begun as often as it was published, ended, or waits for its ETA."""
        call = self.calls[task_id]
        # The broker delivers the message of a lost body again if the task is acknowledged late.
        again = self._app.tasks[call.name].acks_late
        began = sum(not (each.lost and again) for each in self.bodies_of(task_id))
        return task_id in self.over or call.is_early or began >= call.published

    def lose(self, node: str) -> None:
        """Mark the bodies that run on a worker as lost."""
        for each in list(self.bodies):
            if each.node == node:
                each.lose()
        for gate in self.gates:
            gate.open(0)  # it looks again
        self._changed()

    def _changed(self) -> None:
        self.version = next(self._versions)

    def _publishes(self, sender: Any, body: Any, headers: Any, **about: Any) -> None:
        if "id" not in headers or sender not in self._app.tasks:  # of an old protocol, or of another program
            return
        queue = about["declare"][0].name if about.get("declare") else about["routing_key"]
        eta, before = maybe_iso8601(headers.get("eta")), self.calls.get(headers["id"])
        if eta is not None and eta.tzinfo is None:
            eta = eta.replace(tzinfo=self._app.timezone)
        published = 1 + (before.published if before else 0)
        args, kwargs = tuple(body[0]), dict(body[1])
        self._publishing[headers["id"]] = Call(sender, args, kwargs, dict(headers), str(queue), eta, published)

    def _published(self, headers: Any, **_: Any) -> None:
        # Only now, because a publish may fail; only the signal before it has the queue.
        if (call := self._publishing.pop(headers.get("id"), None)) is not None:
            self.calls[headers["id"]] = call
            self._changed()

    def _begins(self, sender: Any, task_id: str, args: Any, kwargs: Any, **_: Any) -> None:
        if sender.app is not self._app or sender.request.is_eager or sender.name == CONCLUDE:
            return
        policy = policies_of(self._app).get(sender.name)
        call = call_of(sender, args, kwargs, sender.request.headers)
        needs = policy.needs(policy.values(call)).text if policy is not None else ""
        body = Body(task_id, sender.name, tuple(args), dict(kwargs), costs_of(needs), _node())
        self.bodies.append(body)
        self._changed()
        for gate in list(self.gates):
            gate.pass_through(body)

    def _ended(self, sender: Any, task_id: str, retval: Any, state: Any, **_: Any) -> None:
        if sender.app is self._app and sender.name == CONCLUDE:
            self._without_body(task_id)
        for each in self.bodies_of(task_id):
            if each.node == _node():
                each.end(state or "", retval)
        self._changed()

    def _without_body(self, task_id: str) -> None:
        self.over.add(task_id)
        self._changed()


def _node() -> str:
    """Return the name of the worker whose thread this is; Celery has one name for all workers of a process."""
    return threading.current_thread().name.partition("/")[0]
