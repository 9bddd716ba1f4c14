"""The app that the workers run, with and without the library. Its configuration comes in two variables.

A worker "without the library" runs this app with ``throttle_enabled`` off, so the library adds no step to it.
"""

from __future__ import annotations

import json
import os
import time
from importlib import import_module
from typing import Any

from celery import Celery
from celery.signals import worker_ready
from redis import ConnectionPool, Redis

from celery_throttle import Limit, Throttled

CONFIGURATION = "BENCHMARK_CONFIGURATION"
JOURNAL = "BENCHMARK_JOURNAL"

#: The list in which workers report that they are ready, and the list that ends plugs.
READY, GO = "ready", "go"

app = Celery("benchmarks")
app.conf.update(json.loads(os.environ.get(CONFIGURATION, "{}")))


class Journal:
    """Writes runs to a Redis list, each as a JSON array: number, start, end, child, worker.

    The reply to an entry is read when the next one is written, so that the journal does not slow the task down.
    """

    def __init__(self) -> None:
        self._owner = 0
        self._connection: Any = None
        self._unread = 0

    def write(self, load: str, number: int, start: float, end: float) -> None:
        """Add one run."""
        if self._owner != os.getpid():  # a child must not use a connection of its parent
            self._connection = ConnectionPool.from_url(os.environ[JOURNAL]).make_connection()
            self._owner, self._unread = os.getpid(), 0
        if self._unread:
            self._connection.read_response()
        self._connection.send_command("RPUSH", load, json.dumps([number, start, end, os.getpid(), os.getppid()]))
        self._unread = 1


journal = Journal()


@worker_ready.connect
def _announce(sender: Any, **_: Any) -> None:
    with Redis.from_url(os.environ[JOURNAL]) as client:
        client.rpush(READY, sender.hostname)


def _sleep(load: str, number: int, seconds: float) -> None:
    start = time.time()
    time.sleep(seconds)
    journal.write(load, number, start, time.time())


# -- tasks that sleep -------------------------------------------------------------------------------------------------


@app.task(name="plain", ignore_result=True)
def plain(load: str, number: int, seconds: float) -> None:
    """Not throttled."""
    _sleep(load, number, seconds)


@app.task(name="limit-1", base=Throttled, limit=1, ignore_result=True)
def limit_1(load: str, number: int, seconds: float) -> None:
    """One at once."""
    _sleep(load, number, seconds)


@app.task(name="limit-2", base=Throttled, limit=2, ignore_result=True)
def limit_2(load: str, number: int, seconds: float) -> None:
    """Two at once."""
    _sleep(load, number, seconds)


@app.task(name="limit-4", base=Throttled, limit=4, ignore_result=True)
def limit_4(load: str, number: int, seconds: float) -> None:
    """Four at once."""
    _sleep(load, number, seconds)


@app.task(name="limit-6", base=Throttled, limit=6, ignore_result=True)
def limit_6(load: str, number: int, seconds: float) -> None:
    """Six at once."""
    _sleep(load, number, seconds)


@app.task(name="each-worker", base=Throttled, limit=Limit("each worker", 2, per="worker"), ignore_result=True)
def each_worker(load: str, number: int, seconds: float) -> None:
    """Two at once on each worker."""
    _sleep(load, number, seconds)


@app.task(name="relay", ignore_result=True)
def relay(load: str, number: int, seconds: float, left: int, queue: str) -> None:
    """Not throttled, but each task publishes the next one at its end: a cap of one without any throttle."""
    _sleep(load, number, seconds)
    if left > 1:
        relay.apply_async((load, number + 1, seconds, left - 1, queue), queue=queue)


class Semaphore:
    """A counter in Redis, the usual recipe for a cap."""

    def __init__(self, name: str, permits: int) -> None:
        self._name, self._permits = name, permits
        self._client: Redis | None = None

    def _redis(self) -> Any:
        # Made on first use, in the child, because a connection does not survive a fork.
        self._client = self._client or Redis.from_url(os.environ[JOURNAL])
        return self._client

    def acquire(self) -> bool:
        """Take a permit if one is free."""
        if self._redis().incr(self._name) <= self._permits:
            return True
        self.release()
        return False

    def release(self) -> None:
        """Release a permit."""
        self._redis().decr(self._name)


_semaphore = Semaphore("recipe", 2)


# max_retries=None is needed here, too: for `retry()` None means the task's own number, which is three by default, and
# then the recipe loses tasks.
@app.task(name="recipe", bind=True, max_retries=None, ignore_result=True)
def recipe(self: Any, load: str, number: int, seconds: float) -> None:
    """Two at once by the usual recipe: a semaphore in the body, a retry when no permit is free."""
    if not _semaphore.acquire():
        raise self.retry(countdown=1, max_retries=None)
    try:
        _sleep(load, number, seconds)
    finally:
        _semaphore.release()


# -- tasks with rates, keys and turns ---------------------------------------------------------------------------------

RATE = 100


@app.task(name="paced", base=Throttled, rate=f"{RATE}/s", ignore_result=True)
def paced(load: str, number: int, seconds: float) -> None:
    """`RATE` starts a second."""
    _sleep(load, number, seconds)


@app.task(name="keyed", base=Throttled, limit=Limit("keyed", 1, key="tenant"), ignore_result=True)
def keyed(load: str, number: int, sent: float, tenant: str) -> None:  # noqa: ARG001 - its key
    """One at once for each key; records the time from publish to start."""
    journal.write(load, number, sent, time.time())


@app.task(name="in-order", base=Throttled, limit=2, ignore_result=True)
def in_order(load: str, number: int, seconds: float, tenant: str) -> None:  # noqa: ARG001 - as in `in_turns`
    """Two at once, first come first served."""
    _sleep(load, number, seconds)


@app.task(name="in-turns", base=Throttled, limit=Limit("in-turns", 2, fair_by="tenant"), ignore_result=True)
def in_turns(load: str, number: int, seconds: float, tenant: str) -> None:  # noqa: ARG001 - takes turns by it
    """Two at once, in turns."""
    _sleep(load, number, seconds)


# -- tasks that do nothing --------------------------------------------------------------------------------------------

_NEVER_REACHED = Limit("never-reached", 1000)


@app.task(name="noop", ignore_result=True)
def noop() -> None:
    """Not throttled."""


@app.task(name="noop-throttled", base=Throttled, limit=_NEVER_REACHED, ignore_result=True)
def noop_throttled() -> None:
    """Under a limit that is never reached."""


@app.task(name="noop-late", acks_late=True, ignore_result=True)
def noop_late() -> None:
    """The same, acknowledged late."""


@app.task(name="noop-late-throttled", base=Throttled, limit=_NEVER_REACHED, acks_late=True, ignore_result=True)
def noop_late_throttled() -> None:
    """The same, acknowledged late: it asks the store before it starts."""


@app.task(name="noop-result")
def noop_result() -> None:
    """Not throttled, with a result in Redis."""


@app.task(name="noop-result-throttled", base=Throttled, limit=_NEVER_REACHED)
def noop_result_throttled() -> None:
    """Under a limit that is never reached, with a result in Redis."""


# -- tasks that run once ----------------------------------------------------------------------------------------------


def peer_configuration(url: str | None) -> dict[str, Any]:
    """Return the configuration of the other run-once packages: the URL for their locks, else their defaults."""
    return {
        "singleton_backend_url": url,
        "ONCE": {"backend": "celery_once.backends.Redis", "settings": {"url": url}},
    }


def _once_bases() -> dict[str, dict[str, Any]]:
    """Return the options that make a task run once, by package: a plain task, ours, and the installed peers."""
    found: dict[str, dict[str, Any]] = {"plain": {}, "ours": {"base": Throttled, "singleton": True}}
    for peer, module, name, options in (
        ("celery-singleton", "celery_singleton", "Singleton", {}),
        ("celery-once", "celery_once", "QueueOnce", {"once": {"graceful": True}}),  # no exception, as in the others
    ):
        try:
            found[peer] = {"base": getattr(import_module(module), name), **options}
        except ImportError:
            continue
    return found


def _nothing(number: int) -> None:
    """Do nothing."""


def _stay(load: str, number: int, seconds: float) -> None:
    """Record the start, then sleep."""
    journal.write(load, number, time.time(), 0)
    time.sleep(seconds)


app.conf.update(peer_configuration(app.conf.broker_url))
_task: Any = app.task
for _package, _options in _once_bases().items():
    _task(name=f"once-{_package}", ignore_result=True, **_options)(_nothing)
    _task(name=f"once-stay-{_package}", ignore_result=True, **_options)(_stay)


# -- tasks that measure -----------------------------------------------------------------------------------------------


@app.task(name="touch", ignore_result=True)
def touch(load: str, number: int, sent: float) -> None:
    """Record the time from publish to start."""
    journal.write(load, number, sent, time.time())


@app.task(name="plug", ignore_result=True)
def plug(load: str, number: int) -> None:
    """Keep a process busy until `GO` has an item, so that later tasks queue up."""
    start = time.time()
    with Redis.from_url(os.environ[JOURNAL]) as client:
        journal.write(f"{load}:plugged", number, start, 0)
        while not client.blpop([GO], timeout=1):
            pass  # short calls, because some versions of the client end a long one with an error
    journal.write(load, number, start, time.time())


@app.task(name="hold", base=Throttled, limit=1, ignore_result=True)
def hold(load: str, number: int, seconds: float) -> None:
    """Record the start, then sleep."""
    journal.write(load, number, time.time(), 0)
    time.sleep(seconds)
