"""The policy of a task: its limits, and the permits that each call takes of them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypedDict

from celery_throttle.core.buckets import OPEN, Bucket
from celery_throttle.core.checks import is_whole, whole
from celery_throttle.core.identity import canonical
from celery_throttle.core.limits import MOST_STEP
from celery_throttle.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Set as AbstractSet

    from celery_throttle.core.arguments import TaskCall
    from celery_throttle.core.limits import Limit, Part
    from celery_throttle.core.sites import Sites

__all__ = [
    "MOST_COST",
    "NOTHING",
    "Needs",
    "Policy",
    "Values",
    "costs_of",
    "key_text",
    "limits_of",
    "limits_text",
    "needs_again",
    "needs_text",
]

_LONGEST_KEY = 100
MOST_COST = 100_000


@dataclass(frozen=True)
class Needs:
    """The permits that one call takes.

    Attributes:
        buckets: the buckets of these permits, those with a key first.
        text: the buckets with the number of permits of each, in the form of needs.lua; "" for none.
        turn: bucket, value of ``fair_by`` and step of the turn, see fair_queueing.lua; None for first come, first
            served.
        wait_ms: longest wait for the permits, in milliseconds since the call came to a worker; None for no deadline.
        booked: whether the start was booked in advance.
        elsewhere: whether no site here can start the call, see `Sites`.
    """

    buckets: tuple[str, ...]
    text: str = ""
    turn: tuple[str, str, int] | None = None
    wait_ms: int | None = None
    booked: bool = False
    elsewhere: bool = False

    def bound(self, sites: Sites) -> Needs:
        """Return the needs for a worker with these sites, see `Sites`."""
        if OPEN not in self.text:
            return self
        buckets = tuple(map(sites.bind, self.buckets))
        text = "\x01".join(map(sites.bind, self.text.split("\x01")))
        return replace(self, buckets=buckets, text=text, elsewhere=any(Bucket.parse(each).is_open for each in buckets))

    @property
    def lacks(self) -> str:
        """The kind of site that the worker lacks, "" if it lacks none."""
        return next((each.kind for each in map(Bucket.parse, self.buckets) if each.is_open), "")

    def waits_in(self, closed: AbstractSet[str]) -> bool:
        """Return whether a call has to wait while these buckets are full or have a line."""
        return self.elsewhere or (not closed.isdisjoint(self.buckets) and not self.booked)


#: The needs of a call without limits.
NOTHING = Needs(())


def needs_text(costs: Iterable[tuple[Bucket, int]], booked: Bucket | None = None) -> str:
    """Return the text that the store reads: the number of permits for each bucket."""
    return "\x01".join(f"{cost}{'b' if bucket == booked else ''}:{bucket.text}" for bucket, cost in costs)


def costs_of(text: str) -> list[tuple[Bucket, int]]:
    """Parse the text of `needs_text`."""
    return [
        (Bucket.parse(bucket), int(cost.removesuffix("b")))
        for cost, _, bucket in (part.partition(":") for part in text.split("\x01") if part)
    ]


def limits_text(text: str) -> str:
    """Return the buckets in the text of `needs_text` for people: ``gpu, tenant[acme]``."""
    return ", ".join(str(bucket) for bucket, _ in costs_of(text))


def needs_again(text: str) -> Needs:
    """Return the needs of a parked task from the text that the store kept."""
    return Needs(tuple(bucket.text for bucket, _ in costs_of(text)), text, booked="b:" in text) if text else NOTHING


class Values(TypedDict, total=False):
    """The values of a call on which its needs depend, each of them valid.

    Attributes:
        keys: by the name of the limit.
        fair: the value of ``fair_by``, and the step of its turn.
        cost: where it is computed.
        reserved: the bucket in which the start was booked in advance.
    """

    keys: dict[str, str]
    fair: list[Any]
    cost: int
    reserved: str


@dataclass(frozen=True)
class Policy:
    """The limits of a task, and the options that belong to them.

    Attributes:
        limits: all limits of the task; those with a key come first.
        cost: number of permits and starts that a call takes: a number, the name of an argument, or a function of all
            arguments.
        start_deadline: seconds that a call may wait for its permits at a worker, None for no deadline.
        own: whether this app has declared the task; False for a task of another app of the process or of no app.
    """

    limits: tuple[Limit, ...]
    cost: int | Part = 1
    start_deadline: float | None = None
    own: bool = True

    @property
    def group(self) -> str | None:
        """The group of all limits of the task; None for the default group."""
        return self.limits[0].group

    @cached_property
    def varies(self) -> bool:
        """Whether the needs of a call depend on its arguments."""
        return not isinstance(self.cost, int) or any(limit.key or limit.fair_by for limit in self.limits)

    @cached_property
    def paced(self) -> bool:
        """Whether one of the limits has a rate, so that a start can be booked in advance."""
        return any(limit.rates for limit in self.limits)

    @cached_property
    def _keyed(self) -> tuple[str, ...]:
        return tuple(limit.name for limit in self.limits if limit.key)

    @cached_property
    def _takes_turns(self) -> bool:
        return any(limit.fair_by for limit in self.limits)

    @cached_property
    def crowds(self) -> bool:
        """Whether one of the limits has ``max_parked``."""
        return any(limit.max_parked for limit in self.limits)

    def most_parked(self, values: Values) -> list[tuple[Bucket, int]]:
        """Return the buckets that have ``max_parked``, for a call with these values, each with its number."""
        keys = values.get("keys", {})
        return [
            (limit.bucket(keys[limit.name] if limit.key else None), limit.max_parked)
            for limit in self.limits
            if limit.max_parked
        ]

    @cached_property
    def same(self) -> Needs:
        """The needs of every call, if they do not depend on the arguments."""
        return self.needs({})

    def values(self, call: TaskCall) -> Values:
        """Return the values that depend on the arguments of a call, for a message.

        Raises:
            ConfigurationError: an argument is missing, or has a wrong type or value.
        """

        def text_of(option: str, value: object) -> str:
            try:
                return key_text(value)
            except ConfigurationError as error:
                raise call.wrong(str(error).replace("key", option, 1)) from None

        values: Values = {}
        keys = {limit.name: text_of("key", call.read("key", limit.key)) for limit in self.limits if limit.key}
        if keys:
            values["keys"] = keys
        for limit in self.limits:
            if limit.fair_by:
                value = call.read("fair_by", limit.fair_by)
                values["fair"] = [
                    text_of("fair_by", value),
                    limit.step(value if isinstance(value, (str, int)) else None),
                ]
        if not isinstance(self.cost, int):
            values["cost"] = whole(f"Task {call.task_name}: cost", call.read("cost", self.cost), most=MOST_COST)
        return values

    def needs(self, values: Values) -> Needs:
        """Return the needs of a call with these values."""
        cost, keys = self.cost if isinstance(self.cost, int) else values["cost"], values.get("keys", {})
        buckets = [limit.bucket(keys[limit.name] if limit.key else None) for limit in self.limits]
        reserved = values.get("reserved")
        booked = next((bucket for bucket in buckets if bucket.text == reserved), None) if reserved else None
        fair = [bucket for bucket, limit in zip(buckets, self.limits, strict=True) if limit.fair_by]
        return Needs(
            tuple(bucket.text for bucket in buckets),
            needs_text([(bucket, cost) for bucket in buckets], booked),
            turn=(fair[0].text, *values["fair"]) if fair else None,
            wait_ms=None if self.start_deadline is None else round(self.start_deadline * 1000),
            booked=booked is not None,
        )

    def carried(self, header: object) -> Values | None:
        """Return the values in the header of a message that count for this task; None if one is missing or invalid."""
        found: Any = header if isinstance(header, dict) else {}
        given, cost, fair = found.get("keys"), found.get("cost"), found.get("fair")
        values: Values = {}
        for name in self._keyed:
            if not isinstance(given, dict) or not _is_key_text(given.get(name)):
                return None
            values.setdefault("keys", {})[name] = given[name]
        if self._takes_turns:
            if not _is_fair(fair):
                return None
            values["fair"] = fair
        if not isinstance(self.cost, int):
            if not is_whole(cost, most=MOST_COST):
                return None
            values["cost"] = cost
        return values


def limits_of(policies: Iterable[Policy]) -> dict[str, Limit]:
    """Return the limits of an app's tasks by name; where two differ, the limit of one of the app's own tasks."""
    own_last = sorted(policies, key=lambda policy: policy.own)
    return {limit.name: limit for policy in own_last for limit in policy.limits}


def key_text(value: object) -> str:
    """Return the value of a key as text: unchanged if it is short and printable, else a hash.

    Raises:
        ConfigurationError: the value has a type that cannot be compared.
    """
    if type(value) is str and _is_key_text(value):
        return value
    if type(value) is int:
        return str(value)
    try:
        text = json.dumps(canonical(value), separators=(",", ":"))
    except TypeError as error:
        raise ConfigurationError(f"key: {error}: name an argument that is text or a number") from None
    if text.isprintable() and len(text) <= _LONGEST_KEY:
        return text
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()[:32]


def _is_key_text(text: object) -> bool:
    """Return whether a text can be what `key_text` returns."""
    return isinstance(text, str) and 0 < len(text) <= _LONGEST_KEY and text.isprintable()


def _is_fair(fair: object) -> bool:
    return (
        isinstance(fair, list) and len(fair) == 2 and _is_key_text(fair[0]) and is_whole(fair[1], most=MOST_STEP)  # noqa: PLR2004
    )
