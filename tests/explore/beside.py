"""The model beside real gates: both take the same steps, and the same tasks run in both."""

from __future__ import annotations

from random import Random

from tests.explore.gates import CannotReplay, real_gates
from tests.explore.possible import possible
from tests.explore.steps import begin, take
from tests.explore.store import Server
from tests.explore.world import Worker, World
from tests.explore.worlds import Config

__all__ = ["Drift", "replay_beside", "walk_beside"]


class Drift(Exception):
    """The model and the real gates differ."""


def replay_beside(config: Config, server: Server, trace: tuple[str, ...]) -> None:
    """Take the model and real gates through these steps.

    Raises:
        Drift: other tasks run in them.
        CannotReplay: one of the steps is not taken with real gates.
        AssertionError: the model, or real gates, do what they must not.
    """
    model = World(config, server)
    begin(model)
    with real_gates(config) as gates:
        for number, step in enumerate(trace, 1):
            gates.take(step, model)
            if step != "rest":
                take(model, step)
            modelled = [_running(worker) for worker in model.state.workers]
            if modelled != gates.running():
                raise Drift(f"after step {number}, {step}: real gates run {gates.running()}, the model {modelled}")


def _running(worker: Worker | None) -> list[str]:
    return sorted(run.task_id for run in worker.runs.values() if run.state == "running") if worker else []


def walk_beside(config: Config, server: Server, seed: int, most: int = 30) -> bool:
    """Take both through steps that a seed chooses; whether all of them could be taken with real gates.

    Raises:
        Drift: as above, with the steps.
    """
    rng = Random(seed)
    steps: list[str] = []
    model = World(config, server)
    begin(model)
    while len(steps) < most and (can := possible(model)):
        steps.append(rng.choice(can))
        take(model, steps[-1])
    try:
        replay_beside(config, server, tuple(steps))
    except CannotReplay:
        return False
    except (Drift, AssertionError) as error:
        raise Drift(f"{config.name}: {error}: {'; '.join(steps)}") from error
    return True
