"""A parked task goes to a worker that consumes its queue and has it, for any number of queues and keys."""

from __future__ import annotations

import pytest
from celery import Celery

from tests.failures.tools import AT_ONCE, SEAMS, counts
from tests.support.journal import Journal
from tests.support.remote import wait_heard
from tests.support.state import State
from tests.support.waiting import until
from tests.support.workers import Workers

OLDER = {"OLDER_RELEASE": "1"}


def test_queue_bound_with_a_pattern(workers: Workers, journal: Journal, state: State) -> None:
    gone = workers.start(SEAMS, concurrency=2, queues="alpha,media")
    other = workers.start(SEAMS, concurrency=2, queues="alpha")
    app = workers.app(SEAMS)
    route = {"queue": "media", "routing_key": "media.video.short"}
    journal.wait_begun(app.one.apply_async(["0"], **route))
    state.wait_parked(*(app.one.apply_async([str(number)], **route) for number in range(1, 4)))
    assert {each.queue for each in state.lines} == {"media"}

    gone.term()
    journal.let_all_go()
    gone.wait()
    app.one.apply_async(["alpha"], queue="alpha")
    journal.wait_finished(1, "alpha", timeout=AT_ONCE)  # the other worker has had its turn
    assert [run.label for run in journal.runs() if run.worker.startswith(other.name)] == ["alpha"]
    workers.start(SEAMS, concurrency=2, queues="media")

    journal.wait_finished(5, timeout=AT_ONCE)
    state.wait_clean()
    assert set(counts(journal).values()) == {1}


def test_consumer_cancelled_while_tasks_wait(workers: Workers, journal: Journal, state: State) -> None:
    """They came from the queue while it was consumed; their limit is paused when their slot comes."""
    worker = workers.start(SEAMS, concurrency=1)
    app = workers.app(SEAMS)
    journal.wait_begun(app.pair.delay("first"))
    waiting = [app.pair.delay(f"waiting {number}") for number in range(3)]
    worker.wait_for_log("received", times=4)
    pair = state.limit("tests.support.apps.seams.pair")
    pair.pause()
    control = app.app.control
    assert control.cancel_consumer("celery", reply=True, timeout=AT_ONCE, limit=1)
    journal.let_all_go()
    journal.wait_finished(1, "first")

    state.wait_parked(*waiting, timeout=AT_ONCE)
    assert {each.queue for each in state.lines} == {"celery"}
    pair.resume()
    assert control.add_consumer("celery", reply=True, timeout=AT_ONCE, limit=1)

    journal.wait_finished(4, timeout=AT_ONCE)
    app.plain.delay("plain").get(timeout=AT_ONCE)  # in the one slot
    state.wait_clean()
    assert set(counts(journal).values()) == {1}


def test_revoked_task_where_only_an_older_release_is_left(workers: Workers, journal: Journal, state: State) -> None:
    newer = workers.start(SEAMS, concurrency=1)
    state.limit("till").pause()
    app = workers.app(SEAMS)
    charge = app.charge.delay("order 17")
    state.wait_parked(charge)
    newer.term()
    newer.wait()
    older = workers.start(SEAMS, concurrency=1, env=OLDER)

    wait_heard(app.app, older)
    charge.revoke()

    older.wait_for_log(f"Revoked task {charge.id} has left its line; no request can be made of it here", AT_ONCE)
    until(lambda: str(charge.state) == "REVOKED", timeout=AT_ONCE)
    until(lambda: app.charge.locked_by("order 17") is None, timeout=AT_ONCE)
    state.wait_clean()
    older.term()
    older.wait()
    assert "Traceback" not in older.log()
    assert not journal.runs()


@pytest.mark.parametrize("revoked", [False, True])
def test_task_of_a_newer_release_with_a_backend_that_answers(
    workers: Workers, journal: Journal, state: State, *, revoked: bool
) -> None:
    """It waits for a worker that has it, or is revoked; the others of its limit go on."""
    workers.backend = "rpc://"
    workers.conf["task_annotations"] = {f"{SEAMS}.{name}": {"on_conflict": "raise"} for name in ("charge", "once")}
    newer = workers.start(SEAMS, concurrency=1)
    client = Celery(broker=workers.broker, set_as_current=False)
    limit = state.limit("till")
    limit.pause()
    charge = client.send_task("tests.support.apps.seams.charge", ("order 17",))
    another = client.send_task("tests.support.apps.seams.receipt", ("another",))
    state.wait_parked(charge, another)
    newer.term()
    newer.wait()
    older = workers.start(SEAMS, concurrency=1, env=OLDER)

    if revoked:
        wait_heard(client, older)
        client.control.revoke(charge.id)
        older.wait_for_log("no request can be made of it here", AT_ONCE)
    limit.resume()

    journal.wait_finished(1, "another", timeout=AT_ONCE)
    if not revoked:
        state.wait_parked(charge)  # for a worker that has it
        workers.start(SEAMS, concurrency=1)
        journal.wait_finished(1, "order 17", timeout=AT_ONCE)
    kept = set() if revoked else {charge.id}  # its success is remembered
    until(lambda: not state.holders and not state.parked and state.ids() == kept, timeout=30.0, describe=state.describe)
    assert "is reported later" not in older.log()
