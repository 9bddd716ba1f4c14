"""``doctor --repair``: unreadable records are counted first, then dropped or set aside."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from celery_throttle import Limit, ThrottleControl
from tests.control.conftest import Run
from tests.store.caller import started
from tests.store.peek import KEY, check, peek
from tests.store.terms_caller import TermsCaller, terms

API = Limit("api", 2)
ONE = terms(API).same
FINE = ["Everything in the store can be read."]


def content(redis: Redis) -> Any:
    store = peek(redis)
    return store.hashes, store.sets


def fill(worker: TermsCaller) -> None:
    """Two hold, two wait."""
    for task in ("t1", "t2", "t3", "t4"):
        worker.arrive(task, ONE)


SPOILED = [
    ("records", "t3", b"garbage"),
    ("records", "t1", b"{}"),
    ("workers", "aaaaaaaa", b"\xff"),
    ("limits", "api", b"many"),
    ("used", "api", b"1e3"),
    ("used", "api", b"7"),
    ("waiting", "api", b"x"),
    ("waiting", "api", b"9"),
    ("overrides", "api", b"[[]]"),
    ("rates", "api", b"["),
    ("turns", "api", b"now"),
    ("records", "t9", b'{"v":2,"finished":{"0":7}}'),
    ("locks", "same", b"{}"),
    ("records", "t9", b'{"v":2,"awaited":-1}'),
    ("records", "t9", b'{"v":2,"second":null}'),
    ("meta", "stamp", b"?"),
    ("aside", "t8", b"?"),
]


@pytest.mark.parametrize(("key", "field", "garbage"), SPOILED)
def test_a_field_is_named_first_and_repaired_with_yes(
    worker: TermsCaller, run: Run, redis: Redis, key: str, field: str, garbage: bytes
) -> None:
    fill(worker)
    healthy = content(redis)
    for yes in ([], ["--yes"]):
        ended = run("doctor", "--repair", *yes)
        assert (ended.code, ended.lines, content(redis)) == (0, FINE, healthy)
    redis.hset(KEY[key], field, garbage)
    before = content(redis)
    ended = run("doctor", "--repair")
    assert ended.code == 1
    assert any(line.startswith(f"! {key}[{field}]: ") for line in ended.lines)
    assert ended.lines[-1].endswith("--yes does it.")
    assert content(redis) == before
    assert run("doctor", "--repair", "--yes").code == 0
    assert run("doctor", "--repair").lines == FINE
    assert redis.hget(KEY[key], field) != garbage


def repair(run: Run, redis: Redis, said: str) -> None:
    """Repair the store: this line is there first, and nothing is wrong after it."""
    ended = run("doctor", "--repair")
    assert ended.code == 1
    assert any(said in line for line in ended.lines), ended.out
    assert run("doctor", "--repair", "--yes").code == 0
    check(peek(redis))
    assert run("doctor", "--repair").lines == FINE


@pytest.mark.parametrize("garbage", [b"x", b"9", None])
@pytest.mark.parametrize("what", ["used", "waiting", "keys"])
def test_the_sums_of_keys_are_added_up_again(
    worker: TermsCaller, run: Run, redis: Redis, what: str, garbage: bytes | None
) -> None:
    for task, key in (("t1", "a"), ("t2", "a"), ("t3", "b")):
        worker.arrive(task, terms(Limit("tenant", 1, key="id")).needs({"keys": {"tenant": key}}))
    check(peek(redis))
    if garbage is None:
        redis.hdel(KEY["sums"], f"{what}\0tenant")
    else:
        redis.hset(KEY["sums"], f"{what}\0tenant", garbage)
    repair(run, redis, f"! sums[{what}")


def pass_over_for_ever(redis: Redis, lane: str) -> None:
    redis.delete(KEY["heads"])
    redis.hset(KEY["lanes"], lane, json.dumps(peek(redis).lanes[lane] | {"passed": True}))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda redis, lane: redis.hset(KEY["lanes"], lane, b"?"), "! lanes["),
        (lambda redis, _: redis.delete(KEY["heads"]), "not listed where it says"),
        (pass_over_for_ever, "not listed where it says"),
    ],
    ids=["cannot be read", "is listed nowhere", "is passed over for ever"],
)
def test_lane_is_in_turn_again_if_it(
    worker: TermsCaller, run: Run, redis: Redis, spoil: Callable[[Redis, str], object], said: str
) -> None:
    fill(worker)
    (lane,) = peek(redis).lanes
    spoil(redis, lane)
    repair(run, redis, said)
    assert not peek(redis).passed


def test_a_lane_that_cannot_be_read_is_listed_once(worker: TermsCaller, run: Run, redis: Redis) -> None:
    """By its turn, which is no order of arrival, at the second of its limits; it begins again at the first."""
    fair = Limit("fair", 1, fair_by="who")
    turn, both = (terms(*limits).needs({"fair": ["a", 1]}) for limits in ((fair,), (Limit("own", 1), fair)))
    worker.arrive("holds", turn)
    worker.arrive("before", turn)
    worker.arrive("waits", both, slots=1)
    record = peek(redis).parked["waits"]
    assert record.place != record.ticket
    assert peek(redis).lanes[record.lane]["at"] == "fair"
    redis.hset(KEY["lanes"], record.lane, b"?")
    repair(run, redis, "! lanes[")


@pytest.mark.parametrize("index", ["lines", "heads", "oldest"])
def test_a_member_that_is_out_of_order_is_named(worker: TermsCaller, run: Run, redis: Redis, index: str) -> None:
    fill(worker)
    last: Any = redis.zrange(KEY[index], -1, -1)
    redis.zadd(KEY[index], {last[0]: -1})
    repair(run, redis, "out of order")
    assert set(peek(redis).sets[index].values()) == {0}


def test_places_of_no_lane_and_of_no_task_are_removed(worker: TermsCaller, run: Run, redis: Redis) -> None:
    """Each place of no task stood first in the line until it was removed."""
    fill(worker)
    (member,) = peek(redis).sets["oldest"]
    redis.zadd(KEY["oldest"], {member.replace("1:api", "1:gone"): 0})
    repair(run, redis, "the place of no lane")
    assert list(peek(redis).sets["oldest"]) == [member]
    (lane,) = peek(redis).lanes
    redis.zadd(KEY["lines"], {f"{lane}\0{number:016d}.gone": 0 for number in (1, 2, 3)})
    repair(run, redis, "the place of no task")


@pytest.mark.parametrize("index", ["heads", "lines", "leases"])
def test_an_index_is_made_again(worker: TermsCaller, run: Run, redis: Redis, index: str) -> None:
    fill(worker)
    members: Any = redis.zrange(KEY[index], 0, -1)
    for member in members:
        redis.zrem(KEY[index], member)
    redis.zadd(KEY[index], {"nobody": 5})
    ended = run("doctor", "--repair", "--json")
    told = json.loads(ended.out)
    assert (ended.code, told["done"]) == (1, False)
    assert told["wrong"]
    assert json.loads(run("doctor", "--repair", "--yes", "--json").out)["done"] is True
    redis.zrem(KEY[index], "nobody")
    store = peek(redis)
    assert {"t1", "t2"} == {task for task, record in store.records.items() if record.held}
    assert store.leases.keys() == {"t1", "t2"}
    assert store.sets["lines"].keys() == {record.member(task) for task, record in store.parked.items()}
    assert len(store.sets["heads"]) == 1


def test_repaired_tasks_go_on(worker: TermsCaller, app: Any, redis: Redis) -> None:
    """The holder with the unreadable record gives its permit back."""
    fill(worker)
    redis.hset(KEY["records"], "t1", b"?")
    found = ThrottleControl(app).repair()
    assert [(each.key, each.field) for each in found] == [("records", "t1")]
    assert started(worker.look()) == ("t3",)
    assert ThrottleControl(app).repair() == ()
    (aside,) = ThrottleControl(app).set_aside()
    assert aside.task_id == "t1"


@pytest.mark.parametrize("name", [b"t\xb83", b"\xed\xa0\x80", b"\xff"])
def test_task_whose_id_is_no_text_is_set_aside(app: Any, worker: TermsCaller, redis: Redis, name: bytes) -> None:
    """No worker could name it in a call, so it would keep its permit for a lease."""
    fill(worker)
    record = redis.hget(KEY["records"], "t3")
    message = redis.hget(KEY["messages"], "t3")
    assert record
    assert message
    redis.hdel(KEY["records"], "t3")
    redis.hset(KEY["records"], name, record)
    redis.hset(KEY["messages"], name, message)
    found = [(each.key, each.why) for each in ThrottleControl(app).repair(dry_run=True)]
    assert ("records", "not readable: task id") in found
    ThrottleControl(app).repair()
    assert name not in redis.hkeys(KEY["records"])
    assert redis.hexists(KEY["aside"], name)
    ThrottleControl(app).limit("api").override(9)
    assert started(worker.look(9)) == ("t4",)


def test_a_field_is_repaired_where_no_task_waits(worker: TermsCaller, run: Run, redis: Redis) -> None:
    worker.arrive("t1", ONE)
    redis.hset(KEY["meta"], "stamp", b"?")
    repair(run, redis, "! meta[stamp]")
