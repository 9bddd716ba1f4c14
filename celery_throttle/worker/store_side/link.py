"""The connection on which a worker calls the store: each reply goes to its callback later, in order."""

from __future__ import annotations

from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError
from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_throttle.errors import StoreUnavailable
from celery_throttle.store.scripts import pack
from celery_throttle.store.servers.client import TIMEOUT
from celery_throttle.worker.store_side.wire import Wire, call_back

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_throttle.store.scripts import Argument, Call
    from celery_throttle.worker.loop import Loop
    from celery_throttle.worker.reported.paced_log import PacedLog
    from celery_throttle.worker.timekeeper import Timekeeper

__all__ = ["Link", "NoAnswer"]


class NoAnswer(StoreUnavailable):
    """The connection stood, but no byte moved on it for too long."""


class Link(Wire):
    """Sends calls to scripts; each reply goes to its callback, in order.

    A callback gets the reply, a `RedisError` when the server refused the call (which had no effect), or a
    `StoreUnavailable` when it is unknown whether the call had one. If the callback raises `UnreadableReply`, the reply
    counts as lost.

    Args:
        lease: seconds that a permit lasts.
        log: for replies that cannot be read.
        on_up: called when the connection stands.
        on_broken: called when the connection broke, after the callbacks of all calls under way.
        on_unreachable: called each time connecting fails.
        on_rest: called again and again while the connection is up and no reply is awaited.
    """

    def __init__(
        self,
        loop: Loop,
        timekeeper: Timekeeper,
        make: Callable[[], Any],
        lease: float,
        log: PacedLog,
        on_up: Callable[[], None],
        on_broken: Callable[[Exception], None],
        on_unreachable: Callable[[Exception], None],
        on_rest: Callable[[], None],
    ) -> None:
        super().__init__(loop, timekeeper, make, lease, log)
        self._on_up, self._on_broken, self._on_unreachable = on_up, on_broken, on_unreachable
        self._on_rest = on_rest
        #: The calls under way, each with its callback and the seconds of silence after which it counts as lost.
        self._pending: deque[tuple[Call | None, Callable[[Any], object], float]] = deque()

    def send(
        self,
        call: Call,
        callback: Callable[[Any], object],
        *more: tuple[Call, Callable[[Any], object]],
        patience: float = TIMEOUT,
    ) -> None:
        """Send a call, and more of them in the same write; the connection must be up.

        The connection counts as lost when no byte has moved for ``patience`` seconds. Sent bytes may still be on their
        way, in the buffers of a proxy, say, so a large call may need more patience.
        """
        if not more:
            self._send(call, call.packed(), callback, patience)
            return
        calls = [(call, callback), *more]
        packed = b"".join([each.packed() for each, _ in calls])  # first: an error here must leave no call to wait for
        self._expect(*((each, received, patience) for each, received in calls))
        self._write(packed)

    def wait(self, command: tuple[Argument, ...], seconds: float, callback: Callable[[Any], object]) -> None:
        """Send a command that the server takes so many seconds to answer; the connection must be up."""
        self._send(None, pack(command), callback, seconds + TIMEOUT)

    @property
    def answered(self) -> bool:
        """Whether no call waits for its reply."""
        return not self._pending

    def _send(self, call: Call | None, packed: bytes, callback: Callable[[Any], object], patience: float) -> None:
        self._expect((call, callback, patience))
        self._write(packed)

    def _expect(self, *replies: tuple[Call | None, Callable[[Any], object], float]) -> None:
        if not self._pending:
            self._moved_at = monotonic()
        self._pending.extend(replies)

    def _expecting(self) -> bool:
        return bool(self._pending)

    def _received(self, reply: Any) -> None:
        if not self._pending:
            raise RedisConnectionError(f"a reply without a call: {reply!r}")
        self._moved_at = monotonic()
        call, callback, patience = self._pending.popleft()
        if isinstance(reply, NoScriptError) and call is not None:
            self._send(call, pack(call.eval()), callback, patience)
        else:
            call_back(callback, reply)

    def _tend(self) -> None:
        # The loop itself may have been busy: first send the bytes that wait, and take in the replies that arrived.
        if self._silent:
            if self._unsent:
                self._send_on()
            self.read()
            if self._silent:
                self._lost(RedisTimeoutError(f"no answer within {self._pending[0][2]:g} s"))
        elif self.up and self.answered:
            self._on_rest()

    @property
    def _silent(self) -> bool:
        return bool(self._pending) and monotonic() > self._moved_at + self._pending[0][2]

    def _greet(self) -> None:
        self._on_up()

    def _unreachable(self, error: Exception) -> None:
        self._on_unreachable(error)

    def _broken(self, error: Exception) -> None:
        pending, self._pending = self._pending, deque()
        lost = NoAnswer if isinstance(error, RedisTimeoutError) else StoreUnavailable
        for _, callback, _ in pending:
            call_back(callback, lost(str(error)))
        self._on_broken(error)
