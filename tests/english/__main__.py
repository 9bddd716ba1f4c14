"""``python -m tests.english``: count habits of writing in each room, and fail where there are more than it may have."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.english.habits import findings, prose

ROOT = Path(__file__).parents[2]
#: How many a room may have in 1 000 words. By this count httpx, click, redis-py and starlette have 1.3 to 2. A room
#: that was rewritten gets a lower number here, and none a higher one.
USUAL = 1.0
MOST = {"README.md": 3.0, "docs": 0.5}
ROOMS = ("README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs", "examples", "benchmarks", "tests")
PARTS = ("*.py", "contrib", "control", "core", "permits", "primitives", "store/*.py", "store/lua")
_KINDS = {".py", ".lua", ".md"}


def main() -> int:
    """Print the rooms, and each finding of those that were asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.english", description=__doc__)
    parser.add_argument("paths", nargs="*", type=Path, help="print each finding in these files and folders")
    asked = parser.parse_args()
    if asked.paths:
        for path in _files(asked.paths):
            for found in findings(path):
                _print(found)
        return 0
    too_many = False
    rooms = [*ROOMS, "celery_throttle", *(f"celery_throttle/{part}" for part in (*PARTS, "tasks", "web", "worker"))]
    for room in rooms:
        files = _files(sorted(ROOT.glob(room)))
        words = sum(len(prose(path).split()) for path in files)
        rate, most = 1000 * sum(len(findings(path)) for path in files) / max(words, 1), MOST.get(room, USUAL)
        _print(f"{room}: {rate:.1f} of {most:g} in 1 000 words, {words} words")
        too_many |= rate > most
    return int(too_many)


def _files(paths: list[Path]) -> list[Path]:
    found = [path for given in paths for path in (sorted(given.rglob("*")) if given.is_dir() else [given])]
    return [path for path in found if path.suffix in _KINDS]


def _print(text: object) -> None:
    print(text)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
