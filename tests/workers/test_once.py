"""Tasks that run once, in two workers: `singleton=True` and its options."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from threading import Event
from typing import Any

import pytest
from celery import chain, chord, group
from celery.app.backends import by_url
from celery.backends.base import DisabledBackend
from celery.exceptions import ChordError, TaskRevokedError
from celery.result import AsyncResult
from celery.utils import uuid
from kombu.exceptions import EncodeError

from celery_throttle import DuplicateTask, LimitExceeded, Throttled
from celery_throttle.testing import ThrottleTest, assert_needs
from tests.support.journal import Journal
from tests.support.kit import assert_all_ended, begun, new_app, task_maker
from tests.support.state import State
from tests.support.waiting import HANGS_AFTER, until
from tests.support.workers import Workers
from tests.workers.conftest import ONCE

#: Lets a task end that has replaced itself.
may_end = Event()

# -- the app -----------------------------------------------------------------------------------------------------------

APP = new_app("once")
make_task = task_maker(APP)
make_singleton = partial(make_task, base=Throttled, singleton=True)


def fail_if_asked(label: str) -> str:
    if label == "fails":
        raise ValueError(label)
    return label


def pay(order: str, amount: int = 0) -> str:
    return f"{order}: {amount}"


def of_errback(task_id: str) -> str:
    """Return the id of the task that failed. With one argument each version of Celery runs it as a task."""
    return task_id


def of_callback(_outcome: object, label: str) -> str:
    return label


def of_chord(labels: list[str]) -> list[str]:
    return sorted(labels)


def take(self: Any, todo: list[str]) -> str:
    """Take one from its own list at each attempt."""
    label = todo.pop()
    if todo:
        raise self.retry(countdown=0)
    return label


def try_again(self: Any, label: str, first: bool = False) -> str:
    if first and not self.request.retries:
        raise self.retry(args=[label], kwargs={"first": first}, countdown=0)
    return label


def try_later(self: Any, label: str) -> str:
    raise self.retry(args=[label], countdown=3600)


def give_place(self: Any, label: str, to: str) -> str:  # noqa: ARG001 - of its identity
    """Replace itself with another singleton, and not be over yet when that comes to a worker."""
    try:
        return str(self.replace(plain.s(to)))
    finally:
        may_end.wait(HANGS_AFTER)


in_memory: Any = by_url("cache+memory://", APP.loader)
own_backend = in_memory[0](app=APP, url=in_memory[1])

plain = make_singleton("plain")
limited = make_singleton("limited", limit=1, max_parked=1)
with_own_backend = make_singleton("with_own_backend", fail_if_asked, backend=own_backend)
without_backend = make_singleton("without_backend", backend=DisabledBackend(app=APP))
charge = make_singleton("charge", pay, unique_on=["order"], remember=600, acks_late=True)
raises = make_singleton("raises", on_conflict="raise")
skips = make_singleton("skips", on_conflict="skip")
replaces = make_singleton("replaces", unique_on=["label"], on_conflict="replace", limit=1)
replaces_all = make_singleton("replaces_all", unique_on=[], on_conflict="replace")
keeps_last = make_singleton("keeps_last", unique_on=[], on_conflict="keep_last")
until_started = make_singleton("until_started", lock_until="started")
until_expires = make_singleton("until_expires", fail_if_asked, lock_until="expires", lock_ttl=60)
fails = make_singleton("fails", fail_if_asked)
expires = make_singleton("expires", lock_ttl=5, expires=600)
takes = make_singleton("takes", take, bind=True)
takes_one = make_singleton("takes_one", take, bind=True, limit=1)
retries = make_singleton("retries", try_again, bind=True)
again = make_singleton("again", try_again, bind=True, on_conflict="raise")
again_started = make_singleton("again_started", try_again, bind=True, lock_until="started")
retries_later = make_singleton("retries_later", try_later, bind=True)
gives_place = make_singleton("gives_place", give_place, bind=True)
of_tenant = make_singleton(
    "of_tenant", limit=1, key=lambda label, headers: headers["tenant"],
    unique_on=lambda label, headers: [headers["tenant"], label],
)  # fmt: skip
note = make_task("note", of_callback)
note_error = make_task("note_error", of_errback)
collect = make_task("collect", of_chord)


@pytest.fixture
def kit(throttle: ThrottleTest) -> Iterator[ThrottleTest]:
    """The kit with two workers, so that a duplicate comes to either."""
    with throttle.run_worker(), throttle.run_worker():
        yield throttle


def send_by_name(task: Any, *args: Any, **options: Any) -> Any:
    """Send as a producer without the library does."""
    return APP.send_task(task.name, args=args, **options)


# -- the outcome of the first ------------------------------------------------------------------------------------------


def test_a_second_call_gets_the_first_one(kit: ThrottleTest) -> None:
    with kit.gate() as gate:
        first = plain.delay("a")
        assert plain.delay(label="a").id == first.id  # queued or running, by position or by name
        gate.wait_for(1)
        duplicate = plain.delay("a")
        assert duplicate.id == first.id
        locked = plain.locked_by("a")
        assert (locked.task_id, locked.state) == (first.id, "running")
        assert plain.delay("b").id != first.id
        gate.wait_for(2)
    assert [each.get(timeout=HANGS_AFTER) for each in (first, duplicate)] == ["a", "a"]
    kit.assert_not_locked(plain.s("a"))
    again = plain.delay("a")
    assert again.id != first.id
    assert again.get(timeout=HANGS_AFTER) == "a"
    kit.assert_ran(plain.s("a"), times=2)
    assert_all_ended(kit)


def test_a_duplicate_from_elsewhere_has_the_outcome_of_the_first(
    kit: ThrottleTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`send_task`, another language, a beat without the task: the gate catches calls that apply_async has not seen."""
    # An `AsyncResult` unsubscribes from the results of its task when it is collected.
    collected: list[str] = []
    monkeypatch.setattr(AsyncResult, "__del__", lambda result: collected.append(result.id))
    with kit.gate():
        first = begun(kit, plain.delay("a"))
        others = [send_by_name(plain, "a") for _ in range(3)]
        for other in others:
            kit.assert_parked(other)
            kit.assert_duplicate(other, of=first)
    assert [each.get(timeout=HANGS_AFTER) for each in (first, *others)] == ["a"] * 4
    gc.collect()
    assert first.id not in collected, "a worker has read the outcome with a subscription"
    kit.assert_ran(plain, times=1)
    assert_all_ended(kit)


@pytest.mark.parametrize("sender", ["publisher", "another program"])
def test_tenants_in_a_header_are_told_apart(kit: ThrottleTest, sender: str) -> None:
    """By the publisher, and by the worker where the message has no header of ours."""
    send = of_tenant.apply_async if sender == "publisher" else partial(APP.send_task, of_tenant.name)
    with kit.gate() as gate:
        acme, zeta = (send(("a",), headers={"tenant": tenant}) for tenant in ("acme", "zeta"))
        gate.wait_for(2)
        assert_needs(of_tenant.s("a").set(headers={"tenant": "acme"}), identity=["acme", "a"])
        kit.assert_held(of_tenant, 1, key="acme")
        kit.assert_held(of_tenant, 1, key="zeta")
        again = send(("a",), headers={"tenant": "acme"})
        kit.assert_duplicate(again, of=acme)
    assert [each.get(timeout=HANGS_AFTER) for each in (acme, zeta, again)] == ["a"] * 3
    kit.assert_ran(of_tenant, times=2)
    assert_all_ended(kit)


def test_canvases_with_duplicates_complete(kit: ThrottleTest) -> None:
    labels = [f"part {number % 15}" for number in range(20)]
    with kit.gate():
        begun(kit, plain.delay("part 0"))
        begun(kit, plain.delay("a"))
        whole = chord([plain.s(label) for label in labels])(collect.s())
        parts = group(plain.s("a"), plain.s("b"), plain.s("a")).apply_async()
        links = chain(plain.si("a"), note.s("after")).apply_async()
        last = chain(plain.s("c"), plain.si("a")).apply_async()
        kit.settle()
    assert whole.get(timeout=HANGS_AFTER) == sorted(labels)
    assert parts.get(timeout=HANGS_AFTER) == ["a", "b", "a"]
    assert links.get(timeout=HANGS_AFTER) == "after"
    assert last.get(timeout=HANGS_AFTER) == "a"
    for label in {*labels, "b", "c"}:
        kit.assert_ran(plain.s(label), times=1)
    kit.assert_ran(collect, times=1)
    kit.assert_ran(note.s("a", "after"), times=1)
    assert_all_ended(kit)


def test_the_duplicates_of_tasks_with_another_backend_or_none_end(kit: ThrottleTest) -> None:
    with kit.gate():
        first = [begun(kit, with_own_backend.delay(label)) for label in ("a", "fails")]
        others = [with_own_backend.AsyncResult(send_by_name(with_own_backend, label).id) for label in ("a", "fails")]
        links = chain(with_own_backend.si("a"), note.s("after")).apply_async()
        begun(kit, without_backend.delay("b"))
        without = chain(without_backend.si("b"), note.s("without")).apply_async()
        for each in (*others, links.parent, without.parent):
            kit.assert_parked(each)
    assert links.get(timeout=HANGS_AFTER) == "after"
    assert note.AsyncResult(without.id).get(timeout=HANGS_AFTER) == "without"  # it would read the outcome of its parent
    for a, failing in (first, others):
        assert a.get(timeout=HANGS_AFTER, interval=0.02) == "a"
        with pytest.raises(ValueError, match="fails"):
            failing.get(timeout=HANGS_AFTER, interval=0.02)
    for call, times in ((with_own_backend, 2), (note.s("a", "after"), 1), (without_backend, 1)):
        kit.assert_ran(call, times=times)
    assert_all_ended(kit)


def test_the_callbacks_of_both_callers_fire(kit: ThrottleTest) -> None:
    with kit.gate():
        begun(kit, plain.apply_async(["a"], link=note.s("first")))
        plain.apply_async(["a"], link=note.s("second"))
        first = begun(kit, fails.apply_async(["fails"], link_error=note_error.s()))
        second = fails.apply_async(["fails"], link_error=note_error.s())
    for failing, label in ((first, "first"), (second, "second")):
        kit.assert_ran(note.s("a", label), times=1)
        kit.assert_ran(note_error.s(failing.id), times=1)
        with pytest.raises(ValueError, match="fails"):
            failing.get(timeout=HANGS_AFTER)
    kit.assert_ran(plain, times=1)
    kit.assert_ran(fails, times=1)


def test_remembered_call_does_not_run_again(kit: ThrottleTest) -> None:
    first = charge.delay("17", amount=5)
    assert first.get(timeout=HANGS_AFTER) == "17: 5"
    until(lambda: charge.locked_by("17").state == "done")
    assert charge.delay("17", amount=6).id == first.id
    assert send_by_name(charge, "17", 7).get(timeout=HANGS_AFTER) == "17: 5"
    result = chord([charge.s("17"), charge.s("18", 1)])(collect.s())
    assert result.get(timeout=HANGS_AFTER) == ["17: 5", "18: 1"]
    kit.assert_ran(charge, times=2)
    assert charge.unlock("17")
    assert charge.delay("17", amount=8).get(timeout=HANGS_AFTER) == "17: 8"
    kit.drain()
    kit.advance(601)
    kit.assert_not_locked(charge.s("17"))


# -- on_conflict -------------------------------------------------------------------------------------------------------


def test_raise(kit: ThrottleTest) -> None:
    with kit.gate(raises):
        first = begun(kit, raises.delay("a"))
        with pytest.raises(DuplicateTask, match=f"pending, running or remembered already, as {first.id}") as raised:
            raises.delay("a")
        assert raised.value.existing_id == first.id
        with pytest.raises(DuplicateTask, match=first.id):
            send_by_name(raises, "a").get(timeout=HANGS_AFTER)
        whole = chord([raises.s("a"), plain.s("b")])(collect.s())
        with pytest.raises((DuplicateTask, ChordError), match=first.id):
            whole.get(timeout=HANGS_AFTER)
    kit.assert_ran(raises, times=1)
    kit.assert_ran(collect, times=0)
    assert_all_ended(kit)


def test_skip(kit: ThrottleTest) -> None:
    with kit.gate(skips):
        first = begun(kit, skips.delay("a"))
        skipped = skips.delay("a")
        assert (skipped.id != first.id, skipped.ready(), skipped.state) == (True, True, "REVOKED")
        elsewhere = send_by_name(skips, "a")
        for result in (skipped, APP.AsyncResult(skipped.id), elsewhere):
            with pytest.raises(TaskRevokedError, match=f"^skipped: .*{first.id}"):
                result.get(timeout=HANGS_AFTER)
            assert isinstance(result.get(timeout=HANGS_AFTER, propagate=False), TaskRevokedError)
        with pytest.raises(TaskRevokedError, match=r"^skipped: "):
            skips.apply_async(("a",), ignore_result=True).get(timeout=HANGS_AFTER)
        whole = chord([skips.s("a"), plain.s("b")])(collect.s())
        kit.settle()
    assert whole.get(timeout=HANGS_AFTER) == ["a", "b"]
    kit.assert_ran(skips, times=1)
    assert_all_ended(kit)


def test_a_skipped_call_is_stored_with_its_name_and_arguments(
    throttle: ThrottleTest, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(throttle.app.conf, "result_extended", True)
    caplog.set_level(logging.INFO, "celery_throttle")
    first, skipped = skips.delay("a"), skips.delay(label="a")
    stored = APP.backend.get_task_meta(skipped.id)
    about = {name: stored[name] for name in ("status", "name", "args", "kwargs")}
    assert about == {"status": "REVOKED", "name": skips.name, "args": [], "kwargs": {"label": "a"}}
    assert f"Task {skips.name}[{skipped.id}] is a duplicate of {first.id}: skip" in caplog.text


def test_skip_in_a_chain_that_finds_another_lock_on_arrival(throttle: ThrottleTest) -> None:
    with throttle.run_worker(), throttle.gate(skips) as gate:
        links = chain(skips.si("a").set(queue="elsewhere"), note.s("after")).apply_async()
        assert skips.unlock("a")
        first = begun(throttle, skips.delay("a"))
        with throttle.run_worker(queues=["elsewhere"]):
            throttle.assert_parked(links.parent)
            throttle.assert_duplicate(links.parent, of=first)
            gate.open()
            assert links.get(timeout=HANGS_AFTER) == "after"
            throttle.assert_ran(skips, times=1)
            assert_all_ended(throttle)


def test_replace(throttle: ThrottleTest) -> None:
    old = [replaces_all.delay(f"old {number}") for number in range(5)]
    new = replaces_all.delay("new")
    with throttle.gate(), throttle.run_worker(), throttle.run_worker():
        for each in old:
            throttle.assert_dropped(each)
        throttle.assert_started(new)
        assert replaces_all.delay("late").id == new.id  # it runs: nothing to replace
        throttle.assert_ran(replaces_all, times=1)


def test_keep_last(kit: ThrottleTest) -> None:
    with kit.gate():
        first = begun(kit, keeps_last.delay("first"))
        waiting = [keeps_last.delay(f"waiting {number}") for number in range(5)]
        last = keeps_last.delay("last")
        assert len({each.id for each in (first, *waiting, last)}) == 7
        for each in waiting:
            kit.assert_dropped(each)
        assert keeps_last.locked_by("x").next_id == last.id
        kit.assert_not_started(last)
    assert last.get(timeout=HANGS_AFTER) == "last"
    kit.assert_ran(keeps_last, times=2)
    kit.assert_not_locked(keeps_last.s("x"))
    assert_all_ended(kit)


def test_unpublished_newest_replaces_no_task(kit: ThrottleTest) -> None:
    with kit.gate():
        begun(kit, replaces.delay("busy"))
        begun(kit, keeps_last.delay("first"))
        waiting = replaces.delay("a"), keeps_last.delay("last")
        for task, each in zip((replaces, keeps_last), waiting, strict=True):
            kit.assert_parked(each)
            with pytest.raises(EncodeError):
                task.delay("a", payload=object())
    assert [each.get(timeout=HANGS_AFTER) for each in waiting] == ["a", "last"]
    assert_all_ended(kit)


# -- how long a lock lasts ---------------------------------------------------------------------------------------------


def test_until_started(kit: ThrottleTest) -> None:
    with kit.gate():
        first = begun(kit, until_started.delay("a"))
        second = begun(kit, until_started.delay("a"))
    assert second.id != first.id
    assert chain(*[until_started.si("b")] * 3).apply_async().get(timeout=HANGS_AFTER) == "b"
    kit.assert_ran(until_started.s("b"), times=3)
    assert_all_ended(kit)


def test_until_expires(kit: ThrottleTest) -> None:
    """Also after a failure."""
    first, failing = until_expires.delay("a"), until_expires.apply_async(["fails"], expires=600)  # of its message
    assert first.get(timeout=HANGS_AFTER) == "a"
    until(lambda: until_expires.locked_by("fails").state == "failed")
    for task, label in ((first, "a"), (failing, "fails")):
        assert until_expires.delay(label).id == task.id
    for each in (failing, send_by_name(until_expires, "fails")):
        with pytest.raises(ValueError, match="fails"):
            each.get(timeout=HANGS_AFTER)
    kit.assert_ran(until_expires, times=2)
    kit.advance(60)
    kit.assert_not_locked(until_expires.s("a"))
    assert until_expires.delay("a").id != first.id
    kit.assert_ran(until_expires.s("a"), times=2)


def test_a_countdown_keeps_the_lock_unless_its_task_is_revoked_or_expires(kit: ThrottleTest) -> None:
    first = plain.apply_async(["a"], countdown=0.5)
    assert plain.delay("a").id == first.id
    assert first.get(timeout=HANGS_AFTER) == "a"

    revoked = plain.apply_async(["c"], countdown=2)  # the revoke arrives before that
    revoked.revoke()
    expired = plain.apply_async(["d"], countdown=0.5, expires=0.1)
    for each in (revoked, expired):
        kit.assert_dropped(each)
    kit.assert_not_locked(plain.s("c"))
    kit.assert_not_locked(plain.s("d"))


@pytest.mark.usefixtures("throttle")
def test_how_long_the_lock_of_a_waiting_task_lasts() -> None:
    later = plain.apply_async(["b"], countdown=3600)
    locked = plain.locked_by("b")
    assert locked.task_id == later.id
    assert locked.expires_in > 3600 + 80_000
    expires.delay("a")
    expires.apply_async(["b"], expires=900)
    assert 500 < expires.locked_by("a").expires_in <= 600
    assert 800 < expires.locked_by("b").expires_in <= 900


# -- revoked tasks -----------------------------------------------------------------------------------------------------


def test_a_revoked_duplicate_leaves_the_outcome_to_another(throttle: ThrottleTest) -> None:
    """Both would have asked for it, one comes only when the first has ended; only one of the workers reports it."""
    with throttle.run_worker(), throttle.run_worker(queues=["idle"]), throttle.gate() as gate:
        first = begun(throttle, plain.delay("a"))
        parked, late = (plain.apply_async(["a"], task_id=uuid(), queue=queue) for queue in ("celery", "elsewhere"))
        throttle.assert_parked(parked)
        parked.revoke()
        throttle.assert_dropped(parked)
        until(lambda: not throttle.control.parked())
        gate.open()
        assert first.get(timeout=HANGS_AFTER) == "a"
        throttle.assert_not_locked(plain.s("a"))
        with throttle.run_worker(queues=["elsewhere"]):
            assert late.get(timeout=HANGS_AFTER) == "a"
            throttle.assert_ran(plain, times=1)
            assert_all_ended(throttle)


def test_a_revoked_task_in_the_queue_frees_its_lock(throttle: ThrottleTest) -> None:
    with throttle.run_worker(concurrency=1), throttle.gate() as gate:
        begun(throttle, plain.delay("busy"))
        victim = limited.delay("a")
        victim.revoke()
        throttle.settle()
        gate.open()
        throttle.assert_dropped(victim)
        throttle.assert_not_locked(limited.s("a"))
        assert limited.delay("a").get(timeout=HANGS_AFTER) == "a"


def test_a_task_that_is_revoked_before_its_time_frees_its_lock_at_once(throttle: ThrottleTest) -> None:
    with throttle.run_worker(concurrency=1):
        scheduled = plain.apply_async(["a"], countdown=3600)
        retried = retries_later.delay("a")
        until(lambda: retried.state == "RETRY")
        with throttle.gate():
            begun(throttle, plain.delay("busy"))
            waits_for_slot = plain.delay("b")
            for each in (scheduled, retried, waits_for_slot):
                each.revoke()
            locks = (plain.s("a"), retries_later.s("a"), plain.s("b"))
            until(lambda: all(each.type.locked_by(*each.args) is None for each in locks))
            assert [each.state for each in (scheduled, retried, waits_for_slot)] == ["REVOKED"] * 3
        assert [plain.delay(label).get(timeout=HANGS_AFTER) for label in "ab"] == ["a", "b"]
        throttle.assert_ran(plain, times=3)


# -- limits and options ------------------------------------------------------------------------------------------------


def test_lock_comes_before_the_limit_and_stays_while_parked(kit: ThrottleTest) -> None:
    """A duplicate needs no place in a full line."""
    with kit.gate() as gate:
        first = begun(kit, limited.delay("a"))
        second = limited.delay("b")
        kit.assert_parked(second, behind=limited)
        assert limited.locked_by("b").state == "queued"
        assert limited.delay("b").id == second.id
        with pytest.raises(LimitExceeded):
            limited.delay("c")
        assert limited.locked_by("c") is None
        parts: Any = group(limited.s("a"), limited.s("b")).apply_async()
        duplicates = [send_by_name(limited, "b"), send_by_name(limited, "a")]
        for each, of in zip((*parts.results, *duplicates), (first, second, second, first), strict=True):
            kit.assert_parked(each)
            kit.assert_duplicate(each, of=of)
        kit.assert_held(limited, 1)
        gate.open(1)
        kit.assert_started(second)
    # First, because Celery may lose the end of a task of which there was another result object.
    kit.drain()
    assert [each.get(timeout=HANGS_AFTER) for each in (first, second, *duplicates)] == ["a", "b", "b", "a"]
    assert parts.get(timeout=HANGS_AFTER) == ["a", "b"]
    kit.assert_ran(limited, times=2)
    kit.assert_most_at_once(limited, 1)
    assert_all_ended(kit)


def test_options_of_a_call(kit: ThrottleTest) -> None:
    by_amount = {"unique_on": ["amount"]}
    first = charge.apply_async(["17", 5], throttle=by_amount)
    first.get(timeout=HANGS_AFTER)
    assert charge.apply_async(["18", 5], throttle=by_amount).id == first.id
    with pytest.raises(DuplicateTask):
        charge.s("18", 5).set(throttle=by_amount | {"on_conflict": "raise"}).apply_async()
    kit.assert_ran(charge, times=1)


# -- tasks that publish themselves again -------------------------------------------------------------------------------


def test_a_retry_keeps_the_lock(kit: ThrottleTest) -> None:
    with kit.gate() as gate:
        first = begun(kit, retries.delay("a", True))
        duplicate = send_by_name(retries, "a", True)
        kit.assert_duplicate(duplicate, of=first)
        gate.open(1)
        gate.wait_for(1)
        assert retries.delay("a", True).id == first.id
        kit.assert_duplicate(duplicate, of=first)
    assert [each.get(timeout=HANGS_AFTER) for each in (first, duplicate)] == ["a", "a"]
    kit.assert_ran(retries, times=2)
    assert_all_ended(kit)


@pytest.mark.parametrize("task", [takes, takes_one], ids=["direct", "parked"])
def test_one_sent_by_name_keeps_its_lock_with_other_arguments(kit: ThrottleTest, task: Any) -> None:
    with kit.hold(task) if task is takes_one else nullcontext():
        result = APP.send_task(task.name, [["b", "a"]])
        if task is takes_one:
            kit.assert_parked(result)
            kit.assert_locked(task.s(["b", "a"]))
    assert result.get(timeout=HANGS_AFTER) == "b"
    kit.assert_ran(task, times=2)
    kit.assert_not_locked(task.s(["b", "a"]))
    assert_all_ended(kit)


def test_task_with_a_lock_until_its_start_is_tried_again_without(
    kit: ThrottleTest, caplog: pytest.LogCaptureFixture
) -> None:
    """It is no duplicate of the task that has the lock by then."""
    caplog.set_level(logging.INFO, "celery_throttle")
    with kit.gate() as gate:
        first = again_started.delay("a", first=True)
        gate.wait_for(1)
        second = again_started.apply_async(("a", True), queue="elsewhere")
    assert first.get(timeout=HANGS_AFTER) == "a"
    assert again_started.locked_by("a", True).task_id == second.id
    assert "duplicate" not in caplog.text
    with kit.run_worker(queues=["elsewhere"]):
        assert second.get(timeout=HANGS_AFTER) == "a"
        kit.assert_ran(again_started, times=4)


def test_a_retry_keeps_the_options_of_its_call(kit: ThrottleTest) -> None:
    """It is a duplicate by then: it waits, by the choice of its caller."""
    with kit.gate() as gate:
        options = {"on_conflict": "return_existing"}
        first = again.apply_async(("a", True), task_id="first", throttle=options)
        gate.wait_for(1)
        assert again.unlock("a", True)
        second = again.delay("a", True)
        gate.wait_for(2)
        gate.open(1)
        kit.assert_parked(first)
    assert second.get(timeout=HANGS_AFTER) == first.get(timeout=HANGS_AFTER) == "a"
    kit.assert_ran(again, times=3)


def test_task_replaced_before_its_end_keeps_no_lock(kit: ThrottleTest) -> None:
    """Both have the same task id, but not the same lock."""
    may_end.clear()
    result = gives_place.delay("a", "b")
    until(lambda: any("Another delivery" in each for each in kit.control.explain(result).reasons))
    may_end.set()
    assert result.get(timeout=HANGS_AFTER) == "b"
    kit.assert_not_locked(gives_place.s("a", "b"))
    assert_all_ended(kit)


def test_tasks_of_a_lost_process_come_again(workers: Workers, journal: Journal, state: State) -> None:
    """One keeps its identity, and one is let into a line that is full."""
    app = workers.start_app(ONCE, concurrency=3)
    first = app.dies.apply_async(("a", 1), throttle={"unique_on": ["label"]})
    assert first.get(timeout=HANGS_AFTER) == "a 1"
    state.wait_empty()
    assert journal.order() == ["a", "a"]
    assert app.dies.apply_async(("a", 2), throttle={"unique_on": ["label"]}).id != first.id

    first = journal.wait_begun(app.dies_full.delay("dies"))
    second = app.dies_full.delay("waits")
    state.wait_parked(1)
    journal.let_go("dies")
    assert [each.get(timeout=HANGS_AFTER) for each in (second, first)] == ["waits", "dies"]
