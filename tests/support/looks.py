"""How often a worker looks for work on its own, how long it waits for the store, and how long a message is fresh.

The only place of the tests with the names of these constants.
"""

from __future__ import annotations

import os

from celery_throttle.worker import admission, wiring
from celery_throttle.worker.gate import LOOK_EVERY
from celery_throttle.worker.store_side import link, patience

__all__ = ["FRESH", "LOOK_EVERY", "PATIENCE", "VARIABLE", "look_every"]

VARIABLE, PATIENCE, FRESH = "LOOK_EVERY", "PATIENCE", "FRESH"


def look_every(seconds: float | None = None) -> None:
    """Have the workers of this process look so often; by default as in the environment, if it is there."""
    said = seconds or os.environ.get(VARIABLE)
    if said is not None:
        assert "LOOK_EVERY" in vars(wiring)
        vars(wiring)["LOOK_EVERY"] = float(said)
    if PATIENCE in os.environ:
        for module in (link, patience):
            assert "TIMEOUT" in vars(module)
            vars(module)["TIMEOUT"] = float(os.environ[PATIENCE])
    if FRESH in os.environ:
        assert "_FRESH" in vars(admission)
        vars(admission)["_FRESH"] = float(os.environ[FRESH])
