"""The keys of a limit: their order, and the options with which they are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from celery_throttle.core.checks import one_of, whole
from celery_throttle.errors import ConfigurationError

if TYPE_CHECKING:
    from celery_throttle.store.limit_status import LimitStatus

__all__ = ["LimitKeys", "Order", "busy", "check_look", "longest_line"]

Order = Literal["attention", "backlog", "name"]


@dataclass(frozen=True)
class LimitKeys:
    """The keys of a limit.

    Attributes:
        rows: the status of the keys.
        known: the number of keys whose names match; of more than 1000, ``rows`` that are not sorted by name are from
            the first 1000 found.
        cut: whether there may be more keys: only the first 20 000 names of the store were read.
    """

    rows: tuple[LimitStatus, ...]
    known: int
    cut: bool = False


def busy(status: LimitStatus) -> tuple[bool, int, int, str, str]:
    """Return the sort key of keys: stopped ones first, then the longest lines."""
    return not status.stopped, *longest_line(status)


def longest_line(status: LimitStatus) -> tuple[int, int, str, str]:
    """Return the sort key of limits and keys: the longest lines first."""
    return -status.parked_in_all, -status.held_in_all, status.name, status.key or ""


def check_look(find: object, sort: object, skip: object) -> None:
    """Check the options of `LimitControl.keys`; `ConfigurationError` if one cannot work."""
    if not isinstance(find, str):
        raise ConfigurationError(f"find must be a part of a name, got {find!r}: write find='acme'")
    one_of("sort", sort, get_args(Order))
    whole("skip", skip, 0, usual=100)
