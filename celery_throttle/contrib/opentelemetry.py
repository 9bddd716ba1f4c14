"""The metrics as instruments of OpenTelemetry, and the limits of a run on its span; for the extra `[opentelemetry]`."""

from __future__ import annotations

from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any

from celery.signals import task_prerun

from celery_throttle.control.metrics import described, scraped
from celery_throttle.core.policy import costs_of
from celery_throttle.errors import ConfigurationError
from celery_throttle.tasks.arguments import values_of
from celery_throttle.tasks.registry import policies_of
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

    from celery_throttle.control.exposition import Metric
    from celery_throttle.core.buckets import Bucket

__all__ = ["mark_spans", "observe"]


def observe(app: Any, meter: Meter, *, queues: Iterable[str] = ()) -> None:
    """Have a meter observe the metrics of an app's store, which is read once for each collection::

        from opentelemetry.metrics import get_meter

        observe(app, get_meter("celery_throttle"))

    They are gauges and counters, called as they are for Prometheus; its histogram is left out. All processes would say
    the same, so one is enough. While the store does not answer, there is ``celery_throttle_up`` 0 and nothing else of
    ours.

    Args:
        app: the Celery app.
        meter: of the process's own provider.
        queues: those too, beside what the app's configuration names and tasks that run or could start are of.
    """
    readings = _Readings(app, tuple(queues))
    for each in described():
        # A gauge with the unit "1" would be a ratio to those who write its name for Prometheus.
        unit = "s" if each.name.endswith("_seconds") else ""
        if each.kind != "histogram":  # which cannot be observed
            counts = each.kind == "counter"
            make = meter.create_observable_counter if counts else meter.create_observable_gauge
            make(each.name, [partial(_observed, readings, each.name)], unit, each.help)


def mark_spans() -> None:
    """Have the current span of each throttled run say which limits' permits it has, and how long it waited for them.

    ``celery_throttle.limit`` and ``celery_throttle.key`` are lists of text; those limits come first that have a key.
    To be called in workers, after what begins the span::

        CeleryInstrumentor().instrument()
        mark_spans()

    ``celery_throttle.waited_ms`` is how long it was parked, in milliseconds; 0: not at all. It is known if this was
    called in the worker's main process, too: then throttled tasks have a header ``throttle_waited``. Whoever
    instruments in each process of the pool (``worker_process_init``) calls it there once more.
    """
    show_waits()
    task_prerun.disconnect(_mark)  # again: behind what was connected meanwhile
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
    """Return what the run of a task has permits of."""
    policy = policies_of(task.app).get(str(task.name))
    if policy is None:
        return []
    values = header_of(task.request)
    try:
        if policy.varies and not policy.carried(values):
            values = values_of(task, policy, task.request.args, task.request.kwargs)
        needs = policy.needs(values) if policy.varies else policy.same
    except ConfigurationError:  # the body will fail on these arguments
        return []
    return [bucket for bucket, _ in costs_of(needs.text)]


class _Readings:
    """Reads the store for whoever asks for a metric that the last reading has already given."""

    def __init__(self, app: Any, queues: tuple[str, ...]) -> None:
        self._app, self._queues = app, queues
        self._left: dict[str, Metric] = {}
        self._lock = Lock()

    def take(self, name: str) -> Metric:
        """Return a metric; each but once of one reading."""
        with self._lock:
            if name not in self._left:
                self._left = {each.name: each for each in scraped(self._app, self._queues)}
            return self._left.pop(name)


def _observed(readings: _Readings, name: str, _: CallbackOptions) -> Iterable[Observation]:
    return [Observation(each.value, each.labels) for each in readings.take(name).samples]
