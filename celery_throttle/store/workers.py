"""Read the workers of the store: their declarations, their brokers, their lost runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_throttle.core.declaration import described
from celery_throttle.core.wording import at
from celery_throttle.store.identity_locks import lock_from
from celery_throttle.store.reading import UNREADABLE, text, when

if TYPE_CHECKING:
    from datetime import datetime

    from celery_throttle.core.release import Options

__all__ = ["Declared", "LostRun", "Service", "read_declared", "read_kinds", "read_lost_runs", "read_services"]


class Declared(NamedTuple):
    """The declarations of a worker.

    Attributes:
        worker: the name of the worker.
        seconds: seconds since its last call; None if the worker has not called, or has left.
        limits: the declaration of each limit, see `Limit.declared`.
        options: those in its code, see `Options`.
    """

    worker: str
    seconds: float | None
    limits: dict[str, str]
    options: Options


class LostRun(NamedTuple):
    """A run of a singleton whose lease has ended, and which may go on.

    Attributes:
        task: the id of the task.
        worker: the worker of the run.
        nonce: the nonce of the delivery.
        since: the time of the last renewal of the lease.
        heard: the time when its worker tried to renew the lease after that; None if the worker has not.
        lock: (state, task, time of the state, nonce) of the identity lock now; None: the lock is free.
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

    @property
    def silence(self) -> str:
        """How its worker is silent, as a part of a sentence."""
        return f"has not renewed its lease since {at(self.since)}"


class Service(NamedTuple):
    """A broker whose workers use this store.

    Attributes:
        code: the beginning of the names of its queues in the store.
        broker: its description, or its name by ``throttle_broker``.
        workers: how many of its workers called within the last minutes.
        seconds: seconds since the last call of one of its workers; None if none called within a day.
    """

    code: str
    broker: str
    workers: int
    seconds: float | None


def read_declared(raw: Any) -> tuple[str, list[Declared]]:
    """Read the reply of declared.lua: the cursor of the next page, and a page."""
    now, after, rows, texts = raw
    codes = [_code(each) for each in texts]
    return text(after), [
        Declared(text(name), (now - since) / 1000 if since else None, *codes[number - 1])
        for name, since, number in rows
    ]


def _code(raw: bytes) -> tuple[dict[str, str], Options]:
    """Return the declaration of each limit and the options, without texts that no worker has written."""
    try:
        found = json.loads(raw)
        limits, options = found["limits"], found["options"]
        declared = {name: each for name, each in limits.items() if isinstance(each, str) and described(each)}
        return declared, {
            kind: {name: {option: str(text) for option, text in each.items()} for name, each in named.items()}
            for kind, named in options.items()
        }
    except UNREADABLE:
        return {}, {}


def read_lost_runs(raw: Any) -> tuple[str, list[LostRun]]:
    """Read the reply of lost.lua: the cursor of the next page, and a page."""
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
    now, rows, _ = raw
    return sorted(
        (
            Service(text(code), broker.decode(errors="replace"), workers, (now - last) / 1000 if last else None)
            for code, broker, workers, last in rows
        ),
        key=lambda each: (each.broker, each.code),
    )


def read_kinds(raw: Any) -> frozenset[str]:
    """Read the kinds of sites of live workers from the reply of services.lua."""
    return frozenset(map(text, raw[2]))
