"""Tasks of a worker that reports errors to Sentry; the journal gets the events."""

from __future__ import annotations

from typing import Any

import sentry_sdk
from celery.signals import celeryd_init

from celery_throttle import RateLimited, Throttled
from tests.support.apps import new_app, run_held
from tests.support.journal import Journal

app = new_app("watched")


@celeryd_init.connect
def _begin(**_: Any) -> None:
    sentry_sdk.init("http://key@127.0.0.1:1/1", before_send=_note)


def _note(event: Any, _: object) -> None:
    """Write an event to the journal, and send it nowhere."""
    about = {name: event.get(name) for name in ("transaction", "transaction_info", "fingerprint", "tags", "extra")}
    raised = [each["type"] for each in event.get("exception", {}).get("values", ())]
    Journal.note("reported", raised=raised, **about)


@app.task(shared=False, bind=True, base=Throttled, singleton=True, on_conflict="raise")
def hold(self: Any, label: str) -> str:
    return run_held(self, label)


@app.task(shared=False, base=Throttled, limit=1)
def slowed() -> None:
    raise RateLimited(1, max_rounds=0)


@app.task(shared=False)
def fails() -> None:
    raise ValueError
