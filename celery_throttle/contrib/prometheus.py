"""Metrics for a registry of prometheus_client: ``pip install celery-fair-throttle[metrics]``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_throttle.control.metrics import described, scraped

try:
    from prometheus_client.core import Metric
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ImportError(f"{error}: write pip install celery-fair-throttle[metrics]") from error

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from celery_throttle.control.exposition import Metric as Measured

__all__ = ["collector"]


def collector(app: Any, *, queues: Iterable[str] = ()) -> Collector:
    """Return a collector that reads the metrics of an app's store, once for each scrape::

        from prometheus_client import REGISTRY

        REGISTRY.register(collector(app))

    All processes would report the same values, so one collector is enough. Nothing is read before the first scrape, and
    no scrape fails: while the store does not answer, there is ``celery_throttle_up`` 0 and no other metric of this
    library.

    Args:
        app: the Celery app.
        queues: further queues, beside those in the app's configuration and those of tasks that run or could start.
    """
    return _Collector(app, tuple(queues))


class _Collector(Collector):
    def __init__(self, app: Any, queues: tuple[str, ...]) -> None:
        self._app, self._queues = app, queues

    def describe(self) -> Iterator[Metric]:
        """Yield the metrics without samples, so that a registry need not collect to get their names."""
        return map(_family, described())

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics with their present values."""
        return map(_family, scraped(self._app, self._queues))


def _family(metric: Measured) -> Metric:
    family = Metric(metric.name.removesuffix("_total"), metric.help, metric.kind)
    for each in metric.samples:
        family.add_sample(f"{metric.name}{each.suffix}", each.labels, each.value)
    return family
