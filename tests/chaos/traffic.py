"""Publishes calls at a steady rate, from a thread of its own, and remembers them."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from random import Random
from typing import Any

from tests.chaos.kinds import KINDS, Call

__all__ = ["Published", "Traffic"]

logger = logging.getLogger(__name__)


#: Of task ids.
_ENDS = ("",) * 9 + (":*{ж}\"\\'",)


@dataclass
class Published:
    """One call that was published, at a time of the monotonic clock.

    Attributes:
        task_id: that the call got; a duplicate of a singleton has that of the first.
        sure: whether the broker confirmed it.
        revoked: whether a revoke was requested.
    """

    call: Call
    task_id: str
    at: float
    sure: bool = True
    revoked: bool = False


class Traffic:
    """Calls of all kinds, by seed."""

    def __init__(self, app: Any, rate: float, seed: int) -> None:
        self.published: list[Published] = []
        self._app, self._rate, self._chance = app, rate, Random(f"{seed} traffic")
        self._revokes: SimpleQueue[list[str]] = SimpleQueue()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """Stop, once the broker is there."""
        self._over.set()
        self._thread.join(timeout=60)
        if self._thread.is_alive():
            raise AssertionError("The publisher hangs.")

    def revoke(self, task_ids: list[str]) -> None:
        """Have these revoked soon, by the thread that publishes: the broker may be away."""
        self._revokes.put(task_ids)

    def probe(self, name: str, count: int) -> list[Published]:
        """Publish calls of one kind at once, from the thread that asks, after the end."""
        kind = next(kind for kind in KINDS if kind.name == name)
        for number in range(count):
            self._publish(kind.call(10**6 + number, self._chance))
        return self.published[-count:]

    def _run(self) -> None:
        began, number = time.monotonic(), 0
        weights = [kind.weight for kind in KINDS]
        while not self._over.wait(max(0.0, began + number / self._rate - time.monotonic())):
            number += 1
            if time.monotonic() - began > number / self._rate + 1:
                began = time.monotonic() - number / self._rate  # it was held up; missed calls are not made up for
            self._publish(self._chance.choices(KINDS, weights)[0].call(number, self._chance))
            self._revoke_some()

    def _publish(self, call: Call) -> None:
        # A singleton whose caller gives it an id is published beside any others.
        task_id = None if call.kind.once else str(uuid.uuid4()) + self._chance.choice(_ENDS)
        published = Published(call, task_id or "", time.monotonic(), sure=False)
        self.published.append(published)
        try:
            task = self._app.tasks[f"chaos.{call.kind.name}"]
            published.task_id = task.apply_async((), call.args, task_id=task_id, **call.options).id
            published.sure = True
        except Exception as error:  # noqa: BLE001 - the broker's absence may raise anything
            logger.info("%s may not have been published: %r", call.label, error)

    def _revoke_some(self) -> None:
        try:
            self._app.control.revoke(self._revokes.get_nowait())
        except Empty:
            pass
        except Exception as error:  # noqa: BLE001 - as above
            logger.info("may not have been revoked: %r", error)
