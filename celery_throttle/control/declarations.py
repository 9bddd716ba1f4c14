"""Find limits that workers, or workers and this code, declare differently."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_throttle.control.findings import Finding
from celery_throttle.core.limits import described
from celery_throttle.core.wording import shortened

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from celery_throttle.control.reader import Reader
    from celery_throttle.store.holders import Holder
    from celery_throttle.store.limit_status import LimitStatus

__all__ = ["declared_differently", "declared_in_store"]

#: Seconds. A worker with a free slot calls every five, one that holds permits renews them within a lease.
_CALLS_WITHIN = 60.0
_NAMED = 3


def declared_differently(reader: Reader, holders: Sequence[Holder]) -> Iterator[Finding]:
    """Yield the limits that two live workers declare differently.

    Args:
        reader: the reader of one group of limits.
        holders: the holders of the group; a worker that renews a lease is alive.
    """
    renews = {each.worker for each in holders if each.lease_left > 0}
    patience = max(reader.store.lease, _CALLS_WITHIN)
    versions: dict[str, dict[str, list[str]]] = {}
    for worker in reader.declared():
        calls = worker.seconds is not None and worker.seconds < patience
        if calls or worker.worker in renews:
            for name, text in worker.limits.items():
                versions.setdefault(name, {}).setdefault(text, []).append(worker.worker)
    names = sorted(name for name, texts in versions.items() if len(texts) > 1)
    for status in reader.stand(names):
        yield _differing(status, versions[status.name])


def _differing(status: LimitStatus, versions: dict[str, list[str]]) -> Finding:
    by_text = sorted((described(text), sorted(workers)) for text, workers in versions.items())
    parts = [f"{text} on {shortened(workers, _NAMED)}" for text, workers in by_text]
    return Finding(
        "declared",
        True,
        f"Workers declare limit {status.name} differently: {', '.join(parts)}.",
        f"The declaration of the worker that started last holds for all: {declared_in_store(status)}.",
        ("restart the workers that have the older code",),
        status.name,
    )


def declared_in_store(status: LimitStatus) -> str:
    """Return the declaration of the worker that started last, as text for people."""
    parts = [] if status.permits is None else [str(status.permits)]
    parts += [f"{each.rate} (burst {each.burst})" for each in status.rates]
    return ", ".join(parts + ([] if status.max_parked is None else [f"max_parked={status.max_parked}"]))
