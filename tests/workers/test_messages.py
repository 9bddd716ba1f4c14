"""A parked task has the same request, and looks the same from outside, as one that was not parked."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import celery
import pytest
from celery import chain, chord, group
from celery.canvas import StampingVisitor  # type: ignore[attr-defined]  # missing in celery-types
from celery.exceptions import Ignore, Reject
from celery.signals import task_prerun
from redis import Redis

from celery_throttle import Limit, Throttled
from celery_throttle.core.keys import Keys
from tests.support.kit import assert_all_ended, begun, new_app, task_maker
from tests.support.monitor import Monitor
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_throttle.embedded import EmbeddedServer
    from celery_throttle.testing import ThrottleTest

# -- the app -----------------------------------------------------------------------------------------------------------

FAR = datetime(2099, 1, 1, tzinfo=timezone.utc)
SINGLE = Limit("single", 1)

APP = new_app("messages", accept_content=["json", "pickle", "yaml", "msgpack"], task_track_started=True)
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


def of_chord(labels: list[str], label: str = "collect") -> list[str]:  # noqa: ARG001 - to be told from others
    return sorted(labels)


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
two = make_task("two", base=Throttled, limit=2)
fails = make_task("fails", fail, base=Throttled, limit=SINGLE)
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
collect = make_task("collect", of_chord)
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


def _linked(task: Any, task_id: str) -> None:
    links = {"link": [note.s("linked"), note.si("", "linked")], "link_error": note_error.s()}
    task.apply_async((1,), task_id=task_id, retries=2, **links)


def _of_a_group(task: Any, task_id: str) -> None:
    task.apply_async((1,), task_id=task_id, group_id="the-group", group_index=3, root_id="root", parent_id="parent")


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


@acknowledged_in_time
@pytest.mark.usefixtures("throttle_worker")
@pytest.mark.parametrize(
    ("task", "protocol"),
    [
        pytest.param(echo, 2, id="early"),
        pytest.param(echo_late, 2, id="late"),
        pytest.param(echo, 1, id="protocol 1", marks=pytest.mark.throttle(task_protocol=1)),
    ],
)
def test_parked_task_sees_an_unchanged_request(throttle: ThrottleTest, task: Any, protocol: int) -> None:
    SEEN.clear()
    for number, (name, send) in enumerate(MESSAGES.items(), 1):
        send(task, name)
        until(lambda: len(SEEN) == number and not throttle.control.holders(), describe=name)  # noqa: B023
    direct = dict(SEEN)
    SEEN.clear()
    with throttle.hold(SINGLE):
        for number, (name, send) in enumerate(MESSAGES.items(), 1):
            send(task, name)
            until(lambda: throttle.control.limit(SINGLE).status().parked == number, describe=name)  # noqa: B023
    until(lambda: len(SEEN) == len(MESSAGES))

    assert [name for name, _ in SEEN] == list(MESSAGES), "not first come first served"
    assert {name: found for name, seen in SEEN if (found := _differences(direct[name], seen))} == {}
    if protocol == 2:
        assert direct["stamps"]["stamps"] == {"tenant": "acme"}
    assert_all_ended(throttle)


def _differences(before: dict[str, Any], after: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return the differences of two runs of the same message, except for names of one delivery or one moment."""
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


# -- its callbacks and its end -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("throttle_worker")
def test_links_are_called_after_parking(throttle: ThrottleTest) -> None:
    with throttle.hold(SINGLE):
        linked = one.apply_async(("a",), link=note.s("linked"))
        failing = fails.apply_async(("bad",), link_error=note_error.s())
        for each in (linked, failing):
            throttle.assert_parked(each)
            assert each.state == "PENDING"
    throttle.assert_ran(note.s("a", "linked"), times=1)
    throttle.assert_ran(note_error.s(failing.id), times=1)
    with pytest.raises(ValueError, match="bad"):
        failing.get(timeout=20)
    assert_all_ended(throttle)


def test_canvas(throttle: ThrottleTest) -> None:
    with throttle.run_worker(), throttle.run_worker():
        total = chord([two.s(f"part{number:02}") for number in range(50)], collect.s())()
        several = group(one.s(f"member{number}") for number in range(6)).apply_async()
        line = chain(one.s("first"), follow.s("second"), follow.s("third")).apply_async()
        # A chord whose end is throttled, within a chain.
        pair = group(two.s("left"), two.s("right"))
        nested = chain(pair, collect.s("middle"), follow.si("end", "of the chain")).apply_async()

        assert total.get(timeout=40) == [f"part{number:02}" for number in range(50)]
        assert several.get(timeout=20) == [f"member{number}" for number in range(6)]
        assert line.get(timeout=20) == "first>second>third"
        assert nested.get(timeout=20) == "end>of the chain"
        throttle.assert_ran(two, times=52)
        throttle.assert_ran(collect, times=2)
        throttle.assert_most_at_once(two, 2, at_most=True)
        assert_all_ended(throttle)


@pytest.fixture
def preruns() -> Iterator[list[str]]:
    """The ids of the tasks whose bodies have begun; a test asks for it before the kit, whose gate holds a signal."""
    ids: list[str] = []

    def begins(task_id: str, **_: Any) -> None:
        ids.append(task_id)

    task_prerun.connect(begins)
    yield ids
    task_prerun.disconnect(begins)


@pytest.mark.throttle(worker_send_task_events=True)
def test_parked_task_has_not_started_for_any_observer(preruns: list[str], throttle: ThrottleTest) -> None:
    with Monitor(APP) as monitor, throttle.run_worker() as worker:
        with throttle.gate():
            holding = begun(throttle, one.delay("hold"))
            waiting = [one.delay(f"one{number}") for number in range(4)]
            retrying = retries.delay("retry")
            throttle.assert_line(SINGLE, [*waiting, retrying])
            inspect = APP.control.inspect(timeout=10, destination=[worker.node])
            (active,), (reserved,) = inspect.active().values(), inspect.reserved().values()
            # The process has one state for all workers, also for those that earlier tests have lost.
            others = {result.id for result in (*waiting, retrying)}
            assert holding.id in {task["id"] for task in active}
            assert not others & {task["id"] for task in (*active, *reserved)}
            assert {result.state for result in (*waiting, retrying)} == {"PENDING"}
            assert preruns == [holding.id]

        assert [result.get(timeout=20) for result in waiting] == [f"one{number}" for number in range(4)]
        assert retrying.get(timeout=20) == "retry"
        ids = [holding.id, *(result.id for result in waiting)]
        for task_id in ids:
            monitor.wait_for(task_id, "task-succeeded")
    kinds = [(event["type"], event.get("uuid", "")) for event in monitor.seen]
    for kind in ("task-received", "task-started", "task-succeeded"):
        assert [task_id for found, task_id in kinds if found == kind and task_id in ids] == ids, kind
    assert [task_id for task_id in preruns if task_id in ids] == ids
    assert preruns.count(retrying.id) == 3
    assert not {"task-failed", "task-rejected", "task-revoked"} & {kind for kind, _ in kinds}


@pytest.mark.usefixtures("throttle_worker")
@pytest.mark.parametrize("parked", [False, True], ids=["direct", "parked"])
def test_other_ways_to_end_a_task(
    throttle: ThrottleTest, redis: Redis, caplog: pytest.LogCaptureFixture, *, parked: bool
) -> None:
    with throttle.hold(SINGLE) if parked else nullcontext():
        retrying = retries.delay("retry", times=3)
        failing = retries_itself.delay("fail")
        replacing = replaced.delay("replace")
        ignored.delay("ignore")
        rejected.delay("reject", requeue=False)
        rejected.delay("requeue", requeue=True)  # means nothing once acknowledged
        rejected_late.delay("reject", requeue=False)
        again = rejected_late.delay("requeue", requeue=True, runs=3)
        last = one.delay("last")
        if parked:
            throttle.settle()
            assert throttle.control.limit(SINGLE).status().parked == 9

    for result, value in ((retrying, "retry"), (replacing, "replace-replaced"), (again, "requeue"), (last, "last")):
        assert result.get(timeout=20) == value
    assert isinstance(failing.get(propagate=False, timeout=20), ValueError)
    for task, times in (
        (retries, 4),
        (retries_itself, 3),
        (replaced, 1),
        (ignored, 1),
        (rejected, 2),
        (rejected_late, 4),
    ):
        throttle.assert_ran(task, times=times)
    assert_all_ended(throttle)
    throttle.assert_most_at_once(SINGLE, 1)
    assert not redis.hlen(f"{throttle.prefix}:unacked"), "a message was not acknowledged"
    assert "celery_throttle: error" not in caplog.text


@pytest.mark.usefixtures("throttle_worker")
def test_a_message_is_acknowledged_late(throttle: ThrottleTest, redis: Redis) -> None:
    with throttle.gate():
        begun(throttle, one_late.delay("a"))
        assert redis.hlen(f"{throttle.prefix}:unacked") == 1


@pytest.mark.usefixtures("throttle_worker")
def test_a_parked_task_is_replaced_by_a_chain(throttle: ThrottleTest) -> None:
    """Celery gives the last of the chain the id of the task that it replaces, and the number of its attempt."""
    with throttle.hold(SINGLE):
        result = replaced_by_chain.delay("parked")
        throttle.assert_parked(result)
    assert result.get(timeout=20) == "parked-first>parked-last"
    assert_all_ended(throttle)


@acknowledged_in_time
@pytest.mark.usefixtures("throttle_worker")
@pytest.mark.parametrize("task", [one, one_late], ids=["early", "late"])
def test_note_goes_with_the_acknowledgement(throttle: ThrottleTest, redis: Redis, task: Any) -> None:
    """Only a task that the broker may deliver again is remembered as having run, for a day."""
    with throttle.hold(SINGLE):
        parked = [task.delay(str(number)) for number in range(8)]
        throttle.assert_line(SINGLE, parked)
    assert [each.get(timeout=20) for each in parked] == [str(number) for number in range(8)]
    assert_all_ended(throttle)
    until(lambda: not redis.exists(Keys(throttle.prefix).key("records")))


@pytest.mark.usefixtures("throttle_worker")
def test_replacement_of_a_parked_task(throttle: ThrottleTest) -> None:
    """It has the same id, and the store may still have the first message, which the broker has forgotten."""
    results = []
    for number in range(20):
        with SINGLE.acquire(timeout=20, app=APP):  # parked, and resumed right after that
            results += [replaced.delay(f"{number}{letter}") for letter in "abc"]
    assert [each.get(timeout=30) for each in results] == [
        f"{number}{letter}-replaced" for number in range(20) for letter in "abc"
    ]
    throttle.assert_ran(replaced, times=60)
    throttle.assert_ran(one, times=60)
    assert_all_ended(throttle)
