"""Readings that pages and visitors share, so that each is read once for all of them."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from celery_throttle.control.report import diagnose, report
from celery_throttle.signals import limit_changed
from celery_throttle.web.fleet import fleet
from celery_throttle.web.overview import overview
from celery_throttle.web.recent import Recent

if TYPE_CHECKING:
    from celery_throttle.control.findings import Commands

__all__ = ["Readings"]

#: A task that has waited for longer is an alarm, as in `celery throttle report`.
_PATIENCE = timedelta(minutes=10)
#: Seconds for which a verdict and a diagnosis are kept.
_KEPT = 3.0


class Readings:
    """Reads an app's store, workers and servers.

    Args:
        app: the Celery app.
        commands: the beginning of commands.

    Attributes:
        overview: the states of the limits, for a part of their names and a number of rows.
        verdict: the report; asks the workers.
        diagnosis: the findings about the set-up.
        fleet: workers, queues and records set aside; asks the workers.
    """

    def __init__(self, app: Any, commands: Commands) -> None:
        self.overview = Recent(partial(overview, app))
        self.verdict = Recent(partial(report, app, commands, _PATIENCE), _KEPT, one_at_a_time=True)
        self.fleet = Recent(partial(fleet, app), _KEPT, one_at_a_time=True)
        self.diagnosis = Recent(partial(diagnose, app, commands), _KEPT, one_at_a_time=True)
        # Celery before 5.7 takes the bound methods of two pages for one receiver.
        limit_changed.connect(self.forget, dispatch_uid=str(id(self)))

    def forget(self, **_: object) -> None:
        """Drop all readings after a change, so that the next request reads again. Also a receiver of signals."""
        for each in (self.overview, self.verdict, self.diagnosis, self.fleet):
            each.forget()
