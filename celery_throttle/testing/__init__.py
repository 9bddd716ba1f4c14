"""The test kit for users: real limits, a real store, a worker in the process of the test, and a clock to advance.

    with ThrottleTest(app) as throttle, throttle.run_worker():
        throttle.assert_started(render.delay(1))

With pytest the same comes as the fixtures ``throttle`` and ``throttle_worker``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_throttle.core.lazy import lazy

if TYPE_CHECKING:
    from celery_throttle.testing.kit import ThrottleTest
    from celery_throttle.testing.needs import CallNeeds, assert_needs, needs_of
    from celery_throttle.testing.scene import Outcomes

__all__ = ["CallNeeds", "Outcomes", "ThrottleTest", "assert_needs", "needs_of"]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "CallNeeds": "needs",
        "Outcomes": "scene",
        "ThrottleTest": "kit",
        "assert_needs": "needs",
        "needs_of": "needs",
    },
)
