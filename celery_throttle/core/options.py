"""The options of a throttled task, checked when it is bound."""

from __future__ import annotations

from datetime import timedelta
from difflib import get_close_matches
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from celery_throttle.core.asking import taken
from celery_throttle.core.dedup import DEDUP_OPTIONS
from celery_throttle.core.limits import MOST_PERMITS, Limit
from celery_throttle.core.policy import MOST_COST, Policy, is_cost
from celery_throttle.core.wording import counted
from celery_throttle.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

__all__ = ["LIMIT_OPTIONS", "TASK_OPTIONS", "check_option_names", "task_policy"]

#: Options that make a limit of the task's own.
_OWN = ("key", "rate", "burst", "fair_by", "weights", "max_parked")
#: ``limit=`` and the options that belong to it.
LIMIT_OPTIONS = ("limit", *_OWN, "cost", "start_deadline")
#: Options of ``@app.task(base=Throttled, ...)`` beside Celery's own.
TASK_OPTIONS = (*LIMIT_OPTIONS, "singleton", *DEDUP_OPTIONS)
_MOST_LIMITS = 8
_LONGEST_SHOWN = 200
#: Ten years, in seconds.
_LONGEST = 10 * 365 * 86400
#: Option names of other throttles and run-once plugins, each with our option.
_ELSEWHERE = {
    "concurrency": "limit=5",
    "concurrency_limit": "limit=5",
    "max_concurrency": "limit=5",
    "max_concurrent": "limit=5",
    "max_running": "limit=5",
    "concurrency_key": "key='customer_id'",
    "limit_key": "key='customer_id'",
    "partition_key": "key='customer_id'",
    "max_queued": "max_parked=1000",
    "once": "singleton=True, unique_on=['order_id']",
    "unique": "singleton=True",
    "dedup": "singleton=True",
    "unique_for": "singleton=True, remember=3600",
    "unique_key": "singleton=True, unique_on=['order_id']",
    "lock_expiry": "lock_ttl=3600",
    "lock_expires": "lock_ttl=3600",
    "lock_timeout": "lock_ttl=3600",
    "lock_ttl_seconds": "lock_ttl=3600",
    "raise_on_duplicate": "on_conflict='raise'",
    "on_duplicate": "on_conflict='skip'",
    "heimdall": "singleton=True, unique_on=['order_id']",
    "unique_args": "singleton=True, unique_on=['order_id']",
    "unique_lock": "singleton=True",
    "unique_across_queues": "singleton=True",
    "unique_until": "singleton=True, lock_until='finished'",
    "until": "lock_until='finished'",
    "queueing_lock": "singleton=True, unique_on=['order_id']",
    "dedupe": "singleton=True",
    "permits": "limit=5",
    "max_permits": "limit=5",
    "max_parallel": "limit=5",
    "max_instances": "limit=1",
    "total_limit": "limit=5",
    "perform_limit": "limit=5",
    "enqueue_limit": "max_parked=1000",
    "max_waiting": "max_parked=1000",
    "throttle": "limit=5",
    "limiter": "rate='100/m'",
    "ratelimit": "rate='100/m'",
    "rate_limits": "rate='100/m'",
    "rate_per_minute": "rate='100/m'",
    "throttle_rate": "rate='100/m'",
    "burst_size": "burst=10",
    "fair": "fair_by='tenant_id'",
    "fairness_key": "fair_by='tenant_id'",
}


def task_policy(task_name: str, options: Mapping[str, Any], parameters: set[str] | None) -> Policy | None:
    """Return the policy of a task from ``limit=`` and the options beside it, None if the task has no limit.

    Args:
        task_name: the name of the task, of its own limit, and for the messages.
        options: the given options by name (`LIMIT_OPTIONS`).
        parameters: the names of the task's parameters, None if the task takes any.

    Raises:
        ConfigurationError: an option cannot work, alone or beside the others.
    """
    given = {name: value for name, value in options.items() if value is not None}
    limits = _limits(task_name, given)
    if not limits:
        for name in ("cost", "start_deadline"):
            if name in given:
                raise ConfigurationError(
                    f"Task {task_name}: {name} needs a limit: write limit=5, {name}={given[name]!r}"
                )
        return None
    _check_together(task_name, limits)
    # Those with a key first, so that a task waits in the line of its key, behind tasks of the same key only.
    limits = sorted(limits, key=lambda limit: limit.key is None)
    policy = Policy(tuple(limits), _cost(task_name, given.get("cost", 1), limits), _deadline(task_name, given))
    _check_parameters(task_name, policy, parameters)
    return policy


def _limits(task_name: str, given: Mapping[str, Any]) -> list[Limit]:
    limit, own = given.get("limit"), {name: given[name] for name in _OWN if name in given}
    if limit is None or (isinstance(limit, int) and not isinstance(limit, bool) and limit >= 1):
        if limit is None and own and "rate" not in own:
            needed, first = ("a rate", "rate='100/m'") if "burst" in own else ("a limit or a rate", "limit=5")
            raise ConfigurationError(
                f"Task {task_name}: {', '.join(own)} needs {needed} beside it: write {first}, {_completed(own)}"
            )
        if limit is not None and limit > MOST_PERMITS:
            raise ConfigurationError(
                f"Task {task_name}: limit must be {MOST_PERMITS} at the most, got {limit}: write limit=5, or leave it "
                f"out"
            )
        return [_own_limit(task_name, limit, own)] if limit is not None or own else []
    limits = list(limit) if isinstance(limit, (list, tuple)) else [limit]
    if not 1 <= len(limits) <= _MOST_LIMITS or not all(isinstance(each, Limit) for each in limits):
        raise ConfigurationError(
            f"Task {task_name}: limit must be a whole number of 1 or more, a Limit or a list of up to {_MOST_LIMITS} "
            f"of them, got {_clipped(limit)}; write {_instead_of(limit)}"
        )
    if not own:
        return limits
    if "rate" not in own:
        raise ConfigurationError(
            f"Task {task_name}: {', '.join(own)} belongs in the Limit here: "
            f"write limit={repr(limits[0])[:-1]}, {_completed(own, limits[0])})"
        )
    return [*limits, _own_limit(task_name, None, {**own, "group": limits[0].group})]


def _completed(own: Mapping[str, Any], limit: Limit | None = None) -> str:
    """Return the options as code, behind options that they need and that the limit lacks."""
    needed: dict[str, Any] = {}
    if "burst" in own and limit is not None and not limit.rates:
        needed["rate"] = "100/m"
    if "weights" in own and "fair_by" not in own and (limit is None or limit.fair_by is None):
        needed["fair_by"] = "tenant_id"
    return ", ".join(f"{name}={value!r:.80}" for name, value in {**needed, **own}.items())


def _instead_of(limit: object) -> str:
    """Return the fix for a value of ``limit`` that is no limit."""
    if isinstance(limit, str) and limit.strip().isdecimal() and int(limit):
        return f"limit={int(limit)}"
    if isinstance(limit, str) and "/" in limit:
        return f"rate={limit!r}"
    if limit == 0 and not isinstance(limit, bool):
        return "limit=1, or let none start for now: ThrottleControl(app).limit(task).pause()"
    classes = [each for each in (limit if isinstance(limit, (list, tuple)) else [limit]) if isinstance(each, type)]
    if classes:
        return f"limit={classes[0].__name__}('gpu', 4): a limit, not its class"
    if callable(limit):
        return "limit=5, key='customer_id': the number is the same for each key"
    return "limit=5 or limit=Limit('gpu', 4)"


def _clipped(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= _LONGEST_SHOWN else f"{shown[:_LONGEST_SHOWN]}..."


def _own_limit(task_name: str, permits: int | None, own: Mapping[str, Any]) -> Limit:
    try:
        return Limit(task_name, permits, **own)
    except ConfigurationError as error:
        raise ConfigurationError(f"Task {task_name}: {str(error).partition(': ')[2] or error}") from None


def _check_together(task_name: str, limits: Sequence[Limit]) -> None:
    names = [limit.name for limit in limits]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigurationError(f"Task {task_name}: limit {twice!r} is there twice: name each limit once")
    for limit in limits[1:]:
        first = limits[0]
        if limit.group != first.group:
            raise ConfigurationError(
                f"Task {task_name}: limit {first.name!r} is in group {first.group!r} and limit {limit.name!r} in "
                f"{limit.group!r}, which may be on two servers, so no task can take both at once: "
                f"give both the same, group={(first.group or limit.group)!r}"
            )
    fair = [limit.name for limit in limits if limit.fair_by is not None]
    if len(fair) > 1:
        raise ConfigurationError(
            f"Task {task_name}: limits {' and '.join(map(repr, fair))} both have fair_by: a task takes turns in one "
            f"line only, so leave it out of all but one"
        )


def _cost(task_name: str, cost: Any, limits: Sequence[Limit]) -> Any:
    if (isinstance(cost, str) and cost) or callable(cost):
        return cost
    if not is_cost(cost):
        raise ConfigurationError(
            f"Task {task_name}: cost must be a whole number from 1 to {MOST_COST}, the name of an argument or a "
            f"function of the arguments, got {cost!r}: write cost=2 or cost='pages'"
        )
    for limit in limits:
        if limit.permits is not None and cost > limit.permits:
            raise ConfigurationError(
                f"Task {task_name}: cost {cost} is more than the {counted(limit.permits, 'permit')} of limit "
                f"{limit.name!r}: "
                f"raise the one or lower the other"
            )
    return cost


def _deadline(task_name: str, given: Mapping[str, Any]) -> float | None:
    if "start_deadline" not in given:
        return None
    value = given["start_deadline"]
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds <= _LONGEST:
        raise ConfigurationError(
            f"Task {task_name}: start_deadline must be seconds or a timedelta, more than 0, {_LONGEST} at the most, "
            f"got {value!r}: write start_deadline=30"
        )
    return float(seconds)


def _check_parameters(task_name: str, policy: Policy, parameters: set[str] | None) -> None:
    if parameters is None:
        return
    parts = [("cost", policy.cost)]
    parts += [(option, getattr(limit, option)) for limit in policy.limits for option in ("key", "fair_by")]
    for option, part in parts:
        if isinstance(part, str) and part.partition(".")[0] not in parameters:
            raise ConfigurationError(
                f"Task {task_name}: {option} names {part!r}, but the task {taken(part, parameters)}"
            )


def check_option_names(task_name: str, given: Iterable[str], known: Container[str]) -> None:
    """Refuse a misspelt option of ours, and the name that another plugin has for one.

    Args:
        task_name: for the message.
        given: names of the attributes that the task class sets itself.
        known: names that Celery or the task's own base classes define; these are never refused.

    Raises:
        ConfigurationError: a name that is not known is close to an option of ours, or has the same meaning.
    """
    for name in given:
        if name.startswith("_") or name in TASK_OPTIONS or name in known:
            continue
        if name in _ELSEWHERE:
            write = _ELSEWHERE[name]
            ours = write.partition("=")[0]
            raise ConfigurationError(
                f"Task {task_name}: unknown option {name!r}: celery_throttle calls this {ours}, write {write}"
            )
        if close := _close_option(name.lower()):
            raise ConfigurationError(f"Task {task_name}: unknown option {name!r}, did you mean {close!r}?")


@lru_cache(maxsize=512)  # the tasks of an app mostly have the same attributes
def _close_option(name: str) -> str | None:
    return next(iter(get_close_matches(name, TASK_OPTIONS, n=1, cutoff=0.75)), None)
