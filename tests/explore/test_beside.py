"""The model of a worker acts like the simulation's real gates.

In a process of its own, because the clock, threads and connections of our modules are the world's there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def explore(*options: str) -> str:
    """Return the output of ``python -m tests.explore``."""
    command = [sys.executable, "-m", "tests.explore", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ | {"CI": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


WALKS = 2
PLAIN = ("plain/3", "plain/2:lease+late-renewal", "early/2:killed", "passing/2:broker")
ONCE = ("once/2/skip/by-name:broker", "once/2/remember/awaited/gpu:lease")


@pytest.mark.parametrize("names", [PLAIN, ONCE], ids=["plain", "once"])
def test_both_run_the_same_after_each_step_of_a_random_walk(names: tuple[str, ...]) -> None:
    worlds = [option for name in names for option in ("--world", name)]
    said = [f"{name}: {WALKS} of {WALKS} walks through real gates, too" for name in names]
    assert explore(*worlds, "--walks", str(WALKS)).splitlines() == said


def test_a_trace_is_replayed_through_real_gates() -> None:
    """A renewal that comes after the call with which a task goes back in line: it puts nothing back."""
    steps = "deliver 0; call 0; end 0 w1:1 limited; renew 0; call 0; renewal 0"
    trace = ("--world", "plain/2:limited+late-renewal", "--trace", steps)
    assert explore(*trace) == explore(*trace, "--gates") == "plain/2:limited+late-renewal: well"


def test_a_task_that_is_acknowledged_late_never_runs_beside_its_redelivery() -> None:
    """The broker connection of its worker ends right after it began: it asked for its permit, so the store has it."""
    steps = "deliver 0; call 0; end 0 w1:1 success; deliver 0; broker-lost 0; deliver 1; call 1"
    trace = ("--world", "passing-late/2:broker", "--trace", steps)
    assert explore(*trace, "--gates") == "passing-late/2:broker: well"
