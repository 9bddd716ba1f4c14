"""A store that takes connections and answers nothing: a program that publishes waits for it once, not at each call.

The clock of the library stands still but for failed attempts, so a slow machine makes no more of them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery

from celery_throttle import DuplicateTask, Limit, StoreUnavailable, Throttled
from celery_throttle.embedded import EmbeddedServer
from celery_throttle.permits import outside
from celery_throttle.permits.line import Asking
from celery_throttle.store import breaker
from celery_throttle.store.caller import Caller

gpu = Limit("gpu", 2, rate="100/s")


class Attempts:
    """How many calls have reached the store's client, and the time; a call that fails takes a second."""

    def __init__(self) -> None:
        self.now, self.count = 1000.0, 0

    def during(self, function: Callable[[], object]) -> int:
        before = self.count
        function()
        return self.count - before


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> Attempts:
    counted, real = Attempts(), Caller.call

    def count(caller: Caller, call: Any) -> Any:
        counted.count += 1
        try:
            return real(caller, call)
        except Exception:
            counted.now += 1
            raise

    monkeypatch.setattr(breaker, "monotonic", lambda: counted.now)
    monkeypatch.setattr(Caller, "call", count)
    return counted


@pytest.fixture
def store(own_server: EmbeddedServer) -> Iterator[EmbeddedServer]:
    yield own_server
    own_server.thaw()


@pytest.fixture
def app(store: EmbeddedServer) -> Any:
    app: Any = Celery("hangs", broker="memory://", set_as_current=False)
    app.conf.update(throttle_url=store.url)
    options: dict[str, dict[str, Any]] = {
        "once": {"singleton": True, "on_conflict": "raise"},
        "crowded": {"limit": 1, "max_parked": 5},
        "both": {"singleton": True, "limit": Limit("far", 1, max_parked=5, group="far")},
    }

    def body(number: int) -> int:
        return number

    for name, each in options.items():
        app.task(body, shared=False, base=Throttled, name=name, **each)
    return app


def publish(app: Any, *names: str) -> None:
    for number in range(5):
        for name in names:
            app.tasks[name].delay(number)


async def publish_in_loop(app: Any) -> None:
    publish(app, "once", "crowded")


def book(app: Any) -> None:
    for _ in range(5):
        with pytest.raises(StoreUnavailable, match="did not answer"):
            gpu.reserve(app=app)


WAITS_ONCE: dict[str, Callable[[Any], None]] = {
    "a task that runs once": lambda app: publish(app, "once"),
    "a task that may not be parked": lambda app: publish(app, "crowded"),
    "a task with a lock and a limit of two groups": lambda app: publish(app, "both"),
    "all tasks and groups together, which are in one server": lambda app: publish(app, "once", "crowded", "both"),
    "an event loop": lambda app: asyncio.run(publish_in_loop(app)),
    "a start that is booked": book,
}


@pytest.mark.parametrize("connected", [False, True], ids=["new connection", "connected"])
@pytest.mark.parametrize("calls", WAITS_ONCE.values(), ids=WAITS_ONCE)
def test_only_the_first_call_waits(
    store: EmbeddedServer, app: Any, attempts: Attempts, calls: Callable[[Any], None], *, connected: bool
) -> None:
    if connected:
        for name in ("once", "crowded", "both"):
            app.tasks[name].delay(100)
    store.freeze()
    assert attempts.during(lambda: calls(app)) == 1


def test_one_call_finds_out_whether_it_is_back(store: EmbeddedServer, app: Any, attempts: Attempts) -> None:
    store.freeze()
    publish(app, "once")
    attempts.now += 4.9
    assert attempts.during(lambda: publish(app, "once")) == 0
    attempts.now += 0.2

    barrier = threading.Barrier(6)

    def one() -> None:
        barrier.wait()
        app.tasks["once"].delay(threading.get_ident())

    def at_once() -> None:
        threads = [threading.Thread(target=one) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert attempts.during(at_once) == 1
    store.thaw()
    assert attempts.during(lambda: publish(app, "once")) == 0
    attempts.now += 5.1
    app.tasks["once"].delay(7)
    for _ in range(2):
        with pytest.raises(DuplicateTask):
            app.tasks["once"].delay(7)


def test_it_is_logged_once(
    store: EmbeddedServer, app: Any, attempts: Attempts, caplog: pytest.LogCaptureFixture
) -> None:
    def said(*names: str) -> list[str]:
        caplog.clear()
        publish(app, *names)
        return [record.getMessage() for record in caplog.records if "unchecked" in record.getMessage()]

    store.freeze()
    (line,) = said("once", "crowded")
    assert "once" in line
    assert "did not answer" in line
    attempts.now += 60
    assert len(said("once")) == 1  # it goes on
    store.thaw()
    attempts.now += 10
    assert said("once") == []
    store.freeze()
    assert len(said("crowded")) == 1


def test_an_operator_asks_all_the_same(store: EmbeddedServer, app: Any, attempts: Attempts) -> None:
    store.freeze()
    publish(app, "once")
    store.thaw()
    assert app.tasks["once"].locked_by(1) is None
    assert attempts.during(lambda: app.tasks["once"].delay(50)) == 1  # since then it is known to be back


@pytest.mark.parametrize("action", ["run", "fail", "hold"])
def test_permits_outside_of_tasks_wait_once(
    store: EmbeddedServer, app: Any, attempts: Attempts, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    """The requesting thread goes on trying; later callers do not wait for it."""
    asked = []

    class Counted(Asking):
        def __init__(self, *args: Any, **how: Any) -> None:
            asked.append(args)
            super().__init__(*args, **how)

    monkeypatch.setattr(outside, "Asking", Counted)
    app.conf.throttle_on_store_error = action
    store.freeze()
    for _ in range(5):
        if action == "run":
            gpu.acquire(timeout=0, app=app).release()
        else:
            with pytest.raises(StoreUnavailable):
                gpu.acquire(timeout=0, app=app)
    assert len(asked) == 1
    assert attempts.count
