"""What is told of tasks and limits: lines of the log for people, signals, events, and attributes of spans."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from celery import states
from celery.signals import task_postrun, task_prerun
from redis import Redis

import celery_throttle
from celery_throttle import DuplicateTask, Limit, RateLimited, StoreUnavailable, Throttled, signals
from celery_throttle.clients import StoreClient
from celery_throttle.embedded import EmbeddedServer
from celery_throttle.tasks.ours import REAP_TASK
from celery_throttle.testing import ThrottleTest
from celery_throttle.worker.reported.notices import Notices
from tests.support.journal import Journal
from tests.support.kit import begun, new_app, task_maker
from tests.support.monitor import Monitor
from tests.support.waiting import HANGS_AFTER, until
from tests.support.workers import Workers

TOLD = "tests.support.apps.told"
MANY, ROUNDS = 150, 40
API, TENANT = Limit("api", 4), Limit("tenant", 1, key="tenant_id")

APP: Any = new_app("told", worker_send_task_events=True, task_send_sent_event=True, throttle_tags={"gpu_box": "a7"})


def slow_down() -> None:
    raise RateLimited(0.001, max_rounds=ROUNDS)


def of_tenant(tenant_id: str) -> str:
    return tenant_id


def retry_once(self: Any) -> None:
    if not self.request.retries:
        raise self.retry(countdown=0.2)  # when its permit is free


make = partial(task_maker(APP), base=Throttled)
plain = task_maker(APP)("plain")
one = make("one", limit=1)
of_key = make("of_key", limit=1, key="label")
once = make("once", singleton=True)
raises = make("raises", singleton=True, on_conflict="raise")
skips = make("skips", singleton=True, on_conflict="skip")
crowd = make("crowd", limit=1, max_parked=2)
slow = make("slow", slow_down, limit=4)
call = make("call", of_tenant, limit=[API, TENANT])
same = make("same", limit=API)
train = make("train", limit=Limit("gpu", 1, per="gpu_box"))
alone = make("alone", retry_once, limit=1, bind=True)


# -- the log -----------------------------------------------------------------------------------------------------------


class Log:
    """The messages of the library in this process, at INFO and above."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog
        caplog.set_level(logging.INFO, "celery_throttle")

    def wait_for(self, pattern: str) -> None:
        """Wait until a whole message is as in the pattern."""
        until(lambda: any(re.fullmatch(pattern, each) for each in self._caplog.messages), describe=self._text)

    def seconds(self, pattern: str) -> float:
        """Return the time from the first message that begins so to the last."""
        times = [each.created for each in self._caplog.records if re.match(rf"{pattern}\b", each.getMessage())]
        return max(times) - min(times)

    def counts(self, pattern: str) -> list[int]:
        """Return the number of tasks of each message that names one and counts the others."""
        lines = [each for each in self._caplog.messages if re.match(rf"{pattern}\b", each)]
        others = (re.search(r"; and (\d+) more in the last second$", line) for line in lines)
        return [1 + (int(found[1]) if found else 0) for found in others]

    def wait_counted(self, pattern: str, tasks: int) -> list[int]:
        """Wait until messages count so many tasks, in one a second; return the number of each.

        The first is logged at once, and counts one.
        """
        until(lambda: sum(self.counts(pattern)) == tasks, describe=self._text)
        counts = self.counts(pattern)
        assert counts[0] == 1
        assert len(counts) <= 2 + self.seconds(pattern)
        return counts

    def _text(self) -> str:
        return self._caplog.text


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Log:
    return Log(caplog)


def test_why_a_task_is_parked(kit: ThrottleTest, log: Log) -> None:
    """Behind which limit and key, or for which lock."""
    with kit.gate() as gate:
        holder, first = of_key.delay("acme"), once.delay("order")
        of_key.delay("init")
        gate.wait_for(3)
        parked, second = of_key.delay("acme"), APP.send_task(once.name, ["order"])
        lock = rf"Task {first.id} has its identity lock \(which runs, since .*"
        log.wait_for(rf"Task told\.once\[{second.id}\] parked\. {lock}")
        log.wait_for(
            rf"Task told\.of_key\[{parked.id}\] parked: place 1 in the line of told.of_key\[acme\], "
            rf"held by {holder.id}\. Limit told.of_key\[acme\] is full: 1 of 1 permits are held"
        )
    log.wait_for(rf"Task told\.of_key\[{parked.id}\] resumed after \d+(\.\d)? s")


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_answers_about_a_parked_task_come_in_any_order(log: Log, order: tuple[int, int]) -> None:
    """If the server has lost its scripts, it may answer the second call first."""
    request, calls = Mock(id="a"), Mock()
    request.name = "one"
    Notices(Mock(), Mock()).parked(Mock(request=request, id="a"), calls)
    first, last = (calls.link.send.call_args_list[each].args[1] for each in order)
    first(StoreUnavailable("away"))
    assert log.counts("Task") == []
    last(StoreUnavailable("away"))
    log.wait_for(r"Task one\[a\] parked")


@contextmanager
def explained(server: EmbeddedServer) -> Iterator[list[int]]:
    """Put into a list how often the store was asked about one task meanwhile."""
    found: list[int] = []
    with Redis(port=server.port) as client, client.monitor() as monitor:
        yield found
        client.echo("the end")
        commands = list(takewhile(lambda each: each != "ECHO the end", (each["command"] for each in monitor.listen())))
    found.append(sum(each.startswith("EVALSHA ") and " explain " in each for each in commands))


def test_a_flood_is_a_line_a_second(own_server: EmbeddedServer, log: Log) -> None:
    with ThrottleTest(APP, url=lambda: own_server.url) as throttle, throttle.run_worker():
        with throttle.gate() as gate:
            one.delay("")
            gate.wait_for(1)
            with explained(own_server) as asked:
                for _ in range(MANY):
                    one.delay("")
                counts = log.wait_counted(r"Task told\.one\[\S+\] parked", MANY)
        assert asked == [len(counts)]
        log.wait_counted(r"Task told\.one\[\S+\] resumed", MANY)


def test_many_slow_downs_and_unparkable_tasks_are_one_line_a_second_too(kit: ThrottleTest, log: Log) -> None:
    slow.delay()
    message = r"Task told\.slow\[\S+\] is rate limited: asked too often, again in 0\.001 s"
    log.wait_counted(message, ROUNDS)
    with kit.hold(crowd):
        for _ in range(2 + MANY):  # two may wait; a caller that sends by name is not stopped
            APP.send_task(crowd.name, [""])
        message = r"Task told\.crowd\[\S+\] waits here, unacknowledged: as many are parked as max_parked allows"
        log.wait_counted(message, MANY)


def test_disabled_log_needs_no_store_call(own_server: EmbeddedServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "celery_throttle")
    with (
        ThrottleTest(APP, url=lambda: own_server.url) as throttle,
        throttle.run_worker(),
        explained(own_server) as asked,
    ):
        with throttle.hold(one):
            second = one.delay("")
            until(lambda: throttle.control.limit(one).status().parked == 1)
        second.get(timeout=HANGS_AFTER)
    assert asked == [0]
    assert not re.search(r"INFO|throttled|\] parked|resumed", caplog.text)


# -- signals and events ------------------------------------------------------------------------------------------------

NEEDS = ({"limit": one.name, "key": None, "permits": 1},)

Heard = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def heard() -> Iterator[Callable[[str], Heard]]:
    """``heard(name)`` returns senders and events of a signal; each signal has another receiver, which raises."""
    got: list[tuple[str, str, dict[str, Any]]] = []

    def fail(**_: Any) -> None:
        raise RuntimeError("a receiver that is broken")

    def receive(signal: Any, sender: str, event: Any, **_: Any) -> None:
        got.append((signal.name, sender, asdict(event)))

    names = ("task_parked", "task_resumed", "permit_reclaimed", "duplicate_dropped", "limit_changed")
    receivers = [(getattr(signals, name), receiver) for name in names for receiver in (fail, receive)]
    for signal, receiver in receivers:
        signal.connect(receiver, weak=False)
    yield lambda name: [(sender, event) for signal, sender, event in got if signal == name]
    for signal, receiver in receivers:
        signal.disconnect(receiver)


@pytest.fixture
def monitor(throttle: ThrottleTest) -> Iterator[Monitor]:
    """A monitor beside a worker."""
    with Monitor(APP) as monitor, throttle.run_worker():
        yield monitor


def test_parked_and_resumed(
    throttle: ThrottleTest, monitor: Monitor, heard: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "celery_throttle")
    with throttle.gate():
        first = begun(throttle, one.delay("first"))
        second = one.delay("second")
        parked = {"task_id": second.id, "task_name": one.name, "queue": "celery", "needs": NEEDS}
        until(lambda: heard("task_parked") == [(one.name, parked)])
        throttle.assert_parked(second)
        assert not heard("task_resumed")
        monitor.wait_for(second.id, "task-received", "throttle-parked")
        assert "throttle-resumed" not in monitor.types(second.id)
    assert second.get(timeout=HANGS_AFTER) == "second", "the receivers that raise stop nothing"
    ((sender, resumed),) = heard("task_resumed")
    assert 0 < resumed.pop("waited") < 30
    assert (sender, resumed) == (one.name, parked)
    assert "a receiver that is broken" in caplog.text
    for action in ("task_parked", "task_resumed"):
        (record,) = [vars(each) for each in caplog.records if getattr(each, "action", "") == action]
        assert (record["task_id"], record["task_name"]) == (second.id, one.name)

    monitor.wait_for(first.id, "task-succeeded")
    monitor.wait_for(second.id, "throttle-resumed", "task-succeeded")
    ours = (each for each in monitor.seen if each.get("uuid") == second.id and "throttle" in each["type"])
    told, resumed = ours
    assert (told["name"], told["queue"], told["limits"]) == (one.name, "celery", [one.name])
    assert resumed["waited"] > 0
    assert "throttle-parked" not in monitor.types(first.id)
    assert monitor.state.tasks[second.id].state == states.SUCCESS


def test_duplicates_in_the_publisher_and_in_the_worker(throttle: ThrottleTest, monitor: Monitor, heard: Any) -> None:
    with throttle.gate():
        first, skipped = begun(throttle, raises.delay("a")), begun(throttle, APP.send_task(skips.name, args=("b",)))
        with pytest.raises(DuplicateTask):
            raises.apply_async(("a",), task_id="here")
        skips.apply_async(("b",), task_id="there")
        elsewhere = APP.send_task(raises.name, args=("a",))
        again = APP.send_task(skips.name, args=("b",))
        monitor.wait_for("here", "throttle-duplicate")
        monitor.wait_for(elsewhere.id, "throttle-duplicate", "task-failed")
        monitor.wait_for(again.id, "throttle-duplicate", "task-revoked")
        told = until(lambda: (found := heard("duplicate_dropped"))[3:] and found)
    # In any order: a publisher that has no answer in time leaves it to the worker.
    assert {(sender, what["task_id"], what["first_id"], what["verdict"]) for sender, what in told} == {
        (raises.name, "here", first.id, "raise"),
        (raises.name, elsewhere.id, first.id, "duplicate"),
        (skips.name, "there", skipped.id, "skip"),
        (skips.name, again.id, skipped.id, "skip"),
    }
    monitor.wait_for(first.id, "task-succeeded")
    monitor.wait_for(skipped.id, "task-succeeded")
    of_elsewhere = [each for each in monitor.seen if each.get("uuid") == elsewhere.id]
    (event,) = [each for each in of_elsewhere if each["type"] == "throttle-duplicate"]
    assert (event["existing"], event["verdict"], event["name"]) == (first.id, "duplicate", raises.name)
    assert {task.state for task in monitor.state.tasks.values()} == {states.SUCCESS, states.FAILURE, states.REVOKED}
    assert "here" not in monitor.state.tasks, "it was never published, so no monitor should list it"


def test_returned_task_is_shown_as_started_when_it_runs_again(throttle: ThrottleTest, monitor: Monitor) -> None:
    with throttle.gate() as gate:
        result = slow.delay()
        for _ in range(2):
            gate.wait_for(1)
            gate.open(1)
        gate.wait_for(1)
        until(lambda: monitor.count(result.id, "throttle-rate-limited") == 2)
        until(lambda: monitor.count(result.id, "task-started") == 3)
        assert monitor.state.tasks[result.id].state == states.STARTED


def test_no_event_of_ours_looks_like_one_of_a_task() -> None:
    """Each type that begins with ``task-`` becomes a state of the task, which outranks STARTED."""
    texts = [path.read_text("utf-8") for path in Path(celery_throttle.__file__).parent.rglob("*.py")]
    events = {event for text in texts for event in re.findall(r'"((?:task|throttle)-[a-z-]+)"', text)}
    ours = ("duplicate", "lease-lost", "parked", "rate-limited", "resumed")
    assert events == {f"throttle-{name}" for name in ours}


@pytest.mark.usefixtures("hints_only")
@pytest.mark.parametrize("by", ["a worker", "the beat task"])
def test_reclaimed(
    throttle: ThrottleTest, heard: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    with throttle.gate(), throttle.run_worker() as lost:
        result = begun(throttle, one.delay("first"))
        assert APP.tasks[REAP_TASK]() == 0, "a live holder was cleared"
        with throttle.run_worker():
            lost.lose()
            with monkeypatch.context() as patched:
                patched.setattr(StoreClient, "reap", lambda _: [])  # else the clock of the kit reclaims it
                throttle.advance(60)
            if by == "a worker":
                throttle.assert_started(one.delay("next"))
                line = rf"reclaimed from task {one.name}\[{result.id}\]: worker w1@test\S* is lost or cut off from the"
                assert re.search(rf"Permit of limit {one.name} {line} store, and the lease ended \d.* ago", caplog.text)
            else:
                assert [APP.tasks[REAP_TASK](), APP.tasks[REAP_TASK]()] == [1, 0]
                assert throttle.control.limit(one).history().total.reclaimed == 1
            assert heard("permit_reclaimed") == [(one.name, {"task_id": result.id, "needs": NEEDS})]


def test_a_lost_lease(workers: Workers, journal: Journal) -> None:
    """A process that is frozen loses its lease."""
    frozen = workers.start(TOLD, concurrency=1, conf={"throttle_lease": 1})
    app = workers.app(TOLD)
    first = journal.wait_begun(app.hold.delay("first"))
    frozen.freeze()
    workers.start(TOLD, concurrency=1, queues="other")
    journal.wait_begun(app.hold.apply_async(["next"], queue="other"))
    frozen.thaw()
    need = {"limit": app.hold.name, "key": None, "permits": 1}
    lost = {"task_id": first.id, "task_name": app.hold.name, "needs": [need]}
    told = until(lambda: [each for each in journal.events() if each["event"] == "lease_lost"])
    assert [(each["sender"], each["what"]) for each in told] == [(app.hold.name, lost)]
    journal.let_go("first", "next")


def test_change_is_signalled(throttle: ThrottleTest, heard: Any) -> None:
    limit = throttle.control.limit(one)
    limit.override(3, until=60, by="ana", why="big day")
    assert [limit.reset(by="bob"), limit.reset(by="bob")] == [True, False]  # the second changes nothing
    changed: dict[str, Any] = {"limit": one.name, "key": None, "why": "", "until": None, "permits": None, "rates": ()}
    assert [what for _, what in heard("limit_changed")] == [
        changed | {"action": "override", "permits": 3, "by": "ana", "why": "big day", "until": 60},
        changed | {"action": "reset", "by": "bob"},
    ]


# -- spans -------------------------------------------------------------------------------------------------------------

WAITED = "celery_throttle.waited_ms"


class Spans:
    """Instruments Celery, as far as it matters here: a current span from task_prerun to task_postrun."""

    def __init__(self) -> None:
        trace = pytest.importorskip("opentelemetry.sdk.trace")
        export = pytest.importorskip("opentelemetry.sdk.trace.export")
        memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
        self.exporter = memory.InMemorySpanExporter()
        self._provider = trace.TracerProvider()
        self._provider.add_span_processor(export.SimpleSpanProcessor(self.exporter))
        self._current: dict[str, Any] = {}

    def begin(self, task: Any, task_id: str, **_: Any) -> None:
        self._current[task_id] = self._provider.get_tracer("tests").start_as_current_span(task.name)
        self._current[task_id].__enter__()

    def end(self, task_id: str, **_: Any) -> None:
        self._current.pop(task_id).__exit__(None, None, None)

    def marks(self) -> list[tuple[str, Mapping[str, Any]]]:
        """Return the limits and keys of each."""
        marks = [(span.name, dict(span.attributes)) for span in self.exporter.get_finished_spans()]
        return sorted(((name, {each: list(of[each]) for each in of if each != WAITED}) for name, of in marks), key=str)

    def waits(self) -> list[int]:
        """Return how long each waited, in the order in which they ended."""
        return [span.attributes.get(WAITED) for span in self.exporter.get_finished_spans()]


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spans]:
    """The spans; a test asks for it before the kit, whose gate holds a signal."""
    made = Spans()
    shown = "celery_throttle.worker.celery_side.wait_header._shown"
    monkeypatch.setattr(shown, False)  # as it is again when the test has ended
    from celery_throttle.contrib.opentelemetry import _mark, mark_spans  # noqa: PLC0415 - what it needs may not be there

    task_prerun.connect(made.begin)
    task_postrun.connect(made.end)
    mark_spans()
    yield made
    task_prerun.disconnect(made.begin)
    task_postrun.disconnect(made.end)
    task_prerun.disconnect(_mark)


def test_which_limits_and_keys_a_span_has(spans: Spans, kit: ThrottleTest) -> None:
    with kit.gate(call):
        begun(kit, call.delay("acme"))
        kit.assert_parked(call.delay(tenant_id="acme"))
        APP.send_task(call.name, ["zeta"])  # whose publisher has left out its keys
        for each in (plain, same, train, once):
            each.delay("a").get(timeout=HANGS_AFTER)
    until(lambda: len(spans.marks()) == 7)

    def marked(name: str, **values: list[str]) -> tuple[str, dict[str, list[str]]]:
        return f"told.{name}", {f"celery_throttle.{each}": value for each, value in values.items()}

    calls = [marked("call", limit=["tenant", "api"], key=[key]) for key in ("acme", "acme", "zeta")]
    others = [marked("same", limit=["api"], key=[]), marked("train", limit=["gpu"], key=["gpu_box=a7"])]
    assert spans.marks() == sorted([*calls, *others, marked("once"), marked("plain")], key=str)


def test_how_long_the_task_of_a_span_waited(spans: Spans, kit: ThrottleTest) -> None:
    with kit.hold(alone):
        began = time.monotonic()
        result = alone.delay()
        kit.assert_parked(result)
        parked_at = time.monotonic()
        until(lambda: time.monotonic() - parked_at > 0.3)
        shortest = time.monotonic() - parked_at
    result.get(timeout=HANGS_AFTER)
    longest = time.monotonic() - began
    until(lambda: len(spans.waits()) == 2)
    kit.assert_held(alone, 0)
    alone.apply_async(retries=1)
    until(lambda: len(spans.waits()) == 3)

    waited, retried, at_once = spans.waits()
    assert shortest * 1000 - 1 <= waited <= longest * 1000
    assert retried != waited  # though it has the headers of the attempt that waited; on a slow machine it waits, too
    assert at_once == 0


def test_second_connect_puts_it_behind_the_span(spans: Spans) -> None:
    """In a process of the pool, which may instrument Celery anew. A span whose arguments do not fit has no marks."""
    from celery_throttle.contrib.opentelemetry import _mark, mark_spans  # noqa: PLC0415 - what it needs may not be there

    def begins_the_span(**_: Any) -> None: ...

    task_prerun.connect(begins_the_span, weak=False)
    try:
        mark_spans()
        assert [each for _, each in task_prerun.receivers][-2:] == [begins_the_span, _mark]
    finally:
        task_prerun.disconnect(begins_the_span)
    with pytest.raises(TypeError, match="tenant_id"):  # as the body reports it
        call.apply(throw=True)
    assert spans.marks() == [("told.call", {})]
