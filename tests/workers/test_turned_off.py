"""``throttle_enabled = False``: as if the library were not there, and no Redis is needed anywhere."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker
from redis import Redis

from celery_throttle import ConfigurationError, Limit, StoreUnavailable, ThrottleControl, Throttled
from celery_throttle.embedded import EmbeddedServer
from celery_throttle.settings import settings_of
from celery_throttle.store.exchange_reply import Answer
from celery_throttle.worker import parked_leftovers
from tests.store.terms_caller import TermsCaller, terms

pytestmark = pytest.mark.usefixtures("log_as_before")

#: The last one has no listener; the one before it cannot work at all.
NOWHERE: list[dict[str, Any]] = [
    {},
    {"broker_transport_options": {"global_keyprefix": "one:"}},
    {"result_backend": "sentinel://a"},
    {"throttle_url": "redis://127.0.0.1:1/0"},
]
gpu = Limit("gpu", 2)
on_each_host = Limit("on_each_host", 2, per="host")
tenant = Limit("tenant", 2, key="tenant_id", rate="100/m", max_parked=5)


def make_app(**conf: Any) -> Any:
    app = Celery("off", broker="memory://", set_as_current=False)
    app.conf.update(throttle_enabled=False, worker_hijack_root_logger=False, result_backend="cache+memory://")
    app.conf.update(**conf)

    @app.task(shared=False, base=Throttled, limit=[gpu, tenant], name="work")
    def work(tenant_id: int) -> int:
        return tenant_id

    @app.task(shared=False, base=Throttled, singleton=True, remember=60, name="once", bind=True)
    def once(self: Any, order_id: int) -> Any:
        return order_id, self.fencing_token_or_none

    return app


@pytest.fixture(params=NOWHERE, ids=str)
def app(request: pytest.FixtureRequest) -> Any:
    return make_app(**request.param)


@pytest.mark.parametrize("pool", ["solo", "threads"])
@pytest.mark.parametrize("conf", [NOWHERE[0], NOWHERE[-1]], ids=str)
def test_worker_runs_published_tasks(conf: dict[str, Any], pool: str) -> None:
    app = make_app(**conf)
    with start_worker(app, pool=pool, concurrency=2, perform_ping_check=False, shutdown_timeout=20):
        results = [app.tasks["work"].delay(number) for number in range(5)]
        results += [app.tasks["once"].delay(7), app.tasks["once"].apply_async((7,), throttle={"on_conflict": "raise"})]
        assert [result.get(timeout=20) for result in results] == [0, 1, 2, 3, 4, [7, None], [7, None]]
        assert app.tasks["celery_throttle.reap"].delay().get(timeout=20) in (0, None)


@pytest.mark.parametrize("conf", [NOWHERE[0], NOWHERE[-1]], ids=str)
def test_worker_with_throttling_turned_off_logs_it_once(conf: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    app = make_app(**conf)
    with start_worker(app, loglevel="INFO", perform_ping_check=False, shutdown_timeout=20):
        pass
    told = [record for record in caplog.records if "throttle" in record.name and "cannot be seen" not in record.msg]
    assert [(record.levelname, record.getMessage()) for record in told] == [
        ("WARNING", "celery_throttle: throttle_enabled is False: 2 tasks run without limits, rates and identity locks")
    ]
    assert app.tasks["celery_throttle.reap"].apply().get() == 0
    assert settings_of(app).url == conf.get("throttle_url", "")


def test_permits_are_free(app: Any) -> None:
    permits = [gpu.acquire(timeout=0, app=app) for _ in range(3)]
    assert [permit.identity for permit in permits] == ["gpu"] * 3
    assert not any(permit.lost for permit in permits)
    assert permits[0].lease_left > 86400
    assert (permits[0].renew(), permits[0].release(), permits[0].release()) == (True, True, True)
    assert permits[0].lease_left == 0
    with tenant.acquire(key="acme", app=app) as permit:
        assert repr(permit) == "<Permit 'tenant[acme]' inf s left>"
    with pytest.raises(ConfigurationError, match="name the key of the permit"):
        tenant.acquire(app=app)


def test_permits_are_free_for_asyncio(app: Any) -> None:
    async def hold() -> None:
        async with gpu.acquire_async(app=app), gpu.acquire_async(app=app) as permit:
            assert not permit.lost
        assert (await gpu.acquire_async(timeout=0, app=app)).release()

    asyncio.run(hold())


def test_starts_are_now(app: Any) -> None:
    start = tenant.reserve(key="acme", app=app)
    assert abs(datetime.now(timezone.utc) - start) < timedelta(seconds=5)
    with pytest.raises(ConfigurationError, match="no rate"):
        gpu.reserve(app=app)


def test_task_takes_no_lock(app: Any) -> None:
    once = app.tasks["once"]
    assert once.locked_by(7) is None
    assert once.unlock(7) is False
    with pytest.raises(ConfigurationError, match="no lock"):
        app.tasks["work"].locked_by(7)


def test_control_of_limits_reports_that_there_is_no_redis() -> None:
    with pytest.raises(StoreUnavailable, match=r"throttle_enabled is False and no Redis is known: .*throttle_url"):
        ThrottleControl(make_app()).status()


def test_wrong_options_are_still_refused() -> None:
    with pytest.raises(ConfigurationError, match="throttle_lease"):
        settings_of(make_app(throttle_lease="long"))
    with pytest.raises(ConfigurationError, match="throttle_url"):
        settings_of(make_app(throttle_url="amqp://rabbit"))


@pytest.mark.parametrize(("calls", "said"), [(20, "620 tasks are parked"), (1, "100 or more tasks are parked")])
def test_worker_start_counts_the_tasks_that_are_still_parked(
    server: EmbeddedServer,
    redis: Redis,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    calls: int,
    said: str,
) -> None:
    monkeypatch.setattr(parked_leftovers, "_CALLS", calls)
    app = make_app(throttle_url=server.url)
    app.finalize()
    assert not parked_leftovers.parked_tasks_left(app)
    worker, needs = TermsCaller(redis, "aaaaaaaa", "q", prefix="throttle"), terms(gpu).needs({})
    for number in range(622):
        if worker.ask(f"t{number}", needs)[0] != Answer.GRANTED:
            worker.put(f"t{number}", needs, message=b"m")
    assert parked_leftovers.parked_tasks_left(app)
    assert [said in record.getMessage() for record in caplog.records] == [True]


def test_permit_of_a_limit_per_host(app: Any) -> None:
    with on_each_host.acquire(app=app):
        pass
