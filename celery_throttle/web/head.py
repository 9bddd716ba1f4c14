"""The head line of each page: the app, its store, its environment, and the number of alarms."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from zlib import crc32

from celery_throttle.core.store_url import shown
from celery_throttle.core.wording import counted
from celery_throttle.errors import ConfigurationError
from celery_throttle.settings import settings_of

if TYPE_CHECKING:
    from celery_throttle.control.checks import Report
    from celery_throttle.web.readings import Readings

__all__ = ["Head"]

#: Seconds after which the alarms of a report are not shown any more.
_OLD = 60.0
#: Colours of the stylesheet, beside that of production.
_COLOURS = 4
_PRODUCTION = ("prod", "live")


class Head:
    """The content of the head line, without a call to the store.

    ``store``: its address without passwords; "" if a setting cannot work. ``group``: the prefix of all keys, with the
    name of the group of limits if there is one. ``environment``: its name, "" if there is none.
    """

    def __init__(self, app: Any, readings: Readings) -> None:
        self._verdict = readings.verdict
        self.app = str(app.main or "celery")
        self.store = self.group = self.environment = ""
        try:
            settings = settings_of(app)
        except ConfigurationError:  # the page itself shows the error
            return
        self.store, self.environment = shown(settings.url), settings.environment
        self.group = f"{settings.prefix}, group {settings.group}" if settings.group else settings.prefix

    @property
    def colour(self) -> str:
        """The class of the environment: red for production, another colour for other names."""
        name = self.environment.lower()
        return "production" if name.startswith(_PRODUCTION) else f"colour-{crc32(name.encode()) % _COLOURS}"

    @property
    def alarms(self) -> Report | None:
        """The last report, None if there is none or it is old."""
        return self._verdict.last(_OLD)

    @staticmethod
    def in_words(report: Report | None) -> str:
        """Return the number of alarms in words; no number where no report was read."""
        if report is None:
            return "check for alarms"
        if report.alarms:
            return counted(len(report.alarms), "alarm")
        return "no alarm, not all checked" if report.unchecked else "no alarm"
