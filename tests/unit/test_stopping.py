"""The end of a worker: what it waits for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from celery_throttle.worker.stopping import Stopping


class Turns:
    """A loop that runs posted calls at once; ``happens`` is called before each wait, with its number."""

    def __init__(self, happens: Any) -> None:
        self._happens, self.waits = happens, 0
        self.reached: list[bool] = []

    def post(self, call: Any, *args: Any) -> None:
        call(*args)

    def wait(self, ready: Any, _: float) -> bool:
        self.waits += 1
        self._happens(self.waits)
        self.reached.append(ready())
        return self.reached[-1]

    def stop(self, _: float) -> None:
        """End."""


def test_a_row_that_comes_while_the_worker_leaves_is_reported() -> None:
    """A task was revoked after all was reported, and the connection had just broken."""
    calls: Any = SimpleNamespace(settled=True, left=True, leave=lambda: None)

    def happens(wait: int) -> None:
        calls.settled = wait < 3

    loop: Any = Turns(happens)
    gate: Any = SimpleNamespace(groups=[calls], finish=lambda: None, keep_back=lambda: None)
    Stopping(loop, gate, 60).finish()
    assert loop.reached == [True, True, False]
