"""What binding the tasks of an app costs each process that imports them."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from benchmarks.figures import Figure

if TYPE_CHECKING:
    from benchmarks.site import Bench

__all__ = ["bind"]

_PROGRAM = """
import sys, time
from celery import Celery
from celery_throttle import Throttled

number, options = int(sys.argv[1]), {"limit": {"base": Throttled, "limit": 2}, "plain": {}}[sys.argv[2]]
app = Celery("binding", broker="redis://localhost", set_as_current=False)

def work(a, b=1): ...

for index in range(number):
    app.task(work, name=f"binding.{index}", shared=False, **options)
before = time.process_time()
app.finalize()
print(time.process_time() - before)
"""


def bind(bench: Bench) -> list[Figure]:
    """Many tasks of one app, each with a limit of its own, against plain ones."""
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


def _seconds(number: int, kind: str) -> float:
    command = [sys.executable, "-c", _PROGRAM, str(number), kind]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
