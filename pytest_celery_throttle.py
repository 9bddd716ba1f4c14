"""The pytest plugin of celery_throttle's test kit.

It is no module of the package, because the import of the package loads parts of Celery, which takes a quarter of a
second, also in test runs without Celery.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_throttle.testing import ThrottleTest
    from celery_throttle.testing.workers import Worker

__all__ = ["pytest_configure", "throttle", "throttle_celery_app", "throttle_server", "throttle_worker"]

_NO_APP = """No Celery app for the test: write in conftest.py

    @pytest.fixture
    def throttle_celery_app():
        from proj.celery import app
        return app
"""


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers."""
    for line in (
        "throttle(**settings): settings of the app for this test, for the fixture throttle",
        "throttle_worker(pool='threads', concurrency=4, queues=None): the worker of the fixture throttle_worker",
    ):
        config.addinivalue_line("markers", line)


@pytest.fixture
def throttle_celery_app(request: pytest.FixtureRequest) -> Any:
    """The Celery app to test; override it. By default ``celery_app`` of Celery's own plugin, if that is loaded."""
    try:
        return request.getfixturevalue("celery_app")
    except pytest.FixtureLookupError:
        pytest.fail(_NO_APP, pytrace=False)


@pytest.fixture(scope="session")
def throttle_server() -> str:
    """The URL of the server: ``THROTTLE_TEST_URL``, or a server that ends with this process."""
    from celery_throttle.testing.app import server_url  # noqa: PLC0415

    return server_url()


@pytest.fixture
def throttle(request: pytest.FixtureRequest, throttle_celery_app: Any) -> Iterator[ThrottleTest]:
    """The kit: assertions, tools and the clock; the app is on the test's server."""
    from celery_throttle.testing import ThrottleTest  # noqa: PLC0415

    def url() -> str:
        return str(request.getfixturevalue("throttle_server"))

    with ThrottleTest(throttle_celery_app, url=url, **_options(request, "throttle")) as kit:
        yield kit


@pytest.fixture
def throttle_worker(request: pytest.FixtureRequest, throttle: ThrottleTest) -> Iterator[Worker]:
    """A worker in this process, with four threads; ready when its connections to the store stand."""
    with throttle.run_worker(**_options(request, "throttle_worker")) as worker:
        yield worker


def _options(request: pytest.FixtureRequest, name: str) -> dict[str, Any]:
    marker = request.node.get_closest_marker(name)
    return dict(marker.kwargs) if marker is not None else {}
