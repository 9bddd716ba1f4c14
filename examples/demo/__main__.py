"""``python -m examples.demo [--json [--progress]] [--plain] [--tasks N]``."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import uuid
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from redis import Redis
from redis.exceptions import RedisError

from celery_throttle.embedded import server_url
from celery_throttle.errors import ThrottleError
from examples.demo.course import Course
from examples.demo.show import Lines, Silence, choose
from examples.demo.state import Watch
from examples.processes import Processes, ProcessFailed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from examples.demo.show import Show
    from examples.demo.summary import Summary

FEWEST_TASKS = 20
ENDING = (signal.SIGTERM, signal.SIGHUP)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return the exit status: 1 if limit or order did not hold, a task was lost, or a process failed."""
    options = _parse(arguments)
    show = _json_show(options) if options.json else choose(plain=options.plain)
    for number in ENDING:
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        summary = perform(options.tasks, show)
    except (ThrottleError, ProcessFailed, RedisError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Interrupted; the workers and the server are gone.", file=sys.stderr)
        return 130
    if options.json:
        print(json.dumps(summary.as_dict(), indent=2))
    else:
        _print(summary)
    return 0 if summary.ok else 1


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description="A cap over two real Celery workers.")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON, and nothing else")
    parser.add_argument("--progress", action="store_true", help="with --json: lines on stderr while it runs")
    parser.add_argument("--plain", action="store_true", help="plain lines also on a terminal")
    parser.add_argument("--tasks", type=int, default=72, metavar="N", help="how many tasks (default: 72)")
    options = parser.parse_args(arguments)
    if options.tasks < FEWEST_TASKS:
        parser.error(f"--tasks must be {FEWEST_TASKS} or more: with fewer there is no half way to kill a worker at")
    return options


def _json_show(options: argparse.Namespace) -> Show:
    return Lines(sys.stderr) if options.progress else Silence()


def perform(tasks: int, show: Show) -> Summary:
    """Run the demo with so many tasks, and show each state."""
    with ExitStack() as stack:
        url = stack.enter_context(server_url())
        prefix = f"demo-{uuid.uuid4().hex[:8]}"
        _set_environment(url, prefix)
        from examples.demo.app import LIMIT, app, render  # noqa: PLC0415 - reads the environment set above

        client = stack.enter_context(Redis.from_url(url, socket_timeout=5, socket_connect_timeout=5))
        client.ping()  # a wrong address fails here, before the workers start
        stack.enter_context(_tidy(client, prefix))
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="demo-"))
        stack.callback(app.close)
        workers = stack.enter_context(Processes(Path(directory)))
        watch = Watch(client, prefix, render.name, workers, tasks)
        # Called before the other callbacks, so that a signal does not interrupt the end of the workers.
        stack.callback(_ignore_signals)
        stack.enter_context(show)
        return Course(watch, show, render, LIMIT, app.conf.throttle_lease).run()


def _ignore_signals() -> None:
    for number in (signal.SIGINT, *ENDING):
        signal.signal(number, signal.SIG_IGN)


def _set_environment(url: str, prefix: str) -> None:
    """Set the variables that the app module reads, here and in the workers."""
    for name in [name for name in os.environ if name.startswith("CELERY_")]:
        del os.environ[name]  # CELERY_BROKER_URL and the like would override the app's own settings
    os.environ.update(THROTTLE_URL=url, DEMO_PREFIX=prefix)


@contextmanager
def _tidy(client: Redis, prefix: str) -> Iterator[None]:
    """Delete the demo's keys at the end, because the Redis may belong to another program."""
    try:
        yield
    finally:
        with suppress(RedisError):
            for pattern in (f"{prefix}:*", f"{{{prefix}}}:*"):
                for key in client.scan_iter(match=pattern, count=1000):
                    client.delete(key)


def _print(summary: Summary) -> None:
    print()
    rows = list(summary.rows())
    width = max(len(label) for label, _ in rows)
    for label, figure in rows:
        print(f"{label:{width}}  {figure}")
    print()
    failed = "FAILED: limit exceeded, order not kept, or tasks lost."
    print("OK: the limit held, tasks started in order, no task was lost." if summary.ok else failed)


if __name__ == "__main__":
    sys.exit(main())
