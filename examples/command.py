"""The command line of an example: options, signals, a Redis and a directory to run in, the summary."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TextIO

from redis.exceptions import RedisError

from celery_throttle.embedded import EmbeddedServer
from celery_throttle.errors import ThrottleError
from examples.processes import Processes, ProcessFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

ENDING = (signal.SIGTERM, signal.SIGHUP)


class Summary(Protocol):
    """The figures of one run."""

    @property
    def ok(self) -> bool:
        """Whether the example kept its promise."""

    def as_dict(self) -> dict[str, object]:
        """Return the figures for JSON."""

    def rows(self) -> Iterable[tuple[str, ...]]:
        """Yield label and figures of each row, for people."""


@dataclass(frozen=True)
class Stage:
    """The Redis, the directory and the processes of an example; all of them are gone afterwards."""

    url: str
    directory: Path
    processes: Processes
    say: Callable[[str], None]


def run_command(
    name: str,
    description: str,
    perform: Callable[[Stage, bool], Summary],
    promise: str,
    arguments: Sequence[str] | None = None,
) -> int:
    """Run an example; return the exit status: 1 if its promise was broken, or if a process or Redis failed.

    Args:
        name: name of the example's package.
        description: text for ``--help``.
        perform: the example; takes the stage, and whether to use the smaller load.
        promise: the statement that is true if the summary is ok.
        arguments: the arguments, by default those of the command line.
    """
    options = _parse(name, description, arguments)
    for number in ENDING:
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        with _stage(name, _progress_of(options)) as stage:
            summary = perform(stage, options.quick)
    except (ThrottleError, ProcessFailed, RedisError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Interrupted; the processes and the server are gone.", file=sys.stderr)
        return 130
    if options.json:
        print(json.dumps(summary.as_dict(), indent=2))
    else:
        _print(summary, promise)
    return 0 if summary.ok else 1


def _parse(name: str, description: str, arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m examples.{name}", description=description)
    parser.add_argument("--json", action="store_true", help="print the summary as JSON, and nothing else")
    parser.add_argument("--progress", action="store_true", help="with --json: print the steps on stderr")
    parser.add_argument("--quick", action="store_true", help="a smaller load")
    return parser.parse_args(arguments)


def _progress_of(options: argparse.Namespace) -> TextIO | None:
    """Return the stream for progress, None for no progress."""
    if not options.json:
        return sys.stdout
    return sys.stderr if options.progress else None


@contextmanager
def _stage(name: str, stream: TextIO | None) -> Iterator[Stage]:
    for variable in [variable for variable in os.environ if variable.startswith("CELERY_")]:
        del os.environ[variable]  # CELERY_BROKER_URL and the like would override the app's own settings
    begun = time.monotonic()

    def say(text: str) -> None:
        if stream is not None:
            print(f"{time.monotonic() - begun:5.1f} s  {text}", file=stream, flush=True)

    with (
        EmbeddedServer() as server,
        tempfile.TemporaryDirectory(prefix=f"{name}-") as directory,
        Processes(Path(directory)) as processes,
    ):
        try:
            yield Stage(server.url, Path(directory), processes, say)
        finally:
            # From here on a signal must not interrupt the end of the processes.
            for number in (signal.SIGINT, *ENDING):
                signal.signal(number, signal.SIG_IGN)


def _print(summary: Summary, promise: str) -> None:
    rows = [tuple(row) for row in summary.rows()]
    width = max(len(label) for label, *_ in rows)
    print()
    for label, *figures in rows:
        print(f"{label:{width}}" + "".join(f"  {figure:<16}" for figure in figures).rstrip())
    print()
    print(f"OK: {promise}" if summary.ok else f"FAILED, because this is not true: {promise}")
