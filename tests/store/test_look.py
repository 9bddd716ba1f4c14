"""Starting the startable tasks, without giving anything back."""

from __future__ import annotations

from redis import Redis

from celery_throttle.core.limits import Limit
from celery_throttle.store.exchange import DeliveryChange
from tests.store.caller import ENDS, LEASE, Caller, ended
from tests.store.cost import commands
from tests.store.peek import KEY, let_come_due, peek
from tests.store.terms_caller import terms


def test_nothing_to_do_costs_a_few_commands(worker: Caller, redis: Redis) -> None:
    """An idle worker looks every few seconds."""
    worker.look()
    with commands(redis) as calls:
        worker.look()
    assert sum(calls.values()) <= 10
    assert calls["hset"] == 1, "it writes only that it was there"


def test_many_parked_and_nothing_free_costs_a_few_reads(worker: Caller, one: Limit, redis: Redis) -> None:
    """However long the line is."""
    worker.take("t", one)
    worker.look()  # so that the server has the script
    costs = []
    for batch in range(2):
        for page in range(10):
            worker.exchange(parked=[worker.parcel(f"t{batch}-{page}-{n}", one) for n in range(50)])
        with commands(redis) as calls:
            worker.look()
        costs.append(sum(calls.values()))
    assert costs[0] == costs[1] <= 24


def test_task_behind_a_lease_looks_when_it_ends(worker: Caller, one: Limit, redis: Redis) -> None:
    """If its holder is gone, the permit is not idle until the next look on the clock."""
    worker.take("t1", one)
    assert worker.look().wait == 0
    worker.put("t2", one)
    assert LEASE - 60 < worker.look().wait <= LEASE + 1
    redis.zadd(KEY["leases"], {"t1": peek(redis).now + 1000})
    assert 0 < worker.look().wait <= 1.1


def only_one_can_start(redis: Redis, count: int) -> Caller:
    """So many lines, all full but the last one by name."""
    worker = Caller(redis, f"w{count}", "q", prefix="test")
    lanes = [Limit(f"limit {number:05d}", 1) for number in range(count)]
    for first in range(0, count, 50):
        some = lanes[first : first + 50]
        worker.declare(*some)
        worker.exchange(asked=[worker.arrival(f"h {limit.name}", limit) for limit in some])
        worker.exchange(parked=[worker.parcel(f"w {limit.name}", limit) for limit in some])
    assert worker.look_on(0) == []
    last = f"h {lanes[-1].name}"
    worker.exchange(0, ended=[DeliveryChange("ended", last, 0, peek(redis).records[last].nonce, ENDS["done"])])
    return worker


def test_the_cost_of_a_look_does_not_grow_with_the_lines(redis: Redis) -> None:
    """Of two thousand lines one can start; it is found as among ten, and after it that no other can."""
    costs: list[tuple[int, int]] = []
    for count in (10, 2_000):
        redis.flushall()
        worker = only_one_can_start(redis, count)
        with commands(redis) as found:
            (grant,) = worker.look(1).grants
        assert grant.task == f"w limit {count - 1:05d}"
        with commands(redis) as blocked:
            assert worker.look(5).grants == ()
        costs.append((sum(found.values()), sum(blocked.values())))
    few, many = costs
    assert many[0] <= few[0]
    assert many[1] <= few[1]


def test_the_oldest_of_many_queues_starts_first(worker: Caller, redis: Redis) -> None:
    """A worker of 300 queues, with a line in each: by age, not by name."""
    queues = [f"q{number:03d}" for number in range(300)]
    everywhere = Caller(redis, "dddddddd", *queues)
    gpu = Limit("gpu", 300)
    held = [worker.take(f"h{number}", gpu) for number in range(300)]
    order = queues[150:] + queues[:150][::-1]
    for queue in order:
        worker.put(f"t {queue}", gpu, queue=queue)
    for first in range(0, 300, 50):
        worker.exchange(ended=[ended(each) for each in held[first : first + 50]])
    served: list[str] = []
    while found := everywhere.look(7).grants:
        served += [grant.task for grant in found]
    assert served == [f"t {queue}" for queue in order]


def test_many_keys_under_a_rate_start_when_they_are_due(worker: Caller, redis: Redis) -> None:
    """1500 of them, each with one start just over, and one task that waits for the next."""
    limit = Limit("mail", rate="1/h", key="who")
    keys = [f"{number:04d}" for number in range(1500)]
    each = {key: terms(limit).needs({"keys": {"mail": key}}) for key in keys}
    for first in range(0, 1500, 50):
        some = keys[first : first + 50]
        assert set(worker.exchange(asked=[worker.arrival(f"a{key}", each[key]) for key in some]).asked) == {1}
        worker.exchange(parked=[worker.parcel(f"b{key}", each[key]) for key in some])
    assert worker.look(9).grants == ()
    assert len(peek(redis).due("bucket")) == 1500
    late = keys[::-1][:100]
    for key in late:  # as if their hour had passed
        bucket = f"mail\x1f{key}"
        redis.hdel(KEY["rates"], bucket)
        let_come_due(redis, "bucket", bucket)
    assert sorted(worker.look_on(100)) == sorted(f"b{key}" for key in late)
    assert len(peek(redis).due("bucket")) == 1400
