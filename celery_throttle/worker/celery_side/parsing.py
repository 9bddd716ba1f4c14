"""Read a message, once, when it arrives or its parked task gets its permits: all that the gate uses of it.

The result is a `Content`. After that no code looks at a header, and none can fail for what a message has in it. A
header of ours that cannot be used is computed from the arguments. A value that a task cannot do without raises an
error here, and the task ends with it.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from celery_throttle.core.contents import (
    attempt_of,
    check_links,
    check_stamps,
    check_time_limits,
    publication_in,
    rounds_of,
    stored_id,
)
from celery_throttle.core.policy import NOTHING, needs_again
from celery_throttle.errors import UnusableMessage
from celery_throttle.tasks.publish import HEADER
from celery_throttle.worker.celery_side.publications import name_by_broker
from celery_throttle.worker.lock_plans import call_from, header_of
from celery_throttle.worker.runs import Content

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_throttle.core.dedup import LockPlan
    from celery_throttle.core.policy import Needs, Policy
    from celery_throttle.core.sites import Sites
    from celery_throttle.store.exchange_reply import Grant

__all__ = ["content_of", "content_of_parked", "needs_of"]

#: The time limits of most messages.
_NO_LIMITS = ((None, None), [None, None])


def content_of(request: Any, policy: Policy | None, plan: LockPlan | None, sites: Sites) -> Content:
    """Return the content of a message that has arrived.

    Args:
        request: Celery's request.
        policy: the limits of its task, if it has any.
        plan: of its identity lock, if it needs one.
        sites: of the worker.

    Raises:
        UnusableMessage: the task cannot run with a value of the message.
        Exception: any error of the user's own functions, and ConfigurationError for arguments that do not fit.
    """
    headers, task = request.request_dict, request.task
    try:
        _check(request, headers)
        attempt = attempt_of(headers.get("retries"), headers.get("replaced_task_nesting"))
    except UnusableMessage as error:
        raise _named(request, error) from None
    header = headers.get(HEADER)
    if not isinstance(header, dict):
        header = {}
    needs = NOTHING
    if policy is not None:
        needs = needs_of(task, policy, header, request, starts_again=bool(attempt)).bound(sites)
    redelivered = bool(request.delivery_info.get("redelivered"))
    publication = publication_in(header)
    if not publication and (publication := name_by_broker(request.message, redelivered=redelivered)):
        headers[HEADER] = {**header, "publication": publication}  # for a retry, and for the parked message
    return Content(
        stored_id(request.id),
        attempt,
        needs,
        plan,
        redelivered=redelivered,
        had_eta=bool(headers.get("eta")),
        rounds=rounds_of(header) if header else 0,
        publication=publication,
        expires_ms=_expires_ms(request),
    )


def content_of_parked(request: Any, grant: Grant) -> Content:
    """Return the content of a parked message, of which the store's record has most.

    Raises:
        UnusableMessage: the task cannot run with a value of the message.
    """
    try:
        _check(request, request.request_dict)
    except UnusableMessage as error:
        raise _named(request, error) from None
    return Content(
        grant.task,
        grant.attempt,
        needs_again(grant.needs),
        redelivered=bool(request.delivery_info.get("redelivered")),
        rounds=rounds_of(header_of(request)),
        publication=grant.publication,
        expires_ms=_expires_ms(request),
    )


def _check(request: Any, headers: Mapping[str, Any]) -> None:
    """Check the values that Celery reads of each request when it starts or ends; most messages have none of them."""
    limits = request.time_limits
    if limits and limits not in _NO_LIMITS:
        check_time_limits(limits)
    if headers.get("stamped_headers"):
        check_stamps(headers)
    # Not `_payload`, a property whose first use takes long.
    payload = getattr(request, "_Request__payload", None) or request._payload  # noqa: SLF001
    if links := payload[2]:
        check_links(links)


def _named(request: Any, error: UnusableMessage) -> UnusableMessage:
    return UnusableMessage(f"Task {request.name}: {error}")


def needs_of(
    task: Any, policy: Policy, header: Mapping[str, object], call: Any, *, starts_again: bool = False
) -> Needs:
    """Return the needs of a call.

    Args:
        task: the task.
        policy: its limits.
        header: the header that our publisher wrote; empty for other publishers.
        call: Celery's request, or the context of one: it has the arguments.
        starts_again: whether the call is a retry, for which no start is booked.

    Raises:
        ConfigurationError: an argument is missing, or has a wrong value.
        UnusableMessage: there are no arguments.
    """
    if not policy.varies and not policy.paced:
        return policy.same
    values = policy.carried(header)
    if values is None:
        values = policy.values(call_from(call, task))
    reserved = header.get("reserved")
    if policy.paced and isinstance(reserved, str) and not starts_again:
        values["reserved"] = reserved
    return policy.needs(values) if values else policy.same


def _expires_ms(request: Any) -> int | None:
    """Return the milliseconds until a message expires; None if it does not."""
    expires: datetime | None = request.expires
    if not expires:
        return None
    now = datetime.now(timezone.utc if expires.tzinfo else None)
    return round((expires - now).total_seconds() * 1000)
