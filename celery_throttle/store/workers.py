"""The workers of the store: their declarations, their brokers, the runs that they lost."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_throttle.core.limits import described
from celery_throttle.store.identity_locks import lock_from
from celery_throttle.store.reading import UNREADABLE, text, when

if TYPE_CHECKING:
    from datetime import datetime

__all__ = ["Declared", "LostRun", "Service", "read_declared", "read_lost_runs", "read_services"]


class Declared(NamedTuple):
    """What a worker has declared.

    Attributes:
        worker: its name.
        seconds: since it called last; None if it has not called, or has left.
        limits: what it declares of each limit, see `Limit.declared`.
    """

    worker: str
    seconds: float | None
    limits: dict[str, str]


class LostRun(NamedTuple):
    """A run of a task that runs once, whose lease has ended and which may go on.

    Attributes:
        task: its id.
        worker: on which it ran.
        nonce: of the delivery.
        since: when its lease was renewed last.
        heard: when its worker tried to renew it since; None if it has not.
        lock: state, task, since when and nonce of what has the identity lock now; None: it is free.
    """

    task: str
    worker: str
    nonce: str
    since: datetime
    heard: datetime | None
    lock: tuple[str, str, datetime, str] | None

    @property
    def twice(self) -> bool:
        """Whether another run has the identity lock."""
        return self.lock is not None and self.lock[0] == "running" and self.lock[3] != self.nonce


class Service(NamedTuple):
    """A broker whose workers use this store.

    Attributes:
        code: what its queues begin with in the store.
        broker: its description, or what ``throttle_broker`` names it.
        workers: how many workers of it called within the last minutes.
        seconds: since one of them called last; None if none has within a day.
    """

    code: str
    broker: str
    workers: int
    seconds: float | None


def read_declared(raw: Any) -> tuple[str, list[Declared]]:
    """Read the reply of declared.lua: where to go on, and a page."""
    now, after, rows, texts = raw
    limits = [_limits(each) for each in texts]
    return text(after), [
        Declared(text(name), (now - since) / 1000 if since else None, limits[number - 1])
        for name, since, number in rows
    ]


def _limits(raw: bytes) -> dict[str, str]:
    """Return what is declared of each limit, without what was not written by a worker."""
    try:
        found = json.loads(raw)
        return {name: each for name, each in found.items() if isinstance(each, str) and described(each)}
    except UNREADABLE:
        return {}


def read_lost_runs(raw: Any) -> tuple[str, list[LostRun]]:
    """Read the reply of lost.lua: where to go on, and a page."""
    after, rows = raw
    found = [
        LostRun(
            run["task"],
            text(worker),
            run["nonce"],
            when(run["renewed"]),
            when(run["called"]) if run["called"] else None,
            _lock_with_nonce(lock),
        )
        for worker, runs, locks in rows
        for run, lock in zip(json.loads(runs), locks, strict=True)
    ]
    return text(after), found


def _lock_with_nonce(raw: bytes) -> tuple[str, str, datetime, str] | None:
    lock = lock_from(raw)
    return (*lock, json.loads(raw).get("nonce", "")) if lock else None


def read_services(raw: Any) -> list[Service]:
    """Read the reply of services.lua."""
    now, rows = raw
    return sorted(
        (
            Service(text(code), broker.decode(errors="replace"), workers, (now - last) / 1000 if last else None)
            for code, broker, workers, last in rows
        ),
        key=lambda each: (each.broker, each.code),
    )
