"""Run the matrix and write the table: one environment of tox for each Python and Celery, two servers, two brokers."""

from __future__ import annotations

import argparse
import shutil
import sys
from datetime import datetime, timezone
from itertools import product
from pathlib import Path

from tests.matrix.cells import (
    RABBITMQ,
    ROOT,
    SLICE,
    SMOKE,
    Outcome,
    Row,
    Versions,
    rabbitmq_version,
    run,
    server_version,
    versions,
)

PYTHONS = ("3.10", "3.11", "3.12", "3.13")
CELERYS = ("5.4", "5.5", "5.6", "5.7")
#: Each Python and each Celery, and the corners.
USUAL = ("3.10-5.4", "3.11-5.5", "3.12-5.6", "3.13-5.7", "3.10-5.7", "3.13-5.4")

HEAD = """# Versions

Made by `python -m tests.matrix`, on {date}: real workers on each Python, Celery, server and broker. It needs tox, the
interpreters on `PATH`, and for the columns of that name `redis-server` and `rabbitmq-server`; what is not there is left
out.

The columns of Valkey and Redis, which are broker and store in one, are {slice}.
That of RabbitMQ, with Redis or Valkey as the store, is {rabbitmq}. The last one is {smoke}.

| Python | Celery | kombu | redis-py | Valkey | Redis | RabbitMQ | pytest-celery |
|---|---|---|---|---|---|---|---|
"""


def main(arguments: list[str] | None = None) -> int:
    """Run it; 1 if anything failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    parser.add_argument("rows", nargs="*", help=f"3.12-5.6 and so on; by default {' '.join(USUAL)}")
    parser.add_argument("--all", action="store_true", help="each Python with each Celery")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "matrix.md", help="where the table goes")
    options = parser.parse_args(arguments)
    names = [f"{python}-{celery}" for python, celery in product(PYTHONS, CELERYS)] if options.all else options.rows
    lines: list[str] = []
    failed: list[str] = []
    for row in map(Row.parse, names or USUAL):
        if not row.possible:
            lines.append(f"| {row.python}, not here | {row.celery} |" + " |" * 6)
            continue
        found, outcomes = _outcomes(row)
        lines.append(_line(found, outcomes))
        failed += [f"- {row.env}: `{name}`" for each in outcomes for name in each.failed]
        print(lines[-1], *failed, sep="\n", flush=True)  # noqa: T201
        options.page.write_text(_page(lines, failed))
    return bool(failed)


def _outcomes(row: Row) -> tuple[Versions, list[Outcome]]:
    wheel = run(row.env, SLICE)
    found = versions(row)  # only now: the environment is whole after its first run
    redis = shutil.which("redis-server")
    outcomes = [
        wheel.on(server_version(found.server)),
        run(row.env, SLICE, server=redis).on(server_version(redis)) if redis else Outcome(0, 0, ()),
        run(row.env, RABBITMQ, processes=0).on(rabbitmq_version()),
        run(f"smoke-{row.env}", SMOKE, processes=0),
    ]
    return found, outcomes


def _line(found: Versions, outcomes: list[Outcome]) -> str:
    cells = [found.python, found.celery, found.kombu, found.redis, *map(str, outcomes)]
    return f"| {' | '.join(cells)} |"


def _page(lines: list[str], failed: list[str]) -> str:
    def paths(tests: tuple[str, ...]) -> str:
        return ", ".join(f"`{each}`" for each in tests)

    head = HEAD.format(
        date=datetime.now(timezone.utc).date(), slice=paths(SLICE), rabbitmq=paths(RABBITMQ), smoke=paths(SMOKE)
    )
    return head + "\n".join(lines) + ("\n\nFailed:\n\n" + "\n".join(failed) if failed else "") + "\n"


if __name__ == "__main__":
    sys.exit(main())
