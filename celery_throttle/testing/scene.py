"""The state of a test: its calls, bodies, workers and store. Wait until nothing moves, and describe a task."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, NamedTuple

from celery import states

from celery_throttle.control.known_limits import task_id_of
from celery_throttle.control.reader import MOST, readers
from celery_throttle.control.runnable import work_of
from celery_throttle.control.throttle_control import ThrottleControl
from celery_throttle.errors import StoreUnavailable
from celery_throttle.tasks.rate_limited import RateLimited
from celery_throttle.testing.cut import Cut
from celery_throttle.testing.messages import EAGER, NO_WORKER, NOT_ENTERED, TURNED_OFF, WITHIN, failure, short
from celery_throttle.testing.seen import Seen
from celery_throttle.testing.workers import LOOK_EVERY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from celery_throttle.store.explain import Explanation
    from celery_throttle.testing.bodies import Body
    from celery_throttle.testing.workers import Worker

__all__ = ["Outcomes", "Scene"]

__tracebackhide__ = True  # pytest shows the line of the test instead


@dataclass(frozen=True)
class Outcomes:
    """The ends of the tasks of a test, by their ids.

    Attributes:
        succeeded: tasks whose last body succeeded.
        failed: tasks whose last body failed, or raised `RateLimited` and may not go back in line.
        sent_back: tasks with a body that raised `RateLimited`, also if they went on later.
        without_body: tasks that ended without a body: duplicates, dropped and expired tasks.
        left: the explanations of the tasks that wait, and cannot start.
    """

    succeeded: tuple[str, ...]
    failed: tuple[str, ...]
    sent_back: tuple[str, ...]
    without_body: tuple[str, ...]
    left: tuple[Explanation, ...] = field(repr=False)

    def __str__(self) -> str:
        counts = (
            f"{len(self.succeeded)} succeeded, {len(self.failed)} failed, {len(self.sent_back)} sent back, "
            f"{len(self.without_body)} ended without a body, {len(self.left)} left"
        )
        return "\n".join([counts, *map(str, self.left)])


class _Look(NamedTuple):
    """A look into a worker: whether all is sent, the number of its calls, its free slots, the tasks that wait in it."""

    idle: bool = True
    calls: int = 0
    free: int = 0
    kept: frozenset[str] = frozenset()


class Scene:
    """The calls, bodies, workers and store of a test.

    Args:
        app: the Celery app.

    Attributes:
        app: as given.
        control: the `ThrottleControl` of the app.
    """

    def __init__(self, app: Any) -> None:
        self.app, self.control = app, ThrottleControl(app)
        self._entered = False
        self._seen = Seen(app)
        self._workers: list[Worker] = []
        self._cut = Cut()

    def settle(self, within: float = WITHIN) -> None:
        """Wait until each published task runs, waits or has ended, and none can start.

        Raises:
            AssertionError: not within these seconds, or no worker runs.
        """
        self._check()
        if not self._living:
            raise self._failure(NO_WORKER)
        if not self._until(self._is_settled, within):
            looks = self._looks()
            moving = [each for each in list(self._seen.calls) if not self._is_decided(each, looks)]
            about = ", ".join(f"{self._named(each)}: {self._describe(each)}" for each in moving)
            raise self._failure(f"Not settled within {within:g} s: {about or 'a parked task can start'}.", *moving)

    def drain(self, within: float = WITHIN) -> Outcomes:
        """Wait until nothing runs and nothing can start; return the ends of the tasks of this test.

        Raises:
            AssertionError: not within these seconds.
        """
        running: list[Body] = []

        def is_over() -> bool:
            none_ran = not any(each.runs for each in self._seen.bodies)  # one that ends now may let others start
            self.settle(within)
            running[:] = [each for each in self._seen.bodies if each.runs]
            return none_ran and not running

        if not self._until(is_over, within):
            about = ", ".join(f"{self._named(each.task_id)} on {each.node}" for each in running)
            sentence = f"Not drained within {within:g} s, bodies run: {about}. Open their gate, or write drain(60)."
            raise self._failure(sentence, *(each.task_id for each in running))
        return self._drained()

    def _drained(self) -> Outcomes:
        bodies = {each.task_id: each for each in self._seen.bodies}
        limited = (each.task_id for each in self._seen.bodies if isinstance(each.outcome, RateLimited))
        found = {each: self.control.explain(each) for each in self._seen.calls}
        waits = {each for each, call in self._seen.calls.items() if found[each].state != "unknown" or call.is_early}
        return Outcomes(
            tuple(each for each, body in bodies.items() if body.state == states.SUCCESS),
            tuple(each for each, body in bodies.items() if self._has_failed(body)),
            tuple(dict.fromkeys(limited)),
            tuple(each for each in found if each not in bodies and each not in waits),
            tuple(found[each] for each in found if each in waits),
        )

    def _has_failed(self, body: Body) -> bool:
        """Return whether the last body of a task failed, or raised `RateLimited` and may not go back in line."""
        if isinstance(body.outcome, RateLimited):  # which is no failure to Celery
            return self._state(body.task_id) == states.FAILURE
        return body.state == states.FAILURE

    # -- one task ------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        """Raise where nothing is throttled, so that no assertion passes by not looking."""
        if self.app.conf.task_always_eager:
            raise AssertionError(EAGER)
        if self.app.conf.get("throttle_enabled") is False:
            raise AssertionError(TURNED_OFF)
        if not self._entered:
            raise AssertionError(NOT_ENTERED)

    def _failure(self, sentence: str, *task_ids: str) -> AssertionError:
        return failure(sentence, self.control, task_ids)

    def _id(self, method: str, result: Any) -> str:
        self._check()
        task_id = task_id_of(method, result)
        if task_id not in self._seen.calls:
            raise self._failure(f"Task {short(task_id)} was not published in this test.", task_id)
        return task_id

    def _named(self, task_id: str) -> str:
        return f"{self._seen.calls[task_id].name}[{short(task_id)}]"

    def _describe(self, task_id: str) -> str:
        """Return the state of a task in words: ``it runs on w1@test``."""
        bodies, found = self._seen.bodies_of(task_id), self._explained(task_id)
        if bodies and bodies[-1].runs:
            gates = [each for each in self._seen.gates if task_id in each.waiting]
            return f"it {'is at a gate' if gates else 'runs'} on {bodies[-1].node}"
        if found is not None and found.state == "parked":
            return f"it is parked behind {found.bucket or 'no limit'}, place {found.place}"
        if found is not None and found.state != "unknown":
            return f"it is {found.state}" + (f" by {found.worker}" if found.worker else "")
        if nodes := [each.node for each in self._living if task_id in each.ask(_look, _Look()).kept]:
            return f"it waits in worker {nodes[0]} for a slot, or for the store"
        return self._unknown(task_id, bodies[-1].state if bodies else self._state(task_id))

    def _unknown(self, task_id: str, state: str) -> str:
        """Return the state in words of a task that no store and no worker has."""
        call = self._seen.calls[task_id]
        if state not in (states.PENDING, states.RETRY):
            return f"it ended with {state or 'its worker, which is lost'}"
        if call.is_early:
            return f"it waits for its ETA {call.eta}"
        return f"it is in queue {call.queue!r}" + ("" if self._living else ", and no worker runs")

    def _explained(self, task_id: str) -> Explanation | None:
        try:
            return self.control.explain(task_id)
        except StoreUnavailable:
            return None

    def _state(self, task_id: str) -> str:
        # By no `AsyncResult`: it unsubscribes when it is collected, maybe while another one does, which waits for ever.
        return str(self.app.backend.get_state(task_id))

    # -- waiting -------------------------------------------------------------------------------------------------

    @property
    def _living(self) -> list[Worker]:
        return [each for each in self._workers if not each.is_lost]

    def _until(self, holds: Callable[[], bool], within: float) -> bool:
        end = monotonic() + within
        while True:
            try:
                if holds():
                    return True
            except StoreUnavailable:
                if self._cut.is_active:
                    raise  # else a busy machine: the store did not answer for a second
            if monotonic() > end:
                return False
            sleep(LOOK_EVERY)

    def _settled(self, holds: Callable[[], bool], within: float) -> bool:
        """Return whether a condition holds while nothing moves, within these seconds."""

        def holds_now() -> bool:
            self.settle(max(within, WITHIN))
            return holds()

        return self._until(holds_now, within)

    def _is_settled(self) -> bool:
        before, looks = self._seen.version, self._looks()
        return (
            all(each.idle for each in looks.values())
            and all(self._is_decided(each, looks) for each in list(self._seen.calls))
            and (self._cut.is_active or self._is_store_settled(looks))
            and (before, looks) == (self._seen.version, self._looks())
        )

    def _looks(self) -> dict[Worker, _Look]:
        return {worker: worker.ask(_look, _Look()) for worker in self._living}

    def _is_decided(self, task_id: str, looks: dict[Worker, _Look]) -> bool:
        """Return whether a task runs, waits or has ended, or its queue has more messages than its workers take."""
        if self._seen.is_decided(task_id) or any(task_id in each.kept for each in looks.values()):
            return True
        found = self._explained(task_id)
        if found is not None and found.state != "unknown":
            return found.state != "held" or not _is_of(found.worker, looks)
        if not self._seen.bodies_of(task_id) and self._state(task_id) in states.READY_STATES:
            return True
        consuming = [worker for worker in looks if self._seen.calls[task_id].queue in worker.queues]
        return bool(consuming) and not any(worker.takes_messages for worker in consuming)

    def _is_store_settled(self, looks: dict[Worker, _Look]) -> bool:
        """Return whether each holder runs, and no parked task can start in a free slot."""
        running = {each.task_id for each in self._seen.bodies if each.runs}
        free = {queue for worker, look in looks.items() if look.free for queue in worker.queues}
        for reader in readers(self.app):
            holders = reader.holders(None, MOST)
            if any(_is_of(each.worker, looks) and each.task_id not in running for each in holders):
                return False
            if not free.isdisjoint(work_of(reader, reader.status(MOST), holders).ready):
                return False
        return True


def _is_of(worker: str | None, workers: Iterable[Worker]) -> bool:
    return any(worker in each.store_names for each in workers)


def _look(throttling: Any) -> _Look:
    report, groups = throttling.report(), throttling.groups
    kept = (each["task_id"] for part in ("waiting", "held_back") for each in report[part]["tasks"])
    return _Look(
        idle=not report["asking"]["count"] and all(each.calls.idle or not each.calls.link.up for each in groups),
        calls=sum(each.calls.number for each in groups),
        free=report["slots"]["free"],
        kept=frozenset(kept),
    )
