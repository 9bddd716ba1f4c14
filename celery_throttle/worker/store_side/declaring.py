"""Declare the limits of a worker to the store, a page at a time."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from celery_throttle.store.scripts import Call
    from celery_throttle.worker.store_side.link import Link

__all__ = ["declare_in_pages"]


def declare_in_pages(link: Link, pages: Sequence[Call], again: Callable[[], None], done: Callable[[Any], None]) -> None:
    """Send the calls of `Store.declarations`, each after the answer to the one before it.

    Args:
        link: to send them with; the connection must be up.
        pages: the calls.
        again: called instead of ``done`` when the store was emptied between two pages.
        done: called with the answers to all pages in one, or with the error that ended it.
    """
    _send(link, pages, [], again, done)


def _send(
    link: Link, pages: Sequence[Call], answered: list[bytes], again: Callable[[], None], done: Callable[[Any], None]
) -> None:
    page, *others = pages
    link.send(page, partial(_answered, link, others, answered, again, done))


def _answered(
    link: Link,
    others: Sequence[Call],
    answered: list[bytes],
    again: Callable[[], None],
    done: Callable[[Any], None],
    raw: Any,
) -> None:
    if isinstance(raw, Exception):
        done(raw)
    elif answered and raw[0] != answered[0]:
        again()
    else:
        answered = [raw[0], *answered[1:], *raw[1:]]
        if others:
            _send(link, others, answered, again, done)
        else:
            done(answered)
