"""Look into limits and steer them at run time, for all workers at once."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from difflib import get_close_matches
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from celery_throttle.core.limits import Limit, shown
from celery_throttle.core.terms import key_text
from celery_throttle.errors import ConfigurationError
from celery_throttle.place import AT_ONCE, Place
from celery_throttle.settings import settings_of
from celery_throttle.store.reasons import explained
from celery_throttle.task import groups_of, terms_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_throttle.store.reasons import Explanation
    from celery_throttle.store.views import Holder, LimitStatus, Parked

__all__ = ["LimitControl", "Throttle"]

logger = logging.getLogger(__name__)

Until = datetime | timedelta | float | None

_MOST = 1000
_MOST_PERMITS = 10**9 - 1
_LONGEST_TEXT = 500
#: A century, in seconds.
_LONGEST = 3.2e9
_LATEST_YEAR = 2200


class Throttle:
    """The limits of an app's store: how they stand, who holds and who waits, and what is said of them at run time::

        throttle = Throttle(app)
        throttle.limit("api").override(2, until=timedelta(hours=1), why="their incident 42")
        throttle.limit("tenant", key="acme").pause(why="asked us to stop")
        print(throttle.explain(task_id))

    What is said is kept in the store, with who said it, when and why, for all workers, also those that start later.
    What only reads writes nothing, and reads no more than ``most`` says.

    Args:
        app: the Celery app; its tasks need not be imported, the store knows the limits of its workers.

    Raises:
        ConfigurationError: no Redis is known, or a setting cannot work.
        StoreUnavailable: from every method, when the store does not answer or refuses; ``__cause__`` has the client's
            error.

    Warning:
        What is read was so a moment ago. ``disable()`` lifts a limit that something may rely on.
    """

    def __init__(self, app: Any) -> None:
        self._app = app

    def limit(self, limit: str | Limit, *, key: object = None) -> LimitControl:
        """Return what steers a limit, or one key of it.

        Args:
            limit: its name, or the `Limit` itself.
            key: the value of its key, as tasks have it; None: the limit itself, and all its keys.

        Raises:
            ConfigurationError: no worker and no task of this app has declared such a limit, or it has no keys.
        """
        name: Any = limit.name if isinstance(limit, Limit) else limit
        known = {each.name: each for terms in self._terms() for each in terms.limits}
        if isinstance(limit, Limit):
            known.setdefault(name, limit)
        place = self._place_of(name, known.get(name))
        if place is None:
            names = (each for place in self._places() for each in place.names())
            raise ConfigurationError(_unknown(name, {*known, *names}))
        if key is not None and name in known and known[name].key is None:
            raise ConfigurationError(f"Limit {name!r} has no keys: leave key= out, or give the limit a key")
        return LimitControl(place, name, None if key is None else key_text(key))

    def _place_of(self, name: object, known: Limit | None) -> Place | None:
        if known is not None:
            return Place(self._app, settings_of(self._app).group_of(known.group))
        if not isinstance(name, str) or not name.isprintable():
            return None
        return next((place for place in self._places() if place.is_declared(name)), None)

    def _places(self) -> list[Place]:
        """One for each group that a limit of the app names, and that of all others."""
        self._terms()
        groups = {settings_of(self._app).group: None, **dict.fromkeys(groups_of(self._app))}
        return [Place(self._app, group) for group in groups]

    def status(self, *, most: int = _MOST) -> tuple[LimitStatus, ...]:
        """Return how every limit of the store stands, whoever declared it, by name.

        Of limits with keys, those keys that somebody holds or waits for, or has said something of.

        Args:
            most: how many at most, limits before keys.
        """
        found = [each for place in self._places() for each in place.status(_count("most", most))]
        return tuple(sorted(found, key=lambda each: (each.name, each.key or "")))[:most]

    def holders(self, limit: str | Limit | None = None, *, most: int = _MOST) -> tuple[Holder, ...]:
        """Return who holds permits (of this limit), or an identity lock; those first whose lease ends first.

        Args:
            limit: None for all.
            most: how many at most.
        """
        if limit is not None:
            return self.limit(limit).holders(most=most)
        return tuple(each for place in self._places() for each in place.holders(None, _count("most", most)))[:most]

    def parked(self, limit: str | Limit | None = None, *, most: int = 100) -> tuple[Parked, ...]:
        """Return who waits (for this limit, with all its keys), line by line, first come first.

        Args:
            limit: None for all, also those that wait for their identity lock.
            most: how many at most, up to 1000.
        """
        if limit is not None:
            return self.limit(limit).parked(most=most)
        return tuple(each for place in self._places() for each in place.parked(None, _count("most", most)))[:most]

    def explain(self, task_id: str) -> Explanation:
        """Return what a task is doing at the gate, and why it waits if it does.

        Of a task that is in its queue still, or waits for its ETA, nothing more is known here than that.
        """
        found = [explained(task_id, place.explain(task_id)) for place in self._places()]
        return next((each for each in found if each.state != "unknown"), found[0])

    def _terms(self) -> Iterable[Any]:
        self._app.finalize(auto=True)  # its tasks are bound, and have said what their limits are
        return terms_of(self._app).values()


class LimitControl:
    """Steers one limit, or one key of it; see `Throttle.limit`.

    What is said of a key comes before what is said of its limit; a pause of either stops it. ``until`` of each method
    is a datetime (without a timezone: the app's), or seconds or a timedelta from now, by the store's clock; None: until
    it is taken back. ``by`` is who does it, by default ``user@host``; ``why`` is for whoever looks later. Each change
    is logged.

    Each method raises `ConfigurationError` for a value that cannot work, and `StoreUnavailable`.

    Attributes:
        name: of the limit.
        key: the value of its key, None for the limit itself.
    """

    def __init__(self, place: Place, name: str, key: str | None) -> None:
        self._place, self.name, self.key = place, name, key
        self.pool = name if key is None else f"{name}\x1f{key}"

    def __repr__(self) -> str:
        return f"<LimitControl {shown(self.pool)}>"

    def override(self, permits: int, *, until: Until = None, by: str | None = None, why: str = "") -> None:
        """Have another number of permits from now on; the code's stays visible beside it.

        More take effect at once; with fewer, those that run go on, and none starts until there is room.
        """
        if not _is_whole(permits) or permits > _MOST_PERMITS:
            fix = "use pause() to let none start" if permits == 0 else "write override(5)"
            raise ConfigurationError(
                f"Limit {shown(self.pool)}: override must be a whole number of 1 or more, got {permits!r}: {fix}"
            )
        self._say("override", permits, until, by, why)

    def reset(self, *, by: str | None = None) -> bool:
        """End an override: the code's number holds again. False if there was none."""
        return self._take_back("override", by)

    def pause(self, *, until: Until = None, by: str | None = None, why: str = "") -> None:
        """Let nothing start; what runs goes on, and tasks that arrive are parked."""
        self._say("pause", 1, until, by, why)

    def resume(self, *, by: str | None = None) -> bool:
        """End a pause; what waits starts at once, as far as there is room. False if there was none."""
        return self._take_back("pause", by)

    def disable(self, *, until: Until = None, by: str | None = None, why: str = "") -> None:
        """Enforce nothing, neither permits nor rates: everything starts at once (unless the limit is paused too).

        What runs is counted all the same, so the limit is right from the moment it is enforced again.
        """
        self._say("disable", 1, until, by, why)

    def enable(self, *, by: str | None = None) -> bool:
        """Enforce the limit again; what runs goes on. False if it was not disabled."""
        return self._take_back("disable", by)

    def status(self) -> LimitStatus:
        """Return how it stands."""
        return self._place.stand([self.pool])[0]

    def holders(self, *, most: int = _MOST) -> tuple[Holder, ...]:
        """Return who holds its permits; without a key, those of all keys."""
        return self._place.holders(self.pool, _count("most", most))

    def parked(self, *, most: int = 100) -> tuple[Parked, ...]:
        """Return who waits in its line, first come first; without a key, in those of all keys."""
        return self._place.parked(self.pool, _count("most", most))

    def _say(self, what: Literal["override", "pause", "disable"], value: int, until: Until, by: Any, why: Any) -> None:
        by, why = _text("by", _whoami() if by is None else by), _text("why", why)
        written = self._until(until)
        answer = self._tell(what, str(value), written, by, why, wakes=what != "pause" or until is not None)
        if answer < 0:
            raise ConfigurationError(f"Limit {shown(self.pool)}: until={until!r} is over already, by the store's clock")
        number = f" {value}" if what == "override" else ""
        logger.info(
            "Limit %s: %s%s by %s, until %s: %s",
            shown(self.pool), what, number, by, "taken back" if until is None else until, why or "no reason given",
        )  # fmt: skip

    def _take_back(self, what: Literal["override", "pause", "disable"], by: Any) -> bool:
        by = _text("by", _whoami() if by is None else by)
        there = self._tell(what, "", "0", by, "", wakes=what != "disable") > 0
        done = {"override": "reset", "pause": "resume", "disable": "enable"}[what]
        logger.info(
            "Limit %s: %s by %s%s", shown(self.pool), done, by, "" if there else ", but there was nothing to do"
        )
        return there

    def _tell(self, what: str, value: str, until: str, by: str, why: str, *, wakes: bool) -> int:
        ask, store = self._place.ask, self._place.store
        answer, change = ask(store.control(self.pool, what, value, until, by, why))
        after = b""
        while wakes and answer >= 0:
            after = ask(store.wake(self.pool, change.decode(), after.decode()))
            if not after:
                break
        return int(answer)

    def _until(self, until: Any) -> str:
        """Return a time as control.lua has it: ``0`` for good, ``+ms`` from now, or ms."""
        if until is None:
            return "0"
        if isinstance(until, datetime):
            aware = until if until.tzinfo else until.replace(tzinfo=self._place.app.timezone)
            if aware.year <= _LATEST_YEAR:
                return f"{max(aware.timestamp(), 0.001) * 1000:.0f}"
        seconds = until.total_seconds() if isinstance(until, timedelta) else until
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < _LONGEST:
            raise ConfigurationError(
                f"Limit {shown(self.pool)}: until must be a datetime, or seconds or a timedelta from now, more than 0, "
                f"got {until!r}"
            )
        return f"+{max(round(seconds * 1000), 1)}"


def _count(option: str, value: int) -> int:
    if not _is_whole(value):
        raise ConfigurationError(f"{option} must be a whole number of 1 or more, got {value!r}")
    return value


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _text(option: str, value: object) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST_TEXT:
        raise ConfigurationError(f"{option} must be text of {_LONGEST_TEXT} characters at most, got {value!r:.80}")
    return value


def _unknown(name: object, known: set[str]) -> str:
    limits = sorted(each for each in known if "\x1f" not in each)
    close = get_close_matches(str(name), limits, n=1)
    meant = f", did you mean {close[0]!r}?" if close else ":"
    there = ", ".join(limits[:AT_ONCE]) or "none"
    return f"No limit {name!r}{meant} Known limits: {there}"


@lru_cache(maxsize=1)
def _whoami() -> str:
    import getpass  # noqa: PLC0415 - only whoever says something needs them
    import os  # noqa: PLC0415
    import socket  # noqa: PLC0415

    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in many containers
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
