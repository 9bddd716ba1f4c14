"""Workers of two releases: options that differ are reported, and a lock is honoured by what its message has."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from celery import group
from celery.signals import before_task_publish

from celery_throttle import ThrottleControl
from tests.support.journal import Journal
from tests.support.state import State
from tests.support.waiting import until
from tests.support.workers import LONG_LEASE, Workers

RELEASES = "tests.support.apps.releases"
QUICKLY = 15.0


def release(**tasks: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a release in which these tasks have other options."""
    return {"task_annotations": {f"{RELEASES}.{name}": options for name, options in tasks.items()}}


def test_options_that_differ_are_reported(workers: Workers) -> None:
    """Each with the workers that have it; the numbers of limits are compared beside them."""
    app = workers.start_app(RELEASES, pool="threads")
    newer = release(pay={"singleton": False}, pay_one={"key": "label", "unique_on": ["label"]})
    workers.start(RELEASES, pool="threads", conf=newer | {"throttle_lease": 30}, env={"RELEASE": "other"})
    control = ThrottleControl(app.app)

    def said() -> list[str]:
        report = control.report()
        found = [each for each in report.alarms + report.remarks if each.kind == "declared"]
        told = [f"{'!' if each.alarm else '-'} {each.what.partition(' ')[2]}" for each in found]
        return [re.sub(r"(w\d)@[^ ,.]+|\(code \w{8}, Python [0-9.]+\)", r"\1", each) for each in told]

    here, function = "w1 and this code", f"{RELEASES}.<lambda> "
    told = until(said)
    by_function = next(each for each in told if " keyed " in each)  # in the order of the hashes
    assert f"{function} on w2" in by_function
    assert f"{function} on {here}" in by_function
    assert set(told) - {by_function} == {
        f"! declare limit {RELEASES}.pay_one differently: key is 'label' on w2, not set on {here}.",
        f"! declare task {RELEASES}.pay differently: singleton is True on {here}, not set on w2.",
        f"! declare task {RELEASES}.pay_one differently: unique_on is ['label'] on w2, not set on {here}.",
        f"- have the settings of app releases differently: throttle_lease is 30.0 on w2, {LONG_LEASE:.1f} on w1.",
    }


# -- the lock of a message ---------------------------------------------------------------------------------------------

TASKS = ("pay", "pay_one", "pay_again")


def of_all(**options: Any) -> dict[str, Any]:
    return release(**dict.fromkeys(TASKS, options))


#: What differs in the release of the worker, by its name: settings, and variables of the environment.
OTHERS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "no singleton": (of_all(singleton=False), {}),
    "no limit and no singleton": (of_all(singleton=False, limit=None), {}),
    "another identity": (of_all(unique_on=["amount"]), {}),
    "another group": ({"throttle_group": "eu"}, {}),
    "throttling off": ({"throttle_enabled": False}, {}),
    "task renamed": ({}, {"RELEASE": "renamed"}),
    "nothing throttled": ({}, {"RELEASE": "plain"}),
}


@pytest.mark.parametrize("other", OTHERS)
def test_worker_of_another_release_frees_the_lock_of_a_message(workers: Workers, state: State, other: str) -> None:
    """Else the next calls would be swallowed for a day."""
    conf, env = OTHERS[other]
    workers.start(RELEASES, pool="threads", conf=conf, env=env)
    app = workers.app(RELEASES)
    for task in (app.pay, app.pay_one, app.pay_again):
        first = task.delay("a")
        assert task.delay("b").id != first.id
        first.get(timeout=QUICKLY, propagate=False)
        until(lambda task=task: task.locked_by("a") is None)  # type: ignore[misc]
        assert task.delay("a").id != first.id
    state.wait_empty()


#: How the headers of a message can be wrong, so that Celery runs no task of it.
BROKEN: dict[str, Callable[[dict[str, Any]], Any]] = {
    "unknown task": lambda headers: headers.update(task=f"{RELEASES}.gone"),
    "no task": lambda headers: headers.pop("task"),
    "malformed eta": lambda headers: headers.update(eta="soon"),
    "malformed expires": lambda headers: headers.update(expires="soon"),
}


@pytest.mark.parametrize("env", [{}, {"RELEASE": "plain"}], ids=["gate", "nothing throttled"])
def test_message_that_celery_does_not_take_frees_its_lock(workers: Workers, state: State, env: dict[str, str]) -> None:
    """Whether it rejects the message as malformed, or does not know its task."""
    app = workers.app(RELEASES)
    first: dict[str, str] = {}
    for how, spoil in BROKEN.items():

        def on_publish(headers: dict[str, Any], spoil: Any = spoil, **_: Any) -> None:
            spoil(headers)

        before_task_publish.connect(on_publish)
        first[how] = app.pay.delay(how).id
        before_task_publish.disconnect(on_publish)
        assert app.pay.delay(how).id == first[how]
    workers.start(RELEASES, pool="threads", env=env)
    until(lambda: not state.throttle.locks(), describe=lambda: [str(each) for each in state.throttle.locks()])
    for how in BROKEN:
        again = app.pay.delay(how)
        assert again.id != first[how]
        assert again.get(timeout=QUICKLY) == how
    state.wait_empty()


def test_lock_of_a_message_is_honoured_by_a_worker_without_it(workers: Workers, journal: Journal) -> None:
    """A duplicate by name waits for the first, and gets its outcome, although the task is no singleton there."""
    workers.start(RELEASES, pool="threads", concurrency=4, conf=release(hold={"singleton": False}))
    app = workers.app(RELEASES)
    first = app.hold.delay("a")
    journal.wait_begun(first)
    locked = app.hold.locked_by("a")
    assert (locked.task_id, locked.state) == (first.id, "running")
    awaited = group(app.hold.s("a")).delay()  # a canvas publishes a duplicate, which waits
    journal.let_go("a")
    assert first.get(timeout=QUICKLY) == "a"
    assert awaited.get(timeout=QUICKLY) == ["a"]
    assert len(journal.runs("a")) == 1


def test_lock_that_a_worker_without_the_library_leaves_is_reported(workers: Workers, state: State) -> None:
    """With the command that frees it."""
    workers.start(RELEASES, pool="threads", env={"RELEASE": "without"})
    app = workers.app(RELEASES)
    first = app.pay.delay("a")
    waits = app.hold.apply_async(("b",), countdown=3600)
    assert first.get(timeout=QUICKLY) == "a"
    assert app.pay.delay("a").id == first.id
    (found,) = [each for each in ThrottleControl(app.app).report().alarms if each.kind == "lock-left"]
    assert found.what.endswith(f"has ended, so calls with its arguments are dropped: {first.id}.")
    locks = {each.task_id: each.identity for each in state.throttle.locks()}
    assert found.do == (f"celery -A proj throttle unlock --identity={locks[first.id]}",)
    assert waits.id in locks
