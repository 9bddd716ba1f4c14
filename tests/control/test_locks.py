"""``celery throttle locks``, ``unlock`` and ``reap``."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis

from celery_throttle import Limit, ThrottleControl
from celery_throttle.control.reader import Reclaimed
from celery_throttle.store.identity_locks import Locked, LockStatus
from celery_throttle.store.needs import Need
from tests.control.conftest import Run
from tests.control.test_looking import API, fill, names, of
from tests.store.peek import be_away, end_moment, expire
from tests.store.terms_caller import TermsCaller, terms

CALL = ("charge", "-a", "[17]", "-k", '{"amount": 5}')
HEADINGS = ["TASK", "STATE", "SINCE", "EXPIRES IN", "FENCING TOKEN"]


def test_locks_of_all_calls_and_of_one(app: Any, control: ThrottleControl, run: Run) -> None:
    assert run("locks").out == "No lock is held.\n"
    assert run("locks", *CALL).out == "The lock is free.\n"
    assert run("locks", *CALL, "--json").json == []
    first, second = (app.tasks["charge"].delay(order, amount=5).id for order in (17, 18))
    ended = run("locks", *CALL)
    assert ended.rows[0] == HEADINGS
    assert [row[:2] for row in ended.rows[1:]] == [[first, "queued"]]
    (lock,) = run("locks", *CALL, "--json").json
    assert (lock.keys(), lock["task_id"]) == (names(Locked), first)
    assert run("locks", "charge", "-a", "[19, 5]").out == "The lock is free.\n"
    ended = run("locks")
    assert ended.rows[0] == HEADINGS
    assert [row[:2] for row in ended.rows[1:]] == [[first, "queued"], [second, "queued"]]
    assert [each.task_id for each in control.locks()] == [first, second]
    assert str(control.locks()[0]).startswith(f"Task[{first}] has lock ")
    rows = run("locks", "--json").json
    assert [row["task_id"] for row in rows] == [first, second]
    assert rows[0].keys() == names(LockStatus)
    assert len(run("locks", "--most", "1").lines) == 2


def test_a_lock_is_taken_away_by_call_or_identity(
    app: Any, control: ThrottleControl, run: Run, worker: TermsCaller
) -> None:
    charge = app.tasks["charge"]
    worker.know(None)
    charge.delay(17, amount=5)
    assert run("unlock", *CALL).out == "The lock is free.\n"
    assert charge.locked_by(17, amount=5) is None
    ended = run("unlock", *CALL)
    assert (ended.code, ended.out) == (0, "The lock was free.\n")
    charge.delay(17, amount=5)
    assert [run("unlock", *CALL, "--json").json for _ in range(2)] == [{"unlocked": True}, {"unlocked": False}]
    for unlock in (
        lambda identity: control.unlock(identity, by="ana", why="stuck"),
        lambda identity: run("unlock", "--identity", identity, "--by", "ana", "--json").json["unlocked"],
    ):
        charge.delay(17, amount=5)
        (lock,) = control.locks()
        assert [unlock(lock.identity) for _ in range(2)] == [True, False]
        assert control.locks() == ()
        change = control.audit()[0]
        assert (change.action, change.by, change.task_id) == ("unlock", "ana", lock.task_id)


def test_reap_frees_the_permits_of_lost_workers(
    control: ThrottleControl, run: Run, worker: TermsCaller, redis: Redis
) -> None:
    both = terms(API, Limit("tenant", 1, key="tenant")).needs({"keys": {"tenant": "acme"}})
    worker.arrive("lost", both)
    worker.arrive("alive", of("other"))
    assert run("reap").out == "No lease has ended.\n"
    expire(redis, "lost")
    ended = run("reap")
    assert (ended.code, ended.rows) == (0, [["TASK", "HELD"], ["lost", "tenant[acme], api"]])
    assert [each.task_id for each in control.holders()] == ["alive"]
    assert run("reap", "--json").json == []


def test_reap_takes_as_many_calls_as_there_are_permits(
    control: ThrottleControl, worker: TermsCaller, redis: Redis
) -> None:
    fill(worker, 230, terms(Limit("wide", 1000)).same)
    expire(redis, *(f"t{number}" for number in range(230)))
    cleared = control.reap()
    assert len({each.task_id for each in cleared}) == 230
    assert cleared[0] == Reclaimed(cleared[0].task_id, (Need("wide", None, 1),))
    assert control.limit("wide").status().held == 0


def test_reap_after_long_silence_gives_holders_a_moment(
    control: ThrottleControl, worker: TermsCaller, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reaper waits for that moment, since there may be no later call."""
    worker.arrive("lost", terms(Limit("gpu", 1)).same)
    be_away(redis)
    waited: list[float] = []

    def sleep(pause: float) -> None:
        waited.append(pause)
        end_moment(redis)

    monkeypatch.setattr("celery_throttle.clients.time.sleep", sleep)
    (cleared,) = control.reap()
    assert (cleared.task_id, waited) == ("lost", [4.01])
