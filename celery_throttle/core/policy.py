"""On what policy a task runs: its limits, and what each call takes of them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from celery_throttle.core.asking import answer_of
from celery_throttle.core.buckets import Bucket
from celery_throttle.core.identity import canonical, pick
from celery_throttle.core.limits import MOST_STEP
from celery_throttle.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from collections.abc import Set as AbstractSet

    from celery_throttle.core.limits import Limit, Part

__all__ = [
    "MOST_COST",
    "NOTHING",
    "Needs",
    "Policy",
    "costs_of",
    "is_cost",
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
    """What one call takes of its limits.

    Attributes:
        buckets: that it takes permits of, those with a key first.
        text: the same with how many, as needs.lua says; "" for nothing.
        turn: its turn among others, as fair_queueing.lua says: bucket, who, step; None where who comes first is first.
        wait_ms: how long it may wait in line, None for ever.
        booked: whether its start was booked before.
    """

    buckets: tuple[str, ...]
    text: str = ""
    turn: tuple[str, str, int] | None = None
    wait_ms: int | None = None
    booked: bool = False

    def within(self, wait_ms: int) -> Needs:
        """Return the same for a call that may not wait for longer than that."""
        return replace(self, wait_ms=wait_ms if self.wait_ms is None else min(self.wait_ms, wait_ms))

    def waits_in(self, closed: AbstractSet[str]) -> bool:
        """Whether it has to wait if these buckets are full or have a line."""
        return not closed.isdisjoint(self.buckets) and not self.booked


#: What a call takes that has no limit.
NOTHING = Needs(())


def needs_text(costs: Iterable[tuple[Bucket, int]], booked: Bucket | None = None) -> str:
    """Return so many permits of each bucket, as the store reads it."""
    return "\x01".join(f"{cost}{'b' if bucket == booked else ''}:{bucket.text}" for bucket, cost in costs)


def costs_of(text: str) -> list[tuple[Bucket, int]]:
    """Read what `needs_text` wrote."""
    return [
        (Bucket.parse(bucket), int(cost.removesuffix("b")))
        for cost, _, bucket in (part.partition(":") for part in text.split("\x01") if part)
    ]


def limits_text(text: str) -> str:
    """Return the limits of what `needs_text` wrote, as people read them: ``gpu, tenant[acme]``."""
    return ", ".join(str(bucket) for bucket, _ in costs_of(text))


def needs_again(text: str) -> Needs:
    """Return what a parked task takes, from what the store kept of it."""
    return Needs(tuple(bucket.text for bucket, _ in costs_of(text)), text, booked="b:" in text) if text else NOTHING


@dataclass(frozen=True)
class Policy:
    """The limits of a task, and what goes with them.

    Attributes:
        limits: all of them; those with a key come first.
        cost: how many permits and starts a call takes: a number, the name of an argument, or a function of them all.
        start_deadline: seconds that a call may wait at the gate, None for ever.
        own: whether the app itself has declared the task, and not another app of the process, or nobody in particular.
    """

    limits: tuple[Limit, ...]
    cost: int | Part = 1
    start_deadline: float | None = None
    own: bool = True

    @property
    def group(self) -> str | None:
        """Where in Redis they are, all of them; None for where all are that do not say."""
        return self.limits[0].group

    @cached_property
    def varies(self) -> bool:
        """Whether it depends on the arguments."""
        return not isinstance(self.cost, int) or any(limit.key or limit.fair_by for limit in self.limits)

    @cached_property
    def paced(self) -> bool:
        """Whether one of its limits has a rate, of which a start may be booked in advance."""
        return any(limit.rates for limit in self.limits)

    @cached_property
    def crowds(self) -> bool:
        """Whether only so many may wait for one of its limits."""
        return any(limit.max_parked for limit in self.limits)

    def most_parked(self, values: Mapping[str, Any]) -> list[tuple[Bucket, int]]:
        """Return which limits of a call with these values only so many may wait for, and how many."""
        keys = values.get("keys", {})
        return [
            (limit.bucket(keys[limit.name] if limit.key else None), limit.max_parked)
            for limit in self.limits
            if limit.max_parked
        ]

    @cached_property
    def same(self) -> Needs:
        """What every call takes, if it does not depend on the arguments."""
        return self.needs({})

    def values(
        self,
        task_name: str,
        arguments: Mapping[str, object],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        left_out: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Return what depends on the arguments of a call, as a message can carry it: ``keys``, ``fair``, ``cost``.

        Args:
            task_name: for the messages.
            arguments: by name, with the defaults of those left out.
            args: as given.
            kwargs: as given.
            left_out: the defaults of those left out, by name.

        Raises:
            ConfigurationError: an argument is not there, or not what it has to be.
        """

        def of(option: str, part: Part) -> object:
            if callable(part):
                return answer_of(task_name, option, part, args, kwargs, left_out)
            try:
                # What a task takes as **kwargs is found by its own name, too.
                return pick({**kwargs, **arguments}, part)
            except ConfigurationError as error:
                raise ConfigurationError(f"Task {task_name}: {option}: {error}") from None

        def text_of(option: str, value: object) -> str:
            try:
                return key_text(value)
            except ConfigurationError as error:
                raise ConfigurationError(f"Task {task_name}: {str(error).replace('key', option, 1)}") from None

        values: dict[str, Any] = {}
        keys = {limit.name: text_of("key", of("key", limit.key)) for limit in self.limits if limit.key}
        if keys:
            values["keys"] = keys
        for limit in self.limits:
            if limit.fair_by:
                value = of("fair_by", limit.fair_by)
                values["fair"] = [text_of("fair_by", value), limit.step(value if _is_plain(value) else None)]
        if not isinstance(self.cost, int):
            values["cost"] = _cost(task_name, of("cost", self.cost))
        return values

    def needs(self, values: Mapping[str, Any]) -> Needs:
        """Return what a call takes whose arguments have these values."""
        cost, keys = values.get("cost", self.cost), values.get("keys", {})
        buckets = [limit.bucket(keys[limit.name] if limit.key else None) for limit in self.limits]
        reserved = values.get("reserved")
        booked = Bucket.parse(reserved) if reserved else None
        fair = [bucket for bucket, limit in zip(buckets, self.limits, strict=True) if limit.fair_by]
        return Needs(
            tuple(bucket.text for bucket in buckets),
            needs_text([(bucket, cost) for bucket in buckets], booked),
            turn=(fair[0].text, *values["fair"]) if fair else None,
            wait_ms=None if self.start_deadline is None else round(self.start_deadline * 1000),
            booked=booked in buckets,
        )

    def carried(self, values: object) -> bool:
        """Whether these values, from a message, are all that a call has to say."""
        if not isinstance(values, dict):
            return False
        keys, cost, fair = values.get("keys", {}), values.get("cost", 1), values.get("fair")
        return (
            isinstance(keys, dict)
            and all(isinstance(keys.get(limit.name), str) for limit in self.limits if limit.key)
            and (isinstance(self.cost, int) or ("cost" in values and is_cost(cost)))
            and (not any(limit.fair_by for limit in self.limits) or _is_fair(fair))
        )


def limits_of(policies: Iterable[Policy]) -> dict[str, Limit]:
    """Return the limits of an app's tasks by name; of two that differ, that of a task of its own."""
    own_last = sorted(policies, key=lambda policy: policy.own)
    return {limit.name: limit for policy in own_last for limit in policy.limits}


def key_text(value: object) -> str:
    """Return the value of a key as text: itself if that is short and printable, else a hash.

    Raises:
        ConfigurationError: nothing is known of how to compare such a value.
    """
    if type(value) is str and value.isprintable() and 0 < len(value) <= _LONGEST_KEY:
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


def _is_plain(value: object) -> bool:
    return isinstance(value, (str, int))


def is_cost(cost: object) -> bool:
    return isinstance(cost, int) and not isinstance(cost, bool) and 1 <= cost <= MOST_COST


def _is_fair(fair: object) -> bool:
    match fair:
        case [str(), int(step)]:
            return 1 <= step <= MOST_STEP
    return False


def _cost(task_name: str, cost: object) -> int:
    if not is_cost(cost):
        raise ConfigurationError(
            f"Task {task_name}: cost must be a whole number from 1 to {MOST_COST}, got {cost!r}: "
            f"write cost=2, cost='pages' or a function of the arguments that returns one"
        )
    return int(cost)  # type: ignore[call-overload,no-any-return]
