"""The permits that a task takes."""

from __future__ import annotations

from dataclasses import dataclass

from celery_throttle.core.buckets import Bucket
from celery_throttle.core.policy import costs_of
from celery_throttle.core.wording import counted

__all__ = ["Need", "needs_from"]


@dataclass(frozen=True)
class Need:
    """A number of permits of a limit, or of one key of it."""

    limit: str
    key: str | None
    permits: int

    def __str__(self) -> str:
        return f"{counted(self.permits, 'permit')} of {self.bucket}"

    @property
    def bucket(self) -> Bucket:
        """The limit, or one key of it; as text ``tenant[acme]``."""
        return Bucket(self.limit, self.key)


def needs_from(text: str) -> tuple[Need, ...]:
    """Read the permits that a task takes, from the store's text."""
    return tuple(Need(bucket.name, bucket.key, permits) for bucket, permits in costs_of(text))
