"""Pack a message into bytes for the store, unpack it again, and read its head alone: a body may be a pickle.

The head of a message (all but its body) is nearly the same in all messages, and longer than most bodies. The head is
deflated with the common text as the dictionary (RFC 1951, zlib's `deflateSetDictionary`). That takes some microseconds,
and the head then takes a quarter of the room.
"""

from __future__ import annotations

import zlib
from datetime import datetime, timezone
from typing import Any, NamedTuple, cast

from kombu.message import Message
from kombu.utils import json

from celery_throttle.errors import UnusableMessage

__all__ = ["head_of", "pack", "read_head", "task_name_in", "unpack"]

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
#: The most characters of arguments. Celery's own texts have up to 1024, those of other senders any number.
_LONGEST_TEXT = 1000


def pack(message: Message) -> bytes:
    """Return the parts of the message that a task can see: headers, properties, routing and the unchanged body.

    Raises:
        UnusableMessage: a header or property cannot be written as JSON, or both are longer than 16 MiB.
    """
    try:
        return _packed(message)
    except (TypeError, ValueError, RecursionError) as error:
        raise UnusableMessage(f"its message cannot be parked: {error}") from error


def _packed(message: Message) -> bytes:
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


class Head(NamedTuple):
    """The headers of a message.

    Attributes:
        task_name: the name of the task, None if it is not known.
        args: the positional arguments as text, cut; None if there is no such text.
        kwargs: the keyword arguments, in the same form.
        eta: the time before which the task must not start, None if the task has none.
    """

    task_name: str | None = None
    args: str | None = None
    kwargs: str | None = None
    eta: datetime | None = None


def read_head(raw: bytes) -> Head:
    """Return the headers of a message that are readable."""
    headers = _headers(raw)
    name, args, kwargs = (_text(headers.get(each)) for each in ("task", "argsrepr", "kwargsrepr"))
    return Head(name, _cut(args), _cut(kwargs), _moment(headers.get("eta")))


def task_name_in(raw: bytes) -> str | None:
    """Return only the task's name, for lists of many tasks."""
    return _text(_headers(raw).get("task"))


def _headers(raw: bytes) -> dict[str, Any]:
    try:
        found = head_of(raw)["headers"]
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _cut(text: str | None) -> str | None:
    return text if text is None or len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 1]}\N{HORIZONTAL ELLIPSIS}"


def _moment(value: object) -> datetime | None:
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value.replace("Z", "+00:00"))
        # Celery reads a time without a zone as UTC.
        return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).astimezone(timezone.utc)
    except (ValueError, OverflowError):
        return None
