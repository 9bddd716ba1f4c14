"""`ThrottleControl(app)` beside workers, which look for work on their own only once an hour."""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery, chord, group
from celery.exceptions import TaskRevokedError
from redis.exceptions import RedisError

from celery_throttle import ConfigurationError, Limit, StoreUnavailable, ThrottleControl, Throttled, clients
from celery_throttle.embedded import EmbeddedServer
from celery_throttle.store.needs import Need
from celery_throttle.testing import ThrottleTest
from tests.support.kit import assert_all_ended, begun, new_app, task_maker
from tests.support.waiting import HANGS_AFTER, until

API = Limit("api", 1)
TENANT = Limit("tenant", 1, key="tenant_id")

APP = new_app("control", throttle_lease=7200)
make_task = task_maker(APP)


def of_tenant(label: str, tenant_id: str) -> str:  # noqa: ARG001 - the key
    return label


call = make_task("call", base=Throttled, limit=API)
serve = make_task("serve", of_tenant, base=Throttled, limit=TENANT)
both = make_task("both", of_tenant, base=Throttled, limit=[API, TENANT])
mail = make_task("mail", base=Throttled, rate="1/h")
pay = make_task("pay", base=Throttled, limit=API, singleton=True)
plain = make_task("plain")


@pytest.fixture
def kit(hints_only: None, throttle: ThrottleTest) -> Iterator[ThrottleTest]:  # noqa: ARG001
    """The kit with a worker that starts each task after a hint, or at the time that the store gave."""
    with throttle.run_worker(concurrency=6):
        yield throttle


# -- steering ----------------------------------------------------------------------------------------------------------


def test_raise_starts_parked_tasks_at_once(kit: ThrottleTest) -> None:
    control, limit = kit.control, kit.control.limit("api")
    with kit.gate() as gate:
        tasks = [call.delay(label) for label in "abcd"]
        kit.assert_line(API, tasks[1:])
        (holder,) = control.holders()
        assert re.fullmatch(rf"w1@test/{os.getpid()}/[0-9a-f]{{8}}", holder.worker)
        assert f"on worker {holder.worker}," in control.explain(tasks[0]).reasons[0]
        full, place = control.explain(tasks[3]).reasons
        assert full == "Limit api is full: 1 of 1 permits are held."
        assert place == "2 tasks are before it in the line of api, of queue 'celery'."

        for permits in (2, 3):
            limit.override(permits, by="ana", why="big day")
            gate.wait_for(permits)
        kit.settle()
        status = limit.status()
        assert (status.permits, status.in_force, status.held, status.parked, status.full) == (1, 3, 3, 1, True)
        (waits,) = limit.parked()
        assert (waits.task_id, waits.task_name, waits.place) == (tasks[3].id, call.name, 1)
        assert (waits.limit, waits.key, waits.queue, waits.deliveries) == ("api", None, "celery", 0)
        assert {each.needs for each in control.holders(API)} == {(Need("api", None, 1),)}

        assert [limit.reset(), limit.reset()] == [True, False]
        gate.open(2)
        until(lambda: limit.status().held == 1)
        kit.assert_line(API, tasks[3:])
        gate.open(1)
        kit.assert_started(tasks[3])
    assert_all_ended(kit)
    assert control.explain(tasks[0]).state == "unknown"
    with API.acquire(app=APP):
        (holder,) = control.holders()
        assert re.fullmatch(rf"{re.escape(socket.gethostname())}/{os.getpid()}/[0-9a-f]{{8}}", holder.worker)


def test_ends_of_pauses_reach_waiting_workers(kit: ThrottleTest) -> None:
    """Nothing else happens in the store meanwhile."""
    limits = [kit.control.limit(each) for each in (API, TENANT)]
    for limit in limits:
        limit.pause()
    waits = both.delay("a", "acme")
    kit.assert_parked(waits)
    limits[0].pause(until=0.5)
    limits[1].pause(until=timedelta(seconds=0.7))
    assert waits.get(timeout=HANGS_AFTER) == "a"


def test_a_disabled_limit(kit: ThrottleTest) -> None:
    limit = kit.control.limit("api")
    with kit.gate(call) as gate:
        for label in "abc":
            call.delay(label)
        mails = [mail.delay(f"mail{number}") for number in range(3)]
        kit.assert_line(mail, mails[1:])
        (why,) = kit.control.explain(mails[-1]).reasons[:1]
        assert why.startswith(f"The rate of limit {mail.name} (1/h) allows the next start in ")
        limit.disable(why="test")
        gate.wait_for(3)
        kit.control.limit(mail.name).disable()
        kit.assert_ran(mail, times=3)
        status = limit.status()
        assert (status.permits, status.in_force, status.held) == (1, None, 3)
        assert status.disabled
        assert status.disabled.why == "test"
        assert limit.enable()
        kit.assert_parked(call.delay("d"), behind=API)
    kit.assert_ran(call, times=4)
    assert_all_ended(kit)


def test_a_limit_without_a_rate_gets_one(kit: ThrottleTest) -> None:
    """Its worker passed permits on from task to task by itself until then."""
    limit = kit.control.limit("api")
    for label in "abcde":
        call.delay(label)
    kit.assert_ran(call, times=5)
    limit.override(rate="1/h", by="ana")
    call.delay("f").get(timeout=HANGS_AFTER)
    waiting = [call.delay(label) for label in "ghij"]
    kit.assert_line(API, waiting)
    kit.assert_ran(call, times=6)
    assert limit.status().next_start_in > 3000
    limit.reset()
    kit.assert_ran(call, times=10)
    assert_all_ended(kit)


@pytest.mark.usefixtures("hints_only")
def test_all_of_very_many_keys_start_at_once(throttle: ThrottleTest) -> None:
    """More than one look serves, in two queues."""
    control = throttle.control
    with throttle.run_worker(concurrency=2, queues=["a"]), throttle.run_worker(concurrency=2, queues=["b"]):
        control.limit("tenant").pause()
        for number in range(150):
            serve.apply_async((str(number), f"{number:03}"), queue="ab"[number % 2])
        until(lambda: len(control.parked(most=1000)) == 150)
        assert control.limit("tenant").resume()
        throttle.assert_ran(serve, times=150, within=60)
        assert_all_ended(throttle)


def test_dropped_task_ends_as_revoked(kit: ThrottleTest, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with kit.gate(call, pay):
        begun(kit, call.delay("a"))
        dropped = [call.delay(label) for label in "bc"]
        in_group = group(call.s("d"), plain.s("e"))()
        paid = pay.delay("f")
        kit.settle()
        assert kit.control.limit("api").drop(by="ana", why="incident\n42") == 4
        again = pay.delay("f")
        assert again.id != paid.id, "its identity lock is free"
    for result in dropped:
        with pytest.raises(TaskRevokedError, match=r"^dropped by ana: incident\\n42$"):
            result.get(timeout=HANGS_AFTER)
        kit.assert_dropped(result)
    with pytest.raises(TaskRevokedError):
        in_group.get(timeout=HANGS_AFTER)
    assert again.get(timeout=HANGS_AFTER) == "f"
    assert_all_ended(kit)
    lines = [each for each in caplog.messages if re.search(r"Task \S+ dropped by ana: incident\\n42$", each)]
    assert len(lines) == 4
    for task in (call, pay, plain):
        kit.assert_ran(task, times=1)


def test_drained_task_beside_workers_is_parked_again(kit: ThrottleTest) -> None:
    """Nothing is lost, however the workers and the drain come in each other's way."""
    limit = kit.control.limit(call)
    limit.pause()
    results = [call.delay(str(number)) for number in range(150)]
    in_chord = chord([call.s("e"), call.s("f")], plain.si("g"))()
    for _ in range(3):
        until(lambda: limit.status().parked == 152)
        kit.control.drain()
    limit.resume()
    assert in_chord.get(timeout=HANGS_AFTER) == "g"
    assert {each.id for each in results} < set(kit.drain(within=60).succeeded)
    kit.assert_ran(call, times=152)
    assert_all_ended(kit)


# -- saying it right ---------------------------------------------------------------------------------------------------


@pytest.fixture
def app(server: EmbeddedServer, redis: object) -> Any:
    """An app of a few tasks, without a worker."""
    assert redis  # which empties the server
    app: Any = Celery("shop", broker=server.url, set_as_current=False)
    app.conf.update(timezone="Asia/Tokyo")
    api, tenant = Limit("api", 4), Limit("tenant", 2, key="tenant_id")

    def work(tenant_id: object = None) -> None: ...

    for name, limits in {"call": api, "serve": tenant, "both": [api, tenant]}.items():
        app.task(work, base=Throttled, limit=limits, name=name, shared=False)
    app.task(work, name="plain", shared=False)
    return app


TIMES = "until must be seconds or a timedelta"
LATE, EARLY = datetime(9999, 12, 31, tzinfo=timezone.utc), datetime(2001, 1, 1, tzinfo=timezone.utc)
NAIVE = datetime(1960, 1, 1)  # noqa: DTZ001 - the app's


@pytest.mark.parametrize(
    ("until", "said"),
    [
        *((wrong, TIMES) for wrong in (0, -1, True, "soon", float("nan"), float("inf"), timedelta(0), 1e300, LATE)),
        *((over, "is over already, by the store's clock") for over in (EARLY, NAIVE)),
    ],
)
def test_an_end_that_cannot_work(app: Celery, until: Any, said: str) -> None:
    limit = ThrottleControl(app).limit("api")
    with pytest.raises(ConfigurationError, match=said):
        limit.disable(until=until)
    assert limit.status().disabled is None


def test_a_datetime_without_a_timezone_is_the_apps(app: Celery) -> None:
    limit = ThrottleControl(app).limit("api")
    limit.pause(until=datetime(2199, 1, 1, 9))  # noqa: DTZ001 - the app's
    paused = limit.status().paused
    assert paused
    assert paused.until == datetime(2199, 1, 1, tzinfo=timezone.utc)


def test_change_is_logged_with_its_author(
    app: Celery, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who that is by default, also where the user has no name."""
    caplog.set_level(logging.INFO, "celery_throttle.control.limit_control")
    limit = ThrottleControl(app).limit("tenant", key="acme")

    def author() -> str:
        limit.override(7, why="big day")
        override = limit.status().override
        assert override
        return override.by

    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found")

    by = author()
    assert re.fullmatch(f".+@{re.escape(socket.gethostname())}", by)
    limit.reset(by="ana")
    limit.reset(by="ana")
    limit.pause(by="bob", until=60)
    assert {record.levelno for record in caplog.records} == {logging.INFO}
    assert caplog.messages == [
        f"Limit tenant[acme]: override 7 by {by}, until taken back: big day",
        "Limit tenant[acme]: reset by ana",
        "Limit tenant[acme]: reset by ana, but there was nothing to do",
        "Limit tenant[acme]: pause by bob, until 60: no reason given",
    ]
    monkeypatch.setattr("getpass.getuser", nobody)
    clients._whoami.cache_clear()
    assert author().partition("@")[0] == str(os.getuid())
    clients._whoami.cache_clear()


def test_how_a_limit_is_named(app: Any, redis: Any) -> None:
    """By its name, by itself, or by its task where there is no doubt which one is meant; a key may be any value."""
    throttle = ThrottleControl(app)
    assert repr(throttle.limit(app.tasks["call"])) == "<LimitControl api>"
    assert repr(throttle.limit(app.tasks["serve"], key="acme")) == "<LimitControl tenant[acme]>"
    assert (throttle.holders(app.tasks["call"]), throttle.parked(app.tasks["call"])) == ((), ())
    assert throttle.limit("tenant", key=17).key == "17"
    assert throttle.limit(Limit("tenant", 2, key="t"), key="x" * 300).key == throttle.limit("tenant", key="x" * 300).key
    redis.hset("{throttle}:3:limits", "elsewhere", "3")
    assert throttle.limit("elsewhere").status().permits == 3
    assert throttle.explain(app.AsyncResult("some-id")) == throttle.explain("some-id")
    known = "Known limits: api, elsewhere, tenant$"
    refused: list[tuple[Callable[[], object], str]] = [
        (lambda: throttle.limit("apy"), rf"^No limit 'apy', did you mean 'api'\? {known}"),
        (lambda: throttle.parked("zzzzzz"), known),
        (lambda: throttle.limit("tenant\x1facme"), known),
        (lambda: throttle.limit(""), known),
        (lambda: throttle.limit("tenant[acme]"), rf"'tenant\[acme\]': write limit\('tenant', key='acme'\)\. {known}"),
        (lambda: throttle.limit("api", key="x"), "Limit 'api' has no keys: leave key= out"),
        (lambda: throttle.limit(app.tasks["both"]), "Task both has several limits: name one of them, 'tenant'"),
        (lambda: throttle.limit(app.tasks["plain"]), "Task plain has no limit: give it base=Throttled, limit=5"),
    ]
    for wrong, said in refused:
        with pytest.raises(ConfigurationError, match=said):
            wrong()


def test_a_store_that_does_not_answer(own_server: EmbeddedServer) -> None:
    app = Celery("shop", broker=own_server.url, set_as_current=False)
    throttle = ThrottleControl(app)
    limit = throttle.limit(Limit("api", 1))
    limit.pause()

    @app.task(shared=False, base=Throttled, singleton=True)
    def once() -> None: ...

    own_server.stop()
    calls: list[Callable[[], object]] = [
        limit.pause, limit.resume, limit.status, limit.holders, limit.parked, throttle.status, throttle.holders,
        throttle.parked, lambda: throttle.explain("t"), lambda: throttle.limit("other"), once.locked_by, once.unlock,
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(StoreUnavailable) as raised:
            call()
        assert isinstance(raised.value.__cause__, (RedisError, OSError))
