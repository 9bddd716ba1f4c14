"""What workers, and the queues of permits outside of tasks, are called in the store."""

from __future__ import annotations

import os
import re
import uuid

__all__ = ["is_outside", "outside_queue", "worker_name"]

_NODE_MOST = 48
_OUTSIDE = "~"


def worker_name(node: str) -> str:
    """Return a name that no other worker ever had, and that tells an operator where it is.

    ``celery@web1/4242/1f3a9c2e``: node, process id, and something that tells it from the one that had both before.
    """
    # What it holds is "name:number" in the store, and the last part alone is what it is known by there.
    return f"{re.sub(r'[^A-Za-z0-9@._-]', '_', node)[:_NODE_MOST]}/{os.getpid()}/{uuid.uuid4().hex[:8]}"


def outside_queue(worker: str) -> str:
    """Return the queue of permits outside of tasks: the process that waits for one is its only worker."""
    return _OUTSIDE + worker


def is_outside(queue: str) -> bool:
    """Whether it is the queue of such permits."""
    return queue.startswith(_OUTSIDE)
