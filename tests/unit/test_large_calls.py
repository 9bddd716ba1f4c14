"""Calls with large messages, and the slots of the pool."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from celery_throttle.worker.store_side.calls import Calls


class Sender:
    """The part that `Calls.send` needs; notes how many slots each call offers."""

    def __init__(self, size: int) -> None:
        self.number, self.hungry, self._slow, self._most_bytes = 0, True, False, 1 << 20
        self.slots: list[int] = []
        self.outbox = SimpleNamespace(has_bytes=lambda fewest: size >= fewest, next_batch=self._batch)

    def _batch(self, slots: int, most_bytes: int) -> Any:  # noqa: ARG002 - as in Outbox
        self.slots.append(slots)

    def _call_of(self, batch: Any) -> None: ...

    def _ask(self) -> None: ...

    def send(self, slots: int) -> bool:
        Calls.send(self, slots)  # type: ignore[arg-type]  # what it needs of one
        return self.hungry


@pytest.mark.parametrize(("size", "slots"), [(10, [2, 2, 2]), (1 << 20, [0, 2, 0])])
def test_slots_go_with_small_calls_and_every_second_large_one(size: int, slots: list[int]) -> None:
    """A plain task waits for a slot that is offered; parked tasks must not wait until all large ones are through."""
    sender = Sender(size)
    hungry = [sender.send(2) for _ in range(3)]
    assert sender.slots == slots
    assert hungry == [offered == 0 for offered in slots], "slots that were not offered are offered next"
