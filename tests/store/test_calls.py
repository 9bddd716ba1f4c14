"""Calls of a worker: what no story has, such as the order of several rows of one call, and bytes."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.resources import files
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import NoScriptError

from celery_throttle.core.facts import Result
from celery_throttle.core.limits import Limit
from celery_throttle.store.exchange import Delivery, Exchange
from celery_throttle.store.exchange_reply import Answer
from celery_throttle.store.scripts import Script, execute
from tests.store.caller import KEYS, Caller, Rows, ended, held_by, message_of, passed, started
from tests.store.cost import commands
from tests.store.peek import KEY, Snapshot, expire, peek
from tests.store.steering import Steering

GATE = files("celery_throttle.store") / "lua" / "gate"
NAMES = sorted(path.name.removesuffix(".lua") for path in GATE.iterdir() if path.name.endswith(".lua"))


def test_script_unknown_to_the_server_is_loaded(worker: Caller, one: Limit, redis: Redis) -> None:
    """Restarted, failed over or flushed: the call is carried out once, and the script is known from then on."""
    redis.script_flush()
    call = worker.store.declare("", [(one.name, str(one.permits))])
    with pytest.raises(NoScriptError):
        redis.execute_command(*call.evalsha())  # type: ignore[no-untyped-call]
    execute(redis, call)
    assert peek(redis).limits == {"gpu": 1}
    with commands(redis) as calls:
        execute(redis, call)
    assert "eval" not in calls
    assert calls["evalsha"] == 1


def test_scripts_forgotten_in_between_do_not_matter(worker: Caller, two: Limit, redis: Redis) -> None:
    held = worker.take("t1", two)
    redis.script_flush()
    worker.take("t2", two)
    redis.script_flush()
    worker.release(held)
    assert peek(redis).used == {"gpu2": 1}


@pytest.mark.parametrize("name", NAMES)
def test_script_at_the_server_has_our_name_for_it(redis: Redis, name: str) -> None:
    """Every script compiles, and its SHA1 is the one we send."""
    script = Script.of_gate(name)
    assert redis.script_load(script.text) == script.sha


def test_nothing_is_written_outside_the_declared_keys(worker: Caller, one: Limit, redis: Redis) -> None:
    (grant,) = worker.put("t1", one, slots=1).grants
    worker.put("t2", one)
    worker.put("t1", one)
    worker.renew()
    worker.release(grant, slots=1)
    assert set(redis.scan_iter()) <= {key.encode() for key in KEYS.all}


def test_a_call_of_fifty_of_each_is_one_that_any_server_takes(worker: Caller, two: Limit) -> None:
    """At most 3 999 arguments (ElastiCache Serverless)."""
    some = [worker.arrival(f"t{number}", two) for number in range(50)]
    said = Rows(
        50,
        ended=[ended(each) for each in some],
        passed=[passed(each.task, each.nonce, Result.SUCCESS, each) for each in some],
        began=[(each.task, each.nonce) for each in some],
        unacked=[Delivery(each.task, 0, each.nonce) for each in some],
        revoked=[each.task for each in some],
        never=[("i", each.task, "") for each in some],
        asked=some,
        parked=[worker.parcel(f"p{number}", two) for number in range(50)],
        back=[each._replace(pause=(0.0, "")) for each in some],
    )
    call = worker.call(said, 1)
    assert len(call.arguments) < 3999
    assert len(worker.say(said).asked) == 50


def test_two_prefixes_do_not_meet(worker: Caller, one: Limit, redis: Redis) -> None:
    """Two apps on one server, with a limit of the same name."""
    worker.take("t", one)
    other = Caller(redis, "aaaaaaaa", "q", prefix="other")
    other.take("t", one)
    assert len(set(redis.scan_iter("{other}:*"))) == len(set(redis.scan_iter("{test}:*"))) > 3


@pytest.mark.parametrize(
    ("task", "message"),
    [
        *(("t", message) for message in (b"\0", b"\x00\xff\r\n" * 100, "é".encode(), b"x" * 1_000_000)),
        *((task, b"any") for task in ("é", "a b", "*", "{x}", "[1]", "0" * 300)),
        # The last character of each length and range in UTF-8.
        *((chr(end), b"any") for end in (0x7F, 0x7FF, 0xFFF, 0xD7FF, 0xFFFF, 0x3FFFF, 0xFFFFF, 0x10FFFF)),
    ],
    ids=lambda each: ascii(each)[:20],
)
def test_any_task_id_will_do_and_any_message_comes_back(
    worker: Caller, one: Limit, redis: Redis, task: str, message: bytes
) -> None:
    held = worker.take("held", one)
    worker.put(task, one, message=message)
    (grant,) = worker.release(held, slots=1).grants
    assert (grant.task, grant.message) == (task, message)
    assert not Steering(redis).aside()


def test_a_delivery_that_waits_has_no_parts_of_the_whole_record(worker: Caller, one: Limit, redis: Redis) -> None:
    """It was the record itself while it stood in line."""
    (run,) = worker.put("t1", one, slots=1).grants
    worker.look(0)
    expire(redis, "t1")
    worker.look(0)
    assert worker.renew(run) == [2]
    second = json.loads(peek(redis).hashes["records"]["t1"])["second"]
    assert not second.keys() & {"v", "second", "finished", "awaited"}


def test_changes_are_carried_out_in_the_order_in_which_they_happened(worker: Caller, two: Limit, redis: Redis) -> None:
    """A run ends, and its retry gets the permit of another run: the other way round the retry would not be held."""
    first, other = worker.take("t", two), worker.take("x", two)
    retry = worker.arrival("t", two, attempt=1)
    rows = Exchange(changed=[ended(first, "retry"), passed("x", other.nonce, Result.SUCCESS, retry)])
    execute(redis, worker.store.exchange(worker.name, worker.number + 1, worker.queues, rows))
    store = peek(redis)
    assert {task: record.nonce for task, record in store.records.items()} == {"t": retry.nonce}
    assert store.used == {"gpu2": 1}


def test_renewal_that_an_emptied_store_gets_late_puts_nothing_back(worker: Caller, two: Limit, redis: Redis) -> None:
    """The holder may have ended since, and the store has lost the call that reported that."""
    held = worker.take("t", two)
    birth = worker.declare(two)
    redis.flushall()
    worker.declare(two, known=birth)
    answers, _, since = worker.renew_all(held, birth=birth)
    assert (answers, since == birth.encode()) == ([3], False)
    assert peek(redis).used == {}
    answers, *_ = worker.renew_all(held, birth=since.decode())
    assert answers == [2], "listed again for this data"


# -- a call whose reply was lost ---------------------------------------------------------------------------------------


def content(store: Snapshot) -> object:
    """Return everything but the ends of the leases: repeated grants start new leases."""
    return store.hashes, {**store.sets, "leases": store.leases.keys()}


def test_the_same_call_again_is_only_answered_again(worker: Caller, two: Limit, redis: Redis) -> None:
    """Such a call has grants with messages, requests, parked tasks and withdrawn ones."""
    held = [worker.take(task, two) for task in ("t1", "t2")]
    for task in ("t3", "t4"):
        worker.put(task, two)
    first = worker.exchange(
        2, ended=[ended(each) for each in held], asked=[worker.arrival("t5", two)], parked=[worker.parcel("t6", two)]
    )
    assert started(first) == ("t3", "t4")
    assert (first.asked, first.parked) == ((Answer.MUST_PARK,), (Answer.PARKED,))
    before = peek(redis)
    assert replace(worker.again(), wait=first.wait) == first
    after = peek(redis)
    assert content(after) == content(before)
    assert all(after.leases[task] >= before.leases[task] for task in before.leases)


def test_replayed_withdrawal_returns_the_message_again(worker: Caller, one: Limit) -> None:
    """Its message may have any bytes; the next call confirms it."""
    worker.take("t", one)
    message = bytes(range(256)) + b'"\\/'
    worker.put("t1", one, message=message)
    worker.put("t2", one)
    first = worker.exchange(revoked=["t1", "t2", "unknown"])
    assert [(each.task, each.message) for each in first.withdrawn] == [("t1", message), ("t2", message_of("t2"))]
    assert worker.again().withdrawn == first.withdrawn
    assert worker.again().withdrawn == first.withdrawn
    assert worker.look().withdrawn == ()
    assert worker.again().withdrawn == ()


def test_a_call_that_a_later_one_has_overtaken_does_nothing(
    worker: Caller, peer: Caller, one: Limit, redis: Redis
) -> None:
    """It was sent on a connection that broke, and again on the next one; the server reads the first one last."""
    worker.put("t0", one)
    overtaken, number = worker.last, worker.number
    worker.put("t1", one)
    before = peek(redis)

    worker.raw(overtaken, number)
    assert content(peek(redis)) == content(before)

    # Above all it does not confirm the tasks that the later one parked: a second delivery of it is on record.
    for _ in range(2):
        (grant,) = peer.look().grants
        peer.release(grant)
    assert not peer.put("t1", one).grants
    assert not peek(redis).records


def test_a_confirmed_copy_is_forgotten_at_once(worker: Caller, peer: Caller, one: Limit, redis: Redis) -> None:
    worker.put("t", one)
    peer.release(peer.look().grants[0])
    assert json.loads(peek(redis).hashes["workers"][worker.name])["confirms"] == ["0/t"]
    worker.look()
    assert "confirms" not in json.loads(peek(redis).hashes["workers"][worker.name])


# -- messages that the broker keeps ------------------------------------------------------------------------------------


def test_delivered_again_it_is_kept_twice(worker: Caller, peer: Caller, one: Limit, redis: Redis) -> None:
    """An acknowledgement covers only one of two messages."""
    worker.take("first", one)
    worker.put("t", one, unacked=True)
    met = peer.arrival("t", one)
    assert peer.exchange(asked=[met._replace(unacked=True)]).asked == (Answer.IS_COPY,)
    assert peer.put("t", one, unacked=True).parked == (Answer.IS_COPY,)
    kept = [*worker.parcelled("t"), Delivery("t", 0, met.nonce), *peer.parcelled("t")]
    while kept:
        assert peek(redis).records["t"].unacked == {each.nonce for each in kept}
        worker.exchange(acked=[kept.pop()])
    assert "unacked" not in peek(redis).records["t"].raw


@pytest.mark.parametrize(("first", "second"), [(0, 0), (0, 1), (1, 0)])
def test_both_deliveries_beside_a_late_run_are_kept(
    worker: Caller, peer: Caller, one: Limit, redis: Redis, first: int, second: int
) -> None:
    """One was parked and one waited beside its run, which went back; and a third delivery runs since long ago."""
    worker.put("t", one, attempt=first, unacked=True)
    (grant,) = worker.look().grants
    peer.put("t", one, attempt=second, unacked=True)
    peer.look(0)
    worker.release(grant, "return")
    assert worker.renew(worker.arrival("t", one)) == [2]
    store = peek(redis)
    kept = {(each, next(iter(caller.parcelled("t"))).nonce) for each, caller in ((first, worker), (second, peer))}
    waits = {(store.seconds["t"].attempt, nonce) for nonce in store.seconds["t"].unacked}
    assert kept == waits | {(attempt, nonce) for (attempt, _), left in store.ran.items() for nonce in left}
    assert {attempt for attempt, _ in waits} == {max(first, second)}
    assert {attempt for attempt, _ in store.ran} == {first, second} - {max(first, second)}


def test_asking_is_a_write(worker: Caller, one: Limit, redis: Redis) -> None:
    """Else there would be nothing to be waited for on that connection."""
    worker.put("t", one, unacked=True)
    before: Any = redis.info("persistence")
    worker.saved("t")
    after: Any = redis.info("persistence")
    assert after["rdb_changes_since_last_save"] == before["rdb_changes_since_last_save"] + 1


# -- codes of holders --------------------------------------------------------------------------------------------------


def codes(client: Redis) -> dict[str, str]:
    """Return the codes in the records."""
    records: Any = client.hgetall(KEY["records"])
    return {task.decode(): json.loads(record).get("code") for task, record in records.items()}


def test_a_code_is_kept_until_the_end(worker: Caller, one: Limit, redis: Redis) -> None:
    held = worker.arrival("t1", one)._replace(code="00000001")
    assert worker.exchange(asked=[held]).asked == (Answer.GRANTED,)
    assert codes(redis) == {"t1": "00000001"}

    to = worker.arrival("t2", one)._replace(code="00000002")
    worker.exchange(passed=[passed(held.task, held.nonce, Result.SUCCESS, to)])
    assert codes(redis) == {"t2": "00000002"}

    worker.exchange(parked=[worker.parcel("t3", one)._replace(code="00000003")])
    (grant,) = worker.release(to, slots=1).grants
    assert grant.code == "00000003"
    assert codes(redis) == {"t3": "00000003"}

    redis.flushall()
    worker.know(one)
    worker.declare(one)
    assert worker.renew(held_by(grant)._replace(code=grant.code)) == [2]
    assert codes(redis) == {"t3": "00000003"}


def test_no_code_is_kept_of_a_task_without_one(worker: Caller, one: Limit, redis: Redis) -> None:
    worker.take("t1", one)
    assert codes(redis) == {"t1": None}
