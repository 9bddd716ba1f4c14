"""The test kit for users, on the server of the session: its fixtures ``throttle`` and ``throttle_worker``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery

from celery_throttle.testing import ThrottleTest

if TYPE_CHECKING:
    from celery_throttle.embedded import EmbeddedServer

__all__ = ["kit_of", "new_app", "throttle_server"]

NOWHERE = "redis://127.0.0.1:1"


@pytest.fixture(scope="session")
def throttle_server(server: EmbeddedServer) -> str:
    """The URL of the server of the kit's fixtures."""
    return server.url


def new_app(name: str, **settings: Any) -> Any:
    """Return an app for the kit, whose own broker and store cannot be reached."""
    app = Celery(name, broker=NOWHERE, backend=NOWHERE, set_as_current=False)
    app.conf.update(settings)
    return app


def kit_of(app: Any, server: EmbeddedServer, **settings: Any) -> ThrottleTest:
    """Return the kit for an app on another server, or with settings that only a part of a test has."""
    return ThrottleTest(app, url=lambda: server.url, **settings)
