"""The test kit for users on the server of the session, for the ``APP`` of a test module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from redis import Redis

from tests.support.looks import LOOK_EVERY, look_every
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_throttle.embedded import EmbeddedServer
    from celery_throttle.testing import ThrottleTest

__all__ = [
    "assert_all_ended",
    "begun",
    "hints_only",
    "new_app",
    "task_maker",
    "throttle_celery_app",
    "throttle_server",
    "wait_acknowledged",
]

NOWHERE = "redis://127.0.0.1:1"


@pytest.fixture(scope="session")
def throttle_server(server: EmbeddedServer) -> str:
    """The URL of the server of the kit's fixtures."""
    return server.url


@pytest.fixture
def throttle_celery_app(request: pytest.FixtureRequest) -> Any:
    """The app of the test's module, ``APP``."""
    return request.module.APP


@pytest.fixture
def hints_only() -> Iterator[None]:
    """Workers look for work after a hint, or at the time that the store gave, and only once an hour on their own."""
    look_every(3600)
    yield
    look_every(LOOK_EVERY)


def new_app(name: str, **settings: Any) -> Any:
    """Return an app for the kit, whose own broker and store cannot be reached."""
    app = Celery(name, broker=NOWHERE, backend=NOWHERE, set_as_current=False)
    app.conf.update(settings)
    return app


def of_label(label: str, payload: object = None) -> str:  # noqa: ARG001 - for its publisher
    """Return the label: the body of most tasks."""
    return label


def task_maker(app: Any) -> Callable[..., Any]:
    """Return a function that makes tasks of an app from their names, bodies and options."""

    def make(name: str, body: Callable[..., Any] = of_label, **options: Any) -> Any:
        return app.task(body, shared=False, name=f"{app.main}.{name}", **options)

    return make


def begun(throttle: ThrottleTest, result: Any) -> Any:
    """Wait until the body of a task has begun; return the result of the task."""
    throttle.assert_started(result)
    return result


def assert_all_ended(throttle: ThrottleTest) -> None:
    """Assert that all tasks have ended, and have left no permit and no lock."""
    left = (*throttle.drain().left, *throttle.control.holders())
    assert not left, left


def wait_acknowledged(throttle: ThrottleTest) -> None:
    """Wait until the broker has no message that a worker has not acknowledged."""
    with Redis.from_url(throttle.app.conf.broker_url) as client:
        until(lambda: not client.exists(f"{throttle.prefix}:unacked_index"))
