"""Limits by key, several at once and over queues, rates, costs and deadlines in workers."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from celery import chain, chord, group
from celery.exceptions import ChordError

from celery_throttle import ConfigurationError, Limit, LimitExceeded, ThrottleControl, Throttled
from celery_throttle.testing import ThrottleTest
from tests.support.journal import Journal
from tests.support.kit import new_app, task_maker
from tests.support.monitor import Monitor
from tests.support.state import State
from tests.support.waiting import HANGS_AFTER, until
from tests.support.workers import Workers

TERMS = "tests.support.apps.terms"
#: Only hints and replies of the store wake a worker, no look of its own.
NO_LOOK = {"LOOK_EVERY": "3600"}
#: How much later than its grant a task's body may begin on a machine that does something else, too: a thread or a child
#: has to be scheduled.
LATE_BODY = 0.5

app: Any = new_app("limits")
several = [Limit("api", 3), Limit("tenant", 2, key="tenant_id")]
gpu, slot = Limit("gpu", 2), Limit("slot", 1)
#: The times of the starts of paced tasks.
starts: list[float] = []


@pytest.fixture
def throttle_celery_app(hints_only: None) -> Any:  # noqa: ARG001
    starts.clear()
    return app


def customer_of(order: dict[str, str], **_: Any) -> str:
    return order["customer"].lower()


def of_customer(customer_id: Any) -> str:
    return str(customer_id)


def of_order(order: dict[str, str]) -> None: ...


def of_label(label: str = "", pages: int = 1) -> str:  # noqa: ARG001 - the cost
    starts.append(time.monotonic())
    return label


def of_tenant(tenant_id: str, name: str = "") -> str:  # noqa: ARG001 - of its identity
    return tenant_id


def with_another_customer(self: Any, customer_id: str) -> str:
    if not self.request.retries:
        raise self.retry(args=(f"not {customer_id}",), countdown=0)
    return customer_id


def sort(labels: list[str]) -> list[str]:
    return sorted(labels)


def of_errback(*_: Any) -> None: ...


make = task_maker(app)
plain, long = make("plain", of_label), make("long", of_label)
collect = make("collect", sort)
on_error = make("on_error", of_errback)
train, predict = (make(name, base=Throttled, limit=gpu) for name in ("train", "predict"))
by_name = make("by_name", of_customer, base=Throttled, limit=1, key="customer_id")
by_path = make("by_path", of_order, base=Throttled, limit=1, key="order.customer")
by_function = make("by_function", of_order, base=Throttled, limit=1, key=customer_of)
retried = make("retried", with_another_customer, base=Throttled, limit=1, key="customer_id", bind=True, max_retries=1)
both = make("both", of_tenant, base=Throttled, limit=several)
both_once = make("both_once", of_tenant, base=Throttled, limit=several, singleton=True)
paced = make("paced", of_label, base=Throttled, rate="50/s", burst=3)
paced_each = make("paced_each", of_label, base=Throttled, rate="20/s", key="label")
paced_pages = make("paced_pages", of_label, base=Throttled, rate="50/s", burst=4, cost="pages")
seldom = make("seldom", of_label, base=Throttled, rate="1/h", burst=2)
second = make("second", of_label, base=Throttled, rate="1/s")
by_pages = make("by_pages", of_label, base=Throttled, limit=4, cost="pages")
hurried = make("hurried", of_label, base=Throttled, limit=slot, start_deadline=60)
patient = make("patient", of_label, base=Throttled, limit=slot, start_deadline=3600)
once = make("once", of_label, base=Throttled, limit=9, start_deadline=60, singleton=True, unique_on=[])
few_wait = make("few_wait", of_label, base=Throttled, limit=Limit("few", 1, max_parked=2))


# -- over queues and workers -------------------------------------------------------------------------------------------


def test_a_shared_limit_is_first_come_first_served_over_queues(throttle: ThrottleTest) -> None:
    """Each start is in the other worker than the end before, so that worker gets a hint."""
    with throttle.run_worker(queues=["first"]), throttle.run_worker(queues=["second"]):
        with throttle.gate() as gate:
            for place, queue in enumerate(["first", "second"]):
                train.apply_async(("",), queue=queue)
                gate.wait_for(place + 1)
            line: list[Any] = []
            for place, queue in enumerate(["second", "first", "first", "second", "second", "first"]):
                line.append((train, predict)[place % 2].apply_async(("",), queue=queue))
                throttle.assert_line(gpu, line)
            while line:
                gate.open(1)
                throttle.assert_started(line.pop(0))
                throttle.assert_line(gpu, line)
        throttle.drain()
        throttle.assert_most_at_once(gpu, 2)


def test_tasks_that_wait_for_a_slot_are_in_line_before_later_ones(throttle: ThrottleTest) -> None:
    """One worker has more than its slots when another one takes the last permit, and parks a later task."""
    with throttle.run_worker(queues=["first"], concurrency=1), throttle.run_worker(queues=["second"]):
        with throttle.gate() as gate:
            line = [train.apply_async(("",), queue="first") for _ in range(4)][1:]
            gate.wait_for(1)
            predict.apply_async(("",), queue="second")
            gate.wait_for(2)
            line.append(predict.apply_async(("",), queue="second"))
            throttle.assert_line(gpu, line)
        throttle.drain()


def test_a_queue_without_workers_does_not_hold_up_the_others(throttle: ThrottleTest) -> None:
    """It goes on when a worker comes that has it, or gets it."""
    with throttle.run_worker(queues=["first"]) as worker:
        with throttle.hold(gpu), throttle.run_worker(queues=["second"]):
            line = [train.apply_async(("",), queue="second")]
            throttle.assert_line(gpu, line)
            line += [train.apply_async(("",), queue="first") for _ in range(3)]
            throttle.assert_line(gpu, line)
        line.append(train.apply_async(("",), queue="first"))  # its worker asks, and hears when to look again
        left, *others = line
        for each in others:
            throttle.assert_started(each)
        throttle.assert_line(gpu, [left])
        with throttle.run_worker(queues=["second"]):
            throttle.assert_started(left)
            throttle.assert_held(gpu, 0)
            with throttle.hold(gpu):
                left = train.apply_async(("",), queue="second")
                throttle.assert_parked(left)
        app.control.add_consumer("second", destination=[worker.node], reply=True, timeout=HANGS_AFTER)
        throttle.assert_started(left)
        throttle.assert_started(train.apply_async(("",), queue="second"))

        app.control.cancel_consumer("second", destination=[worker.node], reply=True, timeout=HANGS_AFTER)
        throttle.assert_started(train.apply_async(("",), queue="first"))


def test_two_workers_that_declare_a_limit_differently(workers: Workers, journal: Journal, state: State) -> None:
    """The newest declaration holds, also for the tasks that wait."""
    app = workers.start_app(TERMS, concurrency=6, env=NO_LOOK)
    name = f"{TERMS}.by_name"
    for _ in range(5):
        app.by_name.delay("acme")
    journal.wait_running(1)
    state.wait_parked(4)
    annotations = {name: {"limit": 3}, f"{TERMS}.paced": {"rate": "60/s"}}
    other = workers.start(TERMS, concurrency=6, env=NO_LOOK, conf={"task_annotations": annotations})
    other.wait_for_log(rf"limit '{name}' was declared as 1 .*3 ")
    other.wait_for_log(rf"limit '{TERMS}.paced' was declared as 50/s \(burst 3\) .*60/s \(burst 3\)")
    control = ThrottleControl(app.app)
    told = until(
        lambda: [each.what for each in control.report().alarms if (each.kind, each.limit) == ("declared", name)]
    )
    assert re.match(rf"Workers declare limit {name} differently: 1 on \S+, 3 on \S*{other.name}@", told[0])
    journal.wait_running(3)
    state.wait_parked(2)
    journal.let_go("go")
    journal.wait_finished(5)
    assert journal.max_running() == 3
    state.wait_empty()


# -- by key ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limited", "acme", "init"),
    [
        (by_name, "acme", "init"),
        (by_path, {"customer": "acme"}, {"customer": "init"}),
        (by_function, {"customer": "ACME"}, {"customer": "Init"}),
    ],
    ids=["by_name", "by_path", "by_function"],
)
def test_each_key_has_its_own_permits(kit: ThrottleTest, limited: Any, acme: object, init: object) -> None:
    """Whether it is an argument, a part of one, or the result of a function."""
    with kit.gate() as gate:
        limited.delay(acme)
        app.send_task(limited.name, [init])  # as a program without our header
        gate.wait_for(2)
        line = [limited.delay(acme)]
        kit.assert_line(limited, line, key="acme")
        line.append(app.send_task(limited.name, [acme]))
        kit.assert_line(limited, line, key="acme")
        for key in ("acme", "init"):
            kit.assert_held(limited, 1, key=key)
    kit.drain()
    kit.assert_most_at_once(limited, 1)


HOSTILE = ["*", "a\nb", "", " ", "\0", "a\x1fb", "\x01", "\x02", "äöü \N{SNOWMAN}", "x" * 10_000, None, Decimal("1.50")]


@pytest.mark.throttle_worker(concurrency=len(HOSTILE) + 1)
def test_hostile_keys(kit: ThrottleTest) -> None:
    with kit.gate() as gate:
        for key in HOSTILE:
            by_name.delay(key)
        gate.wait_for(len(HOSTILE))
        for waits in [by_name.delay(key) for key in HOSTILE]:
            kit.assert_parked(waits)
    assert len(kit.drain().succeeded) == 2 * len(HOSTILE)
    kit.assert_most_at_once(by_name, 1)


@pytest.mark.parametrize(
    ("task", "args", "why"),
    [
        (by_name, [], r"by_name: key: the call has no 'customer_id'"),
        (by_path, [{"client": "acme"}], r"by_path: key: the call has no 'order\.customer'"),
        (by_function, [{"client": "acme"}], "by_function: the function given as key raised KeyError: 'customer'"),
        (paced_pages, ["label", 0], "paced_pages.* cost must be a whole number"),
        (by_pages, ["label", "many"], "by_pages.* cost must be a whole number"),
    ],
)
def test_a_key_or_cost_that_cannot_be_found(kit: ThrottleTest, task: Any, args: list[Any], why: str) -> None:
    """To the caller, or as the result where a program without the library has sent it."""
    with pytest.raises(ConfigurationError, match=why):
        app.send_task(task.name, args).get(timeout=HANGS_AFTER)
    kit.assert_ran(task, times=0)
    if task is not by_name:  # this call Python refuses
        with pytest.raises(ConfigurationError, match=why):
            task.delay(*args)


def test_a_retry_keeps_the_key_that_was_found_first(kit: ThrottleTest) -> None:
    with kit.gate() as gate:
        result = retried.delay("acme")
        for attempt in ("first", "second"):
            gate.wait_for(1)
            kit.assert_held(retried, 1, key="acme")
            gate.open(1 if attempt == "first" else 0)
    assert result.get(timeout=HANGS_AFTER) == "not acme"


# -- several -----------------------------------------------------------------------------------------------------------


def test_with_an_identity_lock(kit: ThrottleTest) -> None:
    with kit.gate() as gate:
        first = both_once.delay("acme", "first")
        gate.wait_for(1)
        assert both_once.delay("acme", "first").id == first.id
        same = app.send_task(both_once.name, ["acme", "first"])
        both_once.delay("acme", "second")
        kit.assert_parked(both_once.delay("acme", "third"), behind="tenant", key="acme")
        kit.assert_duplicate(same, of=first)
        kit.assert_held("api", 2)
        kit.assert_held("tenant", 2, key="acme")
        kit.assert_started(both.delay("other"))
    assert same.get(timeout=HANGS_AFTER) == "acme"
    kit.assert_ran(both_once, times=3)


def test_in_canvases_and_with_a_countdown(throttle: ThrottleTest) -> None:
    with throttle.run_worker(), throttle.run_worker():
        total = chord([both.s(f"t{number % 3}") for number in range(30)], collect.s())()
        # Of the second one, the key is known only when the first has ended.
        line = chain(plain.s("t0"), both.s(), both.s(), paced_each.s()).apply_async()
        # A chord within a chain.
        nested = chain(group(both.s("left"), both.s("right")), collect.s(), by_pages.si("end")).apply_async()
        later = [both.apply_async(("t1",), countdown=0.3) for _ in range(5)]
        assert total.get(timeout=HANGS_AFTER) == sorted(["t0", "t1", "t2"] * 10)
        assert line.get(timeout=HANGS_AFTER) == "t0"
        assert nested.get(timeout=HANGS_AFTER) == "end"
        assert [result.get(timeout=HANGS_AFTER) for result in later] == ["t1"] * 5
        throttle.drain()
        throttle.assert_most_at_once("tenant", 2, at_most=True)


# -- rates and costs ---------------------------------------------------------------------------------------------------


def assert_paced(begun: Sequence[float], published: float, count: int, seconds: float, burst: int) -> None:
    """Check by the notes of the bodies that no start was too early.

    A body begins some time after the store has granted its start, so bodies can bunch up where grants did not. A
    window of bodies may have the grants in it and in the moment before. The n-th start of all has no such excuse:
    nothing makes it early.
    """
    begun = sorted(begun)
    for number, start in enumerate(begun):
        assert start >= published + (number + 1 - burst) * seconds / count - 0.001, f"start {number} came early"
        window = [other for other in begun if start <= other < start + seconds]
        assert len(window) <= count * (1 + LATE_BODY / seconds) + burst


def test_a_rate_over_two_workers(throttle: ThrottleTest) -> None:
    """By the real clock: the workers know when to start the next ones."""
    with throttle.run_worker(queues=["first"]), throttle.run_worker(queues=["second"]):
        published = time.monotonic()
        results = [paced.apply_async(queue=("first", "second")[number % 2]) for number in range(103)]
        assert [result.get(timeout=HANGS_AFTER) for result in results] == [""] * 103
    assert len(starts) == 103
    assert_paced(starts, published, 50, 1.0, 3)


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_a_rate_in_other_pools(pool: str, workers: Workers, journal: Journal, state: State) -> None:
    """With the lines of the log for people."""
    app = workers.start_app(TERMS, count=2, pool=pool, concurrency=1 if pool == "solo" else 6, env=NO_LOOK)

    def wait_for_line(pattern: str) -> None:
        line = rf"INFO/MainProcess\] Task {TERMS}\.both\[\S+\] {pattern}"
        until(lambda: any(re.search(line, worker.log()) for worker in workers.started))

    limit = state.limit("api")
    limit.pause()  # else it may have started before its worker asks the store for its place
    app.both.delay("t0", 0.02)
    wait_for_line(r"parked: place 1 in the line of \S+")
    limit.resume()
    wait_for_line(r"resumed after \d+(\.\d)? s")
    journal.wait_finished(1)

    published = time.monotonic()
    for number in range(30):
        app.both.delay(f"t{number % 3}", 0.02)
        app.paced_two.delay(f"paced{number}")
    journal.wait_finished(61)
    assert max(journal.max_running(f"t{number}") for number in range(3)) <= 2
    assert journal.max_running(task="paced_two") <= 2
    assert_paced([run.started for run in journal.runs(task="paced_two")], published, 50, 1.0, 1)
    state.wait_empty()


def test_revoked_and_expired_tasks_cost_no_start(kit: ThrottleTest) -> None:
    for _ in range(2):
        kit.assert_started(seldom.delay())
    soon = datetime.now(timezone.utc) + timedelta(seconds=0.5)
    expired = [seldom.apply_async(expires=soon) for _ in range(3)]
    revoked = [seldom.delay() for _ in range(3)]
    last = [seldom.delay(label) for label in "ab"]
    kit.assert_parked(last[1])
    app.control.revoke([result.id for result in revoked])
    until(lambda: not any(kit.control.explain(each).place for each in revoked))  # a worker looks once a second
    until(lambda: datetime.now(timezone.utc) > soon)
    kit.advance(7200)  # two more starts
    assert [result.get(timeout=HANGS_AFTER) for result in last] == ["a", "b"]
    until(lambda: {result.state for result in (*revoked, *expired)} == {"REVOKED"})
    assert len(starts) == 4


@pytest.mark.throttle(worker_prefetch_multiplier=1)
def test_start_comes_due_while_its_worker_is_busy(throttle: ThrottleTest) -> None:
    """By the real clock. The worker that parked the tasks has no slot, so the other has to start them."""
    busy = throttle.run_worker(concurrency=1, queues=["celery", "busy"])
    other = throttle.run_worker(concurrency=1, queues=["celery", "other"])
    with busy, other as full, throttle.gate(plain) as shorts, throttle.gate(long) as longs:
        for _ in range(2):
            plain.apply_async(queue="other")
        until(lambda: not full.takes_messages)  # so the busy one parks these, and alone has their times
        throttle.assert_started(second.apply_async(queue="busy"))
        held = long.apply_async(queue="busy")
        longs.wait_for(1)
        due = [second.delay() for _ in range(2)]
        for each in due:
            throttle.assert_parked(each)
        shorts.open()
        for each in due:
            each.get(timeout=HANGS_AFTER)
        assert longs.waiting == (held.id,)


# -- as long and as many as may be -------------------------------------------------------------------------------------


@pytest.mark.throttle(worker_send_task_events=True)
def test_a_start_deadline(throttle: ThrottleTest) -> None:
    """It ends the task as Celery's own ``expires`` does, with its event, and the chord of a part."""
    with Monitor(app) as monitor, throttle.run_worker():
        with throttle.hold(slot):
            late = hurried.apply_async(link_error=on_error.s())
            whole: Any = chord([hurried.s("part"), plain.s("other part")], collect.s())()
            in_time = patient.delay("in time")
            for each in (late, whole.parent.results[0], in_time):
                throttle.assert_parked(each, behind=slot)
            throttle.advance(61)
            throttle.assert_dropped(late, "expired")
            throttle.assert_parked(in_time, place=1)
            soon = datetime.now(timezone.utc) + timedelta(seconds=0.3)
            other = chord([patient.s("expires").set(expires=soon), plain.s("third part")], collect.s())()
            until(lambda: datetime.now(timezone.utc) > soon)
        for each in (whole, other):
            assert isinstance(each.get(propagate=False, timeout=HANGS_AFTER), ChordError)
        assert hurried.delay("at once").get(timeout=HANGS_AFTER) == "at once"
        assert in_time.get(timeout=HANGS_AFTER) == "in time"
        for task, times in ((hurried, 1), (patient, 1), (collect, 0), (on_error, 0)):
            throttle.assert_ran(task, times=times)  # nor does Celery call an errback of tasks that expire
        monitor.wait_for(late.id, "task-revoked")
    (revoked,) = [each for each in monitor.seen if each["type"] == "task-revoked" and each["uuid"] == late.id]
    assert revoked["expired"] is True


def test_a_start_deadline_holds_while_a_task_waits_for_its_lock(kit: ThrottleTest) -> None:
    with kit.gate() as gate:
        runs = once.delay()
        gate.wait_for(1)
        late = app.send_task(once.name)
        kit.assert_duplicate(late, of=runs)
        kit.advance(61)
        kit.assert_dropped(late, "expired")
        assert gate.waiting == (runs.id,)


def test_no_more_are_published_and_parked_than_may_wait(throttle: ThrottleTest) -> None:
    """Tasks that are sent by name stay in the broker; without a store a call is still published."""
    with throttle.cut_store():
        unchecked = few_wait.delay("unchecked")
    with throttle.run_worker(concurrency=2):
        assert unchecked.get(timeout=HANGS_AFTER) == "unchecked"
        throttle.assert_held("few", 0)
        with throttle.hold("few"):
            throttle.assert_line("few", [few_wait.delay(), few_wait.delay()])
            with pytest.raises(
                LimitExceeded, match="few_wait was not published: limit 'few' has 2 parked tasks, max_parked=2"
            ) as refused:
                few_wait.delay()
            assert (refused.value.parked, refused.value.most, refused.value.limit) == (2, 2, "few")
            for _ in range(8):
                app.send_task(few_wait.name)
            assert plain.delay("meanwhile").get(timeout=HANGS_AFTER) == "meanwhile"
            throttle.settle()
            assert throttle.control.limit("few").status().parked == 2
            throttle.assert_ran(few_wait, times=1)
    # The worker has stopped, and the next one gets the rest from the broker.
    with throttle.run_worker(concurrency=2):
        throttle.assert_ran(few_wait, times=11, within=30)
        throttle.drain()
        few_wait.delay().get(timeout=HANGS_AFTER)
        throttle.assert_most_at_once("few", 1)
