"""A parked task has the same request, and looks the same from outside, as one that was not parked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import datetime, timedelta, timezone
from typing import Any

import celery
import pytest
from celery import states
from celery.canvas import StampingVisitor  # type: ignore[attr-defined]  # missing in celery-types
from celery.exceptions import Ignore, Reject
from celery.signals import task_prerun
from redis import Redis

from celery_throttle import Limit, Throttled
from celery_throttle.core.keys import Keys
from celery_throttle.embedded import EmbeddedServer
from celery_throttle.testing import ThrottleTest
from tests.support.kit import assert_all_ended, begun, new_app, task_maker
from tests.support.monitor import Monitor
from tests.support.waiting import HANGS_AFTER, until

# -- the app -----------------------------------------------------------------------------------------------------------

FAR = datetime(2099, 1, 1, tzinfo=timezone.utc)
SINGLE = Limit("single", 1)

APP = new_app(
    "messages",
    accept_content=["json", "pickle", "yaml", "msgpack"],
    task_track_started=True,
    worker_send_task_events=True,
)
make_task = task_maker(APP)

#: The requests and arguments that tasks have seen.
SEEN: list[tuple[str, Any]] = []
RUNS: Counter[str] = Counter()


def see(self: Any, *args: Any, **kwargs: Any) -> None:
    request = {name: value for name, value in vars(self.request).items() if not name.startswith("_")}
    SEEN.append((self.request.id, request | {"()": args, "**": kwargs}))


def fail(label: str) -> None:
    raise ValueError(label)


def retry_at_times(self: Any, label: str, times: int = 2) -> str:
    if self.request.retries < times:
        raise self.retry(countdown=0)
    return label


def replace(self: Any, label: str) -> None:
    raise self.replace(one.s(f"{label}-replaced"))


def replace_by_chain(self: Any, label: str) -> None:
    raise self.replace(one.s(f"{label}-first") | follow.s(f"{label}-last"))


def ignore(_label: str) -> None:
    raise Ignore


def reject_at_times(self: Any, label: str, *, requeue: bool, runs: int = 2) -> str:
    RUNS[self.request.id] += 1
    if RUNS[self.request.id] < runs:
        raise Reject("not now", requeue=requeue)
    return label


def of_link(before: str, label: str) -> str:
    return f"{before}>{label}"


def of_errback(task_id: str) -> str:
    """Return the id of the task that failed. With one argument each version of Celery runs it as a task."""
    return task_id


def of_callback(_outcome: object, label: str) -> str:
    return label


echo = make_task("echo", see, bind=True, base=Throttled, limit=SINGLE)
echo_late = make_task("echo_late", see, bind=True, base=Throttled, limit=SINGLE, acks_late=True)
one = make_task("one", base=Throttled, limit=SINGLE)
one_late = make_task("one_late", base=Throttled, limit=SINGLE, acks_late=True)
retries = make_task("retries", retry_at_times, bind=True, base=Throttled, limit=SINGLE, max_retries=3)
retries_itself = make_task(
    "retries_itself", fail, base=Throttled, limit=SINGLE,
    autoretry_for=(ValueError,), max_retries=2, retry_backoff=False, default_retry_delay=0,
)  # fmt: skip
replaced = make_task("replaced", replace, bind=True, base=Throttled, limit=SINGLE)
replaced_by_chain = make_task("replaced_by_chain", replace_by_chain, bind=True, base=Throttled, limit=SINGLE)
ignored = make_task("ignored", ignore, base=Throttled, limit=SINGLE)
rejected = make_task("rejected", reject_at_times, bind=True, base=Throttled, limit=SINGLE)
rejected_late = make_task("rejected_late", reject_at_times, bind=True, base=Throttled, limit=SINGLE, acks_late=True)
follow = make_task("follow", of_link, base=Throttled, limit=SINGLE)
note = make_task("note", of_callback)
note_error = make_task("note_error", of_errback)


acknowledged_in_time = pytest.mark.skipif(
    celery.VERSION < (5, 7), reason="with threads a message is acknowledged after the run, which is remembered then"
)


@pytest.fixture
def redis(server: EmbeddedServer) -> Iterator[Redis]:
    """A client of the server, whose data stays."""
    with Redis.from_url(server.url) as client:
        yield client


# -- the request -------------------------------------------------------------------------------------------------------


class Stamps(StampingVisitor):  # type: ignore[misc]  # Celery is not typed
    def on_signature(self, sig: Any, **headers: Any) -> dict[str, Any]:  # noqa: ARG002
        return {"tenant": "acme", "stamped_headers": ["tenant"]}


def _stamped(task: Any, task_id: str) -> None:
    signature = task.s(1)
    signature.stamp(visitor=Stamps())
    signature.apply_async(task_id=task_id)


def _sender(args: tuple[Any, ...] = (1,), kwargs: dict[str, Any] | None = None, **options: Any) -> Any:
    def send(task: Any, task_id: str) -> None:
        task.apply_async(args, kwargs, task_id=task_id, **options)

    return send


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
    "links": _sender(link=[note.s("linked"), note.si("", "linked")], link_error=note_error.s(), retries=2),
    "group": _sender(group_id="the-group", group_index=3, root_id="root", parent_id="parent"),
}


@acknowledged_in_time
@pytest.mark.parametrize(
    ("task", "protocol"),
    [
        pytest.param(echo, 2, id="early"),
        pytest.param(echo_late, 2, id="late"),
        pytest.param(echo, 1, id="protocol 1", marks=pytest.mark.throttle(task_protocol=1)),
    ],
)
def test_parked_task_sees_an_unchanged_request(kit: ThrottleTest, task: Any, protocol: int) -> None:
    SEEN.clear()
    for number, (name, send) in enumerate(MESSAGES.items(), 1):
        send(task, name)
        until(lambda: len(SEEN) == number and not kit.control.holders(), describe=name)  # noqa: B023
    direct = dict(SEEN)
    SEEN.clear()
    with kit.hold(SINGLE):
        for number, (name, send) in enumerate(MESSAGES.items(), 1):
            send(task, name)
            until(lambda: kit.control.limit(SINGLE).status().parked == number, describe=name)  # noqa: B023
    until(lambda: len(SEEN) == len(MESSAGES))

    assert [name for name, _ in SEEN] == list(MESSAGES), "not first come first served"
    for name, request in SEEN:
        assert _compared(request) == _compared(direct[name]), name
    if protocol == 2:
        assert direct["stamps"]["stamps"] == {"tenant": "acme"}
    assert_all_ended(kit)


def _compared(request: dict[str, Any]) -> dict[str, Any]:
    """Return a request without the names of one publication, one delivery or one moment."""
    # The transport's time to live counts from the moment of publishing.
    properties = {**request["properties"], "delivery_tag": None, "expiration": None}
    eta = request.get("eta")
    compared = {**request, "properties": properties, "eta": eta if str(eta).startswith("2020") else bool(eta)}
    for headers in (compared, compared.get("headers") or {}):
        if "throttle" in headers:
            headers["throttle"] = {**headers["throttle"], "publication": None}
    return {name: value for name, value in compared.items() if value is not None}


# -- its callbacks and its end -----------------------------------------------------------------------------------------


@pytest.fixture
def preruns() -> Iterator[list[str]]:
    """The ids of the tasks whose bodies have begun; a test asks for it before the kit, whose gate holds a signal."""
    ids: list[str] = []

    def begins(task_id: str, **_: Any) -> None:
        ids.append(task_id)

    task_prerun.connect(begins)
    yield ids
    task_prerun.disconnect(begins)


def prefetched(monitor: Monitor) -> dict[str, int]:
    """Return Flower's gauge ``flower_worker_prefetched_tasks``: received by a worker, less those that it started."""
    gauge: Counter[str] = Counter()
    for event in monitor.seen:
        if event["type"] in ("task-received", "task-started"):
            gauge[event["hostname"]] += 1 if event["type"] == "task-received" else -1
    return dict(gauge)


def test_where_a_parked_task_is_found(preruns: list[str], throttle: ThrottleTest, redis: Redis) -> None:
    """The table in docs/howto/operate.md, row by row. For no observer it has started."""
    with Monitor(APP) as monitor, throttle.run_worker() as worker:
        with throttle.gate():
            holding = begun(throttle, one.delay("hold"))
            waiting = [one.delay(f"one{number}") for number in range(4)]
            retrying, revoked = retries.delay("retry"), one.delay("revoked")
            parked = [*waiting, retrying, revoked]
            throttle.assert_line(SINGLE, parked)

            # In no answer of inspect. The process has one state for all workers, also for those of earlier tests.
            inspect = APP.control.inspect(timeout=HANGS_AFTER, destination=[worker.node])
            answers = {command: str(getattr(inspect, command)()) for command in ("active", "reserved", "scheduled")}
            answers["query_task"] = str(inspect.query_task(parked[0].id))
            assert holding.id in answers["active"]
            assert [each.id for each in parked for answer in answers.values() if each.id in answer] == []

            # In no queue, and not unacknowledged.
            assert redis.llen(f"{throttle.prefix}:celery") == APP.control.purge() == 0
            unacknowledged = str(redis.hvals(f"{throttle.prefix}:unacked"))
            assert [each.id for each in parked if each.id in unacknowledged] == []

            # Pending in the result backend, and received for `celery events` and Flower.
            assert {(result.state, result.ready()) for result in parked} == {(states.PENDING, False)}
            monitor.wait_for(revoked.id, "throttle-parked")
            shown = monitor.state.tasks[revoked.id]
            assert (shown.state, shown.worker.hostname) == (states.RECEIVED, worker.node)
            assert monitor.types(revoked.id) == ["task-received", "throttle-parked"]
            assert preruns == [holding.id]

            # It ends at once when it is revoked.
            revoked.revoke()
            throttle.assert_dropped(revoked)
            monitor.wait_for(revoked.id, "task-revoked")

        assert [result.get(timeout=HANGS_AFTER) for result in waiting] == [f"one{number}" for number in range(4)]
        assert retrying.get(timeout=HANGS_AFTER) == "retry"
        ids = [holding.id, *(result.id for result in waiting)]
        for task_id in (*ids, retrying.id):
            monitor.wait_for(task_id, "task-succeeded")
    kinds = [(event["type"], event.get("uuid", "")) for event in monitor.seen]
    for kind in ("task-received", "task-started", "task-succeeded"):
        assert [task_id for found, task_id in kinds if found == kind and task_id in ids] == ids, kind
    assert [task_id for task_id in preruns if task_id in ids] == ids
    assert preruns.count(retrying.id) == 3
    assert not {"task-failed", "task-rejected"} & {kind for kind, _ in kinds}
    assert prefetched(monitor) == {worker.node: 1}, "the revoked one was received, and never started"


def test_gauge_of_flower_is_off_if_another_worker_starts_the_task(throttle: ThrottleTest) -> None:
    with Monitor(APP) as monitor, throttle.run_worker(queues=["idle"]) as second:
        with throttle.hold(SINGLE):
            with throttle.run_worker() as first:
                waits = one.delay("waits")
                throttle.assert_parked(waits)
            APP.control.add_consumer("celery", destination=[second.node], reply=True, timeout=HANGS_AFTER)
        monitor.wait_for(waits.id, "task-succeeded")
    assert prefetched(monitor) == {first.node: 1, second.node: -1}


@pytest.mark.parametrize("parked", [False, True], ids=["direct", "parked"])
def test_other_ways_to_end_a_task(
    kit: ThrottleTest, redis: Redis, caplog: pytest.LogCaptureFixture, *, parked: bool
) -> None:
    with kit.hold(SINGLE) if parked else nullcontext():
        retrying = retries.delay("retry", times=3)
        failing = retries_itself.apply_async(("fail",), link_error=note_error.s())
        replacing = replaced.delay("replace")
        ignored.delay("ignore")
        rejected.delay("reject", requeue=False)
        rejected.delay("requeue", requeue=True)  # means nothing once acknowledged
        rejected_late.delay("reject", requeue=False)
        again = rejected_late.delay("requeue", requeue=True, runs=3)
        last = one.apply_async(("last",), link=note.s("linked"))
        if parked:
            kit.settle()
            assert kit.control.limit(SINGLE).status().parked == 9

    for result, value in ((retrying, "retry"), (replacing, "replace-replaced"), (again, "requeue"), (last, "last")):
        assert result.get(timeout=HANGS_AFTER) == value
    assert isinstance(failing.get(propagate=False, timeout=HANGS_AFTER), ValueError)
    for task, times in (
        (retries, 4),
        (retries_itself, 3),
        (replaced, 1),
        (ignored, 1),
        (rejected, 2),
        (rejected_late, 4),
        (note.s("last", "linked"), 1),
        (note_error.s(failing.id), 1),
    ):
        kit.assert_ran(task, times=times)
    assert_all_ended(kit)
    kit.assert_most_at_once(SINGLE, 1)
    assert not redis.hlen(f"{kit.prefix}:unacked"), "a message was not acknowledged"
    assert "celery_throttle: error" not in caplog.text


@acknowledged_in_time
@pytest.mark.parametrize("task", [one, one_late], ids=["early", "late"])
def test_note_goes_with_the_acknowledgement(kit: ThrottleTest, redis: Redis, task: Any) -> None:
    """Only a task that the broker may deliver again is remembered as having run, for a day."""
    with kit.gate():
        begun(kit, task.delay("first"))
        if task is one_late:
            assert redis.hlen(f"{kit.prefix}:unacked") == 1
        parked = [task.delay(str(number)) for number in range(8)]
        kit.assert_line(SINGLE, parked)
    assert [each.get(timeout=HANGS_AFTER) for each in parked] == [str(number) for number in range(8)]
    assert_all_ended(kit)
    until(lambda: not redis.exists(Keys(kit.prefix).key("records")))


def test_replacement_of_a_parked_task(kit: ThrottleTest) -> None:
    """It has the same id, and the store may still have the first message, which the broker has forgotten.

    Celery gives the id to the last of a chain, too, and the number of the attempt.
    """
    results = []
    for number in range(20):
        with SINGLE.acquire(timeout=HANGS_AFTER, app=APP):  # parked, and resumed right after that
            results += [replaced.delay(f"{number}{letter}") for letter in "abc"]
            by_chain = replaced_by_chain.delay("parked")
    assert [each.get(timeout=HANGS_AFTER) for each in results] == [
        f"{number}{letter}-replaced" for number in range(20) for letter in "abc"
    ]
    assert by_chain.get(timeout=HANGS_AFTER) == "parked-first>parked-last"
    kit.assert_ran(replaced, times=60)
    kit.assert_ran(one, times=80)
    assert_all_ended(kit)
