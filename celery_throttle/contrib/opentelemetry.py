"""Metrics as OpenTelemetry instruments, and the limits of a run on its span; for the extra `[opentelemetry]`."""

from __future__ import annotations

from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any

from celery.signals import task_prerun

from celery_throttle.control.metrics import described, scraped
from celery_throttle.core.policy import costs_of
from celery_throttle.core.sites import WORKER, Sites
from celery_throttle.errors import ConfigurationError
from celery_throttle.settings import settings_of
from celery_throttle.tasks.registry import policies_of
from celery_throttle.worker.celery_side.parsing import needs_of
from celery_throttle.worker.celery_side.wait_header import show_waits, waited
from celery_throttle.worker.lock_plans import header_of

try:
    from opentelemetry.metrics import Observation
    from opentelemetry.trace import get_current_span
except ImportError as error:
    raise ImportError(f"{error}: write pip install celery-fair-throttle[opentelemetry]") from error

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opentelemetry.metrics import CallbackOptions, Meter

    from celery_throttle.control.metrics import Metric
    from celery_throttle.core.buckets import Bucket

__all__ = ["mark_spans", "observe"]


def observe(app: Any, meter: Meter, *, queues: Iterable[str] = ()) -> None:
    """Make a meter observe the metrics of an app's store, which is read once for each collection::

        from opentelemetry.metrics import get_meter

        observe(app, get_meter("celery_throttle"))

    The instruments are gauges and counters with the names of the Prometheus metrics; the histogram is left out. All
    processes would report the same values, so observe in one. While the store does not answer, there is
    ``celery_throttle_up`` 0 and no other metric of this library.

    Args:
        app: the Celery app.
        meter: a meter of the process's own provider.
        queues: further queues, beside those in the app's configuration and those of tasks that run or could start.
    """
    readings = _Readings(app, tuple(queues))
    for each in described():
        # Not the unit "1", for which exporters to Prometheus append "_ratio" to the name.
        unit = "s" if each.name.endswith("_seconds") else ""
        if each.kind != "histogram":  # there is no observable histogram
            counts = each.kind == "counter"
            make = meter.create_observable_counter if counts else meter.create_observable_gauge
            make(each.name, [partial(_observed, readings, each.name)], unit, each.help)


def mark_spans() -> None:
    """Add the limits of each throttled run, and its wait for their permits, to the current span as attributes.

    ``celery_throttle.limit`` and ``celery_throttle.key`` are lists of text; limits with a key come first. Call it in
    workers, after the instrumentation that begins the span::

        CeleryInstrumentor().instrument()
        mark_spans()

    ``celery_throttle.waited_ms`` is the time in line in milliseconds; 0 if the task was not parked. It needs a call in
    the worker's main process, too, which adds the header ``throttle_waited`` to throttled tasks. Where each process of
    the pool is instrumented (``worker_process_init``), call it there once more.
    """
    show_waits()
    task_prerun.disconnect(_mark)  # so that a second call puts it behind receivers that were connected after the first
    task_prerun.connect(_mark, weak=False)


def _mark(task: Any, **_: Any) -> None:
    span = get_current_span()
    buckets = _buckets_of(task) if span.is_recording() else []
    if buckets:
        span.set_attribute("celery_throttle.limit", [each.name for each in buckets])
        span.set_attribute("celery_throttle.key", [each.key for each in buckets if each.key is not None])
        if (seconds := waited(task.request)) is not None:
            span.set_attribute("celery_throttle.waited_ms", round(seconds * 1000))


def _buckets_of(task: Any) -> list[Bucket]:
    """Return the buckets of which the run of a task has permits."""
    policy = policies_of(task.app).get(str(task.name))
    if policy is None:
        return []
    try:
        needs = needs_of(task, policy, header_of(task.request), task.request)
    except ConfigurationError:  # without attributes, since the body will fail on these arguments
        return []
    if any(limit.per for limit in policy.limits):
        needs = needs.bound(Sites(settings_of(task.app).sites | {WORKER: str(task.request.hostname)}))
    return [bucket for bucket, _ in costs_of(needs.text)]


class _Readings:
    """Reads the store when a metric is taken for the second time since the last reading."""

    def __init__(self, app: Any, queues: tuple[str, ...]) -> None:
        self._app, self._queues = app, queues
        self._left: dict[str, Metric] = {}
        self._lock = Lock()

    def take(self, name: str) -> Metric:
        """Return a metric; a reading gives each metric once."""
        with self._lock:
            if name not in self._left:
                self._left = {each.name: each for each in scraped(self._app, self._queues)}
            return self._left.pop(name)


def _observed(readings: _Readings, name: str, _: CallbackOptions) -> Iterable[Observation]:
    return [Observation(each.value, each.labels) for each in readings.take(name).samples]
