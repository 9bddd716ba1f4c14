"""Report runs of singletons whose leases have ended: their workers may be frozen, and a second run may go on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from celery_throttle.control.findings import Commands, Finding
from celery_throttle.core.wording import at
from celery_throttle.store.explain import LOCK_STATES, Explanation

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from celery_throttle.store.workers import LostRun

__all__ = ["running_twice", "with_lost_run"]


def running_twice(runs: Iterable[LostRun], commands: Commands | None = None) -> Iterator[Finding]:
    """Yield the singletons that may run twice now."""
    commands = commands or Commands()
    for run in runs:
        if run.lock is None or not run.twice:
            continue
        _, task, since, nonce = run.lock
        node = run.worker.partition("/")[0]
        where = f"on worker {run.worker}" if run.heard else f"may still run on worker {run.worker}"
        if task == run.task:
            other = f"and {where}"
        else:
            other = f"and task {run.task} with the same identity {'runs ' if run.heard else ''}{where}"
        yield Finding(
            "runs-twice",
            True,
            f"Task {task}, which runs once, runs on worker {nonce.partition(':')[0]}, {other}.",
            f"{_silence(run)} The other run began {at(since)}.",
            (commands.inspect("ping", node),) if "@" in node else (),
        )


def with_lost_run(explanation: Explanation, runs: Iterable[LostRun]) -> Explanation:
    """Return the explanation, with a run of the task whose lease has ended, if there is one."""
    run = next((each for each in runs if each.task == explanation.task_id), None)
    if run is None:
        return explanation
    if explanation.state != "unknown":
        also = f"It also runs on worker {run.worker}" if run.heard else f"It may also still run on worker {run.worker}"
        return replace(explanation, reasons=(*explanation.reasons, f"{also}, which {_silent(run)}."))
    reasons = [f"It ran on worker {run.worker}, which {_silent(run)}."]
    reasons += ["That worker has called since, so the run goes on."] if run.heard else []
    return replace(explanation, state="lost", reasons=(*reasons, _of_lock(run)), worker=run.worker)


def _of_lock(run: LostRun) -> str:
    if run.lock is None:
        return "Its identity lock is free: a second run may have begun, and ended."
    state, task, since, _ = run.lock
    if task == run.task:
        return f"Its identity lock waits for its next delivery, since {at(since)}: then a second run begins."
    return f"Task {task} has its identity lock ({LOCK_STATES[state]}, since {at(since)})."


def _silent(run: LostRun) -> str:
    return f"has not renewed its lease since {at(run.since)}"


def _silence(run: LostRun) -> str:
    called = f" That worker has called since, at {at(run.heard)}, so its run goes on." if run.heard else ""
    return f"Worker {run.worker} {_silent(run)}, and has not reported an end.{called}"
