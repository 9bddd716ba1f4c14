"""A task that fails without having run, and its message."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from celery_throttle.worker.celery_side.failing import fail


class Request:
    """One of Celery's with ``acks_late``: it lets go of its message first, and writes its result then."""

    def __init__(self, *, away: bool = False, rejects: bool = False) -> None:
        self.away, self.rejects = away, rejects
        self.happened: list[str] = []

    def on_failure(self, info: Any) -> None:  # noqa: ARG002 - Celery's
        if self.rejects:
            self.reject(requeue=False)
        else:
            self.acknowledge()
        if self.away:
            raise OSError("away")
        self.happened.append("told")

    def acknowledge(self) -> None:
        self.happened.append("acknowledged")

    def reject(self, requeue: bool = False) -> None:
        self.happened.append(f"rejected {requeue}")


@pytest.mark.parametrize(("rejects", "then"), [(False, "acknowledged"), (True, "rejected False")])
def test_the_message_goes_when_the_result_is_there(*, rejects: bool, then: str) -> None:
    request = Request(rejects=rejects)
    fail(request, ValueError("no"))
    assert request.happened == ["told", then]


@pytest.mark.parametrize("rejects", [True, False])
def test_unreportable_failure_keeps_the_message(*, rejects: bool) -> None:
    request = Request(away=True, rejects=rejects)
    with pytest.raises(OSError, match="away"):
        fail(request, ValueError("no"))
    assert request.happened == []


def test_listener_of_the_request_keeps_its_place() -> None:
    request: Any = Request()
    request.reject = SimpleNamespace()
    fail(request, ValueError("no"))
    assert vars(request)["reject"] == SimpleNamespace()
    assert "acknowledge" not in vars(request)


def test_listener_that_saw_the_end_is_not_called_again() -> None:
    request: Any = Request()
    request.reject = SimpleNamespace()
    request.on_failure = lambda _: vars(request).pop("reject")
    fail(request, ValueError("no"))
    assert request.happened == ["acknowledged"]
    assert "reject" not in vars(request)
