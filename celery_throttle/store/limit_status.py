"""The status of limits and their keys: declared numbers, numbers in force, held permits, parked tasks."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from celery_throttle.core.buckets import Bucket
from celery_throttle.core.declaration import Declaration
from celery_throttle.core.rates import Rate
from celery_throttle.core.wording import counted, end_of, listed, one_line, span
from celery_throttle.store.reading import text, when

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

    from celery_throttle.store.history import LastHour

__all__ = [
    "LimitStatus",
    "RateStatus",
    "RuntimeOverride",
    "State",
    "permits_taken",
    "rates_text",
    "read_names",
    "read_rates",
    "read_runtime_override",
    "read_statuses",
    "starts_per_second",
    "statuses_from",
]


@dataclass(frozen=True)
class RateStatus:
    """A rate: ``rate`` as text (``"100/m"``), with its ``burst``."""

    rate: str
    burst: int

    @property
    def per_second(self) -> float:
        """Starts a second that the rate allows in the long run."""
        rate = Rate.parse(self.rate)
        return rate.count / rate.period * 1e6

    def __str__(self) -> str:
        return f"{self.rate} (burst {self.burst})" if self.burst > 1 else self.rate


@dataclass(frozen=True)
class RuntimeOverride:
    """An override, a pause, a disabling or a hold of a limit at run time.

    Attributes:
        limit: the name of the limit, or ``name[key]`` if the override applies to one key.
        by: the name of the operator.
        why: the operator's reason.
        since: the time of the change, by the store's clock.
        until: the time when the override ends by itself, None if it does not.
        permits: the permits, for an override of the permits; else None.
        rates: the rates, for an override of the rates; else empty.
    """

    limit: str
    by: str
    why: str
    since: datetime
    until: datetime | None
    permits: int | None = None
    rates: tuple[RateStatus, ...] = ()

    def __str__(self) -> str:
        number = "" if self.permits is None else str(self.permits)
        return " ".join(filter(None, [number, rates_text(self.rates), self.signature]))

    @property
    def signature(self) -> str:
        """Its operator, end and reason: ``by ana until 14:00 UTC (their incident)``."""
        by = f"by {one_line(self.by)}" if self.by else ""
        until = f"until {end_of(self.since, self.until)}" if self.until else ""
        return " ".join(filter(None, [by, until, f"({one_line(self.why)})" if self.why else ""]))


class State(NamedTuple):
    """A way in which a limit stands: its kind, its words, and the time when it ends by itself."""

    kind: str
    text: str
    until: datetime | None = None


@dataclass(frozen=True)
class LimitStatus:
    """The status of a limit, or of one key of it.

    Attributes:
        name: the name of the limit.
        key: the value of the limit's key; None for the limit itself, with all its keys.
        permits: the declared permits; None: any number (a rate alone), or the limit is not declared in this store.
        rates: the declared rates.
        max_parked: the most tasks that may be parked, None: any number.
        fair: the step of one turn of parked tasks, at weight 1; 0 if they take no turns.
        declared: whether a worker has declared the limit in this store.
        in_force: the permits in force now, after overrides and ``disable``; None: any number.
        override: the override of the permits, if any.
        paused: the pause (no task starts), if any.
        disabled: the change that disabled the limit (nothing is enforced), if any.
        held_back: the hold of a task's RateLimited (no task starts), if any.
        held: the permits held now; those of lost workers count until their leases end.
        parked: the parked tasks that need its permits; a task that needs several limits counts for each of them.
        next_start_in: seconds until the rates allow the next start.
        barred_by: the id of a task that needs several limits and waited for long; no newer task may start before it.
        last_hour: the starts of the last hour, with all keys; None: no starts, not requested, or the status of a key.
        rate_override: the override of the rates, if any.
        keys: of a limit: the number of its keys that have holders or parked tasks.
        held_of_keys: the permits held on these keys, in all.
        parked_of_keys: the tasks parked on these keys, in all.
        per: the kind of sites of which each has these permits; "" if all have them together.
        share: of the pool of each worker, instead of a number of permits.
    """

    name: str
    key: str | None
    permits: int | None
    rates: tuple[RateStatus, ...]
    max_parked: int | None
    declared: bool
    in_force: int | None
    override: RuntimeOverride | None
    paused: RuntimeOverride | None
    disabled: RuntimeOverride | None
    held_back: RuntimeOverride | None
    held: int
    parked: int
    next_start_in: float
    barred_by: str | None
    bar_place: float = field(default=0, repr=False)
    last_hour: LastHour | None = None
    rate_override: RuntimeOverride | None = None
    keys: int = 0
    held_of_keys: int = 0
    parked_of_keys: int = 0
    fair: int = 0
    per: str = ""
    share: float | None = None

    def __str__(self) -> str:
        return ", ".join(self._facts())

    def _facts(self) -> Iterator[str]:
        yield f"{self.bucket} {self.held}" + (f"/{self.permits}" if self.permits is not None else "")
        if self.parked:
            yield f"{self.parked} parked" + (f" (at most {self.max_parked})" if self.max_parked else "")
        if self.keys:
            yield f"{counted(self.keys, 'key')}: {self.held_of_keys} held, {self.parked_of_keys} parked"
        yield from (f"rate {rate}" for rate in self.rates)
        yield from (state.text for state in self.states if state.kind != "full")

    @property
    def changes(self) -> tuple[tuple[str, RuntimeOverride], ...]:
        """The changes at run time, each with its kind; those that stop it first."""
        found = (
            ("paused", self.paused), ("held-back", self.held_back), ("disabled", self.disabled),
            ("override", self.override), ("override", self.rate_override),
        )  # fmt: skip
        return tuple((kind, each) for kind, each in found if each)

    @property
    def states(self) -> tuple[State, ...]:
        """How it stands, in words; what stops it first."""
        return tuple(self._states())

    def _states(self) -> Iterator[State]:
        if not self.declared:
            yield State("undeclared", "no worker has declared it")
        for kind, change in self.changes:
            yield State(kind, f"{self._changed(kind, change)} {change.signature}".rstrip(), change.until)
        if self.full and self.declared:
            yield State("full", "full")
        if self.next_start_in > 0:
            yield State("rate", f"next start in {span(self.next_start_in)}")
        if self.barred_by:
            yield State("barred", f"task {self.barred_by} goes first")

    def _changed(self, kind: str, change: RuntimeOverride) -> str:
        if change.permits is not None:
            return f"override {change.permits}" + ("" if self.permits is None else f" instead of {self.permits}")
        if change.rates:
            instead = f" instead of {rates_text(self.rates)}" if self.rates else ""
            return f"rate override {rates_text(change.rates)}{instead}"
        return kind.replace("-", " ")

    @property
    def declaration(self) -> Declaration:
        """The declaration of the worker that started last."""
        rates = tuple((Rate.parse(each.rate), each.burst) for each in self.rates)
        return Declaration(self.permits, rates, self.max_parked, self.fair, self.per, self.share)

    @property
    def bucket(self) -> Bucket:
        """The limit, or one key of it; as text ``tenant[acme]``."""
        return Bucket(self.name, self.key)

    @property
    def held_in_all(self) -> int:
        """The permits held, with those of all keys."""
        return self.held + self.held_of_keys

    @property
    def parked_in_all(self) -> int:
        """The parked tasks, with those of all keys."""
        return self.parked + self.parked_of_keys

    @property
    def rates_in_force(self) -> tuple[RateStatus, ...]:
        """The rates in force now, after an override and ``disable``; empty if none is."""
        if self.disabled:
            return ()
        return self.rate_override.rates if self.rate_override else self.rates

    @property
    def stopped(self) -> bool:
        """Whether no task may start: the limit is paused or held back."""
        return self.paused is not None or self.held_back is not None

    @property
    def full(self) -> bool:
        """Whether no permit is free."""
        return not self.has_room(1)

    def has_room(self, cost: int) -> bool:
        """Whether ``cost`` permits are free; a task that needs more permits than the limit has runs alone."""
        return self.in_force is None or self.held + permits_taken(cost, self.in_force) <= self.in_force

    def bars(self, task_id: str, place: float) -> bool:
        """Whether a task before this one that needs several limits has to start first."""
        return self.barred_by not in (None, task_id) and place > self.bar_place and not self.disabled

    def scope(self, override: RuntimeOverride) -> Bucket:
        """Return whether the override applies to the limit with all its keys, or to one key."""
        whole = Bucket(self.name)
        return whole if override.limit == str(whole) else self.bucket


def permits_taken(cost: int, permits: int) -> int:
    """Return the permits that a task takes of a limit; a task that needs more than the limit has takes all of them."""
    return min(cost, max(permits, 1))


def starts_per_second(rates: Iterable[RateStatus]) -> float:
    """Return the starts a second that all these rates allow in the long run; infinity without a rate."""
    return min((each.per_second for each in rates), default=inf)


def rates_text(rates: Iterable[RateStatus]) -> str:
    """Return rates with their bursts: ``10/s and 5000/h (burst 500)``; "" for none."""
    return listed([str(each) for each in rates])


def read_names(raw: Any) -> tuple[str, list[str]]:
    """Read the reply of limits.lua: the cursor of the next page, and a page of names."""
    after, found = raw
    return text(after), [text(name) for name in found]


def read_statuses(raw: Any) -> tuple[LimitStatus, ...]:
    """Read the reply of status.lua."""
    now, rows = raw
    return statuses_from(rows, now)


def statuses_from(rows: bytes, now: int) -> tuple[LimitStatus, ...]:
    return tuple(_status(now, row) for row in json.loads(rows.decode("utf-8", "surrogatepass")))


def _status(now: int, row: list[Any]) -> LimitStatus:
    name, declared, of_limit, of_bucket, in_force, held, parked, next_start_ms, *of_keys = row
    keys, held_of_keys, parked_of_keys = of_keys or (0, 0, 0)  # there if keys of the limit are in use
    bucket = Bucket.parse(name)
    code = Declaration.parse(declared) if declared else Declaration(None)
    overrides: dict[str, Any] = {}
    # An override of the key takes precedence over one of the limit.
    for scope, packed in ((Bucket(bucket.name), of_limit), (bucket, of_bucket)) if of_limit or of_bucket else ():
        spoken = json.loads(packed) if packed else {}
        overrides |= {what: (scope, one) for what, one in spoken.items() if not 0 < one[1] <= now}
    bar = overrides.get("bar")
    if code.share and bucket.key is None and "override" not in overrides:
        in_force = -1  # each worker has a number of its own
    return LimitStatus(
        name=bucket.name,
        key=bucket.key,
        permits=code.permits,
        rates=tuple(RateStatus(str(rate), burst) for rate, burst in code.rates),
        max_parked=code.max_parked,
        declared=bool(declared),
        in_force=None if in_force < 0 else in_force,
        override=read_runtime_override(overrides.get("override"), "permits"),
        paused=read_runtime_override(overrides.get("pause")),
        disabled=read_runtime_override(overrides.get("disable")),
        held_back=read_runtime_override(overrides.get("hold")),
        held=held,
        parked=parked,
        next_start_in=next_start_ms / 1000,
        barred_by=bar[1][3] if bar else None,
        bar_place=bar[1][0] if bar else 0,
        rate_override=read_runtime_override(overrides.get("rate"), "rates"),
        keys=keys,
        held_of_keys=held_of_keys,
        parked_of_keys=parked_of_keys,
        fair=code.fair,
        per=code.per,
        share=code.share,
    )


def read_rates(declared: Any) -> tuple[RateStatus, ...]:
    return tuple(
        RateStatus(str(Rate.of(int(count), int(period))), int(burst)) for count, period, burst in declared or ()
    )


def read_runtime_override(found: Any, value_is: Literal["", "permits", "rates", "both"] = "") -> RuntimeOverride | None:
    """Read a runtime override in the form of runtime_overrides.lua, with its scope.

    ``value_is``: the kind of the value; ``both``: permits, followed by rates.
    """
    if found is None:
        return None
    scope, (value, until, by, why, since, *behind) = found
    permits = int(value) if value_is in ("permits", "both") and value else None
    rates = read_rates(value if value_is == "rates" else behind[0] if behind else ())
    return RuntimeOverride(str(scope), by, why, when(since), when(until) if until else None, permits, rates)
