"""Run Celery's own integration tests plain and with every task throttled, and print the differences."""

from __future__ import annotations

import argparse
import signal
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from tests.celery_suite.comparing import LISTED, Known, confirmed, repeats, report, say, suspects
from tests.celery_suite.job import Run
from tests.celery_suite.runner import Runner, fetch
from tests.celery_suite.scenarios import FILES, PLAIN, SCENARIOS, SLICE, SLICE_TESTS

#: Seconds that all tests may take on one worker, and one test alone.
PATIENCE, ALONE = 5400.0, 240.0


def main() -> int:
    """Return 1 if there is a difference that is not listed, a listed one that is gone, or a run that was none."""
    arguments = _parser().parse_args()
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, _interrupt)
    try:
        if arguments.logs:
            arguments.logs.mkdir(parents=True)
            return _compare(arguments, arguments.logs)
        with tempfile.TemporaryDirectory(prefix="celery-suite-") as directory:
            return _compare(arguments, Path(directory))
    except KeyboardInterrupt:
        print("interrupted")  # noqa: T201
        return 130


def _interrupt(*_: object) -> None:
    """Once: from a terminal Ctrl-C comes here and by tox, and must not cut off the end of a run."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt


def compare(runner: Runner, runs: Sequence[Run], listed: Sequence[Known]) -> int:
    """Do these runs, then repeat the differing tests alone; print, and return the result of `main`."""
    done = runner.run(runs, PATIENCE, say)
    found = suspects(done)
    alone = runner.run(repeats(found), ALONE, say)
    differences = [each for each in found if confirmed(each, alone)]
    return report(done, [each for each in found if each not in differences], differences, listed)


def _compare(arguments: argparse.Namespace, directory: Path) -> int:
    tests = arguments.source or fetch(directory)
    print(f"Celery {version('celery')}: t/integration", flush=True)  # noqa: T201
    return compare(Runner(tests, directory, arguments.at_once), _runs(arguments, tests), LISTED)


def _runs(arguments: argparse.Namespace, tests: Path) -> list[Run]:
    """Plain ones first: the longest wait for nothing."""
    files = tuple(each for each in FILES if (tests / "integration" / each).exists())
    scenarios = [each for each in SCENARIOS if arguments.only in each.name]
    chosen = arguments.tests
    if arguments.slice:
        scenarios, chosen = [each for each in scenarios if each in SLICE], SLICE_TESTS
    return [Run(each, kind, files, chosen) for each in scenarios for kind in (PLAIN, *each.kinds())]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.celery_suite", description=__doc__)
    parser.add_argument("--slice", action="store_true", help="some of the tests, on some of the workers")
    parser.add_argument("--only", default="", metavar="TEXT", help="workers whose name has this: 'late', 'in-process'")
    parser.add_argument("-k", dest="tests", default="", metavar="EXPRESSION", help="these tests, as pytest's -k")
    parser.add_argument(
        "--at-once", type=int, default=6, metavar="N", help="so many runs; they mostly wait (default 6)"
    )
    parser.add_argument("--source", type=Path, metavar="DIRECTORY", help="Celery's folder t; by default, downloaded")
    parser.add_argument("--logs", type=Path, metavar="DIRECTORY", help="a new one, to leave all logs in")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
