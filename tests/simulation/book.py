"""The record of published messages, of runs, and of the exceptions that are allowed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.simulation.pool import Job
from tests.simulation.scene import Kind

__all__ = ["Attempt", "Book", "Entry", "Run"]


@dataclass(eq=False)
class Run:
    """A body that ran.

    Attributes:
        safe_until_us: until when its lease lasts for sure.
        lapsed: whether its lease may have been lost, or no worker renews it any more.
        from_broker: the delivery that it began with, None if the store had the message.
        outcome: its outcome, "" while it runs, "killed" if it had no end.
        heard: whether its worker has seen the end.
    """

    attempt: Attempt
    job: Job
    safe_until_us: int
    buckets: tuple[tuple[str, int], ...]
    from_broker: str | None = None
    lapsed: bool = False
    outcome: str = ""
    ended_us: int = 0
    heard: bool = False

    @property
    def entry(self) -> Entry:
        return self.attempt.entry

    @property
    def worker(self) -> Any:
        return self.job.worker

    @property
    def runs(self) -> bool:
        return not self.outcome


@dataclass(eq=False)
class Attempt:
    """One message: a task id and how many retries came before.

    Attributes:
        credit: how often more than once its body may begin.
        spare: the same, should the run that goes on now not come to a proper end.
        loose: deliveries that ended with the broker connection before they began: some may have been parked.
        excuses: why it need not run (again), empty if it must.
        done: whether a run of it has come to an end that counts.
    """

    entry: Entry
    number: int
    credit: int = 0
    spare: int = 0
    loose: int = 0
    excuses: list[str] = field(default_factory=list)
    done: bool = False
    runs: list[Run] = field(default_factory=list)
    why: list[str] = field(default_factory=list)

    @property
    def kind(self) -> Kind:
        return self.entry.kind

    @property
    def name(self) -> tuple[str, int]:
        """The task id, and how many retries came before."""
        return self.entry.task_id, self.number

    def may_begin_again(self, why: str) -> None:
        self.credit += 1
        self.why.append(why)

    def excuse(self, why: str) -> None:
        self.excuses.append(why)

    def __str__(self) -> str:
        return f"{self.kind.name}[{self.entry.task_id}]" + (f" retry {self.number}" if self.number else "")


@dataclass(eq=False)
class Entry:
    """One task id.

    Attributes:
        told: whether the result backend has the report that it does not run.
        replaced: whether a newer call has its place, and workers have that call.
        overtaken: how often another that came long after it was given a slot that it could have had.
        remembered: whether the store keeps its success for long: none of its messages has to run any more.
    """

    task_id: str
    kind: Kind
    arguments: dict[str, Any]
    number: int
    attempts: dict[int, Attempt] = field(default_factory=dict)
    told: bool = False
    replaced: bool = False
    remembered: bool = False
    overtaken: int = 0

    @property
    def identity(self) -> str:
        return self.kind.identity_of(self.arguments)

    @property
    def succeeded(self) -> bool:
        """Whether it has succeeded in a run that had lost its lease: a retry of the run beside it is needless."""
        return any(run.lapsed and run.heard and run.outcome == "success" for run in self.runs())

    def excuse(self, why: str) -> None:
        for attempt in self.attempts.values():
            attempt.excuse(why)

    def may_begin_again(self, why: str) -> None:
        for attempt in self.attempts.values():
            attempt.may_begin_again(why)

    def runs(self) -> list[Run]:
        return [run for attempt in self.attempts.values() for run in attempt.runs]


class Book:
    """Everything, by task id."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.running: list[Run] = []
        #: Task ids, as workers got them.
        self.arrived: dict[str, None] = {}
        #: Task ids that a pool was given, in order.
        self.given: dict[str, None] = {}
        #: Runs that succeeded, by identity, since the store was last emptied.
        self.succeeded: dict[str, list[Run]] = {}
        #: When permits of a limit with a rate were granted (us), and how many starts each was.
        self.starts: dict[str, list[tuple[int, int]]] = {}

    def publish(self, task_id: str, kind: Kind, arguments: dict[str, Any], number: int) -> None:
        entry = self.entries.setdefault(task_id, Entry(task_id, kind, arguments, len(self.entries)))
        entry.attempts[number] = Attempt(entry, number)

    def attempt(self, task_id: str, number: int) -> Attempt:
        return self.entries[task_id].attempts[number]

    def all(self) -> list[Attempt]:
        return [attempt for entry in self.entries.values() for attempt in entry.attempts.values()]

    def begin(self, run: Run) -> None:
        run.attempt.runs.append(run)
        self.running.append(run)

    def end(self, run: Run, outcome: str, now: int) -> None:
        run.outcome, run.ended_us = outcome, now
        if run in self.running:
            self.running.remove(run)

    def lapse(self, run: Run, why: str) -> None:
        """Mark this run as unprotected: another may begin beside it."""
        if not run.lapsed:
            run.lapsed = True
            run.attempt.may_begin_again(why)
