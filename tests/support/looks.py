"""How often a worker looks for work on its own, and how long it waits for the store's word.

The only place of the tests that knows where that is written.
"""

from __future__ import annotations

import os

from celery_throttle.worker import link, wiring
from celery_throttle.worker.gate import LOOK_EVERY

__all__ = ["LOOK_EVERY", "PATIENCE", "VARIABLE", "look_every"]

VARIABLE, PATIENCE = "LOOK_EVERY", "PATIENCE"


def look_every(seconds: float | None = None) -> None:
    """Have the workers of this process look so often; by default as the environment says, if it does."""
    said = seconds or os.environ.get(VARIABLE)
    if said is not None:
        assert "LOOK_EVERY" in vars(wiring)
        vars(wiring)["LOOK_EVERY"] = float(said)
    if PATIENCE in os.environ:
        assert "TIMEOUT" in vars(link)
        vars(link)["TIMEOUT"] = float(os.environ[PATIENCE])
