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
    """Counts the calls that reach the store's client; one that fails takes a second of the clock."""

    def __init__(self) -> None:
        self.now, self.count = 1000.0, 0
        self._call = Caller.call

    def clock(self) -> float:
        return self.now

    def call(self, caller: Caller, call: Any) -> Any:
        self.count += 1
        try:
            return self._call(caller, call)
        except Exception:
            self.now += 1
            raise

    def during(self, function: Callable[[], object]) -> int:
        before = self.count
        function()
        return self.count - before


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> Attempts:
    counted = Attempts()
    monkeypatch.setattr(breaker, "monotonic", counted.clock)

    def call(caller: Caller, call: Any) -> Any:  # a method of the class
        return counted.call(caller, call)

    monkeypatch.setattr(Caller, "call", call)
    return counted


@pytest.fixture
def store(own_server: EmbeddedServer) -> Iterator[EmbeddedServer]:
    yield own_server
    own_server.thaw()


@pytest.fixture
def app(store: EmbeddedServer) -> Any:
    return make_app(store)


def make_app(store: EmbeddedServer, **conf: Any) -> Any:
    app = Celery("hangs", broker="memory://", set_as_current=False)
    app.conf.update(throttle_url=store.url, **conf)

    @app.task(shared=False, base=Throttled, singleton=True, on_conflict="raise", name="once")
    def once(number: int) -> int:
        return number

    @app.task(shared=False, base=Throttled, limit=1, max_parked=5, name="crowded")
    def crowded(number: int) -> int:
        return number

    @app.task(
        shared=False, base=Throttled, singleton=True, limit=Limit("far", 1, max_parked=5, group="far"), name="both"
    )
    def both(number: int) -> int:
        return number

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
    def said() -> list[str]:
        found = [record.getMessage() for record in caplog.records if "unchecked" in record.getMessage()]
        caplog.clear()
        return found

    store.freeze()
    publish(app, "once", "crowded")
    (line,) = said()
    assert "once" in line
    assert "did not answer" in line
    attempts.now += 60
    publish(app, "once")
    assert len(said()) == 1  # it goes on
    store.thaw()
    attempts.now += 10
    publish(app, "once")
    store.freeze()
    publish(app, "crowded")
    assert len(said()) == 1


def test_an_operator_asks_all_the_same(store: EmbeddedServer, app: Any, attempts: Attempts) -> None:
    store.freeze()
    publish(app, "once")
    store.thaw()
    assert app.tasks["once"].locked_by(1) is None
    assert attempts.during(lambda: app.tasks["once"].delay(50)) == 1  # since then it is known to be back


@pytest.mark.parametrize("action", ["run", "fail", "hold"])
def test_permits_outside_of_tasks_wait_once(
    store: EmbeddedServer, attempts: Attempts, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    """The requesting thread goes on trying; later callers do not wait for it."""
    app, asked = make_app(store, throttle_on_store_error=action), []

    class Counted(Asking):
        def __init__(self, *args: Any, **how: Any) -> None:
            asked.append(args)
            super().__init__(*args, **how)

    monkeypatch.setattr(outside, "Asking", Counted)
    store.freeze()

    def acquire() -> None:
        if action == "run":
            gpu.acquire(timeout=0, app=app).release()
            return
        with pytest.raises(StoreUnavailable):
            gpu.acquire(timeout=0, app=app)

    for _ in range(5):
        acquire()
    assert len(asked) == 1
    assert attempts.count
