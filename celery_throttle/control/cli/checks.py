"""``report`` and ``doctor``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click
from celery.bin.base import CeleryOption

from celery_throttle.control.checks import diagnose
from celery_throttle.control.checks import report as reported
from celery_throttle.control.cli import params
from celery_throttle.control.cli.session import FOUND, PARTLY, command, typed
from celery_throttle.core.wording import counted
from celery_throttle.settings import settings_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta

    from celery_throttle.control.cli.session import Session
    from celery_throttle.control.server import StoreFacts
    from celery_throttle.store.workers import Service

#: The most defects that are printed.
_SHOWN = 100


@command("report")
@click.option(
    "--patience", type=params.duration, default="10m", show_default=True, metavar="10m",
    help="A longer wait, for a reason that an operator can end, is an alarm.",
)  # fmt: skip
def report(session: Session, patience: timedelta) -> int:
    """Print one verdict: the problems, their reasons and the next steps.

    Ends with 1 if there is an alarm (!), with 4 if there is none but not
    everything was checked (?); remarks (-) need no action.
    """
    verdict = reported(session.app, session.commands(), patience)
    session.output.show(verdict, verdict)
    return FOUND if verdict.alarms else PARTLY if verdict.unchecked else 0


@command("doctor")
@click.option("--repair", is_flag=True, cls=CeleryOption, help="Drop or set aside unreadable fields of the store.")
@params.yes
def doctor(session: Session, repair: bool, yes: bool) -> int:
    """Check the set-up: the store, the options of tasks, the declared limits, and the records.

    report checks what runs and waits. Ends with 1 if something needs attention.
    --repair without --yes only lists the fields that it would change.
    """
    if repair:
        return _repair(session, yes=yes)
    if yes:
        raise click.UsageError(f"--yes carries out --repair: write `{typed('doctor', '--repair', '--yes')}`")
    diagnosis = diagnose(session.app, session.commands())
    if session.output.as_json:
        session.output.json(diagnosis)
        return FOUND if diagnosis.findings else 0
    for store in diagnosis.stores:
        for line in _facts(store):
            session.output.line(line)
    ours = settings_of(session.app).broker_code
    for service in diagnosis.services:
        session.output.line(_service(service, ours))
    session.output.line()
    for finding in diagnosis.findings:
        session.output.line(replace(finding, alarm=True))  # each needs attention here
    for each in diagnosis.unchecked:
        session.output.line(f"? {each}")
    if not diagnosis.findings:
        partly = " in the parts that were checked" if diagnosis.unchecked else ""
        session.output.line(f"Nothing needs attention{partly}.")
    return FOUND if diagnosis.findings else 0


def _repair(session: Session, *, yes: bool) -> int:
    found = session.throttle.repair(dry_run=not yes)
    if session.output.as_json:
        session.output.json({"done": yes, "wrong": found})
        return FOUND if found and not yes else 0
    for each in found[:_SHOWN]:
        session.output.line(f"! {each}")
    if not found:
        session.output.line("Everything in the store can be read.")
        return 0
    fields = counted(len(found), "field")
    if yes:
        session.output.line(f"{fields} repaired; ThrottleControl(app).set_aside() has the former values for a week.")
        return 0
    session.output.line(f"{fields} would be dropped, set aside or put right; --yes does it.")
    return FOUND


def _facts(store: StoreFacts) -> Iterator[str]:
    yield f"store             {store.url}" + (f", group {store.group}" if store.group else "")
    yield f"server            {store.server or 'not known'}"
    yield f"role              {store.role or 'not known'}"
    yield f"eviction          {store.eviction or 'not known'}"
    yield f"persistence       {store.persistence or 'not known'}"
    rights = "not known" if store.missing_rights is None else ", ".join(store.missing_rights)
    yield f"missing rights    {rights or 'none'}"
    yield f"latency           {store.latency * 1000:.1f} ms"
    yield f"clock difference  {store.clock_difference:+.3f} s"


def _service(service: Service, ours: str) -> str:
    own = " (this app's)" if service.code == ours else ""
    return f"service           {service.broker}{own}: {counted(service.workers, 'worker')}"
