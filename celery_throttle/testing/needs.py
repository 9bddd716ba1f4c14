"""The needs of one call: its limits with keys, its cost, its identity and its deadline; without a store or a worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery import Task

from celery_throttle.core.policy import costs_of
from celery_throttle.core.wording import counted, listed
from celery_throttle.errors import ConfigurationError
from celery_throttle.tasks import registry

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CallNeeds", "arguments_of", "assert_needs", "call_of", "call_text", "needs_of"]

__tracebackhide__ = True  # pytest shows the line of the test instead

#: The default of an option of `assert_needs`: not compared.
_NOT_GIVEN: Any = object()


@dataclass(frozen=True)
class CallNeeds:
    """The needs of one call of a task.

    Attributes:
        permits: the number of permits (and starts) of each limit or key: ``{"api": 1, "tenant[t1]": 5}``.
        identity: the values by which calls are compared, by argument, or the answer of a function given as
            ``unique_on``; None for a task that is no singleton.
        deadline: the seconds of ``start_deadline``; None without one.
    """

    permits: dict[str, int]
    identity: Any = None
    deadline: float | None = None


def call_of(call: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return the task and the arguments of a call: a signature, or a task for a call without arguments.

    Raises:
        ConfigurationError: the value is neither.
    """
    if isinstance(call, Task):
        return call, (), {}
    if not isinstance(call, dict) or "task" not in call:
        raise ConfigurationError(f"A task or its signature is wanted, got {call!r:.80}: write charge.s(order_id=7)")
    signature: Any = call
    return signature.type, tuple(signature.args), dict(signature.kwargs)


def arguments_of(task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[Any, Any]:
    """Return the arguments of a call by name, with defaults; as given if they do not fit the task."""
    bound = registry.call_of(task, args, kwargs).bound
    return {**dict(enumerate(args)), **kwargs} if bound is None else bound


def call_text(task: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Return a call as text: ``shop.crawl('t1', depth=5)``."""
    return f"{task.name}({', '.join([*map(repr, args), *(f'{name}={value!r}' for name, value in kwargs.items())])})"


def needs_of(call: Any) -> CallNeeds:
    """Return the needs of a call, such as ``crawl.s("t1", depth=5)``; works without a store, and in eager mode.

    Raises:
        ConfigurationError: as the publish of this call: an argument is missing, or has a wrong value.
    """
    task, args, kwargs = call_of(call)
    task.app.finalize(auto=True)
    policy, dedup = registry.policies_of(task.app).get(task.name), registry.dedup_of(task)
    headers = None if call is task else call.options.get("headers")
    read, permits, identity = registry.call_of(task, args, kwargs, headers), {}, None
    if policy is not None:
        needs = policy.needs(policy.values(read))
        permits = {str(bucket): cost for bucket, cost in costs_of(needs.text)}
    if dedup is not None:
        dedup.plan(read)  # raises if the values cannot be compared
        identity = dedup.value(read)
    return CallNeeds(permits, identity, None if policy is None else policy.start_deadline)


def assert_needs(
    call: Any,
    *,
    permits: Mapping[str, int] = _NOT_GIVEN,
    identity: Any = _NOT_GIVEN,
    deadline: float | None = _NOT_GIVEN,
) -> None:
    """Assert the needs of a call, see `CallNeeds`; those that are given. Works without a store, and in eager mode.

    Raises:
        AssertionError: the call has others.
        ConfigurationError: as `needs_of`.
    """
    found, text = needs_of(call), call_text(*call_of(call))
    if permits is not _NOT_GIVEN and permits != found.permits:
        raise AssertionError(f"{text} takes {_shown(found.permits)}, not {_shown(permits)}.")
    if identity is not _NOT_GIVEN and identity != found.identity:
        raise AssertionError(f"{text} has the identity {found.identity!r}, not {identity!r}.")
    if deadline is not _NOT_GIVEN and deadline != found.deadline:
        raise AssertionError(f"{text} has the start_deadline {found.deadline!r}, not {deadline!r}.")


def _shown(permits: Mapping[str, int]) -> str:
    return listed([f"{counted(number, 'permit')} of {name}" for name, number in permits.items()]) or "no permit"
