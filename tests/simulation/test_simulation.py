"""The player of the worlds: the same seed gives the same world, and it finds a fault in one.

They are played in processes of their own, because the clock, threads and connections of our modules are the world's.
"""

from __future__ import annotations

import pytest

from tests.simulation.server import DEFECTS, Defect, output_of

SIMULATION = "tests.simulation"


def test_the_same_seed_is_the_same_world() -> None:
    """Earlier worlds of the same process have no influence."""
    together = output_of(SIMULATION, "--seeds", "4", "--jobs", "1", "--digests").splitlines()
    for seed in (1, 3):
        *happened, came_of_it = output_of(SIMULATION, "--seed", str(seed), "-v").splitlines()
        assert len(happened) > 200
        assert came_of_it.startswith(f"seed {seed}: well, ")
        assert came_of_it in together


def test_fewer_steps_are_the_beginning_of_more() -> None:
    few, more = (output_of(SIMULATION, "--seed", "1", "--steps", steps, "-v").splitlines() for steps in ("50", "100"))
    few = few[: next(at for at, line in enumerate(few) if line.endswith("  peace"))]
    assert more[: len(few)] == few


@pytest.mark.parametrize("defect", [each for each in DEFECTS if each.said], ids=lambda defect: defect.name)
def test_a_broken_rule_is_found(defect: Defect) -> None:
    """A gate that takes no notice of limits, say: the worlds must say so, or they would not notice anything."""
    printed = output_of(SIMULATION, "--seeds", "60", "--jobs", "1", "--most", "1", "--defect", defect.name)
    assert defect.said in printed, printed
