"""``python -m benchmarks.against COMMIT``: compare the server time of the scripts here with those of another commit.

Each commit has its own process with its own calls, and its own database on one server. Both do each piece of work in
turn. Their rows, keys and records may differ.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from benchmarks.figures import Figure, table
from benchmarks.site import ROOT, BenchmarkError
from celery_throttle.embedded import EmbeddedServer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_HERE, _THERE = "here", "there"


def main() -> int:
    """Measure, and print the ratios of this tree to the other commit."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.against", description=__doc__)
    parser.add_argument("commit", help="whose scripts are the measure, 1.00")
    parser.add_argument("--rounds", type=int, default=100, help="how often each piece of work is done by both")
    asked = parser.parse_args()
    with TemporaryDirectory() as folder, EmbeddedServer() as server:
        _extract(asked.commit, folder)
        base = server.url.rpartition("/")[0]
        with _side(str(ROOT), f"{base}/0") as here, _side(folder, f"{base}/1") as there:
            figures = _figures(here, there, asked.rounds)
    print(table(figures))
    return 0


def _extract(commit: str, folder: str) -> None:
    parts = ("celery_throttle", "benchmarks")
    packed = subprocess.run(["git", "archive", commit, *parts], cwd=ROOT, capture_output=True, check=False)
    if packed.returncode:
        raise BenchmarkError(f"git archive {commit}: {packed.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as tar:
        tar.extractall(folder, filter="data")


class _Side:
    """The process of one of the two commits; see `pieces.py`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pieces: list[str] = json.loads(self._line())

    def measure(self, piece: str) -> float:
        """Do a piece of work; return the server's microseconds for one call."""
        assert self._process.stdin
        print(piece, file=self._process.stdin, flush=True)
        return float(self._line())

    def _line(self) -> str:
        assert self._process.stdout
        if line := self._process.stdout.readline():
            return line
        raise BenchmarkError("the process of a commit has ended: see its error above")


@contextmanager
def _side(folder: str, url: str) -> Iterator[_Side]:
    command = [sys.executable, str(Path(__file__).with_name("pieces.py")), url]
    path = {**os.environ, "PYTHONPATH": folder}
    with subprocess.Popen(command, env=path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield _Side(process)


def _figures(here: _Side, there: _Side, rounds: int) -> list[Figure]:
    times: dict[tuple[str, str], list[float]] = {}
    sides = {_HERE: here, _THERE: there}
    for number in range(rounds):
        for name in (_HERE, _THERE) if number % 2 else (_THERE, _HERE):
            for piece in here.pieces:
                times.setdefault((piece, name), []).append(sides[name].measure(piece))
    load = f"server time of one call, {rounds} pieces each"
    figures = []
    for what in here.pieces:
        ours, theirs = times[what, _HERE], times[what, _THERE]
        figures.append(Figure(load, f"{what}, there", (median(theirs),), "us"))
        # The lower quarter, because other programs on the machine only make calls longer.
        ratios = (_quarter(ours) / _quarter(theirs), median(ours) / median(theirs))
        figures.append(Figure(load, f"{what}, here / there (lower quarter .. median)", ratios, "x"))
    return figures


def _quarter(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 4]


if __name__ == "__main__":
    sys.exit(main())
