"""`Throttled.fencing_token`: a body that asks for it never goes on without one, in every mode."""

from __future__ import annotations

import inspect
import pickle
import traceback
from typing import Any
from unittest import mock

import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker

from celery_throttle import ConfigurationError, NoFencingToken, Throttled, ThrottleError
from celery_throttle.embedded import EmbeddedServer
from celery_throttle.testing import ThrottleTest
from tests.support.kit import task_maker
from tests.support.waiting import HANGS_AFTER

#: The orders that were paid.
paid: list[int] = []


def make_app(**conf: Any) -> Any:
    paid.clear()
    app = Celery("fencing", broker="memory://", set_as_current=False)
    app.conf.update(worker_hijack_root_logger=False, result_backend="cache+memory://")
    app.conf.update(throttle_url="redis://127.0.0.1:1/0", broker_transport_options={"polling_interval": 0.05}, **conf)

    def charge(self: Any, order_id: int) -> int:
        token = int(self.fencing_token)
        paid.append(order_id)
        return token

    def see(self: Any, number: int) -> Any:
        return number, self.fencing_token_or_none, self.fencing_token, self.fencing_token_or_none

    def or_none(self: Any) -> Any:
        return self.fencing_token_or_none

    make_task = task_maker(app)
    make_task("charge", charge, bind=True, base=Throttled, singleton=True)
    make_task("tokens", see, bind=True, base=Throttled, singleton=True)
    make_task("limited", see, bind=True, base=Throttled, singleton=True, limit=1)
    make_task("or_none", or_none, bind=True, base=Throttled, singleton=True)
    make_task("plain", charge, bind=True, base=Throttled, limit=5)
    return app


def test_eager_tokens_grow_and_stay_within_a_run() -> None:
    app = make_app(task_always_eager=True)
    task = app.tasks["fencing.tokens"]
    runs = [task.delay(7).get(), task.apply((7,)).get(), task(7), task.s(7).delay().get()]
    seen = [token for _, token, *others in runs if others == [token, token]]
    seen.append(app.tasks["fencing.charge"].delay(17).get())
    assert len(seen) == 5
    assert sorted(set(seen)) == seen
    assert seen[0] > 10**15  # as a store's, so rows of an earlier process of the tests are older
    assert paid == [17]


@pytest.mark.usefixtures("log_as_before")
@pytest.mark.parametrize(
    ("conf", "why"),
    [
        ({"throttle_enabled": False}, "throttle_enabled is False.*throttle_enabled = True"),
        ({"throttle_on_store_error": "run"}, "throttle_on_store_error is 'run'.*throttle_on_store_error = 'hold'"),
    ],
    ids=["off", "run"],
)
def test_a_run_without_a_lock_fails(conf: dict[str, Any], why: str) -> None:
    app = make_app(**conf)
    with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=20):
        error = app.tasks["fencing.charge"].delay(17).get(timeout=HANGS_AFTER, propagate=False)
        assert app.tasks["fencing.or_none"].delay().get(timeout=HANGS_AFTER) is None
    assert error.task_name == "fencing.charge"
    with pytest.raises(NoFencingToken, match=f"Task fencing.charge: no fencing token: .*{why}"):
        raise error
    assert paid == []


def test_runs_with_a_lock_have_growing_tokens_of_the_store(server: EmbeddedServer) -> None:
    """Those that were parked have one, too."""
    app = make_app()
    tokens = []

    def see_token(result: Any) -> None:
        number, token, *others = result.get(timeout=HANGS_AFTER)
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
    assert sorted(set(tokens)) == tokens
    assert tokens[0] > 10**15


def test_a_call_without_a_worker_fails() -> None:
    charge = make_app().tasks["fencing.charge"]
    with pytest.raises(NoFencingToken, match=r"charge: .*called as a function.*delay\(\)") as raised:
        charge(17)
    for applied in (charge.apply((17,)), charge.s(17).apply()):
        with pytest.raises(NoFencingToken, match=r"charge: .*apply\(\) takes no lock.*task_always_eager = True"):
            applied.get()
    assert paid == []
    # Python proposes names like the requested one, and None must not get into a WHERE.
    assert "or_none" not in "".join(traceback.format_exception_only(raised.value))
    assert isinstance(raised.value, ThrottleError)
    assert not isinstance(raised.value, ConfigurationError)
    again = pickle.loads(pickle.dumps(raised.value))
    assert (type(again), str(again)) == (NoFencingToken, str(raised.value))


@pytest.mark.parametrize("conf", [{}, {"task_always_eager": True}])
def test_no_token_without_a_run_or_a_lock(conf: dict[str, Any]) -> None:
    tasks = make_app(**conf).tasks
    charge = tasks["fencing.charge"]
    with pytest.raises(NoFencingToken, match=r"charge: .*outside of a run"):
        charge.fencing_token  # noqa: B018 - it raises
    assert charge.fencing_token_or_none is None
    with pytest.raises(NoFencingToken, match=r"plain: .*write singleton=True"):
        tasks["fencing.plain"].apply((17,)).get()
    # A task can be looked at and mocked, as any task of Celery.
    assert dict(inspect.getmembers(charge))["name"] == "fencing.charge"
    mock.create_autospec(charge).delay(17)
