"""What a broker is asked: whoever looks does not wait for one that is frozen, or away."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from celery import Celery

from celery_throttle.control.queues import consumed, lengths

if TYPE_CHECKING:
    from celery_throttle.embedded import EmbeddedServer

pytestmark = pytest.mark.timeout(20)


def test_a_frozen_broker(own_server: EmbeddedServer) -> None:
    app = Celery(broker=own_server.url)
    assert lengths(app, ["q"]) == {"q": 0}
    own_server.freeze()
    try:
        assert consumed(app) is None
        assert lengths(app, ["q"]) == {"q": None}
    finally:
        own_server.thaw()


def test_a_broker_that_is_away() -> None:
    app = Celery(broker="redis://127.0.0.1:1")
    assert consumed(app) is None
    assert lengths(app, ["q"]) == {"q": None}
