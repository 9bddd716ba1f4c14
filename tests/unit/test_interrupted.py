"""Functions of users that are interrupted, or exit: a publisher gets that, and in a worker it is an error."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from celery.exceptions import SoftTimeLimitExceeded, WorkerShutdown, WorkerTerminate
from celery.worker import state

from celery_throttle import ConfigurationError, ThrottleError
from celery_throttle.worker.user_code import WorkerStops, call, safely
from tests.unit.refusals import task_of


def body(label: str) -> None: ...


@pytest.mark.parametrize("option", ["key", "cost", "unique_on"])
@pytest.mark.parametrize("error", [SoftTimeLimitExceeded, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_publisher_gets_what_interrupted_its_function(option: str, error: type[BaseException]) -> None:
    def interrupted(label: str) -> str:
        raise error(label)

    options: dict[str, Any] = {"singleton": True} if option == "unique_on" else {"limit": 1}
    task = task_of(body, **options, **{option: interrupted})
    with pytest.raises(error):
        task.delay("a")


def test_other_errors_name_the_option() -> None:
    def broken(label: str) -> str:
        raise ValueError(label)

    task = task_of(body, limit=1, key=broken)
    with pytest.raises(ConfigurationError, match="key raised ValueError"):
        task.delay("a")


@pytest.fixture
def flags(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Celery's own, as they were before."""
    for name in ("should_stop", "should_terminate"):
        monkeypatch.setattr(state, name, None)
    return vars(state)


def raising(error: BaseException) -> Any:
    def act() -> None:
        raise error

    return act


@pytest.mark.parametrize(
    ("error", "flag", "status"),
    [
        (WorkerShutdown(3), "should_stop", 3),
        (WorkerShutdown(), "should_stop", 0),
        (WorkerTerminate(4), "should_terminate", 4),
        (KeyboardInterrupt(), "should_stop", 1),
    ],
)
def test_a_worker_stops_as_celery_does(flags: dict[str, Any], error: BaseException, flag: str, status: int) -> None:
    with pytest.raises(WorkerStops):
        call(raising(error))
    assert flags[flag] == status


def test_an_exit_is_an_error_with_its_cause(flags: dict[str, Any]) -> None:
    error = SystemExit("bad input")
    with pytest.raises(ThrottleError, match="raised SystemExit\\('bad input'\\)") as caught:
        call(raising(error))
    assert caught.value.__cause__ is error
    assert flags["should_stop"] is flags["should_terminate"] is None


def test_ctrl_c_goes_to_the_main_thread_alone(flags: dict[str, Any]) -> None:
    broke: list[Exception] = []
    thread = threading.Thread(target=lambda: safely(raising(KeyboardInterrupt()), broke=broke.append))
    thread.start()
    thread.join()
    assert [type(each) for each in broke] == [ThrottleError]
    assert flags["should_stop"] is None


def test_error_of_celerys_signal_handler_is_none_of_the_code_that_it_interrupts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The handler of a cold shutdown raises it where the pool cannot end threads."""
    monkeypatch.setitem(vars(state), "should_terminate", None)
    scope: dict[str, Any] = {"__name__": "celery.apps.worker"}
    exec("def handler(): raise NotImplementedError('kill_job')", scope)
    with pytest.raises(WorkerStops, match="kill_job"):
        call(scope["handler"])
    assert vars(state)["should_terminate"] is not None
    with pytest.raises(NotImplementedError):
        call(_not_implemented)


def _not_implemented() -> None:
    raise NotImplementedError
