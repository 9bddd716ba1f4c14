"""The end of a wait: ``expires`` of the message, and ``start_deadline``, each in any line and over outages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery.signals import task_received, task_revoked

from celery_throttle import Limit, LimitExceeded, RateLimited, Throttled
from celery_throttle.testing import ThrottleTest
from tests.support.journal import Journal
from tests.support.kit import new_app, task_maker
from tests.support.monitor import Monitor
from tests.support.state import State
from tests.support.waiting import HANGS_AFTER, until
from tests.support.workers import Workers

app: Any = new_app("waits", worker_send_task_events=True)
make = task_maker(app)
few = Limit("few", 1, max_parked=1)
SOON = 2.0
ONCE = "tests.support.apps.once"


@pytest.fixture
def throttle_celery_app(hints_only: None) -> Any:  # noqa: ARG001
    return app


@pytest.fixture
def revoked() -> Iterator[Callable[[Any], list[bool]]]:
    """Whether each end of a task as revoked was one of an expired task, by its result."""
    seen: list[tuple[str, bool]] = []

    def note(request: Any, expired: bool, **_: Any) -> None:
        seen.append((request.id, expired))

    task_revoked.connect(note)
    yield lambda result: [expired for task, expired in seen if task == result.id]
    task_revoked.disconnect(note)


def of_label(label: str = "") -> str:
    return label


def ask_to_wait(_label: str = "") -> None:
    raise RateLimited(600)


plain = make("plain", of_label, base=Throttled, limit=few)
several = make("several", of_label, base=Throttled, limit=[Limit("who", 2, key="label"), few])
paced = make("paced", of_label, base=Throttled, limit=[few, Limit("pace", rate="1/h")])
once = make("once", of_label, base=Throttled, limit=few, singleton=True)
hurried = make("hurried", of_label, base=Throttled, limit=Limit("slot", 1), start_deadline=SOON)
hurried_once = make(
    "hurried_once", of_label, base=Throttled, limit=Limit("slot", 1), start_deadline=SOON, singleton=True
)
alone = make("alone", of_label, base=Throttled, singleton=True, unique_on=[])
limited = make("limited", ask_to_wait, base=Throttled, limit=Limit("limited", 1))


def soon() -> datetime:
    return datetime.now(timezone.utc) + timedelta(seconds=SOON)


def assert_expired(kit: ThrottleTest, late: Any, revoked: Callable[[Any], list[bool]]) -> None:
    """It has ended as a task that Celery itself finds expired."""
    until(lambda: late.state == "REVOKED")
    kit.assert_dropped(late, "expired")
    assert revoked(late) == [True]


@pytest.mark.parametrize("task", [plain, several, paced, once], ids=lambda task: task.name.rpartition(".")[2])
def test_parked_task_that_expires_leaves_its_line(
    throttle: ThrottleTest, revoked: Callable[[Any], list[bool]], task: Any
) -> None:
    """At once, not when its turn comes: the next call is published, and the lock is free."""
    with Monitor(app) as monitor, throttle.run_worker(), throttle.hold(few):
        late = task.apply_async(["a"], expires=soon())
        throttle.assert_parked(late, behind=few)
        assert throttle.control.explain(late.id).wait_ends_by == "expires"
        with pytest.raises(LimitExceeded):
            plain.delay("b")
        assert_expired(throttle, late, revoked)
        throttle.assert_parked(task.delay("a"), place=1)
        monitor.wait_for(late.id, "task-revoked")
    (event,) = [each for each in monitor.seen if each["type"] == "task-revoked" and each["uuid"] == late.id]
    assert event["expired"] is True


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_parked_task_expires_in_each_pool(workers: Workers, journal: Journal, state: State, pool: str) -> None:
    workers.start(ONCE, pool=pool, concurrency=2)
    one = workers.app(ONCE).hold_one
    runs = journal.wait_begun(one.delay("a"))
    late = one.apply_async(("b",), expires=SOON)
    state.wait_parked(late)
    until(lambda: late.state == "REVOKED")
    journal.let_go("a")
    assert runs.get(timeout=HANGS_AFTER) == "a"
    assert [run.label for run in journal.runs()] == ["a"]
    state.wait_empty()


def test_task_without_limits_expires_in_line_for_its_lock(
    kit: ThrottleTest, revoked: Callable[[Any], list[bool]]
) -> None:
    with kit.gate() as gate:
        runs = alone.delay()
        gate.wait_for(1)
        late = app.send_task(alone.name, expires=soon())
        kit.assert_duplicate(late, of=runs)
        assert_expired(kit, late, revoked)
        assert gate.waiting == (runs.id,)


def test_task_that_went_back_in_line_expires(kit: ThrottleTest, revoked: Callable[[Any], list[bool]]) -> None:
    """As a retry that comes too late."""
    late = limited.apply_async(expires=soon())
    until(lambda: late.state == "REVOKED")
    assert revoked(late) == [True]
    kit.assert_ran(limited, times=1)


@pytest.mark.parametrize("task", [hurried, hurried_once], ids=["limit", "singleton"])
def test_start_deadline_goes_on_while_the_store_is_away(
    kit: ThrottleTest, revoked: Callable[[Any], list[bool]], task: Any
) -> None:
    """A call that came to its worker too long ago does not run, although its permits are free."""
    received: dict[str, float] = {}

    def note(request: Any, **_: Any) -> None:
        received[request.id] = time.monotonic()

    task_received.connect(note)
    with kit.cut_store():
        late = task.delay("a")
        until(lambda: time.monotonic() > received.get(late.id, time.monotonic()) + SOON)
    assert_expired(kit, late, revoked)
    assert task.delay("a").get(timeout=HANGS_AFTER) == "a"
    kit.assert_ran(task, times=1)
