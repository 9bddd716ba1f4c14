"""Which permits pass on within a worker, and which go back to the store."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from celery_throttle.core.facts import Facts, Message, Result
from celery_throttle.store.exchange import Delivery
from celery_throttle.worker import runs
from celery_throttle.worker.runs import Permit, Run
from celery_throttle.worker.store_side import outbox as outbox_module
from celery_throttle.worker.store_side.outbox import Batch, Outbox
from tests.unit.runs import run_of

DONE = Facts(began=True, message=Message.NOBODY, result=Result.SUCCESS)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Lets time pass."""
    now = 100.0

    def pass_by(seconds: float) -> None:
        nonlocal now
        now += seconds

    for module in (outbox_module, runs):
        monkeypatch.setattr(module, "monotonic", lambda: now)
    return pass_by


@pytest.fixture
def outbox() -> Outbox:
    return Outbox()


def to_park(task: str, size: int = 1) -> Run:
    run = run_of(task)
    run.parcel = b"x" * size
    return run


def limited(task: str, size: int = 1) -> Run:
    run = to_park(task, size)
    run.pause = 0.5, "1:gpu"
    return run


def changes(batch: Batch) -> list[tuple[str, str]]:
    return [(row.event, row.task) for row in batch.exchange.changed]


def tasks(batch: Batch, event: str) -> list[str]:
    return [task for each, task in changes(batch) if each == event]


def ended(outbox: Outbox, task: str) -> None:
    outbox.spare(Permit(run_of(task)), Result.SUCCESS)


def given_back(outbox: Outbox) -> list[str]:
    return tasks(outbox.next_batch(0), "ended")


def test_the_next_run_takes_the_permit_of_the_last(outbox: Outbox, later: Callable[[float], None]) -> None:
    ended(outbox, "a")
    permit = outbox.take(run_of("b"))
    assert permit is not None
    (passed,) = outbox.next_batch(0).exchange.changed
    assert passed.to
    assert (passed.event, passed.task, passed.to.task) == ("passed", "a", "b")
    assert outbox.take(run_of("c")) is None
    later(1)
    assert given_back(outbox) == []


def test_unused_permit_goes_back(outbox: Outbox, later: Callable[[float], None]) -> None:
    """Not with the next call, or each call would cost the run after it one more."""
    for task in ("a", "b"):
        ended(outbox, task)
    outbox.unspare()  # for a task that waits
    assert sorted(given_back(outbox)) == ["a", "b"]
    ended(outbox, "c")
    assert given_back(outbox) == []
    assert outbox.lazy
    later(0.01)
    assert given_back(outbox) == ["c"]
    assert not outbox.lazy


def test_permit_with_a_doubtful_lease_is_not_used(outbox: Outbox, later: Callable[[float], None]) -> None:
    """The worker was stopped after the run had ended, and the store may have given the permit to another."""
    ended(outbox, "a")
    later(60)
    assert outbox.take(run_of("b")) is None
    assert given_back(outbox) == ["a"]


def test_changes_are_sent_in_the_order_in_which_they_happened(outbox: Outbox) -> None:
    """The end of a run needs no row for its begin."""
    outbox.acked(run_of("a").delivery)
    outbox.began(run_of("b").delivery)
    outbox.ended(run_of("b").delivery, DONE)
    ended(outbox, "c")
    permit = outbox.take(run_of("d"))
    assert permit
    outbox.settle(permit)
    outbox.ended(run_of("d").delivery, DONE)
    outbox.began(run_of("e").delivery)
    happened = [("acked", "a"), ("ended", "b"), ("passed", "c"), ("ended", "d"), ("began", "e")]
    assert changes(outbox.next_batch(0)) == happened


@pytest.mark.parametrize(
    ("copied", "rows_of_next"),
    [
        # Else the next call would tell that they were acknowledged, and they would run again after they have.
        pytest.param(True, [("ended", "asks"), ("unacked", "a"), ("unacked", "back a")], id="an older copy may come"),
        pytest.param(False, [], id="sent once"),
    ],
)
def test_call_after_a_refused_one_undoes_its_older_copy(
    outbox: Outbox, copied: bool, rows_of_next: list[tuple[str, str]]
) -> None:
    """Its messages are not acknowledged, and it keeps no permit."""
    outbox.arrived += [run_of("asks"), to_park("a"), limited("back a")]
    outbox.put_back(outbox.next_batch(0), copied=copied)
    assert changes(outbox.next_batch(0)) == rows_of_next


@pytest.mark.usefixtures("later")
def test_rows_of_a_refused_call_come_before_newer_ones(outbox: Outbox) -> None:

    def say(task: str) -> None:
        outbox.ended(run_of(task).delivery, DONE)
        outbox.began(Delivery(f"began {task}", 0, "w"))
        outbox.acknowledging(run_of(f"kept {task}", acknowledged=False))
        outbox.acked(run_of(f"acked {task}").delivery)
        outbox.revoked([f"revoked {task}"])
        outbox.never("same", task, "")
        outbox.arrived.append(limited(f"back {task}"))
        ended(outbox, f"first {task}")
        assert outbox.take(run_of(f"next {task}"))
        outbox.erred()
        outbox.erred()

    say("a")
    refused = outbox.next_batch(0)
    assert not outbox.urgent
    assert not outbox.lazy
    assert [refused.exchange.errors, outbox.next_batch(0).exchange.errors] == [2, 0]
    say("b")
    outbox.put_back(refused, copied=False)
    batch = outbox.next_batch(0)
    assert tasks(batch, "ended") == ["a", "b"]
    assert tasks(batch, "began") == ["began a", "began b"]
    assert tasks(batch, "unacked") == ["kept a", "kept b"]
    assert tasks(batch, "acked") == ["acked a", "acked b"]
    assert batch.exchange.gone == [("revoked", "revoked a"), ("never", "a", "same", ""), ("revoked", "revoked b")]
    assert [row.to.task for row in batch.exchange.changed if row.to] == ["next a", "next b"]
    assert batch.exchange.errors == 4
    assert not batch.arrived, "a full store first gets the rows that it takes"
    assert [run.request.id for run in outbox.next_batch(0).arrived] == ["back a", "back b"]


def test_unacknowledged_task_is_sent_with_any_next_call(outbox: Outbox) -> None:
    """Else it counts as acknowledged. An acknowledgement alone needs no call. One call reports many."""
    outbox.acknowledging(run_of("a"))
    outbox.acknowledging(run_of("reported when it was parked", acknowledged=False, keeps=True))
    was_urgent = outbox.urgent
    gone = [run_of(f"gone {number}", acknowledged=False) for number in range(60)]
    for run in gone:
        outbox.acknowledging(run)
    assert (was_urgent, outbox.urgent) == (False, True)
    ended(outbox, "b")
    assert changes(outbox.next_batch(0)) == [("unacked", run.request.id) for run in gone]
    assert not outbox.urgent


def test_late_acknowledgement_is_reported_after_the_row_that_it_takes_back(outbox: Outbox) -> None:
    parked, ended_early, lost = (run_of(task, acknowledged=False) for task in ("parked", "ended", "lost"))
    outbox.acknowledging(parked)
    outbox.ended_unacked(ended_early, DONE)
    refused = outbox.next_batch(0)
    assert changes(refused) == [("ended", "ended"), ("unacked", "parked")]
    assert refused.exchange.changed[0].unacked
    outbox.put_back(refused, copied=False)
    for run in (parked, ended_early):
        run.request.message.acknowledged = True
    assert changes(outbox.next_batch(0)) == [("ended", "ended"), ("unacked", "parked")]
    was_lazy = outbox.lazy
    assert sorted(changes(outbox.next_batch(0))) == [("acked", "ended"), ("acked", "parked")]
    assert (was_lazy, outbox.lazy) == (True, False)

    outbox.ended_unacked(lost, DONE)
    outbox.next_batch(0)
    outbox.disconnected()  # its broker delivers it again
    lost.request.message.acknowledged = True
    assert not outbox.lazy
    assert not changes(outbox.next_batch(0))


def test_the_places_of_all_in_a_call_are_by_one_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes to put the call together."""
    outbox, runs_there = Outbox(), [run_of(task) for task in "abc"]
    for number, run in enumerate(runs_there):
        run.came, run.parcel = float(number), b"m"
    outbox.arrived += runs_there
    time = itertools.count(100)
    for module in (outbox_module, runs):
        monkeypatch.setattr(module, "monotonic", lambda: float(next(time)))
    said = outbox.next_batch(0).exchange
    assert [said.clock - row.age for row in said.arrived] == [0.0, 1.0, 2.0]


@pytest.mark.usefixtures("later")
def test_new_holder_of_a_permit_comes_before_the_end_of_the_old(outbox: Outbox) -> None:
    """Many may have passed on at once: without the order the store would keep the permit for a lease."""
    for number in range(120):
        ended(outbox, f"first {number}")
    known = [run_of(f"next {number}") for number in range(120)]
    assert all(outbox.take(run) for run in known)
    said = [outbox.next_batch(0)]  # they are passed on while a call is under way, and end before the next one
    for run in reversed(known):
        for permit in [each for each in outbox._passed if each.run is run]:
            outbox.settle(permit)
        outbox.ended(run.delivery, DONE)
    known[-1].parcel, known[-1].pause = b"m", (0.5, "1:gpu")
    outbox.arrived.append(known[-1])
    heard: set[str] = set()
    while outbox.lazy or outbox.urgent:
        said.append(outbox.next_batch(0))
    for call in said:
        for row in call.exchange.changed:
            heard |= {row.to.nonce} if row.to else set()
            assert row.event == "passed" or row.nonce in heard
        assert {run.nonce for run in call.arrived} <= heard
    assert sum(len(tasks(call, "ended")) for call in said) == 120


@pytest.mark.parametrize(
    ("arrived", "taken"),
    [
        pytest.param(
            [to_park(str(number), size) for number, size in enumerate([4, 4, 4, 99, 1])],
            [["0", "1"], ["2"], ["3"], ["4"]],
            id="one that is too large goes alone",
        ),
        pytest.param(
            [to_park("a", 4), limited("b", 4), run_of("c"), limited("d", 4), to_park("e", 4)],
            [["a", "b", "c"], ["d", "e"], []],
            id="returned and parked ones share them",
        ),
    ],
)
def test_messages_of_one_call_have_so_many_bytes_at_most(
    outbox: Outbox, arrived: list[Run], taken: list[list[str]]
) -> None:
    outbox.arrived += arrived
    assert [[run.request.id for run in outbox.next_batch(0, 10).arrived] for _ in taken] == taken


def test_runs_are_parked_in_the_order_in_which_they_came(later: Callable[[float], None]) -> None:
    """A run that the store refused to start is behind younger ones here, which were parked without a question."""
    outbox, first = Outbox(), to_park("first")
    later(1)
    outbox.arrived += [to_park("second"), first]
    assert [run.request.id for run in outbox.next_batch(0).arrived] == ["first", "second"]
