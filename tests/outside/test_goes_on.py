"""Permits outside of tasks go on after any single error in the thread that asks and renews for all callers."""

from __future__ import annotations

import errno
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from celery import Celery
from redis import Redis

from celery_throttle import Limit, StoreUnavailable
from celery_throttle.embedded import EmbeddedServer, bound_to_parent
from celery_throttle.permits.bell import Bell
from celery_throttle.permits.line import fail, settle
from celery_throttle.permits.outside import Outside
from celery_throttle.permits.registry import outside_of
from tests.support.waiting import until


class Unforeseen(Exception):
    """None that any code has a branch for."""


def once(call: Callable[..., Any], struck: list[str]) -> Callable[..., Any]:
    """Return the call, which raises the first time."""

    def raising(*args: Any, **kwargs: Any) -> Any:
        if not struck:
            struck.append(call.__name__)
            raise Unforeseen("bug")
        return call(*args, **kwargs)

    return raising


def takes_one(limit: Limit, app: Celery) -> None:
    with limit.acquire(timeout=60, app=app):
        pass


@pytest.mark.parametrize("name", ["_turn", "_exchange", "_next_call", "_take_answers", "_renew_all", "_failed"])
def test_callers_after_an_error_in_the_thread(
    gpu: Limit, brief: Celery, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The one whose call it was gets an answer, too."""
    struck: list[str] = []
    monkeypatch.setattr(Outside, name, once(getattr(Outside, name), struck))
    if name == "_failed":
        monkeypatch.setattr(Outside, "_exchange", once(Outside._exchange, []))
    with ThreadPoolExecutor() as threads:
        first = threads.submit(takes_one, gpu, brief)
        until(lambda: struck or first.done())
        until(first.done)
        threads.submit(takes_one, gpu, brief).result(60)


@pytest.mark.parametrize("broken", [Bell.sleep, Bell._take_hints])
def test_held_permit_is_renewed_after_an_error_between_turns(
    gpu: Limit, brief: Celery, monkeypatch: pytest.MonkeyPatch, broken: Any
) -> None:
    struck: list[str] = []
    with gpu.acquire(timeout=60, app=brief) as permit:
        monkeypatch.setattr(Bell, broken.__name__, once(broken, struck))
        until(lambda: struck)
        before = permit._deadline
        until(lambda: permit._deadline > before)
        assert not permit.lost


def test_error_of_a_late_return_keeps_no_other_from_its_own(gpu: Limit, brief: Celery) -> None:
    with gpu.acquire(timeout=60, app=brief):
        outside: Any = outside_of(brief, None)
        done: list[str] = []
        outside.later(lambda: 1 // 0)
        outside.later(lambda: done.append("second"))
        until(lambda: done)
    takes_one(gpu, brief)


def test_a_hint_that_is_no_text(gpu: Limit, brief: Celery, redis: Redis) -> None:
    """Any client may publish there."""
    outside: Any = outside_of(brief, None)
    with gpu.acquire(timeout=60, app=brief) as permit, ThreadPoolExecutor() as threads:
        waiting = threads.submit(takes_one, gpu, brief)
        until(lambda: redis.publish(outside._store.keys.wake, b"ready \xff\xfe"), describe="somebody listens")
        before = permit._deadline
        until(lambda: permit._deadline > before)
        permit.release()
        waiting.result(60)


def test_no_thread_for_a_moment(gpu: Limit, app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller gets an error, and nothing of its request is left for the next ones."""
    outside: Any = outside_of(app, None)

    def none(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none)
        with pytest.raises(StoreUnavailable, match="no thread"):
            gpu.acquire(timeout=0, app=app)
    assert not outside._next
    takes_one(gpu, app)


def test_caller_that_leaves_in_the_middle_of_its_answer() -> None:
    """Its event loop cancels the future at any moment, also between a look at it and the answer."""

    class Leaves(Future[int]):
        def done(self) -> bool:
            self.cancel()
            return False

    for answer in (lambda future: settle(future, value=1), lambda future: fail(future, Unforeseen())):
        future = Leaves()
        answer(future)
        future.cancel()
    left = Leaves()
    left.cancel()
    assert not settle(left, value=1)
    fail(left, Unforeseen())


def test_thread_without_a_descriptor_does_not_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: Any) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    bell = Bell(Redis(), "channel", "queue", Any)  # type: ignore[arg-type]
    monkeypatch.setattr(selectors, "DefaultSelector", none_left)
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    bell.sleep(1.0)
    assert slept
    assert slept[0] > 0


_PROGRAM = """
import os, resource, sys, threading, time
from celery import Celery
from celery_throttle import Limit, StoreUnavailable
app = Celery(broker=sys.argv[1])
app.conf.throttle_lease = 1.0
limit = Limit("gpu", 2)
permit = limit.acquire(app=app)
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
free = os.dup(0)
os.close(free)
print("holds", flush=True)
input()  # the store is away
resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
print("none", flush=True)
input()  # the store is back
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print("some", flush=True)
with limit.acquire(timeout=60, app=app):
    print("another", flush=True)
"""


def test_descriptors_that_are_exhausted_for_a_while(own_server: EmbeddedServer) -> None:
    with subprocess.Popen(
        bound_to_parent([sys.executable, "-c", _PROGRAM, own_server.url]),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as program:  # fmt: skip
        assert program.stdin
        assert program.stdout
        assert program.stdout.readline() == "holds\n"
        own_server.kill()
        print(file=program.stdin, flush=True)
        assert program.stdout.readline() == "none\n"
        own_server.restart()
        print(file=program.stdin, flush=True)
        assert program.stdout.readline() == "some\n"
        assert program.stdout.readline() == "another\n"
        program.communicate("")
