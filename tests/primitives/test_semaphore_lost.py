"""Programs that are killed or stopped, and a server that goes away, while a permit is held or waited for."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from redis import Redis
from redis.backoff import ConstantBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from celery_throttle.embedded import EmbeddedServer, bound_to_parent
from celery_throttle.primitives import FairSemaphore, semaphore
from tests.conftest import ROOT
from tests.primitives.faults import impatience, impatient_client
from tests.primitives.pace import channels, look_often
from tests.store.cost import commands
from tests.support.waiting import HANGS_AFTER, until

#: Seconds a permit lasts here, so that one that idles for its whole lease fails the test.
LEASE = 100.0
#: Seconds that a caller stays in line without a sign of life here: half of the default, three looks as by default.
STAY = 3.0

# Waits for a permit, reports it, and keeps it until its input ends.
PROGRAM = """
import sys
from redis import Redis
from celery_throttle.primitives import FairSemaphore, lease as leases, semaphore

url, name, lease, stay = sys.argv[1:]
leases._LOOK_AGAIN, semaphore.STAY = float(stay) / 3, float(stay)
with FairSemaphore(Redis.from_url(url), "one", 1, lease=float(lease)).hold(name, renew=True) as held:
    print(held.ticket, flush=True)
    sys.stdin.read()
"""


class Program:
    """Another process that wants the permit."""

    def __init__(self, url: str, name: str) -> None:
        command = [sys.executable, "-c", PROGRAM, url, name, str(LEASE), str(STAY)]
        self._process = subprocess.Popen(
            bound_to_parent(command), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ticket(self) -> int:
        """Wait until it has the permit."""
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())

    def kill(self) -> None:
        """As the kernel does that runs out of memory."""
        self._process.kill()
        self._process.wait()

    def end(self) -> int:
        """Let it give back the permit."""
        self._process.communicate(timeout=HANGS_AFTER)
        return self._process.returncode

    def close(self) -> None:
        self.kill()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


@pytest.fixture
def program(server: EmbeddedServer, redis: Redis) -> Iterator[Callable[..., Program]]:
    """Starts programs on the emptied server; those in line listen when it returns. They end with the test."""
    started: list[Program] = []

    def start(name: str) -> Program:
        one = FairSemaphore(redis, "one", 1)
        there = len(one.holders()) + one.waiting()
        started.append(Program(server.url, name))
        until(lambda: len(one.holders()) + one.waiting() == there + 1)
        until(lambda: len(channels(redis)) >= one.waiting())
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture
def one(redis: Redis) -> FairSemaphore:
    return FairSemaphore(redis, "one", 1)


def test_callers_killed_in_line_block_no_other(program: Callable[..., Program], one: FairSemaphore) -> None:
    """Nor does the permit that one of them is handed: it is not connected, so it has to show up soon."""
    holder, dead = program("holder"), [program(f"dead {number}") for number in range(3)]
    last = program("last")
    holder.ticket()
    for each in dead:
        each.kill()
    assert holder.end() == 0
    assert last.ticket()
    assert [info.holder for info in one.holders()] == ["last"]
    assert last.end() == 0
    assert (one.holders(), one.waiting()) == ((), 0)


def test_lost_data_is_a_lost_permit_and_a_new_line(
    program: Callable[..., Program], one: FairSemaphore, redis: Redis
) -> None:
    """Each waiting caller waits again, or has a permit."""
    held = one.acquire("holder")
    waiting = program("waiting")
    redis.flushall()
    assert waiting.ticket()
    assert held is not None
    assert held.release() is False
    assert held.lost
    assert waiting.end() == 0


@pytest.mark.parametrize("own_server", [{"persistent": True}], indirect=True)
def test_a_server_that_is_restarted_has_the_line_still(own_server: EmbeddedServer) -> None:
    """With its data: holders stay, waiting callers wait, as long as their client keeps trying."""
    patient = Retry(ConstantBackoff(0.1), 300)
    with Redis.from_url(own_server.url, retry=patient) as client, ThreadPoolExecutor(1) as pool:
        one = FairSemaphore(client, "one", 1)
        held = one.acquire("holder")
        assert held is not None
        future = pool.submit(one.acquire, "next", 60)
        until(lambda: one.waiting() == 1)
        own_server.kill()
        own_server.restart()
        assert held.renew()
        assert not future.done()
        assert held.release()
        following = future.result(HANGS_AFTER)
        assert following is not None
        assert following.ticket > held.ticket


def test_a_server_that_does_not_answer_is_reported(own_server: EmbeddedServer, monkeypatch: Any) -> None:
    """And the place in line ends by itself."""
    monkeypatch.setattr(semaphore, "STAY", 0.5)
    look_often(monkeypatch)
    with impatient_client(own_server.url) as client, ThreadPoolExecutor(1) as pool:
        one = FairSemaphore(client, "one", 1)
        held = one.acquire("holder", lease=600)
        assert held is not None
        future = pool.submit(one.acquire, "next", 60)
        until(lambda: one.waiting() == 1 and channels(client))
        own_server.freeze()
        with pytest.raises(RedisError), impatience():
            future.result(HANGS_AFTER)
        own_server.thaw()
        until(lambda: one.waiting() == 0)
        assert held.renew()
        until(lambda: not channels(client))


def test_caller_without_subscribe_rights_is_served_too(
    one: FairSemaphore, redis: Redis, server: EmbeddedServer
) -> None:
    """It looks now and then; without asking all the time."""
    redis.acl_setuser("deaf", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-subscribe"])
    with Redis.from_url(server.url, username="deaf", password="x") as client, ThreadPoolExecutor(1) as pool:
        held = one.acquire("holder")
        assert held is not None
        with commands(redis) as calls:
            assert FairSemaphore(client, "one", 1).acquire(timeout=1) is None
        assert calls["evalsha"] <= 8
        future = pool.submit(FairSemaphore(client, "one", 1).acquire, "deaf", 30)
        until(lambda: one.waiting() == 1)
        held.release()
        assert future.result(HANGS_AFTER)
    redis.acl_deluser("deaf")


def test_a_fork_does_not_share_its_parents_mailbox(one: FairSemaphore) -> None:
    """Two processes on one connection would read each other's hints."""
    one.acquire("holder")
    assert one.acquire("parent", timeout=0.01) is None
    assert len(one._mailboxes._idle) == 1
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, one._mailboxes._take().channel.encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert pipe.read().decode() not in {"", one._mailboxes._idle[0].channel}
