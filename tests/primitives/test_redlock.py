"""A lock on the majority of several servers, some of which are frozen, dead or empty."""

from __future__ import annotations

import inspect
import os
import textwrap
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from redis import Redis
from redis.exceptions import RedisError

from celery_throttle.errors import ConfigurationError, LeaseLost, NotAcquired, StoreUnavailable
from celery_throttle.primitives import HeldRedlock, Redlock
from celery_throttle.primitives import redlock_nodes as nodes
from tests.primitives.cluster import NODE_TIMEOUT
from tests.primitives.pace import renew_often, renewed_since
from tests.support.waiting import until

if TYPE_CHECKING:
    from celery_throttle.store.scripts import Call
    from tests.primitives.cluster import Cluster


def take(lock: Redlock, **options: Any) -> HeldRedlock:
    """Take a lock that must be free."""
    held = lock.acquire("a", **options)
    assert held is not None
    return held


def test_one_holder_at_a_time(cluster: Cluster) -> None:
    lock = cluster.redlock()
    held = take(lock)
    assert cluster.redlock().acquire("a") is None
    assert lock.acquire("b") is not None
    assert held.release() is True
    assert not held.lost
    take(lock)


def test_all_servers_vote(cluster: Cluster) -> None:
    held = take(cluster.redlock())
    until(lambda: cluster.owners() == [held.owner] * 3)
    held.release()
    until(lambda: cluster.owners() == [None] * 3)


def test_the_lease_is_shorter_by_drift_and_elapsed_time(cluster: Cluster) -> None:
    held = take(cluster.redlock(drift=0.1), lease=100)
    assert 80 < held.lease_left < 90


def test_a_lease_that_the_vote_outlasts_is_none(cluster: Cluster) -> None:
    """Drift and the time it took are more than the lease: it is given back."""
    lock = cluster.redlock()
    lock._drift = 1.0
    assert lock.acquire("a", 60) is None
    until(lambda: cluster.owners() == [None] * 3)


def test_a_minority_is_not_enough_and_is_given_back(cluster: Cluster) -> None:
    """Others have it on two of three; the vote of the third is returned at once."""
    others = [cluster.each(index).acquire("a", owner="other") for index in (0, 1)]
    assert all(others)
    assert cluster.redlock().acquire("a", 600) is None
    until(lambda: cluster.owners() == ["other", "other", None])


def test_a_majority_is_enough(cluster: Cluster) -> None:
    cluster.each(2).acquire("a", owner="other")
    held = take(cluster.redlock())
    assert held.renew()
    assert held.release()
    assert cluster.owners() == [None, None, "other"]


# -- servers in trouble ------------------------------------------------------------------------------------------------


def test_a_dead_server_does_not_matter(cluster: Cluster) -> None:
    cluster.servers[0].kill()
    lock = cluster.redlock()
    with lock.hold("a", timeout=5) as held:
        assert lock.acquire("a") is None
        assert held.renew()
    take(lock)


def test_missing_majority_has_no_answer(cluster: Cluster) -> None:
    """And the grant of the only server is given back."""
    cluster.servers[0].kill()
    cluster.servers[1].kill()
    with pytest.raises(StoreUnavailable, match="2 of 3 servers did not answer") as error:
        cluster.redlock().acquire("a", 600)
    assert isinstance(error.value.__cause__, RedisError)
    until(lambda: cluster.each(2).locked_by("a") is None)


def test_frozen_server_delays_no_caller(cluster: Cluster) -> None:
    """Its client would wait for thirty seconds."""
    cluster.servers[0].freeze()
    started = time.monotonic()
    lock = cluster.redlock()
    for _ in range(3):
        with lock.hold("a", timeout=0) as held:
            assert held.renew()
    assert time.monotonic() - started < 10
    cluster.servers[0].thaw()
    until(lambda: cluster.owners() == [None] * 3)


def test_a_frozen_server_does_not_delay_a_refusal(cluster: Cluster) -> None:
    """The two others have refused: with any answer of the third, the result is no."""
    for index in (0, 1):
        cluster.each(index).acquire("a")
    cluster.servers[2].freeze()
    lock = Redlock(cluster.clients, prefix=cluster.prefix, node_timeout=25)
    started = time.monotonic()
    assert lock.acquire("a") is None
    assert time.monotonic() - started < 10


def test_two_frozen_servers_cost_their_timeout(cluster: Cluster) -> None:
    """Once: while they owe a reply, they are not waited for again."""
    for server in cluster.servers[:2]:
        server.freeze()
    lock = cluster.redlock(node_timeout=NODE_TIMEOUT)
    started = time.monotonic()
    with pytest.raises(StoreUnavailable):
        lock.acquire("a")
    assert NODE_TIMEOUT <= time.monotonic() - started < 10
    until(lambda: all(node.silent_for() > NODE_TIMEOUT for node in lock.quorum._nodes[:2]))
    started = time.monotonic()
    with pytest.raises(StoreUnavailable):
        lock.acquire("a")
    assert time.monotonic() - started < NODE_TIMEOUT


@pytest.mark.parametrize("socket_timeout", [30, 0.05])
def test_thawed_server_drops_grants_without_a_waiting_caller(cluster: Cluster, socket_timeout: float) -> None:
    """It carries out the acquire of long ago, also one whose connection was closed meanwhile, and then the release."""
    clients = cluster.clients if socket_timeout == 30 else cluster.hasty
    lock = Redlock(clients, prefix=cluster.prefix, node_timeout=NODE_TIMEOUT)
    other = lock.acquire("b")  # connected
    assert other is not None
    until(lambda: all(cluster.asked()))  # all three, not only a majority
    other.release()
    until(lambda: not any(cluster.each(index).locked_by("b") for index in range(3)))
    cluster.views[0].flushall()
    cluster.views[1].flushall()
    for server in cluster.servers[:2]:
        server.freeze()
    with pytest.raises(StoreUnavailable):
        lock.acquire("a", 600)
    until(lambda: all(node.silent_for() > 0.3 for node in lock.quorum._nodes[:2]))
    for server in cluster.servers[:2]:
        server.thaw()
    until(lambda: all(cluster.asked()))
    until(lambda: cluster.owners() == [None] * 3)


def test_thawed_server_frees_locks_released_in_between(cluster: Cluster) -> None:
    held = take(cluster.redlock(), lease=600)
    until(lambda: cluster.owners() == [held.owner] * 3)
    cluster.servers[2].freeze()
    assert held.release() is True
    cluster.servers[2].thaw()
    until(lambda: cluster.owners() == [None] * 3)


def test_a_server_that_came_back_empty_is_taken_again(cluster: Cluster) -> None:
    """At the next renewal, so that the next one may fail too."""
    held = take(cluster.redlock(), lease=600)
    for index in (0, 1, 2):
        until(lambda: cluster.owners() == [held.owner] * 3)
        cluster.servers[index].restart()
        assert held.renew()
    assert held.release() is True


def test_two_servers_that_came_back_empty_are_a_loss(cluster: Cluster) -> None:
    """Others may have had it: their new grants are no proof that it was held all the time."""
    told: list[HeldRedlock] = []
    held = take(cluster.redlock(), lease=600, on_lost=told.append)
    until(lambda: cluster.owners() == [held.owner] * 3)
    cluster.servers[0].restart()
    cluster.servers[1].restart()
    with pytest.raises(LeaseLost):
        held.renew()
    assert held.lost
    assert told == [held]
    with pytest.raises(LeaseLost):
        held.renew()


def test_late_owner_frees_no_other_lock(cluster: Cluster) -> None:
    late = take(cluster.redlock(), lease=600)
    until(lambda: cluster.owners() == [late.owner] * 3)
    cluster.end()
    held = take(cluster.redlock(), lease=600)
    until(lambda: cluster.owners() == [held.owner] * 3)
    assert late.release() is False
    assert late.lost
    assert cluster.owners() == [held.owner] * 3


def test_renewal_after_a_release_keeps_nothing(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock would be taken anew, as by a renewal on a server that came back empty."""
    lock = cluster.redlock()
    held = take(lock, lease=600)
    keep = lock.quorum.keep

    async def keep_late(call: Call) -> bool:
        with ThreadPoolExecutor(1) as other:
            assert other.submit(held.release).result()
        return await keep(call)

    monkeypatch.setattr(lock.quorum, "keep", keep_late)
    with pytest.raises(LeaseLost, match="was released"):
        held.renew()
    until(lambda: cluster.owners() == [None] * 3)


def test_leaving_the_block_reports_a_lost_lock(cluster: Cluster) -> None:
    with pytest.raises(LeaseLost), cluster.redlock().hold("a", 600) as held:  # noqa: PT012 - the block is the test
        until(lambda: cluster.owners() == [held.owner] * 3)
        for index in (0, 1):
            cluster.views[index].flushall()


def test_a_release_that_too_few_confirm_can_be_repeated(cluster: Cluster) -> None:
    held = take(cluster.redlock(node_timeout=2), lease=600)
    until(lambda: cluster.owners() == [held.owner] * 3)
    for server in cluster.servers[:2]:
        server.freeze()
    with pytest.raises(StoreUnavailable):
        held.release()
    for server in cluster.servers[:2]:
        server.thaw()
    assert held.release() is True
    assert not held.lost


# -- renewal, waiting, threads -----------------------------------------------------------------------------------------


def test_a_renewed_lock_lasts(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    renew_often(monkeypatch)
    with cluster.redlock().hold("a", 30, renew=True) as held:
        until(lambda: cluster.owners() == [held.owner] * 3)
        for index in (0, 1, 2):
            cluster.views[index].flushall()
            until(lambda: cluster.owners() == [held.owner] * 3)
            until(renewed_since(held))  # of one renewal only one server may have been empty
        assert held.lease_left > 20
        assert not held.lost


def test_a_majority_lost_is_reported_when_the_lease_ends(cluster: Cluster) -> None:
    told: list[HeldRedlock] = []
    held = take(cluster.redlock(node_timeout=NODE_TIMEOUT), lease=1.5, renew=True, on_lost=told.append)
    cluster.servers[0].kill()
    cluster.servers[1].freeze()
    until(lambda: told)
    assert held.lost
    assert told == [held]


def test_waiting_for_a_lock(cluster: Cluster) -> None:
    lock = cluster.redlock()
    held = take(lock)
    started = time.monotonic()
    assert lock.acquire("a", blocking=True, timeout=0.4) is None
    assert 0.4 <= time.monotonic() - started < 10
    with pytest.raises(NotAcquired), lock.hold("a", timeout=0):
        pytest.fail("not held")
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(lock.acquire, "a", blocking=True, timeout=30)
        held.release()
        assert future.result(30) is not None


def test_one_at_a_time_under_contention(cluster: Cluster) -> None:
    """Split votes are retried until everybody had it."""
    inside = threading.Lock()
    done: list[int] = []

    def work(number: int, lock: Redlock) -> None:
        for _ in range(5):
            with lock.hold("a", timeout=60):
                assert inside.acquire(blocking=False)
                done.append(number)
                inside.release()

    with ThreadPoolExecutor(6) as pool:
        shared = cluster.redlock()
        futures = [pool.submit(work, number, shared if number % 2 else cluster.redlock()) for number in range(6)]
        for future in futures:
            future.result(90)
    assert sorted(done) == sorted(list(range(6)) * 5)


def node_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "celery_throttle-node"}


def test_threads_end_when_there_is_nothing_to_do(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    before = node_threads()
    monkeypatch.setattr(nodes, "_IDLE", 1.0)
    lock = cluster.redlock()
    held = take(lock)
    assert node_threads() - before
    until(lambda: not node_threads() - before)
    assert held.release(), "and come back"


def test_calls_do_not_pile_up_for_a_frozen_server(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "BACKLOG", 5)
    lock = cluster.redlock()
    take(lock).release()
    cluster.servers[0].freeze()
    for _ in range(20):
        take(lock, lease=600).release()
    assert len(lock.quorum._nodes[0]._jobs) == 5
    cluster.servers[0].thaw()
    until(lambda: not lock.quorum._nodes[0]._jobs)
    until(lambda: cluster.owners()[1:] == [None] * 2)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_threads_of_its_own(cluster: Cluster) -> None:
    """A Celery child that inherits a Redlock which was used before."""
    lock = cluster.redlock()
    take(lock).release()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking while threads run: the point of this test
        child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if lock.acquire("a", 600) else 2
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert lock.acquire("a") is None


# -- arguments ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{"drift": 0.6}, {"drift": True}, {"lease": 0}, {"node_timeout": 0}, {"prefix": "{"}], ids=str
)
def test_wrong_settings_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Redlock([Redis()] * 3, **options)


def test_two_servers_have_no_majority_to_spare(cluster: Cluster) -> None:
    with pytest.raises(ConfigurationError, match="use IdentityLock"):
        Redlock(cluster.clients[:2])


@pytest.mark.parametrize("options", [{"identity": 17}, {"lease": -1}, {"timeout": 1}], ids=str)
def test_wrong_arguments_are_refused(cluster: Cluster, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        cluster.redlock().acquire(**{"identity": "a", **options})


def test_the_example_of_its_docstring_runs(cluster: Cluster) -> None:
    lines = (inspect.getdoc(Redlock) or "").split("::\n", 1)[1].split("\nEach server")[0]
    example = textwrap.dedent(lines)
    for port, server in zip((6379, 6380, 6381), cluster.servers, strict=True):
        example = example.replace(f"port={port}", f"port={server.port}")
    names: dict[str, Any] = {}
    exec(example, names)
    assert names["held"].release() is True
    for node in names["locks"].quorum._nodes:
        node._client.close()
