"""What a request takes of its task's limits: from the header its publisher wrote, or from its arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_throttle.arguments import values_of
from celery_throttle.worker.plans import header_of

if TYPE_CHECKING:
    from celery_throttle.core.terms import Needs, Terms

__all__ = ["needs_of"]


def needs_of(request: Any, task: Any, terms: Terms) -> Needs:
    """Return what a request takes.

    Raises:
        ConfigurationError: an argument is not there, or not what it has to be.
    """
    if not terms.varies:
        return terms.same
    header = header_of(request)
    if terms.carried(header):
        return terms.needs(header)
    return terms.needs(values_of(task, terms, request.args, request.kwargs))
