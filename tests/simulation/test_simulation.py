"""The player of the worlds: the same seed gives the same world, and it finds a fault in one.

They are played in processes of their own, because the clock, threads and connections of our modules are the world's.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.server import DEFECTS, Defect

ROOT = Path(__file__).resolve().parents[2]


def simulate(*options: str) -> str:
    """Return the output of ``python -m tests.simulation``."""
    command = [sys.executable, "-m", "tests.simulation", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ | {"CI": "1"})
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


def test_the_same_seed_is_the_same_world() -> None:
    """Earlier worlds of the same process have no influence."""
    together = simulate("--seeds", "4", "--jobs", "1", "--digests").splitlines()
    for seed in (1, 3):
        *happened, came_of_it = simulate("--seed", str(seed), "-v").splitlines()
        assert len(happened) > 200
        assert came_of_it.startswith(f"seed {seed}: well, ")
        assert came_of_it in together


def test_fewer_steps_are_the_beginning_of_more() -> None:
    few, more = (simulate("--seed", "1", "--steps", steps, "-v").splitlines() for steps in ("50", "100"))
    few = few[: next(at for at, line in enumerate(few) if line.endswith("  peace"))]
    assert more[: len(few)] == few


@pytest.mark.parametrize("defect", [each for each in DEFECTS if each.said], ids=lambda defect: defect.name)
def test_a_broken_rule_is_found(defect: Defect) -> None:
    """A gate that takes no notice of limits, say: the worlds must say so, or they would not notice anything."""
    printed = simulate("--seeds", "60", "--jobs", "1", "--most", "1", "--defect", defect.name)
    assert defect.said in printed, printed
