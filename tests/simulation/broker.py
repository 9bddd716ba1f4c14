"""A broker in memory: queues, deliveries that are not acknowledged, connections that end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from kombu.message import Message

__all__ = ["Broker", "Channel", "Delivery", "Letter", "tag_of"]


def tag_of(queue: str) -> str:
    """Return the consumer tag of a queue."""
    return f"tag-{queue}"


@dataclass
class Letter:
    """A published message."""

    headers: dict[str, Any]
    properties: dict[str, Any]
    body: str
    queue: str
    exchange: str = ""
    routing_key: str = ""
    redelivered: bool = False
    copies: int = 0

    @property
    def task_id(self) -> str:
        return str(self.headers["id"])

    @property
    def name(self) -> tuple[str, int]:
        """The task id, and how many retries came before."""
        return self.task_id, self.headers.get("retries") or 0


@dataclass(eq=False)
class Delivery:
    """A letter in the hands of a worker, not acknowledged."""

    tag: str
    letter: Letter
    channel: Channel
    at_us: int


@dataclass(eq=False)
class Channel:
    """A worker's connection to the broker, with the part of a channel that kombu's messages use."""

    broker: Broker
    worker: Any
    prefetch: int
    queues: list[str]
    open: bool = True
    no_ack_consumers: Any = None
    unacked: dict[str, Delivery] = field(default_factory=dict)

    def basic_ack(self, tag: str, multiple: bool = False) -> None:  # noqa: ARG002 - kombu's
        """Acknowledge; without effect after the connection has ended."""
        self.basic_reject(tag)

    def basic_reject(self, tag: str, requeue: bool = False) -> None:
        self.worker.outside()
        if not self.open:
            raise ConnectionError("this connection to the broker has ended")
        delivery = self.unacked.pop(tag, None)
        if delivery is not None and requeue:
            self.broker.put_back([delivery.letter])
        elif delivery is not None:
            self.broker.acknowledged(delivery)

    def basic_qos(self, prefetch_count: int) -> None:
        self.prefetch = prefetch_count

    @property
    def has_room(self) -> bool:
        return self.open and len(self.unacked) < self.prefetch


class Broker:
    """All queues."""

    def __init__(self, acknowledged: Callable[[Delivery], None]) -> None:
        self.acknowledged = acknowledged
        self.queues: dict[str, deque[Letter]] = {}
        self.channels: list[Channel] = []
        #: Messages of a lost worker, until the visibility timeout is over.
        self.invisible: list[tuple[int, Letter]] = []
        self._tags = 0

    def publish(self, letter: Letter) -> None:
        self.queues[letter.queue].append(letter)

    def connect(self, worker: Any, prefetch: int, queues: Iterable[str]) -> Channel:
        channel = Channel(self, worker, prefetch, list(queues))
        self.channels.append(channel)
        return channel

    def deliver(self, channel: Channel, queue: str, now_us: int) -> Message:
        """Take the oldest letter of a queue."""
        letter = self.queues[queue].popleft()
        self._tags += 1
        tag = str(self._tags)
        channel.unacked[tag] = Delivery(tag, letter, channel, now_us)
        info = {"exchange": letter.exchange, "routing_key": letter.routing_key or queue, "priority": 0}
        info["consumer_tag"] = tag_of(queue)
        if letter.redelivered:
            info["redelivered"] = True
        return Message(
            body=letter.body,
            delivery_tag=tag,
            content_type="application/json",
            content_encoding="utf-8",
            delivery_info=info,
            properties=dict(letter.properties),
            headers=dict(letter.headers),
            channel=channel,
            accept={"application/json"},
        )

    def disconnect(self, channel: Channel, visible_us: int = 0) -> list[Delivery]:
        """End a connection; its messages come back, at once or at that time. Return them."""
        channel.open = False
        self.channels.remove(channel)
        back, channel.unacked = list(channel.unacked.values()), {}
        if visible_us:
            self.invisible.extend((visible_us, delivery.letter) for delivery in back)
        else:
            self.put_back([delivery.letter for delivery in back])
        return back

    def strike(self, delivery: Delivery) -> None:
        """The visibility timeout is over, though its worker has it still."""
        del delivery.channel.unacked[delivery.tag]
        self.put_back([delivery.letter])

    def put_back(self, letters: list[Letter]) -> None:
        """To the head of their queues."""
        for letter in reversed(letters):
            letter.redelivered = True
            self.queues[letter.queue].appendleft(letter)

    def all(self) -> list[Letter]:
        """Everything that it would deliver, now or again."""
        held = [each.letter for channel in self.channels for each in channel.unacked.values()]
        return (
            [letter for queue in self.queues.values() for letter in queue] + held + [each for _, each in self.invisible]
        )

    def show(self, now_us: int) -> None:
        """Put back the messages that were invisible for long enough."""
        if self.invisible:
            due = [letter for at_us, letter in self.invisible if at_us <= now_us]
            self.invisible = [each for each in self.invisible if each[0] > now_us]
            self.put_back(due)
