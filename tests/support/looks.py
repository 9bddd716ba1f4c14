"""How often a worker looks for work on its own; the only place of the tests that knows where that is written."""

from __future__ import annotations

import os

from celery_throttle.worker import wiring
from celery_throttle.worker.gate import LOOK_EVERY

__all__ = ["LOOK_EVERY", "VARIABLE", "look_every"]

VARIABLE = "LOOK_EVERY"


def look_every(seconds: float | None = None) -> None:
    """Have the workers of this process look so often; by default as the environment says, if it does."""
    said = seconds or os.environ.get(VARIABLE)
    if said is not None:
        assert "LOOK_EVERY" in vars(wiring)
        vars(wiring)["LOOK_EVERY"] = float(said)
