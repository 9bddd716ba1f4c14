"""Many tasks, keys, queues and workers: each starts, a call does not take longer, and no entry stays for ever."""

from __future__ import annotations

import pytest
from redis import Redis

from celery_throttle.core.limits import Limit
from celery_throttle.core.policy import Needs
from celery_throttle.core.sites import Sites
from celery_throttle.store.exchange import DeliveryChange
from tests.primitives.faults import StoreClock
from tests.store.caller import ENDS, LEASE, Caller, Heard, ended, started
from tests.store.cost import commands
from tests.store.lock_caller import LockCaller, plan_of
from tests.store.peek import KEY, expire, lapse, let_come_due, pass_over, peek
from tests.store.steering import Steering
from tests.store.terms_caller import TermsCaller, terms, used
from tests.support.waiting import until


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
    worker.exchange(0, ended=[DeliveryChange("ended", last, 0, peek(redis).records[last].nonce, facts=ENDS["done"])])
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


def test_the_cost_of_a_call_does_not_grow_with_the_queues_of_the_worker(worker: Caller, redis: Redis) -> None:
    """Of 300 queues one has a line that can start, and so has a queue of others."""
    gpu, costs = Limit("gpu", 1), []
    for count in (1, 300):
        redis.flushall()
        many = Caller(redis, f"m{count}", *[f"q{number:03d}" for number in range(count)])
        for queue in ("q000", "r"):
            worker.put(f"t {queue}", Limit(f"of {queue}", 1), queue=queue)
        worker.take("held", gpu)
        worker.put("waits", gpu)
        many.look(0)
        with commands(redis) as calls:
            assert started(many.look(2)) == ("t q000",)
        costs.append(sum(calls.values()))
    assert costs[1] <= costs[0] + 1, "one more look finds that none of the other queues has a line"


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


@pytest.mark.usefixtures("clock")
def test_many_dead_queues_are_passed_over_together(worker: Caller, one: Limit, redis: Redis) -> None:
    """Each had its moment; none of them holds up ours for another one."""
    held = worker.take("holder", one)
    for number in range(40):
        worker.put(f"dead{number}", one, queue=f"dead{number:02}")
    worker.put("ours", one)
    worker.release(held)
    for number in range(40):
        pass_over(redis, "gpu", f"dead{number:02}")
    assert started(worker.look(1)) == ()  # a call looks at so many lanes; the next ones go on at once
    assert worker.look_on(1) == ["ours"]


GPU = Limit("gpu", 2, per="host")


def test_a_share_follows_the_size_of_the_pool(redis: Redis) -> None:
    half = Limit("thumbs", share=0.5, per="worker")
    size = 3
    sites = Sites({"host": "a7", "worker": "w"}, lambda: size)
    worker = TermsCaller(redis, "w", "q", sites=sites)

    def starts(count: int) -> int:
        for number in range(count):
            worker.put(f"t{worker.number} {number}", half)
        return sum(len(worker.look(8).grants) for _ in range(2))

    assert starts(8) == 2
    size = 8
    assert starts(0) == 2
    assert used(redis) == {"thumbs/worker=w": 4}


def test_many_lanes_of_one_site_do_not_hide_others(redis: Redis) -> None:
    """Tasks of many tenants wait for a full host; a task without limits behind them starts at once."""
    tenant = Limit("tenant", 1, key="tenant")
    worker = TermsCaller(redis, "w", "q", sites=Sites({"host": "a7", "worker": "w"}))
    held = [worker.take(f"t{number}", GPU) for number in range(2)]
    for number in range(60):
        needs = terms(GPU, tenant).needs({"keys": {"tenant": str(number)}})
        worker.put(f"p{number}", needs)
    worker.put("plain", Limit("other", 1))
    assert started(worker.look(1)) == ("plain",)
    order: list[str] = []
    reply: Heard = worker.release(held[0], slots=1)
    for _ in range(100):
        order += started(reply)
        done = [ended(grant) for grant in reply.grants]
        if not done and not reply.more and not peek(redis).parked:
            break
        reply = worker.exchange(1, ended=done)
    assert sorted(order) == sorted(f"p{number}" for number in range(60))


def test_a_permit_is_free_when_its_lease_is_over(redis: Redis, one: Limit) -> None:
    """In real time, by the clock of the server."""
    worker = Caller(redis, "aaaaaaaa", "q", lease=0.1)
    worker.take("t", one)
    assert until(worker.reap) == [("t", "1:gpu")]
    assert peek(redis).used == {}


@pytest.mark.parametrize("live", [10, 1000])
def test_cost_is_that_of_the_expired_entries(worker: Caller, redis: Redis, live: int) -> None:
    """However many others there are."""
    many = Limit("many", 2000)
    for number in range(live):
        worker.take(f"t{number}", many)
    expire(redis, "t3", "t7")
    with commands(redis) as calls:
        assert len(worker.reap()) == 2
    assert sum(calls.values()) <= 120  # those that read some records, any of them, are among these


def test_killed_workers_go_also_where_no_task_ever_waits(redis: Redis, two: Limit) -> None:
    """There is no beat, so each new worker clears some."""
    for number in range(9):
        caller = Caller(redis, f"{number:08x}", "q")
        caller.release(caller.take("t", two))
        lapse(redis, f"workers:{caller.name}")
    assert peek(redis).hashes["workers"].keys() == {f"{8:08x}"}


def test_locks_that_end_by_themselves_go_also_where_no_task_ever_waits(once: LockCaller, redis: Redis) -> None:
    """There is no beat, so each task that takes such a lock clears some."""
    for number in range(9):
        once.end(once.start(f"t{number}", plan_of(f"order-{number}", lock_until="expires")))
        lapse(redis, f"locks:order-{number}")
    assert peek(redis).locks.keys() == {"order-8"}


def of(key: str, limit: str) -> Needs:
    return terms(Limit(limit, 1, key="k")).needs({"keys": {limit: key}})


def park_each(worker: TermsCaller, limit: str, count: int) -> None:
    """Park so many tasks, each with a key of its own."""
    for number in range(count):
        worker.put(f"{limit}{number}", of(f"{number:03}", limit))


def look_on(worker: TermsCaller, slots: int) -> list[str]:
    """Look for as long as replies ask for it; the tasks that started."""
    found: list[str] = []
    for _ in range(250):
        reply = worker.look(slots)
        found += started(reply)
        if not reply.more:
            return found
    pytest.fail("there is no end to it")


def test_pause_ends_also_if_the_worker_that_ends_it_is_lost(worker: TermsCaller, steering: Steering) -> None:
    """Right after the call that ended it, before it could look at all keys."""
    steering.say("tenant", "pause")
    park_each(worker, "tenant", 250)
    steering.ask(steering.store.control("tenant", "pause", "", "0", "ana", "w"))
    reply = worker.look(5)
    assert len(reply.grants) == 5
    assert reply.more
    assert len(look_on(worker, 500)) == 245


def test_ended_overrides_of_unused_keys_are_cleared(
    worker: TermsCaller, steering: Steering, redis: Redis, clock: StoreClock
) -> None:
    for number in range(50):
        steering.say(f"tenant\x1f{number}", "pause", until="+1")
    clock.move(1_000)
    for _ in range(2):
        worker.reap()
    assert not peek(redis).hashes["overrides"]


@pytest.mark.parametrize(
    ("blocked", "counts", "slots"),
    [
        pytest.param(300, {"tenant": 300}, 1000, id="more than one call wakes, behind others that cannot start"),
        pytest.param(600, {"tenant": 300}, 40, id="with few slots"),
        pytest.param(0, {"left": 700, "right": 300}, 1000, id="of two limits"),
    ],
)
def test_when_pauses_end_the_tasks_of_all_keys_start(
    worker: TermsCaller, stranger: TermsCaller, steering: Steering, blocked: int, counts: dict[str, int], slots: int
) -> None:
    for name, count in {"blocked": blocked, **counts}.items():
        steering.say(name, "pause")
        park_each(worker, name, count)
    stranger.put("elsewhere", of("999", next(iter(counts))))
    for name in counts:
        steering.unsay(name, "pause")
    found = look_on(worker, slots)
    assert sorted(found) == sorted(f"{name}{number}" for name, count in counts.items() for number in range(count))
    assert started(stranger.look(9)) == ("elsewhere",)
    until(lambda: not stranger.look(9).more)
