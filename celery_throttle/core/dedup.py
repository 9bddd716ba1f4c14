"""The options of a task that runs once, checked when it is bound."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

from celery_throttle.core.checks import TEN_YEARS, group_name, is_whole, one_of, seconds
from celery_throttle.core.contents import stored_id
from celery_throttle.core.identity import IDENTITY_LENGTH, identity_of
from celery_throttle.core.json_text import quote, write
from celery_throttle.errors import ConfigurationError

if TYPE_CHECKING:
    from celery_throttle.core.arguments import TaskCall

__all__ = [
    "DEDUP_OPTIONS",
    "PER_CALL",
    "Dedup",
    "LockPlan",
    "LockUntil",
    "OnConflict",
    "carried_plan",
    "fenced",
    "task_dedup",
]

LockUntil = Literal["finished", "started", "expires"]
OnConflict = Literal["return_existing", "raise", "skip", "replace", "keep_last"]

#: Options that need ``singleton=True`` beside them.
DEDUP_OPTIONS = ("unique_on", "lock_until", "on_conflict", "remember", "lock_ttl")
#: Options that a single call can replace, with ``throttle=``.
PER_CALL = ("unique_on", "on_conflict")

_NEWEST = ("replace", "keep_last")
_IDENTITY = re.compile(rf"[0-9a-f]{{{IDENTITY_LENGTH}}}")
_CLAIM = re.compile(r"[0-9]{1,16}")
#: The largest whole number that Lua has exactly.
_MOST_CLAIM = 2**53 - 1
_MOST_MS = round(TEN_YEARS * 1000)
#: The parts of a plan that a message carries, so that each worker can honour the lock, whatever its own code has.
_CARRIED = ("identity", "lock_until", "remember_ms", "ttl_ms", "on_conflict", "claim", "first")


@dataclass(frozen=True)
class LockPlan:
    """The use of the identity lock by one call of a task.

    Attributes:
        identity: of the call.
        dedup: the options of the task, replaced by options of the call.
        claim: the number of the claim that the store granted when the call was published; "0" if there was no claim.
        first: the id of the task that had the lock then.
        group: the group of limits whose store has the lock; None: that of the task's limits.
    """

    identity: str
    dedup: Dedup
    claim: str = "0"
    first: str = ""
    group: str | None = None

    @property
    def spec(self) -> str:
        """The plan as JSON, in the form that claims.lua reads."""
        first = quote(self.first) if self.first else '""'
        return f'{{"identity":{quote(self.identity)},{self.dedup.spec},"claim":"{self.claim}","first":{first}}}'

    def header(self, task_id: object, group: str) -> dict[str, object]:
        """Return the header for the message of a task, see `carried_plan`."""
        plan = {"identity": self.identity, **self.dedup.values, "claim": self.claim, "first": self.first}
        return plan | {"task": task_id, "group": group}


def fenced(spec: str, token: int, task_id: object = "", group: str = "") -> tuple[str, dict[str, object]]:
    """Return a plan with the fencing token that was granted, and the header for its message (see `carried_plan`).

    Both plans, the given and the returned one, are JSON as in `LockPlan.spec`.
    """
    plan = json.loads(spec) | {"fence": str(token)}
    return write(plan), {name: plan.get(name) for name in _CARRIED} | {"task": task_id, "group": group}


def carried_plan(header: Mapping[str, object], task_id: object, dedup: Dedup | None = None) -> LockPlan | None:
    """Return the plan in the header of a message, None if the header has no valid plan for this task.

    Args:
        header: ours.
        task_id: of the message: a body may forward its own headers to other tasks, which have locks of their own.
        dedup: the options of the task here, for headers of other publishers; None if it is no singleton here.
    """
    identity, claim, conflict = (header.get(name) for name in ("identity", "claim", "on_conflict"))
    if not isinstance(identity, str) or not _IDENTITY.fullmatch(identity) or conflict not in get_args(OnConflict):
        return None
    if header.get("task", task_id) != task_id or (dedup is None and "task" not in header):
        return None
    claim = claim if isinstance(claim, str) and _CLAIM.fullmatch(claim) and int(claim) <= _MOST_CLAIM else "0"
    first = header.get("first")
    first = first if isinstance(first, str) and first and stored_id(first) == first else ""
    options = replace(dedup or Dedup(), on_conflict=conflict)  # type: ignore[arg-type]
    return LockPlan(identity, _with_carried(options, header), claim, first, _carried_group(header))


def _with_carried(options: Dedup, header: Mapping[str, object]) -> Dedup:
    """Return the options with those of the call's publisher, if the header has all of them and they can work."""
    until, remember, ttl = (header.get(name) for name in ("lock_until", "remember_ms", "ttl_ms"))
    if until not in get_args(LockUntil) or not is_whole(remember, 0, _MOST_MS) or not is_whole(ttl, 1000, _MOST_MS):
        return options
    carried = replace(options, lock_until=until, remember=remember / 1000, lock_ttl=ttl / 1000)  # type: ignore[arg-type]
    try:
        _check_together("", carried)
    except ConfigurationError:
        return options
    return carried


def _carried_group(header: Mapping[str, object]) -> str | None:
    try:
        return group_name("group", header.get("group"))
    except ConfigurationError:
        return None


@dataclass(frozen=True)
class Dedup:
    """The options of a task that runs once: ``singleton=True`` and the options that need it.

    Attributes:
        unique_on: the arguments that make calls the same: names or dotted paths, or a function of all arguments; None
            for all of them.
        lock_until: when another call may run: after the end of the task (``finished``), after its start (``started``),
            or ``lock_ttl`` after it was published, with any outcome (``expires``).
        on_conflict: the action for another call before that time.
        remember: seconds for which a success blocks further calls.
        lock_ttl: seconds for which a task that was published, but does not run, keeps its lock.
    """

    unique_on: tuple[str, ...] | Callable[..., object] | None = None
    lock_until: LockUntil = "finished"
    on_conflict: OnConflict = "return_existing"
    remember: float = 0.0
    lock_ttl: float = 86400.0

    @cached_property
    def values(self) -> dict[str, object]:
        """The part of a plan that is the same for all calls."""
        remember, ttl = round(self.remember * 1000), round(self.lock_ttl * 1000)
        return {"lock_until": self.lock_until, "remember_ms": remember, "ttl_ms": ttl, "on_conflict": self.on_conflict}

    @cached_property
    def spec(self) -> str:
        """These values as a part of `LockPlan.spec`."""
        return write(self.values)[1:-1]

    def plan(self, call: TaskCall) -> LockPlan:
        """Return the lock plan of a call.

        Raises:
            ConfigurationError: the arguments cannot be compared.
        """
        value = self.value(call)
        try:
            return LockPlan(identity_of(call.task_name, value), self)
        except TypeError as error:
            raise call.wrong(
                f"cannot compare its arguments with those of another call ({error}): name those that count with "
                f"unique_on=['order_id'], or give unique_on a function that returns text"
            ) from None

    def value(self, call: TaskCall) -> object:
        """Return the value by which calls are compared: arguments by name, or the answer of the user's function.

        Raises:
            ConfigurationError: the call has no such value.
        """
        if callable(self.unique_on):
            return call.read("unique_on", self.unique_on)
        if self.unique_on is not None:
            return {path: call.read("unique_on", path) for path in self.unique_on}
        # A call whose arguments do not fit fails when it runs; until then they are used as given.
        return {"args": call.args, "kwargs": call.kwargs} if call.bound is None else call.bound

    def for_call(self, task_name: str, options: object) -> Dedup:
        """Return the options, replaced by those of one call: ``throttle={"on_conflict": "raise"}``.

        Raises:
            ConfigurationError: an option cannot work.
        """
        if options is None:
            return self
        if not isinstance(options, Mapping) or not set(options) <= set(PER_CALL):
            raise ConfigurationError(
                f"Task {task_name}: throttle= of a call must be a dict with {' or '.join(map(repr, PER_CALL))}, "
                f"got {options!r}: write throttle={{'on_conflict': 'raise'}}"
            )
        changed = self
        if "unique_on" in options:
            changed = replace(changed, unique_on=_unique_on(task_name, options["unique_on"]))
        if "on_conflict" in options:
            conflict = one_of(f"Task {task_name}: on_conflict", options["on_conflict"], get_args(OnConflict))
            changed = replace(changed, on_conflict=conflict)
        _check_together(task_name, changed)
        return changed


def task_dedup(task_name: str, singleton: object, options: Mapping[str, object]) -> Dedup | None:
    """Return the checked options of a singleton, given by name (`DEDUP_OPTIONS`); None if the task is no singleton.

    Raises:
        ConfigurationError: an option cannot work, alone or beside the others.
    """
    if not isinstance(singleton, bool):
        raise ConfigurationError(
            f"Task {task_name}: singleton must be True or False, got {singleton!r}: write {_instead_of(singleton)}"
        )
    given = {name: value for name, value in options.items() if value is not None}
    if not singleton:
        if given:
            names, fix = ", ".join(sorted(given)), ", ".join(f"{name}={given[name]!r:.80}" for name in sorted(given))
            raise ConfigurationError(
                f"Task {task_name}: {names} needs singleton=True beside it: write singleton=True, {fix}"
            )
        return None
    what = f"Task {task_name}: "
    dedup = Dedup(
        unique_on=_unique_on(task_name, given.get("unique_on")),
        lock_until=one_of(f"{what}lock_until", given.get("lock_until", "finished"), get_args(LockUntil)),
        on_conflict=one_of(f"{what}on_conflict", given.get("on_conflict", "return_existing"), get_args(OnConflict)),
        remember=seconds(f"{what}remember", given.get("remember", 0.0), usual=3600),
        lock_ttl=seconds(f"{what}lock_ttl", given.get("lock_ttl", 86400.0), 1.0, usual=3600),
    )
    _check_together(task_name, dedup)
    return dedup


def _check_together(task_name: str, dedup: Dedup) -> None:
    remember, until, conflict = dedup.remember > 0, dedup.lock_until, dedup.on_conflict
    newest, lock_until, on_conflict = conflict in _NEWEST, f"lock_until={until!r}", f"on_conflict={conflict!r}"
    for wrong, option, other, why in (
        (remember and until == "started", "remember", lock_until, "at its start the outcome is not known"),
        (remember and until == "expires", "remember", lock_until, "lock_ttl alone sets how long it counts"),
        (remember and newest, "remember", on_conflict, "a remembered call does not run again"),
        (until == "expires" and newest, lock_until, on_conflict, "use lock_until='finished'"),
        (until == "started" and conflict == "keep_last", lock_until, on_conflict, "use 'replace'"),
    ):
        if wrong:
            fix = "" if why.startswith("use ") else ", so leave one of them out"
            raise ConfigurationError(f"Task {task_name}: {option} with {other} makes no sense: {why}{fix}")


def _instead_of(singleton: object) -> str:
    """Return the fix for a value of ``singleton`` that is not a bool."""
    if isinstance(singleton, str) and singleton.isidentifier() and singleton.lower() not in ("yes", "true"):
        return f"singleton=True, unique_on={[singleton]!r}"
    names = isinstance(singleton, list) and singleton and all(isinstance(each, str) and each for each in singleton)
    return f"singleton=True, unique_on={singleton!r}" if names else "singleton=True"


def _unique_on(task_name: str, value: Any) -> tuple[str, ...] | Callable[..., object] | None:
    if value is None or callable(value):
        return value  # type: ignore[no-any-return]
    if isinstance(value, (list, tuple)) and all(isinstance(name, str) and name for name in value):
        return tuple(value)
    raise ConfigurationError(
        f"Task {task_name}: unique_on must be a list of argument names such as ['order_id'], or a function of the "
        f"arguments, got {value!r}: write unique_on={[value] if isinstance(value, str) and value else ['order_id']!r}"
    )
