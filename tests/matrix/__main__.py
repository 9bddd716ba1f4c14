"""Run the matrix and write the table: one environment of tox for each Python and Celery, two servers, two brokers.

The rows of other environments stay on the page.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from dataclasses import replace
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

TABLE = ROOT / "docs" / "reference" / "matrix.md"
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
CELERYS = ("5.4", "5.5", "5.6", "5.7")
#: Each Python and each Celery, and the corners.
USUAL = ("3.10-5.4", "3.11-5.5", "3.12-5.6", "3.13-5.7", "3.10-5.7", "3.13-5.4")

_ROW = re.compile(r"\| (3\.\d+)\.\d+ \| (5\.\d+)\.")

HEAD = """# What has been run together

Made by `python -m tests.matrix`, on {date}: real workers on each Python, Celery, server and broker. It needs tox, the
interpreters on `PATH`, and for the columns of that name `redis-server` and `rabbitmq-server`; it leaves out
missing ones: a row without its interpreter is skipped, and then the command returns 2.

The columns of Valkey and Redis, which are broker and store in one, are {slice}.
That of RabbitMQ, with Redis or Valkey as the store, is {rabbitmq}. The last one is {smoke}.

| Python | Celery | kombu | redis-py | Valkey | Redis | RabbitMQ | pytest-celery |
|---|---|---|---|---|---|---|---|
"""


def main(arguments: list[str] | None = None) -> int:
    """Run it; return 1 if anything failed, else 2 if a row was skipped because its Python is missing."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix", description=__doc__)
    parser.add_argument("rows", nargs="*", help=f"3.12-5.6 and so on; by default {' '.join(USUAL)}")
    parser.add_argument("--all", action="store_true", help="each Python with each Celery")
    parser.add_argument("--page", type=Path, default=TABLE, help="where the table goes")
    options = parser.parse_args(arguments)
    names = [f"{python}-{celery}" for python, celery in product(PYTHONS, CELERYS)] if options.all else options.rows
    failed, skipped = list[str](), list[str]()
    for row in map(Row.parse, names or USUAL):
        if not row.possible:
            skipped.append(row.env)
            print(f"SKIPPED: {row.env}: python{row.python} is not on PATH, or does not run")  # noqa: T201
            continue
        found, outcomes = _outcomes(row)
        line = f"| {' | '.join([*found[:-1], *map(str, outcomes)])} |"
        failed += (failed_here := [f"- {row.env}: `{name}`" for each in outcomes for name in each.failed])
        print(line, *failed_here, sep="\n", flush=True)  # noqa: T201
        options.page.write_text(_page(options.page, row, line, failed_here))
    return 1 if failed else 2 if skipped else 0


def _outcomes(row: Row) -> tuple[Versions, list[Outcome]]:
    wheel = run(row.env, SLICE)
    found = versions(row)  # only now: the environment is whole after its first run
    redis = shutil.which("redis-server")
    return found, [
        replace(wheel, server=server_version(found.server)),
        run(row.env, SLICE, server=redis, shown=server_version(redis)) if redis else Outcome(0, 0, ()),
        run(row.env, RABBITMQ, processes=0, shown=rabbitmq_version()),
        run(f"smoke-{row.env}", SMOKE, processes=0),
    ]


def _page(before: Path, row: Row, line: str, failed: list[str]) -> str:
    """Return the page with this row, beside those that it has of other environments."""
    text = before.read_text() if before.exists() else ""
    found = ((_ROW.match(each), each) for each in text.splitlines())
    rows = {Row(*match.groups()).env: each for match, each in found if match} | {row.env: line}
    others = [each for each in text.splitlines() if each.startswith("- ") and not each.startswith(f"- {row.env}:")]
    head = HEAD.format(
        date=datetime.now(timezone.utc).date(), slice=_paths(SLICE), rabbitmq=_paths(RABBITMQ), smoke=_paths(SMOKE)
    )
    table = "\n".join(rows[env] for env in sorted(rows))
    return "\n".join([f"{head}{table}", *(["", "Failed:", "", *others, *failed] if others or failed else []), ""])


def _paths(tests: tuple[str, ...]) -> str:
    return ", ".join(f"`{each}`" for each in tests)


if __name__ == "__main__":
    sys.exit(main())
