"""Starting what can start, without giving anything back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_throttle.core.limits import Limit
from tests.store.caller import LEASE, Caller, Parcel
from tests.store.cost import commands
from tests.store.peek import LEASES, expire, peek

if TYPE_CHECKING:
    from redis import Redis


def test_nothing_to_do_costs_one_read(worker: Caller, redis: Redis) -> None:
    """An idle worker looks every few seconds."""
    worker.look()
    with commands(redis) as calls:
        worker.look()
    assert calls == {"evalsha": 1, "time": 1, "exists": 1}


def test_many_parked_and_nothing_free_costs_a_few_reads(worker: Caller, one: Limit, redis: Redis) -> None:
    """However long the line is."""
    worker.take("t", one)
    worker.look()  # so that the server knows the script
    costs = []
    for batch in range(2):
        worker.park(*(Parcel(f"t{batch}-{number}", one, "q", b"") for number in range(500)))
        with commands(redis) as calls:
            worker.look()
        costs.append(sum(calls.values()))
    assert costs[0] == costs[1] <= 12


def test_the_oldest_of_all_limits_starts_first(worker: Caller, one: Limit, two: Limit) -> None:
    """With one slot, the ticket decides, not the name of the limit."""
    held = [worker.take("t1", one), worker.take("t2", two), worker.take("t3", two)]
    worker.put("on two", two)
    worker.put("on one", one)
    worker.exchange(0, released=[each.returned() for each in held])
    reply = worker.look(1)
    assert [grant.task_id for grant in reply.grants] == ["on two"]
    assert reply.more
    assert [grant.task_id for grant in worker.look(1).grants] == ["on one"]


def test_all_slots_are_filled(worker: Caller, one: Limit, two: Limit) -> None:
    held = [worker.take("t1", one), worker.take("t2", two), worker.take("t3", two)]
    for task, limit in (("a", one), ("b", two), ("c", one), ("d", two)):
        worker.put(task, limit)
    worker.exchange(0, released=[each.returned() for each in held])
    reply = worker.look(5)
    assert [grant.task_id for grant in reply.grants] == ["a", "b", "d"]
    assert not reply.more


def test_expired_holders_make_room(worker: Caller, one: Limit, redis: Redis) -> None:
    """No beat is needed: any look clears them."""
    worker.take("t1", one)
    worker.put("t2", one)
    assert worker.look().grants == ()
    expire(redis, "t1")
    assert [grant.task_id for grant in worker.look().grants] == ["t2"]


def test_whoever_waits_for_a_lease_looks_when_it_ends(worker: Caller, one: Limit, redis: Redis) -> None:
    """If its holder is gone, the permit is not idle until the next look on the clock."""
    worker.take("t1", one)
    assert worker.look().wait == 0
    worker.put("t2", one)
    assert LEASE - 60 < worker.look().wait <= LEASE + 1
    redis.zadd(LEASES, {"t1": peek(redis).now + 1000})
    assert 0 < worker.look().wait <= 1.1


def test_tasks_of_other_queues_are_left_alone(worker: Caller, stranger: Caller, one: Limit) -> None:
    stranger.put("t", one)
    assert worker.look().grants == ()
    assert [grant.task_id for grant in stranger.look().grants] == ["t"]


def test_the_last_of_very_many_lines_is_served(worker: Caller, redis: Redis) -> None:
    """Hundreds of limits with tasks in line, all full but the last one by name."""
    limits = [Limit(f"limit {number:03d}", 1) for number in range(300)]
    held = [worker.take(f"h {limit.name}", limit) for limit in limits]
    for limit in limits:
        worker.put(f"w {limit.name}", limit)
    worker.release(held[-1])
    peer = Caller(redis, "bbbbbbbb", "q")
    started = {grant.task_id for _ in range(3) for grant in peer.look(1).grants}
    assert started == {"w limit 299"}
    assert len(peek(redis).line) == 299
