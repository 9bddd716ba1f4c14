"""The condition under which a parked task is safe, so that its broker message can be acknowledged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Durability", "ParkDurability"]

ParkDurability = Literal["memory", "disk", "replicas"]


@dataclass(frozen=True)
class Durability:
    """The copy of the data that a worker waits for after parking.

    Attributes:
        kind: ``disk``: the append-only file of the server is on disk; ``replicas``: enough replicas have the data.
        replicas: number of replicas.
        timeout: seconds for one attempt.
    """

    kind: Literal["disk", "replicas"]
    replicas: int
    timeout: float

    @property
    def command(self) -> tuple[str | int, ...]:
        """The command that the server answers when all earlier writes of the connection are safe, or at the timeout."""
        return self.within(self.timeout)

    def within(self, seconds: float) -> tuple[str | int, ...]:
        """Return `command` with another timeout."""
        wait_ms = round(seconds * 1000)
        return ("WAITAOF", 1, 0, wait_ms) if self.kind == "disk" else ("WAIT", self.replicas, wait_ms)

    def reached(self, reply: Any) -> bool:
        """Return whether the reply to `command` confirms that the writes are safe."""
        return bool(reply[0] >= 1 if self.kind == "disk" else reply >= self.replicas)

    def missed(self, reply: Any) -> str:
        """Return the reason in a reply that does not confirm it: ``on 0 of 1 replicas``."""
        return "not on disk" if self.kind == "disk" else f"on {reply} of {self.replicas} replicas"
