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
from tests.support.waiting import HANGS_AFTER, until
from tests.support.workers import Workers

CUSTOM = "tests.support.apps.custom"

#: Before Celery 5.7 a hard time limit calls no hooks of the task; the pool's own report calls `task_failure`'s.
HOOKS = {"on_failure", "after_return"} if "after_return" in inspect.getsource(Request.on_timeout) else set()


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
    ("kind", "name", "parked"),
    [
        ("hard", "plain", False),
        ("hard", "hooked", True),
        ("hard", "requested", False),
        ("hard", "requested", True),
        ("soft", "requested", False),
        ("soft", "requested", True),
    ],
)
def test_a_time_limit(workers: Workers, journal: Journal, send: Any, kind: str, name: str, parked: bool) -> None:
    worker = workers.start(CUSTOM, concurrency=2)
    app = workers.app(CUSTOM)

    result = send(
        app, getattr(app, name), kind, parked, **{{"hard": "time_limit", "soft": "soft_time_limit"}[kind]: 0.5}
    )

    worker.wait_for_log(rf"{kind.title()} time limit \(0\.5s\) exceeded for \S+{name}\[{result.id}\]")
    until(lambda: result.state == "FAILURE")
    assert type(result.result).__name__ == {"hard": "TimeLimitExceeded", "soft": "SoftTimeLimitExceeded"}[kind]
    wanted = {"task_failure"} | (HOOKS if name != "plain" else set())
    if name == "requested":
        wanted |= {"accepted by OwnRequest", f"timeout of OwnRequest: {kind} 0.5"}
    until(lambda: wanted <= set(noted(journal, result.id)), describe=lambda: noted(journal, result.id))
    assert "Pool callback raised exception" not in worker.log()


def test_time_limits_that_remote_control_has_changed(workers: Workers, send: Any) -> None:
    """Celery's requests keep those with which their strategy was made."""
    app = workers.start_app(CUSTOM, concurrency=2)
    # A worker that has just reported to be ready may not listen yet.
    limited = partial(app.app.control.time_limit, app.requested.name, hard=0.5, reply=True, limit=1, timeout=1)
    [answer] = until(limited)
    assert "ok" in next(iter(answer.values()))

    ends = []
    for label in ("direct", "resumed"):
        result = send(app, app.requested, label, label == "resumed", kwargs={"seconds": 1.5})
        until(result.ready)
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


@pytest.mark.parametrize("parked", [False, True], ids=["direct", "resumed"])
def test_a_strategy_of_the_users(kit: ThrottleTest, parked: bool) -> None:
    with kit.hold(SINGLE) if parked else nullcontext():
        result = strategic.delay()
        if parked:
            kit.assert_parked(result)
        else:
            result.get(timeout=HANGS_AFTER)
            kit.assert_held(SINGLE, 0)
        later = strategic.apply_async(countdown=0.1)
        if parked:
            until(lambda: kit.control.limit(SINGLE).status().parked == 2)
    # A parked message comes by the strategy twice.
    assert (result.get(timeout=HANGS_AFTER), later.get(timeout=HANGS_AFTER)) == (1 + parked, 1 + parked)
    assert {result.id, later.id} <= set(ACCEPTED)
    assert_all_ended(kit)


def test_a_parked_task_that_is_revoked_or_not_wanted_by_the_strategy(
    kit: ThrottleTest, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with kit.hold(SINGLE):
        revoked, unwanted, wanted = (strategic.delay() for _ in range(3))
        kit.assert_line(SINGLE, [revoked, unwanted, wanted])
        revoked.revoke()
        kit.assert_dropped(revoked)
        kit.assert_line(SINGLE, [unwanted, wanted])
        UNWANTED.add(unwanted.id)
    assert wanted.get(timeout=HANGS_AFTER) == 2
    until(lambda: not (kit.control.holders() or kit.control.parked()))
    assert not {revoked.id, unwanted.id} & set(ACCEPTED)
    assert "Traceback" not in caplog.text
