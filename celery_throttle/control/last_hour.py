"""Check the model of a simulation: the last hour as it was counted, and as it is simulated."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from celery_throttle.control.load import AS_COUNTED
from celery_throttle.control.outcomes import Outcome, outcome_of
from celery_throttle.control.simulation import Begin, Numbers, shortened, starts_of, typical
from celery_throttle.core.wording import listed, one_line, span
from celery_throttle.store.limit_status import permits_taken
from celery_throttle.tasks.registry import policies_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_throttle.control.load import Question
    from celery_throttle.control.reader import Reader
    from celery_throttle.store.history import History
    from celery_throttle.store.limit_status import LimitStatus

__all__ = ["LastHour"]

#: Shorter mean waits count as this, in seconds: a worker takes about as long to start a task.
_SHORT = 0.1


class LastHour:
    """The last hour of a limit.

    Args:
        reader: the reader of its group.
        status: its present status.
        history: its counts, in whole minutes.
        question: the options of the simulation.
        cost: the permits that each task takes.
    """

    def __init__(self, reader: Reader, status: LimitStatus, history: History, question: Question, cost: int) -> None:
        self._reader, self._status, self._history, self._total = reader, status, history, history.total
        self._question, self._cost = question, cost
        self._numbers = Numbers(status.in_force, status.rates_in_force)

    @property
    def measured(self) -> Outcome:
        """The outcome that was counted."""
        total, permits = self._total, self._numbers.permits
        taken = self._cost if permits is None else permits_taken(self._cost, permits)
        started = max(total.started, 1)
        return Outcome(
            what="measured",
            permits=permits,
            rates=self._numbers.rates,
            arrived=total.at_once + total.parked,
            started=total.started,
            waiting=self._status.parked,
            waited=sum(total.waited) / started,
            wait_mean=total.wait_time / started,
            wait_p50=total.wait(0.5),
            wait_p95=total.wait(0.95),
            wait_most=total.wait(1),
            used=taken * total.run_time / total.length,
        )

    @cached_property
    def check(self) -> Outcome:
        """The outcome of a simulation with the same arrivals and the present numbers."""
        as_counted = self._question._replace(arrivals=AS_COUNTED, run_time=AS_COUNTED)
        load = as_counted._replace(seconds=self._total.length).load(self._history, self._cost)
        total = self._total
        parked = max(self._status.parked - total.parked - total.sent_back + sum(total.waited), 0)
        seconds = shortened(load, total.length, parked)
        waits = tuple(number / (load.per_second or 1) for number in range(parked, 0, -1))
        begin = Begin(waits, self._status.held // self._cost)
        tasks = typical(load, self._numbers, seconds, begin, self._question.seed)
        starts = starts_of(tasks, self._numbers, self._cost)
        return outcome_of("check", self._numbers, load, tasks, starts, seconds, begun=True)

    @property
    def fits(self) -> bool:
        """Whether the two mean waits differ by a factor of two at most."""
        short, long = sorted(max(each.wait_mean or 0.0, _SHORT) for each in (self.measured, self.check))
        return long <= 2 * short

    def reasons(self) -> str:
        """Return the sentences for a model that does not fit: both mean waits, and the possible reasons."""
        waited, simulated = self.measured.wait_mean or 0.0, self.check.wait_mean or 0.0
        return (
            f"! The model does not fit: tasks waited {span(waited)} on average, in the simulation {span(simulated)}. "
            f"Possible reasons: {'; '.join(self._reasons(longer=waited > simulated))}."
        )

    def _reasons(self, *, longer: bool) -> Iterator[str]:
        begin = self._history.periods[0].since
        if any(each.at >= begin for each in self._reader.audit(self._status.bucket, 200)):
            yield "the limit was changed in that time"
        if not longer:
            yield "run times that differ less (spread 0: all alike)"
            return
        yield "bursts within a minute, or slow workers"
        name, permits, most = self._status.name, self._status.in_force, self._total.held_most
        if permits and most is not None and most + self._cost <= permits:
            yield f"workers short of slots ({most} of {permits} permits were held at most)"
        together = (each.limits for each in policies_of(self._reader.app).values())
        others = {one.name for limits in together if name in {each.name for each in limits} for one in limits} - {name}
        if others:
            yield f"its tasks also wait for {listed([one_line(each) for each in sorted(others)])}"
        if self._total.sent_back:
            yield "RateLimited held it back"
