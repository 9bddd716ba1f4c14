"""The steps: clicks, one worker killed and one frozen while they charge, webhooks, the end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from kombu.transport.redis import Channel

from examples.payments import customers, ledger, provider
from examples.payments.app import app, charge
from examples.payments.database import is_free
from examples.payments.summary import Cut, Summary, summarize
from examples.processes import ProcessFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from examples.payments.customers import Answer
    from examples.processes import Process, Processes

SLOTS = 3
CLICKS, WEBHOOKS = 3, 3
# Seconds to find the right moment to interrupt a worker.
HUNT_TIMEOUT = 10.0
# Seconds from the first click to the end: a lease, a visibility timeout, and time for a slow machine.
COURSE_TIMEOUT = 40.0


class Course:
    """Runs the example once, from the start of the processes to the summary."""

    def __init__(self, processes: Processes, amounts: Mapping[int, int], say: Callable[[str], None]) -> None:
        self._processes, self._amounts, self._say = processes, amounts, say
        self._url, self._deadline = "", 0.0
        self._clicks: list[Answer] = []
        self._webhooks: list[Answer] = []
        self._outcomes: dict[str, object] = {}

    def run(self) -> Summary:
        """Return the figures; raise `ProcessFailed` if a process does not come up or ends by itself."""
        one, two = self._start()
        self._deadline = time.monotonic() + COURSE_TIMEOUT
        self._clicks = self._post("/pay", self._amounts, CLICKS)
        killed, frozen = self._kill(one), self._freeze(two)
        self._say("worker three is started in their place, as a supervisor would")
        self._processes.worker("three", "examples.payments.app", SLOTS)
        # For half of the orders: there a waiting duplicate takes over after one lease; else the broker delivers again.
        early = {order_id: amount for order_id, amount in self._amounts.items() if order_id % 4 in {1, 2}}
        self._webhooks = self._post("/webhook", early, WEBHOOKS)
        self._until(lambda: self._charged >= killed.orders | frozen.orders)
        two.thaw()
        self._say("worker two goes on as if nothing had happened")
        self._until(lambda: self._charged >= self._amounts.keys() and len(frozen.refused()) == len(frozen.runs))
        late = {order_id: amount for order_id, amount in self._amounts.items() if order_id not in early}
        self._webhooks += self._post("/webhook", late, WEBHOOKS)
        self._until(self._have_outcomes)
        shown = customers.look(self._url, self._amounts)
        return summarize(self._amounts, shown, self._clicks, self._webhooks, self._outcomes, killed, frozen, early)

    def _start(self) -> tuple[Process, Process]:
        self._say(f"starting a web server, and two workers of {SLOTS} processes each")
        ledger.create()
        provider.create()
        web, self._url = self._processes.web("web", "examples.payments.web:app")
        one, two = (self._processes.worker(name, "examples.payments.app", SLOTS) for name in ("one", "two"))
        self._processes.wait_ready(web, one, two)
        return one, two

    def _post(self, path: str, amounts: Mapping[int, int], times: int) -> list[Answer]:
        self._say(f"POST {path} for {len(amounts)} orders, {times} times each, all at the same time")
        return customers.post(self._url, path, amounts, times)

    def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition until the deadline; a timeout is no error, because the figures show it."""
        while not self._processes.until(condition, 1.0) and time.monotonic() < self._deadline:
            if not hasattr(Channel, "unacked_restore_interval"):
                _look_for_lost_messages()

    @property
    def _charged(self) -> set[int]:
        return {order.order_id for order in ledger.orders() if order.state == "charged"}

    def _have_outcomes(self) -> bool:
        """Collect the outcome of each task id, including duplicates; return whether all are there."""
        for answer in self._clicks + self._webhooks:
            if answer.task_id and answer.task_id not in self._outcomes:
                result = charge.AsyncResult(answer.task_id)
                # Only a success, because a superseded run has failed until the outcome of the newest one is there.
                if result.successful():
                    self._outcomes[answer.task_id] = result.result
        return {answer.task_id for answer in self._clicks + self._webhooks} <= self._outcomes.keys()

    # -- interruptions -------------------------------------------------------------------------------------------

    def _kill(self, worker: Process) -> Cut:
        cut = self._catch(worker)
        worker.kill()
        self._say(f"SIGKILL to worker {worker.name}, which was charging {cut}")
        return cut

    def _freeze(self, worker: Process) -> Cut:
        cut = self._catch(worker)
        self._say(f"worker {worker.name} freezes (SIGSTOP), as a paused machine would; it was charging {cut}")
        return cut

    def _catch(self, worker: Process) -> Cut:
        """Freeze a worker while it charges, best when the money of some of its orders has moved and of others not."""
        deadline = time.monotonic() + HUNT_TIMEOUT
        while time.monotonic() < deadline:
            self._processes.check()
            hurry = len(provider.charges()) > len(self._amounts) / 2
            if self._is_right(_running(worker.name), hurry=hurry):
                worker.freeze()
                # Check again: a worker frozen in a write would block all others, and the runs may have changed.
                if is_free(ledger.NAME) and is_free(provider.NAME):
                    cut = _running(worker.name)
                    if self._is_right(cut, hurry=hurry):
                        return cut
                worker.thaw()
            time.sleep(0.005)
        raise ProcessFailed(f"Worker {worker.name} charged nothing that could be interrupted.")

    def _is_right(self, cut: Cut, *, hurry: bool) -> bool:
        return 0 < len(cut.moved) < len(cut.runs) or (hurry and len(cut.runs) > 0)


def _look_for_lost_messages() -> None:
    """Restore unacknowledged messages, because workers of Celery before 5.7 do it only every hundred seconds."""
    with app.connection_for_write() as connection:
        channel: Any = connection.default_channel
        channel.qos.restore_visible(interval=1)


def _running(worker: str) -> Cut:
    runs = tuple(run for run in ledger.runs() if run.worker == worker and run.outcome is None)
    moved = {charge.order_id for charge in provider.charges()}
    return Cut(worker, time.monotonic(), runs, frozenset(run.order_id for run in runs if run.order_id in moved))
