"""``celery throttle remove-data``: the keys of a prefix are counted and deleted, and no others."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis

from celery_throttle import Limit, StoreInUse, StoreUnavailable, ThrottleControl
from celery_throttle.control.removal import StoredData
from celery_throttle.core.keys import Keys
from celery_throttle.embedded import EmbeddedServer
from celery_throttle.primitives import Counter, FairSemaphore, IdentityLock, RateLimiter
from celery_throttle.store import keyspace
from tests.control.conftest import Run, add_task, make_app, run_in
from tests.control.test_drain import full, park  # noqa: F401 - a fixture
from tests.control.test_looking import ONE, names
from tests.store.cost import commands
from tests.store.lock_caller import LockCaller, plan_of
from tests.store.terms_caller import TermsCaller
from tests.support.journal import Journal
from tests.support.waiting import until
from tests.support.workers import Workers

GROUPS = "tests.support.apps.groups"


def ours(redis: Redis, prefix: str = "test") -> set[bytes]:
    begin = (f"{{{prefix}}}".encode(), f"{{{prefix}:".encode())
    return {each for each in redis.scan_iter() if each.startswith(begin)}


def idle(worker: TermsCaller) -> None:
    """Leave the remains of a used limit."""
    worker.end(worker.take("t", ONE))


def test_all_keys_of_the_prefix_and_no_others(app: Any, worker: TermsCaller, redis: Redis) -> None:
    idle(worker)
    throttle = ThrottleControl(app)
    throttle.limit("api").override(5)
    throttle.limit("tenant", key="acme").pause()
    Counter(redis, "visits", prefix="test").add(1, call_id="one")
    RateLimiter(redis, "mail", "1/h", prefix="test").acquire()
    Counter(redis, "visits", prefix="test2").add(1)
    Counter(redis, "visits", prefix="tes").add(1)
    others = {"test", "{test", "{test}", "{test}:20:limits", "x{test}:3:limits", "celery", "{test:us}:3:limits"}
    for each in others:
        redis.set(each, 1)
    before = set(redis.keys())
    found = throttle.remove_data(dry_run=True)
    assert set(redis.keys()) == before
    data = throttle.remove_data(why="bye")
    assert (found, data.keys) == (data, len(before - set(redis.keys())))
    assert data.spaces == ("{test}:3:",)
    assert data.size
    left = {each.decode() for each in redis.scan_iter()}
    assert left - {"{test2}:3:counter:visits", "{tes}:3:counter:visits"} == others | {"_kombu.binding.celery"} & left
    assert data.others == ("{test:us}:3", "{test}", "{test}:20")
    assert throttle.status() == ()
    assert throttle.remove_data().keys == 0


def test_more_keys_than_a_page(app: Any, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyspace, "_PAGE", 10)
    for number in range(300):
        redis.set(f"{{test}}:3:minutes:limit{number}", 1)
        redis.set(f"other{number}", 1)
    with commands(redis) as calls:
        assert ThrottleControl(app).remove_data().keys == 300
    assert calls["scan"] > 40
    assert not {"keys", "flushdb", "flushall", "del"} & calls.keys()
    assert redis.dbsize() == 300


def test_a_prefix_of_wildcards(server: EmbeddedServer, redis: Redis) -> None:
    """Celery's ``global_keyprefix`` stands in front of ours, and may have any."""
    app = make_app(server.url)
    app.conf.update(throttle_prefix=None, broker_transport_options={"global_keyprefix": "a[bc]*?"})
    one, other = Keys("a%5bbc%5d%2a%3fthrottle"), Keys("ab-throttle")
    redis.hset(one.key("overrides"), "x", 1)
    redis.set(other.key("meta"), 1)
    redis.set("{a[bc]*?throttle}:3:meta", 1)
    assert run_in(app, "remove-data", "--yes").out == "1 key deleted.\n"
    assert set(redis.keys()) == {other.key("meta").encode(), b"{a[bc]*?throttle}:3:meta"}


def test_every_group_of_the_app(server: EmbeddedServer, redis: Redis) -> None:
    app = make_app(server.url, throttle_group="us")
    add_task(app, "eu", Limit("eu", 1, group="eu"))
    for group in ("", "us", "eu", "asia"):
        redis.hset(Keys("test", group).key("overrides"), "x", 1)
    data = ThrottleControl(app).remove_data()
    assert data.keys == 3
    assert data.spaces == ("{test}:3:", "{test:eu}:3:", "{test:us}:3:")
    assert data.others == ("{test:asia}:3",)
    assert ours(redis) == {b"{test:asia}:3:overrides"}


def test_parked_tasks_and_held_permits_keep_it(app: Any, run: Run, full: TermsCaller, redis: Redis) -> None:  # noqa: F811
    park(app, full, "t1", ONE)
    before = ours(redis)
    with pytest.raises(StoreInUse, match=r"^Nothing .*: 1 task parked: .*; 3 holders of permits") as info:
        ThrottleControl(app).remove_data()
    assert len(info.value.reasons) == 2
    ended = run("remove-data", "--yes")
    assert (ended.code, ended.out) == (1, "")
    assert "--force beside --yes deletes the data anyway" in ended.err
    assert ours(redis) == before
    lines = run("remove-data").lines
    assert next(each for each in lines if each.startswith("! In use: ")).startswith("! In use: 1 task parked")
    assert lines[-1] == "--yes refuses while the data is in use; --yes --force deletes the data anyway."
    assert ThrottleControl(app).remove_data(force=True).parked == 1
    assert not ours(redis)


def test_locks_and_semaphores_of_the_primitives_keep_it(app: Any, redis: Redis) -> None:
    lock = IdentityLock(redis, prefix="test").acquire("x")
    assert lock
    with lock:
        assert ThrottleControl(app).remove_data(dry_run=True).held == 1
    permit = FairSemaphore(redis, "gpu", 1, prefix="test").acquire()
    assert permit
    with permit:
        data = ThrottleControl(app).remove_data(dry_run=True)
        assert (data.held, len(data.in_use)) == (1, 1)
    assert not ThrottleControl(app).remove_data().in_use
    assert not ours(redis)


def test_removal_names_the_singletons_that_it_affects(app: Any, run: Run, redis: Redis) -> None:
    once = LockCaller(redis, "dddddddd", "q")
    remembers = plan_of(remember=3600)
    paid = once.start("paid", remembers)
    once.end(paid)
    once.publish("published", plan_of("other"))
    data = ThrottleControl(app).remove_data(dry_run=True)
    assert (data.locks, data.remembered, data.in_use) == (1, 1, ())
    lines = run("remove-data").lines
    assert "! Would go: 1 remembered call: another call with the same arguments runs again" in lines
    assert any(each.startswith("! Would go: 1 identity lock of calls that are published or run") for each in lines)
    assert lines[-1] == "All of it would be deleted; --yes does it."
    assert run("remove-data", "--yes").code == 0
    assert not ours(redis)


def test_connected_workers_keep_it_and_go_on_after_a_forced_removal(workers: Workers, journal: Journal) -> None:
    """To them the store has lost its data: running tasks are put back, and new ones are limited."""
    worker = workers.start(GROUPS, concurrency=4)
    app = workers.app(GROUPS)
    control = ThrottleControl(app.app)
    first = journal.wait_begun(app.anywhere.delay("first"))
    with pytest.raises(StoreInUse, match=r"1 worker called within the last five minutes: stop them \(SIGTERM\)"):
        control.remove_data()
    assert control.remove_data(force=True).held == 1
    second = app.anywhere.delay("second")
    until(lambda: [each.task_id for each in control.parked()] == [second.id])
    assert [each.task_id for each in control.holders()] == [first.id]
    journal.let_go("first", "second")
    journal.wait_finished(2)
    assert journal.max_running(task="anywhere") == 1
    worker.term()
    assert worker.wait() == 0
    assert control.remove_data().keys > 0
    assert control.remove_data(dry_run=True).keys == 0


def test_command_counts_and_deletes_with_yes(
    server: EmbeddedServer, app: Any, run: Run, worker: TermsCaller, redis: Redis
) -> None:
    assert run("remove-data").lines[-1] == run("remove-data").lines[-1] == "Nothing is stored."
    idle(worker)
    before = ours(redis)
    ended = run("remove-data")
    assert (ended.code, ended.err) == (0, "")
    assert ended.lines[0] == f"keys            {len(before)}, of {{test}}:3:"
    assert ended.lines[-1] == "All of it would be deleted; --yes does it."
    found = run("remove-data", "--json").json
    assert (found["done"], found["in_use"], found["data"].keys()) == (False, [], names(StoredData))
    assert ours(redis) == before
    assert run("remove-data", "--yes", "--json").json["data"]["keys"] == len(before)
    idle(worker)
    count = len(ours(redis))
    ended = run_in(app, "remove-data", "--url", server.url, "--prefix", "test", "--yes")
    assert ended.out == f"{count} keys deleted.\n", "a store alone is enough"


def test_user_without_rights_is_refused(server: EmbeddedServer, app: Any, redis: Redis) -> None:
    assert app
    acl: Any = redis.execute_command
    acl("ACL", "SETUSER", "weak", "on", ">pass", "~*", "&*", "+@all", "-scan")
    try:
        weak = make_app(server.url.replace("redis://", "redis://weak:pass@"))
        with pytest.raises(StoreUnavailable, match=r"ACL SETUSER \.\.\. \+scan \+unlink"):
            ThrottleControl(weak).remove_data(dry_run=True)
        acl("ACL", "SETUSER", "weak", "+scan", "-memory")
        redis.hset("{test}:3:overrides", "x", 1)
        assert run_in(weak, "remove-data").lines[:2] == ["keys            1, of {test}:3:", "bytes           not known"]
        assert ThrottleControl(weak).remove_data().keys == 1
    finally:
        acl("ACL", "DELUSER", "weak")
