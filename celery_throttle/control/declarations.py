"""Find limits and options that workers, or workers and this code, declare differently."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_throttle.control.findings import Finding
from celery_throttle.control.releases import differing_options
from celery_throttle.core.declaration import described
from celery_throttle.core.policy import limits_of
from celery_throttle.core.wording import shortened
from celery_throttle.settings import settings_of
from celery_throttle.tasks.registry import policies_of, release_of_app

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from celery_throttle.control.lines import Look
    from celery_throttle.control.reader import Reader
    from celery_throttle.store.limit_status import LimitStatus
    from celery_throttle.store.workers import Declared

__all__ = ["declared_otherwise", "differing_declarations", "live_workers"]

#: Seconds. A worker with a free slot calls every five, one that holds permits renews them within a lease.
_CALLS_WITHIN = 60.0


def differing_declarations(look: Look) -> Iterator[Finding]:
    """Yield what two live workers declare differently, then what this code declares otherwise than they do."""
    workers = live_workers(look)
    differing = list(_differing_workers(look, workers))
    yield from differing
    named = {each.limit for each in differing}
    for name, sentence in declared_otherwise(look.app, look.reader):
        if name not in named:
            yield Finding("declared", False, f"{sentence}.", limit=name)
    yield from differing_options(workers, release_of_app(look.app))


def live_workers(look: Look) -> list[Declared]:
    """Return the declarations of the workers that are alive."""
    reader = look.reader
    renews = {each.worker for each in look.holders if each.lease_left > 0}  # and so is alive
    patience = max(reader.store.lease, _CALLS_WITHIN)
    return [
        each
        for each in reader.declared()
        if (each.seconds is not None and each.seconds < patience) or each.worker in renews
    ]


def _differing_workers(look: Look, workers: Iterable[Declared]) -> Iterator[Finding]:
    versions: dict[str, dict[str, list[str]]] = {}
    for worker in workers:
        for name, text in worker.limits.items():
            versions.setdefault(name, {}).setdefault(text, []).append(worker.worker)
    names = sorted(name for name, texts in versions.items() if len(texts) > 1)
    for status in look.reader.stand(names):
        yield _differing(status, versions[status.name])


def _differing(status: LimitStatus, versions: dict[str, list[str]]) -> Finding:
    by_text = sorted((described(text), sorted(workers)) for text, workers in versions.items())
    parts = [f"{text} on {shortened(workers)}" for text, workers in by_text]
    return Finding(
        "declared",
        True,
        f"Workers declare limit {status.name} differently: {', '.join(parts)}.",
        f"The declaration of the worker that started last holds for all: {status.declaration}.",
        ("restart the workers that have the older code",),
        status.name,
    )


def declared_otherwise(
    app: Any, reader: Reader, known: Iterable[LimitStatus] | None = None
) -> Iterator[tuple[str, str]]:
    """Yield (limit, sentence) for each limit that the store has with another declaration than this code.

    ``known``: the status of the limits of the reader's group, if the caller has just read it.
    """
    group_of = settings_of(app).group_of
    limits = limits_of(policies_of(app).values())
    ours = {name: limit for name, limit in limits.items() if group_of(limit.group) == reader.group}
    for stands in reader.stand(list(ours)) if known is None else known:
        limit = ours.get(stands.name) if stands.key is None else None
        if limit and stands.declared and limit.declaration != stands.declaration:
            sentence = (
                f"Limit {limit.name} is {limit.declaration} in this code, and {stands.declaration} in "
                f"that of the worker that started last: restart the workers that have the older one"
            )
            yield limit.name, sentence
