"""The options of a throttled task, checked when it is bound."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from celery_throttle.core.checks import MOST, closest, is_whole, seconds, whole
from celery_throttle.core.dedup import DEDUP_OPTIONS
from celery_throttle.core.limits import Limit
from celery_throttle.core.policy import MOST_COST, Policy
from celery_throttle.core.wording import counted
from celery_throttle.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

__all__ = ["LIMIT_OPTIONS", "TASK_OPTIONS", "check_option_names", "task_policy"]

#: Options that make a limit of the task's own.
_OWN = ("key", "rate", "burst", "fair_by", "weights", "max_parked", "per", "share")
#: ``limit=`` and the options that belong to it.
LIMIT_OPTIONS = ("limit", *_OWN, "cost", "start_deadline")
#: Options of ``@app.task(base=Throttled, ...)`` beside Celery's own.
TASK_OPTIONS = (*LIMIT_OPTIONS, "singleton", *DEDUP_OPTIONS)
_MOST_LIMITS = 8
#: Former names of options.
_FORMER = {"until": "lock_until"}


def task_policy(task_name: str, options: Mapping[str, Any]) -> Policy | None:
    """Return the policy of a task from its options by name (`LIMIT_OPTIONS`), None if the task has no limit.

    A limit of the task's own has the name of the task.

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
    deadline = given.get("start_deadline")
    if deadline is not None:
        deadline = seconds(f"Task {task_name}: start_deadline", deadline, 0.001)
    return Policy(tuple(limits), _cost(task_name, given.get("cost", 1), limits), deadline)


def _limits(task_name: str, given: Mapping[str, Any]) -> list[Limit]:
    limit, own = given.get("limit"), {name: given[name] for name in _OWN if name in given}
    if limit is None or is_whole(limit):
        if limit is None and own and not own.keys() & {"rate", "share"}:
            needed, first = ("a rate", "rate='100/m'") if "burst" in own else ("a limit or a rate", "limit=5")
            raise ConfigurationError(
                f"Task {task_name}: {', '.join(own)} needs {needed} beside it: write {first}, {_completed(own)}"
            )
        return [_own_limit(task_name, limit, own)] if limit is not None or own else []
    limits = list(limit) if isinstance(limit, (list, tuple)) else [limit]
    if not 1 <= len(limits) <= _MOST_LIMITS or not all(isinstance(each, Limit) for each in limits):
        raise ConfigurationError(
            f"Task {task_name}: limit must be a whole number from 1 to {MOST}, a Limit or a list of up to "
            f"{_MOST_LIMITS} of them, got {limit!r:.200}; write {_instead_of(limit)}"
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
    whole(f"Task {task_name}: cost", cost, most=MOST_COST)
    for limit in limits:
        if limit.permits is not None and cost > limit.permits:
            raise ConfigurationError(
                f"Task {task_name}: cost {cost} is more than the {counted(limit.permits, 'permit')} of limit "
                f"{limit.name!r}: "
                f"raise the one or lower the other"
            )
    return cost


def check_option_names(task_name: str, given: Iterable[str], known: Container[str]) -> None:
    """Refuse a misspelt option of ours, and the former name of one.

    Args:
        task_name: for the message.
        given: names of the attributes that the task class sets itself.
        known: names that Celery or the task's own base classes define; these are never refused.

    Raises:
        ConfigurationError: a name that is not known is close to an option of ours, or was one.
    """
    for name in given:
        if name.startswith("_") or name in TASK_OPTIONS or name in known:
            continue
        if meant := _FORMER.get(name) or _close_option(name.lower()):
            raise ConfigurationError(f"Task {task_name}: unknown option {name!r}, did you mean {meant!r}?")


@lru_cache(maxsize=512)  # the tasks of an app mostly have the same attributes
def _close_option(name: str) -> str:
    return closest(name, TASK_OPTIONS, 0.75)
