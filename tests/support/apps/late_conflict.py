"""A task of `early` that is refused when it is declared, because its limit is another one there."""

from __future__ import annotations

from celery_throttle import Limit, Throttled
from tests.support.apps import run_held, task_maker
from tests.support.apps.early import app

differs = task_maker(app, run_held)("differs", base=Throttled, limit=Limit("both", 3))
