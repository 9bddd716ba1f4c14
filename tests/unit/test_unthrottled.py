"""The treatment of tasks in a worker that throttles nothing."""

from __future__ import annotations

import pytest
from celery import Celery

from celery_throttle import RateLimited, Throttled
from celery_throttle.errors import ThrottleError
from celery_throttle.worker.celery_side.unthrottled import fail_rate_limited


def test_a_second_worker_of_one_app_changes_nothing() -> None:
    """Each would add a call around the body: tests that start a worker each time come to Python's limit in the end."""
    app = Celery(set_as_current=False)

    @app.task(shared=False, base=Throttled, limit=1)
    def asks() -> None:
        raise RateLimited(30)

    app.finalize()
    fail_rate_limited(app)
    run = asks.run
    fail_rate_limited(app)
    assert asks.run is run
    with pytest.raises(ThrottleError, match="no worker runs it again"):
        asks.run()
