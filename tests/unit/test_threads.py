"""A thread that cannot be started, or that has died, is started again by the next caller."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest
from kombu.asynchronous import Hub
from kombu.asynchronous.timer import Timer

from celery_throttle.control import remote_step
from celery_throttle.control.remote_step import Remote
from celery_throttle.primitives import redlock_nodes
from celery_throttle.primitives.redlock_nodes import Node
from celery_throttle.worker.celery_side.outcomes import _Kept
from celery_throttle.worker.loop import Loop
from tests.support.waiting import until


@pytest.fixture
def no_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Until it is undone."""

    def none(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none)
        yield patch


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_server_of_a_redlock(no_thread: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch) -> None:
    answered: list[int] = []

    async def answer(_: Any, question: Any, index: int, __: Any) -> None:
        if question.withdrawn == "dies":
            raise SystemExit
        answered.append(index)

    monkeypatch.setattr(redlock_nodes.Node, "_answer", answer)
    node = Node(None)
    with pytest.raises(RuntimeError):
        node.send(Mock(), 1)
    no_thread.undo()
    monkeypatch.setattr(redlock_nodes.Node, "_answer", answer)
    node.send(Mock(), 2)
    until(lambda: answered == [1, 2])
    node.send(Mock(withdrawn="dies"), 3)
    until(lambda: not node._running)
    node.send(Mock(), 4)
    until(lambda: answered == [1, 2, 4])


def test_outcomes_that_are_kept(no_thread: pytest.MonkeyPatch) -> None:
    kept, outcome, later = _Kept(), Mock(), Mock()
    kept.keep(outcome)
    no_thread.undo()
    kept.keep(later)
    until(lambda: later.store.called)
    assert outcome.store.called
    kept.end()


def test_commands_of_operators(no_thread: pytest.MonkeyPatch, monkeypatch: pytest.MonkeyPatch) -> None:
    hub: Any = Hub(Timer())
    answers = Remote(None, "w", Loop(hub, threaded=False), dict)
    with pytest.raises(RuntimeError):
        answers.steer("a", {})
    no_thread.undo()
    monkeypatch.setattr(remote_step, "carry_out", lambda *_, **__: {"ok": "done"})
    assert answers.steer("b", {}) == {"ok": "done"}
    hub.close()
