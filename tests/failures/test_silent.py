"""A frozen worker, as ``report`` and ``explain`` show it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_throttle import ThrottleControl
from tests.failures.test_once_lost import let_go, started
from tests.failures.tools import AT_ONCE, WITHIN_LEASE
from tests.support.waiting import until

if TYPE_CHECKING:
    from tests.support.journal import Journal
    from tests.support.workers import Workers

pytestmark = pytest.mark.worker


def test_frozen_worker_is_an_alarm(workers: Workers, journal: Journal) -> None:
    frozen, app, first = started(workers, journal, "hold")
    throttle = ThrottleControl(app.app)

    def kinds() -> set[str]:
        return {each.kind for each in throttle.report().alarms}

    assert not kinds() & {"silent", "lost"}
    frozen.freeze()
    until(lambda: "silent" in kinds(), timeout=WITHIN_LEASE)
    frozen.thaw()
    until(lambda: not kinds() & {"silent", "lost"}, timeout=AT_ONCE)
    let_go(journal, "a")
    assert first.get(timeout=WITHIN_LEASE) == "a"
