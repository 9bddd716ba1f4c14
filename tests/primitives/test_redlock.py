"""A lock on the majority of several servers, some of which are frozen, dead or empty; with threads and with asyncio."""

from __future__ import annotations

import os
import secrets
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import RedisError

from celery_throttle.embedded import EmbeddedServer
from celery_throttle.errors import ConfigurationError, LeaseLost, NotAcquired, StoreUnavailable
from celery_throttle.primitives import IdentityLock, Redlock
from celery_throttle.primitives import redlock_nodes as nodes
from celery_throttle.store.scripts import Call
from tests.conftest import new_server
from tests.primitives.pace import renew_often, renewed_since
from tests.primitives.sides import AsyncioSide, SyncSide
from tests.primitives.test_documented import example
from tests.support.waiting import HANGS_AFTER, until

#: Seconds for servers that do not answer in a test; where they do, no test has to wait for so long as `PATIENCE`.
NODE_TIMEOUT = 1.0
PATIENCE = 20.0


class Cluster:
    """Three independent servers, and the state of a lock on each of them."""

    def __init__(self, servers: list[EmbeddedServer], side: SyncSide) -> None:
        self.servers = servers
        self.views: list[Redis] = self.clients(side, socket_timeout=5)
        #: Calls without a waiting caller may still come after a test.
        self.prefix = secrets.token_hex(4)

    def clients(self, side: SyncSide, socket_timeout: float = 30) -> list[Any]:
        """Return clients of each; longer than any test may take: they do not end the wait for a server."""
        options = {"socket_timeout": socket_timeout, "retry": side.no_retry}
        return [side.client(server.url, **options) for server in self.servers]

    def each(self, index: int) -> IdentityLock:
        """Return the locks of one server alone."""
        return IdentityLock(self.views[index], prefix=self.prefix)

    def owners(self) -> list[str | None]:
        """Return the owner of the lock on each server."""
        infos = [self.each(index).locked_by("a") for index in range(3)]
        return [info.owner if info else None for info in infos]

    def all_have(self, owner: str | None) -> None:
        """Wait until all servers have that owner."""
        until(lambda: self.owners() == [owner] * 3)

    def asked(self) -> bool:
        """Return whether all servers were asked for a lock, and had it to give."""
        return all(view.exists(f"{{{self.prefix}}}:3:lock:fence") for view in self.views)

    def thaw(self) -> None:
        """Let each frozen or killed server go on."""
        for server in self.servers:
            if server.running:
                server.thaw()
            else:
                server.restart()


@pytest.fixture(scope="module")
def running() -> Iterator[list[EmbeddedServer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(new_server()) for _ in range(3)]


@pytest.fixture
def cluster(running: list[EmbeddedServer]) -> Iterator[Cluster]:
    """Each test leaves its servers running or not, as it likes."""
    side = SyncSide()
    cluster = Cluster(running, side)
    cluster.thaw()
    yield cluster
    cluster.thaw()
    side.close()


@pytest.fixture
def redlock(side: SyncSide, cluster: Cluster) -> Callable[..., Any]:
    """Makes a Redlock of either side, with threads or tasks of its own."""
    made = {"prefix": cluster.prefix, "node_timeout": PATIENCE}
    clients = cluster.clients(side)
    return lambda **options: side.make("Redlock", clients, **{**made, **options})


@pytest.fixture
def lock(redlock: Callable[..., Any]) -> Any:
    return redlock()


@pytest.fixture
def sync_lock(cluster: Cluster) -> Iterator[Redlock]:
    """For what threads alone can do."""
    side = SyncSide()
    yield Redlock(cluster.clients(side), prefix=cluster.prefix, node_timeout=PATIENCE)
    side.close()


def take(lock: Any, **options: Any) -> Any:
    """Take a lock that must be free."""
    held = lock.acquire("a", **options)
    assert held is not None
    return held


# -- votes -------------------------------------------------------------------------------------------------------------


def test_all_servers_vote_for_one_holder(lock: Any, sync_lock: Redlock, cluster: Cluster) -> None:
    """Both sides get the same vote."""
    held = take(lock)
    cluster.all_have(held.owner)
    assert sync_lock.acquire("a") is None
    assert lock.acquire("b") is not None
    assert held.renew()
    assert held.release() is True
    assert held.release() is True
    assert not held.lost
    with pytest.raises(LeaseLost, match="was released"):
        held.renew()
    cluster.all_have(None)
    take(lock)


def test_the_lease_is_shorter_by_drift_and_elapsed_time(redlock: Callable[..., Any], cluster: Cluster) -> None:
    """If that is more than the lease, the votes are given back."""
    for drift, most in ((0.1, 90), (0.01, 99)):
        held = take(redlock(drift=drift), lease=100)
        assert 80 < held.lease_left < most
        cluster.all_have(held.owner)
        held.release()
        cluster.all_have(None)
    lock = redlock()
    lock._drift = 1.0
    assert lock.acquire("a", 60) is None
    cluster.all_have(None)


def test_a_majority_is_enough_and_a_minority_is_given_back(lock: Any, cluster: Cluster) -> None:
    cluster.each(2).acquire("a", owner="other")
    held = take(lock)
    assert held.renew()
    assert held.release()
    assert cluster.owners() == [None, None, "other"]
    cluster.each(1).acquire("a", owner="other")
    assert lock.acquire("a", 600) is None
    until(lambda: cluster.owners() == [None, "other", "other"])


# -- servers in trouble ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trouble", ["freeze", "kill"])
def test_a_server_in_trouble_delays_no_caller(lock: Any, cluster: Cluster, trouble: str) -> None:
    """Its client would wait for thirty seconds. It gets the releases later."""
    getattr(cluster.servers[0], trouble)()
    started = time.monotonic()
    for _ in range(3):
        with lock.hold("a", timeout=0) as held:
            assert lock.acquire("a") is None
            assert held.renew()
    assert time.monotonic() - started < 10
    cluster.thaw()
    cluster.all_have(None)


def test_missing_majority_has_no_answer(lock: Any, cluster: Cluster) -> None:
    """And the grant of the only server is given back."""
    cluster.servers[0].kill()
    cluster.servers[1].kill()
    with pytest.raises(StoreUnavailable, match="2 of 3 servers did not answer") as error:
        lock.acquire("a", 600)
    assert isinstance(error.value.__cause__, RedisError)
    until(lambda: cluster.each(2).locked_by("a") is None)


def test_a_frozen_server_does_not_delay_a_refusal(redlock: Callable[..., Any], cluster: Cluster) -> None:
    """The two others have refused: with any answer of the third, the result is no."""
    for index in (0, 1):
        cluster.each(index).acquire("a")
    cluster.servers[2].freeze()
    started = time.monotonic()
    assert redlock(node_timeout=25).acquire("a") is None
    assert time.monotonic() - started < 10


def test_two_frozen_servers_cost_their_timeout(redlock: Callable[..., Any], cluster: Cluster) -> None:
    """Once: while they owe a reply, they are not waited for again."""
    for server in cluster.servers[:2]:
        server.freeze()
    lock = redlock(node_timeout=NODE_TIMEOUT)
    started = time.monotonic()
    with pytest.raises(StoreUnavailable) as waited:
        lock.acquire("a")
    assert time.monotonic() - started >= NODE_TIMEOUT
    until(lambda: all(node.silent_for() > NODE_TIMEOUT for node in lock.quorum._nodes[:2]))
    with pytest.raises(StoreUnavailable) as refused:
        lock.acquire("a")
    assert [type(each.value.__cause__) for each in (waited, refused)] == [type(None), TimeoutError]
    cluster.thaw()
    cluster.all_have(None)


@pytest.mark.parametrize("socket_timeout", [30, 0.5])
def test_thawed_server_drops_grants_without_a_waiting_caller(cluster: Cluster, socket_timeout: float) -> None:
    """It carries out the acquire of long ago, also one whose connection was closed meanwhile, and then the release."""
    side = SyncSide()
    lock = Redlock(cluster.clients(side, socket_timeout), prefix=cluster.prefix, node_timeout=NODE_TIMEOUT)
    other = lock.acquire("b")  # connected
    assert other is not None
    until(cluster.asked)  # all three, not only a majority
    other.release()
    until(lambda: not any(cluster.each(index).locked_by("b") for index in range(3)))
    for index in (0, 1):
        cluster.views[index].flushall()
        cluster.servers[index].freeze()
    with pytest.raises(StoreUnavailable):
        lock.acquire("a", 600)
    until(lambda: all(node.silent_for() > 0.3 for node in lock.quorum._nodes[:2]))
    cluster.thaw()
    until(cluster.asked)
    cluster.all_have(None)
    side.close()


@pytest.mark.parametrize("trouble", ["freeze", "kill"])
def test_a_server_that_was_away_gets_the_release(lock: Any, cluster: Cluster, trouble: str) -> None:
    """Though it was out of reach when it was sent."""
    held = take(lock, lease=600)
    cluster.all_have(held.owner)
    getattr(cluster.servers[2], trouble)()
    assert held.release() is True
    cluster.thaw()
    cluster.all_have(None)


def test_two_servers_that_came_back_empty_are_a_loss(lock: Any, cluster: Cluster) -> None:
    """Others may have had it: their new grants are no proof that it was held all the time."""
    told: list[Any] = []
    held = take(lock, lease=600, on_lost=told.append)
    cluster.all_have(held.owner)
    for view in cluster.views[:2]:
        view.flushall()
    for _ in range(2):
        with pytest.raises(LeaseLost):
            held.renew()
    assert held.lost
    assert told == [held]


def test_late_owner_frees_no_other_lock(lock: Any, redlock: Callable[..., Any], cluster: Cluster) -> None:
    late = take(lock, lease=600)
    cluster.all_have(late.owner)
    for view in cluster.views:
        view.flushall()
    held = take(redlock(), lease=600)
    cluster.all_have(held.owner)
    assert late.release() is False
    assert late.lost
    assert cluster.owners() == [held.owner] * 3


def test_renewal_after_a_release_keeps_nothing(
    sync_lock: Redlock, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock would be taken anew, as by a renewal on a server that came back empty."""
    held = take(sync_lock, lease=600)
    keep = sync_lock.quorum.keep

    async def keep_late(call: Call) -> bool:
        with ThreadPoolExecutor(1) as other:
            assert other.submit(held.release).result()
        return await keep(call)

    monkeypatch.setattr(sync_lock.quorum, "keep", keep_late)
    with pytest.raises(LeaseLost, match="was released"):
        held.renew()
    cluster.all_have(None)


def test_a_release_that_too_few_confirm_can_be_repeated(redlock: Callable[..., Any], cluster: Cluster) -> None:
    held = take(redlock(node_timeout=2), lease=600)
    cluster.all_have(held.owner)
    for server in cluster.servers[:2]:
        server.freeze()
    with pytest.raises(StoreUnavailable):
        held.release()
    cluster.thaw()
    assert held.release() is True
    assert not held.lost


# -- renewal, waiting, threads and tasks -------------------------------------------------------------------------------


def test_a_renewed_lock_lasts(lock: Any, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that came back empty is taken again at the next renewal, so that the next one may fail too."""
    renew_often(monkeypatch)
    with lock.hold("a", 30, renew=True) as held:
        cluster.all_have(held.owner)
        for view in cluster.views:
            view.flushall()
            cluster.all_have(held.owner)
            until(renewed_since(held))  # of one renewal only one server may have been empty
        assert held.lease_left > 20
        assert not held.lost


def test_waiting_for_a_lock(lock: Any, pool: ThreadPoolExecutor) -> None:
    """It ends with a release, or with the lease of the other."""
    held = take(lock)
    started = time.monotonic()
    assert lock.acquire("a", blocking=True, timeout=0.4) is None
    assert 0.4 <= time.monotonic() - started < 10
    with pytest.raises(NotAcquired), lock.hold("a", timeout=0):
        pytest.fail("not held")
    future = pool.submit(lock.acquire, "a", 0.5, blocking=True, timeout=HANGS_AFTER)
    held.release()
    assert future.result(HANGS_AFTER)
    assert lock.acquire("a", 600, blocking=True, timeout=HANGS_AFTER)


def test_one_at_a_time_under_contention(lock: Any, redlock: Callable[..., Any], pool: ThreadPoolExecutor) -> None:
    """Split votes are retried until each caller had it."""
    inside = threading.Lock()
    done: list[int] = []

    def work(number: int, lock: Any) -> None:
        for _ in range(5):
            with lock.hold("a", timeout=HANGS_AFTER):
                assert inside.acquire(blocking=False)
                done.append(number)
                inside.release()

    futures = [pool.submit(work, number, lock if number % 2 else redlock()) for number in range(6)]
    for future in futures:
        future.result(HANGS_AFTER)
    assert sorted(done) == sorted(list(range(6)) * 5)


def test_cancelled_acquire_gives_back_its_grants(aio_side: AsyncioSide, cluster: Cluster) -> None:
    """One server has granted it, the others have not answered yet."""
    for server in cluster.servers[1:]:
        server.freeze()
    made = aio_side.make("Redlock", cluster.clients(aio_side), prefix=cluster.prefix, node_timeout=PATIENCE)
    task = aio_side.start(lambda: made.thing.acquire("a", 600))
    until(lambda: cluster.each(0).locked_by("a"))
    aio_side.cancel(task)
    cluster.thaw()
    until(lambda: not aio_side.at_work())
    assert cluster.owners() == [None] * 3


def test_threads_end_when_there_is_nothing_to_do(sync_lock: Redlock, monkeypatch: pytest.MonkeyPatch) -> None:
    def threads() -> set[threading.Thread]:
        return {each for each in threading.enumerate() if each.name == "celery_throttle-node"} - before

    before: set[threading.Thread] = set()
    before = threads()
    monkeypatch.setattr(nodes, "_IDLE", 1.0)
    held = take(sync_lock)
    assert threads()
    until(lambda: not threads())
    assert held.release(), "and come back"


def test_calls_do_not_pile_up_for_a_frozen_server(
    redlock: Callable[..., Any], cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "BACKLOG", 5)
    lock = redlock()
    take(lock).release()
    cluster.servers[0].freeze()
    for _ in range(20):
        take(lock, lease=600).release()
    assert len(lock.quorum._nodes[0]._jobs) == 5
    cluster.thaw()
    until(lambda: not lock.quorum._nodes[0]._jobs)
    until(lambda: cluster.owners()[1:] == [None] * 2)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_threads_of_its_own(sync_lock: Redlock) -> None:
    """A Celery child that inherits a Redlock which was used before."""
    take(sync_lock).release()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking while threads run: the point of this test
        child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if sync_lock.acquire("a", 600) else 2
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert sync_lock.acquire("a") is None


# -- arguments, and the example in the docstring -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("servers", "options", "asked", "message"),
    [
        (3, {"drift": 0.6}, {}, "drift"),
        (3, {"drift": True}, {}, "drift"),
        (3, {"lease": 0}, {}, "lease"),
        (3, {"node_timeout": 0}, {}, "node_timeout"),
        (3, {"prefix": "{"}, {}, "prefix"),
        (2, {}, {}, "3 or more independent servers, got 2.*use IdentityLock"),
        (3, {}, {"identity": 17}, "identity"),
        (3, {}, {"lease": -1}, "lease"),
        (3, {}, {"timeout": 1}, "timeout"),
    ],
)
def test_wrong_arguments_are_refused(
    side: SyncSide, servers: int, options: dict[str, Any], asked: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        side.make("Redlock", [side.client("redis://")] * servers, **options).acquire(**{"identity": "a", **asked})


def test_the_example_runs(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    clients = cluster.views
    monkeypatch.setattr("redis.Redis", lambda port: clients[port - 6379])
    names: dict[str, Any] = {}
    exec(example(Redlock), names)
    assert names["held"].release() is True
