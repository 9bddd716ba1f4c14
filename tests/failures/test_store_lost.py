"""The store is killed, frozen or emptied: nothing is lost, the cap holds, plain tasks go on."""

from __future__ import annotations

import re
from typing import Any

import pytest
from celery import Celery
from redis import Redis

from celery_throttle import StoreUnavailable, ThrottleControl
from celery_throttle.embedded import EmbeddedServer
from tests.failures.tools import DOORS, counts, most_at_once
from tests.support.journal import Journal
from tests.support.relay import Relay
from tests.support.remote import steer, tell, throttle_in
from tests.support.state import State
from tests.support.waiting import HANGS_AFTER, until
from tests.support.workers import Workers


@pytest.mark.parametrize("how", ["killed", "frozen"])
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_hold(store: EmbeddedServer, workers: Workers, journal: Journal, state: State, pool: str, how: str) -> None:
    """Remote control answers at once, without waiting for the store."""
    worker = workers.start(DOORS, pool=pool, concurrency=2)
    app = workers.app(DOORS)
    first = journal.wait_begun(app.hold.delay("first"))
    state.wait_parked(*(app.hold.delay(f"parked {number}") for number in range(3)))
    journal.let_go(*(f"plain {number}" for number in range(20)))
    before = throttle_in(app.app, worker)["groups"][0]
    assert before["up"]

    store.kill() if how == "killed" else store.freeze()
    if how == "frozen":  # not noticed yet: the command finds out
        (answer,) = tell(app.app, "throttle_pause", worker, limit=app.hold.name)
        assert answer["error"].startswith("the store did not answer within 0.5 s")
    # More plain tasks than the prefetch count allows: held messages must not count.
    held_back = []
    for number in range(10):
        held_back.append(app.hold.delay(f"held {number}").id)
        app.plain.delay(f"plain {number}")
    journal.wait_finished(10, task="plain")

    def noticed() -> Any:
        said = throttle_in(app.app, worker)
        return said if not said["groups"][0]["up"] and said["held_back"]["count"] == len(held_back) else None

    said = until(noticed, describe=worker.tail)
    assert said["held_back"]["counts"] == {"store away": len(held_back)}
    assert [each["task_id"] for each in said["held_back"]["tasks"]] == held_back
    assert [each["task_id"] for each in said["held"]["tasks"]] == [first.id]
    (group,) = said["groups"]
    assert group["since"] > before["since"]
    assert group["last_call"]["number"] >= before["last_call"]["number"]
    if how == "killed":
        refused = "the store did not answer, or refused: "
        until(lambda: tell(app.app, "throttle_pause", worker, limit=app.hold.name)[0]["error"].startswith(refused))
    journal.let_go("first")  # its permit is given back when that is possible again
    journal.wait_finished(1, "first")
    for number in range(10, 20):
        app.plain.delay(f"plain {number}")
    journal.wait_finished(20, task="plain")
    assert len(journal.runs(task=".hold")) == 1
    assert "Traceback" not in worker.log()
    journal.let_all_go()
    store.restart() if how == "killed" else store.thaw()
    until(lambda: throttle_in(app.app, worker)["groups"][0]["up"])
    until(lambda: "ok" in steer(app.app, "throttle_resume", worker, limit=app.hold.name)[0])

    journal.wait_finished(1 + 3 + 10, task=".hold")
    state.wait_clean()
    assert set(counts(journal).values()) == {1}
    assert most_at_once(journal, ".hold") == 1
    assert journal.order(task=".hold")[:4] == ["first", "parked 0", "parked 1", "parked 2"]


def test_worker_that_starts_without_the_store(
    store: EmbeddedServer, workers: Workers, journal: Journal, state: State
) -> None:
    """The error is counted once for each worker: not for each attempt to connect, nor for each task that waits."""
    store.kill()
    journal.let_all_go()
    late = workers.start(DOORS, concurrency=2)
    app = workers.app(DOORS)
    control = ThrottleControl(app.app)

    def told() -> int:
        (found,) = re.findall(r'celery_throttle_store_errors_total\{group=""\} (\d+)', control.metrics())
        return int(found)

    def hold(outage: int) -> None:
        held = [app.hold.delay(f"held {outage} {number}") for number in range(5)]
        app.plain.delay(f"plain {outage}").get(timeout=HANGS_AFTER)
        late.wait_for_log("cannot reach the store", times=outage)
        assert not any(run.label.startswith(f"held {outage}") for run in journal.runs())
        store.restart()
        assert [each.get(timeout=HANGS_AFTER) for each in held] == [f"held {outage} {number}" for number in range(5)]

    hold(1)
    assert until(told) == 1
    workers.start(DOORS, concurrency=2)
    app.hold.delay("both are there").get(timeout=HANGS_AFTER)
    store.kill()
    hold(2)
    until(lambda: told() == 3)
    state.wait_clean()


@pytest.mark.parametrize("action", ["run", "fail"])
def test_other_actions(
    relay: Relay, backend: EmbeddedServer, workers: Workers, journal: Journal, state: State, action: str
) -> None:
    """A task that is being parked waits for the answer, because the store may have it; none in the store fails.

    If the result backend is away, too, a failure is reported when it is back.
    """
    workers.conf.update(throttle_on_store_error=action, throttle_url=relay.url)
    worker = workers.start(DOORS, concurrency=3)
    app = workers.app(DOORS)
    client = Celery(broker=workers.broker, backend=workers.backend, set_as_current=False)
    journal.wait_begun(app.hold.delay("first"))
    state.wait_parked(app.hold.delay("second"))

    relay.hold_replies()
    third = client.send_task(app.hold.name, ("third",))
    worker.wait_for_log("cannot reach the store")
    if action == "fail":
        backend.kill()
    bare = Celery(broker=workers.broker, set_as_current=False)
    sent = [bare.send_task(task.name, (task.name,)) for task in (app.hold, app.hold_late)]
    others: list[Any] = [app.hold.AsyncResult(each.id) for each in sent]
    if action == "fail":
        worker.wait_for_log("waits here: ", times=len(others))
        backend.restart()
    for each in others:
        if action == "run":
            journal.wait_begun(each)
            worker.wait_for_log(rf"\[{each.id}\] runs without a permit")
        else:
            with pytest.raises(StoreUnavailable, match="throttle_on_store_error"):
                each.get(timeout=HANGS_AFTER)
    if action == "run":
        shown = throttle_in(app.app, worker)["unthrottled"]["tasks"]
        needs = {each["task_id"]: (each["queue"], each["needs"]) for each in shown}
        limits = [[{"limit": task.name, "key": None, "permits": 1}] for task in (app.hold, app.hold_late)]
        assert needs == {each.id: ("celery", need) for each, need in zip(others, limits, strict=True)}
    assert not journal.runs("third")
    assert third.state == "PENDING"

    relay.pass_replies()
    worker.wait_for_log("the store is back")
    journal.let_all_go()
    assert third.get(timeout=HANGS_AFTER) == "third"
    journal.wait_finished(5 if action == "run" else 3)
    state.wait_clean()
    assert set(counts(journal).values()) == {1}


@pytest.mark.parametrize("store", [{"persistent": False}], indirect=True)
@pytest.mark.parametrize("how", ["restarted", "flushed"])
def test_running_holders_put_themselves_back(
    store: EmbeddedServer, workers: Workers, journal: Journal, state: State, how: str
) -> None:
    """With their names. After a flush no connection broke, and the first call is that of a worker without holders."""
    holds = workers.start(DOORS, queues="celery,left,right", concurrency=3)
    app = workers.app(DOORS)
    tasks = {app.hold.delay("first").id: app.hold, app.hold_late.delay("late").id: app.hold_late}
    journal.wait_running(2)
    app.left.delay("left")
    journal.wait_running(1, "left")
    shared = app.right.delay("right")
    state.wait_parked(shared)
    journal.let_go("left")
    tasks[journal.wait_begun(shared).id] = app.right

    if how == "restarted":
        store.kill()
        store.restart()
    else:
        with Redis.from_url(store.url) as client:
            client.flushall()
    workers.start(DOORS, concurrency=2)
    names = {task_id: task.name for task_id, task in tasks.items()}
    throttle = ThrottleControl(app.app)
    until(lambda: {each.task_id: each.task_name for each in throttle.holders()} == names)
    assert throttle.explain(shared.id).task_name == app.right.name
    holds.wait_for_log("put back", times=3)
    state.wait_parked(app.hold.delay("next"), app.hold_late.delay("late next"))
    journal.let_all_go()

    journal.wait_finished(6)
    state.wait_clean()
    assert set(counts(journal).values()) == {1}
    assert {most_at_once(journal, task) for task in (".hold", ".hold_late")} == {1}
    with app.SHARED.acquire(app=app.app, timeout=HANGS_AFTER):
        assert [each.task_name for each in throttle.holders()] == [None]
