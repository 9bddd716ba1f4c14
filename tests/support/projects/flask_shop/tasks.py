"""Tasks that know of no app until they run."""

from __future__ import annotations

import time
from typing import Any

from celery import shared_task
from flask import current_app

from celery_throttle import Throttled
from tests.support.journal import Journal


@shared_task(base=Throttled, limit=2, bind=True, ignore_result=False)
def greet(self: Any, name: str) -> str:
    with Journal.from_environment().run(self.request, name):
        time.sleep(0.2)
        return f"{current_app.config['GREETING']} {name}"
