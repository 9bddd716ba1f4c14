"""Signals: receivers get the events of tasks and limits, and a broken receiver stops nothing."""

from __future__ import annotations

import logging
import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest

from celery_throttle import Throttled, signals
from celery_throttle.clients import StoreClient
from tests.support.kit import begun, new_app, task_maker
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_throttle.testing import ThrottleTest
    from tests.support.journal import Journal
    from tests.support.workers import Workers

APP = new_app("signals")
make_task = task_maker(APP)
one = make_task("one", base=Throttled, limit=1)
once = make_task("once", base=Throttled, singleton=True, on_conflict="skip")

TOLD = "tests.support.apps.told"
NEEDS = ({"limit": one.name, "key": None, "permits": 1},)

Heard = list[tuple[str, str, dict[str, Any]]]


@pytest.fixture
def heard() -> Iterator[Callable[[str], Heard]]:
    """``heard(name)`` returns what receivers of a signal got; each signal has another one, which raises."""
    got: Heard = []

    def fail(**_: Any) -> None:
        raise RuntimeError("a receiver that is broken")

    def receive(signal: Any, sender: str, event: Any, **_: Any) -> None:
        got.append((signal.name, sender, asdict(event)))

    names = ("task_parked", "task_resumed", "permit_reclaimed", "duplicate_dropped", "limit_changed")
    receivers = [(getattr(signals, name), receiver) for name in names for receiver in (fail, receive)]
    for signal, receiver in receivers:
        signal.connect(receiver, weak=False)
    yield lambda name: [each for each in got if each[0] == name]
    for signal, receiver in receivers:
        signal.disconnect(receiver)


@pytest.mark.usefixtures("throttle_worker")
def test_parked_and_resumed(throttle: ThrottleTest, heard: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "celery_throttle")
    with throttle.gate():
        begun(throttle, one.delay("first"))
        second = one.delay("second")
        parked = {"task_id": second.id, "task_name": one.name, "queue": "celery", "needs": NEEDS}
        until(lambda: heard("task_parked") == [("task_parked", one.name, parked)])
        throttle.assert_parked(second)
        assert not heard("task_resumed")
    assert second.get(timeout=20) == "second", "the receivers that raise stop nothing"
    ((_, sender, resumed),) = heard("task_resumed")
    waited = resumed.pop("waited")
    assert (sender, resumed) == (one.name, parked)
    assert 0 < waited < 30
    assert "a receiver that is broken" in caplog.text
    for action in ("task_parked", "task_resumed"):
        (record,) = [vars(each) for each in caplog.records if getattr(each, "action", "") == action]
        assert (record["task_id"], record["task_name"]) == (second.id, one.name)


@pytest.fixture
def lost_run(hints_only: None, throttle: ThrottleTest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:  # noqa: ARG001
    """A task of a lost worker, whose lease has ended; another worker lives."""
    with throttle.gate(), throttle.run_worker() as lost:
        result = begun(throttle, one.delay("first"))
        with throttle.run_worker():
            lost.lose()
            with monkeypatch.context() as patched:
                patched.setattr(StoreClient, "reap", lambda _: [])  # else the clock of the kit reclaims it
                throttle.advance(60)
            yield result


def test_reclaimed(throttle: ThrottleTest, heard: Any, lost_run: Any, caplog: pytest.LogCaptureFixture) -> None:
    throttle.assert_started(one.delay("next"))
    assert heard("permit_reclaimed") == [("permit_reclaimed", one.name, {"task_id": lost_run.id, "needs": NEEDS})]
    line = rf"reclaimed from task {one.name}\[{lost_run.id}\]: worker w1@test\S* is lost or cut off from the store"
    assert re.search(rf"Permit of limit {one.name} {line}, and the lease ended \d.* ago", caplog.text)


def test_reclaimed_by_the_reaper(throttle: ThrottleTest, heard: Any, lost_run: Any) -> None:
    (reclaimed,) = throttle.control.reap()
    assert reclaimed.task_id == lost_run.id
    assert heard("permit_reclaimed") == [("permit_reclaimed", one.name, {"task_id": lost_run.id, "needs": NEEDS})]
    assert throttle.control.limit(one).history().total.reclaimed == 1


def test_a_lost_lease(workers: Workers, journal: Journal) -> None:
    """A process that is frozen loses its lease."""
    workers.conf["throttle_lease"] = 1
    frozen = workers.start(TOLD, concurrency=1)
    app = workers.app(TOLD)
    first = journal.wait_begun(app.hold.delay("first"))
    frozen.freeze()
    workers.start(TOLD, concurrency=1, queues="other")
    journal.wait_begun(app.hold.apply_async(["next"], queue="other"))
    frozen.thaw()
    need = {"limit": app.hold.name, "key": None, "permits": 1}
    lost = {"task_id": first.id, "task_name": app.hold.name, "needs": [need]}
    heard = until(lambda: [each for each in journal.events() if each["event"] == "lease_lost"], timeout=20)
    assert [(each["sender"], each["what"]) for each in heard] == [(app.hold.name, lost)]
    journal.let_go("first", "next")


@pytest.mark.usefixtures("throttle_worker")
def test_duplicates_in_the_publisher_and_in_the_worker(throttle: ThrottleTest, heard: Any) -> None:
    with throttle.gate():
        first = begun(throttle, once.delay("a"))
        once.apply_async(["a"], task_id="here")
        elsewhere = APP.send_task(once.name, args=("a",))
        told = until(lambda: (found := heard("duplicate_dropped"))[1:] and found)
    # In any order: a publisher that has no answer in time leaves it to the worker.
    assert {(sender, what["task_id"], what["first_id"], what["verdict"]) for _, sender, what in told} == {
        (once.name, "here", first.id, "skip"),
        (once.name, elsewhere.id, first.id, "skip"),
    }


def test_change_is_signalled(throttle: ThrottleTest, heard: Any) -> None:
    limit = throttle.control.limit(one)
    limit.override(3, until=60, by="ana", why="big day")
    assert limit.reset(by="bob")
    assert not limit.reset(by="bob"), "which changes nothing"
    changed: dict[str, Any] = {"limit": one.name, "key": None, "why": "", "until": None, "permits": None, "rates": ()}
    assert [what for _, _, what in heard("limit_changed")] == [
        changed | {"action": "override", "permits": 3, "by": "ana", "why": "big day", "until": 60},
        changed | {"action": "reset", "by": "bob"},
    ]
