"""``task_always_eager``, as in the tests of an app: nothing is throttled, nothing is kept, and no Redis is needed."""

from __future__ import annotations

import asyncio
import uuid
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery, chord, states
from celery.contrib.testing.worker import start_worker
from redis import Redis

from celery_throttle import ConfigurationError, Limit, RateLimited, Throttled
from celery_throttle.embedded import EmbeddedServer
from tests.support.waiting import until

#: No Redis at all, and an address without a server.
WITHOUT: list[dict[str, Any]] = [{}, {"throttle_url": "redis://127.0.0.1:1/0"}]
gpu = Limit("gpu", 2)
paced = Limit("paced", 2, rate="1/d", key="tenant_id", max_parked=1)


def make_app(**conf: Any) -> Any:
    app = Celery("eager", broker="memory://", set_as_current=False)
    app.conf.update(task_always_eager=True, worker_hijack_root_logger=False, result_backend="cache+memory://", **conf)

    @app.task(shared=False, base=Throttled, limit=[gpu, paced], cost="cost", start_deadline=5, name="work")
    def work(tenant_id: int, cost: int = 1) -> int:
        return tenant_id * cost

    @app.task(shared=False, base=Throttled, singleton=True, remember=600, name="once", bind=True)
    def once(self: Any, order_id: int) -> Any:
        return order_id, self.fencing_token, str(uuid.uuid4())

    @app.task(shared=False, base=Throttled, limit=gpu, name="limited")
    def limited(_previous: Any = None) -> None:
        raise RateLimited(retry_after=30, limit="gpu")

    return app


@pytest.fixture(params=WITHOUT, ids=str)
def app(request: pytest.FixtureRequest) -> Any:
    return make_app(**request.param)


def test_tasks_run_at_once(app: Any) -> None:
    work, once = app.tasks["work"], app.tasks["once"]
    assert [work.delay(number).get() for number in range(5)] == [0, 1, 2, 3, 4]
    assert chord([work.s(1), work.s(2, cost=2)], app.tasks["once"].s())().get()[0] == [1, 4]
    first, second = once.delay(7), once.apply_async((7,), throttle={"on_conflict": "raise"})
    assert first.get()[0] == second.get()[0] == 7
    assert first.get()[1] < second.get()[1]


def test_a_key_that_cannot_be_found_is_found_out(app: Any) -> None:
    with pytest.raises(ConfigurationError, match="cost"):
        app.tasks["work"].delay(1, cost="much")


def test_permits_are_free_and_starts_are_now(app: Any) -> None:
    permits = [gpu.acquire(timeout=0, app=app) for _ in range(3)]
    assert not any(permit.lost for permit in permits)
    assert [permit.release() for permit in permits] == [True] * 3

    async def hold() -> None:
        async with paced.acquire_async(key=1, app=app), paced.acquire_async(key=1, app=app):
            pass

    asyncio.run(hold())
    starts = [paced.reserve(key=1, app=app) for _ in range(2)]
    assert all(abs(datetime.now(timezone.utc) - start) < timedelta(seconds=5) for start in starts)
    assert app.tasks["work"].apply_async((3,), eta=starts[0]).get() == 3


def test_eager_task_takes_no_lock(app: Any) -> None:
    once = app.tasks["once"]
    once.delay(7)
    assert once.locked_by(7) is None
    assert once.unlock(7) is False
    with pytest.raises(ConfigurationError, match="no lock"):
        app.tasks["work"].locked_by(7)


def test_eager_task_with_a_slow_down_fails(app: Any) -> None:
    """There is no line to go back to: the test gets an error instead of None."""
    limited = app.tasks["limited"]
    for result in (limited.delay(), limited.apply(), app.tasks["limited"].s().apply_async()):
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


def test_nothing_is_left_for_the_next_run(server: EmbeddedServer, redis: Redis) -> None:
    app = make_app(throttle_url=server.url)
    outcomes = {app.tasks["once"].delay(7).get() for _ in range(3)}
    assert len(outcomes) == 3
    with gpu.acquire(app=app):
        paced.reserve(key=1, app=app)
        app.tasks["work"].delay(1).get()
    assert redis.keys() == []


@pytest.mark.usefixtures("log_as_before")
def test_run_with_its_own_prefix_remembers_no_earlier_one(server: EmbeddedServer) -> None:
    """As in `docs/tutorial/in-tests.md` for tests with a real worker."""

    def new_app(prefix: str) -> Any:
        app = make_app(throttle_url=server.url, throttle_prefix=prefix)
        app.conf.update(task_always_eager=False, broker_transport_options={"polling_interval": 0.05})
        return app

    prefix = f"test-{uuid.uuid4().hex}"
    app = new_app(prefix)
    once = app.tasks["once"]
    with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=20):
        first = once.delay(7)
        assert first.get(timeout=20)[0] == 7
        until(lambda: once.locked_by(7).state == "done")
    assert new_app(prefix).tasks["once"].delay(7).id == first.id
    assert new_app(f"test-{uuid.uuid4().hex}").tasks["once"].delay(7).id != first.id
