"""``celery throttle set``, ``pause``, ``disable`` and their opposites; ``locks``, ``unlock`` and ``reap``."""

from __future__ import annotations

import getpass
import time
from datetime import timedelta
from typing import Any

import click
import pytest
from redis import Redis

from celery_throttle import ConfigurationError, Limit, ThrottleControl
from celery_throttle.control.cli.params import duration
from celery_throttle.store.identity_locks import Locked, LockStatus
from tests.control.conftest import Run
from tests.control.test_looking import API, ONE, fill, names, of
from tests.store.caller import started
from tests.store.peek import expire
from tests.store.terms_caller import TermsCaller, terms

ENDS = {"set": "reset", "pause": "resume", "disable": "enable"}
WHAT = {"set": "override", "pause": "paused", "disable": "disabled"}
each_change = pytest.mark.parametrize("change", ENDS)


def words(change: str, limit: str = "api") -> list[str]:
    return [change, limit, "5"] if change == "set" else [change, limit]


@each_change
def test_a_change_and_its_end(app: Any, run: Run, change: str) -> None:
    ended = run(*words(change), "--for", "2h", "--why", "big day", "--by", "ana")
    assert (ended.code, ended.err) == (0, "")
    assert "(big day)" in ended.rows[1][-1]
    status = ThrottleControl(app).limit("api").status()
    said = getattr(status, WHAT[change])
    assert (said.by, said.why, said.until - said.since) == ("ana", "big day", timedelta(hours=2))
    others = {getattr(status, what) for each, what in WHAT.items() if each != change}
    assert others == {None}
    ended = run(ENDS[change], "api", "--by", "bob")
    assert (ended.code, len(ended.lines)) == (0, 2)
    assert getattr(ThrottleControl(app).limit("api").status(), WHAT[change]) is None
    ended = run(ENDS[change], "api")
    state = {"set": "overridden", "pause": "paused", "disable": "disabled"}[change]
    assert (ended.code, ended.lines[0]) == (0, f"api was not {state}.")


@each_change
def test_a_change_as_json_is_permanent_and_by_this_user(run: Run, change: str) -> None:
    shown = run(*words(change), "--json").json
    assert shown.keys() == {"changed", "status"}
    assert (shown["changed"], shown["status"]["name"]) == (True, "api")
    said = shown["status"][WHAT[change]]
    assert (said["until"], said["why"]) == (None, "")
    assert said["by"].startswith(f"{getpass.getuser()}@")
    assert [run(ENDS[change], "api", "--json").json["changed"] for _ in range(2)] == [True, False]


@each_change
def test_one_key(app: Any, run: Run, change: str) -> None:
    assert run(*words(change, "tenant"), "--key", "acme").rows[1][0] == "tenant[acme]"
    for key, is_said in (("acme", True), ("other", False), (None, False)):
        assert bool(getattr(ThrottleControl(app).limit("tenant", key=key).status(), WHAT[change])) == is_said
    assert run(ENDS[change], "tenant", "--json").json["changed"] is False
    assert run(ENDS[change], "tenant[acme]", "--json").json["changed"] is True


def test_higher_limit_starts_parked_tasks_at_once(run: Run, worker: TermsCaller) -> None:
    fill(worker, 4)
    assert started(worker.look(4)) == ()
    assert run("set", "api", "3").rows[1][1:3] == ["2 of 3", "2"]
    assert started(worker.look(4)) == ("t2",)
    run("pause", "api")
    run("set", "api", "9")
    assert started(worker.look(4)) == ()
    run("resume", "api")
    assert started(worker.look(4)) == ("t3",)


def test_a_task_is_welcome_where_its_limit_is(app: Any, run: Run) -> None:
    """By its name, if it has just one limit."""
    assert run("set", "call", "7").rows[1][0] == "api"
    assert ThrottleControl(app).limit("call").status().in_force == 7
    assert run("show", "serve", "--key", "acme").rows[1][0] == "tenant[acme]"


@pytest.mark.parametrize("later", [60, 0.5])
def test_until_may_be_a_unix_time(app: Any, later: float) -> None:
    """It is not so many seconds from now, which would be in 2083."""
    limit = ThrottleControl(app).limit("api")
    limit.pause(until=time.time() + later)
    paused = limit.status().paused
    assert paused
    assert paused.until
    assert abs(paused.until.timestamp() - time.time() - later) < 10
    with pytest.raises(ConfigurationError, match="is over already"):
        limit.pause(until=time.time() - 60)
    with pytest.raises(ConfigurationError, match="until must be seconds or a timedelta"):
        limit.pause(until=time.time() * 1000)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("10m", 600), ("2h", 7200), ("1d", 86400), ("1h30m", 5400), ("1d1s", 86401), ("0.5s", 0.5)],
)
def test_durations(text: str, seconds: float) -> None:
    assert duration(text).total_seconds() == seconds


@pytest.mark.parametrize("text", ["", "2", "2x", "h", "-2h", "0s", "0h0m", "1m1h", "2 h", "1e3s"])
def test_no_durations(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is no duration: write 90s, 10m, 2h, 1d or 1h30m"):
        duration(text)


# -- holds ------------------------------------------------------------------------------------------------------------


def test_a_hold_is_ended_early(app: Any, run: Run, worker: TermsCaller) -> None:
    worker.send_back(worker.take("t1", API), 3600.0)
    worker.arrive("t2", ONE)
    assert run("status").rows[1][-1].startswith("held back by t1 until ")
    assert started(worker.look(4)) == ()
    ended = run("release-hold", "api", "--by", "ana", "--why", "they are back")
    assert (ended.code, ended.err, ended.rows[1][:3]) == (0, "", ["api", "0 of 2", "2"])
    assert started(worker.look(4)) == ("t1", "t2"), "it was sent back to the head of its line"
    (change,) = ThrottleControl(app).audit("api")
    assert (change.action, change.by, change.why, change.after) == ("release-hold", "ana", "they are back", None)
    assert change.before
    assert (change.before.by, change.before.why) == ("t1", "rate limited")
    ended = run("release-hold", "api")
    assert (ended.code, ended.lines[0]) == (0, "api was not held back.")
    assert run("release-hold", "api", "--json").json["changed"] is False
    assert len(ThrottleControl(app).audit()) == 1


def test_holds_of_one_key_or_of_all(app: Any, run: Run, worker: TermsCaller) -> None:
    limit = ThrottleControl(app).limit("tenant")
    limit.pause(why="goes on")
    limit.resume()
    for tenant in ("a", "b", "c"):
        worker.send_back(worker.take(f"t{tenant}", of(tenant)), 3600.0)
    assert run("release-hold", "tenant[a]", "--json").json["changed"] is True
    assert started(worker.look(4)) == ("ta",)
    ThrottleControl(app).limit("tenant", key="c").pause()
    assert limit.release_hold()
    assert not limit.release_hold()
    assert started(worker.look(4)) == ("tb",), "the pause of a key is another thing"
    assert [str(each.bucket) for each in ThrottleControl(app).status() if each.held_back] == []


# -- identity locks ----------------------------------------------------------------------------------------------------

CALL = ("charge", "-a", "[17]", "-k", '{"amount": 5}')


def test_locks_shows_the_holder(app: Any, run: Run) -> None:
    assert run("locks", *CALL).out == "The lock is free.\n"
    assert run("locks", *CALL, "--json").json == []
    first = app.tasks["charge"].delay(17, amount=5)
    ended = run("locks", *CALL)
    assert ended.rows[0] == ["TASK", "STATE", "SINCE", "EXPIRES IN", "FENCING TOKEN"]
    assert ended.rows[1][:2] == [first.id, "queued"]
    (lock,) = run("locks", *CALL, "--json").json
    assert lock.keys() == names(Locked)
    assert lock["task_id"] == first.id
    assert run("locks", "charge", "-a", "[18, 5]").out == "The lock is free.\n"


def test_a_lock_is_taken_away(app: Any, run: Run) -> None:
    app.tasks["charge"].delay(17, amount=5)
    assert run("unlock", *CALL).out == "The lock is free.\n"
    assert app.tasks["charge"].locked_by(17, amount=5) is None
    ended = run("unlock", *CALL)
    assert (ended.code, ended.out) == (0, "The lock was free.\n")
    app.tasks["charge"].delay(17, amount=5)
    assert [run("unlock", *CALL, "--json").json for _ in range(2)] == [{"unlocked": True}, {"unlocked": False}]


def test_all_locks(app: Any, run: Run) -> None:
    assert run("locks").out == "No lock is held.\n"
    first = app.tasks["charge"].delay(17, amount=5)
    second = app.tasks["charge"].delay(18, amount=5)
    ended = run("locks")
    assert ended.rows[0] == ["TASK", "STATE", "SINCE", "EXPIRES IN", "FENCING TOKEN"]
    assert [row[:2] for row in ended.rows[1:]] == [[first.id, "queued"], [second.id, "queued"]]
    assert [each.task_id for each in ThrottleControl(app).locks()] == [first.id, second.id]
    assert str(ThrottleControl(app).locks()[0]).startswith(f"Task[{first.id}] has lock ")
    rows = run("locks", "--json").json
    assert [row["task_id"] for row in rows] == [first.id, second.id]
    assert rows[0].keys() == names(LockStatus)
    assert len(run("locks", "--most", "1").lines) == 2
    ended = run("locks", "-a", "[17]")
    assert (ended.code, ended.err.splitlines()[-1]) == (
        2,
        "Error: --args and --kwargs need a task: write `celery throttle locks TASK --args '[17]'`",
    )


# -- reap --------------------------------------------------------------------------------------------------------------


def test_permits_of_lost_workers(app: Any, run: Run, worker: TermsCaller, redis: Redis) -> None:
    both = terms(API, Limit("tenant", 1, key="tenant"), cost=1).needs({"keys": {"tenant": "acme"}})
    worker.arrive("lost", both)
    worker.arrive("alive", of("other"))
    assert run("reap").out == "No lease has ended.\n"
    expire(redis, "lost")
    assert run("reap").rows == [["TASK", "HELD"], ["lost", "tenant[acme], api"]]
    assert [each.task_id for each in ThrottleControl(app).holders()] == ["alive"]
    assert run("reap", "--json").json == []
