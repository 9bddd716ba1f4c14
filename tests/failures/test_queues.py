"""A parked task goes to a worker that consumes its queue and has it; a revoked or expired one leaves no record."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery

from tests.failures.tools import DOORS, SEAMS, counts
from tests.support.journal import Journal
from tests.support.remote import wait_heard
from tests.support.state import State
from tests.support.waiting import HANGS_AFTER, until
from tests.support.workers import Workers


def is_revoked(result: Any) -> bool:
    return str(result.state) == "REVOKED"


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
    journal.wait_finished(1, "alpha")  # the other worker has had its turn
    assert [run.label for run in journal.runs() if run.worker.startswith(other.name)] == ["alpha"]
    workers.start(SEAMS, concurrency=2, queues="media")

    journal.wait_finished(5)
    state.wait_clean()
    assert set(counts(journal).values()) == {1}


def test_consumer_cancelled_while_tasks_wait(workers: Workers, journal: Journal, state: State) -> None:
    """They came from the queue while it was consumed; their limit is paused when their slot comes."""
    worker = workers.start(SEAMS, concurrency=1)
    app = workers.app(SEAMS)
    journal.wait_begun(app.pair.delay("first"))
    waiting = [app.pair.delay(f"waiting {number}") for number in range(3)]
    worker.wait_for_log("received", times=4)
    pair = state.limit(app.pair.name)
    pair.pause()
    control = app.app.control
    assert control.cancel_consumer("celery", reply=True, timeout=HANGS_AFTER, limit=1)
    journal.let_all_go()
    journal.wait_finished(1, "first")

    state.wait_parked(*waiting)
    assert {each.queue for each in state.lines} == {"celery"}
    pair.resume()
    assert control.add_consumer("celery", reply=True, timeout=HANGS_AFTER, limit=1)

    journal.wait_finished(4)
    app.plain.delay("plain").get(timeout=HANGS_AFTER)  # in the one slot
    state.wait_clean()
    assert set(counts(journal).values()) == {1}


@pytest.mark.parametrize("backend", ["redis", "rpc"])
def test_revoked_task_where_only_an_older_release_is_left(
    workers: Workers, journal: Journal, state: State, backend: str
) -> None:
    """The others of its limit go on."""
    if backend == "rpc":
        workers.backend = "rpc://"
        workers.conf["task_annotations"] = {f"{SEAMS}.charge": {"on_conflict": "raise"}}
    newer = workers.start(SEAMS, concurrency=1)
    client = Celery(broker=workers.broker, set_as_current=False)
    limit = state.limit("till")
    limit.pause()
    charge = client.send_task(f"{SEAMS}.charge", ("order 17",))
    another = client.send_task(f"{SEAMS}.receipt", ("another",))
    state.wait_parked(charge, another)
    newer.term()
    newer.wait()
    older = workers.start(SEAMS, concurrency=1, env={"OLDER_RELEASE": "1"})

    wait_heard(client, older)
    client.control.revoke(charge.id)

    older.wait_for_log(f"Revoked task {charge.id} has left its line; no request can be made of it here")
    if backend == "redis":
        result = workers.app(SEAMS).charge.AsyncResult(charge.id)
        until(lambda: is_revoked(result))
    limit.resume()
    journal.wait_finished(1, "another")
    state.wait_clean()  # the lock of the revoked one is free
    older.term()
    older.wait()
    assert "Traceback" not in older.log()
    assert "is reported later" not in older.log()
    assert counts(journal) == {"another": 1}


def test_revoked_while_parked_when_many_were_revoked_before(workers: Workers, journal: Journal, state: State) -> None:
    app = workers.start_app(DOORS, concurrency=2, env={"CELERY_WORKER_REVOKES_MAX": "10"})
    journal.wait_begun(app.hold.delay("first"))
    before, victim, after = (app.hold.delay(label) for label in ("before", "victim", "after"))
    state.wait_parked(before, victim, after)

    app.app.control.revoke([str(uuid.uuid4()) for _ in range(20)])  # Celery forgets the oldest of them
    before.revoke()
    until(lambda: before.id not in state.parked)
    victim.revoke()

    until(lambda: state.parked == [after.id])
    journal.let_all_go()
    journal.wait_finished(2)
    state.wait_clean()


def test_revoked_or_expired_before_arrival_costs_nothing(workers: Workers, journal: Journal, state: State) -> None:
    app = workers.start_app(DOORS, count=2, concurrency=2)
    journal.wait_begun(app.hold.delay("first"))
    before = state.ids()
    assert before, "One runs."
    revoked = [str(uuid.uuid4()) for _ in range(3)]
    assert len(app.app.control.revoke(revoked, reply=True, timeout=HANGS_AFTER, limit=2)) == len(workers.started)
    past = datetime.now(timezone.utc) - timedelta(seconds=5)

    tasks = (app.hold, app.hold, app.pair)  # the last one's limit has a free permit
    victims = [task.apply_async(["victim"], task_id=task_id) for task, task_id in zip(tasks, revoked, strict=True)]
    victims += [task.apply_async(["victim"], expires=past) for task in tasks]

    workers.wait_discarded(*victims)
    until(lambda: all(map(is_revoked, victims)))
    assert state.ids() == before
    assert state.parked == []
    journal.let_all_go()
    journal.wait_finished(1)
    state.wait_clean()
    assert counts(journal) == {"first": 1}
