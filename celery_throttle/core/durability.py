"""When a parked task counts as safe, so that the broker's message can be acknowledged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Durability", "ParkDurability"]

ParkDurability = Literal["memory", "disk", "replicas"]


@dataclass(frozen=True)
class Durability:
    """What is waited for after parking.

    Attributes:
        kind: ``disk``: the server's append-only file is on disk; ``replicas``: so many of them have the data, too.
        replicas: how many.
        timeout: seconds for one try.
    """

    kind: Literal["disk", "replicas"]
    replicas: int
    timeout: float

    @property
    def command(self) -> tuple[str | int, ...]:
        """What makes the server answer once all that this connection wrote before is safe, or the time is over."""
        return self.within(self.timeout)

    def within(self, seconds: float) -> tuple[str | int, ...]:
        """The same with another timeout."""
        wait_ms = round(seconds * 1000)
        return ("WAITAOF", 1, 0, wait_ms) if self.kind == "disk" else ("WAIT", self.replicas, wait_ms)

    def reached(self, reply: Any) -> bool:
        """Whether this answer says so."""
        return bool(reply[0] >= 1 if self.kind == "disk" else reply >= self.replicas)

    def missed(self, reply: Any) -> str:
        """Return what an answer says that does not."""
        return "not on disk" if self.kind == "disk" else f"on {reply} of {self.replicas} replicas"
