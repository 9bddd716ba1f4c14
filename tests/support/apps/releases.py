"""Tasks of an app in several releases: ``task_annotations`` change options, ``RELEASE`` other parts of the code."""

from __future__ import annotations

import os
from typing import Any

from celery_throttle import Limit, Throttled
from tests.support.apps import new_app, run_for, run_held, task_maker

app = new_app("releases")

_release = os.environ.get("RELEASE")
_by_label = (lambda label: label[0]) if _release == "other" else (lambda label: label[:2])


def run(self: Any, label: str, amount: int = 0) -> str:  # noqa: ARG001 - an argument that an identity may leave out
    return run_for(self, label)


def run_again(self: Any, label: str, amount: int = 0) -> str:
    """Run twice: it retries once."""
    if not self.request.retries:
        raise self.retry(countdown=0)
    return run(self, label, amount)


def throttled(**options: Any) -> dict[str, Any]:
    if _release == "without":
        return {}
    return {"base": Throttled} | ({} if _release == "plain" else options)


make_task, make_again, make_held = (task_maker(app, body) for body in (run, run_again, run_held))
pay = make_task("paid" if _release == "renamed" else "pay", **throttled(singleton=True))
# With a limit that a release may drop.
pay_one = make_task("pay_one", **throttled(singleton=True, limit=1))
pay_again = make_again("pay_again", **throttled(singleton=True))
hold = make_held("hold", **throttled(singleton=True))
keyed = make_task("keyed", **throttled(limit=Limit("keyed", 3, key=_by_label)))
