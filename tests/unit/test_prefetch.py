"""How many messages the broker may deliver: Celery's number, plus the held ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery.worker.consumer import Consumer
from hypothesis import given
from hypothesis import strategies as st
from kombu.common import QoS

from celery_throttle.worker.celery_side.prefetch import Prefetch

SLOTS = 4
SHORT = 0xFFFF


class Connection:
    """A broker connection of a worker; `told` is the count that its broker has."""

    def __init__(self, value: int, prefetch: Prefetch | None = None, most: int | None = None) -> None:
        self.told: list[int] = []
        self.meanwhile: Any = lambda: None
        qos = self.qos = QoS(self._hear, value)
        qos.max_prefetch = most  # as in worker_eta_task_limit
        self.consumer: Any = Consumer.__new__(Consumer)
        conf = {"worker_enable_prefetch_count_reduction": True}
        vars(self.consumer).update(
            app=SimpleNamespace(conf=type("Conf", (dict,), conf)(conf)), pool=SimpleNamespace(num_processes=SLOTS),
            qos=qos, prefetch_multiplier=1, initial_prefetch_count=value, _maximum_prefetch_restored=value >= SLOTS,
        )  # fmt: skip
        if prefetch is not None:
            prefetch.begin(self.consumer)
        self.turn()

    def _hear(self, prefetch_count: int) -> None:
        self.told.append(prefetch_count)
        self.meanwhile()

    def turn(self) -> None:
        """Do a turn of Celery's loops."""
        if self.qos.prev != self.qos.value:
            self.qos.update()

    def end_old_task(self) -> None:
        """A message is acknowledged, or rejected, after the broker connection came back."""
        self.consumer._restore_prefetch_count_after_connection_restart(None)
        self.turn()


def test_tasks_held_for_an_earlier_connection() -> None:
    prefetch = Prefetch()
    before = Connection(SLOTS, prefetch)
    prefetch.let_in(3)
    prefetch.end()
    prefetch.let_in(0)
    connection = Connection(1, prefetch)
    prefetch.let_in(2)
    connection.turn()
    assert (before.told, connection.told) == ([4], [1, 3])


def test_a_consumer_that_gets_another_queue() -> None:
    prefetch = Prefetch()
    connection = Connection(SLOTS, prefetch)
    prefetch.let_in(3)
    prefetch.begin(connection.consumer)
    connection.turn()
    prefetch.begin(connection.consumer)
    prefetch.let_in(2)
    connection.turn()
    assert connection.told == [4, 7, 6]


@pytest.mark.parametrize("value", [SLOTS, SLOTS + 1])
def test_messages_during_a_change_of_the_count(value: int) -> None:
    """RabbitMQ delivers before it answers, and with a pool of threads our loop has a thread of its own."""
    prefetch = Prefetch()
    connection = Connection(SLOTS, prefetch)
    numbers = [3, 2]
    connection.meanwhile = lambda: prefetch.let_in(numbers.pop()) if numbers else None
    connection.qos.value = value
    prefetch.let_in(1)
    for _ in range(3):
        connection.turn()
    assert connection.told == [SLOTS, value + 1, value + 2, value + 3]
    assert connection.qos.prev == connection.qos.value


def test_count_fits_the_protocol() -> None:
    prefetch = Prefetch()
    connection = Connection(SHORT - 1, prefetch)
    prefetch.let_in(5)
    connection.turn()
    assert connection.told[-1] == SHORT
    connection.qos.increment_eventually(10)
    connection.turn()
    assert connection.told[-1] == 0, "as Celery without us: no limit"


@given(
    start=st.sampled_from([0, 1, 2, SLOTS]),
    most=st.sampled_from([None, 6]),
    steps=st.lists(
        st.tuples(st.just("hold"), st.integers(0, 30))
        | st.tuples(st.sampled_from(["eta", "eta over", "grow", "shrink", "old task", "turn"]), st.just(0)),
    ),
)
def test_in_any_order(start: int, most: int | None, steps: list[tuple[str, int]]) -> None:
    """The held messages are added to Celery's own count, after any change of that."""
    prefetch = Prefetch()
    ours, plain = Connection(start, prefetch, most), Connection(start, None, most)
    held = 0
    for step, number in steps:
        if step == "hold":
            held = number
            prefetch.let_in(held)
        for connection in (ours, plain):
            if step in {"eta", "grow"}:
                connection.qos.increment_eventually(2 if step == "grow" else 1)
            elif step in {"eta over", "shrink"}:
                connection.qos.decrement_eventually(2 if step == "shrink" else 1)
            elif step == "old task" and start:
                connection.end_old_task()
            elif step == "turn":
                connection.turn()
        if step == "turn":
            assert ours.told[-1] == (plain.told[-1] + held if plain.told[-1] else 0)
    for connection in (ours, plain):
        connection.turn()
    assert ours.told[-1] == (plain.told[-1] + held if plain.told[-1] else 0)
