"""Eager tasks, and ``throttle_enabled = False``: nothing is throttled, nothing is kept, and no Redis is needed."""

from __future__ import annotations

import asyncio
import uuid
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery, chord, states
from celery.contrib.testing.worker import start_worker
from redis import Redis

from celery_throttle import ConfigurationError, Limit, RateLimited, StoreUnavailable, ThrottleControl, Throttled
from celery_throttle.embedded import EmbeddedServer
from celery_throttle.settings import settings_of
from celery_throttle.store.draining import Drained
from celery_throttle.store.exchange_reply import Answer
from celery_throttle.worker import parked_leftovers
from tests.store.terms_caller import TermsCaller, terms
from tests.support.journal import Journal
from tests.support.state import State
from tests.support.waiting import HANGS_AFTER
from tests.support.workers import Workers
from tests.workers.conftest import FEATURES

EAGER, OFF = {"task_always_eager": True}, {"throttle_enabled": False}
#: No server listens there.
NOWHERE = {"throttle_url": "redis://127.0.0.1:1/0"}
#: With no Redis at all, with one that has no listener, and with what cannot work at all.
WITHOUT: list[dict[str, Any]] = [
    EAGER,
    EAGER | NOWHERE,
    OFF,
    OFF | NOWHERE,
    OFF | {"broker_transport_options": {"global_keyprefix": "one:"}},
    OFF | {"result_backend": "sentinel://a"},
]
gpu = Limit("gpu", 2)
on_each_host = Limit("on_each_host", 2, per="host")
paced = Limit("paced", 2, rate="1/d", key="tenant_id", max_parked=1)


def make_app(**conf: Any) -> Any:
    app = Celery("unthrottled", broker="memory://", set_as_current=False)
    app.conf.update(worker_hijack_root_logger=False, result_backend="cache+memory://")
    app.conf.update(**conf)

    @app.task(shared=False, base=Throttled, limit=[gpu, paced], cost="cost", start_deadline=5, name="work")
    def work(tenant_id: int, cost: int = 1) -> int:
        return tenant_id * cost

    @app.task(shared=False, base=Throttled, singleton=True, remember=600, name="once", bind=True)
    def once(self: Any, order_id: int) -> Any:
        return order_id, self.fencing_token_or_none, str(uuid.uuid4())

    @app.task(shared=False, base=Throttled, limit=gpu, name="limited")
    def limited(_previous: Any = None) -> None:
        raise RateLimited(retry_after=30, limit="gpu")

    @app.task(shared=False, base=Throttled, limit=1, bind=True, name="nested")
    def nested(self: Any, depth: int) -> list[int]:
        """Need a second permit, if it needed any."""
        return [depth, *(self.delay(depth - 1).get(disable_sync_subtasks=False) if depth else [])]

    return app


@pytest.fixture(params=WITHOUT, ids=str)
def app(request: pytest.FixtureRequest) -> Any:
    return make_app(**request.param)


# -- outside of tasks --------------------------------------------------------------------------------------------------


def test_permits_are_free(app: Any) -> None:
    permits = [gpu.acquire(timeout=0, app=app) for _ in range(3)]
    assert [(permit.identity, permit.lost) for permit in permits] == [("gpu", False)] * 3
    first = permits[0]
    assert first.lease_left > 86400
    assert (first.renew(), first.release(), first.release(), first.lease_left) == (True, True, True, 0)
    with paced.acquire(key="acme", app=app) as permit, on_each_host.acquire(app=app):
        assert repr(permit) == "<Permit 'paced[acme]' inf s left>"
    with pytest.raises(ConfigurationError, match="name the key of the permit"):
        paced.acquire(app=app)

    async def hold() -> None:
        async with gpu.acquire_async(app=app), gpu.acquire_async(app=app), gpu.acquire_async(app=app) as permit:
            assert not permit.lost
        assert (await gpu.acquire_async(timeout=0, app=app)).release()

    asyncio.run(hold())


def test_starts_are_now_and_locks_are_free(app: Any) -> None:
    starts = [paced.reserve(key=1, app=app) for _ in range(2)]
    assert all(abs(datetime.now(timezone.utc) - start) < timedelta(seconds=5) for start in starts)
    with pytest.raises(ConfigurationError, match="no rate"):
        gpu.reserve(app=app)
    once = app.tasks["once"]
    assert (once.locked_by(7), once.unlock(7)) == (None, False)
    with pytest.raises(ConfigurationError, match="no lock"):
        app.tasks["work"].locked_by(7)


# -- eager tasks -------------------------------------------------------------------------------------------------------


def test_eager_tasks_run_at_once_and_leave_nothing(server: EmbeddedServer, redis: Redis) -> None:
    """Without a server or its URL, as well as with one."""
    for conf in ({}, NOWHERE, {"throttle_url": server.url}):
        tasks = make_app(**EAGER, **conf).tasks
        work, once, nested = tasks["work"], tasks["once"], tasks["nested"]
        assert [work.delay(number).get() for number in range(5)] == [0, 1, 2, 3, 4]
        assert work.apply_async((3,), eta=datetime.now(timezone.utc)).get() == 3
        with pytest.raises(ConfigurationError, match="cost"):
            work.delay(1, cost="much")
        assert chord([work.s(1), work.s(2, cost=2)], once.s())().get()[0] == [1, 4]
        once.delay(7).get()
        first, second = once.delay(7).get(), once.apply_async((7,), throttle={"on_conflict": "raise"}).get()
        assert first[0] == second[0] == 7
        assert first[1] < second[1]
        for result in (nested(2), nested.apply((2,)).get(), nested.delay(2).get(), nested.apply_async((2,)).get()):
            assert result == [2, 1, 0]
    assert redis.keys() == []


def test_eager_task_with_a_slow_down_fails() -> None:
    """There is no line to go back to: the test gets an error instead of None."""
    app = make_app(**EAGER)
    limited = app.tasks["limited"]
    for result in (limited.delay(), limited.apply(), limited.s().apply_async()):
        assert (result.state, result.failed(), result.ready()) == (states.FAILURE, True, True)
        with pytest.raises(RateLimited, match="30 s"):
            result.get()
    for throws in (lambda: limited.apply(throw=True), limited):
        with pytest.raises(RateLimited):
            throws()
    app.conf.task_eager_propagates = True
    with pytest.raises(RateLimited) as raised:
        limited.delay()
    assert (raised.value.retry_after, raised.value.limit) == (30.0, "gpu")
    assert limited.apply(throw=False).failed()


# -- throttling is turned off ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("log_as_before")
@pytest.mark.parametrize("pool", ["solo", "threads"])
@pytest.mark.parametrize("where", ["no Redis", "nowhere", "a server"])
def test_worker_runs_tasks_and_logs_it_once(
    server: EmbeddedServer, redis: Redis, caplog: pytest.LogCaptureFixture, where: str, pool: str
) -> None:
    url = {"no Redis": "", "nowhere": NOWHERE["throttle_url"], "a server": server.url}[where]
    app = make_app(**OFF, **({"throttle_url": url} if url else {}))
    tasks = app.tasks
    with start_worker(app, pool=pool, loglevel="INFO", concurrency=2, perform_ping_check=False, shutdown_timeout=20):
        results = [tasks["work"].delay(number) for number in range(5)]
        once = [tasks["once"].delay(7), tasks["once"].apply_async((7,), throttle={"on_conflict": "raise"})]
        assert [result.get(timeout=HANGS_AFTER) for result in results] == [0, 1, 2, 3, 4]
        assert [result.get(timeout=HANGS_AFTER)[:2] for result in once] == [[7, None]] * 2
        with pytest.raises(Exception, match=r"limited raised RateLimited .*throttle_enabled is False"):
            tasks["limited"].delay().get(timeout=HANGS_AFTER)
        assert tasks["celery_throttle.reap"].delay().get(timeout=HANGS_AFTER) in (0, None)
    assert tasks["celery_throttle.reap"].apply().get() == 0
    assert settings_of(app).url == url
    assert redis.keys() == []
    off = "celery_throttle: throttle_enabled is False"
    said = [f"{off}: 4 tasks run without limits, rates and identity locks"]
    if where == "nowhere":
        said.insert(0, f"{off}, and whether tasks are still parked cannot be seen")
    told = [record for record in caplog.records if record.name.startswith("celery_throttle.worker")]
    assert {record.levelname for record in told} == {"WARNING"}
    assert [record.getMessage().partition(" (")[0] for record in told] == said


def test_parked_tasks_run_when_throttling_is_turned_off(workers: Workers, journal: Journal, state: State) -> None:
    before = workers.start(FEATURES, concurrency=3)
    app = workers.app(FEATURES)
    journal.wait_begun(app.one_hold.delay("first"))
    for label in ("parked", "parked too"):
        app.one_hold.delay(label)
    state.wait_parked(2)
    before.term()
    journal.let_go("first")
    before.wait()

    after = workers.start(FEATURES, concurrency=4, conf=OFF)

    after.wait_for_log(r"WARNING.* 2 tasks are parked: .*disable\(\)")
    journal.wait_running(1, "parked")
    for number in range(2):
        app.one_hold.delay(f"new {number}")
    journal.wait_running(3)
    assert not journal.runs("parked too"), "a parked task keeps its limit"
    journal.let_all_go()
    journal.wait_finished(5)
    assert len(journal.runs()) == 5
    state.wait_empty()


def test_drained_tasks_run_on_a_worker_that_does_not_throttle(workers: Workers, journal: Journal, state: State) -> None:
    """The way out: all that is parked goes back to its queue, in order."""
    app = workers.start_app(FEATURES, concurrency=2)
    control = ThrottleControl(app.app)
    control.limit("single").pause(by="ana", why="their incident 42")
    results = [app.one.delay(label) for label in "abcd"]
    whole: Any = chord([app.one.s("e"), app.one.s("f")], app.plain.si("g"))()
    state.wait_parked(6)
    (before,) = workers.started
    reason = r"Limit single is paused since .* by ana, because: their incident 42$"
    before.wait_for_log(rf"INFO/MainProcess\] Task {FEATURES}\.one\[{results[0].id}\] parked: place 1 .* {reason}")
    before.term()
    assert before.wait() == 0
    assert control.drain(by="ana") == (Drained("celery", 6, 0),)
    state.wait_empty()
    workers.start(FEATURES, concurrency=1, conf=OFF)
    assert [each.get(timeout=HANGS_AFTER) for each in (*results, whole)] == list("abcdg")
    assert "".join(journal.order()) == "abcdefg"


@pytest.mark.parametrize(("calls", "said"), [(20, "620 tasks are parked"), (1, "100 or more tasks are parked")])
def test_parked_tasks_are_counted_in_a_few_calls(
    server: EmbeddedServer,
    redis: Redis,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    calls: int,
    said: str,
) -> None:
    monkeypatch.setattr(parked_leftovers, "_CALLS", calls)
    app = make_app(**OFF, throttle_url=server.url)
    app.finalize()
    assert not parked_leftovers.parked_tasks_left(app)
    worker, needs = TermsCaller(redis, "aaaaaaaa", "q", prefix="throttle"), terms(gpu).needs({})
    for number in range(622):
        if worker.ask(f"t{number}", needs)[0] != Answer.GRANTED:
            worker.put(f"t{number}", needs, message=b"m")
    assert parked_leftovers.parked_tasks_left(app)
    assert [said in record.getMessage() for record in caplog.records] == [True]


def test_wrong_options_are_refused_all_the_same() -> None:
    for wrong in ({"throttle_lease": "long"}, {"throttle_url": "amqp://rabbit"}):
        with pytest.raises(ConfigurationError, match=next(iter(wrong))):
            settings_of(make_app(**OFF, **wrong))
    with pytest.raises(StoreUnavailable, match=r"throttle_enabled is False and no Redis is known: .*throttle_url"):
        ThrottleControl(make_app(**OFF)).status()
