"""Tasks that know of no app until they run."""

from __future__ import annotations

from typing import Any

from celery import shared_task
from flask import current_app

from celery_throttle import Throttled
from tests.support.apps import run_for


@shared_task(base=Throttled, limit=2, bind=True, ignore_result=False)
def greet(self: Any, name: str) -> str:
    return f"{current_app.config['GREETING']} {run_for(self, name, 0.2)}"
