"""Unreadable fields of any hash: each costs its own task or limit, never the group."""

from __future__ import annotations

import json
from itertools import product
from typing import Any, NamedTuple

import pytest
from redis import Redis

from celery_throttle.core.limits import Limit
from celery_throttle.store.exchange import Exchange
from celery_throttle.store.exchange_reply import Answer
from celery_throttle.store.parked_tasks import read_oldest
from celery_throttle.store.scripts import execute
from tests.store.caller import Caller, started
from tests.store.peek import KEY, change, check, peek
from tests.store.steering import Steering
from tests.store.stories import Story
from tests.store.terms_caller import terms

GARBAGE = [b"", b"garbage", b"[", b"[]", b"{}", b"null", b'"x"', b"\xff", b"-1", b"nan", b"1e999", b"[" * 1100]
#: Values that look like nothing to Lua.
NOTHING = (b"[]", b"{}")
RATED, FAIR = "api:2@600/m^10", "fair<9~w"
TAKE_AND_PARK = f"take t1 on={FAIR}; park t2 on={FAIR}"
PARK_AND_END = f"park t3 on={FAIR}; end t1 slots=1 = t2; withdraw t3; look slots=0"


def dropped(redis: Redis) -> set[tuple[str, str]]:
    """Return key and field of each dropped entry."""
    return {(each.key, each.field) for each in Steering(redis).aside() if not each.task_id}


def goes_on(story: Story, on: str = "gpu") -> None:
    """One more starts, waiting or not."""
    assert "more" in {story.step(f"arrive more on={on} slots=1"), story.step("look")}
    story.step("end more")


class Field(NamedTuple):
    """A field, and a story before it is spoiled and after that.

    Attributes:
        readable: values that the scripts may take for something else than garbage.
        more: limits of which one more task has to start in the end.
    """

    key: str
    field: str
    before: str
    after: str
    readable: tuple[bytes, ...] = ()
    more: str = ""


FIELDS = {
    "a worker, whose next call is carried out as if it were its first": Field(
        "workers", "aaaaaaaa", "take t", "end t", more="gpu"
    ),
    "how many permits are held, so that the holders are counted": Field(
        "used", "gpu2", "take t1 on=gpu2:2", "take t2 on=gpu2:2; ask t3 on=gpu2:2 = must_park; used = gpu2 2"
    ),
    "an override": Field(
        "overrides", "gpu", "deploy gpu; say gpu override 3",
        "take t1; ask t2 = must_park; say gpu override 2; take t3", NOTHING,
    ),
    "how many wait": Field(
        "waiting", "fair", TAKE_AND_PARK,
        PARK_AND_END,
    ),
    "how many wait where any number may": Field(
        "waiting", "gpu", "take t1; park t2", "park t3; withdraw t2 t3", (b"-1",)
    ),
    "how far rates are booked": Field("rates", "api", f"take t1 on={RATED}", "", more=RATED),
    "how far turns of a limit are": Field(
        "turns", "fair", TAKE_AND_PARK, PARK_AND_END
    ),
    "how far turns of a key are": Field(
        "turns", "fair\x1ew", TAKE_AND_PARK, PARK_AND_END
    ),
    "where a lane is listed, which is listed again": Field(
        "lanes", "1:gpu\0q", "take t1; park t2 t3", "end t1 slots=1 = t2"
    ),
    "an identity lock, whose followers continue": Field(
        "locks", "same", "take t1@same on=one; arrive t2@same on=two = -", "end t1 slots=1; look; held = t2"
    ),
    "a sum of all keys, which is added up again": Field(
        "sums", "used\0tenant", "take t1 on=tenant[a]:2", "take t2 on=tenant[a]:2", (b"-1",)
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("field", "garbage"),
    [
        pytest.param(field, garbage, id=f"{name}: {garbage[:9]!r}")
        for (name, field), garbage in product(FIELDS.items(), GARBAGE)
        if garbage not in field.readable
    ],
)
def test_garbage_in_a_field(story: Story, field: Field, garbage: bytes) -> None:
    story.tell(field.before)
    assert story.redis.hset(KEY[field.key], field.field, garbage) == 0
    story.tell(field.after)
    if field.more:
        goes_on(story, field.more)
    nothing_is_booked = field.key == "rates" and garbage in NOTHING
    assert nothing_is_booked or dropped(story.redis) == {(field.key, field.field)}
    story.redis.hdel(KEY["waiting"], "fair")  # the earlier waits are not counted


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("limit", [Limit("api", 2, rate="600/m", burst=10), Limit("fair", 1, fair_by="who")])
def test_declaration(worker: Caller, limit: Limit, redis: Redis, garbage: bytes) -> None:
    """Workers are asked for it, and nothing has to settle: the data is there."""
    needs = terms(limit).needs({"fair": ["w", 1]})
    held = worker.take("t", needs)
    birth = str(int(worker.declare()) - 10_000_000)
    redis.hset(KEY["meta"], "birth", birth)  # that is long ago
    redis.hset(KEY["limits"], limit.name, garbage)
    assert worker.ask("new", needs)[0] == Answer.MUST_PARK
    call = worker.store.exchange(worker.name, worker.number + 1, worker.queues, Exchange(), birth)
    assert execute(redis, call) == [b"declare"]
    worker.declare(limit, known=birth)
    worker.release(held)
    worker.release(worker.take("more", needs))
    assert peek(redis).hashes["limits"][limit.name] == limit.declared.encode()
    assert dropped(redis) == {("limits", limit.name)}


# -- parts of a field --------------------------------------------------------------------------------------------------


#: Numbers of calls that were never made: the worker goes on after it, or it cannot be one.
NUMBERS: list[object] = [10**6, 10**11, 1e300, -5, 0.25]
#: Parts of another type: an empty array is no number.
OTHERS: list[object] = [[], {}, "x", None, True]


@pytest.mark.parametrize(
    ("part", "value", "readable"),
    [
        *product(["number"], NUMBERS, [True]),
        *product(["till", "since", "number", "clock_off"], OTHERS, [False]),
    ],
)
def test_part_of_a_worker(story: Story, part: str, value: object, *, readable: bool) -> None:
    story.tell("take t")
    change(story.redis, "workers", "aaaaaaaa", **{part: value})
    story.tell("end t")
    goes_on(story)
    assert readable or dropped(story.redis) == {("workers", "aaaaaaaa")}


def test_the_number_of_a_call_with_other_answers(story: Story) -> None:
    """The next call has that number, and more rows than there are answers."""
    story.tell("take t")
    change(story.redis, "workers", "aaaaaaaa", number=story.by.number + 1)
    story.tell("ask t2 t3 = must_park must_park")


@pytest.mark.parametrize(
    "rate", [1, "x", [1], [[0, 1000000, 1]], [[1, 16, 1]], [[1, 1000000, "x"]], {"a": 1}, [[1, 60]]]
)
def test_rate_override(story: Story, redis: Redis, rate: object) -> None:
    """It is treated as absent; a rate of 16 us has no readable origin."""
    story.tell("say gpu override 1/m")
    said = json.loads(redis.hget(KEY["overrides"], "gpu") or b"")
    redis.hset(KEY["overrides"], "gpu", json.dumps({"rate": [rate, *said["rate"][1:]]}))
    story.tell("take t1; end t1")
    goes_on(story)
    assert dropped(redis) == {("overrides", "gpu")}


@pytest.mark.parametrize("number", ["nan", "-inf", "1e999", "[nan]"])
def test_a_number_that_is_read_and_cannot_be_written(
    story: Story, redis: Redis, steering: Steering, number: str
) -> None:
    """It is in a part that no script reads; a script that writes or returns the whole would fail."""
    story.tell(TAKE_AND_PARK)
    for key, field in (("records", "t2"), ("limits", "fair")):
        stored = redis.hget(KEY[key], field)
        assert isinstance(stored, bytes)
        redis.hset(KEY[key], field, stored[:-1] + f',"new":{number}}}'.encode())
    assert steering.stands("fair").held == 1
    story.tell(f"end t1; deploy {FAIR}; look = -")
    assert {each.task_id or each.key for each in steering.aside()} == {"t2", "limits"}


def test_a_lane_leaves_the_limit_where_it_was_listed(story: Story, redis: Redis) -> None:
    """The first task waits at the second of its limits. Listed again, it begins at the first."""
    story.tell("take holds on=shared; park waits on=own+shared slots=1; lines = shared waits")
    (lane,) = peek(redis).lanes
    redis.hset(KEY["lanes"], lane, b"?")
    story.tell("end holds")
    check(peek(redis))


@pytest.mark.parametrize(
    ("name", "value", "drops"),
    [
        ("at", "8999999999999999", True),
        ("at", "x", True),
        ("0/0/0", "1 0 1 0", False),  # a rate that is none is passed over
        ("1/9/1", "x", True),
        ("1/9/1", "8999999999999999 0", True),
        ("its own", "8999999999999999 0 1 0", True),  # it would keep everything from starting for a thousand years
    ],
)
def test_a_booking_that_was_never_made(story: Story, redis: Redis, name: str, value: str, *, drops: bool) -> None:
    """From that of another rate the next start is reckoned where the rate has changed since."""
    story.tell(f"take t1 on={RATED}; end t1")
    kept = json.loads(redis.hget(KEY["rates"], "api") or b"")
    (own,) = (each for each in kept if "/" in each)
    change(redis, "rates", "api", **{own if name == "its own" else name: value})
    redis.zadd(KEY["ends"], {"rates:api": peek(redis).now + 600_000})  # else it may end before the next call
    story.tell("say api override 600/m^5" if name != "its own" else "")
    goes_on(story, RATED)
    assert dropped(redis) == ({("rates", "api")} if drops else set())


PARTS = [7, -1, "x", None, [], [1], {"0": 7}, {"x": {"y": 1}}, {"0": {"y": "z"}}]


@pytest.mark.parametrize("value", PARTS)
def test_outcomes_that_are_awaited(lock_story: Story, value: object) -> None:
    lock_story.tell(
        "take t1 remember=60; publish t2 remember=60 awaited; end t1; publish t3 remember=60 awaited; awaited = t1"
    )
    change(lock_story.redis, "records", "t1", awaited=value)
    lock_story.tell("publish t4 remember=60 awaited; give_up t4 t1; look")


@pytest.mark.parametrize("value", PARTS)
def test_finished_run(story: Story, value: object) -> None:
    """It may run once more; nothing else is lost."""
    story.tell("take t; end t at_broker; finished = 0 t")
    change(story.redis, "records", "t", finished=value)
    assert story.step("ask t") in {"granted", "has_run"}
    story.tell("park t; look")


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


# -- places in an index ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spoiled", ["heads", "ready", "lines", "leases", "due", "oldest"])
def test_a_place_in_an_index_that_is_lost(story: Story, redis: Redis, spoiled: str) -> None:
    """The reaper puts each record back in its place of the index."""
    story.tell("take t1; park t2; end t1" if spoiled == "ready" else "take t1; park t2")
    members: Any = redis.zrange(KEY[spoiled], 0, -1)
    for member in members:
        assert isinstance(member, bytes)
        redis.zrem(KEY[spoiled], member)
        redis.zadd(KEY[spoiled], {member[: len(member) // 2]: 5})
    story.tell("reap" if spoiled == "ready" else "reap; end t1")
    story.tell("look = t2")
    redis.delete(KEY["due"], KEY["leases"])
    redis.zadd(KEY["leases"], {"t2": 4e12})


def test_a_lane_that_is_listed_as_the_oldest_and_is_none(story: Story, redis: Redis) -> None:
    """The lane behind it is read, and the reaper takes it out."""
    story.tell("take t1; park t2")
    for member in (b"", b"short", b"0" * 16 + b"not a lane", b"0" * 16 + b"1:nope\0q"):
        redis.zadd(KEY["oldest"], {b"gpu\0" + member: 0})
    (found,) = read_oldest(execute(redis, story.by.store.oldest(["gpu"])))
    assert found
    assert found.first.task_id == "t2"
    story.tell("reap")
    check(peek(redis))
    story.tell("end t1 slots=1 = t2")


@pytest.mark.parametrize("index", ["heads", "lines"])
@pytest.mark.parametrize("count", [1, 8, 9, 20])
def test_stray_members_hold_up_a_task_for_few_calls(story: Story, redis: Redis, index: str, count: int) -> None:
    """One call skips only some of them, so the next calls look at the bucket again; one alone takes no call more."""
    story.tell("take t1; park t2")
    before = "gpu" if index == "heads" else "1:gpu\0q"
    redis.zadd(KEY[index], {f"{before}\0!{number:02}": 0 for number in range(count)})
    found = [story.step("end t1 slots=1"), *(story.step("look") for _ in range(4))]
    assert [each for each in found if each != "-"] == ["t2"]
    assert found[0] == "t2" or count > 1
    assert not redis.zcard(KEY[index])


def test_a_place_of_an_empty_lane_holds_up_no_task(story: Story, redis: Redis) -> None:
    """Nor for the time of that call."""
    story.tell("take t; park waits")
    redis.zadd(KEY["heads"], {f"gpu\0{1:016d}\0001:gpu\0q9": 0})
    story.tell("end t slots=1 = waits")
