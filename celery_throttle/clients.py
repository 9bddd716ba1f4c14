"""The client of an app's store, for publishers and operators."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from contextlib import suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from redis.exceptions import RedisError, ResponseError

from celery_throttle.core.history import Place
from celery_throttle.core.store_url import StoreUrl
from celery_throttle.errors import ConfigurationError, StoreUnavailable
from celery_throttle.settings import settings_of
from celery_throttle.signals import tell_reclaimed
from celery_throttle.store.breaker import Breaker
from celery_throttle.store.caller import CONNECTIONS, Caller
from celery_throttle.store.calls import Store
from celery_throttle.store.exchange_reply import read_cleared
from celery_throttle.store.history import by_limit
from celery_throttle.store.portions import take_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from celery_throttle.store.exchange_reply import Cleared
    from celery_throttle.store.scripts import Call

__all__ = ["StoreClient", "forget_clients", "not_asked", "signed", "store_client"]

#: Most holders that one call clears.
_REAPED = 8
_LONGEST_TEXT = 500

_breakers: WeakKeyDictionary[Any, dict[str | None, Breaker]] = WeakKeyDictionary()
_clients: WeakKeyDictionary[Any, dict[str | None, StoreClient]] = WeakKeyDictionary()


class StoreClient:
    """Sends calls to the store of one group of limits of an app; None: of the default group.

    Attributes:
        store: builds the calls.
        breaker: the circuit breaker of the store.
    """

    def __init__(self, app: Any, group: str | None) -> None:
        settings = settings_of(app)
        keys = settings.keys(group)
        self.store = Store(keys, settings.lease)
        self.breaker = _breaker_of(app, settings.url, group)
        self._caller = Caller(settings.url, keys, app.conf.broker_pool_limit or CONNECTIONS)

    def ask(self, call: Call) -> Any:
        """Send a call; return the reply.

        Raises:
            StoreUnavailable: the store did not answer, or refused the call.
        """
        with self._caller.turn:
            return self._ask(call)

    def ask_if_up(self, call: Call) -> Any:
        """As `ask`, for callers that can do without: raise at once if the store did not answer a moment ago.

        Raises:
            StoreUnavailable: as `ask`.
        """
        with self._caller.turn:  # the store may fail while this call waits for its turn
            if why := self.breaker.refusal():
                raise not_asked(why)
            return self._ask(call)

    def post_if_up(self, call: Call) -> None:
        """Send a call without waiting for a reply, which is dropped, if the store has answered lately.

        Raises:
            StoreUnavailable: the call was not sent.
        """
        with self._caller.turn:
            if why := self.breaker.why:
                raise not_asked(why)
            begun = self.breaker.begin()
            try:
                self._caller.post(call)
            except (RedisError, OSError) as error:
                self.breaker.failed(str(error), begun)
                raise _unavailable(error) from error

    def _ask(self, call: Call) -> Any:
        begun = self.breaker.begin()
        try:
            reply = self._caller.call(call)
        except ResponseError as error:
            self.breaker.answered()
            raise _unavailable(error) from error
        except (RedisError, OSError) as error:
            self.breaker.failed(str(error), begun)
            raise _unavailable(error) from error
        self.breaker.answered()
        return reply

    def reap(self, *, patient: bool = False) -> Iterator[Cleared]:
        """Clear the holders whose lease has ended, and yield them.

        Args:
            patient: where no call came for long, wait for the four seconds in which holders can renew.

        Raises:
            StoreUnavailable: as `ask`.
        """
        while True:
            wait_ms, rows = self.ask(self.store.reap(_REAPED))
            if patient and wait_ms:
                time.sleep(wait_ms / 1000 + 0.01)
                patient = False
                continue
            found = [read_cleared(*row) for row in rows]
            self.report_reclaimed(found)
            yield from found
            if len(rows) < _REAPED:
                return

    def report_reclaimed(self, found: Sequence[Cleared]) -> None:
        """Count the reclaimed permits, and send `permit_reclaimed` for each holder that had some."""
        reclaimed = Counter(each.needs for each in found)
        counts = by_limit({needs: [0] * Place.RECLAIMED + [number] for needs, number in reclaimed.items()})
        while counts:
            with suppress(StoreUnavailable):  # counts are only for people
                self.ask(self.store.count(take_rows(counts)))
        for each in found:
            tell_reclaimed(each.task, each.needs)


def not_asked(why: str) -> StoreUnavailable:
    """Return the error of a call that was not sent, since the store failed with ``why`` a moment ago."""
    return StoreUnavailable(f"the store did not answer a moment ago: {why}")


def _unavailable(error: Exception) -> StoreUnavailable:
    return StoreUnavailable(f"the store did not answer, or refused: {error}")


def _breaker_of(app: Any, url: str, group: str | None) -> Breaker:
    """Return the breaker of an app's server; with a cluster, of the group, since groups may be on different nodes."""
    part = group if StoreUrl.parse(url).kind == "cluster" else None
    return _breakers.setdefault(app, {}).setdefault(part, Breaker())


def store_client(app: Any, group: str | None = None) -> StoreClient:
    """Return the client of an app and group; it is made once, and safe in threads and after a fork.

    Raises:
        StoreUnavailable: throttling is turned off, and no Redis is known.
    """
    clients = _clients.setdefault(app, {})
    if group not in clients:
        if not settings_of(app).url:
            raise StoreUnavailable(
                "throttle_enabled is False and no Redis is known: to read a store, set throttle_url = "
                "'redis://host:6379/0'"
            )
        clients[group] = StoreClient(app, group)
    return clients[group]


def forget_clients(app: Any) -> None:
    """Make new clients of an app on their next use, because a test has given it another store."""
    _clients.pop(app, None)
    _breakers.pop(app, None)


def signed(by: object, why: object, whose: str = "") -> tuple[str, str]:
    """Return author (``user@host`` for None) and reason of a change, checked.

    Args:
        by: the author as given.
        why: the reason as given.
        whose: the object of the change, for the error: ``"Limit api: "``.

    Raises:
        ConfigurationError: one of them is no text, or too long.
    """
    return _text(whose, "by", _whoami() if by is None else by), _text(whose, "why", why)


def _text(whose: str, option: str, value: object) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST_TEXT:
        wrong = f"{whose}{option} must be text of {_LONGEST_TEXT} characters at most, got {value!r:.80}"
        example = "ana" if option == "by" else "their incident 42"
        raise ConfigurationError(f"{wrong}: write {option}={example!r}").for_shell(
            f"{wrong}: write --{option} {shlex.quote(example)}"
        )
    return value


@lru_cache(maxsize=1)
def _whoami() -> str:
    import getpass  # noqa: PLC0415 - only changes need these modules
    import os  # noqa: PLC0415
    import socket  # noqa: PLC0415

    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in many containers
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
