"""A parked task has the same request, and looks the same from outside, as one that was not parked."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import chain, chord, group
from celery.canvas import StampingVisitor  # type: ignore[attr-defined]  # missing in celery-types
from redis import Redis

from tests.support.journal import Journal
from tests.support.state import State
from tests.support.waiting import until
from tests.support.workers import Workers
from tests.workers.conftest import FEATURES

FAR = datetime(2099, 1, 1, tzinfo=timezone.utc)
ACCEPT = ["json", "pickle", "yaml", "msgpack"]


class Stamps(StampingVisitor):  # type: ignore[misc]  # Celery is not typed
    def on_signature(self, sig: Any, **headers: Any) -> dict[str, Any]:  # noqa: ARG002
        return {"tenant": "acme", "stamped_headers": ["tenant"]}


def _stamped(app: Any, task_id: str) -> None:
    signature = app.echo.s(1)
    signature.stamp(visitor=Stamps())
    signature.apply_async(task_id=task_id)


def _sender(args: tuple[Any, ...] = (1,), kwargs: dict[str, Any] | None = None, **options: Any) -> Any:
    def send(app: Any, task_id: str) -> None:
        app.echo.apply_async(args, kwargs, task_id=task_id, **options)

    return send


def _linked(app: Any, task_id: str) -> None:
    app.echo.apply_async(
        (1,), task_id=task_id, link=[app.linked.s(), app.linked.si(2)], link_error=app.on_error.s(), retries=2
    )


def _of_a_group(app: Any, task_id: str) -> None:
    app.echo.apply_async((1,), task_id=task_id, group_id="the-group", group_index=3, root_id="root", parent_id="parent")


# The formats differ in a datetime, a set and bytes.
VALUES = {"when": FAR, "text": "äöü\N{SNOWMAN}\0", "raw": b"\x00\xff\x80"}

MESSAGES: dict[str, Callable[[Any, str], None]] = {
    "plain": _sender(),
    "kwargs": _sender((1, [2, {"three": None}]), {"text": VALUES["text"], "number": 1.5}),
    "no-arguments": _sender(()),
    "large": _sender(("x" * 200_000,)),
    "json-rich": _sender((), {"when": FAR, "raw": VALUES["raw"]}),
    "pickle": _sender((), {**VALUES, "set": {1}}, serializer="pickle"),
    "yaml": _sender((), {"when": FAR, "text": "äöü"}, serializer="yaml"),
    "msgpack": _sender((), {"text": "äöü", "list": [1, 2.5, None]}, serializer="msgpack"),
    "json-zlib": _sender(("y" * 1000,), compression="zlib"),
    "json-bzip2": _sender(("y" * 1000,), compression="bzip2"),
    "pickle-gzip": _sender((), {**VALUES, "set": {1}}, serializer="pickle", compression="gzip"),
    "headers": _sender(headers={"tenant": "acme", "nested": {"a": [1]}}),
    "priority": _sender(priority=7),
    "time-limits": _sender(time_limit=50, soft_time_limit=40.5),
    "expires": _sender(expires=FAR),
    "countdown": _sender(countdown=0.01),
    "eta": _sender(eta=datetime(2020, 1, 1, tzinfo=timezone(timedelta(hours=2)))),
    "shadow": _sender(shadow="a nicer name"),
    "reply": _sender(reply_to="somebody", correlation_id="about-that"),
    "ignore-result": _sender(ignore_result=True),
    "argsrepr": _sender(argsrepr="(hidden)", kwargsrepr="{hidden}"),
    "replaced-task-nesting": _sender(replaced_task_nesting=2),
    "stamps": _stamped,
    "links": _linked,
    "group": _of_a_group,
}


def _seen(journal: Journal) -> list[tuple[str, Any]]:
    return [(event["task_id"], json.loads(event["text"])) for event in journal.events() if event["event"] == "seen"]


def _wait_seen(journal: Journal, count: int, what: str) -> None:
    until(lambda: len(_seen(journal)) == count, timeout=20, describe=lambda: f"{what}: {len(_seen(journal))} so far")


@pytest.mark.parametrize(("protocol", "acks_late"), [(2, False), (2, True), (1, False)])
def test_parked_task_sees_an_unchanged_request(
    protocol: int, acks_late: bool, workers: Workers, journal: Journal, state: State
) -> None:
    workers.conf |= {"task_protocol": protocol, "accept_content": ACCEPT, "task_acks_late": acks_late}
    workers.conf["broker_transport_options"] = {"priority_steps": [0]}  # one list, so that the order is known
    workers.start(FEATURES, env={"C_FORCE_ROOT": "1"})  # else Celery refuses pickle where tests run as root
    app = workers.app(FEATURES)
    for number, (name, send) in enumerate(MESSAGES.items()):
        send(app, name)
        _wait_seen(journal, number + 1, name)
        until(state.is_empty, describe=name)
    direct = dict(_seen(journal))

    journal.wait_begun(app.blocker.delay("blocker"))
    for number, (name, send) in enumerate(MESSAGES.items()):
        send(app, name)
        state.wait_parked(number + 1)
    journal.let_go("blocker")
    _wait_seen(journal, 2 * len(MESSAGES), "all of them once more")
    parked = _seen(journal)[len(MESSAGES) :]

    assert [name for name, _ in parked] == list(MESSAGES), "not first come first served"
    changed = {name: found for name, seen in parked if (found := _differences(direct[name], seen))}
    assert changed == {}
    if protocol == 2:
        assert direct["stamps"][0]["stamps"] == {"tenant": "acme"}
    state.wait_empty()


def _differences(direct: Any, parked: Any) -> list[tuple[str, Any, Any]]:
    """Return the differences of two runs of the same message, except for names of one delivery or one moment."""
    before, after = ({**request, "()": args, "**": kwargs} for request, args, kwargs in (direct, parked))
    for request in (before, after):
        # The transport's time to live counts from the moment of publishing.
        request["properties"] = {**request["properties"], "delivery_tag": None, "expiration": None}
    found = []
    for name in sorted(before.keys() | after.keys()):
        one, other = before.get(name), after.get(name)
        soon = name == "eta" and one is not None and other is not None and not str(one).startswith("2020")
        if one != other and not soon:
            found.append((name, one, other))
    return found


def test_links_are_called_and_time_limits_hold_after_parking(workers: Workers, journal: Journal, state: State) -> None:
    app = workers.start_app(FEATURES, concurrency=3)
    app.blocker.delay("blocker")
    app.one_hold.delay("hold")
    journal.wait_running(2)
    app.echo.apply_async(("linked",), link=app.linked.s())
    failing = app.fail.apply_async(("bad",), link_error=app.on_error.s())
    soft = app.soft_limited.apply_async(("soft",), soft_time_limit=0.3, time_limit=30)
    hard = app.hard_limited.apply_async(("hard",), time_limit=0.6)
    after = app.one.delay("after")
    state.wait_parked(5)
    assert {result.state for result in (failing, soft, hard, after)} == {"PENDING"}
    journal.let_go("blocker", "hold")

    assert soft.get(timeout=20) == "soft: soft limit"
    assert after.get(timeout=20) == "after"
    assert hard.state == "FAILURE"
    assert type(hard.result).__name__ == "TimeLimitExceeded"
    journal.wait_finished(1, "linked:echo")
    journal.wait_finished(1, "on_error")
    assert isinstance(failing.get(propagate=False, timeout=10), ValueError)
    state.wait_empty()


def test_canvas(workers: Workers, journal: Journal, state: State) -> None:
    app = workers.start_app(FEATURES, count=2, concurrency=3)
    total = chord([app.work.s(f"part{number:02}", 0.01) for number in range(50)], app.collect.s())()
    several = group(app.one.s(f"member{number}") for number in range(6)).apply_async()
    line = chain(app.one.s("first"), app.follow.s("second"), app.follow.s("third")).apply_async()
    # A chord whose end is throttled, within a chain.
    nested = chain(
        group(app.work.s("left"), app.work.s("right")), app.collect.s("middle"), app.follow.si("end", "of the chain")
    ).apply_async()

    assert total.get(timeout=40) == [f"part{number:02}" for number in range(50)]
    assert several.get(timeout=20) == [f"member{number}" for number in range(6)]
    assert line.get(timeout=20) == "first>second>third"
    assert nested.get(timeout=20) == "end>of the chain"
    assert journal.max_running(task="features.work") == 2
    assert len(journal.runs(task="features.work")) == 52
    assert len(journal.runs(task="features.collect")) == 2
    state.wait_empty()


@pytest.fixture
def events(workers: Workers) -> Iterator[list[dict[str, Any]]]:
    """Every event that workers send, from now on."""
    app = workers.app(FEATURES).app
    received: list[dict[str, Any]] = []
    ready, stop = threading.Event(), threading.Event()

    def capture() -> None:
        with app.connection_for_read() as own:
            receiver = app.events.Receiver(own, handlers={"*": received.append})
            with receiver.consumer_context() as (connection, _, _):
                ready.set()
                while not stop.is_set():
                    try:
                        connection.drain_events(timeout=0.1)
                    except TimeoutError:
                        continue

    thread = threading.Thread(target=capture)
    thread.start()
    try:
        assert ready.wait(10)
        yield received
    finally:
        stop.set()
        thread.join()


def test_parked_task_has_not_started_for_any_observer(
    workers: Workers, journal: Journal, state: State, events: list[dict[str, Any]]
) -> None:
    workers.conf["task_track_started"] = True
    app = workers.start_app(FEATURES, concurrency=3, options=["-E"])
    holding = journal.wait_begun(app.one_hold.delay("hold"))
    waiting = [app.one.delay(f"one{number}") for number in range(4)]
    retrying = app.retry.delay("retry")
    state.wait_parked(5)
    inspect = app.app.control.inspect(timeout=10, destination=[journal.runs()[0].worker])
    (active,), (reserved,) = inspect.active().values(), inspect.reserved().values()
    assert [task["id"] for task in active] == [holding.id]
    assert reserved == []
    assert holding.state == "STARTED"
    assert {result.state for result in (*waiting, retrying)} == {"PENDING"}
    assert [event["task_id"] for event in _of(journal, "prerun")] == [holding.id]
    journal.let_go("hold")

    assert [result.get(timeout=20) for result in waiting] == [f"one{number}" for number in range(4)]
    assert retrying.get(timeout=20) == "retry"
    ids = [holding.id, *(result.id for result in waiting)]
    until(lambda: {("task-succeeded", task_id) for task_id in ids} <= set(_kinds(events)), describe=lambda: events)
    for kind in ("task-received", "task-started", "task-succeeded"):
        assert [task_id for found, task_id in _kinds(events) if found == kind and task_id in ids] == ids, kind
    preruns = [event["task_id"] for event in _of(journal, "prerun")]
    assert [task_id for task_id in preruns if task_id in ids] == ids
    assert preruns.count(retrying.id) == 3
    assert [run.attempt for run in journal.runs("retry")] == [0, 1, 2]
    assert not {"task-failed", "task-rejected", "task-revoked"} & {kind for kind, _ in _kinds(events)}


def _of(journal: Journal, kind: str) -> list[dict[str, Any]]:
    return [event for event in journal.events() if event["event"] == kind]


def _kinds(events: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(event["type"], event.get("uuid", "")) for event in list(events)]


def test_other_ways_to_end_a_task(workers: Workers, journal: Journal, state: State, redis: Redis) -> None:
    worker = workers.start(FEATURES, concurrency=3)
    app = workers.app(FEATURES)
    for label in ("direct", "parked"):
        if label == "parked":
            journal.wait_begun(app.one_hold.delay("hold"))
        retrying = app.retry.delay(f"{label} retry", times=3)
        failing = app.auto_retry.delay(f"{label} auto_retry")
        replacing = app.replace.delay(f"{label} replace")
        app.ignore.delay(f"{label} ignore")
        app.reject.delay(f"{label} reject", requeue=False)
        app.reject.delay(f"{label} requeue", requeue=True)  # means nothing once acknowledged
        app.reject_late.delay(f"{label} reject_late", requeue=False)
        again = app.reject_late.delay(f"{label} requeue_late", requeue=True, runs=3)
        last = app.one.delay(f"{label} last")
        if label == "parked":
            state.wait_parked(9)
            journal.let_go("hold")

        assert retrying.get(timeout=20) == f"{label} retry"
        assert [run.attempt for run in journal.runs(f"{label} retry")] == [0, 1, 2, 3]
        assert isinstance(failing.get(propagate=False, timeout=20), ValueError)
        assert [run.attempt for run in journal.runs(f"{label} auto_retry")] == [0, 1, 2]
        assert replacing.get(timeout=20) == f"{label} replace-replaced"
        assert len(journal.runs(f"{label} replace")) == 1
        assert again.get(timeout=20) == f"{label} requeue_late"
        assert len(journal.runs(f"{label} requeue_late")) == 3
        assert last.get(timeout=20) == f"{label} last"
        state.wait_empty()
        for name in ("ignore", "reject", "requeue", "reject_late"):
            assert len(journal.runs(f"{label} {name}")) == 1, name
    assert journal.max_running() == 1
    assert not redis.hlen("unacked"), "a message was not acknowledged"
    assert "celery_throttle: error" not in worker.log()


def test_a_parked_task_is_replaced_by_a_chain(workers: Workers, journal: Journal, state: State) -> None:
    """Celery gives the last of the chain the id of the task that it replaces, and the number of its attempt."""
    app = workers.start_app(FEATURES, concurrency=3)
    journal.wait_begun(app.one_hold.delay("hold"))
    replaced = app.replace_by_chain.delay("parked")
    state.wait_parked(1)
    journal.let_go("hold")
    assert replaced.get(timeout=20) == "parked-first>parked-last"
    state.wait_empty()


@pytest.mark.parametrize("task", ["one", "one_late"])
def test_note_goes_with_the_acknowledgement(
    workers: Workers, journal: Journal, state: State, redis: Redis, task: str
) -> None:
    """Only a task that the broker may deliver again is remembered as having run, for a day."""
    app = workers.start_app(FEATURES, concurrency=3)
    journal.wait_begun(app.one_hold.delay("hold"))
    assert app.work_late.delay("direct").get(timeout=20) == "direct"
    parked = [getattr(app, task).delay(str(number)) for number in range(8)]
    state.wait_parked(8)
    journal.let_go("hold")
    assert [each.get(timeout=20) for each in parked] == [str(number) for number in range(8)]
    state.wait_empty()
    assert not list(redis.scan_iter("*:ran"))


def test_replacement_of_a_parked_task(workers: Workers, journal: Journal, state: State) -> None:
    """It has the same id, and the store may still have the first message, which the broker has forgotten."""
    app = workers.start_app(FEATURES, concurrency=3)
    for number in range(20):
        # Parked, and resumed right after that: the hold ends as soon as they are there.
        app.one_hold.delay(f"hold {number}")
        journal.wait_running(1, f"hold {number}")
        journal.let_go(f"hold {number}")
        for letter in "abc":
            app.replace.delay(f"{number}{letter}")
    labels = {f"{number}{letter}" for number in range(20) for letter in "abc"}
    journal.wait_finished(140, timeout=30)
    assert {run.label for run in journal.runs(task="features.one")} == {f"{label}-replaced" for label in labels}
    assert len(journal.runs()) == 140
    state.wait_empty()
