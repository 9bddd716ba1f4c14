"""The steps of the demo: two workers, the tasks, a SIGKILL half way, a replacement, the end."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from examples.demo.summary import Kill, summarize
from examples.processes import START_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Task

    from examples.demo.show import Show
    from examples.demo.state import Watch
    from examples.demo.summary import Summary
    from examples.processes import Process

LOOK_EVERY = 0.04
# Pause between two tasks. A task gets its place in line when its worker has read it, which is late on a busy machine.
PUBLISH_EVERY = 0.02
# Published tasks between two looks, which would delay the others.
SHOW_EACH = 10
SLOTS = 4
END_TIMEOUT = 5.0
SECONDS_PER_TASK = 0.6
# Seconds for a kill, a redelivery and a slow machine, beyond the work itself.
SPARE_TIME = 40.0
# A task takes 0.4 s or more, so a task that has run for less than YOUNG does not end before the kill. On a busy machine
# no worker may have only young tasks; from LATE on, tasks of any age will do.
YOUNG, OLD = 0.3, math.inf
HALF_WAY, LATE = 0.5, 0.7


class Course:
    """Runs the demo once, from the start of the workers up to the summary."""

    def __init__(self, watch: Watch, show: Show, task: Task[..., None], limit: int, lease: float) -> None:
        self._watch, self._show, self._task = watch, show, task
        self._limit, self._lease = limit, lease
        self._ids: dict[int, str] = {}
        self._kill: Kill | None = None
        self._dead_leases: list[float | None] = []
        self._greeted = False

    def run(self) -> Summary:
        """Return the figures; raise `ProcessFailed` if a worker does not come up or ends by itself."""
        self._start_workers()
        self._publish()
        deadline = time.monotonic() + len(self._ids) * SECONDS_PER_TASK / self._limit + SPARE_TIME
        if not self._until(self._finished, deadline):
            self._watch.note("gave up waiting for the rest")
        self._until(self._store_empty, time.monotonic() + END_TIMEOUT)
        watch = self._watch
        return summarize(watch.runs, watch.published, self._limit, self._kill, time.monotonic())

    def _start_workers(self) -> None:
        self._watch.note(f"starting two workers of {SLOTS} processes each")
        started = [self._start("one"), self._start("two")]
        if not self._until(lambda: all(worker.ready for worker in started), time.monotonic() + START_TIMEOUT):
            late = next(worker for worker in started if not worker.ready)
            raise late.failure(f"did not come up within {START_TIMEOUT:g} s")

    def _start(self, name: str) -> Process:
        return self._watch.workers.worker(name, "examples.demo.app", SLOTS)

    def _publish(self) -> None:
        for frame in range(1, self._watch.tasks + 1):
            self._watch.published[frame] = time.monotonic()
            self._ids[frame] = self._task.delay(frame).id
            if frame % SHOW_EACH == 0:
                self._show.show(self._watch.look())
            time.sleep(PUBLISH_EVERY)
        self._watch.note(f"{self._watch.tasks} tasks published, about half a second of work each")

    def _until(self, condition: Callable[[], bool], deadline: float) -> bool:
        """Read and show the state until the condition holds (True) or the deadline is over (False)."""
        while True:
            holds = condition()
            self._watch.workers.check()
            self._show.show(self._watch.look())
            if holds or time.monotonic() > deadline:
                return holds
            time.sleep(LOOK_EVERY)

    def _store_empty(self) -> bool:
        state = self._watch.look()
        return state.held == 0 and state.parked == 0

    def _finished(self) -> bool:
        if self._kill is None:
            self._perhaps_kill()
        else:
            self._greet_replacement()
            if self._kill.permits_back is None:
                self._look_for_permits(self._kill)
        return self._watch.done >= self._watch.tasks and (self._kill is None or self._kill.permits_back is not None)

    # -- the kill ------------------------------------------------------------------------------------------------

    def _perhaps_kill(self) -> None:
        done = self._watch.done / self._watch.tasks
        if done < HALF_WAY:
            return
        age = YOUNG if done < LATE else OLD
        workers = [worker for worker in self._watch.workers.all if self._all_below(age, worker)]
        if workers:
            self._kill_worker(max(workers, key=lambda worker: len(self._watch.running_on(worker.name))))

    def _all_below(self, age: float, worker: Process) -> bool:
        running = self._watch.running_on(worker.name)
        return bool(running) and all(time.monotonic() - run.started < age for run in running)

    def _kill_worker(self, worker: Process) -> None:
        worker.kill_main()
        watch = self._watch
        watch.read_journal()  # the last records of the killed worker
        frames = tuple(run.frame for run in watch.running_on(worker.name))
        self._kill = Kill(worker.name, worker.killed_at or time.monotonic(), frames)
        watch.note(f"SIGKILL to worker {worker.name} (pid {worker.pid}), which ran {_list(frames)}")
        watch.note("worker three is started in its place, as a supervisor would")
        self._start("three")

    def _look_for_permits(self, kill: Kill) -> None:
        """Look for permits that were reclaimed: no worker renews these leases, so a changed or missing one was."""
        leases = self._watch.leases_of([self._ids[frame] for frame in kill.frames])
        if not self._dead_leases:
            # Read here and not at the kill, because a renewal may have been under way then.
            self._dead_leases = leases
        still_dead = [lease == dead for lease, dead in zip(leases, self._dead_leases, strict=True)]
        self._watch.orphaned = sum(still_dead)
        if not any(still_dead):
            now = time.monotonic()
            self._kill = replace(kill, permits_back=now)
            self._watch.note(f"its permits are back {now - kill.at:.2f} s after the SIGKILL (lease: {self._lease:g} s)")

    def _greet_replacement(self) -> None:
        if not self._greeted and self._watch.workers.all[-1].ready:
            self._greeted = True
            self._watch.note("worker three is up")


def _list(frames: tuple[int, ...]) -> str:
    return ", ".join(f"#{frame}" for frame in frames) or "nothing just then"
