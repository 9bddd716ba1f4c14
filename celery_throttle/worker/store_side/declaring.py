"""Declare the limits of a worker to the store, a page at a time."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from celery_throttle.core.declaration import described
from celery_throttle.store.reading import read

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from celery_throttle.core.release import Options
    from celery_throttle.core.sites import Sites
    from celery_throttle.core.task_codes import TaskNames
    from celery_throttle.store.calls import Store
    from celery_throttle.store.scripts import Call
    from celery_throttle.worker.store_side.link import Link

__all__ = ["Code", "Declaring", "declare_in_pages"]

logger = logging.getLogger(__name__)


class Code(Protocol):
    """The tasks in the code of a worker, as they are now: it may learn of others while it runs."""

    @property
    def version(self) -> int:
        """Another number after each change."""

    @property
    def names(self) -> TaskNames:
        """The names of the tasks, by their codes in the store."""

    @property
    def options(self) -> Options:
        """The options of the tasks and of the app."""

    def declared(self, group: str) -> dict[str, str]:
        """Return the declaration of each limit of a group, by name."""

    def sites_for(self, group: str) -> Sites | None:
        """Return the sites of the worker, None if no limit of a group has any."""


class Declaring:
    """Declares the limits of a worker to the store of one group, again when the worker has learned of tasks.

    Args:
        code: the tasks of the worker.
        group: the name of the group.
        store: builds the calls.

    Attributes:
        store: builds the calls, with what those of the declared limits need.
    """

    def __init__(self, code: Code, group: str, store: Store) -> None:
        self._code, self._group, self.store = code, group, store
        self._stored: dict[str, str] | None = None  # the limits in the last declaration that the store has
        self._look()

    def _look(self) -> None:
        self._version = self._code.version
        self._limits = self._code.declared(self._group)
        self.store = replace(self.store, sites=self._code.sites_for(self._group), options=self._code.options)

    @property
    def is_current(self) -> bool:
        """Whether the last declaration has all limits that the worker has now."""
        return self._version == self._code.version

    def calls(self, birth: str, away: float, worker: str) -> list[Call]:
        """Return the calls that declare the limits as they are now.

        Args:
            birth: of the store's data, as of the last declaration; "" at first.
            away: seconds for which the store could not be reached.
            worker: the name of the worker.

        A limit that the worker has not declared before is declared as by a new worker: the newest declaration holds.
        """
        self._look()
        pages = self.store.declarations(birth, self._limits.items(), away=away, worker=worker)
        learned = [] if self._stored is None else sorted(self._limits.items() - self._stored.items())
        return pages + (self.store.declarations("", learned) if learned else [])

    def read(self, raw: Any) -> str:
        """Return when the data of the store began; log the limits that other workers had declared otherwise."""
        birth, *changed = read(lambda answers: [each.decode() for each in answers], raw)
        self._stored = self._limits
        for limit, before in zip(changed[::2], changed[1::2], strict=True):
            logger.warning(
                "celery_throttle: limit %r was declared as %s and is %s from now on, as this worker has it: "
                "if this is no new release, give all workers the same",
                limit, described(before), described(self._limits[limit]),
            )  # fmt: skip
        return str(birth)


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
