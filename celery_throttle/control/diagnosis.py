"""Check the store, the options of tasks, and the lines."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_throttle.control.declarations import declared_differently, declared_in_store
from celery_throttle.control.lost_runs import running_twice
from celery_throttle.control.queues import NO_ANSWER, consumed
from celery_throttle.control.reader import MOST, Reader, readers
from celery_throttle.control.server import StoreFacts, examine
from celery_throttle.control.silent import silent_workers
from celery_throttle.core.limits import described
from celery_throttle.core.naming import is_outside
from celery_throttle.core.policy import limits_of
from celery_throttle.core.wording import counted, one_line
from celery_throttle.errors import StoreUnavailable
from celery_throttle.settings import settings_of
from celery_throttle.tasks.registry import policies_of
from celery_throttle.tasks.remarks import remarks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from celery_throttle.control.findings import Finding
    from celery_throttle.core.limits import Limit
    from celery_throttle.store.limit_status import LimitStatus
    from celery_throttle.store.parked_tasks import Parked
    from celery_throttle.store.workers import Service

__all__ = ["Diagnosis", "declared_otherwise", "diagnose", "examined", "readers"]

#: The most lines that are checked, each with one call.
_MOST_LINES = 50


@dataclass(frozen=True)
class Diagnosis:
    """The result of the checks.

    Attributes:
        stores: the checked servers: one for all groups of limits, in a cluster one for each group.
        findings: a sentence with the fix for each problem.
        unchecked: a sentence for each part that could not be checked.
        services: the brokers whose workers use the store, with the app's own.
    """

    stores: tuple[StoreFacts, ...]
    findings: tuple[str, ...]
    unchecked: tuple[str, ...]
    services: tuple[Service, ...] = ()


def diagnose(app: Any) -> Diagnosis:
    """Check the store, the options of the app's tasks, and the parked tasks.

    Raises:
        ConfigurationError: a setting cannot work.
        StoreUnavailable: the store does not answer, or denies access.
    """
    app.finalize(auto=True)
    stores: list[StoreFacts] = []
    findings: list[str] = []
    unchecked: list[str] = []
    for facts, found in examined(app):
        stores.append(facts)
        findings += found
        unchecked += [f"The store does not report: {', '.join(facts.unknown)}."] if facts.unknown else []
    findings += remarks(app)
    services: dict[str, Service] = {}
    for reader in readers(app):
        try:
            services |= {each.code: each for each in reader.services()}
            holders = reader.holders(None, MOST)
            differing = list(declared_differently(reader, holders))
            named = {each.limit for each in differing}
            findings += [sentence for name, sentence in declared_otherwise(app, reader) if name not in named]
            findings += map(
                _in_a_line, [*differing, *silent_workers(reader, holders), *running_twice(reader.lost_runs())]
            )
            findings += _set_aside(reader)
            findings += _unconsumed(app, reader, unchecked)
        except StoreUnavailable as error:  # the store has just answered other commands, so it refuses these
            findings.append(f"holders and parked tasks cannot be read: {error}")
    return Diagnosis(
        tuple(stores), tuple(dict.fromkeys(findings)), tuple(dict.fromkeys(unchecked)), tuple(services.values())
    )


def examined(app: Any) -> Iterator[tuple[StoreFacts, list[str]]]:
    """Yield the facts of each server that has limits of the app, with a sentence for each problem of the server."""
    settings = settings_of(app)
    groups = [each.group for each in readers(app)]
    for group in groups if "+cluster://" in settings.url else groups[:1]:
        yield examine(settings.url, settings.keys(group), settings.durability)


def declared_otherwise(
    app: Any, reader: Reader, known: Iterable[LimitStatus] | None = None
) -> Iterator[tuple[str, str]]:
    """Yield (limit, sentence) for each limit that the store has with another declaration than this code.

    Args:
        app: the Celery app.
        reader: the reader of one group.
        known: the status of the group's limits, if the caller has just read it.
    """
    group_of = settings_of(app).group_of
    limits = limits_of(policies_of(app).values())
    ours = {name: limit for name, limit in limits.items() if group_of(limit.group) == reader.group}
    mine = (each for each in known if each.key is None and each.name in ours) if known is not None else None
    for stands in reader.stand(list(ours)) if mine is None else mine:
        limit = ours[stands.name]
        if stands.declared and _of_code(limit) != _of_store(stands):
            sentence = (
                f"Limit {limit.name} is {described(limit.declared)} in this code, and {declared_in_store(stands)} in "
                f"that of the worker that started last: restart the workers that have the older one"
            )
            yield limit.name, sentence


def _of_code(limit: Limit) -> tuple[object, ...]:
    return limit.permits, [(str(rate), burst) for rate, burst in limit.rates], limit.max_parked


def _of_store(stands: LimitStatus) -> tuple[object, ...]:
    return stands.permits, [(each.rate, each.burst) for each in stands.rates], stands.max_parked


def _in_a_line(finding: Finding) -> str:
    return " ".join([finding.what, finding.why, *(f"Do: {each}" for each in finding.do)])


def _set_aside(reader: Reader) -> Iterator[str]:
    for each in reader.set_aside(MOST):
        if not each.task_id:
            yield f"Field {one_line(str(each))}: see ThrottleControl(app).set_aside()"
            continue
        why = f"its record in the store is {each.why}: see ThrottleControl(app).set_aside()"
        yield f"Task {each.task_id} cannot start, {why}"


def _unconsumed(app: Any, reader: Reader, unchecked: list[str]) -> Iterator[str]:
    """Yield a sentence for each queue of parked tasks without a worker, or without a free slot."""
    parked = [
        each
        for each in reader.parked(None, MOST)
        if each.queue and not is_outside(each.queue) and reader.is_ours(each.broker)
    ]
    waiting = Counter(each.queue for each in parked)
    passed = _passed_over(reader, parked)
    taken = consumed(app) if parked else set()
    if taken is None:
        unchecked.append(NO_ANSWER)
    for queue, count in sorted(waiting.items()):
        if taken is not None and queue not in taken:
            yield (
                f"{counted(count, 'task')} of queue {queue!r} {'wait' if count > 1 else 'waits'}, and no worker that "
                f"answers consumes it: start one with -Q {queue}"
            )
        elif queue in passed:
            yield f"Queue {queue!r} has been passed over: no worker that consumes it has a free slot"


def _passed_over(reader: Reader, parked: list[Parked]) -> set[str]:
    """Return the queues that were offered a start that no worker took.

    The view of the last task in a line lists the queues before it.
    """
    last = {(each.limit, each.key): each.task_id for each in parked}
    views = (reader.explain(task_id) for task_id in list(last.values())[:_MOST_LINES])
    return {each.queue for view in views for each in view.ahead if each.passed_over}
