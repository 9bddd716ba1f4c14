"""Names that workers, and the queues of permits outside of tasks, have in the store."""

from __future__ import annotations

import os
import re
import uuid

__all__ = ["is_outside", "outside_queue", "worker_name"]

_NODE_MOST = 48
_OUTSIDE = "~"


def worker_name(node: str) -> str:
    """Return a name that no other worker ever had, and that shows an operator where the worker runs.

    ``celery@web1/4242/1f3a9c2e``: node, process id, and a random part, because node and process id can occur again.
    """
    # A holder is "name:number" in the store, and the store uses the last part of the name alone.
    return f"{re.sub(r'[^A-Za-z0-9@._-]', '_', node)[:_NODE_MOST]}/{os.getpid()}/{uuid.uuid4().hex[:8]}"


def outside_queue(worker: str) -> str:
    """Return the queue for permits outside of tasks; the process that asks for them is the only worker of the queue."""
    return _OUTSIDE + worker


def is_outside(queue: str) -> bool:
    """Return whether a queue is one for permits outside of tasks."""
    return queue.startswith(_OUTSIDE)
