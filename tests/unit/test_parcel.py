"""A message as bytes and back: for every message of Celery, the task sees the same."""

from __future__ import annotations

import datetime as dt
import json
import tracemalloc
import uuid
import zlib
from collections.abc import Iterator
from typing import Any, cast

import pytest
from celery import Celery
from kombu.exceptions import ContentDisallowed
from kombu.message import Message
from kombu.serialization import prepare_accept_content
from redis import Redis

from celery_throttle.embedded import EmbeddedServer
from celery_throttle.errors import UnusableMessage
from celery_throttle.store import parcel as parcel_module
from celery_throttle.store.parcel import head_of, pack, unpack

ACCEPTED = ["json", "pickle"]
ARGS: tuple[Any, ...] = ("é", 1, [None, 2.5])
KWARGS = {"text": "x" * 2000}


class Broker:
    """An app on a real broker: send a task, get its message as a worker would."""

    def __init__(self, app: Celery) -> None:
        self.app = app

    def message(self, args: tuple[Any, ...] = ARGS, **options: Any) -> Message:
        self.app.send_task("app.work", args, KWARGS, task_id="t", **options)
        with self.app.connection_for_read() as connection:
            queue = self.app.amqp.queues["celery"](connection.default_channel)
            message = cast("Message", queue.get(no_ack=True, accept=ACCEPTED))
            assert message is not None
            return message


@pytest.fixture
def broker(redis: Redis, server: EmbeddedServer) -> Iterator[Broker]:
    assert redis.dbsize() == 0
    with Celery("app", broker=server.url, set_as_current=False) as app:
        yield Broker(app)


def again(message: Message, *, redelivered: bool = False) -> Message:
    """The message, parked and resumed."""
    return unpack(pack(message), prepare_accept_content(ACCEPTED), redelivered=redelivered)


def assert_same(back: Message, message: Message) -> None:
    assert type(back.body) is type(message.body)
    for name in ("body", "headers", "properties", "content_type", "content_encoding", "payload"):
        assert getattr(back, name) == getattr(message, name), name


@pytest.mark.parametrize("protocol", [1, 2])
@pytest.mark.parametrize("serializer", ["json", "pickle"])
@pytest.mark.parametrize("compression", [None, "zlib", "bzip2"])
def test_a_task_sees_the_same(broker: Broker, protocol: int, serializer: str, compression: str | None) -> None:
    """Every protocol, serializer and compression, also when it is parked twice."""
    broker.app.conf.task_protocol = protocol
    message = broker.message(serializer=serializer, compression=compression)
    assert ("compression" in message.headers) == (compression is not None)
    back = again(message)
    assert_same(back, message)
    assert_same(again(back), message)
    body = back.payload
    args, kwargs = (body["args"], body["kwargs"]) if protocol == 1 else body[:2]
    assert (tuple(args), kwargs) == (ARGS, KWARGS)


def test_values_of_the_sender_are_kept(broker: Broker) -> None:
    """Priority, ETA, expiry, stamps, links, headers of the user, and values that JSON lacks and kombu can send."""
    eta = dt.datetime(2100, 1, 1, tzinfo=dt.timezone.utc)
    headers = {"trace": "ü", "stamps": {"tenant": [1]}, "stamped_headers": ["tenant"]}
    link = broker.app.signature("app.next", args=(1,))
    message = broker.message(priority=7, eta=eta, expires=eta, headers=headers, link=link, reply_to="me")
    extra: Any = {"when": eta, "id": uuid.uuid4(), "raw": b"\xff"}
    message.headers.update(extra)
    back = again(message)
    assert_same(back, message)
    kept: dict[str, Any] = {**back.headers, **back.properties}
    assert (kept["priority"], kept["eta"], kept["stamps"]) == (7, eta.isoformat(), {"tenant": [1]})
    assert {name: kept[name] for name in extra} == extra


def test_unsendable_header_is_refused(broker: Broker) -> None:
    """Loudly, and before anything is parked."""
    message = broker.message()
    message.headers.update(cast("Any", {"strange": object()}))
    with pytest.raises(UnusableMessage, match="cannot be parked: Object of type object"):
        pack(message)


@pytest.mark.parametrize(
    "body",
    ["tëxt", "", b"\x00\xff\n12\n", b"", memoryview(b"\x00\xff")],
    ids=lambda body: f"{type(body).__name__} {len(body)}",
)
def test_any_body_is_kept(body: Any) -> None:
    """Text stays text and bytes stay bytes, with any content, and with nothing beside it."""
    back = again(Message(body=body))
    assert (back.body, back.headers, back.properties) == (body, {}, {})
    assert isinstance(back.body, str) == isinstance(body, str)


@pytest.mark.parametrize(
    ("before", "by_us", "expected"),
    [(False, False, False), (True, False, True), (False, True, True), (True, True, True)],
)
def test_routing_is_kept_and_the_rest_of_a_delivery_is_not(before: bool, by_us: bool, expected: bool) -> None:
    """The consumer's tag and the like belong to a connection that may be long gone.

    The task sees that it was delivered before: by the broker, or by the store after its worker was lost.
    """
    info = {"exchange": "e", "routing_key": "r", "consumer_tag": "c", "delivery_tag": "d", "redelivered": before}
    back = again(Message(body="x", delivery_tag="d", delivery_info=info), redelivered=by_us)
    assert back.delivery_info == {"exchange": "e", "routing_key": "r", "redelivered": expected}
    assert (back.delivery_tag, back.channel) == (None, None)


def test_content_that_the_worker_does_not_accept_is_not_decoded(broker: Broker) -> None:
    """A pickle is no more welcome from the store than from the broker."""
    parcel = pack(broker.message(serializer="pickle"))
    back = unpack(parcel, prepare_accept_content(["json"]), redelivered=False)
    with pytest.raises(ContentDisallowed):
        back.decode()


def test_common_fields_of_messages_take_little_room(broker: Broker) -> None:
    """The rest beside the body shrinks to names and ids."""
    message = broker.message()
    head = len(pack(message)) - len(message.body or "")
    assert head < 0.35 * len(json.dumps({"headers": message.headers, "properties": message.properties}))


def packed_head(plain: bytes) -> bytes:
    """A head as it is packed, of any content."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, -12, 9, zlib.Z_DEFAULT_STRATEGY, parcel_module._COMMON)
    return deflate.compress(plain) + deflate.flush()


def test_head_that_inflates_without_end_is_not_inflated() -> None:
    head = packed_head(b" " * 200_000_000 + b"{}")
    assert len(head) < 400_000
    tracemalloc.start()
    try:
        for read in (lambda: head_of(head), lambda: unpack(b"%d\n%b" % (len(head), head), None, redelivered=False)):
            with pytest.raises(ValueError, match="cut off, or longer than any that is parked"):
                read()
        assert tracemalloc.get_traced_memory()[1] < 60_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("plain", [b"[" * 100_000, b'{"a":' * 100_000])
def test_head_that_is_nested_without_end_cannot_be_read(plain: bytes) -> None:
    with pytest.raises(ValueError, match="not readable"):
        head_of(packed_head(plain))


def test_longest_head_is_kept_and_a_longer_one_refused() -> None:
    longest = Message(body="x", headers={"note": "n" * (parcel_module._LONGEST_HEAD - 1000)})
    assert again(longest).headers == longest.headers
    longest.headers["more"] = "m" * 1000
    with pytest.raises(ValueError, match="can be parked"):
        pack(longest)


@pytest.mark.parametrize("parcel", [b"", b"12\n", b'5\n{"a":1}', b"3\nabcdef"])
def test_foreign_parcel_cannot_be_read(parcel: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        unpack(parcel, None, redelivered=False)
