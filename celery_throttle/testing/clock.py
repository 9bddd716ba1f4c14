"""A clock for the store: the scripts of this process add a number to the server's time, which a test can raise."""

from __future__ import annotations

from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from unittest import mock

from celery_throttle.clients import store_client
from celery_throttle.core.checks import seconds
from celery_throttle.store.scripts import Call, Script
from celery_throttle.tasks.registry import groups_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import timedelta

    from celery_throttle.core.keys import Keys

__all__ = ["advance", "clocked_scripts", "forget"]

__tracebackhide__ = True  # pytest shows the line of the test instead

#: The one place of the scripts that reads the server's time, and the key META in their list of keys.
_TIME = "local clock = rcall('TIME')\n"
_META = "KEYS[18]"
_CLOCK = ":clock"
_of_gate = Script.of_gate


@contextmanager
def clocked_scripts() -> Iterator[None]:
    """Have the gate's scripts in this process read the store's clock; the scripts of the package have no such line."""
    with mock.patch.object(Script, "of_gate", staticmethod(_clocked)):
        yield


@cache
def _clocked(name: str) -> Script:
    text = _of_gate(name).text
    if text.count(_TIME) != 1:
        raise AssertionError(f"script {name} reads the time elsewhere, so the test kit has no clock for it")
    # Microseconds, because these are whole numbers, so tickets stay exact.
    more = f"clock[2] = clock[2] + (rcall('GET', {_META} .. '{_CLOCK}') or 0)\n"
    return Script.of(name, text.replace(_TIME, _TIME + more))


def advance(app: Any, by: float | timedelta, lost: Iterable[str]) -> None:
    """Move the store's time, with the leases of all workers but the lost ones, and do the work that is due then.

    Args:
        app: the Celery app.
        by: seconds or a timedelta.
        lost: the names in the store of the lost workers.

    Raises:
        ConfigurationError: ``by`` is no time, or is negative.
        StoreUnavailable: the store does not answer.
    """
    moved = round(seconds("advance: by", by, usual=3600) * 1000) * 1000
    names = ("leases", "records", "due", "ends", "workers", f"meta{_CLOCK}")
    for group in groups_of(app):
        client = store_client(app, group)
        gone = [each.rpartition("/")[2] for each in lost]
        client.ask(_call("advance", client.store.keys, names, moved, *gone))
        list(client.reap())


def forget(app: Any) -> list[str]:
    """Forget the tasks, locks, outcomes and changes in the store; return the ids of the tasks that hinder it."""
    kept = ("limits", "workers", "meta", "ends", "records")
    for group in groups_of(app):
        client = store_client(app, group)
        keys = client.store.keys
        names = ["records", "ends", *(name for name in keys.names if name not in kept)]
        if held := client.ask(_call("forget", keys, names)):
            return [each.decode() for each in held]
    return []


def _call(name: str, keys: Keys, names: Iterable[str], *arguments: int | str) -> Call:
    used = [keys.key(each) for each in names]
    return Call(_script(name), (len(used), *used, *arguments))


@cache
def _script(name: str) -> Script:
    return Script.of(name, (files("celery_throttle.testing") / f"{name}.lua").read_text("utf-8"))
