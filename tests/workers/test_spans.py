"""The limits and the wait of a run on its OpenTelemetry span: a real worker, in this process, where the spans are."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker
from celery.signals import task_postrun, task_prerun

from celery_throttle import Limit, ThrottleControl, Throttled
from celery_throttle.embedded import EmbeddedServer
from tests.support.waiting import until

WAITED = "celery_throttle.waited_ms"
API, TENANT = Limit("api", 4), Limit("tenant", 1, key="tenant_id")
GPU = Limit("gpu", 1, per="gpu_box")


@pytest.fixture
def app(server: EmbeddedServer, redis: object) -> Any:
    assert redis  # which empties the server
    return Celery("traced", broker=server.url, backend=server.url, set_as_current=False)


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
        return sorted(
            (
                (span.name, {name: list(value) for name, value in span.attributes.items() if name != WAITED})
                for span in self.exporter.get_finished_spans()
            ),
            key=str,
        )

    def waits(self) -> list[int]:
        """Return how long each waited, in the order in which they ended."""
        return [span.attributes.get(WAITED) for span in self.exporter.get_finished_spans()]


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spans]:
    made = Spans()
    monkeypatch.setattr(
        "celery_throttle.worker.celery_side.wait_header._shown", False
    )  # as it is again when the test has ended
    from celery_throttle.contrib.opentelemetry import _mark, mark_spans  # noqa: PLC0415 - what it needs may not be there

    task_prerun.connect(made.begin)
    task_postrun.connect(made.end)
    mark_spans()
    yield made
    task_prerun.disconnect(made.begin)
    task_postrun.disconnect(made.end)
    task_prerun.disconnect(_mark)


@pytest.mark.usefixtures("log_as_before")
def test_which_limits_and_keys_it_has(app: Any, spans: Spans) -> None:
    going, on = threading.Event(), threading.Event()
    app.conf.throttle_tags = {"gpu_box": "a7"}

    def body(tenant_id: str) -> str:
        going.set()
        assert on.wait(20)
        return tenant_id

    def work() -> None: ...

    call = app.task(body, base=Throttled, limit=[API, TENANT], name="call", shared=False)
    others = [
        app.task(work, name="plain", shared=False),
        app.task(work, base=Throttled, limit=API, name="same", shared=False),
        app.task(work, base=Throttled, limit=GPU, name="train", shared=False),
        app.task(work, base=Throttled, singleton=True, name="once", shared=False),
    ]
    with start_worker(app, pool="threads", concurrency=4, perform_ping_check=False, shutdown_timeout=20):
        first = call.delay("acme")
        assert going.wait(20)
        parked = call.delay(tenant_id="acme")  # resumed by the end of the first
        sent = app.send_task("call", ["zeta"])  # whose publisher has left out its keys
        for each in others:
            each.delay().get(timeout=20)
        on.set()
        assert [each.get(timeout=20) for each in (first, parked, sent)] == ["acme", "acme", "zeta"]
        until(lambda: len(spans.marks()) == 7)

    def both(key: str) -> tuple[str, dict[str, list[str]]]:
        return "call", {"celery_throttle.limit": ["tenant", "api"], "celery_throttle.key": [key]}

    alone = ("same", {"celery_throttle.limit": ["api"], "celery_throttle.key": []})
    on_site = ("train", {"celery_throttle.limit": ["gpu"], "celery_throttle.key": ["gpu_box=a7"]})
    assert sorted(spans.marks(), key=str) == sorted(
        [both("acme"), both("acme"), both("zeta"), alone, on_site, ("once", {}), ("plain", {})], key=str
    )


@pytest.mark.usefixtures("log_as_before")
def test_how_long_it_waited(app: Any, spans: Spans) -> None:
    going, on = threading.Event(), threading.Event()

    def body(task: Any, label: str) -> str:
        if label == "first":
            going.set()
            assert on.wait(20)
        elif label == "again" and not task.request.retries:
            raise task.retry(countdown=0.5)  # when its permit is free
        return label

    alone = app.task(body, base=Throttled, limit=1, name="alone", shared=False, bind=True)
    control = ThrottleControl(app)
    with start_worker(app, pool="threads", concurrency=4, perform_ping_check=False, shutdown_timeout=20):
        first = alone.delay("first")
        assert going.wait(20)
        began = time.monotonic()
        second = alone.delay("again")
        until(lambda: control.parked("alone"))
        parked_at = time.monotonic()
        until(lambda: time.monotonic() - parked_at > 0.3)
        shortest = time.monotonic() - parked_at
        on.set()
        assert [each.get(timeout=20) for each in (first, second)] == ["first", "again"]
        longest = time.monotonic() - began
        until(lambda: len(spans.waits()) == 3)

    at_once, waited, retried = spans.waits()
    assert at_once == 0
    assert shortest * 1000 - 1 <= waited <= longest * 1000
    assert retried == 0  # which has the headers of the attempt that waited


@pytest.mark.usefixtures("spans")
def test_second_connect_puts_it_behind_the_span() -> None:
    """In a process of the pool, which may instrument Celery anew."""
    from celery_throttle.contrib.opentelemetry import _mark, mark_spans  # noqa: PLC0415 - what it needs may not be there

    def begins_the_span(**_: Any) -> None: ...

    task_prerun.connect(begins_the_span, weak=False)
    try:
        mark_spans()
        assert [each for _, each in task_prerun.receivers][-2:] == [begins_the_span, _mark]
    finally:
        task_prerun.disconnect(begins_the_span)


def test_arguments_that_do_not_fit(app: Any, spans: Spans) -> None:
    """The body reports the error in them."""

    def body(tenant_id: str) -> None: ...

    call = app.task(body, base=Throttled, limit=TENANT, name="call", shared=False)
    with pytest.raises(TypeError, match="tenant_id"):
        call.apply(throw=True)
    assert spans.marks() == [("call", {})]
