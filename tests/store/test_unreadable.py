"""Unreadable fields of any hash: each costs its own task or limit, never the group."""

from __future__ import annotations

import json
from typing import Any

import pytest
from redis import Redis

from celery_throttle.core.facts import Facts, Message, Result
from celery_throttle.core.limits import Limit
from celery_throttle.store.exchange import Exchange
from celery_throttle.store.exchange_reply import Answer
from celery_throttle.store.parked_tasks import read_oldest
from celery_throttle.store.scripts import execute
from tests.store.caller import Caller, started
from tests.store.lock_caller import LockCaller, plan_of
from tests.store.peek import KEY, change, check, peek
from tests.store.steering import Steering
from tests.store.terms_caller import terms

GARBAGE = [b"", b"garbage", b"[", b"[]", b"{}", b"null", b'"x"', b"\xff", b"-1", b"nan", b"1e999", b"[" * 1100]
#: Values that look like nothing to Lua.
NOTHING = (b"[]", b"{}")
each_garbage = pytest.mark.parametrize("garbage", GARBAGE)
RATED, FAIR = Limit("api", 2, rate="600/m", burst=10), Limit("fair", 1, fair_by="who", max_parked=9)


def spoil(redis: Redis, key: str, field: str, garbage: bytes) -> None:
    assert redis.hexists(KEY[key], field)
    redis.hset(KEY[key], field, garbage)


def dropped(redis: Redis) -> set[tuple[str, str]]:
    """Return key and field of each dropped entry."""
    return {(each.key, each.field) for each in Steering(redis).aside() if not each.task_id}


def goes_on(worker: Caller, limit: Limit) -> None:
    """One more starts, waiting or not."""
    needs = terms(limit).needs({"fair": ["w", 1]})
    answer, run = worker.ask("one more", needs)
    if answer == Answer.MUST_PARK:
        found = [*worker.put("one more", needs, slots=1).grants, *worker.look().grants]
        assert [each.task for each in found] == ["one more"]
        worker.release(found[0])
    else:
        assert answer == Answer.GRANTED
        worker.release(run)


@each_garbage
def test_entries_of_a_worker(worker: Caller, one: Limit, redis: Redis, garbage: bytes) -> None:
    """Its next call is carried out as if it were its first, and all others go on."""
    held = worker.take("t", one)
    spoil(redis, "workers", worker.name, garbage)
    worker.release(held)
    goes_on(worker, one)
    assert dropped(redis) == {("workers", worker.name)}


@pytest.mark.parametrize("number", [10**6, 10**11, 1e300, -5, 0.25])
def test_the_number_of_a_call_that_was_never_made(worker: Caller, one: Limit, redis: Redis, number: float) -> None:
    """The worker goes on after it, or it cannot be one."""
    held = worker.take("t", one)
    change(redis, "workers", worker.name, number=number)
    worker.release(held)
    goes_on(worker, one)


def test_the_number_of_a_call_with_other_answers(worker: Caller, one: Limit, redis: Redis) -> None:
    """The next call has that number, and more rows than there are answers."""
    worker.take("t", one)
    change(redis, "workers", worker.name, number=worker.number + 1)
    reply = worker.exchange(asked=[worker.arrival(task, one) for task in ("t2", "t3")])
    assert reply.asked == (Answer.MUST_PARK, Answer.MUST_PARK)


@pytest.mark.parametrize("garbage", [each for each in GARBAGE if each != b"{}"])
def test_how_many_permits_are_held(worker: Caller, two: Limit, redis: Redis, garbage: bytes) -> None:
    """The holders are counted."""
    worker.take("t1", two)
    spoil(redis, "used", two.name, garbage)
    worker.take("t2", two)
    assert worker.ask("t3", two)[0] == Answer.MUST_PARK
    assert peek(redis).used == {two.name: 2}
    assert dropped(redis) == {("used", two.name)}


@each_garbage
@pytest.mark.parametrize("limit", [RATED, FAIR])
def test_declaration(worker: Caller, limit: Limit, redis: Redis, garbage: bytes) -> None:
    """Workers are asked for it, and nothing has to settle: the data is there."""
    needs = terms(limit).needs({"fair": ["w", 1]})
    held = worker.take("t", needs)
    birth = str(int(worker.declare()) - 10_000_000)
    redis.hset(KEY["meta"], "birth", birth)  # that is long ago
    spoil(redis, "limits", limit.name, garbage)
    assert worker.ask("new", needs)[0] == Answer.MUST_PARK
    call = worker.store.exchange(worker.name, worker.number + 1, worker.queues, Exchange(), birth)
    assert execute(redis, call) == [b"declare"]
    worker.declare(limit, known=birth)
    worker.release(held)
    goes_on(worker, limit)
    assert peek(redis).hashes["limits"][limit.name] == limit.declared.encode()
    assert dropped(redis) == {("limits", limit.name)}


@pytest.mark.parametrize("garbage", [each for each in GARBAGE if each not in NOTHING])
def test_override(worker: Caller, one: Limit, redis: Redis, garbage: bytes, steering: Steering) -> None:
    steering.say(one, "override", 3)
    spoil(redis, "overrides", one.name, garbage)
    worker.take("t1", one)
    assert worker.ask("t2", one)[0] == Answer.MUST_PARK
    assert dropped(redis) == {("overrides", one.name)}
    steering.say(one, "override", 2)
    worker.take("t3", one)


@pytest.mark.parametrize(
    "rate", [1, "x", [1], [[0, 1000000, 1]], [[1, 16, 1]], [[1, 1000000, "x"]], {"a": 1}, [[1, 60]]]
)
def test_rate_override(worker: Caller, one: Limit, redis: Redis, rate: object, steering: Steering) -> None:
    """It is treated as absent; a rate of 16 us has no readable origin."""
    steering.say(one, "override", json.dumps({"rates": [[1, 60_000_000, 1]]}))
    said = json.loads(redis.hget(KEY["overrides"], one.name) or b"")
    redis.hset(KEY["overrides"], one.name, json.dumps({"rate": [rate, *said["rate"][1:]]}))
    worker.release(worker.take("t1", one))
    goes_on(worker, one)
    assert dropped(redis) == {("overrides", one.name)}


@pytest.mark.parametrize("number", ["nan", "-inf", "1e999", "[nan]"])
def test_a_number_that_is_read_and_cannot_be_written(
    worker: Caller, redis: Redis, steering: Steering, number: str
) -> None:
    """It is in a part that no script reads; a script that writes or returns the whole would fail."""
    needs = terms(FAIR).needs({"fair": ["w", 1]})
    held = worker.take("t1", needs)
    worker.put("t2", needs)
    for key, field in (("records", "t2"), ("limits", "fair")):
        stored = redis.hget(KEY[key], field)
        assert isinstance(stored, bytes)
        redis.hset(KEY[key], field, stored[:-1] + f',"new":{number}}}'.encode())
    assert steering.stands("fair").held == 1
    worker.release(held)
    worker.declare(FAIR)
    assert started(worker.look()) == ()
    assert {each.task_id or each.key for each in steering.aside()} == {"t2", "limits"}


@each_garbage
def test_how_many_wait(worker: Caller, redis: Redis, garbage: bytes) -> None:
    needs = terms(FAIR).needs({"fair": ["w", 1]})
    held = worker.take("t1", needs)
    worker.put("t2", needs)
    spoil(redis, "waiting", "fair", garbage)
    worker.put("t3", needs)
    assert started(worker.release(held, slots=1)) == ("t2",)
    redis.hdel(KEY["waiting"], "fair")  # the earlier waits are not counted
    worker.look(0)
    assert dropped(redis) == {("waiting", "fair")}
    worker.withdraw("t3")


def test_a_lane_leaves_the_limit_where_it_was_listed(worker: Caller, redis: Redis) -> None:
    """The first task waits at the second of its limits. Listed again, it begins at the first."""
    both = terms(Limit("own", 1), Limit("shared", 1)).same
    held = worker.take("holds", terms(Limit("shared", 1)).same)
    worker.put("waits", both, slots=1)
    (lane,) = peek(redis).lanes
    assert peek(redis).lanes[lane]["at"] == "shared"
    spoil(redis, "lanes", lane, b"?")
    worker.release(held)
    check(peek(redis))


def test_how_many_wait_where_any_number_may(worker: Caller, one: Limit, redis: Redis) -> None:
    """No task asks for that number, but each changes it."""
    worker.take("t1", one)
    worker.put("t2", one)
    spoil(redis, "waiting", one.name, b"x")
    worker.put("t3", one)
    assert dropped(redis) == {("waiting", one.name)}
    worker.withdraw("t2", "t3")


@each_garbage
def test_how_far_rates_are_booked(worker: Caller, redis: Redis, garbage: bytes) -> None:
    needs = terms(RATED).same
    worker.take("t1", needs)
    spoil(redis, "rates", "api", garbage)
    goes_on(worker, RATED)
    assert garbage in NOTHING or dropped(redis) == {("rates", "api")}


def test_a_booking_that_was_never_made(worker: Caller, redis: Redis) -> None:
    """It would keep everything from starting for a thousand years."""
    worker.take("t1", terms(RATED).same)
    kept = json.loads(redis.hget(KEY["rates"], "api") or b"")
    (name,) = (name for name in kept if "/" in name)
    change(redis, "rates", "api", **{name: "8999999999999999 0 1 0"})
    goes_on(worker, RATED)


@pytest.mark.parametrize(
    ("name", "value"),
    [("at", "8999999999999999"), ("at", "x"), ("0/0/0", "1 0 1 0"), ("1/9/1", "x"), ("1/9/1", "8999999999999999 0")],
)
def test_a_booking_of_another_rate(worker: Caller, redis: Redis, steering: Steering, name: str, value: str) -> None:
    """From such a one the next start is reckoned where the rate has changed since."""
    worker.release(worker.take("t1", terms(RATED).same))
    change(redis, "rates", "api", **{name: value})
    redis.zadd(KEY["ends"], {"rates:api": peek(redis).now + 600_000})  # else it may end before the next call
    steering.say(RATED, "override", json.dumps({"rates": [[600, 60_000_000, 5]]}))
    goes_on(worker, RATED)
    # A rate that is none is passed over.
    assert dropped(redis) == ({("rates", "api")} if name != "0/0/0" else set())


@each_garbage
def test_how_far_turns_are(worker: Caller, redis: Redis, garbage: bytes) -> None:
    needs = terms(FAIR).needs({"fair": ["w", 1]})
    held = worker.take("t1", needs)
    worker.put("t2", needs)
    for field in ("fair", "fair\x1ew"):
        spoil(redis, "turns", field, garbage)
    worker.put("t3", needs)
    assert started(worker.release(held, slots=1)) == ("t2",)


@each_garbage
def test_where_a_lane_is_listed(worker: Caller, one: Limit, redis: Redis, garbage: bytes) -> None:
    """It is listed anew."""
    held = worker.take("t1", one)
    for task in ("t2", "t3"):
        worker.put(task, one)
    (lane,) = peek(redis).lanes
    spoil(redis, "lanes", lane, garbage)
    assert started(worker.release(held, slots=1)) == ("t2",)
    assert dropped(redis) == {("lanes", lane)}


@each_garbage
def test_an_identity_lock(redis: Redis, garbage: bytes) -> None:
    """Its followers continue."""
    once, plan = LockCaller(redis, "bbbbbbbb", "q"), plan_of()
    first = once.start("t1", plan)
    once.arrive("t2", plan)
    spoil(redis, "locks", plan.identity, garbage)
    granted = [*once.end(first, slots=1), *once.look_once()]
    assert [each.task for each in granted] == ["t2"]
    assert dropped(redis) == {("locks", plan.identity)}


PARTS = [7, -1, "x", None, [], [1], {"0": 7}, {"x": {"y": 1}}, {"0": {"y": "z"}}]


def spoil_part(redis: Redis, task: str, part: str, value: object) -> None:
    assert part in json.loads(redis.hget(KEY["records"], task) or "{}")
    change(redis, "records", task, **{part: value})


@pytest.mark.parametrize("value", PARTS)
def test_outcomes_that_are_awaited(redis: Redis, value: object) -> None:
    once, plan = LockCaller(redis, "bbbbbbbb", "q"), plan_of(remember=60)
    first = once.start("t1", plan)
    once.claim("t2", plan, awaited=True)
    once.end(first)
    once.claim("t3", plan, awaited=True)
    spoil_part(redis, "t1", "awaited", value)
    once.claim("t4", plan, awaited=True)
    once.give_up(plan.identity, "t4", "t1")
    once.look()


@pytest.mark.parametrize("value", PARTS)
def test_finished_run(worker: Caller, one: Limit, redis: Redis, value: object) -> None:
    """It may run once more; nothing else is lost."""
    held = worker.take("t", one)
    worker.release(held, Facts(True, Message.BROKER, Result.SUCCESS))
    spoil_part(redis, "t", "finished", value)
    answer, _ = worker.ask("t", one)
    assert answer in (Answer.GRANTED, Answer.HAS_RUN)
    worker.put("t", one)
    worker.look()


@pytest.mark.parametrize("field", ["birth", "ticket", "stamp", "errors", "settling", "moment"])
@pytest.mark.parametrize("garbage", [*GARBAGE, b"8999999999999999", b"1e15"])
def test_numbers_of_the_group(worker: Caller, one: Limit, redis: Redis, field: str, garbage: bytes) -> None:
    held = worker.take("t", one)
    redis.hset(KEY["meta"], field, garbage)
    worker.put("t2", one)
    worker.exchange(errors=1)
    worker.declare(one, known=worker.declare())
    worker.reap()
    assert started(worker.release(held, slots=1)) == ("t2",)
    execute(redis, worker.store.errors())


@pytest.mark.parametrize("spoiled", ["heads", "ready", "lines", "leases", "due", "oldest"])
def test_a_place_in_an_index_that_is_lost(worker: Caller, one: Limit, redis: Redis, spoiled: str) -> None:
    """The reaper puts each record back in its place of the index."""
    held = worker.take("t1", one)
    worker.put("t2", one)
    if spoiled == "ready":
        worker.release(held)
    members: Any = redis.zrange(KEY[spoiled], 0, -1)
    for member in members:
        assert isinstance(member, bytes)
        redis.zrem(KEY[spoiled], member)
        redis.zadd(KEY[spoiled], {member[: len(member) // 2]: 5})
    worker.reap()
    if spoiled != "ready":
        worker.release(held)
    assert started(worker.look()) == ("t2",)
    redis.delete(KEY["due"], KEY["leases"])
    redis.zadd(KEY["leases"], {"t2": 4e12})


def test_a_lane_that_is_listed_as_the_oldest_and_is_none(worker: Caller, one: Limit, redis: Redis) -> None:
    """The lane behind it is read, and the reaper takes it out."""
    held = worker.take("t1", one)
    worker.put("t2", one)
    for member in (b"", b"short", b"0" * 16 + b"not a lane", b"0" * 16 + b"1:nope\0q"):
        redis.zadd(KEY["oldest"], {one.name.encode() + b"\0" + member: 0})
    (found,) = read_oldest(execute(redis, worker.store.oldest([one.name])))
    assert found
    assert found.first.task_id == "t2"
    worker.reap()
    check(peek(redis))
    assert started(worker.release(held, slots=1)) == ("t2",)


@pytest.mark.parametrize("other", [[], {}, "x", None, True])
@pytest.mark.parametrize("part", ["till", "since", "number", "clock_off"])
def test_a_part_of_another_type(worker: Caller, one: Limit, redis: Redis, part: str, other: object) -> None:
    """An empty array is no number."""
    held = worker.take("t", one)
    change(redis, "workers", worker.name, **{part: other})
    worker.release(held)
    goes_on(worker, one)
    assert dropped(redis) == {("workers", worker.name)}


def test_a_member_of_a_line_that_names_no_task_goes(worker: Caller, one: Limit, redis: Redis) -> None:
    held = worker.take("t1", one)
    worker.put("t2", one)
    (lane,) = peek(redis).lanes
    redis.zadd(KEY["lines"], {f"{lane}\0!": 0})
    assert started(worker.release(held, slots=1)) == ("t2",)
    assert not redis.zcard(KEY["lines"])


@pytest.mark.parametrize("garbage", [each for each in GARBAGE if each != b"-1"])  # a number can be read
def test_a_sum_of_all_keys(worker: Caller, redis: Redis, garbage: bytes) -> None:
    """It is added up again as soon as a count of a key changes."""
    needs = terms(Limit("tenant", 2, key="id")).needs({"keys": {"tenant": "a"}})
    worker.take("t1", needs)
    spoil(redis, "sums", "used\0tenant", garbage)
    worker.take("t2", needs)
    assert redis.hget(KEY["sums"], "used\0tenant") == b"2"


@pytest.mark.parametrize("index", ["heads", "lines"])
@pytest.mark.parametrize("count", [1, 8, 9, 20])
def test_stray_members_hold_up_a_task_for_few_calls(
    worker: Caller, one: Limit, redis: Redis, index: str, count: int
) -> None:
    """One call skips only some of them, so the next calls look at the bucket again."""
    held = worker.take("t1", one)
    worker.put("t2", one)
    (lane,) = peek(redis).lanes
    before = one.name if index == "heads" else lane
    redis.zadd(KEY[index], {f"{before}\0!{number:02}": 0 for number in range(count)})
    found = [*started(worker.release(held, slots=1))]
    for _ in range(4):
        found += started(worker.look())
    assert found == ["t2"]
    assert not redis.zcard(KEY[index])


def test_a_place_of_an_empty_lane_holds_up_no_task(worker: Caller, one: Limit, redis: Redis) -> None:
    """Nor for the time of that call."""
    held = worker.take("t", one)
    worker.put("waits", one)
    redis.zadd(KEY["heads"], {f"gpu\0{1:016d}\0001:gpu\0q9": 0})
    assert started(worker.release(held, slots=1)) == ("waits",)
