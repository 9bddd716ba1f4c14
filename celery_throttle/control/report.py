"""Report one verdict about now (`report`), or about the set-up (`diagnose`), from the same checks.

The same state gives the same verdict, in the same order: rules do not weigh each other.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from celery_throttle.control.checks import CHECKS, Checked
from celery_throttle.control.findings import Commands, Finding
from celery_throttle.core.wording import at, counted, span
from celery_throttle.errors import StoreUnavailable

if TYPE_CHECKING:
    from celery_throttle.control.server import StoreFacts
    from celery_throttle.store.workers import Service

__all__ = ["Diagnosis", "Report", "diagnose", "report"]

#: Seconds after which the first values of a report may be outdated.
_STALE = 15.0


@dataclass(frozen=True)
class Report:
    """The state of the store, the limits and the lines, in one verdict.

    Attributes:
        at: the store's time at the beginning.
        took: seconds from the first to the last read.
        alarms: the findings that need an operator, the worst first.
        remarks: the other findings.
        unchecked: a sentence for each part that could not be checked.
    """

    at: datetime
    took: float
    alarms: tuple[Finding, ...]
    remarks: tuple[Finding, ...]
    unchecked: tuple[str, ...]

    @property
    def summary(self) -> str:
        """The verdict in a line: "nothing needs attention" only without findings and with everything checked."""
        if not (self.alarms or self.remarks or self.unchecked):
            return "nothing needs attention"
        none = "no alarm in what was looked at" if self.unchecked else "no alarm"
        alarms = counted(len(self.alarms), "alarm") if self.alarms else none
        remarks = f", {counted(len(self.remarks), 'remark')}" if self.remarks else ""
        return f"{alarms}{remarks}" + (", not everything was looked at" if self.unchecked else "")

    def __str__(self) -> str:
        lines = [f"{at(self.at)}: {self.summary}."]
        return "\n".join([*lines, *map(str, self.alarms + self.remarks), *(f"? {each}" for each in self.unchecked)])


def report(app: Any, commands: Commands, patience: timedelta) -> Report:
    """Check the store, the limits and the lines, and return the findings.

    Raises:
        ConfigurationError: a setting cannot work.
        StoreUnavailable: the store does not answer, or denies access.
    """
    checked, began = Checked(app, commands, patience), time.monotonic()
    found = checked.findings(each for each in CHECKS if each.now)
    took = time.monotonic() - began
    if took > _STALE:
        checked.unchecked.append(f"Whether all of this is so still: reading it took {span(took)}.")
    alarms, others = (tuple(each for each in found if each.alarm is alarm) for alarm in (True, False))
    return Report(checked.at, round(took, 3), alarms, others, tuple(dict.fromkeys(checked.unchecked)))


@dataclass(frozen=True)
class Diagnosis:
    """The result of the checks.

    Attributes:
        stores: the checked servers: one for all groups of limits, in a cluster one for each group.
        findings: the problems, the worst first.
        unchecked: a sentence for each part that could not be checked.
        services: the brokers whose workers use the store, with the app's own.
    """

    stores: tuple[StoreFacts, ...]
    findings: tuple[Finding, ...]
    unchecked: tuple[str, ...]
    services: tuple[Service, ...] = ()


def diagnose(app: Any, commands: Commands | None = None) -> Diagnosis:
    """Check the store, the options of the app's tasks, the declarations and the records.

    Raises:
        ConfigurationError: a setting cannot work.
        StoreUnavailable: the store does not answer, or denies access.
    """
    checked = Checked(app, commands or Commands(), timedelta())
    found = checked.findings(each for each in CHECKS if each.set_up)
    services: dict[str, Service] = {}
    for look in checked.groups:
        with suppress(StoreUnavailable):  # a finding, since the store refuses the records too
            services |= {each.code: each for each in look.reader.services()}
    stores = tuple(facts for facts, _ in checked.servers)
    return Diagnosis(stores, found, tuple(dict.fromkeys(checked.unchecked)), tuple(services.values()))
