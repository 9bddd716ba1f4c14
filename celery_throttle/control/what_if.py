"""Answer "what if": simulate an hour of a limit with other numbers or another load, beside its counts."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from celery_throttle.control.load import AS_COUNTED, counted_in
from celery_throttle.control.outcomes import HEADINGS, Outcome, compared, outcome_of
from celery_throttle.control.overrides import Numbers, status_after
from celery_throttle.control.rows import rows_of
from celery_throttle.control.simulation import MOST_TASKS, shortened, typical
from celery_throttle.core.buckets import Bucket
from celery_throttle.core.history import MINUTES
from celery_throttle.core.wording import counted, listed, often, one_line, span
from celery_throttle.errors import ConfigurationError
from celery_throttle.store.limit_status import permits_taken
from celery_throttle.tasks.registry import policies_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_throttle.control.load import Question
    from celery_throttle.control.reader import Reader
    from celery_throttle.control.simulation import Load
    from celery_throttle.store.history import History
    from celery_throttle.store.limit_status import LimitStatus

__all__ = ["Simulation", "simulate", "simulate_load"]

_ASSUMED = "Run times are drawn with a spread of {:g}: the counts have only their sum."
#: Shorter mean waits count as this, in seconds: a worker takes about as long to start a task.
_SHORT = 0.1


@dataclass(frozen=True)
class Simulation:
    """The outcomes of numbers of a limit under a load.

    Attributes:
        limit: the name of the limit; "" without a store.
        key: the value of the limit's key.
        seconds: the length of the simulation.
        per_second: the mean arrivals a second.
        run_time: the mean seconds of a run.
        spread: the standard deviation of run times, divided by their mean.
        cost: the permits that each task takes.
        parked: the number of tasks that are parked at the beginning.
        outcomes: the rows of the comparison, the measured one first.
        fits: whether the simulation of the last hour has a mean wait as measured, up to twice or half of it; None
            without counts.
        notes: a sentence for each assumption, and the possible reasons if it does not fit.
    """

    limit: str
    key: str | None
    seconds: float
    per_second: float
    run_time: float
    spread: float
    cost: int
    parked: int
    outcomes: tuple[Outcome, ...]
    fits: bool | None = None
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        rows = [HEADINGS, *(each.cells for each in self.outcomes)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
        return "\n".join([self.heading, *lines, *self.notes])

    @property
    def heading(self) -> str:
        """Its load, in one sentence."""
        name = f"{one_line(str(Bucket(self.limit, self.key)))}: " if self.limit else ""
        costs = f" of {counted(self.cost, 'permit')}" if self.cost > 1 else ""
        takes = span(self.run_time) if self.run_time >= 1 else f"{self.run_time:.2g} s"
        return (
            f"{name}{often(self.per_second)} arrive for {span(self.seconds)}, each run{costs} takes {takes} on average"
            f", {counted(self.parked, 'task')} in the line at the beginning."
        )


def simulate_load(numbers: Numbers, question: Question) -> Simulation:
    """Return the outcomes of a load without a store."""
    if question.needs_counts:
        raise ConfigurationError("simulate needs arrivals='5/s' and run_time='0.4s' without a limit").for_shell(
            "Without a LIMIT there are no counts: write `{command} --arrivals 5/s --runtime 0.4s --permits 8`"
        )
    return _simulation(Bucket(""), numbers, question.load(None, 1), question.target)


def simulate(reader: Reader, bucket: Bucket, asked: Numbers, question: Question) -> Simulation:
    """Return the outcomes of other numbers of a limit or key, and of another load."""
    stands = {each.bucket: each for each in reader.stand([bucket.text, Bucket(bucket.name).text])}
    status, after = stands[bucket], status_after(reader, bucket, asked, stands)[bucket]
    if not status.declared:
        raise ConfigurationError(f"Limit {bucket}: no worker has declared it, so its numbers are not known: start one")
    cost = _cost(reader, bucket.name)
    keyed = bucket.key is not None or rows_of(reader.app, [status])[0].keyed
    history = None if keyed else counted_in(reader.histories([bucket.name], MINUTES)[0])
    if history is None and question.needs_counts:
        raise _not_counted(bucket, keyed=keyed)
    load = question.load(history, cost)._replace(
        waits=(0.0,) * status.parked, running=status.held // cost, next_start_in=after.next_start_in
    )
    found = _simulation(bucket, Numbers(after.in_force, after.rates_in_force), load, question.target)
    if status.stopped:
        found = replace(found, notes=(*found.notes, f"Limit {bucket} is stopped now; the simulation leaves that out."))
    if history is None:
        return found
    numbers = Numbers(status.in_force, status.rates_in_force)
    measured, check = _measured(status, history, numbers, cost), _check(status, history, question, numbers, cost)
    misfit = tuple(_misfit(measured, check, reader, status, history, cost))
    outcomes, notes = (measured, check, *found.outcomes), (*found.notes, *misfit)
    return replace(found, outcomes=outcomes, fits=not misfit, notes=notes)


def _cost(reader: Reader, name: str) -> int:
    """Return the permits that each task of the app takes of a limit; 1 if that differs from task to task."""
    policies = policies_of(reader.app).values()
    costs = {each.cost for each in policies if name in {limit.name for limit in each.limits}}
    cost = costs.pop() if len(costs) == 1 else 1
    return cost if isinstance(cost, int) else 1


def _not_counted(bucket: Bucket, *, keyed: bool) -> ConfigurationError:
    reason = "its runs are counted for all its keys together" if keyed else "too few of its runs were counted"
    shell = f"`{{command}} {shlex.quote(str(bucket))} --arrivals 5/s --runtime 0.4s`"
    python = "simulate(arrivals='5/s', run_time='0.4s')"
    return ConfigurationError(f"Limit {bucket}: {reason}: write {python}").for_shell(
        f"Limit {bucket}: {reason}: write {shell}"
    )


def _simulation(bucket: Bucket, numbers: Numbers, load: Load, target: float | None) -> Simulation:
    notes, asked = [_ASSUMED.format(load.spread)], load.seconds
    load = shortened(load)
    if load.seconds < asked:
        notes.append(f"Only {span(load.seconds)} are simulated, because there are more than {MOST_TASKS} tasks.")
    outcomes = tuple(compared(load, numbers, target))
    if target is not None and outcomes[-1].what != "least":
        notes.append(f"No number keeps 95 % of the waits within {span(target)}.")
    return Simulation(
        bucket.name, bucket.key, load.seconds, load.per_second, load.run_time, load.spread, load.cost,
        len(load.waits), outcomes, notes=tuple(notes),
    )  # fmt: skip


def _measured(status: LimitStatus, history: History, numbers: Numbers, cost: int) -> Outcome:
    """Return the outcome that was counted in the last hour."""
    total, permits = history.total, numbers.permits
    taken = cost if permits is None else permits_taken(cost, permits)
    started = max(total.started, 1)
    return Outcome(
        what="measured",
        permits=permits,
        rates=numbers.rates,
        arrived=total.at_once + total.parked,
        started=total.started,
        waiting=status.parked,
        waited=sum(total.waited) / started,
        wait_mean=total.wait_time / started,
        wait_p50=total.wait(0.5),
        wait_p95=total.wait(0.95),
        wait_most=total.wait(1),
        used=taken * total.run_time / total.length,
    )


def _check(status: LimitStatus, history: History, question: Question, numbers: Numbers, cost: int) -> Outcome:
    """Return the outcome of a simulation of the last hour: the same arrivals, and the present numbers."""
    total = history.total
    load = question._replace(arrivals=AS_COUNTED, run_time=AS_COUNTED, seconds=total.length).load(history, cost)
    parked = max(status.parked - total.parked - total.sent_back + sum(total.waited), 0)
    waits = tuple(number / (load.per_second or 1) for number in range(parked, 0, -1))
    load = shortened(load._replace(waits=waits, running=status.held // cost))
    return outcome_of("check", numbers, load, typical(load, numbers), begun=True)


def _misfit(
    measured: Outcome, check: Outcome, reader: Reader, status: LimitStatus, history: History, cost: int
) -> Iterator[str]:
    """Yield the sentences for a model that does not fit: the mean waits differ by a factor of more than two."""
    waited, simulated = measured.wait_mean or 0.0, check.wait_mean or 0.0
    short, long = sorted((max(waited, _SHORT), max(simulated, _SHORT)))
    if long > 2 * short:
        reasons = _reasons(reader, status, history, cost, longer=waited > simulated)
        yield (
            f"! The model does not fit: tasks waited {span(waited)} on average, in the simulation {span(simulated)}. "
            f"Possible reasons: {'; '.join(reasons)}."
        )


def _reasons(reader: Reader, status: LimitStatus, history: History, cost: int, *, longer: bool) -> Iterator[str]:
    """Yield the possible reasons why tasks waited longer, or shorter, than in the simulation."""
    begin, total = history.periods[0].since, history.total
    if any(each.at >= begin for each in reader.audit(status.bucket, 200)):
        yield "the limit was changed in that time"
    if not longer:
        yield "run times that differ less (spread 0: all alike)"
        return
    yield "bursts within a minute, or slow workers"
    name, permits, most = status.name, status.in_force, total.held_most
    if permits and most is not None and most + cost <= permits:
        yield f"workers short of slots ({most} of {permits} permits were held at most)"
    together = (each.limits for each in policies_of(reader.app).values())
    others = {one.name for limits in together if name in {each.name for each in limits} for one in limits} - {name}
    if others:
        yield f"its tasks also wait for {listed([one_line(each) for each in sorted(others)])}"
    if total.sent_back:
        yield "RateLimited held it back"
