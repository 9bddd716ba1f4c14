"""The gate's view of Celery's pools."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

from celery import Celery
from celery.concurrency.prefork import TaskPool

from celery_throttle.worker.celery_side.slots import Slots
from tests.support.waiting import HANGS_AFTER


def test_a_pool_that_has_stopped_has_no_slots() -> None:
    # Tasks that it could not start are given back after that, and the reply may offer more to run.
    pool = TaskPool(2, app=Celery("slots", broker="memory://", set_as_current=False))
    slots = Slots(pool)
    pool.start()
    assert slots.size == 2
    pool.stop()
    assert slots.size == 0


def test_wait_for_bodies_ends_though_another_thread_has_the_ident_of_one_of_their_threads() -> None:
    """A warm shutdown of a pool of threads never ended where the system had given the ident to a new thread."""
    executor = ThreadPoolExecutor(1)
    executor.submit(int).result()
    executor.shutdown()
    (ended,) = executor._threads
    ended._ident = threading.get_ident()  # type: ignore[attr-defined]
    waiting = threading.Thread(target=Slots(SimpleNamespace(executor=executor)).outlast, daemon=True)
    waiting.start()
    waiting.join(HANGS_AFTER)
    assert not waiting.is_alive()


def test_wait_for_bodies_lasts_as_long_as_they_do() -> None:
    executor, ends = ThreadPoolExecutor(1), threading.Event()
    executor.submit(ends.wait)
    waiting = threading.Thread(target=Slots(SimpleNamespace(executor=executor)).outlast)
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    ends.set()
    waiting.join(HANGS_AFTER)
    assert not waiting.is_alive()
