"""The counts of limits, minute by minute."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from typing import Any

import pytest
from redis import Redis

from celery_throttle.core.buckets import Bucket
from celery_throttle.core.facts import Result
from celery_throttle.core.history import MINUTES, QUARTERS, RINGS, SLOT, TOTALS, WAITS, Place, Ring, place_of
from celery_throttle.core.limits import Limit
from celery_throttle.core.policy import needs_text
from celery_throttle.store.history import History, by_limit, histories, last_hours
from celery_throttle.store.scripts import execute
from celery_throttle.worker.runs import Content, Run
from celery_throttle.worker.store_side.tally import Tally
from tests.store.caller import KEYS, Caller, needs_of
from tests.store.counts import counts
from tests.store.peek import expire

API, TENANT = Limit("api", 2), Limit("tenant", 1, key="tenant")
NEEDS = needs_of(API).text
ALL = [place for place in Place if place not in (Place.HELD_MOST, Place.PARKED_MOST)]


def tell(worker: Caller, counts: dict[str, list[float]]) -> Any:
    return execute(worker.client, worker.store.count(by_limit(counts)))


def read(worker: Caller, limit: str = "api", ring: Ring = MINUTES, *, later: int = 0) -> History:
    """Return the history, so many seconds later."""
    raw: Any = execute(worker.client, worker.store.history([limit], ring))
    (found,) = histories((raw[0] + later * 1000, raw[1]), [limit], ring)
    return found


def come_around(redis: Redis) -> None:
    """Move the counts back as many periods as their ring has."""
    for ring in (MINUTES, QUARTERS):
        for slot in range(ring.slots):
            stamp: Any = redis.bitfield(KEYS.ring(ring.name, "api"))
            if period := stamp.get("u32", f"#{slot * SLOT}").execute()[0]:
                stamp.set("u32", f"#{slot * SLOT}", period - ring.slots).execute()


def turn(redis: Redis, minutes: int) -> None:
    """Move the counts back by so many minutes."""
    ring = KEYS.ring(MINUTES.name, "api")
    size = SLOT * 4
    kept: Any = redis.get(ring)
    packed = kept.ljust(MINUTES.slots * size, b"\0")
    for place in range(MINUTES.slots):
        slot = packed[place * size : (place + 1) * size]
        if period := int.from_bytes(slot[:4], "big"):
            redis.setrange(ring, place * size, bytes(size))
            moved = (period - minutes) % MINUTES.slots * size
            redis.setrange(ring, moved, (period - minutes).to_bytes(4, "big") + slot[4:])


def test_counts_of_workers_are_added(worker: Caller, peer: Caller) -> None:
    """Each count at its own place: Lua's and Python's are the same."""
    each = {place.name.lower(): number for number, place in enumerate(ALL, 3)}
    tell(worker, {NEEDS: counts(**each)})
    tell(peer, {NEEDS: counts(**each)})
    for ring in (MINUTES, QUARTERS):
        history = read(worker, ring=ring)
        assert len(history.periods) == ring.slots
        assert [after.since - before.since for before, after in pairwise(history.periods)] == (
            [timedelta(seconds=ring.seconds)] * (ring.slots - 1)
        )
        last = history.total
        assert last.length == ring.seconds * ring.slots
        assert abs(last.since + timedelta(seconds=last.length) - datetime.now(timezone.utc)) <= (
            timedelta(seconds=ring.seconds + 5)
        )
        told = {name: getattr(last, name) for name in each} | {"waited": last.waited[0]}
        told |= {name: round(told[name] * 1000) for name in ("run_time", "wait_time")}
        assert told == {name: 2 * number for name, number in each.items()}
        assert last.started == last.at_once + last.waited[0]


def test_how_many_hold_and_wait_is_looked_at_then(worker: Caller) -> None:
    tell(worker, {NEEDS: counts(ended=1)})
    for number in range(2):
        worker.take(f"t{number}", API)
    worker.put("t2", API)
    tell(worker, {NEEDS: counts(ended=1)})
    most = read(worker).total
    assert (most.held_most, most.parked_most) == (2, 1)


def test_of_a_limit_with_keys_all_is_counted_together(worker: Caller) -> None:
    acme, other = (needs_text([(Bucket("tenant", key), 1)]) for key in ("acme", "other"))
    tell(worker, {acme: counts(ended=1), other: counts(ended=2), f"{acme}\x01{NEEDS}": counts(ended=4)})
    total = read(worker, "tenant").total
    assert (total.ended, total.held_most, total.parked_most) == (7, None, None)
    assert read(worker).total.ended == 4
    assert read(worker).total.held_most == 0


def test_nothing_was_counted(worker: Caller) -> None:
    total = read(worker).total
    assert (total.started, total.held_most, total.wait(0.95)) == (0, None, None)


def test_a_ring_comes_around(worker: Caller) -> None:
    tell(worker, {NEEDS: counts(ended=5)})
    for seconds, minutes, quarters in ((58 * 60, 5, 5), (60 * 60, 0, 5), (94 * 900, 0, 5), (96 * 900, 0, 0)):
        assert read(worker, later=seconds).total.ended == minutes
        assert read(worker, ring=QUARTERS, later=seconds).total.ended == quarters


def test_a_slot_that_is_used_again_begins_with_nothing(worker: Caller, redis: Redis) -> None:
    tell(worker, {NEEDS: counts(ended=5, parked=2)})
    come_around(redis)
    tell(worker, {NEEDS: counts(ended=1)})
    for ring in (MINUTES, QUARTERS):
        total = read(worker, ring=ring).total
        assert (total.ended, total.parked) == (1, 0)


def test_totals_go_on(worker: Caller, redis: Redis) -> None:
    """As the counters of Prometheus do, which begin anew when they are full."""
    tell(worker, {NEEDS: counts(ended=5)})
    come_around(redis)
    tell(worker, {NEEDS: counts(ended=1)})
    assert read(worker, ring=TOTALS).total.ended == 6
    tell(worker, {NEEDS: counts(ended=2**31)})
    tell(worker, {NEEDS: counts(ended=2**31)})
    assert read(worker, ring=TOTALS).total.ended == 6


def test_it_is_bounded_and_ends_by_itself(worker: Caller, redis: Redis) -> None:
    for _ in range(3):
        tell(worker, {NEEDS: counts(ended=2**31)})
    assert read(worker).total.ended == 2**32 - 1, "it stays at the most"
    rings = [KEYS.ring(ring.name, "api") for ring in RINGS]
    assert sum(redis.strlen(ring) for ring in rings) <= 20_200
    left: list[Any] = [redis.pttl(ring) for ring in rings]
    assert all(47 * 3_600_000 < each <= 48 * 3_600_000 for each in left)


def test_reclaimed_holder_is_counted(worker: Caller, peer: Caller, redis: Redis) -> None:
    worker.take("t0", API)
    expire(redis, "t0")
    peer.know(API)
    assert [each[:2] for each in peer.look().reclaimed] == [("t0", NEEDS)]
    assert peer.look().reclaimed == ()


def test_the_last_hour_in_short(worker: Caller, redis: Redis) -> None:
    """The same as in the whole history, of many limits with one call."""
    numbers = counts(at_once=4, ended=9)
    for waited, number in ((0.5, 7), (3.0, 2), (10**6, 1)):
        numbers[place_of(waited)] += number
    tell(worker, {NEEDS: numbers, needs_of(TENANT).text: counts(at_once=3)})
    turn(redis, 20)
    tell(worker, {NEEDS: counts(waited=5)})
    raw: Any = execute(redis, worker.store.history(["nope", "api", "tenant"], MINUTES))
    hours = last_hours(raw, ["nope", "api", "tenant"])
    history = read(worker)
    assert hours.keys() == {"api", "tenant"}
    assert hours["api"].started == tuple(each.started for each in history.periods)
    assert hours["api"].waited == tuple(sum(each.waited) for each in history.periods)
    assert sorted(filter(None, hours["api"].started)) == [5, 14]
    assert sorted(filter(None, hours["api"].waited)) == [5, 10]
    assert hours["api"].wait_p95 == history.total.wait(0.95) == WAITS[-1]
    assert (sum(hours["tenant"].started), sum(hours["tenant"].waited), hours["tenant"].wait_p95) == (3, 0, 0.0)


def test_starts_before_the_last_hour_leave_nothing(worker: Caller, redis: Redis) -> None:
    tell(worker, {NEEDS: counts(at_once=4)})
    for later, left in ((58, ["api"]), (60, [])):
        raw: Any = execute(redis, worker.store.history(["api"], MINUTES))
        now, rings = raw
        assert list(last_hours((now + later * 60_000, rings), ["api"])) == left
    tell(worker, {needs_of(TENANT).text: counts(ended=4)})
    assert last_hours(execute(redis, worker.store.history(["tenant"], MINUTES)), ["tenant"]) == {}, "nothing started"


# -- waits -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("waited", "place"), [(0, 1), (0.001, 2), (0.02, 2), (0.021, 3), (0.04, 3), (WAITS[-1], 20), (10**6, 20)]
)
def test_where_a_wait_is_counted(waited: float, place: int) -> None:
    assert place_of(waited) == place


@pytest.mark.parametrize(
    ("share", "bound"), [(0.1, 0.0), (0.5, 0.0), (0.51, 0.02), (0.75, 0.02), (0.95, 0.64), (1, 0.64)]
)
def test_within_how_long_a_share_started(worker: Caller, share: float, bound: float) -> None:
    numbers = counts(at_once=10, waited=5)
    numbers[place_of(0.5)] += 5
    tell(worker, {NEEDS: numbers})
    assert read(worker).total.wait(share) == bound


# -- counts of a worker ------------------------------------------------------------------------------------------------


def run(text: str = NEEDS, waited: float = 0.0) -> Run:
    made = Run(None, Content("t", needs=needs_of(API if text == NEEDS else TENANT)), epoch=0)
    made.waited = waited
    return made


def test_tally_is_sent_when_large_or_after_a_minute() -> None:
    tally = Tally()
    now = tally._since
    assert not tally.due(now + 1000), "nothing was counted"
    now += 1000
    tally.started(run())
    assert not tally.due(now + 59)
    assert tally.due(now + 60)
    for _ in range(49):
        tally.ended(run(), Result.SUCCESS)
    assert not tally.due(now + 11)
    tally.ended(run(), Result.FAILURE)
    assert not tally.due(now + 9)
    assert tally.due(now + 10)
    ((limit, has_keys, pairs),) = tally.take()
    told = dict(zip(pairs[::2], pairs[1::2], strict=True))
    assert (limit, has_keys, told) == ("api", False, {Place.AT_ONCE: 1, Place.ENDED: 50, Place.FAILED: 1})
    assert json.loads(json.dumps(pairs)) == pairs
    assert tally.take() == []
