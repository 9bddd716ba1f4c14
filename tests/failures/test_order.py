"""First come, first started: also a task that waits for a slot, and one that comes while limits are declared."""

from __future__ import annotations

import pytest

from tests.failures.tools import AT_ONCE, SEAMS, script_calls
from tests.support.journal import Journal
from tests.support.relay import Relay
from tests.support.state import State
from tests.support.waiting import until
from tests.support.workers import Workers


def test_task_that_waits_for_a_slot_is_in_line(workers: Workers, journal: Journal, state: State) -> None:
    """One worker has more than its slots when another one fills the limit and parks later tasks."""
    first = workers.start(SEAMS, concurrency=4)
    app = workers.start_app(SEAMS, concurrency=4, queues="alpha")
    early = [app.six.delay(str(place)) for place in range(12)]
    journal.wait_running(4)
    first.wait_for_log("received", times=12)
    for place in (12, 13):
        app.six.apply_async([str(place)], queue="alpha")
        journal.wait_running(1, str(place))
    later = [app.six.apply_async(["14"], queue="alpha")]
    state.wait_parked(*later)

    state.wait_parked(*early[4:], timeout=AT_ONCE)
    later += [app.six.apply_async([str(place)], queue="alpha") for place in range(15, 20)]
    state.wait_parked(*later)
    assert state.parked == [result.id for result in (*early[4:], *later)]
    journal.let_all_go()

    journal.wait_finished(20, timeout=AT_ONCE)
    assert journal.max_running() <= 6
    state.wait_clean()


@pytest.mark.parametrize("until_log", ["", "lost the store"])
def test_first_delivery_is_first_despite_a_late_reply(
    workers: Workers, journal: Journal, state: State, relay: Relay, until_log: str
) -> None:
    """One worker gets no reply from the store while another parks messages that the broker delivered later."""
    late = workers.start(SEAMS, concurrency=4, conf={"throttle_url": relay.url})
    app = workers.app(SEAMS)
    until(lambda: relay.quiet_for(0.2))
    relay.hold_replies()
    early = [app.one.delay(str(place)) for place in range(14)]
    late.wait_for_log("received", times=14)
    workers.start(SEAMS, concurrency=4, queues="alpha")
    later = [app.one.apply_async([str(place)], queue="alpha") for place in range(14, 28)]
    state.wait_parked(*later)
    late.wait_for_log(until_log)
    relay.pass_replies()
    state.wait_parked(*early[1:], timeout=AT_ONCE)
    assert state.parked == [result.id for result in (*early[1:], *later)]
    journal.let_all_go()

    journal.wait_finished(28, timeout=AT_ONCE)
    state.wait_clean()


def test_task_during_declarations_is_behind_earlier_ones(
    workers: Workers, journal: Journal, state: State, relay: Relay
) -> None:
    """The store is back, but has not confirmed the declaration of the limits yet."""
    worker = workers.start(SEAMS, concurrency=4, conf={"throttle_url": relay.url})
    app = workers.app(SEAMS)
    until(lambda: relay.quiet_for(0.2))
    relay.refuse()
    worker.wait_for_log("cannot reach the store")
    for place in range(4):
        app.frame.delay(str(place))
    worker.wait_for_log("received", times=4)
    with state.client() as client:
        calls = script_calls(client)
        relay.hold_replies_from(b"EVALSHA")
        relay.accept()
        until(lambda: script_calls(client) > calls)
    for place in range(4, 12):
        app.frame.delay(str(place))
    worker.wait_for_log("received", times=12)
    relay.pass_replies()

    journal.wait_finished(12, timeout=AT_ONCE)
    # Those that start in one moment start in any order.
    assert set(journal.order()[:4]) == {"0", "1", "2", "3"}, journal.order()
    state.wait_clean()
