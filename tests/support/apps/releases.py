"""Tasks of an app in several releases: ``task_annotations`` change their options, ``RELEASE`` their names."""

from __future__ import annotations

import os
from typing import Any

from celery_throttle import Limit, Throttled
from tests.support.apps import new_app, run_for, task_maker

app = new_app("releases")


_release = os.environ.get("RELEASE")
_by_label = (lambda label: label[0]) if _release == "other" else (lambda label: label[:2])


def run(self: Any, label: str, amount: int = 0) -> str:  # noqa: ARG001 - an argument that an identity may leave out
    return run_for(self, label)


make_task = task_maker(app, run)
# With a limit that a release may drop, and without one.
pay = make_task("paid" if _release == "renamed" else "pay", base=Throttled, singleton=True)
pay_one = make_task("pay_one", base=Throttled, singleton=True, limit=1)
keyed = make_task("keyed", base=Throttled, limit=Limit("keyed", 3, key=_by_label))
