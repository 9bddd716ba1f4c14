"""Limits by key, several at once, rates, costs, turns and deadlines on real workers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from celery import chain, chord
from celery.exceptions import ChordError, TaskRevokedError

from celery_throttle import ThrottleControl
from celery_throttle.errors import ConfigurationError
from tests.support.journal import Journal, Run
from tests.support.state import State
from tests.support.waiting import until
from tests.support.workers import Workers

TERMS = "tests.support.apps.terms"
#: Only hints and replies of the store wake a worker, no look of its own.
NO_LOOK = {"LOOK_EVERY": "3600"}
#: How much later than its grant a task's body may begin on a machine that does something else, too: a child is given
#: its job through a pipe, and has to be scheduled.
LATE_BODY = 0.5


def used(state: State) -> dict[str, int]:
    return {limit.replace("[", "/").rstrip("]").removeprefix(f"{TERMS}."): count for limit, count in state.used.items()}


# -- by key ------------------------------------------------------------------------------------------------------------


def test_each_key_has_its_own_permits(workers: Workers, journal: Journal, state: State) -> None:
    """Whether it is an argument, a part of one, or the result of a function."""
    tasks = ("by_name", "by_path", "by_function")
    app = workers.start_app(TERMS, count=2, pool="threads", concurrency=12)
    for task in tasks:

        def argument(customer: str, task: str = task) -> Any:
            label = f"{task}/{customer}"
            return label if task == "by_name" else {"customer": label}

        for customer in ("acme", "init", "acme", "init", "globex"):
            getattr(app, task).delay(argument(customer))
        # A program without our header.
        app.app.send_task(f"{TERMS}.{task}", args=[argument("acme")])
        app.app.send_task(f"{TERMS}.{task}", args=[argument("hooli")])
    each = {f"{task}/{customer}" for task in tasks for customer in ("acme", "init", "globex", "hooli")}
    journal.wait_running(12)
    state.wait_parked(9)
    assert used(state) == {f"{label.partition('/')[0]}/{label}": 1 for label in each}
    journal.let_go("go")
    journal.wait_finished(21)
    of_each = {"acme": 3, "init": 2, "globex": 1, "hooli": 1}
    assert Counter(journal.order()) == {label: of_each[label.partition("/")[2]] for label in each}
    assert {journal.max_running(label) for label in each} == {1}
    state.wait_empty()


HOSTILE = ["*", "a\nb", "", " ", "\0", "a\x1fb", "\x01", "\x02", "äöü \N{SNOWMAN}", "x" * 10_000, None, Decimal("1.50")]


def test_hostile_keys(workers: Workers, journal: Journal, state: State) -> None:
    workers.start(TERMS, concurrency=len(HOSTILE))
    app = workers.app(TERMS)
    for key in HOSTILE * 2:
        app.by_name.delay(key)
    journal.wait_running(len(HOSTILE))
    state.wait_parked(len(HOSTILE))
    journal.let_go("go")
    journal.wait_finished(2 * len(HOSTILE))
    assert {journal.max_running(str(key)) for key in HOSTILE} == {1}
    state.wait_empty()


def test_a_key_that_cannot_be_found(workers: Workers, journal: Journal, state: State) -> None:
    app = workers.start_app(TERMS)
    with pytest.raises(ConfigurationError, match=r"by_path: key: .*order\.customer"):
        app.by_path.delay({"client": "acme"})
    for task, args, option in (
        ("by_name", [], "key: the call has no 'customer_id'"),
        ("by_path", [{"client": "acme"}], "key: the call has no 'order.customer'"),
        ("by_function", [{"client": "acme"}], "customer"),
        ("paced_pages", ["label", 0], "cost must be a whole number"),
        ("by_pages", ["label", "many"], "cost must be a whole number"),
    ):
        result = app.app.send_task(f"{TERMS}.{task}", args=args)
        error = result.get(propagate=False, timeout=20)
        assert result.state == "FAILURE"
        assert option in str(error)
        if task != "by_function":  # the function's own error helps
            assert isinstance(error, ConfigurationError)
            assert f"{TERMS}.{task}" in str(error)
    assert not journal.runs()
    state.wait_empty()


def test_a_retry_keeps_the_key_that_was_found_first(workers: Workers, journal: Journal, state: State) -> None:
    app = workers.start_app(TERMS, concurrency=4)
    result = journal.wait_begun(app.by_name_retried.delay("acme", "retry"))
    assert used(state) == {"by_name_retried/acme": 1}
    journal.let_go("retry")
    assert result.get(timeout=20) == "not acme"
    state.wait_empty()


# -- several -----------------------------------------------------------------------------------------------------------


def test_a_flooding_tenant_does_not_delay_others(workers: Workers, journal: Journal, state: State) -> None:
    # More slots than "api" has permits: without a free slot a task does not ask, and is not parked before it does.
    app = workers.start_app(TERMS, count=2, concurrency=9, env=NO_LOOK)
    for _ in range(60):
        app.both_hold.delay("flood", "flood")
    journal.wait_running(2)
    state.wait_parked(58)
    for tenant in ("a", "b", "c"):
        app.both_hold.delay(tenant)
        app.both_hold.delay(tenant)
    journal.wait_running(8)  # the flood keeps its two, and the others have the rest
    assert used(state) == {"api": 8, "tenant/flood": 2, "tenant/a": 2, "tenant/b": 2, "tenant/c": 2}
    app.both_hold.delay("d")
    state.wait_parked(59)
    journal.let_go("go")
    journal.wait_finished(7)
    assert len(journal.runs("flood")) == 2
    journal.let_go("flood")
    journal.wait_finished(67, timeout=40)
    assert journal.max_running("flood") == 2
    state.wait_empty()


# -- rates -------------------------------------------------------------------------------------------------------------


def assert_paced(runs: Sequence[Run], published: float, count: int, seconds: float, burst: int) -> None:
    """Check by the notes of the bodies that no start was too early.

    A body begins some time after the store has granted its start, so bodies can bunch up where grants did not. A
    window of bodies may have the grants in it and in the moment before. The n-th start of all has no such excuse:
    nothing makes it early.
    """
    starts = sorted(run.started for run in runs)
    for number, start in enumerate(starts):
        assert start >= published + (number + 1 - burst) * seconds / count - 0.001, f"start {number} came early"
        window = [other for other in starts if start <= other < start + seconds]
        assert len(window) <= count * (1 + LATE_BODY / seconds) + burst


def test_a_rate_over_two_workers(workers: Workers, journal: Journal, state: State) -> None:
    app = workers.start_app(TERMS, count=2, concurrency=2, env=NO_LOOK)
    published = time.monotonic()
    for number in range(103):
        app.paced.delay(f"n{number}")
    runs = journal.wait_finished(103, timeout=40)
    assert_paced(runs, published, 50, 1.0, 3)
    assert len({run.label for run in runs}) == 103
    assert len({run.worker for run in runs}) == 2
    state.wait_empty()


def test_revoked_and_expired_tasks_cost_no_start(workers: Workers, journal: Journal, state: State) -> None:
    app = workers.start_app(TERMS, concurrency=4, env=NO_LOOK)
    published = time.monotonic()
    # Before the third start is due, however long it takes to publish them.
    expires = datetime.now(timezone.utc) + timedelta(seconds=0.9)
    for label in ("first", "second"):
        app.seldom.delay(label)
    journal.wait_finished(2)
    revoked = [app.seldom.delay(f"revoked{number}") for number in range(3)]
    expired = [app.seldom.apply_async((f"expired{number}",), expires=expires) for number in range(12)]
    last = app.seldom.delay("last")
    app.app.control.revoke([result.id for result in revoked])
    assert last.get(timeout=20) == "last"
    took = journal.runs("last")[0].started - published
    # The third start of one a second with a burst of two; eleven more if the calls that never ran had counted.
    assert 0.999 <= took < 6.0
    workers.wait_discarded(*revoked)
    until(lambda: {result.state for result in (*revoked, *expired)} == {"REVOKED"})
    assert len(journal.runs()) == 3
    state.wait_empty()


def test_start_comes_due_while_its_worker_is_busy(workers: Workers, journal: Journal, state: State) -> None:
    workers.start(TERMS, concurrency=1, queues="celery,busy", env=NO_LOOK)
    conf = {"worker_prefetch_multiplier": 1}
    other = workers.start(TERMS, concurrency=1, queues="celery,other", env=NO_LOOK, conf=conf)
    app = workers.app(TERMS)
    for number in range(3):
        app.seldom.apply_async((f"before{number}",), queue="busy")
    journal.wait_finished(3)
    app.plain_hold.apply_async(("long",), queue="busy")
    for _ in range(2):
        app.plain_hold.apply_async(("short",), queue="other")
    journal.wait_running(2)
    # The other one takes nothing more from the broker, so the busy one parks these, and alone has their times.
    other.wait_for_log("received", times=2)
    for number in range(2):
        app.seldom.delay(f"due{number}")
    state.wait_parked(2)
    journal.let_go("short")
    journal.wait_finished(2, task="terms.plain_hold")
    journal.wait_finished(5, task="terms.seldom")
    assert journal.running("long")
    journal.let_go("long")
    journal.wait_finished(8)
    state.wait_empty()


# -- costs -------------------------------------------------------------------------------------------------------------


def test_costs(workers: Workers, journal: Journal, state: State) -> None:
    app = workers.start_app(TERMS, count=2, concurrency=4)
    app.by_pages.delay("pages", pages=2)
    app.by_pages.delay("default")
    journal.wait_running(2)
    assert used(state) == {"memory": 3}
    app.by_parts.delay("parts", [1, 2, 3])
    state.wait_parked(1)
    journal.let_go("pages")
    journal.wait_running(1, "parts")
    assert used(state) == {"memory": 4}
    journal.let_go("default", "parts")
    journal.wait_finished(3)
    state.wait_empty()


# -- turns -------------------------------------------------------------------------------------------------------------


def test_tenants_take_turns(workers: Workers, journal: Journal, state: State) -> None:
    app = workers.start_app(TERMS, count=2, concurrency=2)
    journal.wait_begun(app.in_turns.delay("first", "first"))
    for _ in range(20):
        app.in_turns.delay("flood")
    state.wait_parked(20)
    for _ in range(5):
        app.in_turns.delay("other")
    state.wait_parked(25)
    journal.let_go("first")
    journal.wait_finished(26)
    order = journal.order()[1:]
    # One of each in each round, until the other one's are through.
    assert [Counter(order[place : place + 2]) for place in range(0, 10, 2)] == [{"flood": 1, "other": 1}] * 5
    assert order[10:] == ["flood"] * 15
    state.wait_empty()


# -- as long as may be -------------------------------------------------------------------------------------------------


def test_a_start_deadline(workers: Workers, journal: Journal, state: State) -> None:
    app = workers.start_app(TERMS, concurrency=4, options=["-E"])
    revoked: list[dict[str, Any]] = []
    with app.app.connection_for_read() as own:
        receiver = app.app.events.Receiver(own, handlers={"task-revoked": revoked.append})
        with receiver.consumer_context() as (connection, _, _):
            journal.wait_begun(app.patient.delay("hold"))
            late = app.hurried.apply_async(("late",), link_error=app.on_error.s())
            whole = chord([app.hurried.s("part"), app.plain.s("other part")], app.collect.s())()
            in_time = app.in_time.delay("in time")

            def heard() -> bool:
                with suppress(TimeoutError):
                    connection.drain_events(timeout=0.1)
                return len(revoked) == 2

            until(heard, timeout=20)
    assert {event["expired"] for event in revoked} == {True}
    with pytest.raises(TaskRevokedError, match="expired"):
        late.get(timeout=10)
    assert late.state == "REVOKED"
    assert isinstance(whole.get(propagate=False, timeout=10), ChordError)
    assert not journal.runs("in time")
    # As one that Celery itself finds to have expired.
    soon = datetime.now(timezone.utc) + timedelta(seconds=0.3)
    other = chord([app.in_time.s("expires").set(expires=soon), app.plain.s("third part")], app.collect.s())()
    state.wait_parked(2)
    until(lambda: datetime.now(timezone.utc) > soon)
    journal.let_go("hold")
    assert isinstance(other.get(propagate=False, timeout=10), ChordError)
    assert in_time.get(timeout=10) == "in time"
    assert app.hurried.delay("at once").get(timeout=10) == "at once"
    assert not journal.runs("late")
    assert not journal.runs("part")
    assert not journal.runs("expires")
    assert not journal.runs("collect")
    assert not journal.runs("on_error"), "nor does Celery call it for tasks that expire"
    state.wait_empty()


def test_a_start_deadline_holds_while_a_task_waits_for_its_lock(
    workers: Workers, journal: Journal, state: State
) -> None:
    app = workers.start_app(TERMS, concurrency=4)
    journal.wait_begun(app.hurried_once.delay("hold"))
    late = app.app.send_task(f"{TERMS}.hurried_once", args=["late"])
    with pytest.raises(TaskRevokedError, match="expired"):
        late.get(timeout=20)
    assert journal.running("hold")
    journal.let_go("hold")
    journal.wait_finished(1)
    assert not journal.runs("late")
    state.wait_empty()


# -- as many as may be -------------------------------------------------------------------------------------------------


def test_unparkable_task_stays_in_the_broker(workers: Workers, journal: Journal, state: State) -> None:
    worker = workers.start(TERMS, concurrency=2)
    app = workers.app(TERMS)
    journal.wait_begun(app.few_wait.delay("hold", hold=True))
    for number in range(10):
        # By name: `delay` would refuse those that may not wait.
        app.app.send_task(app.few_wait.name, (f"n{number}",))
    state.wait_parked(2)
    app.plain.delay("meanwhile")
    journal.wait_finished(1, "meanwhile")
    assert state.count == 2
    # The worker stops, and the next one gets the rest from the broker.
    worker.term()
    journal.let_go("hold")
    assert worker.wait() == 0
    workers.start(TERMS, concurrency=2)
    journal.wait_finished(12, timeout=60)
    assert Counter(journal.order()) == Counter(["hold", "meanwhile", *(f"n{number}" for number in range(10))])
    assert journal.max_running(task="few_wait") == 1
    state.wait_empty()


# -- declarations ------------------------------------------------------------------------------------------------------


def test_two_workers_that_declare_a_limit_differently(workers: Workers, journal: Journal, state: State) -> None:
    workers.start(TERMS, concurrency=6)
    name = f"{TERMS}.by_name"
    second = workers.start(TERMS, concurrency=6, conf={"task_annotations": {name: {"limit": 3}}})
    second.wait_for_log(rf"limit '{name}' was declared as 1 .*3 ")
    app = workers.app(TERMS)
    for _ in range(5):
        app.by_name.delay("acme")
    journal.wait_running(3)
    state.wait_parked(2)
    third = workers.start(TERMS, conf={"task_annotations": {f"{TERMS}.paced": {"rate": "60/s"}, name: {"limit": 3}}})
    third.wait_for_log(rf"limit '{TERMS}.paced' was declared as 50/s \(burst 3\) .*60/s \(burst 3\)")
    journal.let_go("go")
    journal.wait_finished(5)
    assert journal.max_running() == 3
    state.wait_empty()


def test_report_names_the_workers_that_declare_differently(workers: Workers) -> None:
    """Also a worker between two others that agree, and none that has left."""
    name = f"{TERMS}.by_name"
    other = {"task_annotations": {name: {"limit": 3}}}
    started = [workers.start(TERMS, conf=conf) for conf in (None, other, None)]
    throttle = ThrottleControl(workers.app(TERMS).app)

    def differing() -> list[str]:
        return [each.what for each in throttle.report().alarms if (each.kind, each.limit) == ("declared", name)]

    (found,) = until(differing)
    assert found.startswith(f"Workers declare limit {name} differently: 1 on ")
    before, _, after = found.partition(", 3 on ")
    assert [each.name + "@" in after for each in started] == [False, True, False]
    assert [each.name + "@" in before for each in started] == [True, False, True]
    started[1].term()
    started[1].wait()
    until(lambda: not differing())


# -- together with the rest --------------------------------------------------------------------------------------------


def test_with_an_identity_lock(workers: Workers, journal: Journal, state: State) -> None:
    app = workers.start_app(TERMS, count=2, concurrency=4)
    first = journal.wait_begun(app.both_once.delay("acme", "first"))
    assert app.both_once.delay("acme", "first").id == first.id
    same = app.app.send_task(f"{TERMS}.both_once", args=["acme", "first"])
    app.both_once.delay("acme", "second")
    journal.wait_running(2)
    app.both_once.delay("acme", "third")
    state.wait_parked(2)
    assert used(state) == {"api": 2, "tenant/acme": 2}
    journal.let_go("first", "second", "third")
    assert same.get(timeout=20) == "acme"
    journal.wait_finished(3)
    assert len(journal.runs()) == 3
    state.wait_empty()


def test_in_canvases_and_with_a_countdown(workers: Workers, journal: Journal, state: State) -> None:
    app = workers.start_app(TERMS, count=2, concurrency=4)
    parts = [app.both.s(f"t{number % 3}", 0.01) for number in range(30)]
    total = chord(parts, app.collect.s())()
    # Of the second one, the key is known only when the first has ended.
    line = chain(app.plain.s("t0"), app.both.s(0.01), app.both.s(), app.paced_each.s()).apply_async()
    later = [app.both.apply_async(("t1", 0.01), countdown=0.3) for _ in range(5)]
    assert total.get(timeout=40) == sorted(["t0", "t1", "t2"] * 10)
    assert line.get(timeout=20) == "t0"
    assert [result.get(timeout=20) for result in later] == ["t1"] * 5
    assert max(journal.max_running(f"t{number}", task="terms.both") for number in range(3)) <= 2
    state.wait_empty()


@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_pools(pool: str, workers: Workers, journal: Journal, state: State) -> None:
    app = workers.start_app(TERMS, count=2, pool=pool, concurrency=1 if pool == "solo" else 6, env=NO_LOOK)
    published = time.monotonic()
    for number in range(30):
        app.both.delay(f"t{number % 3}", 0.02)
        app.paced_two.delay(f"paced{number}")
    journal.wait_finished(60, timeout=60)
    assert max(journal.max_running(f"t{number}") for number in range(3)) <= 2
    assert journal.max_running(task="paced_two") <= 2
    assert_paced(journal.runs(task="paced_two"), published, 50, 1.0, 1)
    state.wait_empty()
