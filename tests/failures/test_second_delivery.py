"""A message at the broker and in the store, or with two deliveries: it runs as often as its acks have it."""

from __future__ import annotations

import time

from tests.failures.tools import (
    DIES,
    DOORS,
    SEAMS,
    counts,
    deliver,
    message_of,
    most_at_once,
    queued,
    redeliver,
    unacknowledged,
)
from tests.support.journal import Journal
from tests.support.looks import FRESH
from tests.support.relay import Relay
from tests.support.state import State
from tests.support.waiting import HANGS_AFTER, always, until
from tests.support.workers import Workers


def test_second_delivery_is_dropped_when_the_first_succeeds(workers: Workers, journal: Journal, state: State) -> None:
    """However often the broker delivers it, as it does when the ``visibility_timeout`` is over."""
    started = workers.start_many(2, DOORS, concurrency=2)
    app = workers.app(DOORS)
    first = journal.wait_begun(app.hold_late.delay("first"))
    message = message_of(workers, first.id)
    state.wait_parked(app.hold_late.delay("other"))

    def received() -> int:
        return sum(worker.log().count(f"{first.id}] received") for worker in started)

    redeliver(workers)
    for messages in (2, 3, 4):
        # On the way from its queue to a worker a message is neither queued nor unacknowledged.
        until(lambda: received() >= messages)  # noqa: B023 - called at once
        until(lambda: state.has_second(first) and not unacknowledged(workers) and not queued(workers))
        if messages < 4:
            deliver(workers, message)
    assert received() == 4
    assert counts(journal) == {"first": 1}
    journal.let_all_go()

    journal.wait_finished(2)
    state.wait_clean()
    assert counts(journal) == {"first": 1, "other": 1}
    assert most_at_once(journal, ".hold_late") == 1


def test_second_delivery_of_one_that_waits_for_a_slot(workers: Workers, journal: Journal, state: State) -> None:
    """Its first worker has had it for so long that another one has it by now: no permit is just passed on to it."""
    first = workers.start(DOORS, concurrency=1, conf={"worker_prefetch_multiplier": 1}, env={FRESH: "0"})
    app = workers.app(DOORS)
    journal.wait_begun(app.pair.delay("first"))
    waits = app.pair.delay("waits")
    first.wait_for_log(f"{waits.id}. received")
    workers.start(DOORS, concurrency=1)
    redeliver(workers)
    journal.wait_running(1, "waits")

    journal.let_go("first")
    until(lambda: not unacknowledged(workers))  # the first worker has dealt with it
    journal.let_go("waits")
    journal.wait_finished(2)
    state.wait_clean()
    assert counts(journal) == {"first": 1, "waits": 1}


def test_parked_while_its_worker_is_stopped(relay: Relay, workers: Workers, journal: Journal, state: State) -> None:
    """It reads that the store has the task when it has begun to stop."""
    stopping = workers.start(SEAMS, concurrency=3, conf={"throttle_url": relay.url})
    app = workers.app(SEAMS)
    journal.wait_begun(app.plain.delay("longest"))
    journal.wait_begun(app.one.delay("first"))
    state.wait_parked(app.one.delay("parked"))  # from now on it treats the limit as full
    until(lambda: relay.quiet_for(0.2))
    relay.hold_replies()
    state.wait_parked(app.one.delay("last"))
    stopping.term()
    stopping.wait_for_log("Warm shutdown")
    time.sleep(0.4)  # no state shows that it has stopped, and a reply may take a second
    relay.pass_replies()
    workers.start(SEAMS, concurrency=2)
    journal.let_all_go()
    journal.wait_finished(4)
    assert stopping.wait() == 0
    until(lambda: not unacknowledged(workers))
    app.plain.delay("after them").get(timeout=HANGS_AFTER)
    state.wait_clean()
    assert set(counts(journal).values()) == {1}


def test_granted_to_a_worker_frozen_for_longer_than_its_lease(
    relay: Relay, workers: Workers, journal: Journal, state: State
) -> None:
    """It reads of its grant when another worker runs the task."""
    workers.start(SEAMS, concurrency=1, queues="alpha")
    frozen = workers.start(SEAMS, concurrency=1, conf={"throttle_url": relay.url, **DIES})
    app = workers.app(SEAMS)
    journal.wait_begun(app.one.apply_async(["first"], queue="alpha"))
    second = app.one.delay("second")
    state.wait_parked(second)
    until(lambda: relay.quiet_for(0.2))
    relay.hold_replies()
    journal.let_go("first")
    until(lambda: second.id in state.holders, every=0.005)
    frozen.freeze()
    relay.pass_replies()
    workers.start(SEAMS, concurrency=1)
    journal.wait_running(1, "second")

    frozen.thaw()

    always(lambda: len(journal.runs("second")) == 1, seconds=1.5)
    journal.let_all_go()
    state.wait_clean()
    assert counts(journal) == {"first": 1, "second": 1}
