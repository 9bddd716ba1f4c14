"""The publisher of a task that runs once is killed or interrupted: its lock lasts seconds, or as long as its task."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os import environ
from typing import Any

import pytest
from celery.exceptions import SoftTimeLimitExceeded
from celery.signals import after_task_publish
from kombu import Connection
from kombu.exceptions import OperationalError

from celery_throttle.embedded import EmbeddedServer
from celery_throttle.store.calls import CLAIMED_FOR
from celery_throttle.tasks import publish
from tests.failures.tools import ONCE, queued
from tests.support.journal import Journal
from tests.support.state import State
from tests.support.waiting import HANGS_AFTER, until
from tests.support.workers import Workers

#: A publisher that is killed before it sends its message, or before it confirms that.
PUBLISHER = """
import os, signal, sys
from celery.signals import after_task_publish, before_task_publish
from tests.support.apps import once

def die(**_):
    os.kill(os.getpid(), signal.SIGKILL)

{"claimed": before_task_publish, "sent": after_task_publish}[sys.argv[1]].connect(die)
getattr(once, sys.argv[2]).delay("a")
"""


def publish_and_die(workers: Workers, when: str, task: str) -> None:
    env = {**environ, **workers.environment()}
    ended = subprocess.run([sys.executable, "-c", PUBLISHER, when, task], env=env, check=False, timeout=HANGS_AFTER)
    assert ended.returncode == -signal.SIGKILL


@contextmanager
def after_sending(what: Callable[[], None]) -> Iterator[None]:
    """Call this when a message was sent."""

    def called(**_: Any) -> None:
        what()

    after_task_publish.connect(called)
    try:
        yield
    finally:
        after_task_publish.disconnect(called)


def raises(error: BaseException) -> Any:
    def call(*_: object) -> None:
        raise error

    return call


def lasts(task: Any) -> float:
    found = task.locked_by("a")
    assert found
    return float(found.expires_in)


@pytest.mark.parametrize("task", ["hold", "hold_late", "hold_remembered"])
def test_publisher_killed_before_it_sends_locks_for_seconds(workers: Workers, task: str) -> None:
    publish_and_die(workers, "claimed", task)
    assert not queued(workers)
    assert lasts(getattr(workers.app(ONCE), task)) <= CLAIMED_FOR


def test_publisher_killed_after_it_has_sent_leaves_a_task_that_runs_once(workers: Workers, journal: Journal) -> None:
    """Its task has the lock for long as soon as a worker has the message, also if the worker parks it."""
    app = workers.start_app(ONCE)
    busy = journal.wait_begun(app.hold_one.delay("busy"))
    publish_and_die(workers, "sent", "hold_one")
    until(lambda: lasts(app.hold_one) > CLAIMED_FOR)
    again = app.hold_one.delay("a")
    journal.let_go("busy", "a")
    assert [each.get(timeout=HANGS_AFTER) for each in (busy, again)] == ["busy", "a"]
    assert len(journal.runs("a")) == 1


def test_task_that_was_sent_keeps_its_lock(workers: Workers) -> None:
    app = workers.app(ONCE)
    first = app.hold.delay("a")
    assert lasts(app.hold) > 80_000
    assert app.hold.delay("a").id == first.id


@pytest.mark.parametrize("error", [SoftTimeLimitExceeded, KeyboardInterrupt])
def test_publisher_interrupted_while_it_claims_gives_its_claim_up(
    workers: Workers, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    app = workers.app(ONCE)
    monkeypatch.setattr(publish, "read_claimed", raises(error()))
    with pytest.raises(error):
        app.hold.delay("a")
    assert not queued(workers)
    assert app.hold.locked_by("a") is None


def test_caller_whose_message_was_refused_can_call_again_at_once(workers: Workers) -> None:
    app = workers.app(ONCE)
    with Connection("redis://127.0.0.1:1/0") as nowhere, pytest.raises(OperationalError):
        app.hold.apply_async(("a",), connection=nowhere, retry=False)
    assert app.hold.locked_by("a") is None
    again = app.hold.delay("a")
    assert queued(workers) == 1
    assert app.hold.locked_by("a").task_id == again.id


def test_store_that_is_lost_before_the_confirmation_fails_no_call(
    store: EmbeddedServer, workers: Workers, journal: Journal, state: State, caplog: pytest.LogCaptureFixture
) -> None:
    app = workers.app(ONCE)
    with after_sending(store.kill), caplog.at_level(logging.WARNING, "celery_throttle"):
        first = app.hold.delay("a")
        second = app.hold.delay("b")
    (said,) = caplog.messages
    assert f"{app.hold.name}[{first.id}]" in said
    assert queued(workers) == 2
    store.restart()
    workers.start(ONCE)
    journal.let_go("a", "b")
    assert [each.get(timeout=HANGS_AFTER) for each in (first, second)] == ["a", "b"]
    state.wait_clean()
