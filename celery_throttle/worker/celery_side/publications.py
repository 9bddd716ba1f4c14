"""Name a publication by the delivery tag of its message, for publishers that put no name into the message."""

from __future__ import annotations

import os
from typing import Any

__all__ = ["name_by_broker"]

#: Transports of kombu that keep the delivery tag with the message, so that each delivery of it has the same one.
_KEEP_TAGS = ("redis", "memory", "filesystem")
#: Characters of a name that are used.
_LENGTH = 8


def name_by_broker(message: Any, *, redelivered: bool) -> str:
    """Return a name for a message that has none; "" if it may be a copy of any other message with its task id.

    A broker that counts deliveries (AMQP) marks each message that it has delivered before.
    """
    tag = message.delivery_tag
    if isinstance(tag, int):
        return "" if redelivered else "~" + os.urandom(_LENGTH // 2).hex()
    transport = getattr(message.channel, "connection", None)
    if isinstance(tag, str) and getattr(transport, "driver_type", None) in _KEEP_TAGS:
        return tag.replace("-", "")[:_LENGTH]
    return ""
