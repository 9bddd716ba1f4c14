"""Measure the limits: a few series for each limit, regardless of its keys, and two for each queue.

The store sums the keys of a limit, so the number of limits bounds the number of series. The sums of this module read a
bounded number of keys, holders and tasks: if there are more, ``celery_throttle_cut`` is 1.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from celery_throttle.control.leases import OVERDUE, misses_renewals
from celery_throttle.control.lines import partly
from celery_throttle.control.reader import MOST, readers
from celery_throttle.control.runnable import queue_work, work_of
from celery_throttle.core.history import TOTALS, WAITS
from celery_throttle.core.wording import one_line
from celery_throttle.errors import StoreUnavailable
from celery_throttle.store.limit_status import starts_per_second

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from datetime import datetime

    from celery_throttle.control.reader import Reader
    from celery_throttle.store.history import Period
    from celery_throttle.store.holders import Holder
    from celery_throttle.store.limit_status import LimitStatus
    from celery_throttle.store.parked_tasks import Oldest

__all__ = ["Metric", "Sample", "described", "exposition", "measured", "scraped"]

logger = logging.getLogger(__name__)

_PREFIX = "celery_throttle_"

_GAUGES = {
    # By limit, with all its keys.
    "permits_declared": "Permits that the code declares; for each key of a limit that has keys.",
    "permits": "Permits in force now, with overrides; for each key of a limit that has keys. No sample: any number.",
    "starts_per_second_declared": "Starts a second that the code's rates allow, for each key. No sample: no rate.",
    "starts_per_second": "Starts a second that its rates allow now, for each key. No sample: any number.",
    "held": "Permits held, of all keys.",
    "parked": "Tasks that wait and need its permits, of all keys.",
    "oldest_wait_seconds": "How long the oldest task in its lines has waited, of all keys; 0 if none is there.",
    "next_start_seconds": "Longest time until its rates allow a start, of all keys; 0 if they allow one now. "
    "No sample: not all keys were read.",
    "keys": "Keys of it that have holders or parked tasks.",
    "full": "How many have no permit free: the limit itself, or keys of it. No sample: not all keys were read.",
    "paused": "How many are paused: the limit itself, or keys of it.",
    "disabled": "How many are not enforced: the limit itself, or keys of it.",
    "held_back": "How many a task's RateLimited holds back: the limit itself, or keys of it.",
    "overridden": "How many have other permits or another rate for now: the limit itself, or keys of it.",
    # By queue.
    "queue_messages": "Messages that wait in the broker. No sample: it does not report them.",
    "runnable_tasks": "Tasks that could run now: messages in the broker, throttled tasks that run, and parked ones for "
    "which permits are free. No sample: the broker does not report its messages.",
    # By group of limits.
    "holders": "Tasks, and processes outside of tasks, that hold permits or an identity lock.",
    "workers": "Workers, and processes, that hold permits or an identity lock under a lease that has not ended.",
    "workers_silent": "Workers, and processes, that hold permits or locks and have stopped renewing their leases.",
    "leases_overdue": "Holders whose lease ended more than 5 s ago, and which are not reclaimed yet.",
    "set_aside": "Tasks that cannot start: their records are unreadable, or they began too often.",
    "settling_seconds": "How long no task starts yet, because the store has just lost its data.",
    "store_time_seconds": "The store's clock when these metrics were read.",
    "cut": "1 if not everything was read: more than 1000 keys, 1000 holders or 1000 tasks that may be ready.",
    # Of the store.
    "up": "1 if the store answers, else 0 (then collectors export no other metric).",
}
#: The metrics that need all keys: the sum of a part would be wrong.
_OF_ALL_KEYS = {"next_start_seconds", "full"}
#: By limit, with all its keys, from its history. A counter restarts at 0 after two days without use of its limit,
#: after a loss of the store's data, and after some billions.
_COUNTERS = {
    "started_total": "Runs that started.",
    "ended_total": "Runs that ended.",
    "failed_total": "Runs that failed.",
    "run_seconds_total": "How long they ran.",
    "parked_total": "Tasks that were parked.",
    "sent_back_total": "Runs that raised RateLimited.",
    "refused_total": "Tasks that were not parked, because max_parked tasks were parked already.",
    "duplicates_total": "Tasks that did not run, because another call of them had the identity lock.",
    "reclaimed_total": "Permits of lost workers that were reclaimed.",
}
_ERRORS = {
    "store_errors_total": "How often workers lost the store, or it refused a call. Reported once they reach it.",
}
_WAIT = {"wait_seconds": "How long runs waited in line before they started; 0: not at all."}
#: Each second bound of WAITS: a bound is four times the one before, from 20 ms to 1.5 h.
_BOUNDS = range(0, len(WAITS), 2)
_CHANGES = {"paused": "paused", "disabled": "disabled", "held-back": "held_back", "override": "overridden"}
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


@dataclass(frozen=True)
class Sample:
    """One value of a metric; ``suffix``: that of a value of a histogram.

    The control characters of labels are escaped, because names of queues may have any.
    """

    labels: dict[str, str]
    value: float
    suffix: str = ""

    def __post_init__(self) -> None:
        self.labels.update({name: one_line(value) for name, value in self.labels.items()})


@dataclass(frozen=True)
class Metric:
    """A metric with its values; ``kind``: ``gauge``, ``counter`` or ``histogram``."""

    name: str
    help: str
    samples: list[Sample] = field(default_factory=list)
    kind: str = "gauge"


def exposition(metrics: Iterable[Metric]) -> str:
    """Return metrics as text for Prometheus, in its own format (0.0.4); labels may have any characters.

    This does not use prometheus_client. All values come from one look at the store, so there is no registry to keep.
    ``celery throttle metrics`` has to work without further packages, also from cron. That library would add 210 KB, a
    tenth of a second for its import, and a collector as long as this function and its helpers.
    """
    lines: list[str] = []
    for metric in metrics:
        lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"]
        lines += [f"{metric.name}{each.suffix}{_labels(each.labels)} {_number(each.value)}" for each in metric.samples]
    return "\n".join([*lines, "# EOF", ""])


def _labels(labels: dict[str, str]) -> str:
    inner = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items())
    return f"{{{inner}}}" if inner else ""


def _number(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".")


def _warn(message: str) -> None:
    logger.warning("No metrics of a queue: %s", one_line(message))


def measured(app: Any, queues: Iterable[str] = (), unknown: Callable[[str], object] = _warn) -> tuple[Metric, ...]:
    """Return the metrics of an app's store.

    ``queues``: further queues, beside those of the app's configuration and of the store. ``unknown`` is called with an
    error message for each of them that does not exist; that queue has no samples.
    """
    app.finalize(auto=True)
    metrics, works = _without_samples(), []
    for reader in readers(app):
        statuses, holders = reader.status(MOST), reader.holders(None, MOST)
        works.append(work_of(reader, statuses, holders))
        for name, sample in _of_group(reader, statuses, holders, cut=works[-1].cut):
            metrics[name].samples.append(sample)
    work, errors = queue_work(app, works, queues)
    for message in errors:
        unknown(message)
    for each in work:
        for name, value in (("queue_messages", each.messages), ("runnable_tasks", each.runnable)):
            if value is not None:
                metrics[name].samples.append(Sample({"queue": each.queue}, value))
    metrics["up"].samples.append(Sample({}, 1))
    return tuple(metrics.values())


def scraped(app: Any, queues: Iterable[str] = ()) -> tuple[Metric, ...]:
    """Return the metrics, or only ``up`` 0 on any error, so that the metrics of other collectors do not fail."""
    try:
        return measured(app, queues)
    except StoreUnavailable as error:
        logger.warning("No metrics of the limits: %s", error)
    except Exception:
        logger.exception("No metrics of the limits")
    metrics = _without_samples()
    metrics["up"].samples.append(Sample({}, 0))
    return tuple(metrics.values())


def described() -> tuple[Metric, ...]:
    """Return all metrics, without samples."""
    return tuple(_without_samples().values())


def _without_samples() -> dict[str, Metric]:
    kinds = {"gauge": _GAUGES, "counter": _COUNTERS | _ERRORS, "histogram": _WAIT}
    rows = ((name, text, kind) for kind, metrics in kinds.items() for name, text in metrics.items())
    return {name: Metric(f"{_PREFIX}{name}", text, kind=kind) for name, text, kind in rows}


def _of_group(
    reader: Reader, statuses: tuple[LimitStatus, ...], holders: tuple[Holder, ...], *, cut: bool
) -> Iterator[tuple[str, Sample]]:
    now, settling = reader.clock()
    found = reader.set_aside(MOST)
    aside = [each for each in found if each.task_id]
    not_all = partly(statuses, MOST)
    cut = cut or bool(not_all) or max(len(holders), len(found)) >= MOST
    group = {
        "holders": len(holders),
        "workers": len({each.worker for each in holders if each.lease_left > 0}),
        "workers_silent": len({each.worker for each in holders if misses_renewals(each, reader.store.lease)}),
        "leases_overdue": sum(each.lease_left < -OVERDUE for each in holders),
        "set_aside": len(aside),
        "settling_seconds": settling,
        "store_time_seconds": now.timestamp(),
        "cut": int(cut),
        "store_errors_total": reader.store_errors(),
    }
    for name, value in group.items():
        yield name, Sample({"group": reader.group}, value)
    limits: dict[str, list[LimitStatus]] = {}
    for each in statuses:
        limits.setdefault(each.name, []).append(each)
    yield from _counted(reader, list(limits))
    oldest = reader.oldest(list(limits))
    for limit, rows in limits.items():
        for name, value in _of_limit(rows, oldest.get(limit), now):
            if not (limit in not_all and name in _OF_ALL_KEYS):
                yield name, Sample({"group": reader.group, "limit": limit}, value)


def _of_limit(rows: list[LimitStatus], oldest: Oldest | None, now: datetime) -> Iterator[tuple[str, float]]:
    whole = next((each for each in rows if each.key is None), None)
    if whole and whole.declared and whole.permits is not None:
        yield "permits_declared", whole.permits
    if whole and whole.declared and whole.in_force is not None:
        yield "permits", whole.in_force
    for name, rates in (("_declared", whole.rates), ("", whole.rates_in_force)) if whole else ():
        if rates:
            yield f"starts_per_second{name}", starts_per_second(rates)
    if whole:
        yield "held", whole.held_in_all
        yield "parked", whole.parked_in_all
        yield "keys", whole.keys
    since = oldest.first.since if oldest else now
    if since:  # None: the record is unreadable
        yield "oldest_wait_seconds", max(0.0, (now - since).total_seconds())
    yield "next_start_seconds", max(each.next_start_in for each in rows)
    yield "full", sum(each.full for each in rows)
    scopes = {(kind, each.scope(change)) for each in rows for kind, change in each.changes}
    for kind, name in _CHANGES.items():
        yield name, sum(each == kind for each, _ in scopes)


def _counted(reader: Reader, limits: list[str]) -> Iterator[tuple[str, Sample]]:
    """Yield the samples of limits, each with the name of its metric."""
    for history in reader.histories(limits, TOTALS):
        labels = {"group": reader.group, "limit": history.limit}
        total = history.total
        for name in _COUNTERS:
            yield name, Sample(labels, _count(total, name))
        for sample in _waits(total, labels):
            yield "wait_seconds", sample


def _count(total: Period, name: str) -> float:
    what = name.removesuffix("_total")
    return float(total.run_time if what == "run_seconds" else getattr(total, what))


def _waits(total: Period, labels: dict[str, str]) -> Iterator[Sample]:
    reached = {f"{WAITS[number]:g}": total.at_once + sum(total.waited[: number + 1]) for number in _BOUNDS}
    for bound, count in {"0": total.at_once, **reached, "+Inf": total.started}.items():
        yield Sample({"group": labels["group"], "le": bound, "limit": labels["limit"]}, count, "_bucket")
    yield Sample(labels, total.started, "_count")
    yield Sample(labels, total.wait_time, "_sum")
