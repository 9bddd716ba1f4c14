"""The metrics as instruments of OpenTelemetry: ``pip install celery-fair-throttle[opentelemetry]``."""

from __future__ import annotations

from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any

from celery_throttle.control.metrics import described, scraped

try:
    from opentelemetry.metrics import Observation
except ImportError as error:
    raise ImportError(f"{error}: write pip install celery-fair-throttle[opentelemetry]") from error

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opentelemetry.metrics import CallbackOptions, Meter

    from celery_throttle.control.exposition import Metric

__all__ = ["observe"]


def observe(app: Any, meter: Meter, *, queues: Iterable[str] = ()) -> None:
    """Have a meter observe the metrics of an app's store, which is read once for each collection::

        from opentelemetry.metrics import get_meter

        observe(app, get_meter("celery_throttle"))

    They are gauges, called as they are for Prometheus. All processes would say the same, so one is enough. While the
    store does not answer, there is ``celery_throttle_up`` 0 and nothing else of ours.

    Args:
        app: the Celery app.
        meter: of the process's own provider.
        queues: those too, beside what the app's configuration names and tasks that run or could start are of.
    """
    readings = _Readings(app, tuple(queues))
    for each in described():
        # A gauge with the unit "1" would be a ratio to those who write its name for Prometheus.
        unit = "s" if each.name.endswith("_seconds") else ""
        meter.create_observable_gauge(each.name, [partial(_observed, readings, each.name)], unit, each.help)


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
