"""The figures of one run of the demo, computed from the tasks' own records."""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING

from examples.figures import peak

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from examples.demo.journal import Run


#: In places: with two workers, neighbours may start in the other order, but no task may be further out of turn.
MOST_OUT_OF_TURN = 8


@dataclass(frozen=True)
class Kill:
    """The end of a worker: the time, its running tasks, and the time at which the last of its permits was free."""

    worker: str
    at: float
    frames: tuple[int, ...]
    permits_back: float | None = None


@dataclass(frozen=True)
class Summary:
    """The figures, in seconds unless the name has another unit. None: the figure could not be measured."""

    tasks: int
    limit: int
    wall_time: float
    ideal_time: float
    share_of_ideal_before_kill: float | None
    most_running: int
    started_in_turn: int
    furthest_out_of_turn: int
    wait_p50: float | None
    wait_max: float | None
    handover_p50_ms: float | None
    killed_worker_ran: int
    permits_back_after: float | None
    ran_again: int
    finished_twice: int
    tasks_lost: int

    @property
    def ok(self) -> bool:
        """Whether the limit held, tasks started in order, and every task finished."""
        in_order = self.furthest_out_of_turn <= MOST_OUT_OF_TURN
        return self.most_running <= self.limit and in_order and self.tasks_lost == 0

    def as_dict(self) -> dict[str, object]:
        """Return the figures for JSON."""
        return {
            name: round(value, 4) if isinstance(value, float) else value for name, value in asdict(self).items()
        } | {"ok": self.ok}

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield label and figure of each row, for people."""
        off = _count(self.furthest_out_of_turn, "place")
        done = self.tasks - self.tasks_lost
        yield "tasks done", f"{done} of {self.tasks}, lost: {self.tasks_lost}, done twice: {self.finished_twice}"
        yield "most running at once", f"{self.most_running} (limit {self.limit})"
        yield "start order", f"{self.started_in_turn} of {self.tasks} exactly in turn, none more than {off} off"
        yield "wait", f"p50 {_seconds(self.wait_p50)}, max {_seconds(self.wait_max)}"
        yield "wall time", f"{_seconds(self.wall_time)} (ideal without a kill: {_seconds(self.ideal_time)})"
        yield "share of the ideal before the kill", _percent(self.share_of_ideal_before_kill)
        yield "hand-over of a permit, p50", _milliseconds(self.handover_p50_ms)
        yield "running on the killed worker", f"{_count(self.killed_worker_ran, 'task')}, run again: {self.ran_again}"
        yield "from SIGKILL to the permits' return", _seconds(self.permits_back_after)


def summarize(
    runs: Sequence[Run], published: Mapping[int, float], limit: int, kill: Kill | None, now: float
) -> Summary:
    """Compute the figures.

    Args:
        runs: the tasks' own records, in the order of their starts.
        published: the time at which each frame's task was published, in that order.
        limit: the declared number of permits.
        kill: the kill of a worker, None if there was none.
        now: the end of runs that have not ended.
    """
    spans = [(run.started, _end(run, kill, now)) for run in runs]
    finished = [run.frame for run in runs if run.stopped is not None]
    first: dict[int, Run] = {}
    for run in runs:
        first.setdefault(run.frame, run)
    waits = [run.started - published[run.frame] for run in first.values()]
    handovers = hand_overs(runs)
    shifts = [abs(place - rank) for rank, place in enumerate(_places(first, published))]
    work = sum(run.stopped - run.started for run in runs if run.stopped is not None)
    return Summary(
        tasks=len(published),
        limit=limit,
        wall_time=max((end for _, end in spans), default=now) - min(published.values()),
        ideal_time=work / limit,
        share_of_ideal_before_kill=_share(spans, limit, kill.at) if kill else None,
        most_running=peak(spans),
        started_in_turn=shifts.count(0),
        furthest_out_of_turn=max(shifts, default=0),
        wait_p50=median(waits) if waits else None,
        wait_max=max(waits, default=None),
        handover_p50_ms=median(handovers) * 1000 if handovers else None,
        killed_worker_ran=len(kill.frames) if kill else 0,
        permits_back_after=kill.permits_back - kill.at if kill and kill.frames and kill.permits_back else None,
        ran_again=sum(frame in kill.frames for frame in set(finished)) if kill else 0,
        finished_twice=len(finished) - len(set(finished)),
        tasks_lost=len(published) - len(set(finished)),
    )


def hand_overs(runs: Sequence[Run]) -> list[float]:
    """Return the idle time of each permit between the end of a run and the next start.

    A start takes the permit that was free for longest. The first starts, and those with a permit of the killed worker,
    are not counted, because no run released their permits.
    """
    changes = [(run.started, 1) for run in runs] + [(run.stopped, 0) for run in runs if run.stopped is not None]
    free: deque[float] = deque()
    gaps: list[float] = []
    for at, started in sorted(changes):
        if not started:
            free.append(at)
        elif free:
            gaps.append(at - free.popleft())
    return gaps


def _places(first: Mapping[int, Run], published: Mapping[int, float]) -> list[int]:
    """Return the place in the order of publishing for the task that started first, second, ..."""
    place = {frame: number for number, frame in enumerate(frame for frame in published if frame in first)}
    return [place[frame] for frame in first]


def _end(run: Run, kill: Kill | None, now: float) -> float:
    if run.stopped is not None:
        return run.stopped
    return kill.at if kill and run.worker == kill.worker else now


def _share(spans: Sequence[tuple[float, float]], limit: int, until: float) -> float | None:
    begin = min((start for start, _ in spans), default=until)
    busy = sum(min(end, until) - start for start, end in spans if start < until)
    return busy / (limit * (until - begin)) if until > begin else None


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} ms"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
