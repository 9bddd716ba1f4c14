"""Name each publication of a task: a copy of its message has the same name, another call with its task id has not."""

from __future__ import annotations

import os
from base64 import urlsafe_b64encode
from typing import Any

from celery_throttle.tasks.publish import HEADER, is_again

__all__ = ["with_publication"]

#: Random bytes of a name. Only names of one task id are compared.
_BYTES = 6


def with_publication(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a call with the name of its publication in our header; a retry keeps the name."""
    headers = options.get("headers") or {}
    header = headers.get(HEADER)
    if not isinstance(header, dict):
        header = {}
    if "publication" in header and is_again(options):
        return options
    name = urlsafe_b64encode(os.urandom(_BYTES)).decode()
    return options | {"headers": {**headers, HEADER: {**header, "publication": name}}}
