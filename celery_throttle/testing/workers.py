"""Workers in the process of a test: started, stopped, or lost as a killed worker is."""

from __future__ import annotations

import threading
from functools import partial
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, cast

from celery import _state
from celery.exceptions import WorkerShutdown, WorkerTerminate
from celery.worker import WorkController

from celery_throttle.testing.messages import WITHIN

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from celery_throttle.testing.seen import Seen

__all__ = ["LOOK_EVERY", "Worker"]

__tracebackhide__ = True  # pytest shows the line of the test instead

#: Seconds between two looks of the kit, and seconds that a worker waits for messages before it looks whether to stop.
LOOK_EVERY, _DRAIN_MOST = 0.004, 0.02


class Worker:
    """A worker in this process, whose bodies run in threads.

    Args:
        app: the Celery app.
        seen: records its bodies.
        node: its name.
        concurrency: the number of bodies at once.
        queues: its queues; None for those of the app's settings.

    Attributes:
        node: as given.
        is_lost: whether it was lost.
    """

    def __init__(self, app: Any, seen: Seen, node: str, concurrency: int, queues: Sequence[str] | None) -> None:
        self._seen, self.node, self.is_lost = seen, node, False
        self._error: BaseException | None = None
        self._consumes = threading.Event()
        if queues is None:
            # Not the app's own list, which has the queues of other workers and of messages in this process, too.
            queues = list(app.amqp.Queues(app.conf.task_queues))
        self._worker = cast("Any", WorkController)(
            app=app, hostname=node, pool="threads", concurrency=concurrency, queues=queues, use_eventloop=False,
            ready_callback=self._ready, without_heartbeat=True, without_mingle=True, without_gossip=True,
        )  # fmt: skip
        self._worker.pool.executor._thread_name_prefix = f"{node}/body"  # noqa: SLF001 - `Seen` reads the name
        self._thread = threading.Thread(target=self._run, name=node, daemon=True)

    def start(self, within: float = WITHIN) -> None:
        """Start it; return when it consumes, and its connections to the store stand.

        Raises:
            AssertionError: it did not come so far within these seconds.
        """
        vars(_state)["_task_join_will_block"] = False  # the test's own get() is not in a task
        self._thread.start()
        end = monotonic() + within
        while not (self._consumes.is_set() and self._has_joined()):
            if self._error is not None or monotonic() > end:
                raise AssertionError(f"Worker {self.node} was not ready within {within:g} s: {self._error!r}")
            sleep(LOOK_EVERY)

    def stop(self, within: float = WITHIN) -> None:
        """Let it finish its bodies, and wait for its end, as SIGTERM does.

        Raises:
            AssertionError: it had ended by itself before, or did not end within these seconds.
        """
        if not self._thread.is_alive():
            raise AssertionError(f"Worker {self.node} ended during the test: {self._error!r}") from self._error
        self._end_with(WorkerShutdown, within)
        if self._thread.is_alive():
            raise AssertionError(f"Worker {self.node} did not end within {within:g} s: does a body still run?")

    def lose(self) -> None:
        """Take it away as SIGKILL does: it renews no lease, reports nothing, and the broker has its messages again.

        Bodies at a gate end without a result. Other bodies run to their ends, because Python cannot end threads.
        """
        if self.is_lost:
            return
        self.is_lost = True
        if throttling := self._throttling:
            throttling.timekeeper.stop()
            throttling.loop.ask(lambda: [group.close() for group in throttling.groups], WITHIN)
            throttling.loop.stop(WITHIN)
            throttling.close = throttling.flushed = throttling.finish = lambda: None  # Celery's steps call them
        self._seen.lose(self.node)
        self._end_with(WorkerTerminate, WITHIN)

    def ask(self, look: Callable[[Any], Any], default: Any) -> Any:
        """Return the result of a look at the worker's throttling, on its loop; the default if it throttles nothing."""
        throttling = self._throttling
        return default if throttling is None else throttling.loop.ask(partial(look, throttling), WITHIN)

    @property
    def store_names(self) -> list[str]:
        """Its names in the store, one for each group of limits."""
        throttling = self._throttling
        return [] if throttling is None else [group.calls.worker for group in throttling.groups]

    @property
    def queues(self) -> list[str]:
        """The queues that it consumes."""
        return [each.name for each in self._worker.consumer.task_consumer.queues]

    @property
    def takes_messages(self) -> bool:
        """Whether the broker may give it another message now."""
        return bool(self._worker.consumer.task_consumer.channel.qos.can_consume())

    @property
    def _throttling(self) -> Any:
        return getattr(self._worker, "throttling", None)

    def _run(self) -> None:
        try:
            self._worker.blueprint.start(self._worker)
        except WorkerTerminate:
            self._worker.terminate()
        except BaseException as error:  # noqa: BLE001 - `start` and `stop` raise it in the thread of the test
            self._error = error
            self._worker.stop()

    def _ready(self, consumer: Any) -> None:
        connection = consumer.connection
        connection.drain_events = partial(_drain_shortly, connection.drain_events)
        self._consumes.set()

    def _has_joined(self) -> bool:
        def joined(throttling: Any) -> bool:
            return all(each.calls.free and each.calls.gets_hints and each.calls.queues for each in throttling.groups)

        return bool(self.ask(joined, default=True))

    def _end_with(self, error: type[SystemExit], within: float) -> None:
        def end() -> None:
            raise error(0)

        self._worker.consumer.call_soon(end)
        self._thread.join(within)


def _drain_shortly(drain_events: Any, timeout: float = _DRAIN_MOST, **options: Any) -> Any:
    return drain_events(timeout=min(timeout or _DRAIN_MOST, _DRAIN_MOST), **options)
