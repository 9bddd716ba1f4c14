"""The hints that the store sends to workers."""

from __future__ import annotations

from redis import Redis
from redis.client import PubSub

from tests.store.caller import KEYS

__all__ = ["Hints"]


class Hints:
    """The hints published since the last time asked."""

    def __init__(self, client: Redis) -> None:
        self._client = client
        self._heard: PubSub = client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
        self._heard.subscribe(KEYS.wake)
        while not self._heard.subscribed or client.pubsub_numsub(KEYS.wake)[0][1] == 0:
            self._heard.get_message(timeout=1)

    def take(self) -> list[str]:
        """Take everything up to now: a mark sent after it proves that nothing is still on its way."""
        self._client.publish(KEYS.wake, "\0mark")
        texts: list[str] = []
        while True:
            message = self._heard.get_message(timeout=5)
            if message is None:
                continue
            text = message["data"].decode()
            if text == "\0mark":
                return texts
            texts.append(text)

    def ready(self) -> list[str]:
        """Return the queues whose workers were sent a hint that they can start something."""
        return [text.removeprefix("ready ") for text in self.take() if text.startswith("ready ")]

    def close(self) -> None:
        self._heard.close()
