"""A message as bytes, so that the store can keep it while nobody else does, and back again."""

from __future__ import annotations

from typing import Any, cast

from kombu.message import Message
from kombu.utils import json

__all__ = ["pack", "unpack"]

# What a broker adds for its own use on one delivery means nothing on the next one.
_KEPT_DELIVERY_INFO = ("exchange", "routing_key", "redelivered")


def pack(message: Message) -> bytes:
    """Return everything of the message that a task can see: headers, properties, routing and the untouched body.

    Raises:
        TypeError: a header or property cannot be written as JSON.
    """
    body: Any = message.body
    text = isinstance(body, str)
    info = message.delivery_info or {}
    about = {
        "headers": message.headers,
        "properties": message.properties,
        "delivery_info": {key: info[key] for key in _KEPT_DELIVERY_INFO if key in info},
        "content_type": message.content_type,
        "content_encoding": message.content_encoding,
        "text": text,
    }
    head = json.dumps(about, separators=(",", ":")).encode()
    return b"%d\n%b%b" % (len(head), head, body.encode() if text else bytes(body))


def unpack(parcel: bytes, accept: set[str] | None, *, redelivered: bool) -> Message:
    """Return the message again, not tied to any broker connection.

    Args:
        parcel: what `pack` made.
        accept: content types that may be decoded.
        redelivered: whether a worker had the message before and was lost.
    """
    length, _, rest = parcel.partition(b"\n")
    about: dict[str, Any] = json.loads(rest[: int(length)].decode())
    body = rest[int(length) :]
    delivery_info = about["delivery_info"]
    delivery_info["redelivered"] = redelivered or delivery_info.get("redelivered", False)
    # The body was decompressed when it was first received; with the header in place it would be again.
    compression = about["headers"].pop("compression", None)
    message = Message(
        body=cast("str", body.decode() if about["text"] else body),
        channel=None,
        delivery_tag=None,
        content_type=about["content_type"],
        content_encoding=about["content_encoding"],
        delivery_info=delivery_info,
        properties=about["properties"],
        headers=about["headers"],
        accept=accept,
    )
    if compression is not None:
        message.headers["compression"] = compression
    return message
