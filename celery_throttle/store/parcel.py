"""A message as bytes, so that the store can keep it while nobody else does, and back again.

What is not its body is nearly the same in all messages, and longer than most bodies: deflated with what they have in
common as the dictionary (RFC 1951, zlib's `deflateSetDictionary`) it takes a quarter of the room, in some microseconds.
"""

from __future__ import annotations

import zlib
from typing import Any, cast

from kombu.message import Message
from kombu.utils import json

__all__ = ["head_of", "pack", "unpack"]

# What a broker adds for its own use on one delivery means nothing on the next one.
_KEPT_DELIVERY_INFO = ("exchange", "routing_key", "redelivered")
#: What the heads have in common, the likeliest last. Nobody can read what was packed with another one: with a change,
#: VERSION of shared/begin.lua goes up.
_COMMON = (
    b'"content_type":"application/x-python-serialize","content_encoding":"binary","text":false,"stamps":{},"throttle":{'
    b'"keys":{"":""},"identity":"","claim":"0","on_conflict":"return_existing","first":""}}'
    b'{"headers":{"lang":"py","task":".tasks.","id":"","shadow":null,"eta":null,"expires":null,"group":null,'
    b'"group_index":null,"retries":0,"timelimit":[null,null],"root_id":"","parent_id":null,"argsrepr":"()",'
    b'"kwargsrepr":"{}","origin":"gen@","ignore_result":false,"replaced_task_nesting":0,"stamped_headers":null,'
    b'"stamps":{}},"properties":{"correlation_id":"","reply_to":"","delivery_mode":2,"delivery_info":{"exchange":"",'
    b'"routing_key":"celery"},"priority":0,"body_encoding":"base64","delivery_tag":""},"delivery_info":{"exchange":"",'
    b'"routing_key":"celery"},"content_type":"application/json","content_encoding":"utf-8","text":true}'
)
#: A window and a memory just large enough: larger ones take many times as long to make.
_LEVEL, _WINDOW, _MEMORY = 3, -12, 3
#: Bytes of a head, inflated. No broker delivers headers of this length, and a few kB can inflate to gigabytes.
_LONGEST_HEAD = 16 * 1024 * 1024


def pack(message: Message) -> bytes:
    """Return everything of the message that a task can see: headers, properties, routing and the untouched body.

    Raises:
        TypeError: a header or property cannot be written as JSON.
        ValueError: headers and properties are longer than 16 MiB.
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
    plain = json.dumps(about, separators=(",", ":")).encode()
    if len(plain) > _LONGEST_HEAD:
        raise ValueError(f"headers and properties have {len(plain)} bytes as JSON, {_LONGEST_HEAD} can be parked")
    deflate = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW, _MEMORY, zlib.Z_DEFAULT_STRATEGY, _COMMON)
    head = deflate.compress(plain) + deflate.flush()
    return b"%d\n%b%b" % (len(head), head, body.encode() if text else bytes(body))


def head_of(packed: bytes) -> dict[str, Any]:
    """Return all of a message but its body.

    Raises:
        ValueError: it is nothing that `pack` has made.
    """
    inflate = zlib.decompressobj(_WINDOW, zdict=_COMMON)
    try:
        plain = inflate.decompress(packed, _LONGEST_HEAD)
        if not inflate.eof:
            raise ValueError("not readable: cut off, or longer than any that is parked")
        return cast("dict[str, Any]", json.loads(plain))
    except (zlib.error, RecursionError) as error:
        raise ValueError(f"not readable: {error}") from error


def unpack(parcel: bytes, accept: set[str] | None, *, redelivered: bool) -> Message:
    """Return the message again, not tied to any broker connection.

    Args:
        parcel: what `pack` made.
        accept: content types that may be decoded.
        redelivered: whether a worker had the message before and was lost.
    """
    length, _, rest = parcel.partition(b"\n")
    about = head_of(rest[: int(length)])
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
