"""A client to which the first reply is lost, as redis-py's own retries have it: every call is carried out twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redis import Redis

__all__ = ["Resending"]


class Resending(Redis):
    """Sends each script ``times`` times and returns the last reply."""

    times = 2
    #: called between the two
    between: Callable[[], object] | None = None

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """As redis-py does, but again and again."""
        if args[0] not in {"EVAL", "EVALSHA"}:
            return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        for _ in range(self.times - 1):
            super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
            if self.between is not None:
                self.between()
        return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
