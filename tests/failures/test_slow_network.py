"""Large messages on a slow way to the store: a call is bounded in bytes, and one that moves is not given up."""

from __future__ import annotations

import pytest

from tests.failures.tools import DOORS, counts
from tests.support.journal import Journal
from tests.support.relay import Relay
from tests.support.state import State
from tests.support.workers import Workers

MEGABYTE = 1 << 20


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_many_large_messages_are_parked_over_a_slow_network(
    workers: Workers, journal: Journal, state: State, relay: Relay, pool: str
) -> None:
    """All together they take 16 seconds; the store is taken for lost after one of silence."""
    workers.conf.update(throttle_url=relay.url, worker_prefetch_multiplier=0)
    slow = workers.start(DOORS, concurrency=1, pool=pool)
    app = workers.app(DOORS)
    state.limit("tests.support.apps.doors.hold").pause()
    relay.calls_per_second = MEGABYTE

    sent = [app.hold.delay(str(number), "x" * (MEGABYTE // 2)) for number in range(24)]

    state.wait_parked(*sent, timeout=60)
    assert "lost the store" not in slow.log()
    relay.calls_per_second = 0
    state.limit("tests.support.apps.doors.hold").resume()
    journal.let_all_go()
    journal.wait_finished(len(sent), timeout=60)
    state.wait_clean()
    assert set(counts(journal).values()) == {1}
    assert journal.order() == [str(number) for number in range(len(sent))]
