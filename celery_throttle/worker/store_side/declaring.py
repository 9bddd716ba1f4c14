"""Declare the limits of a worker to the store, a page at a time."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from celery_throttle.core.declaration import described
from celery_throttle.store.reading import read

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from celery_throttle.store.scripts import Call
    from celery_throttle.worker.store_side.link import Link

__all__ = ["declare_in_pages", "read_declared"]

logger = logging.getLogger(__name__)


def declare_in_pages(link: Link, pages: Sequence[Call], again: Callable[[], None], done: Callable[[Any], None]) -> None:
    """Send the calls of `Store.declarations`, each after the answer to the one before it.

    Args:
        link: sends the calls; the connection must be up.
        pages: the calls.
        again: called instead of ``done`` when the store was emptied between two pages.
        done: called with the answers to all pages in one list, or with the first error.
    """
    unsent, answers = list(pages), list[bytes]()

    def receive(raw: Any) -> None:
        if isinstance(raw, Exception):
            done(raw)
        elif answers and raw[0] != answers[0]:
            again()
        else:
            answers[:] = [raw[0], *answers[1:], *raw[1:]]
            if unsent:
                link.send(unsent.pop(0), receive)
            else:
                done(answers)

    link.send(unsent.pop(0), receive)


def read_declared(raw: Any, ours: Mapping[str, str]) -> str:
    """Return when the data of the store began; log the limits that other workers had declared otherwise."""
    birth, *changed = read(lambda answers: [each.decode() for each in answers], raw)
    for limit, before in zip(changed[::2], changed[1::2], strict=True):
        logger.warning(
            "celery_throttle: limit %r was declared as %s and is %s from now on, as this worker has it: "
            "if this is no new release, give all workers the same",
            limit, described(before), described(ours[limit]),
        )  # fmt: skip
    return str(birth)
