"""The runner's orders for its processes, in their environment and their directory."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["CONFIGURATION", "LIMIT", "LOG", "OWN_PROCESS", "REPORTS", "SLOTS", "limit"]

LIMIT = "SUITE_LIMIT"  # of all tasks together; empty: nothing is throttled
OWN_PROCESS = "SUITE_OWN_PROCESS"  # whether the worker is a process; empty: it runs in that of the tests
SLOTS = "SUITE_SLOTS"  # of the worker

#: In the directory of a run: the configuration of a worker process, the library's log, and the outcome of each test.
CONFIGURATION = Path("worker.json")
LOG = Path("throttled.log")
REPORTS = Path("reports.jsonl")


def limit() -> int | None:
    """How many tasks may run at once; None if they are not throttled."""
    given = os.environ[LIMIT]
    return int(given) if given else None
