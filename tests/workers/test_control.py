"""`ThrottleControl(app)` beside workers, which look for work on their own only once an hour."""

from __future__ import annotations

import logging
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from time import monotonic
from typing import Any

import pytest
from celery import Celery, chord, group
from celery.exceptions import TaskRevokedError
from celery.utils import uuid
from redis.exceptions import RedisError

from celery_throttle import ConfigurationError, Limit, StoreUnavailable, ThrottleControl, Throttled
from celery_throttle.embedded import EmbeddedServer
from celery_throttle.store.draining import Drained
from celery_throttle.store.needs import Need
from celery_throttle.testing import ThrottleTest
from tests.support.journal import Journal
from tests.support.kit import assert_all_ended, begun, new_app, task_maker
from tests.support.state import State
from tests.support.waiting import until
from tests.support.workers import Workers

STEERED = "tests.support.apps.steered"
LATE = datetime(9999, 12, 31, tzinfo=timezone.utc)

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
once = make_task("once", base=Throttled, singleton=True)
pay = make_task("pay", base=Throttled, limit=API, singleton=True)
plain = make_task("plain")


@pytest.fixture
def kit(hints_only: None, throttle: ThrottleTest) -> Iterator[ThrottleTest]:  # noqa: ARG001
    """The kit with a worker that starts each task after a hint, or at the time that the store gave."""
    with throttle.run_worker(concurrency=6):
        yield throttle


def steer(workers: Workers) -> tuple[Any, ThrottleControl]:
    app = workers.app(STEERED)
    return app, ThrottleControl(app.app)


def test_holder_shows_its_worker_and_process(kit: ThrottleTest) -> None:
    """The worker's node and process, and of a permit outside of tasks the machine's."""
    with kit.gate():
        task = begun(kit, call.delay("a"))
        (holder,) = kit.control.holders()
        assert re.fullmatch(rf"w1@test/{os.getpid()}/[0-9a-f]{{8}}", holder.worker)
        assert f"on worker {holder.worker}," in kit.control.explain(task).reasons[0]
    kit.drain()
    with API.acquire(app=APP):
        (holder,) = kit.control.holders()
        assert re.fullmatch(rf"{re.escape(socket.gethostname())}/{os.getpid()}/[0-9a-f]{{8}}", holder.worker)


# -- steering ----------------------------------------------------------------------------------------------------------


def test_raise_starts_parked_tasks_at_once(kit: ThrottleTest) -> None:
    control, limit = kit.control, kit.control.limit("api")
    with kit.gate() as gate:
        tasks = [call.delay(label) for label in "abcd"]
        kit.assert_line(API, tasks[1:])
        full, place = control.explain(tasks[3]).reasons
        assert full == "Limit api is full: 1 of 1 permits are held."
        assert place == "2 tasks are before it in the line of api, of queue 'celery'."

        limit.override(2, by="ana", why="big day")
        gate.wait_for(2)
        limit.override(3)
        gate.wait_for(3)
        kit.settle()
        status = limit.status()
        assert (status.permits, status.in_force, status.held, status.parked) == (1, 3, 3, 1)
        assert status.full
        (waits,) = limit.parked()
        assert (waits.task_id, waits.task_name, waits.place) == (tasks[3].id, call.name, 1)
        assert (waits.limit, waits.key, waits.queue, waits.deliveries) == ("api", None, "celery", 0)
        assert {each.task_id for each in limit.holders()} == {task.id for task in tasks[:3]}
        assert {each.needs for each in control.holders(API)} == {(Need("api", None, 1),)}
        assert control.explain(tasks[2]).state == "held"
        (why,) = control.explain(tasks[3]).reasons
        assert why.startswith("Limit api is full: 3 of 3 permits are held: 3 instead of 1 since ")

        assert limit.reset()
        assert not limit.reset()
        gate.open(2)
        until(lambda: limit.status().held == 1)
        kit.assert_line(API, tasks[3:])
        gate.open(1)
        kit.assert_started(tasks[3])
    assert_all_ended(kit)
    assert control.explain(tasks[0]).state == "unknown"


def test_a_pause_and_its_end(kit: ThrottleTest) -> None:
    limit = kit.control.limit(API)
    with kit.gate():
        first = begun(kit, call.delay("a"))
        before = call.delay("before")
        kit.assert_line(API, [before])
        limit.pause(by="ana@desk", why="their database is down")
        after = call.delay("after")
        kit.assert_line(API, [before, after])
    left = kit.drain().left
    assert {each.task_id for each in left} == {before.id, after.id}
    for why in left:
        assert why.reasons[0].startswith("Limit api is paused since ")
        assert why.reasons[0].endswith(" by ana@desk, because: their database is down.")
    assert limit.resume()
    assert not limit.resume()
    assert kit.drain().succeeded == (first.id, before.id, after.id)
    kit.assert_most_at_once(API, 1)
    assert_all_ended(kit)


def test_a_pause_ends_by_itself(kit: ThrottleTest) -> None:
    """Also for those that were parked before it, behind one that has ended since; and for several limits at once."""
    control = kit.control
    with kit.gate():
        begun(kit, call.delay("a"))
        before = call.delay("before")
        kit.assert_parked(before)
        control.limit("tenant").pause(until=timedelta(seconds=2.5))
        asked = monotonic()
        control.limit("api").pause(until=2)
        paused = control.limit("api").status().paused
        assert paused
        assert paused.until
        assert (paused.until - paused.since).total_seconds() == 2
        several = both.delay("both", "acme")
        until(lambda: control.explain(several).state == "parked")
        reasons = control.explain(several).reasons
        assert {reason.split(" is paused")[0] for reason in reasons[:2]} == {"Limit tenant", "Limit api"}
    kit.assert_started(before, within=10)
    assert monotonic() - asked >= 1.99
    kit.assert_started(several, within=10)
    assert_all_ended(kit)


def test_end_of_an_override_reaches_waiting_workers(kit: ThrottleTest) -> None:
    """Nothing else happens in the store meanwhile."""
    limit = kit.control.limit("api")
    limit.pause()
    waits = call.delay("a")
    kit.assert_parked(waits)
    limit.pause(until=0.5)
    assert waits.get(timeout=20) == "a"


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


def test_one_key(kit: ThrottleTest) -> None:
    control = kit.control
    acme, other = control.limit("tenant", key="acme"), control.limit(TENANT, key="other")
    acme.override(2)
    with kit.gate():
        results = [serve.delay(f"{number}", tenant) for tenant in ("acme", "other") for number in range(3)]
        kit.assert_line(TENANT, results[2:3], key="acme")
        kit.assert_line(TENANT, results[4:], key="other")
        other.pause()
    kit.drain()
    stands = [(str(each.bucket), each.held, each.parked) for each in control.status() if each.name == "tenant"]
    assert stands == [("tenant", 0, 0), ("tenant[acme]", 0, 0), ("tenant[other]", 0, 2)]
    assert {each.key for each in control.parked("tenant")} == {"other"}
    assert other.resume()
    kit.assert_ran(serve, times=6)
    kit.assert_most_at_once(TENANT, 2, key="acme")
    kit.assert_most_at_once(TENANT, 1, key="other")
    acme.reset()
    assert_all_ended(kit)
    assert [str(each.bucket) for each in control.status() if each.name == "tenant"] == ["tenant"]


@pytest.mark.usefixtures("hints_only")
def test_all_of_very_many_keys_start_at_once(throttle: ThrottleTest) -> None:
    """More than one look serves, in two queues."""
    control = throttle.control
    with throttle.run_worker(concurrency=2, queues=["a"]), throttle.run_worker(concurrency=2, queues=["b"]):
        control.limit("tenant").pause()
        for number in range(150):
            serve.apply_async((str(number), f"{number:03}"), queue="ab"[number % 2])
        until(lambda: len(control.parked(most=1000)) == 150)
        assert sum(each.name == "tenant" for each in control.status(most=1000)) == 1 + 150
        assert len(control.status(most=10)) == 10
        assert len(control.parked()) == 100
        assert control.limit("tenant").resume()
        throttle.assert_ran(serve, times=150, within=60)
        assert_all_ended(throttle)


@pytest.mark.usefixtures("hints_only")
def test_other_reasons_to_wait(throttle: ThrottleTest) -> None:
    explain = throttle.control.explain
    with throttle.run_worker(queues=["first"]):
        with throttle.hold(TENANT, key="a"), throttle.run_worker(queues=["second"]), throttle.gate():
            begun(throttle, once.apply_async(("once",), queue="first"))
            duplicate = once.apply_async(("once",), queue="first", task_id=uuid())
            waits = both.apply_async(("both", "a"), queue="second")
            for each in (duplicate, waits):
                throttle.assert_parked(each)
            why = explain(duplicate)
            assert (why.state, why.task_name) == ("waiting for its identity lock", once.name)
            assert "which runs" in why.reasons[0]
            why = explain(waits)
            assert why.reasons == (
                "Limit tenant[a] is full: 1 of 1 permits are held.",
                "It needs 1 permit of tenant[a] and 1 permit of api at once, and waits in the line of tenant[a].",
            )
            assert (why.limit, why.key, why.place, why.queue) == ("tenant", "a", 1, "second")
            assert [str(limit.bucket) for limit in why.limits] == ["tenant[a]", "api"]

        serve.apply_async(("next", "a"), queue="first").get(timeout=20)
        can_start = "It can start: it waits for a worker with a free slot that consumes queue 'second'."
        until(lambda: explain(waits).reasons[-1] == can_start)  # the permit of "next" is back
        assert explain(waits).reasons[-2].startswith("Its queue 'second' has been passed over")
        with throttle.run_worker(queues=["second"]):
            assert waits.get(timeout=20) == "both"
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
            result.get(timeout=20)
        kit.assert_dropped(result)
    with pytest.raises(TaskRevokedError):
        in_group.get(timeout=20)
    assert again.get(timeout=20) == "f"
    assert_all_ended(kit)
    lines = [each for each in caplog.messages if re.search(r"Task \S+ dropped by ana: incident\\n42$", each)]
    assert len(lines) == 4
    for task in (call, pay, plain):
        kit.assert_ran(task, times=1)


def test_drained_task_runs_without_throttling(workers: Workers, journal: Journal, state: State) -> None:
    """The way out: everything parked goes back to its queue, and runs on workers that do not throttle."""
    first = workers.start(STEERED, concurrency=2)
    app, throttle = steer(workers)
    throttle.limit(app.call).pause()
    results = [app.call.delay(label) for label in "abcd"]
    in_chord = chord([app.call.s("e"), app.call.s("f")], app.plain.si("g"))()
    state.wait_parked(6)
    first.term()
    assert first.wait() == 0
    assert throttle.drain(by="ana") == (Drained("celery", 6, 0),)
    state.wait_empty()
    journal.let_go(*"abcdef")
    workers.start(STEERED, concurrency=1, conf={"throttle_enabled": False})
    assert [each.get(timeout=20) for each in results] == list("abcd")
    assert in_chord.get(timeout=20) == "g"
    assert "".join(journal.order()) == "abcdefg"
    assert journal.max_running("a") == 1


def test_drained_task_beside_workers_is_parked_again(kit: ThrottleTest) -> None:
    """Nothing is lost, however the workers and the drain come in each other's way."""
    limit = kit.control.limit(call)
    limit.pause()
    results = [call.delay(str(number)) for number in range(150)]
    until(lambda: limit.status().parked == 150)
    for _ in range(3):
        kit.control.drain()
    until(lambda: limit.status().parked == 150)
    limit.resume()
    assert set(kit.drain(within=60).succeeded) == {each.id for each in results}
    kit.assert_ran(call, times=150)
    assert_all_ended(kit)


def test_plain_import_does_not_load_the_control() -> None:
    code = (
        "import sys, celery_throttle as c;"
        "print('celery_throttle.control' in sys.modules, c.ThrottleControl, 'x' in dir(c))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "False <class 'celery_throttle.control.throttle_control.ThrottleControl'> False\n"


# -- saying it right ---------------------------------------------------------------------------------------------------


@pytest.fixture
def app(server: EmbeddedServer, redis: object) -> Celery:
    """An app of one task, without a worker."""
    assert redis
    app = Celery("shop", broker=server.url, set_as_current=False)
    app.conf.update(timezone="Asia/Tokyo")

    @app.task(base=Throttled, limit=Limit("api", 4), name="call", shared=False)
    def call() -> None: ...

    @app.task(base=Throttled, limit=Limit("tenant", 2, key="tenant_id"), name="serve", shared=False)
    def serve(tenant_id: object) -> None: ...

    return app


@pytest.mark.parametrize("until", [0, -1, True, "soon", float("nan"), float("inf"), timedelta(0), 1e300, LATE])
def test_an_end_that_cannot_work(app: Celery, until: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"Limit api: until must be seconds or a timedelta"):
        ThrottleControl(app).limit("api").pause(until=until)


def test_an_end_that_is_over(app: Celery) -> None:
    limit = ThrottleControl(app).limit("api")
    for over in (datetime(2001, 1, 1, tzinfo=timezone.utc), datetime(1960, 1, 1)):  # noqa: DTZ001 - the app's
        with pytest.raises(ConfigurationError, match="is over already, by the store's clock"):
            limit.disable(until=over)
    assert limit.status().disabled is None


def test_a_datetime_without_a_timezone_is_the_apps(app: Celery) -> None:
    limit = ThrottleControl(app).limit("api")
    limit.pause(until=datetime(2199, 1, 1, 9))  # noqa: DTZ001 - the app's
    paused = limit.status().paused
    assert paused
    assert paused.until == datetime(2199, 1, 1, tzinfo=timezone.utc)


def test_override_shows_its_author(app: Celery, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "celery_throttle.control.limit_control")
    limit = ThrottleControl(app).limit("tenant", key="acme")
    limit.override(7, why="big day")
    override = limit.status().override
    assert override
    assert override.by.endswith(f"@{socket.gethostname()}")
    assert len(override.by.partition("@")[0]) > 0
    limit.reset(by="ana")
    limit.reset(by="ana")
    limit.pause(by="bob", until=60)
    messages = [record.message for record in caplog.records]
    assert messages == [
        f"Limit tenant[acme]: override 7 by {override.by}, until taken back: big day",
        "Limit tenant[acme]: reset by ana",
        "Limit tenant[acme]: reset by ana, but there was nothing to do",
        "Limit tenant[acme]: pause by bob, until 60: no reason given",
    ]
    assert {record.levelno for record in caplog.records} == {logging.INFO}


def test_a_user_without_a_name(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    from celery_throttle import clients  # noqa: PLC0415

    def nobody() -> str:
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr("getpass.getuser", nobody)
    clients._whoami.cache_clear()
    limit = ThrottleControl(app).limit("api")
    limit.pause()
    clients._whoami.cache_clear()
    paused = limit.status().paused
    assert paused
    assert paused.by.partition("@")[0] == str(os.getuid())


def test_undeclared_limit(app: Celery, redis: Any) -> None:
    throttle = ThrottleControl(app)
    message = r"^No limit 'apy', did you mean 'api'\? Known limits: api, tenant$"
    with pytest.raises(ConfigurationError, match=message):
        throttle.limit("apy")
    with pytest.raises(ConfigurationError, match=r"Known limits: api, tenant$"):
        throttle.parked("zzzzzz")
    redis.hset("{throttle}:2:limits", "elsewhere", "3")
    assert throttle.limit("elsewhere").status().permits == 3
    for name in ("nobody", "tenant\x1facme", ""):
        with pytest.raises(ConfigurationError, match=r"Known limits: api, elsewhere, tenant$"):
            throttle.limit(name)
    shown = r"^No limit 'tenant\[acme\]': write limit\('tenant', key='acme'\)\. Known limits: api, elsewhere, tenant$"
    with pytest.raises(ConfigurationError, match=shown):
        throttle.limit("tenant[acme]")
    names: list[Any] = [None, 5, ["api"]]
    for name in names:
        with pytest.raises(
            ConfigurationError, match=r"the name of a limit, the Limit or its task is wanted, got .*: w"
        ):
            throttle.limit(name)


def test_a_limit_by_its_task(app: Celery) -> None:
    """Where there is no doubt which one is meant."""

    @app.task(base=Throttled, limit=[Limit("api", 4), Limit("tenant", 2, key="tenant_id")], name="both", shared=False)
    def both(tenant_id: object) -> None: ...

    @app.task(name="plain", shared=False)
    def plain() -> None: ...

    throttle = ThrottleControl(app)
    assert repr(throttle.limit(app.tasks["call"])) == "<LimitControl api>"
    assert repr(throttle.limit(app.tasks["serve"], key="acme")) == "<LimitControl tenant[acme]>"
    assert throttle.holders(app.tasks["call"]) == ()
    assert throttle.parked(app.tasks["call"]) == ()
    with pytest.raises(ConfigurationError, match="Task both has several limits: name one of them, 'tenant'"):
        throttle.limit(both)
    with pytest.raises(ConfigurationError, match="Task plain has no limit: give it base=Throttled, limit=5"):
        throttle.limit(plain)


def test_call_by_the_result_of_delay(app: Any) -> None:
    throttle = ThrottleControl(app)
    assert throttle.explain(app.AsyncResult("some-id")) == throttle.explain("some-id")
    nothing: Any = None
    with pytest.raises(ConfigurationError, match=r"explain: .* got None: write explain\(result\.id\)"):
        throttle.explain(nothing)


def test_keys(app: Celery) -> None:
    throttle = ThrottleControl(app)
    with pytest.raises(ConfigurationError, match="Limit 'api' has no keys: leave key= out"):
        throttle.limit("api", key="x")
    assert throttle.limit("tenant", key=17).key == "17"
    assert throttle.limit(Limit("tenant", 2, key="t"), key="x" * 300).key == throttle.limit("tenant", key="x" * 300).key
    assert repr(throttle.limit("tenant", key="acme")) == "<LimitControl tenant[acme]>"


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


# -- numbers for scaling workers ---------------------------------------------------------------------------------------


def test_machines_are_up_only_for_runnable_tasks(workers: Workers, journal: Journal, state: State) -> None:
    """From none to one worker, down to none with a line left, and up again."""
    app, throttle = steer(workers)

    def wanted() -> int | None:
        (work,) = throttle.runnable("celery")
        return work.runnable

    assert wanted() == 0
    tasks = [app.call.delay(label) for label in "abc"]
    assert wanted() == 3  # not read by any worker yet
    first = workers.start(STEERED, concurrency=4)
    journal.wait_running(1)
    state.wait_parked(2)
    assert wanted() == 1
    first.term()
    first.wait_for_log("Warm shutdown")
    journal.let_go("a", "b", "c")
    assert first.wait() == 0
    assert (state.count, wanted()) == (2, 1)
    workers.start(STEERED, concurrency=4)
    assert [each.get(timeout=20) for each in tasks] == ["a", "b", "c"]
    until(lambda: wanted() == 0)


def test_a_limit_without_a_rate_gets_one(kit: ThrottleTest) -> None:
    """Its worker passed permits on from task to task by itself until then."""
    limit = kit.control.limit("api")
    for label in "abcde":
        call.delay(label)
    kit.assert_ran(call, times=5)
    limit.override(rate="1/h", by="ana")
    call.delay("f").get(timeout=20)
    waiting = [call.delay(label) for label in "ghij"]
    kit.assert_line(API, waiting)
    kit.assert_ran(call, times=6)
    assert limit.status().next_start_in > 3000
    limit.reset()
    kit.assert_ran(call, times=10)
    assert_all_ended(kit)
