"""The needs of a request: its permits and starts, from the header that its publisher wrote, or its arguments."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from celery_throttle.tasks.registry import call_of
from celery_throttle.worker.lock_plans import header_of, headers_of

if TYPE_CHECKING:
    from celery_throttle.core.policy import Needs, Policy

__all__ = ["expiring", "needs_of"]


def needs_of(request: Any, task: Any, policy: Policy) -> Needs:
    """Return the needs of a request.

    Raises:
        ConfigurationError: an argument is missing, or has a wrong value.
    """
    if not policy.varies and not policy.paced:
        return policy.same
    header = header_of(request)
    call = call_of(task, request.args, request.kwargs, headers_of(request))
    values = header if policy.carried(header) else policy.values(call)
    reserved = header.get("reserved")
    if policy.paced and isinstance(reserved, str) and not request.request_dict.get("retries"):
        # A start that was booked in advance is for the first run only.
        values = {**values, "reserved": reserved}
    elif "reserved" in values:
        values = {name: value for name, value in values.items() if name != "reserved"}
    return policy.needs(values) if values else policy.same


def expiring(needs: Needs, request: Any) -> Needs:
    """Return the needs of a request, with its expiry as the end of its wait in line, if the request expires."""
    if not request.expires:
        return needs
    now = datetime.now(timezone.utc if request.expires.tzinfo else None)
    return needs.within(max(round((request.expires - now).total_seconds() * 1000), 1))
