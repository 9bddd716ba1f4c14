"""Answer "what if": simulate an hour of a limit with other numbers or another load, beside its counts."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from celery_throttle.control.last_hour import LastHour
from celery_throttle.control.load import counted_in
from celery_throttle.control.outcomes import HEADINGS, Outcome, compared
from celery_throttle.control.rows import rows_of
from celery_throttle.control.simulation import MOST_TASKS, Begin, Load, Numbers, shortened
from celery_throttle.control.status_after import status_after
from celery_throttle.core.buckets import Bucket
from celery_throttle.core.history import MINUTES
from celery_throttle.core.wording import counted, often, one_line, span
from celery_throttle.errors import ConfigurationError
from celery_throttle.tasks.registry import policies_of

if TYPE_CHECKING:
    from celery_throttle.control.load import Question
    from celery_throttle.control.overrides import Override
    from celery_throttle.control.reader import Reader

__all__ = ["Simulation", "simulate", "simulate_load"]

_ASSUMED = "Run times are drawn with a spread of {:g}: the counts have only their sum."


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
    return _simulation(Bucket(""), numbers, question.load(None, 1), Begin(), question)


def simulate(reader: Reader, bucket: Bucket, asked: Override, question: Question) -> Simulation:
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
    load = question.load(history, cost)
    numbers = Numbers(after.in_force, after.rates_in_force)
    begin = Begin((0.0,) * status.parked, status.held // cost, after.next_start_in)
    found = _simulation(bucket, numbers, load, begin, question)
    if status.stopped:
        found = replace(found, notes=(*found.notes, f"Limit {bucket} is stopped now; the simulation leaves that out."))
    return found if history is None else _beside(found, LastHour(reader, status, history, question, cost))


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


def _beside(found: Simulation, hour: LastHour) -> Simulation:
    """Return the simulation with the outcomes of the last hour, measured and simulated."""
    outcomes, fits = (hour.measured, hour.check, *found.outcomes), hour.fits
    return replace(found, outcomes=outcomes, fits=fits, notes=(*found.notes, *([] if fits else [hour.reasons()])))


def _simulation(bucket: Bucket, numbers: Numbers, load: Load, begin: Begin, question: Question) -> Simulation:
    notes, asked = [_ASSUMED.format(load.spread)], question.seconds
    question = question._replace(seconds=shortened(load, asked, len(begin.waits)))
    if question.seconds < asked:
        notes.append(f"Only {span(question.seconds)} are simulated, because there are more than {MOST_TASKS} tasks.")
    outcomes = tuple(compared(load, numbers, begin, question))
    if question.target is not None and outcomes[-1].what != "least":
        notes.append(f"No number keeps 95 % of the waits within {span(question.target)}.")
    return Simulation(
        bucket.name, bucket.key, question.seconds, load.per_second, load.run_time, load.spread, load.cost,
        len(begin.waits), outcomes, notes=tuple(notes),
    )  # fmt: skip
