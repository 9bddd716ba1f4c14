"""`ThrottleControl(app)` beside real workers, which look for work on their own only once an hour."""

from __future__ import annotations

import logging
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from time import monotonic
from typing import Any

import pytest
from celery import Celery, chord, group
from celery.exceptions import TaskRevokedError
from redis.exceptions import RedisError

from celery_throttle import ConfigurationError, Limit, StoreUnavailable, ThrottleControl, Throttled
from celery_throttle.embedded import EmbeddedServer
from celery_throttle.store.draining import Drained
from celery_throttle.store.needs import Need
from tests.support.journal import Journal
from tests.support.state import State
from tests.support.waiting import until
from tests.support.workers import Workers

STEERED = "tests.support.apps.steered"
LATE = datetime(9999, 12, 31, tzinfo=timezone.utc)


def steer(workers: Workers) -> tuple[Any, ThrottleControl]:
    app = workers.app(STEERED)
    return app, ThrottleControl(app.app)


def wait_held(throttle: ThrottleControl, limit: str, count: int) -> None:
    until(lambda: throttle.limit(limit).status().held == count)


def nothing_starts(app: Any, journal: Journal) -> None:
    """A worker has been asked to do something since, and did only that."""
    before = len(journal.runs())
    app.plain.delay("meanwhile").get(timeout=20)
    assert len(journal.runs()) == before + 1


def test_holder_shows_its_worker_and_process(workers: Workers, journal: Journal) -> None:
    """The worker's node and process, and of a permit outside of tasks the machine's."""
    here = workers.start(STEERED)
    app, throttle = steer(workers)
    task = journal.wait_begun(app.call.delay("a"))
    (holder,) = throttle.holders()
    assert re.fullmatch(rf"{here.name}@.+/{here.pid}/[0-9a-f]{{8}}", holder.worker)
    assert f"on worker {holder.worker}," in throttle.explain(task.id).reasons[0]
    journal.let_go("a")
    task.get(timeout=20)
    with app.api.acquire(app=app.app):
        (holder,) = throttle.holders()
        assert re.fullmatch(rf"{re.escape(socket.gethostname())}/{os.getpid()}/[0-9a-f]{{8}}", holder.worker)


# -- steering ----------------------------------------------------------------------------------------------------------


def test_raise_starts_parked_tasks_at_once(workers: Workers, journal: Journal, state: State) -> None:
    workers.start(STEERED, concurrency=4)
    app, throttle = steer(workers)
    tasks = [app.call.delay(label) for label in "abcd"]
    journal.wait_running(1)
    state.wait_parked(3)
    limit = throttle.limit("api")
    full, place = throttle.explain(tasks[3].id).reasons
    assert full == "Limit api is full: 1 of 1 permits are held."
    assert place == "2 tasks are before it in the line of api, of queue 'celery'."

    limit.override(2, by="ana", why="big day")
    journal.wait_running(2)
    limit.override(3)
    journal.wait_running(3)
    status = limit.status()
    assert (status.permits, status.in_force, status.held, status.parked) == (1, 3, 3, 1)
    assert status.full
    (waits,) = limit.parked()
    assert (waits.task_id, waits.task_name, waits.place) == (tasks[3].id, app.call.name, 1)
    assert (waits.limit, waits.key, waits.queue, waits.deliveries) == ("api", None, "celery", 0)
    assert {each.task_id for each in limit.holders()} == {task.id for task in tasks[:3]}
    assert {each.needs for each in throttle.holders(app.api)} == {(Need("api", None, 1),)}
    assert throttle.explain(tasks[2].id).state == "held"
    (why,) = throttle.explain(tasks[3].id).reasons
    assert why.startswith("Limit api is full: 3 of 3 permits are held: 3 instead of 1 since ")

    assert limit.reset()
    assert not limit.reset()
    journal.let_go("a", "b")
    journal.wait_finished(2)
    nothing_starts(app, journal)
    journal.let_go("c")
    journal.wait_started(5)
    journal.let_go("d")
    journal.wait_finished(5)
    assert throttle.explain(tasks[0].id).state == "unknown"
    state.wait_empty()


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_pause_and_its_end(workers: Workers, journal: Journal, state: State, pool: str) -> None:
    workers.start(STEERED, concurrency=3, pool=pool)
    app, throttle = steer(workers)
    limit = throttle.limit(app.api)
    journal.wait_begun(app.call.delay("a"))
    before = app.call.delay("before")
    state.wait_parked(1)
    limit.pause(by="ana@desk", why="their database is down")
    after = app.call.delay("after")
    state.wait_parked(2)
    journal.let_go("a", "before", "after")
    journal.wait_finished(1, "a")
    nothing_starts(app, journal)
    for task in (before, after):
        why = throttle.explain(task.id)
        assert why.reasons[0].startswith("Limit api is paused since ")
        assert why.reasons[0].endswith(" by ana@desk, because: their database is down.")
    assert limit.resume()
    journal.wait_finished(1, "after")
    assert journal.order() == ["a", "meanwhile", "before", "after"]
    assert journal.max_running("before") == 1
    assert not limit.resume()
    state.wait_empty()


def test_a_pause_ends_by_itself(workers: Workers, journal: Journal, state: State) -> None:
    """Also for those that were parked before it, behind one that has ended since; and for several limits at once."""
    workers.start(STEERED, concurrency=3)
    app, throttle = steer(workers)
    journal.wait_begun(app.call.delay("a"))
    app.call.delay("before")
    state.wait_parked(1)
    throttle.limit("tenant").pause(until=timedelta(seconds=2))
    asked = monotonic()
    throttle.limit("api").pause(until=1.5)
    paused = throttle.limit("api").status().paused
    assert paused
    assert paused.until
    assert (paused.until - paused.since).total_seconds() == 1.5
    journal.let_go("a", "before", "both")
    journal.wait_finished(1, "a")
    several = app.both.delay("both", "acme")
    state.wait_parked(2)
    reasons = throttle.explain(several.id).reasons
    assert {reason.split(" is paused")[0] for reason in reasons[:2]} == {"Limit tenant", "Limit api"}
    journal.wait_finished(1, "before")
    journal.wait_finished(1, "both")
    started = {run.label: run.started for run in journal.runs()}
    assert started["before"] - asked >= 1.49
    state.wait_empty()


def test_end_of_an_override_reaches_waiting_workers(workers: Workers, journal: Journal, state: State) -> None:
    """Nothing else happens in the store meanwhile."""
    workers.start(STEERED)
    app, throttle = steer(workers)
    throttle.limit("api").pause()
    app.call.delay("a")
    state.wait_parked(1)
    throttle.limit("api").pause(until=0.5)
    journal.let_go("a")
    journal.wait_finished(1)
    state.wait_empty()


def test_a_disabled_limit(workers: Workers, journal: Journal, state: State) -> None:
    workers.start(STEERED, concurrency=4)
    app, throttle = steer(workers)
    for label in "abc":
        app.call.delay(label)
    mails = [app.mail.delay(f"mail{number}") for number in range(3)]
    journal.wait_running(1)
    state.wait_parked(4)
    (why,) = throttle.explain(mails[-1].id).reasons[:1]
    assert why.startswith(f"The rate of limit {app.mail.name} (1/h) allows the next start in ")
    throttle.limit("api").disable(why="test")
    journal.wait_running(3)
    throttle.limit(app.mail.name).disable()
    journal.wait_finished(3, task=app.mail.name)
    status = throttle.limit("api").status()
    assert (status.permits, status.in_force, status.held) == (1, None, 3)
    assert status.disabled
    assert status.disabled.why == "test"
    assert throttle.limit("api").enable()
    app.call.delay("d")
    state.wait_parked(1)
    journal.let_go(*"abcd")
    journal.wait_finished(1, "d")
    state.wait_empty()


def test_one_key(workers: Workers, journal: Journal, state: State) -> None:
    workers.start(STEERED, concurrency=6)
    app, throttle = steer(workers)
    acme, other = throttle.limit("tenant", key="acme"), throttle.limit(app.tenant, key="other")
    acme.override(2)
    for tenant in ("acme", "other"):
        for number in range(3):
            app.serve.delay(f"{tenant}{number}", tenant)
    journal.wait_running(3)
    state.wait_parked(3)
    other.pause()
    journal.let_go(*(f"{tenant}{number}" for tenant in ("acme", "other") for number in range(3)))
    journal.wait_finished(4)
    nothing_starts(app, journal)
    expected = [("tenant", 0, 0), ("tenant[acme]", 0, 0), ("tenant[other]", 0, 2)]

    def stands() -> list[tuple[str, int, int]]:
        return [(str(each.bucket), each.held, each.parked) for each in throttle.status() if each.name == "tenant"]

    until(lambda: stands() == expected, describe=stands)
    assert {each.key for each in throttle.parked("tenant")} == {"other"}
    assert other.resume()
    journal.wait_finished(7)
    acme.reset()
    state.wait_empty()  # the last one has given back its permit
    assert [str(each.bucket) for each in throttle.status() if each.name == "tenant"] == ["tenant"]


def test_all_of_very_many_keys_start_at_once(workers: Workers, journal: Journal, state: State) -> None:
    """More than one look serves, in two queues."""
    first, second = (workers.start(STEERED, concurrency=2, queues=queue, wait=False) for queue in ("first", "second"))
    first.wait_ready()
    second.wait_ready()
    app, throttle = steer(workers)
    throttle.limit("tenant").pause()
    for number in range(150):
        queue = ("first", "second")[number % 2]
        app.serve.apply_async((f"t{number}", f"{number:03}"), {"hold": False}, queue=queue)
    state.wait_parked(150)
    assert len(throttle.status(most=1000)) == 4 + 150
    assert len(throttle.status(most=10)) == 10
    assert len(throttle.parked()) == 100
    assert throttle.limit("tenant").resume()
    journal.wait_finished(150, timeout=60)
    state.wait_empty()


def test_other_reasons_to_wait(workers: Workers, journal: Journal, state: State) -> None:
    first, second = (workers.start(STEERED, concurrency=3, queues=queue, wait=False) for queue in ("first", "second"))
    first.wait_ready()
    second.wait_ready()
    app, throttle = steer(workers)
    for queue, tenant in (("first", "a"), ("second", "b")):
        app.serve.apply_async((f"hold {tenant}", tenant), queue=queue)
    app.once.apply_async(("once",), queue="first")
    journal.wait_running(3)
    duplicate = app.once.apply_async(("once",), queue="first", task_id="duplicate")
    waits = app.both.apply_async(("both", "a"), queue="second")
    state.wait_parked(2)
    why = throttle.explain(duplicate.id)
    assert (why.state, why.task_name) == ("waiting for its identity lock", app.once.name)
    assert "which runs" in why.reasons[0]
    why = throttle.explain(waits.id)
    assert why.reasons == (
        "Limit tenant[a] is full: 1 of 1 permits are held.",
        "It needs 1 permit of tenant[a] and 1 permit of api at once, and waits in the line of tenant[a].",
    )
    assert (why.limit, why.key, why.place, why.queue) == ("tenant", "a", 1, "second")
    assert [str(limit.bucket) for limit in why.limits] == ["tenant[a]", "api"]

    journal.let_go("hold b")
    journal.wait_finished(1, "hold b")
    second.term()
    assert second.wait() == 0
    journal.let_go("hold a")
    journal.wait_finished(1, "hold a")
    app.serve.apply_async(("next", "a"), queue="first")
    journal.let_go("next")
    journal.wait_finished(1, "next")
    can_start = "It can start: it waits for a worker with a free slot that consumes queue 'second'."
    until(lambda: throttle.explain(waits.id).reasons[-1] == can_start)  # the permit of "next" is back
    assert throttle.explain(waits.id).reasons[-2].startswith("Its queue 'second' has been passed over")
    workers.start(STEERED, queues="second")
    journal.let_go("both", "once")
    journal.wait_finished(1, "both")
    state.wait_empty()


def test_dropped_task_ends_as_revoked(workers: Workers, journal: Journal, state: State) -> None:
    process = workers.start(STEERED, concurrency=2)
    app, throttle = steer(workers)
    journal.wait_begun(app.call.delay("a"))
    dropped = [app.call.delay(label) for label in "bc"]
    in_group = group(app.call.s("d"), app.plain.s("e"))()
    once = app.pay.delay("f")
    state.wait_parked(4)
    assert throttle.limit("api").drop(by="ana", why="incident\n42") == 4
    again = app.pay.delay("f")
    assert again.id != once.id, "its identity lock is free"
    journal.let_go("a", "f")
    for result in dropped:
        with pytest.raises(TaskRevokedError, match=r"^dropped by ana: incident\\n42$"):
            result.get(timeout=20)
        assert result.state == "REVOKED"
    with pytest.raises(TaskRevokedError):
        in_group.get(timeout=20)
    assert again.get(timeout=20) == "f"
    state.wait_empty()
    assert len(re.findall(r"Task \S+ dropped by ana: incident\\n42$", process.log(), re.MULTILINE)) == 4
    assert sorted(run.label for run in journal.runs()) == ["a", "e", "f"]


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


def test_drained_task_beside_workers_is_parked_again(workers: Workers, journal: Journal, state: State) -> None:
    """Nothing is lost, however the workers and the drain come in each other's way."""
    workers.start(STEERED, concurrency=2)
    app, throttle = steer(workers)
    throttle.limit(app.call).pause()
    for number in range(150):
        app.call.delay(f"t{number:03}")
    state.wait_parked(150)
    for _ in range(3):
        throttle.drain()
    state.wait_parked(150)
    journal.let_go(*(f"t{number:03}" for number in range(150)))
    throttle.limit(app.call).resume()
    journal.wait_finished(150, timeout=60)
    state.wait_empty()
    assert sorted(journal.order()) == [f"t{number:03}" for number in range(150)]


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


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_limit_without_a_rate_gets_one(workers: Workers, journal: Journal, state: State, pool: str) -> None:
    """Its worker passed permits on from task to task by itself until then."""
    journal.let_go(*"abcdefghij")
    workers.start(STEERED, concurrency=3, pool=pool)
    app, throttle = steer(workers)
    for label in "abcde":
        app.call.delay(label)
    journal.wait_finished(5)
    limit = throttle.limit("api")
    limit.override(rate="1/h", by="ana")
    app.call.delay("f").get(timeout=20)
    for label in "ghij":
        app.call.delay(label)
    state.wait_parked(4)
    nothing_starts(app, journal)
    assert limit.status().next_start_in > 3000
    limit.reset()
    journal.wait_finished(11)
    state.wait_empty()
