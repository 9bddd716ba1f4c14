"""What a limit is."""

from __future__ import annotations

from dataclasses import dataclass

from celery_throttle.errors import ConfigurationError

__all__ = ["Limit"]

_LONGEST_NAME = 200


@dataclass(frozen=True)
class Limit:
    """A named cap: at most ``permits`` runs at once, over all workers, first come first served.

    Give the same limit to several tasks and they share its permits, also when their queues differ::

        gpu = Limit("gpu", 4)

        @app.task(base=Throttled, limit=gpu)
        def train(...): ...

    Raises:
        ConfigurationError: the name or the number cannot work.

    Warning:
        The cap counts runs that the workers know of. A worker that is cut off from the store for longer than its
        lease still runs what it had started, while its permits go to others.
    """

    name: str
    permits: int

    def __post_init__(self) -> None:
        _check(self.name, self.permits)


def _check(name: object, permits: object) -> None:
    if not isinstance(name, str) or not name.isprintable() or not 1 <= len(name) <= _LONGEST_NAME:
        raise ConfigurationError(
            f"Limit name must be 1 to 200 printable characters, got {name!r}: write Limit('gpu', 4)"
        )
    if isinstance(permits, bool) or not isinstance(permits, int) or permits < 1:
        raise ConfigurationError(f"Limit {name!r}: permits must be a whole number of 1 or more, got {permits!r}")
