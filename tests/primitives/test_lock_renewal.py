"""A thread renews a lock while it is held, and reports when it cannot."""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from typing import TYPE_CHECKING

import pytest

from celery_throttle.errors import LeaseLost
from celery_throttle.primitives import HeldLock, IdentityLock
from celery_throttle.primitives.driving import run
from tests.primitives.faults import impatience, impatient_client
from tests.primitives.pace import renew_often
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redis import Redis

    from celery_throttle.embedded import EmbeddedServer

LEASE = 0.6


@pytest.fixture
def locks(redis: Redis) -> IdentityLock:
    return IdentityLock(redis, lease=LEASE)


@pytest.fixture
def own_locks(own_server: EmbeddedServer) -> Iterator[IdentityLock]:
    """Locks on a server to kill, by a client that does not try again."""
    with impatient_client(own_server.url) as client:
        yield IdentityLock(client, lease=LEASE)


def renewing_threads() -> int:
    return sum(thread.name == "celery_throttle-renew" for thread in threading.enumerate())


def test_a_renewed_lock_lasts(locks: IdentityLock, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """Renewed again and again; then it is free at once, and the thread has gone."""
    renew_often(monkeypatch)
    with locks.hold("a", 30, renew=True) as held:
        for _ in range(5):
            redis.pexpire(locks._calls.key("a"), 20_000)
            until(lambda: redis.pttl(locks._calls.key("a")) > 20_000)
        assert not held.lost
        assert held.lease_left > 20
        assert renewing_threads() == 1
    assert locks.locked_by("a") is None
    until(lambda: renewing_threads() == 0)
    assert not held.lost


def test_a_release_ends_the_thread(locks: IdentityLock) -> None:
    """Not only at its next renewal, or once the handle is unreachable."""
    held = locks.acquire("a", 600, renew=True)
    assert held is not None
    assert renewing_threads() == 1
    held.release()
    until(lambda: renewing_threads() == 0)
    assert held.release()


def test_without_a_thread_it_does_not_last(locks: IdentityLock) -> None:
    held = locks.acquire("a")
    assert held is not None
    assert renewing_threads() == 0
    until(lambda: locks.locked_by("a") is None)
    until(lambda: held.lost)


def test_renewal_ends_with_the_last_reference(locks: IdentityLock) -> None:
    """A program that forgets its lock must not keep it from everybody else; also as a part of a cycle."""
    held = locks.acquire("a", 30, renew=True)
    assert held is not None
    held.cycle = held  # type: ignore[attr-defined]
    gone = weakref.ref(held)
    del held
    gc.collect()
    assert gone() is None
    until(lambda: renewing_threads() == 0, timeout=5)
    assert locks.locked_by("a") is not None, "it lasts until its lease ends"


def test_a_lock_that_was_taken_away_is_reported(locks: IdentityLock, caplog: pytest.LogCaptureFixture) -> None:
    """Once, by the flag, the callback and the log."""
    told: list[HeldLock] = []
    held = locks.acquire("a", renew=True, on_lost=told.append)
    assert held is not None
    with caplog.at_level(logging.WARNING, "celery_throttle"):
        locks.forget("a", held.fencing_token)
        until(lambda: told)
    until(lambda: renewing_threads() == 0)
    assert held.lost
    with pytest.raises(LeaseLost):
        held.renew()
    assert held.release() is False
    assert told == [held]
    assert [record.message.split(":")[0] for record in caplog.records] == ["lease_lost"]


def test_a_callback_that_fails_is_logged(locks: IdentityLock, caplog: pytest.LogCaptureFixture) -> None:
    def fail(held: HeldLock) -> None:
        raise KeyError(held.identity)

    held = locks.acquire("a", on_lost=fail)
    assert held is not None
    locks.forget("a", held.fencing_token)
    assert held.release() is False
    assert "on_lost of 'a' failed" in caplog.text


def test_a_dead_server_is_reported_when_the_lease_ends(own_locks: IdentityLock, own_server: EmbeddedServer) -> None:
    told: list[HeldLock] = []
    held = own_locks.acquire("a", renew=True, on_lost=told.append)
    assert held is not None
    own_server.kill()
    until(lambda: told)
    assert held.lost
    assert held.lease_left == 0
    until(lambda: renewing_threads() == 0)


def test_a_server_that_comes_back_in_time_is_no_loss(own_locks: IdentityLock, own_server: EmbeddedServer) -> None:
    """It stalls for a moment; renewal tries again before the lease ends."""
    told: list[HeldLock] = []
    held = own_locks.acquire("a", 30, on_lost=told.append)
    assert held is not None
    own_server.freeze()
    with impatience():
        pause = run(held.renew_quietly())
    assert pause is not None
    assert pause <= 1, "soon again"
    own_server.thaw()
    assert until(lambda: run(held.renew_quietly())) == pytest.approx(10), "a third of the lease"
    assert not told
    assert not held.lost
    assert held.release()


def test_a_release_during_a_renewal_is_no_loss(locks: IdentityLock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The renewal comes second, finds nothing, and reports no lost lock."""
    told: list[HeldLock] = []
    held = locks.acquire("a", on_lost=told.append)
    assert held is not None
    check = held._check_held

    def check_then_release() -> None:
        check()
        monkeypatch.undo()
        held.release()

    monkeypatch.setattr(held, "_check_held", check_then_release)
    assert run(held.renew_quietly()) is None
    assert not told
    assert not held.lost
