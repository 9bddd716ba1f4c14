"""An app, workers of it without a pool, and its commands: in this process, and as a shell runs them."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner
from redis import Redis

from celery_throttle import Limit, ThrottleControl, Throttled
from celery_throttle.control import causes, checks, forecast
from celery_throttle.control import server as store_facts
from celery_throttle.control.cli.group import throttle
from celery_throttle.embedded import EmbeddedServer
from tests.control.desk_story import DeskStory
from tests.control.hours import store_counts  # noqa: F401 - a fixture
from tests.store.caller import KEYS
from tests.store.lock_caller import LockCaller
from tests.support.collected import pytest_runtest_protocol, pytest_runtest_teardown  # noqa: F401 - hooks
from tests.support.shell import Ended

#: ``run("status", "--json")``.
Run = Callable[..., Ended]
FROZEN = "celery@w2/17/bbbbbbbb"


def make_app(url: str, **conf: Any) -> Any:
    """An app of a few limits, in the same place as the tests' `Caller`."""
    app = Celery("shop", broker=url, set_as_current=False)
    app.conf.update(throttle_prefix=KEYS.prefix, **conf)

    @app.task(base=Throttled, limit=Limit("api", 2), name="call", shared=False)
    def call() -> None: ...

    @app.task(base=Throttled, limit=Limit("tenant", 1, key="tenant_id"), name="serve", shared=False)
    def serve(tenant_id: object) -> None: ...

    @app.task(base=Throttled, singleton=True, unique_on=["order_id"], name="charge", shared=False)
    def charge(order_id: object, amount: object) -> None: ...

    return app


def add_task(app: Any, name: str, *limits: Limit, **options: Any) -> Any:
    """Return another task of an app, with these limits."""

    def body(tenant_id: object = None) -> None: ...

    return app.task(body, base=Throttled, limit=list(limits), name=name, shared=False, **options)


def run_in(app: Any, *args: str) -> Ended:
    """Carry out ``celery -A app throttle ...`` here."""
    context = CLIContext(app=app, no_color=True, workdir=None)
    result = CliRunner().invoke(throttle, args, obj=context)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ended(result.exit_code, result.stdout, result.stderr)


@pytest.fixture(autouse=True)
def _no_store_is_slow(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """No finding is about the machine of the tests; a test with a latency of its own has the usual bound."""
    if "facts" not in request.fixturenames:
        monkeypatch.setattr(store_facts, "_SLOW", 60.0)


@pytest.fixture
def app(server: EmbeddedServer, redis: object) -> Any:
    assert redis  # which empties the server
    return make_app(server.url)


@pytest.fixture
def control(app: Any) -> ThrottleControl:
    return ThrottleControl(app)


@pytest.fixture
def run(app: Any) -> Run:
    return lambda *args: run_in(app, *args)


@pytest.fixture
def desk(redis: Redis, request: pytest.FixtureRequest, app: Any, run: Run) -> DeskStory:
    return DeskStory(redis, request, app, run)


@pytest.fixture(params=["is away", "never answers"])
def no_broker(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a broker: nothing listens there, or a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        yield "127.0.0.1:1" if request.param == "is away" else f"127.0.0.1:{deaf.getsockname()[1]}"


@pytest.fixture
def frozen(redis: Redis) -> LockCaller:
    """A worker whose leases last a minute, and that renews them only where a test lets it."""
    return LockCaller(redis, FROZEN, "q", lease=60)


@pytest.fixture
def workers_answer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if workers consumed the queue ``q``, took their tasks in a moment, and did not report their free slots."""
    monkeypatch.setattr(causes, "_AGAIN", 0.01)
    if request.node.get_closest_marker("worker") is None:
        monkeypatch.setattr(checks, "consumed", lambda _: {"q"})
        monkeypatch.setattr(forecast, "consumed", lambda _: {"q"})
        monkeypatch.setattr(forecast, "free_slots", lambda _: None)
