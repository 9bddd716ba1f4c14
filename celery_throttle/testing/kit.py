"""`ThrottleTest`: an app on a server of the tests, with workers, a clock, and tools to hold tasks back."""

from __future__ import annotations

import uuid
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from celery_throttle.core.policy import limits_of
from celery_throttle.core.wording import counted
from celery_throttle.errors import NotAcquired
from celery_throttle.permits import Limit
from celery_throttle.tasks.registry import policies_of
from celery_throttle.testing.app import configured, emptied, moved_to, server_url
from celery_throttle.testing.assertions import Assertions
from celery_throttle.testing.bodies import Gate
from celery_throttle.testing.clock import advance, clocked_scripts, forget
from celery_throttle.testing.messages import ids
from celery_throttle.testing.workers import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import timedelta
    from types import TracebackType

    from typing_extensions import Self

__all__ = ["ThrottleTest"]

__tracebackhide__ = True  # pytest shows the line of the test instead


class ThrottleTest(Assertions):
    """A test of an app's limits, on real workers and a real store::

        with ThrottleTest(app) as throttle, throttle.run_worker():
            throttle.assert_started(render.delay(1))

    In the block the broker, the result backend and the store of the app are the server of ``THROTTLE_TEST_URL``, or
    one that starts with the first test and ends with the process. Its keys have a prefix of their own, and only these
    are deleted at the end. The settings of the app are restored.

    Args:
        app: the Celery app.
        url: a function that returns the URL of the server; not called in eager mode.
        settings: other settings for this test: ``throttle_lease=5``, ``task_always_eager=False``.

    Attributes:
        prefix: the prefix of all keys of this test.
    """

    def __init__(self, app: Any, *, url: Callable[[], str] = server_url, **settings: Any) -> None:
        super().__init__(app)
        self._url, self._settings = url, settings
        self._stack = ExitStack()
        self.prefix = f"test-{uuid.uuid4().hex}"

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(configured(self.app, self._settings))
            conf = self.app.conf
            if not conf.task_always_eager and conf.get("throttle_enabled") is not False:
                self._enter(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._entered = False
        self._stack.close()

    def _enter(self, stack: ExitStack) -> None:
        url = self._url()
        stack.enter_context(emptied(url, self.prefix))
        stack.enter_context(self._cut.patched())
        stack.enter_context(moved_to(self.app, url, self.prefix))
        stack.enter_context(clocked_scripts())
        self.app.finalize(auto=True)
        self._seen.connect()
        stack.callback(self._seen.disconnect)
        self._entered = True

    @contextmanager
    def run_worker(self, *, concurrency: int = 4, queues: Sequence[str] | None = None) -> Iterator[Worker]:
        """Run a worker in this process, with a pool of threads, for the time of the block; there may be several.

        The end of the block opens all gates, because the worker then finishes its bodies.

        Args:
            concurrency: the number of bodies at once.
            queues: its queues; None for those of the app's settings.

        Raises:
            AssertionError: the worker was not ready in time, or ended by itself.
        """
        self._check()
        worker = Worker(self.app, self._seen, f"w{len(self._workers) + 1}@test", concurrency, queues)
        worker.start()
        self._workers.append(worker)
        try:
            yield worker
        finally:
            for gate in self._seen.gates:
                gate.open()
            if not worker.is_lost:
                self._workers.remove(worker)
                worker.stop()

    @contextmanager
    def gate(self, *tasks: Any) -> Iterator[Gate]:
        """Hold the bodies of these tasks right before their begin, without any: of all tasks, until `Gate.open`.

        A held body has its permits and its slot, as a body that takes long.
        """
        self._check()
        gate = Gate({each.name for each in tasks}, self._failure)
        self._seen.gates.append(gate)
        try:
            yield gate
        finally:
            gate.open()
            self._seen.gates.remove(gate)

    @contextmanager
    def hold(self, limit: Any, permits: int | None = None, key: object = None) -> Iterator[None]:
        """Hold permits of a limit for the time of the block, so that the next tasks are parked.

        It begins when nothing moves.

        Args:
            limit: a `Limit`, its name, or a task with one limit.
            permits: the number; None for all that are free.
            key: the value of the limit's key.

        Raises:
            AssertionError: not so many permits are free.
        """
        if self._living and not self._cut.is_active:
            self.settle()  # or a task that has just ended may still have its permits
        bucket, status = self._bucket(limit, key), self.control.limit(limit, key=key).status()
        declared = limits_of(policies_of(self.app).values())[bucket.name]
        most = status.in_force if status.declared else declared.permits
        free = 0 if most is None else most - status.held
        left = free if permits is None else permits
        if not 0 < left <= free:
            wanted = "1 permit" if permits is None else counted(permits, "permit")
            why = "it has only a rate" if most is None else f"{status.held} of {most} are in use"
            raise self._failure(f"{bucket}: {wanted} cannot be held: {why}.")
        known = Limit(**{each.name: getattr(declared, each.name) for each in fields(declared) if each.init})
        with ExitStack() as stack:
            while left > 0:  # an override may allow more than one call may take
                part = min(left, declared.permits or left)
                try:
                    stack.enter_context(known.acquire(0, key=key, cost=part, app=self.app))
                except NotAcquired as error:
                    raise self._failure(f"{bucket}: no permit can be held: {error}.") from None
                left -= part
            yield

    @contextmanager
    def cut_store(self) -> Iterator[None]:
        """Cut the connections of this process to the store for the time of the block, but not those to the broker.

        Assertions that read the store raise `StoreUnavailable` in the block.
        """
        self._check()
        with self._cut.active():
            yield
        for worker in self._living:
            worker.ask(lambda throttling: [group.calls.link.connect() for group in throttling.groups], None)

    def forget_all(self) -> None:
        """Forget the lines, locks, remembered outcomes and changes, between two tests of one worker.

        Raises:
            AssertionError: a body still runs, or a permit is held.
        """
        self._check()
        if self._living:
            self.settle()
        if held := forget(self.app):
            raise self._failure(
                f"Permits are held: {ids(held)}. Call drain() before, or end the block of hold().", *held
            )
        self.app.control.purge()
        self._seen.clear()

    def advance(self, by: float | timedelta) -> None:
        """Move the store's time forward: rates, holds, pauses, deadlines, remembered outcomes, leases of lost workers.

        The leases of workers that live move along, and ``expires`` of a parked task counts by this time. The real clock
        keeps: Celery's ``countdown``, ``eta``, ``expires`` of other tasks and time limits, history and results, which
        expire at the server, and ``celery_throttle.primitives``.

        Args:
            by: seconds or a timedelta.
        """
        self._check()
        advance(self.app, by, [name for each in self._workers if each.is_lost for name in each.store_names])
