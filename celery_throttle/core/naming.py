"""What a worker is called in the store."""

from __future__ import annotations

import os
import re
import uuid

__all__ = ["worker_name"]

_NODE_MOST = 48


def worker_name(node: str) -> str:
    """Return a name that no other worker ever had, and that tells an operator where it is.

    ``celery@web1/4242/1f3a9c2e``: node, process id, and something that tells it from the one that had both before.
    """
    # What it holds is "name:number" in the store, and the last part alone is what it is known by there.
    return f"{re.sub(r'[^A-Za-z0-9@._-]', '_', node)[:_NODE_MOST]}/{os.getpid()}/{uuid.uuid4().hex[:8]}"
