"""Small worlds are searched whole, and the search finds faults in the scripts.

What real gates do is asked in processes of their own, because the clock, threads and connections are the world's there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.explore.search import replay, search
from tests.explore.store import Server
from tests.explore.worlds import CI_WORLDS, make
from tests.simulation.invariants import Violation
from tests.simulation.server import DEFECTS, Defect, output_of, serving


@pytest.fixture(scope="module")
def scripts() -> Iterator[Server]:
    """A server with the scripts as they are."""
    with serving(Server) as server:
        yield server


@pytest.mark.parametrize("name", CI_WORLDS)
def test_every_state_is_as_it_has_to_be_and_comes_to_a_fair_end(name: str, scripts: Server) -> None:
    searched = search(make(name), scripts)
    assert not searched.found, "\n".join(map(str, searched.found.values()))
    assert not searched.left
    assert searched.states > CI_WORLDS[name] * 0.9, f"{searched}: it had {CI_WORLDS[name]}"


def test_there_is_much_to_search() -> None:
    assert len(CI_WORLDS) >= 15
    assert sum(CI_WORLDS.values()) >= 20_000


@pytest.mark.parametrize("defect", [each for each in DEFECTS if each.small], ids=lambda defect: defect.name)
def test_a_defect_of_the_scripts_is_found(defect: Defect, scripts: Server) -> None:
    """Its trace shows it again, and nothing without the defect."""
    config = make(defect.small)
    with serving(Server, defect) as server:
        (found,) = search(config, server, first=True).found.values()
        with pytest.raises(Violation) as again:
            replay(config, server, found.trace)
    assert str(again.value) == found.what
    steps = found.trace[:-1] if found.trace[-1] == "rest" else found.trace  # it may not be at rest then
    with suppress(ValueError):  # a step cannot happen
        replay(config, scripts, steps)


def test_a_defect_that_is_in_no_file_is_not_taken_for_one() -> None:
    with pytest.raises(ValueError, match="0 files"), serving(Server, Defect("nothing", "no such line")):
        pass


@pytest.mark.parametrize("name", ["plain/2:no-such-fault", "no-such-shape/2", "once/2/no-such-option"])
def test_unknown_world_lists_the_known_ones(name: str) -> None:
    with pytest.raises(ValueError, match=name.partition(":")[0]):
        make(name)


# -- the model of a worker acts like the simulation's real gates -----------------------------------------------------

EXPLORE, WALKS = "tests.explore", 2
PLAIN = ("plain/3", "plain/2:lease+late-renewal", "early/2:killed", "passing/2:broker")
ONCE = ("once/2/skip/by-name:broker", "once/2/remember/awaited/gpu:lease")


@pytest.mark.parametrize("names", [PLAIN, ONCE], ids=["plain", "once"])
def test_both_run_the_same_after_each_step_of_a_random_walk(names: tuple[str, ...]) -> None:
    worlds = [option for name in names for option in ("--world", name)]
    said = [f"{name}: {WALKS} of {WALKS} walks through real gates, too" for name in names]
    assert output_of(EXPLORE, *worlds, "--walks", str(WALKS)).splitlines() == said


def test_a_trace_is_replayed_through_real_gates() -> None:
    """A renewal that comes after the call with which a task goes back in line: it puts nothing back."""
    steps = "deliver 0; call 0; end 0 w1:1 limited; renew 0; call 0; renewal 0"
    trace = ("--world", "plain/2:limited+late-renewal", "--trace", steps)
    assert output_of(EXPLORE, *trace) == output_of(EXPLORE, *trace, "--gates") == "plain/2:limited+late-renewal: well"


def test_a_task_that_is_acknowledged_late_never_runs_beside_its_redelivery() -> None:
    """The broker connection of its worker ends right after it began: it asked for its permit, so the store has it."""
    steps = "deliver 0; call 0; end 0 w1:1 success; deliver 0; broker-lost 0; deliver 1; call 1"
    trace = ("--world", "passing-late/2:broker", "--trace", steps)
    assert output_of(EXPLORE, *trace, "--gates") == "passing-late/2:broker: well"
