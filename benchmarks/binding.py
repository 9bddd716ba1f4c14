"""The costs of an app's tasks in each process that imports them, and in each command."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from benchmarks.figures import Figure
from celery_throttle.embedded import EmbeddedServer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.site import Bench

__all__ = ["bind", "command"]

_ROOT = Path(__file__).resolve().parents[1]
_FINALIZE = """
import time
from benchmarks.many_tasks import app
before = time.process_time()
app.finalize()
print(time.process_time() - before)
"""
_STATUS = ("-m", "celery", "-A", "benchmarks.many_tasks", "throttle", "status")


def bind(bench: Bench) -> list[Figure]:
    """Compare many tasks of one app, each with a limit of its own, with plain ones."""
    few, many = (100, 400) if bench.quick else (1000, 4000)
    seconds = {
        (kind, number): tuple(_seconds(number, kind) for _ in range(bench.rounds))
        for kind in ("plain", "limit")
        for number in (few, many)
    }
    growth = tuple(
        (large / many) / (small / few)
        for small, large in zip(seconds["limit", few], seconds["limit", many], strict=True)
    )
    return [
        *(
            Figure(
                f"{number} tasks bound", f"processor time a task: {kind}", tuple(1000 * s / number for s in took), "ms"
            )
            for (kind, number), took in seconds.items()
        ),
        Figure(f"{many} tasks bound", f"a task with a limit, against one of {few}", growth, at_most=1.3),
    ]


def command(bench: Bench) -> list[Figure]:
    """Time ``celery throttle status`` in an app with many tasks, and compare it with an app of plain tasks."""
    number = 100 if bench.quick else 1000
    apps = {"one plain task": ("plain", 1), "plain": ("plain", number), "with limits": ("limit", number)}
    with EmbeddedServer() as server, TemporaryDirectory() as compiled:
        _status(server.url, compiled, "limit", 1)  # compiles all imported modules
        rounds = [
            {name: _status(server.url, compiled, *each) for name, each in apps.items()} for _ in range(bench.rounds)
        ]
    load = f"celery throttle status, {number} tasks"
    one, plain, limits = ([each[name] for each in rounds] for name in apps)
    celerys = tuple(many - few for few, many in zip(one, plain, strict=True))
    ours = tuple(many - few for few, many in zip(plain, limits, strict=True))
    return [
        Figure(load, "processor time with one plain task", tuple(one), "s"),
        Figure(load, "more of it with plain tasks: Celery's", celerys, "s"),
        Figure(load, "more of it with limits on them: ours", ours, "s"),
    ]


def _seconds(number: int, kind: str) -> float:
    return float(_run(["-c", _FINALIZE], kind, number))


def _status(url: str, compiled: str, kind: str, number: int) -> float:
    """Return the processor time of the command; ``compiled``: the folder for Python's compiled files."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    _run(_STATUS, kind, number, BENCHMARK_URL=url, PYTHONPYCACHEPREFIX=compiled, PYTHONDONTWRITEBYTECODE="")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _run(arguments: Sequence[str], kind: str, number: int, **variables: str) -> str:
    variables |= {"BENCHMARK_KIND": kind, "BENCHMARK_NUMBER": str(number)}
    done = subprocess.run(
        [sys.executable, *arguments], check=True, capture_output=True, text=True, cwd=_ROOT, env=os.environ | variables
    )
    return done.stdout
