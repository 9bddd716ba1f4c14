"""The app that most worker tests run: ``celery -A tests.support.apps.basic worker`` with the variables read below."""

from __future__ import annotations

from celery_throttle import Throttled
from tests.support.apps import new_app, run_for, task_maker

# Not shared: each import of this module is an app of its own, in the same process too.
app = new_app("basic")


make_timed = task_maker(app, run_for)

# Not throttled.
plain = make_timed("plain")
work = make_timed("work", base=Throttled, limit=2)
one = make_timed("one", base=Throttled, limit=1)
