"""Change one limit, or one key of it, at run time."""

from __future__ import annotations

import logging
import shlex
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, get_args

from celery_throttle.clients import signed
from celery_throttle.control.overrides import Numbers, Until, moment_of, read_numbers, until_text
from celery_throttle.control.rows import LimitKeys, Order, busy, check_look, longest_line
from celery_throttle.control.verbs import VERBS, Ending
from celery_throttle.core.buckets import Bucket
from celery_throttle.core.checks import one_of, whole
from celery_throttle.core.history import MINUTES, QUARTERS
from celery_throttle.core.wording import one_line, signature
from celery_throttle.core.wrong_calls import with_fixes
from celery_throttle.errors import ConfigurationError
from celery_throttle.signals import LimitChanged, limit_changed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_throttle.control.forecast import Forecast
    from celery_throttle.control.reader import Reader
    from celery_throttle.control.what_if import Simulation
    from celery_throttle.core.rates import Rates
    from celery_throttle.store.audit import Change
    from celery_throttle.store.history import History
    from celery_throttle.store.holders import Holder
    from celery_throttle.store.limit_status import LimitStatus
    from celery_throttle.store.parked_tasks import Parked

__all__ = ["MOST", "LimitControl"]

logger = logging.getLogger(__name__)

MOST = 1000
#: The answer of control.lua when the same request has made the change before.
_MADE_BEFORE = 2
_INSTEAD = {
    **dict.fromkeys(("seconds", "for_", "duration", "ttl", "timeout", "minutes"), "write until=3600"),
    "reason": "write why='their incident 42'",
    "comment": "write why='their incident 42'",
    "user": "write by='ana'",
    "limit": "write throttle.limit('api')",
    "key": "write throttle.limit('tenant', key='acme')",
}
_OF_KEY = "write throttle.limit({name!r}, key={value}) for one key"
_with_fixes = with_fixes(_OF_KEY, **_INSTEAD)
_with_fixes_number = with_fixes(**_INSTEAD | {"limit": "write override(5)"})
_with_fixes_simulate = with_fixes(
    limit="write simulate(5)", runtime="write run_time='0.4s'", duration="write lasts=3600", seconds="write lasts=3600"
)
_with_fixes_drop = with_fixes(
    f"write throttle.drop({{value}}) for one task, {_OF_KEY.removeprefix('write ')}",
    **_INSTEAD | dict.fromkeys(("task_id", "task", "id", "ids", "task_ids"), "write throttle.drop('task-id')"),
)


class LimitControl:
    """Change one limit, or one key of it, at run time; see `ThrottleControl.limit`.

    A change of a key takes precedence over one of its limit; a pause of either stops the key. ``until`` of each method
    is a datetime (without a timezone: in that of the app), a Unix time (``time.time() + 60``), or seconds or a
    timedelta from now, by the store's clock; None: until the change is ended. ``by`` is the name of the operator, by
    default ``user@host``; ``why`` is the reason, for later readers. Each change is logged, and kept for `audit`.

    Each method raises `ConfigurationError` for an invalid value, and `StoreUnavailable` if the store does not answer or
    refuses.

    Attributes:
        name: the name of the limit.
        key: the value of the limit's key, None for the limit itself.
    """

    def __init__(self, reader: Reader, name: str, key: str | None, request: str = "") -> None:
        self._reader, self.name, self.key = reader, name, key
        self._bucket = Bucket(name, key)
        self._request = request

    def __repr__(self) -> str:
        return f"<LimitControl {self._bucket}>"

    def once(self, request: str) -> LimitControl:
        """Return a control for a change that several workers receive: the first makes it, the others change nothing.

        Args:
            request: an id of this change, the same for all workers.
        """
        return LimitControl(self._reader, self.name, self.key, request)

    @_with_fixes_number
    def override(
        self,
        permits: int | None = None,
        *,
        until: Until = None,
        rate: Rates | None = None,
        burst: int | Sequence[int] | None = None,
        by: str | None = None,
        why: str = "",
    ) -> None:
        """Set another number of permits, another rate, or both for now.

        The declared numbers stay visible. More permits take effect at once. With fewer permits, running tasks go on,
        and no task starts until there is room. Another rate counts from the last start. An override of the permits does
        not change one of the rate, and the other way round. A limit with only one of them in the code can get the
        other. `reset` ends both.

        Args:
            permits: the number of permits; None: no change.
            until: when the override ends by itself.
            rate: "50/m", or several; None: no change.
            burst: how many tasks may start at once, one number or one for each rate; None: as in the code if that has
                as many rates, else 1.
        """
        self._change("set", self._read("override", permits, rate, burst), until, by, why)

    @_with_fixes_number
    def forecast(
        self,
        permits: int | None = None,
        *,
        rate: Rates | None = None,
        burst: int | Sequence[int] | None = None,
        after: Ending | None = None,
    ) -> Forecast:
        """Return the effect of a change: how many tasks start at once, and why the others wait. Change nothing.

        The workers report their queues and free slots by remote control.

        Args:
            permits: as for `override`.
            rate: as for `override`.
            burst: as for `override`.
            after: instead of these, a change that ends another one: ``"reset"``, ``"resume"``, ``"enable"`` or
                ``"release-hold"``.
        """
        from celery_throttle.control.forecast import forecast  # noqa: PLC0415 - most commands do without

        self._check_changeable()
        if after is None:
            return forecast(self._reader, self._bucket, self._read("forecast", permits, rate, burst))
        one_of(f"Limit {self._bucket}: forecast: after", after, get_args(Ending))
        if (permits, rate, burst) != (None, None, None):
            raise ConfigurationError(
                f"Limit {self._bucket}: forecast takes other numbers or after, not both: write "
                f"forecast(after={after!r})"
            )
        return forecast(self._reader, self._bucket, after)

    @_with_fixes_simulate
    def simulate(
        self,
        permits: int | None = None,
        *,
        rate: Rates | None = None,
        burst: int | Sequence[int] | None = None,
        arrivals: str | float = "x1",
        run_time: str | float | timedelta = "x1",
        spread: float = 1.0,
        lasts: float | timedelta = 3600,
        target: float | timedelta | None = None,
        seed: int = 0,
    ) -> Simulation:
        """Return the waits with other numbers or another load, beside those of the last hour. Change nothing.

        The load is that of the last hour by default. The same seed gives the same result.

        Args:
            permits: as for `override`; None: as now.
            rate: as for `override`.
            burst: as for `override`.
            arrivals: "x1.5" for half as many again; "5/s", or a number a second.
            run_time: "x2" for twice as long; "0.4s", a timedelta, or seconds.
            spread: the standard deviation of run times, divided by their mean; 0: all runs take as long.
            lasts: the length of the simulation, in seconds.
            target: find the least number with which 95 % of the tasks wait for so many seconds at most.
            seed: for the drawing of arrivals and run times.
        """
        from celery_throttle.control.load import read_question  # noqa: PLC0415 - most commands do without
        from celery_throttle.control.what_if import simulate  # noqa: PLC0415 - most commands do without

        question = read_question(
            arrivals=arrivals, run_time=run_time, spread=spread, lasts=lasts, target=target, seed=seed
        )
        is_changed = (permits, rate, burst) != (None, None, None)
        asked = self._read("simulate", permits, rate, burst) if is_changed else Numbers()
        return simulate(self._reader, self._bucket, asked, question)

    def history(self, *, day: bool = False) -> History:
        """Return the history of the limit, with all its keys, for each minute of the last hour.

        Busy workers report their counts each ten seconds, others once a minute.

        Args:
            day: for each quarter of an hour of the last day.
        """
        if self.key is not None:
            together = f"Limit {self.name!r}: its history is counted for all its keys together, not for {self.key!r}"
            raise ConfigurationError(f"{together}: write throttle.limit({self.name!r}).history()").for_shell(
                f"{together}: write `{{throttle}} history {shlex.quote(self.name)}`"
            )
        return self._reader.histories([self.name], QUARTERS if day else MINUTES)[0]

    @_with_fixes
    def reset(self, *, by: str | None = None, why: str = "") -> bool:
        """End the overrides of permits and of rates: the code's numbers hold again. False if there was none."""
        return self._end("reset", by, why)

    @_with_fixes
    def pause(self, *, until: Until = None, by: str | None = None, why: str = "") -> None:
        """Let no task start: running tasks go on, and arriving tasks are parked."""
        self._change("pause", None, until, by, why)

    @_with_fixes
    def resume(self, *, by: str | None = None, why: str = "") -> bool:
        """End a pause: parked tasks start at once, as far as there is room. False if there was no pause."""
        return self._end("resume", by, why)

    @_with_fixes
    def disable(self, *, until: Until = None, by: str | None = None, why: str = "") -> None:
        """Enforce neither permits nor rates: all parked tasks start at once.

        A pause holds nevertheless. Running tasks are still counted, so the limit is right once it is enforced again.
        """
        self._change("disable", None, until, by, why)

    @_with_fixes
    def enable(self, *, by: str | None = None, why: str = "") -> bool:
        """Enforce the limit again: running tasks go on. False if the limit was not disabled."""
        return self._end("enable", by, why)

    @_with_fixes
    def release_hold(self, *, by: str | None = None, why: str = "") -> bool:
        """Let the tasks start at once that a task's RateLimited holds back; without a key, those of all keys.

        False if the limit was not held back.
        """
        buckets = [self._bucket] if self.key is not None else self._reader.overridden_buckets(self.name)
        released = [self._end("release-hold", by, why, bucket) for bucket in buckets]
        return any(released)

    @_with_fixes_drop
    def drop(self, *, by: str | None = None, why: str = "", dry_run: bool = False) -> int:
        """Drop all parked tasks: they do not run, and end as revoked. Return their number; without a key, of all keys.

        These are the parked tasks that need permits of the limit. Each ends as soon as a worker of its queue has a free
        slot to report that. Its identity lock is free at once. Running tasks go on, and callers that wait for a permit
        outside of tasks still wait.

        Args:
            why: the reason, for later readers and for callers that wait for the result.
            dry_run: only count.
        """
        by, why = signed(by, why, f"Limit {self._bucket}: ")
        waiting = [each.task for each in self._reader.parked_ids(self._bucket) if each.what != "told"]
        if dry_run:
            return len(waiting)
        dropped = self._reader.drop(self._bucket, waiting, by, why)
        logger.info("Limit %s: %d tasks dropped by %s", one_line(str(self._bucket)), dropped, signature(by, why))
        return dropped

    @_with_fixes
    def status(self, *, last_hour: bool = False) -> LimitStatus:
        """Return the status of the limit or key.

        Args:
            last_hour: with the starts of the last hour and their waits; not for a key.
        """
        rows = self._reader.stand([self._bucket.text])
        return (self._reader.with_last_hour(rows) if last_hour else rows)[0]

    @_with_fixes
    def keys(self, *, most: int = 100, find: str = "", sort: Order = "attention", skip: int = 0) -> LimitKeys:
        """Return the status of its keys that have holders, parked tasks or changes at run time.

        A limit without keys, and a key, has none.

        Args:
            most: the most keys, up to 1000.
            find: a part of their names, in any case; "" for all.
            sort: ``"attention"``: stopped keys first, then the longest lines; ``"backlog"``: the longest lines first;
                ``"name"``.
            skip: how many keys to leave out at the beginning of that order.
        """
        whole("most", most, usual=100)
        check_look(find, sort, skip)
        if self.key is not None:
            return LimitKeys((), 0)
        found, cut = self._reader.keys_of(self.name)
        names = [each for each in found if find.lower() in (Bucket.parse(each).key or "").lower()]
        if sort == "name":
            some = sorted(names, key=lambda each: Bucket.parse(each).key or "")[skip : skip + most]
            return LimitKeys(self._reader.stand(some), len(names), cut)
        order = longest_line if sort == "backlog" else busy
        rows = sorted(self._reader.stand(names[:MOST]), key=order)[skip : skip + most]
        return LimitKeys(tuple(rows), len(names), cut)

    @_with_fixes
    def holders(self, *, most: int = MOST) -> tuple[Holder, ...]:
        """Return the holders of its permits, from the store's first 20 000; without a key, those of all keys."""
        return self._reader.holders(self._bucket, whole("most", most, usual=100))

    @_with_fixes
    def parked(self, *, most: int = 100) -> tuple[Parked, ...]:
        """Return the parked tasks in its line, the oldest first; without a key, in the lines of all keys."""
        return self._reader.parked(self._bucket, whole("most", most, usual=100))

    @_with_fixes
    def audit(self, *, most: int = 200) -> tuple[Change, ...]:
        """Return its changes at run time, newest first; without a key, those of all keys too."""
        return self._reader.audit(self._bucket, whole("most", most, usual=100))

    def _check_changeable(self) -> None:
        if self._bucket.is_open:  # a task that waits there starts by the permits of one site
            one = f"{self._bucket.kind}=a7"
            line = f"{self._bucket} is only the line of limit {self.name!r}"
            raise ConfigurationError(
                f"{line}: change the limit or one {self._bucket.kind}, write throttle.limit({self.name!r}) or "
                f"throttle.limit({self.name!r}, key={one!r})"
            ).for_shell(
                f"{line}: change the limit or one {self._bucket.kind}, write `{{command}} {shlex.quote(self.name)}` or "
                f"`{{command}} {shlex.quote(self.name)} --key {shlex.quote(one)}`"
            )

    def _read(self, method: str, permits: object, rate: Any, burst: Any) -> Numbers:
        return read_numbers(method, self._bucket, permits, rate, burst, lambda: self.status().rates)

    def _change(
        self,
        name: Literal["set", "pause", "disable"],
        asked: Numbers | None,
        until: Until,
        by: Any,
        why: Any,
    ) -> None:
        self._check_changeable()
        what = VERBS[name].stored
        by, why = signed(by, why, f"Limit {self._bucket}: ")
        until = moment_of(until)
        ends_at = until_text(self._bucket, until, self._reader.app.timezone)
        answer = self._call(self._bucket, what, asked.value if asked else "1", ends_at, by, why)
        if answer < 0:
            raise ConfigurationError(
                f"Limit {self._bucket}: until={until!r} is over already, by the store's clock: write until=3600"
            )
        if answer == _MADE_BEFORE:
            return
        self._send_signal(self._bucket, what, asked, by, why, until)
        number = f" {asked}" if asked else ""
        ends = "taken back" if until is None else until
        changed = f"{self._bucket}: {what}{number} by {by}, until {ends}: {why or 'no reason given'}"
        logger.info("Limit %s", one_line(changed))

    def _end(self, name: Ending, by: Any, why: Any, bucket: Bucket | None = None) -> bool:
        by, why = signed(by, why, f"Limit {self._bucket}: ")
        bucket = bucket or self._bucket
        answer = self._call(bucket, VERBS[name].stored, "", "0", by, why)
        if answer == _MADE_BEFORE:
            return True
        there = answer > 0
        if there:
            self._send_signal(bucket, name, None, by, why, None)
        came_of_it = signature(by, why) if there else f"{one_line(by)}, but there was nothing to do"
        logger.info("Limit %s: %s by %s", one_line(str(bucket)), name, came_of_it)
        return there

    def _call(self, bucket: Bucket, what: str, value: str, until: str, by: str, why: str) -> int:
        ask, store = self._reader.ask, self._reader.store
        answer = ask(store.control(bucket.text, what, value, until, by, why, self._request))
        after = b""
        while answer >= 0:
            after = ask(store.wake(bucket.text, after.decode()))
            if not after:
                break
        return int(answer)

    def _send_signal(self, bucket: Bucket, action: str, asked: Numbers | None, by: str, why: str, until: Until) -> None:
        seconds = until.total_seconds() if isinstance(until, timedelta) else until
        permits, rates = (asked.permits, asked.rates) if asked else (None, ())
        event = LimitChanged(bucket.name, bucket.key, action, permits, by, why, seconds, rates)
        limit_changed.send(bucket.name, event=event)
