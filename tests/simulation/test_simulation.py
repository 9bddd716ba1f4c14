"""Thousands of small worlds, each decided by its seed, beside the tests with real processes.

They are played in processes of their own: the clock, threads and connections of our modules are the world's there.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def simulate(*options: str) -> str:
    """Return what ``python -m tests.simulation`` prints."""
    command = [sys.executable, "-m", "tests.simulation", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ | {"CI": "1"})
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(0, 2000, 250))
def test_many_worlds(first: int) -> None:
    said = simulate("--first", str(first), "--seeds", "250", "--steps", "200", "--jobs", "1")
    last = said.splitlines()[-1]
    assert last.startswith("250 seeds of 200 steps "), said
    assert last.endswith(" 0 went wrong"), said


@pytest.mark.parametrize("seed", ["1", "6", "9"])
def test_the_same_seed_is_the_same_world(seed: str) -> None:
    first, second = (simulate("--seed", seed, "-v") for _ in range(2))
    assert first == second
    assert len(first.splitlines()) > 200


def test_other_seeds_before_it_change_nothing() -> None:
    alone = simulate("--seed", "7")
    (after,) = re.findall(r"^seed 7\b.*$", simulate("--seeds", "8", "--jobs", "1", "--digests"), re.MULTILINE)
    assert after == alone.splitlines()[0]


def test_fewer_steps_are_the_beginning_of_more() -> None:
    few, more = (simulate("--seed", "1", "--steps", steps, "-v").splitlines() for steps in ("50", "100"))
    few = few[: next(at for at, line in enumerate(few) if line.endswith("  peace"))]
    assert more[: len(few)] == few


def test_a_broken_rule_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gate that takes no notice of limits: the worlds must say so, or they would not notice anything."""
    monkeypatch.setenv("SIMULATION_BREAKS", "caps")
    said = simulate("--seeds", "40", "--jobs", "1", "--most", "1")
    assert "cap: " in said, said
