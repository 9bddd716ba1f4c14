"""The app whose store it is, as readers know it."""

from __future__ import annotations

from typing import Any

from celery import Celery

from celery_throttle import Throttled
from tests.fuzz.town import API, GPU, LEASE
from tests.store.caller import KEYS

__all__ = ["make_app"]


def make_app(url: str) -> Any:
    """Return an app with some of the limits in the town's store."""
    app = Celery("shop", broker=url, set_as_current=False)
    app.conf.update(throttle_prefix=KEYS.prefix, throttle_lease=LEASE)

    @app.task(base=Throttled, limit=GPU, name="render", shared=False)
    def render() -> None: ...

    @app.task(base=Throttled, limit=API, name="call", shared=False)
    def call() -> None: ...

    return app
