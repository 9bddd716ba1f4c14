"""The calls of a worker: slots beside large messages, pauses, renewals, and replies that are passed on to the gate."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from celery_throttle.core.keys import Keys
from celery_throttle.store.calls import Store
from celery_throttle.store.exchange import Arrival
from celery_throttle.store.exchange_reply import Answer, read_exchanged
from celery_throttle.store.portions import MOST_RENEWED
from celery_throttle.store.reading import UnreadableReply
from celery_throttle.store.servers.client import TIMEOUT
from celery_throttle.worker.held_back import saving as saving_module
from celery_throttle.worker.held_back.saving import Saving
from celery_throttle.worker.runs import Permit
from celery_throttle.worker.store_side import calls as module
from celery_throttle.worker.store_side.calls import Calls
from celery_throttle.worker.store_side.decisions import deliver
from celery_throttle.worker.store_side.outbox import Batch
from celery_throttle.worker.store_side.patience import Patience
from celery_throttle.worker.store_side.renewals import renewals
from celery_throttle.worker.store_side.sifting import Sifting

NOTHING: Any = None
STORE = Store(Keys("throttle"), 60.0)
#: Of a worker without tasks.
CODE: Any = SimpleNamespace(version=0, declared=lambda group: {}, sites_for=lambda group: None, options={})


@pytest.mark.parametrize(("size", "slots"), [(10, [2, 2, 2]), (1 << 20, [0, 2, 0])])
def test_slots_go_with_small_calls_and_every_second_large_one(size: int, slots: list[int]) -> None:
    """A plain task waits for a slot that is offered; parked tasks must not wait until all large ones are through."""
    offered: list[int] = []
    nothing: Any = lambda *_: None  # noqa: E731

    def next_batch(slots: int, _: int) -> Batch:
        offered.append(slots)
        return Batch.empty()

    outbox = SimpleNamespace(has_bytes=lambda fewest: size >= fewest, next_batch=next_batch)
    calls: Any = SimpleNamespace(number=0, hungry=True, outbox=outbox, _call_of=lambda batch: batch, _ask=nothing)
    calls._slow, calls._patience, calls.sifting, calls._gate = False, Patience(), Sifting(), None
    hungry = []
    for _ in range(3):
        Calls.send(calls, 2)
        hungry.append(calls.hungry)
    assert offered == slots
    assert hungry == [each == 0 for each in slots], "slots that were not offered are offered next"


# -- calls to a store that refuses them or was away --------------------------------------------------------------------


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self._now = 100.0

    def __call__(self) -> float:
        return self._now

    def go_on(self, seconds: float) -> None:
        """Let some time go by."""
        self._now += seconds


def a_saving(link: Any, runs: Sequence[Any] = ()) -> Saving:
    durability: Any = SimpleNamespace(kind="replica")
    held: Any = SimpleNamespace(of=lambda *_, **__: list(runs), has=lambda *_: True)
    loop: Any = SimpleNamespace(every_turn=lambda tick: None)
    return Saving("", Mock(), durability, NOTHING, held, lambda saving: link, loop)


def test_calls_paused_after_a_hurry_wait_for_the_later_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each hurry of a worker that stops adds a try in each second."""
    monkeypatch.setattr(module, "monotonic", clock := Clock())
    gate: Any = SimpleNamespace(put_off=lambda runs: None)
    link: Any = SimpleNamespace(connect=lambda: None, up=False)
    calls = Calls("", STORE, "w", CODE, gate, lambda calls: (link, NOTHING), NOTHING, Mock())
    calls._pause(ValueError("full"), [])
    calls.hurry()
    paused = [calls.paused]
    clock.go_on(0.5)
    calls._pause(ValueError("full"), [])
    for _ in range(2):
        clock.go_on(0.5)
        paused.append(calls.paused)
    assert paused == [False, True, False]


def test_saving_paused_after_a_hurry_waits_for_the_later_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving_module, "monotonic", clock := Clock())
    made = a_saving(SimpleNamespace(connect=lambda: None))
    made._refused(ValueError("full"))
    made.hurry()
    settled = [made.settled]
    clock.go_on(0.5)
    made._refused(ValueError("full"))
    for _ in range(2):
        clock.go_on(0.5)
        settled.append(made.settled)
    assert settled == [False, True, False]


def test_answer_without_an_effect_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The link has no reply to wait for, and these calls still wait for one."""
    link = Mock(up=True)
    calls = Calls("", STORE, "w", CODE, Mock(), lambda calls: (link, Mock()), NOTHING, Mock())
    calls._ready = True
    calls.tend()
    assert not link.start_over.called
    monkeypatch.setattr(calls, "_sent", 1)
    calls._under_way, calls.asked_at = (Batch.empty(), NOTHING), 1.0
    monkeypatch.setattr(module, "read_exchanged", Mock(side_effect=ZeroDivisionError))
    with pytest.raises(ZeroDivisionError):
        calls._answered([])
    calls.tend()
    assert link.start_over.call_args.kwargs == {"slowly": True}


def test_refused_declaration_is_sent_again_after_its_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "monotonic", clock := Clock())
    declared: list[None] = []
    calls = Calls("", STORE, "w", CODE, Mock(), lambda calls: (Mock(up=True), Mock()), NOTHING, Mock())
    monkeypatch.setattr(calls, "up", lambda: declared.append(None))
    calls._declared(ValueError("full"))
    calls.tend()
    assert not declared
    clock.go_on(1.0)
    calls.tend()
    assert declared


def test_round_whose_answer_had_no_effect_is_followed_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving_module, "monotonic", clock := Clock())
    begun: list[Any] = []
    link = SimpleNamespace(up=True, answered=True, send=lambda call, callback: begun.append(callback))
    run: Any = SimpleNamespace(delivery=("t", 0, "n"))
    made = a_saving(link, [run])
    made.tick()
    with pytest.raises(TypeError):
        begun[0](None)
    made.tick()
    assert len(begun) == 1, "not at once"
    clock.go_on(1.0)
    made.tick()
    assert len(begun) == 2


def test_declaration_reports_for_how_long_the_store_was_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store then prolongs the leases that could not be renewed."""
    now, reported = 100.0, list[float]()
    monkeypatch.setattr(module, "monotonic", lambda: now)

    def declarations(*_: object, away: float, worker: str) -> list[Any]:
        assert worker == "w"
        reported.append(away)
        return [NOTHING]

    monkeypatch.setattr(Store, "declarations", declarations)
    gate: Any = SimpleNamespace(store_lost=lambda *_: None)
    link: Any = SimpleNamespace(send=lambda *_: None)
    listener: Any = SimpleNamespace(published=lambda **_: None, start_over=lambda _: None)
    calls = Calls("", STORE, "w", CODE, gate, lambda calls: (link, listener), NOTHING, Mock())
    calls.up()
    calls.broken(ConnectionError())
    now = 130.0
    calls.up()
    assert reported == [0.0, 30.0 + TIMEOUT]  # it was silent for so long before the connection broke


# -- renewals ----------------------------------------------------------------------------------------------------------


def pages_of(permits: list[Permit]) -> list[tuple[int, list[str]]]:
    """Return for each call: after which call it was put together, and the holders that it renews."""
    found = []
    for page in renewals(Store(Keys("x"), 12.0), "w", 7, permits):
        text = json.loads(str(page.call.arguments[-1]))
        held = [row["task"] for row in text["held"]]
        assert [each.run and each.run.arrival.task for each, _ in page.rows] == held
        found.append((text["number"], held))
    return found


def permit(task: str) -> Permit:
    run: Any = SimpleNamespace(arrival=Arrival(task, "1:gpu", nonce=f"w:{task}"))
    return Permit(run)


def test_task_going_back_is_renewed_and_never_put_back() -> None:
    """The store puts nothing back if it has a later call of the worker, as it does of any after this number."""
    permits = [permit(task) for task in "abc"]
    permits[1].go_back()
    assert pages_of(permits) == [(7, ["a", "c"]), (-1, ["b"])]


def test_many_are_renewed_in_pages() -> None:
    tasks = [str(number) for number in range(MOST_RENEWED + 1)]
    assert pages_of([permit(task) for task in tasks]) == [(7, tasks[:-1]), (7, tasks[-1:])]


# -- replies -----------------------------------------------------------------------------------------------------------

RECORD = {"v": 2, "nonce": "w:1.0", "needs": "1:gpu", "queue": "q", "ticket": 10_000, "since": 2000}


def reply(*grants: Any, asked: Any = ()) -> list[Any]:
    """Return a reply as exchange.lua does."""
    return [1, list(asked), list(grants), 0, 0, [], [], [], 1, []]


def grant(task: str, record: bytes | None = None, **changed: Any) -> list[Any]:
    packed = json.dumps({name: value for name, value in (RECORD | changed).items() if value is not None}).encode()
    return [task.encode(), packed if record is None else record, b"message"]


@pytest.mark.parametrize(
    "bad",
    [
        *(grant("bad", b'{"code":"\xff"}'), grant("bad", b"["), grant("bad", b"7"), grant("bad", needs="x:gpu")),
        *(grant("bad", needs=7), grant("bad", nonce=None), grant("bad", ticket="now"), grant("bad", lock=[1])),
        grant("bad", lock={"verdict": "run"}),
    ],
)
def test_a_grant_that_cannot_be_read_costs_itself_alone(bad: list[Any]) -> None:
    found = read_exchanged(reply(grant("t1"), bad, grant("t2")))
    assert found is not None
    assert [each.task for each in found.grants] == ["t1", "t2"]
    ((task, why),) = found.unread
    assert task == "bad"
    assert why


@pytest.mark.parametrize("raw", [b"OK", None, [], [1, 2], reply(asked=["x"]), reply("row"), reply(7)])
def test_a_reply_that_is_none_counts_as_lost(raw: Any) -> None:
    with pytest.raises(UnreadableReply, match="cannot be read"):
        read_exchanged(raw)


def test_error_about_one_row_leaves_the_others() -> None:
    done: list[Any] = []

    def take(row: Any, *_: object) -> None:
        done.append(row)
        raise ValueError(row)

    takers = ("refused", "parked", "is_copy", "not_parked", "sent_back", "granted", "resumed", "withdrawn")
    ended: list[Any] = []

    def end(row: Any, *_: object) -> None:
        ended.append(row)
        raise ValueError(row)

    gate: Any = SimpleNamespace(**dict.fromkeys(takers, take), broke=end, broke_off=end)
    batch: Any = SimpleNamespace(arrived=["t1", "t2"])
    rows: Any = SimpleNamespace(arrived=[Answer.PARKED, Answer.GRANTED], grants=["t3", "t4"], withdrawn=["t5", "t6"])
    deliver(gate, "", batch, rows)
    assert done == ["t1", "t2", "t3", "t4", "t5", "t6"]
    assert ended == ["t2", "t3", "t4"], "the store counts a permit of these"
