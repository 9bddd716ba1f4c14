"""Processes that run a function at the same time; ``python -m benchmarks.crew URL`` is one of them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

from redis import Redis

from benchmarks.site import ROOT, BenchmarkError
from celery_throttle.embedded import bound_to_parent

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

__all__ = ["Crew"]

#: Seconds from sending an order to the common start.
_HEAD_START = 0.1


class Crew:
    """Processes with a connection to one server each.

    Args:
        url: the URL of the server.
        size: number of processes.
    """

    def __init__(self, url: str, size: int) -> None:
        command = bound_to_parent([sys.executable, "-m", "benchmarks.crew", url])
        self._members = [
            subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(size)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for member in self._members:
            member.kill()
            member.wait()
            for stream in (member.stdin, member.stdout):
                if stream is not None:
                    with suppress(OSError):
                        stream.close()

    def do(self, module: str, function: str, **arguments: Any) -> list[Any]:
        """Call ``function(client, number=, start=, **arguments)`` in all processes; return all results.

        ``start`` is the time to begin, on the clock of ``time.monotonic``, which all processes of a machine share.
        """
        start = time.monotonic() + _HEAD_START
        for number, member in enumerate(self._members):
            assert member.stdin is not None
            order = {"module": module, "function": function, "arguments": {"number": number, "start": start}}
            order["arguments"] |= arguments  # type: ignore[operator]
            member.stdin.write(json.dumps(order) + "\n")
            member.stdin.flush()
        return [self._result(member) for member in self._members]

    def _result(self, member: subprocess.Popen[str]) -> Any:
        assert member.stdout is not None
        line = member.stdout.readline()
        if not line:
            raise BenchmarkError(f"a process ended with status {member.wait()}")
        return json.loads(line)


def _main() -> None:
    with Redis.from_url(sys.argv[1]) as client:
        client.ping()
        for line in sys.stdin:
            order = json.loads(line)
            function = getattr(import_module(order["module"]), order["function"])
            print(json.dumps(function(client, **order["arguments"])), flush=True)


if __name__ == "__main__":
    _main()
