"""The connection on which hints arrive, with a PING now and then, because a dead connection would only be silent."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoPermissionError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_throttle.store.scripts import pack
from celery_throttle.store.servers.client import TIMEOUT
from celery_throttle.worker.store_side.wire import Wire, call_back

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_throttle.worker.loop import Loop
    from celery_throttle.worker.reported.paced_log import PacedLog
    from celery_throttle.worker.timekeeper import Timekeeper

__all__ = ["Listener"]

#: Seconds of silence after which a PING is sent; a worker asks the store for tasks without a hint as often.
_PING_AFTER = 5.0
#: Seconds until a refused SUBSCRIBE is sent again; twice as long each time, up to the second number.
_AGAIN, _AGAIN_MOST = 1.0, 30.0
#: One kind, so that the last line is the present state.
_HINTS = "hints"


class Listener(Wire):
    """Receives the hints that are published on one channel.

    A subscription gets a PING after some seconds of silence; a connection that does not answer in time is replaced. A
    SUBSCRIBE that the server refuses (it is busy with a script, say) is sent again.

    Args:
        channel: of the hints.
        on_hint: called with each hint.
        on_subscribed: called whenever hints begin to arrive: some may have been missed before.
    """

    def __init__(
        self,
        loop: Loop,
        timekeeper: Timekeeper,
        make: Callable[[], Any],
        lease: float,
        log: PacedLog,
        channel: str,
        on_hint: Callable[[str], None],
        on_subscribed: Callable[[], None],
    ) -> None:
        super().__init__(loop, timekeeper, make, lease, log)
        self._channel, self._on_hint, self._on_subscribed = channel, on_hint, on_subscribed
        self._subscribed = False
        self._mute = False  # the store's user may not publish hints
        self._logged = False  # that the store refuses hints, once until hints arrive again
        self._unanswered = False  # a command was sent that has no reply yet
        self._heard_at = monotonic()  # when a reply came or a command was sent
        self._again = _AGAIN

    @property
    def subscribed(self) -> bool:
        """Whether hints arrive, by the last replies."""
        return self.up and self._subscribed and not self._mute

    def published(self, *, allowed: bool) -> None:
        """Store whether the store's user may publish hints; if not, none arrive."""
        self._mute = not allowed
        if self._mute:
            self._log_refusal("its user may not publish them", is_right=True)

    def _greet(self) -> None:
        self._subscribed, self._again = False, _AGAIN
        self._ask("SUBSCRIBE", self._channel)

    def _ask(self, *command: str) -> None:
        self._unanswered, self._heard_at = True, monotonic()
        self._write(pack(command))

    def _broken(self, error: Exception) -> None:  # noqa: ARG002 - the next connection subscribes again
        self._subscribed = self._unanswered = False

    def _tend(self) -> None:
        silence = monotonic() - self._heard_at
        if self._unanswered:
            if silence >= TIMEOUT:
                self._look_again()
        elif self._subscribed:
            if silence >= _PING_AFTER:
                self._ask("PING")
        elif silence >= self._again:
            self._again = min(self._again * 2, _AGAIN_MOST)
            self._ask("SUBSCRIBE", self._channel)

    def _look_again(self) -> None:
        self.read()  # the loop itself may have been busy
        if self._unanswered:
            self._lost(RedisTimeoutError(f"no answer within {TIMEOUT:g} s"))

    def _received(self, reply: Any) -> None:
        self._heard_at, self._unanswered = monotonic(), False
        kind = reply[0] if isinstance(reply, list) else b""
        if kind == b"message":
            call_back(self._on_hint, reply[2].decode(errors="replace"))  # any client may publish there
        elif kind == b"subscribe":
            self._subscribed = True
            self._on_subscribed()
            if self._logged and not self._mute:
                self._logged = False
                self._log.info("celery_throttle: hints arrive again", kind=_HINTS)
        elif isinstance(reply, RedisError) and not self._subscribed:
            self._log_refusal(reply, is_right=isinstance(reply, NoPermissionError))

    def _log_refusal(self, why: object, *, is_right: bool) -> None:
        if not self._logged:
            self._logged = True
            self._log.warning(
                "celery_throttle: the store refuses hints (%s), so tasks that others let start wait for up to some "
                "seconds: %s", why, "give the store's user the rights in docs/howto/redis.md" if is_right
                else "trying again", kind=_HINTS,
            )  # fmt: skip
