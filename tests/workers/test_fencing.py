"""`Throttled.fencing_token`: the payment of the docs never succeeds without a charge, in every mode."""

from __future__ import annotations

import inspect
import pickle
import sqlite3
import traceback
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker

from celery_throttle import ConfigurationError, NoFencingToken, Throttled, ThrottleError
from celery_throttle.embedded import EmbeddedServer
from celery_throttle.testing import ThrottleTest
from tests.support.kit import task_maker

NOWHERE = "redis://127.0.0.1:1/0"


@pytest.fixture
def orders() -> Iterator[sqlite3.Connection]:
    """One new order, 17."""
    # A worker's pool may run the body in another thread, one after the other.
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    connection.execute("CREATE TABLE orders (id INT, state TEXT DEFAULT 'new', fence BIGINT NOT NULL DEFAULT 0)")
    connection.execute("INSERT INTO orders (id) VALUES (17)")
    yield connection
    connection.close()


def make_app(orders: sqlite3.Connection, **conf: Any) -> Any:
    app = Celery("fencing", broker="memory://", set_as_current=False)
    app.conf.update(worker_hijack_root_logger=False, result_backend="cache+memory://")
    app.conf.update(throttle_url=NOWHERE, broker_transport_options={"polling_interval": 0.05}, **conf)

    @app.task(shared=False, base=Throttled, singleton=True, name="charge", bind=True)
    def charge(self: Any, order_id: int) -> str:
        claimed = orders.execute(
            "UPDATE orders SET state = 'charging', fence = :fence WHERE id = :id AND fence < :fence",
            {"id": order_id, "fence": self.fencing_token},
        )
        if claimed.rowcount == 0:
            return "a newer run is at it"
        orders.execute(
            "UPDATE orders SET state = 'charged' WHERE id = :id AND fence = :fence",
            {"id": order_id, "fence": self.fencing_token},
        )
        return "charged"

    def see(self: Any, number: int) -> Any:
        return number, self.fencing_token_or_none, self.fencing_token, self.fencing_token_or_none

    make_task = task_maker(app)
    make_task("tokens", see, bind=True, base=Throttled, singleton=True)
    make_task("limited", see, bind=True, base=Throttled, singleton=True, limit=1)

    @app.task(shared=False, base=Throttled, singleton=True, name="or_none", bind=True)
    def or_none(self: Any) -> Any:
        return self.fencing_token_or_none

    @app.task(shared=False, base=Throttled, limit=5, name="plain", bind=True)
    def plain(self: Any) -> Any:
        return self.fencing_token

    return app


def state(orders: sqlite3.Connection) -> str:
    (found,) = orders.execute("SELECT state FROM orders WHERE id = 17").fetchone()
    return str(found)


def outcomes(*calls: Any) -> list[Any]:
    """Return the results or the errors of calls in a worker."""
    with start_worker(calls[0].app, pool="solo", perform_ping_check=False, shutdown_timeout=20):
        return [call.delay().get(timeout=20, propagate=False) for call in calls]


def test_eager_mode_charges(orders: sqlite3.Connection) -> None:
    app = make_app(orders, task_always_eager=True)
    assert app.tasks["charge"].delay(17).get() == "charged"
    assert state(orders) == "charged"


def test_eager_tokens_grow_and_stay_within_a_run(orders: sqlite3.Connection) -> None:
    app = make_app(orders, task_always_eager=True)
    task = app.tasks["fencing.tokens"]
    runs = [task.delay(7).get(), task.apply((7,)).get(), task(7), task.s(7).delay().get()]
    seen = [token for _, token, *others in runs if others == [token, token]]
    assert len(seen) == 4
    assert sorted(set(seen)) == seen
    assert seen[0] > 10**15  # as a store's, so rows of an earlier process of the tests are older


@pytest.mark.usefixtures("log_as_before")
@pytest.mark.parametrize(
    ("conf", "why"),
    [
        ({"throttle_enabled": False}, "throttle_enabled is False.*throttle_enabled = True"),
        ({"throttle_on_store_error": "run"}, "throttle_on_store_error is 'run'.*throttle_on_store_error = 'hold'"),
    ],
    ids=["off", "run"],
)
def test_a_run_without_a_lock_fails(orders: sqlite3.Connection, conf: dict[str, Any], why: str) -> None:
    tasks = make_app(orders, **conf).tasks
    error, none = outcomes(tasks["charge"].s(17), tasks["or_none"].s())
    assert isinstance(error, NoFencingToken), error
    assert error.task_name == "charge"
    with pytest.raises(NoFencingToken, match=f"Task charge: no fencing token: .*{why}"):
        raise error
    assert state(orders) == "new"
    assert none is None


def test_runs_with_a_lock_have_growing_tokens_of_the_store(orders: sqlite3.Connection, server: EmbeddedServer) -> None:
    """Those that were parked have one, too."""
    app = make_app(orders)
    tokens = []

    def see_token(result: Any) -> None:
        number, token, *others = result.get(timeout=20)
        assert (number, others) == (7, [token, token])
        tokens.append(token)

    with ThrottleTest(app, url=lambda: server.url) as throttle, throttle.run_worker():
        for _ in range(3):
            see_token(app.tasks["fencing.tokens"].delay(7))
            throttle.drain()  # the lock is free
        with throttle.hold("fencing.limited"):
            parked = app.tasks["fencing.limited"].delay(7)
            throttle.assert_parked(parked)
        see_token(parked)
        assert app.tasks["charge"].delay(17).get(timeout=20) == "charged"
    assert sorted(set(tokens)) == tokens
    assert tokens[0] > 10**15
    assert state(orders) == "charged"


def test_a_call_without_a_worker_fails(orders: sqlite3.Connection) -> None:
    charge = make_app(orders).tasks["charge"]
    with pytest.raises(NoFencingToken, match=r"Task charge: .*called as a function.*delay\(\)"):
        charge(17)
    for applied in (charge.apply((17,)), charge.s(17).apply()):
        with pytest.raises(NoFencingToken, match=r"Task charge: .*apply\(\) takes no lock.*task_always_eager = True"):
            applied.get()
    assert state(orders) == "new"


def test_there_is_none_outside_of_a_run(orders: sqlite3.Connection) -> None:
    for conf in ({}, {"task_always_eager": True}):
        charge = make_app(orders, **conf).tasks["charge"]
        with pytest.raises(NoFencingToken, match=r"Task charge: .*outside of a run"):
            charge.fencing_token  # noqa: B018 - it raises
        assert charge.fencing_token_or_none is None


@pytest.mark.parametrize("eager", [False, True])
def test_a_task_that_is_no_singleton_has_none(orders: sqlite3.Connection, eager: bool) -> None:
    plain = make_app(orders, task_always_eager=eager).tasks["plain"]
    with pytest.raises(NoFencingToken, match=r"Task plain: .*write singleton=True"):
        plain.apply().get()


def test_the_error_is_one_of_ours_and_goes_through_pickle(orders: sqlite3.Connection) -> None:
    charge = make_app(orders).tasks["charge"]
    with pytest.raises(ThrottleError) as raised:
        charge(17)
    again = pickle.loads(pickle.dumps(raised.value))
    assert (type(again), str(again)) == (NoFencingToken, str(raised.value))
    assert not isinstance(raised.value, ConfigurationError)


def test_the_traceback_does_not_suggest_the_unsafe_one(orders: sqlite3.Connection) -> None:
    """Python proposes names like the requested one, and None must not get into a WHERE."""
    charge = make_app(orders).tasks["charge"]
    with pytest.raises(NoFencingToken) as raised:
        charge(17)
    assert "or_none" not in "".join(traceback.format_exception_only(raised.value))


def test_a_task_can_be_looked_at_and_mocked(orders: sqlite3.Connection) -> None:
    """As any task of Celery."""
    charge = make_app(orders).tasks["charge"]
    assert dict(inspect.getmembers(charge))["name"] == "charge"
    mock.create_autospec(charge).delay(17)
