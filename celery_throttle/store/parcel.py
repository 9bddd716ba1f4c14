"""Pack a message into bytes for the store, and unpack it again.

The head of a message (all but its body) is nearly the same in all messages, and longer than most bodies. The head is
deflated with the common text as the dictionary (RFC 1951, zlib's `deflateSetDictionary`). That takes some microseconds,
and the head then takes a quarter of the room.
"""

from __future__ import annotations

import zlib
from typing import Any, cast

from kombu.message import Message
from kombu.utils import json

# The other fields of a broker are about one delivery, and mean nothing for the next one.
_KEPT_DELIVERY_INFO = ("exchange", "routing_key", "redelivered")
#: The common text of the heads, the likeliest part last. A head that was packed with another text is unreadable, so a
#: change here needs a higher VERSION in shared/begin.lua.
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
#: A window and a memory just large enough: creating larger ones takes many times as long.
_LEVEL, _WINDOW, _MEMORY = 3, -12, 3
#: The most bytes of an inflated head. No broker delivers headers of this length, and a few kB can inflate to gigabytes.
_LONGEST_HEAD = 16 * 1024 * 1024


def pack(message: Message) -> bytes:
    """Return the parts of the message that a task can see: headers, properties, routing and the unchanged body.

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
    """Return a message without its body.

    Raises:
        ValueError: the bytes are not from `pack`.
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
    """Return the message, not tied to a broker connection.

    Args:
        parcel: the bytes of `pack`.
        accept: content types that may be decoded.
        redelivered: whether a lost worker had the message before.
    """
    length, _, rest = parcel.partition(b"\n")
    about = head_of(rest[: int(length)])
    body = rest[int(length) :]
    delivery_info = about["delivery_info"]
    delivery_info["redelivered"] = redelivered or delivery_info.get("redelivered", False)
    # The body was decompressed when it was first received; with the header, kombu would decompress the body again.
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
