"""The capacity of the live workers: the queues that they consume, and their free slots."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from math import inf
from typing import TYPE_CHECKING, Any

from celery_throttle.control.pace import ENOUGH_RUNS
from celery_throttle.control.queues import Slots, consumed, free_slots
from celery_throttle.control.reader import MOST
from celery_throttle.core.history import MINUTES
from celery_throttle.core.naming import is_outside

if TYPE_CHECKING:
    from collections import Counter

    from celery_throttle.control.reader import Reader
    from celery_throttle.core.queues import BrokerQueue
    from celery_throttle.store.limit_status import LimitStatus
    from celery_throttle.store.parked_tasks import Waiter

__all__ = ["asked_workers", "slots_for", "starts_per_second"]


def asked_workers(app: Any) -> tuple[set[str] | None, list[Slots] | None]:
    """Return the queues that the workers consume, and their free slots.

    Both requests run at the same time, because each takes a second.
    """
    with ThreadPoolExecutor(1, "celery-throttle-slots") as pool:
        slots = pool.submit(free_slots, app)
        return consumed(app), slots.result()


def slots_for(starts: Counter[BrokerQueue], workers: list[Slots] | None, reader: Reader) -> int | None:
    """Return how many of these starts (by queue) have a free slot now; None if that is not known.

    Permits outside of tasks need no slot. Workers of other brokers cannot be asked.
    """
    outside = sum(count for queue, count in starts.items() if is_outside(queue.name))
    left = {queue.name: count for queue, count in starts.items() if not is_outside(queue.name)}
    if not left:
        return outside
    if workers is None or not all(is_outside(each.name) or reader.is_ours(each.broker) for each in starts):
        return None
    found = outside
    for worker in sorted(workers, key=lambda each: len(each.queues & left.keys())):
        free = worker.free
        for queue in sorted(worker.queues & left.keys(), key=lambda each: -left[each]):
            taken = min(free, left[queue])
            free, left[queue], found = free - taken, left[queue] - taken, found + taken
    return found


def starts_per_second(
    reader: Reader, waiters: list[Waiter], own: list[LimitStatus], workers: list[Slots] | None
) -> float | None:
    """Return the estimated starts a second, by rates, permits, slots and past run times; None: not known."""
    lines = [each for each in own if each.parked and not each.stopped]
    if not lines:
        return None
    by_rate = sum(min((rate.per_second for rate in each.rates_in_force), default=inf) for each in lines)
    runs = sum(inf if each.in_force is None else each.in_force for each in lines)
    if len(waiters) >= MOST and len(lines) > 1:  # not all keys were read
        by_rate = runs = inf
    queues = {each.queue.name for each in waiters}
    if workers is not None:
        slots = sum(each.free for each in workers if each.queues & queues)
        runs = min(runs, slots + own[0].held_in_all)
    costs = [need.permits for each in waiters for need in each.needs if need.limit == own[0].name]
    history = reader.histories([own[0].name], MINUTES)[0]
    if history.run_time and history.ended >= ENOUGH_RUNS and costs:
        by_rate = min(by_rate, runs / history.run_time / (sum(costs) / len(costs)))
    return by_rate if 0 < by_rate < inf else None
