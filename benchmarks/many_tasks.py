"""An app of many tasks, plain ones or with limits; three environment variables configure it."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery

__all__ = ["app"]

app: Any = Celery("many", broker=os.environ.get("BENCHMARK_URL", "redis://localhost"), set_as_current=False)

options: dict[str, Any] = {}
if os.environ["BENCHMARK_KIND"] == "limit":
    from celery_throttle import Throttled

    options = {"base": Throttled, "limit": 2}


def work(a: object, b: object = 1) -> None:
    """Do nothing."""


for index in range(int(os.environ["BENCHMARK_NUMBER"])):
    app.task(work, name=f"many.{index}", shared=False, **options)
