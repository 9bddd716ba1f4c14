"""Renewals of a worker: in data that began after its last call, and of lost leases."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from redis import Redis

from celery_throttle import Limit
from celery_throttle.core.facts import Result
from celery_throttle.store.exchange import Arrival
from celery_throttle.store.scripts import execute
from celery_throttle.worker.runs import Permit, Run
from celery_throttle.worker.store_side.renewals import renewals
from tests.store.peek import expire, peek
from tests.store.terms_caller import TermsCaller

GPU = Limit("gpu", 1)


def permit_of(arrival: Arrival) -> Permit:
    request = SimpleNamespace(id=arrival.task, name="shop.pay", eventer=None)
    run: Any = SimpleNamespace(arrival=arrival, nonce=arrival.nonce, request=request)
    return Permit(run)


def renew(
    worker: TermsCaller, redis: Redis, permit: Permit, lost: list[str], *, number: int, has_it: bool = True
) -> None:
    """Renew a permit after the call of this number, and judge the answer."""
    birth = worker.renew_all()[2].decode()
    (renewal,) = renewals(worker.store, worker.name, number, [permit], birth)
    assert permit.run is not None
    held = {permit.run.nonce: permit} if has_it else {}
    assert renewal.judge(held, noting(lost), execute(redis, renewal.call)) == birth


@pytest.fixture
def lost() -> list[str]:
    """The tasks whose leases were reported as lost."""
    return []


def noting(lost: list[str]) -> Callable[[Run, str], None]:
    return lambda run, needs: lost.append(run.request.id)


def test_lost_lease_is_reported_once_although_calls_come_between(
    worker: TermsCaller, redis: Redis, lost: list[str]
) -> None:
    """To such a renewal the store answers that the call may have ended the run; its worker knows better."""
    permit = permit_of(worker.take("t1", GPU))
    expire(redis, "t1")
    for _ in range(2):
        number = worker.number
        worker.look(0)
        renew(worker, redis, permit, lost, number=number)
        assert (lost, permit.lost) == (["t1"], True)
    renew(worker, redis, permit, lost, number=worker.number)  # is put back
    assert not permit.lost


@pytest.mark.parametrize("why", ["ended", "goes back"])
def test_run_that_is_over_has_lost_no_lease(
    worker: TermsCaller, peer: TermsCaller, redis: Redis, lost: list[str], why: str
) -> None:
    """A second delivery has the permit before the renewal comes."""
    arrival = worker.take("t1", GPU)
    permit = permit_of(arrival)
    if why == "goes back":
        permit.go_back()
    worker.end(arrival, "again")
    peer.take("t1", GPU)
    renew(worker, redis, permit, lost, number=worker.number, has_it=why == "goes back")
    assert not lost


def test_renewal_before_the_call_that_passes_a_permit_on_loses_nothing(
    worker: TermsCaller, redis: Redis, lost: list[str]
) -> None:
    """The second renewal reports it, if no call gave the store the new holder."""
    permit = permit_of(worker.take("t1", GPU))
    permit.spare(Result.SUCCESS)
    run: Any = permit_of(worker.arrival("t2", GPU)).run
    permit.pass_to(run)
    assert permit.passed() is not None
    renew(worker, redis, permit, lost, number=worker.number)
    assert not lost
    renew(worker, redis, permit, lost, number=worker.number)
    assert lost == ["t2"]


@pytest.mark.parametrize("goes_back", [False, True])
def test_emptied_store_gets_the_holders_but_none_that_goes_back(
    worker: TermsCaller, redis: Redis, lost: list[str], *, goes_back: bool
) -> None:
    """A call to the lost data may have put the task back in line, and its answer may be on its way."""
    permit = permit_of(worker.take("t1", GPU))
    if goes_back:
        permit.go_back()
    redis.flushall()
    worker.declare(GPU)
    birth = "of the lost data"
    assert permit.run is not None
    held = {permit.run.nonce: permit}
    for _ in range(2):  # the first answer has only the birth of the new data
        (renewal,) = renewals(worker.store, worker.name, 7, [permit], birth)
        birth = renewal.judge(held, noting(lost), execute(redis, renewal.call))
    assert not lost
    assert peek(redis).holders("gpu") == ([] if goes_back else ["t1"])


def test_renewal_of_a_holder_before_its_permit_passed_on_loses_nothing(
    worker: TermsCaller, redis: Redis, lost: list[str]
) -> None:
    permit = permit_of(worker.take("t1", GPU))
    birth = worker.renew_all()[2].decode()
    (renewal,) = renewals(worker.store, worker.name, worker.number, [permit], birth)
    permit.spare(Result.SUCCESS)
    run: Any = permit_of(worker.arrival("t2", GPU)).run
    permit.pass_to(run)
    row = permit.passed()
    assert row is not None
    worker.exchange(passed=[row])
    renewal.judge({run.nonce: permit}, noting(lost), execute(redis, renewal.call))
    assert permit.is_new  # no answer was about its present holder
    assert not lost
