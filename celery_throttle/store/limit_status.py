"""How limits and their keys stand: what is declared, what is in force, how many hold and wait."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from celery_throttle.core.buckets import Bucket
from celery_throttle.core.rates import Rate
from celery_throttle.core.wording import counted, end_of, listed, one_line, seconds
from celery_throttle.store.reading import text, when

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

    from celery_throttle.store.last_hour import LastHour

__all__ = [
    "LimitStatus",
    "RateStatus",
    "Said",
    "rates_text",
    "read_names",
    "read_rates",
    "read_said",
    "read_statuses",
    "statuses_from",
]


@dataclass(frozen=True)
class RateStatus:
    """A rate: ``rate`` as text (``"100/m"``), and its ``burst``."""

    rate: str
    burst: int

    @property
    def per_second(self) -> float:
        """Starts a second that it allows in the long run."""
        rate = Rate.parse(self.rate)
        return rate.count / rate.period * 1e6

    def __str__(self) -> str:
        return f"{self.rate} (burst {self.burst})" if self.burst > 1 else self.rate


@dataclass(frozen=True)
class Said:
    """What somebody said of a limit at run time.

    Attributes:
        limit: of which one: its name, or ``name[key]`` if it was said of one key.
        by: who.
        why: in their words.
        since: when, by the store's clock.
        until: when it ends by itself, None if it does not.
        permits: of an override of the permits; of everything else None.
        rates: of an override of the rates; of everything else none.
    """

    limit: str
    by: str
    why: str
    since: datetime
    until: datetime | None
    permits: int | None = None
    rates: tuple[RateStatus, ...] = ()

    def __str__(self) -> str:
        by = f"by {one_line(self.by)}" if self.by else ""
        number = "" if self.permits is None else str(self.permits)
        why = f"({one_line(self.why)})" if self.why else ""
        until = f"until {end_of(self.since, self.until)}" if self.until else ""
        return " ".join(filter(None, [number, rates_text(self.rates), by, until, why]))


@dataclass(frozen=True)
class LimitStatus:
    """How a limit stands, or one key of it.

    Attributes:
        name: of the limit.
        key: the value of its key; None for the limit itself, and for what all its keys have in common.
        permits: what the code declares; None: any number (a rate alone), or not declared in this store yet.
        rates: what the code declares.
        max_parked: how many may wait, None: any number.
        declared: whether a worker has declared it in this store.
        in_force: how many may run now, after overrides and ``disable``; None: any number.
        override: another number of permits for now, if there is one.
        paused: nothing starts, if that was said.
        disabled: nothing of it is enforced, if that was said.
        held_back: nothing starts because the outside said that it is asked too often, if it did.
        held: permits held now; those of lost workers count until their lease ends.
        parked: how many tasks wait that need permits of it; one that needs several limits is counted by each.
        next_start_in: seconds until its rates allow the next start.
        barred_by: the task that goes before all newer ones, if one that needs several limits waited for long.
        last_hour: what started on it in the last hour, with all its keys; None: nothing did, nobody asked, or it is a
            key.
        rate_override: other rates for now, if there are any.
        keys: of a limit: how many of its keys have holders or parked tasks.
        held_of_keys: permits held on these keys together.
        parked_of_keys: tasks parked on these keys together.
    """

    name: str
    key: str | None
    permits: int | None
    rates: tuple[RateStatus, ...]
    max_parked: int | None
    declared: bool
    in_force: int | None
    override: Said | None
    paused: Said | None
    disabled: Said | None
    held_back: Said | None
    held: int
    parked: int
    next_start_in: float
    barred_by: str | None
    bar_ticket: float = field(default=0, repr=False)
    last_hour: LastHour | None = None
    rate_override: Said | None = None
    keys: int = 0
    held_of_keys: int = 0
    parked_of_keys: int = 0

    def __str__(self) -> str:
        return ", ".join(self._facts())

    def _facts(self) -> Iterator[str]:
        yield f"{self.bucket} {self.held}" + (f"/{self.permits}" if self.permits is not None else "")
        if not self.declared:
            yield "not declared"
        if self.parked:
            yield f"{self.parked} wait" + (f" ({self.max_parked} may)" if self.max_parked else "")
        if self.keys:
            yield f"{counted(self.keys, 'key')}: {self.held_of_keys} held, {self.parked_of_keys} wait"
        yield from (f"rate {rate}" for rate in self.rates)
        if self.next_start_in > 0:
            yield f"next start in {seconds(self.next_start_in)}"
        for what, said in (
            ("override", self.override),
            ("rate override", self.rate_override),
            ("paused", self.paused),
            ("disabled", self.disabled),
            ("held back", self.held_back),
        ):
            if said:
                yield f"{what} {said}".rstrip()
        if self.barred_by:
            yield f"task {self.barred_by} goes first"

    @property
    def bucket(self) -> Bucket:
        """The limit, or the key of it; as text ``tenant[acme]``."""
        return Bucket(self.name, self.key)

    @property
    def held_in_all(self) -> int:
        """Permits held, with those of all its keys."""
        return self.held + self.held_of_keys

    @property
    def parked_in_all(self) -> int:
        """Tasks parked, with those of all its keys."""
        return self.parked + self.parked_of_keys

    @property
    def rates_in_force(self) -> tuple[RateStatus, ...]:
        """The rates that hold now, after an override and ``disable``; none: it has no rate."""
        if self.disabled:
            return ()
        return self.rate_override.rates if self.rate_override else self.rates

    @property
    def overrides(self) -> tuple[Said, ...]:
        """The overrides, of permits and of rates, if there are any."""
        return tuple(each for each in (self.override, self.rate_override) if each)

    @property
    def stopped(self) -> bool:
        """Whether nothing may start."""
        return self.paused is not None or self.held_back is not None

    @property
    def full(self) -> bool:
        """Whether as many run as may."""
        return not self.has_room(1)

    def has_room(self, cost: int) -> bool:
        """Whether so many permits are free; a task that takes more than there are runs alone."""
        return self.in_force is None or self.held + min(cost, max(self.in_force, 1)) <= self.in_force

    def bars(self, task_id: str, ticket: float) -> bool:
        """Whether an older task that needs several limits goes before this one."""
        return self.barred_by not in (None, task_id) and ticket > self.bar_ticket and not self.disabled

    def scope(self, said: Said) -> Bucket:
        """Of what that was said: of the limit with all its keys, or of one key."""
        whole = Bucket(self.name)
        return whole if said.limit == str(whole) else self.bucket


def rates_text(rates: Iterable[RateStatus]) -> str:
    """Return rates with their bursts: ``10/s and 5000/h (burst 500)``; "" for none."""
    return listed([str(each) for each in rates])


def read_names(raw: Any) -> tuple[str, list[str]]:
    """Read the reply of limits.lua: where to go on, and a page of names."""
    after, found = raw
    return text(after), [text(name) for name in found]


def read_statuses(raw: Any) -> tuple[LimitStatus, ...]:
    """Read the reply of status.lua."""
    now, rows = raw
    return statuses_from(rows, now)


def statuses_from(rows: bytes, now: int) -> tuple[LimitStatus, ...]:
    return tuple(_status(now, *row) for row in json.loads(rows.decode("utf-8", "surrogatepass")))


def _status(
    now: int,
    text_of_bucket: str,
    declared: str,
    of_limit: str,
    of_bucket: str,
    in_force: int,
    held: int,
    parked: int,
    next_start_ms: float,
    keys: int = 0,
    held_of_keys: int = 0,
    parked_of_keys: int = 0,
) -> LimitStatus:
    bucket = Bucket.parse(text_of_bucket)
    permits, rates, most = _declared(declared)
    said: dict[str, Any] = {}
    # What was said of the key comes before what was said of all.
    for scope, packed in ((Bucket(bucket.name), of_limit), (bucket, of_bucket)) if of_limit or of_bucket else ():
        spoken = json.loads(packed) if packed else {}
        said |= {what: (scope, one) for what, one in spoken.items() if not 0 < one[1] <= now}
    bar = said.get("bar")
    return LimitStatus(
        name=bucket.name,
        key=bucket.key,
        permits=permits,
        rates=rates,
        max_parked=most,
        declared=bool(declared),
        in_force=None if in_force < 0 else in_force,
        override=read_said(said.get("override"), "permits"),
        paused=read_said(said.get("pause")),
        disabled=read_said(said.get("disable")),
        held_back=read_said(said.get("hold")),
        held=held,
        parked=parked,
        next_start_in=next_start_ms / 1000,
        barred_by=bar[1][3] if bar else None,
        bar_ticket=bar[1][0] if bar else 0,
        rate_override=read_said(said.get("rate"), "rates"),
        keys=keys,
        held_of_keys=held_of_keys,
        parked_of_keys=parked_of_keys,
    )


@lru_cache(maxsize=1024)  # all keys of a limit have the same
def _declared(raw: str) -> tuple[int | None, tuple[RateStatus, ...], int | None]:
    if not raw:
        return None, (), None
    said = json.loads(raw)
    if isinstance(said, int):
        return said, (), None
    return said["permits"] or None, read_rates(said.get("rates", ())), said.get("max_parked")


def read_rates(declared: Any) -> tuple[RateStatus, ...]:
    return tuple(
        RateStatus(str(Rate.of(int(count), int(period))), int(burst)) for count, period, burst in declared or ()
    )


def read_said(found: Any, value_is: Literal["", "permits", "rates", "both"] = "") -> Said | None:
    """Read what was said, as runtime_overrides.lua has it, and of what; ``both``: of permits, with the rates behind."""
    if found is None:
        return None
    scope, (value, until, by, why, since, *behind) = found
    permits = int(value) if value_is in ("permits", "both") and value else None
    rates = read_rates(value if value_is == "rates" else behind[0] if behind else ())
    return Said(str(scope), by, why, when(since), when(until) if until else None, permits, rates)
