"""A resumed task is as a direct one: its time limits, request class, strategy, hooks and log lines are the same."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
from celery.worker.request import Request
from celery.worker.strategy import default

from celery_throttle import Limit, Throttled
from celery_throttle.testing import ThrottleTest
from tests.support.journal import Journal
from tests.support.kit import assert_all_ended, new_app, task_maker
from tests.support.state import State
from tests.support.waiting import until
from tests.support.workers import Workers

CUSTOM = "tests.support.apps.custom"

#: Before Celery 5.7 a hard time limit calls no hooks of the task; the pool's own report calls `task_failure`'s.
HOOKS = {"on_failure", "after_return"} if "after_return" in inspect.getsource(Request.on_timeout) else set()

ROADS = pytest.mark.parametrize("parked", [False, True], ids=["direct", "resumed"])


@pytest.fixture
def send(journal: Journal, state: State) -> Callable[..., Any]:
    """``send(app, task, label, parked, **options)`` publishes; a parked one waits behind another before it starts."""

    def publish(app: Any, task: Any, label: str, parked: bool, **options: Any) -> Any:
        if not parked:
            return task.apply_async((label,), **options)
        app.hooked.delay(f"before {label}")
        journal.wait_running(1, f"before {label}")
        result = task.apply_async((label,), **options)
        state.wait_parked(1)
        journal.let_go(f"before {label}")
        return result

    return publish


def noted(journal: Journal, task_id: str) -> list[str]:
    return [event["event"] for event in journal.events() if event.get("task_id") == task_id]


@pytest.mark.parametrize(
    ("name", "parked"),
    [("plain", False), ("hooked", False), ("hooked", True), ("requested", False), ("requested", True)],
)
def test_a_hard_time_limit(workers: Workers, journal: Journal, send: Any, name: str, parked: bool) -> None:
    worker = workers.start(CUSTOM, concurrency=2)
    app = workers.app(CUSTOM)

    result = send(app, getattr(app, name), "hard", parked, time_limit=0.5)

    worker.wait_for_log(rf"Hard time limit \(0\.5s\) exceeded for \S+{name}\[{result.id}\]")
    until(lambda: result.state == "FAILURE")
    assert type(result.result).__name__ == "TimeLimitExceeded"
    wanted = {"task_failure"} | (HOOKS if name != "plain" else set())
    if name == "requested":
        wanted |= {"accepted by OwnRequest", "timeout of OwnRequest: hard 0.5"}
    until(lambda: wanted <= set(noted(journal, result.id)), describe=lambda: noted(journal, result.id))
    assert "Pool callback raised exception" not in worker.log()


@ROADS
def test_a_soft_time_limit(workers: Workers, journal: Journal, send: Any, parked: bool) -> None:
    worker = workers.start(CUSTOM, concurrency=2)
    app = workers.app(CUSTOM)

    result = send(app, app.requested, "soft", parked, soft_time_limit=0.5)

    worker.wait_for_log(rf"Soft time limit \(0\.5s\) exceeded for \S+requested\[{result.id}\]")
    assert type(result.get(propagate=False, timeout=20)).__name__ == "SoftTimeLimitExceeded"
    assert "timeout of OwnRequest: soft 0.5" in noted(journal, result.id)
    assert "Pool callback raised exception" not in worker.log()


def test_time_limits_that_remote_control_has_changed(workers: Workers, send: Any) -> None:
    """Celery's requests keep those with which their strategy was made."""
    app = workers.start_app(CUSTOM, concurrency=2)
    # A worker that has just reported to be ready may not listen yet.
    limited = partial(app.app.control.time_limit, app.requested.name, hard=0.5, reply=True, limit=1, timeout=1)
    [answer] = until(limited, timeout=20)
    assert "ok" in next(iter(answer.values()))

    ends = []
    for label in ("direct", "resumed"):
        result = send(app, app.requested, label, label == "resumed", kwargs={"seconds": 1.5})
        until(result.ready, timeout=20)
        ends.append(type(result.result).__name__)

    assert ends[0] == ends[1]


def test_no_request_is_left_to_the_garbage_collector(workers: Workers, journal: Journal, state: State) -> None:
    worker = workers.start("tests.support.apps.uncollected", concurrency=2)
    app = workers.app("tests.support.apps.features")

    for task, runs in ((app.plain, 1), (app.one, 1), (app.retry, 3), (app.reject_late, 2)):
        for label in range(3):  # but for the first of those with a limit: parked and resumed
            task.delay(f"{task.name} {label}", **({"requeue": True} if runs == 2 else {}))
    until(lambda: len(journal.runs()) == 3 * 7 and not journal.running() and state.is_empty(), describe=worker.tail)

    worker.term()
    worker.wait()
    assert worker.wait_for_log(r"left to the collector: .*") == ["left to the collector: []"]


# -- a strategy of the user's ------------------------------------------------------------------------------------------

SINGLE = Limit("single", 1)
#: The ids of the tasks that the strategy drops, and of the accepted ones.
UNWANTED: set[str] = set()
ACCEPTED: list[str] = []


class OwnRequest(Request):
    """Notes the calls of the pool."""

    def on_accepted(self, pid: Any, time_accepted: Any) -> Any:
        ACCEPTED.append(self.id)
        return super().on_accepted(pid, time_accepted)


def own_strategy(task: Any, app: Any, consumer: Any) -> Any:
    """As Celery's, but it signs its requests, and drops those that are not wanted any more."""
    handle = default(task, app, consumer)

    def handler(message: Any, body: Any, ack: Any, reject: Any, callbacks: Any, **how: Any) -> Any:
        if message.headers["id"] in UNWANTED:
            return ack(None, ())
        message.headers["signed"] = message.headers.get("signed", 0) + 1
        return handle(message, body, ack, reject, callbacks, **how)

    return handler


def count_signatures(self: Any) -> int:
    return int(self.request.get("signed", 0))


APP = new_app("requests")
strategic = task_maker(APP)(
    "strategic", count_signatures, bind=True, base=Throttled, limit=SINGLE,
    Request=f"{__name__}:OwnRequest", Strategy=f"{__name__}:own_strategy",
)  # fmt: skip


@ROADS
@pytest.mark.usefixtures("throttle_worker")
def test_a_strategy_of_the_users(throttle: ThrottleTest, parked: bool) -> None:
    with throttle.hold(SINGLE) if parked else nullcontext():
        result, later = strategic.delay(), strategic.apply_async(countdown=0.1)
        if parked:
            throttle.assert_parked(result)
            until(lambda: throttle.control.limit(SINGLE).status().parked == 2)
    # A parked message comes by the strategy twice.
    assert (result.get(timeout=20), later.get(timeout=20)) == (1 + parked, 1 + parked)
    assert {result.id, later.id} <= set(ACCEPTED)
    assert_all_ended(throttle)


@pytest.mark.usefixtures("throttle_worker")
def test_a_strategy_that_does_not_want_it_any_more(throttle: ThrottleTest, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with throttle.hold(SINGLE):
        unwanted, wanted = strategic.delay(), strategic.delay()
        throttle.assert_line(SINGLE, [unwanted, wanted])
        UNWANTED.add(unwanted.id)
    assert wanted.get(timeout=20) == 2
    until(lambda: not throttle.control.holders())
    assert throttle.control.parked() == ()
    assert unwanted.id not in ACCEPTED
    assert "Traceback" not in caplog.text


@pytest.mark.usefixtures("throttle_worker")
def test_a_revoked_task_with_a_strategy_of_the_users(throttle: ThrottleTest, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with throttle.hold(SINGLE):
        revoked = strategic.delay()
        throttle.assert_parked(revoked)
        revoked.revoke()
        throttle.assert_dropped(revoked)
        until(lambda: not throttle.control.parked())
    assert_all_ended(throttle)
    assert "Traceback" not in caplog.text
