"""Where throttled tests end otherwise than plain ones: the known differences, the comparison and the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tests.celery_suite.job import Done, Outcome, Run
from tests.celery_suite.scenarios import PLAIN

__all__ = ["LISTED", "Difference", "Known", "confirmed", "repeats", "report", "say", "suspects"]


@dataclass(frozen=True, slots=True)
class Known:
    """A test that ends otherwise if its tasks are throttled.

    Attributes:
        test: file, class, name and parameters, as they are printed.
        where: on which workers, under which limit, as it is printed; ``*`` stands for anything.
        reason: why it may.
    """

    test: str
    where: str
    reason: str

    def is_at(self, run: Run, test: str) -> bool:
        return self.test == test and fnmatchcase(run.name, self.where)


#: The differences that are known. One that is not here, or no longer occurs, is an error.
LISTED: tuple[Known, ...] = ()


@dataclass(frozen=True)
class Difference:
    """A test that ends otherwise if its tasks are throttled."""

    run: Run
    test: str
    plain: Outcome
    throttled: Outcome

    def __str__(self) -> str:
        """As it is printed."""
        return f"{self.test} ({self.run.name}): {self.plain.what} plain, {self.throttled.what} throttled"


def suspects(done: Mapping[Run, Done]) -> list[Difference]:
    """Return the tests that end otherwise than in the plain run on the same worker, and have not failed there."""
    found = []
    for run, result in done.items():
        plain = done[Run(run.scenario, PLAIN, run.tests, run.chosen)].outcomes
        for test, outcome in result.outcomes.items():
            if test in plain and plain[test].what not in {"failed", outcome.what}:
                found.append(Difference(run, test, plain[test], outcome))
    return found


def repeats(found: Iterable[Difference]) -> list[Run]:
    """Return the runs that have each of these tests alone, plain and throttled."""
    both = ((each, kind) for each in found for kind in (PLAIN, each.run.kind))
    return list(dict.fromkeys(Run(each.run.scenario, kind, (each.test,)) for each, kind in both))


def confirmed(each: Difference, alone: Mapping[Run, Done]) -> bool:
    """Whether a test ends otherwise once more, alone: not if it now fails when plain, too."""
    plain, throttled = (alone[run].outcomes.get(each.test) for run in repeats([each]))
    if plain is None or plain.what == "failed":
        return False
    return throttled is None or throttled.what != plain.what


def say(run: Run, done: Done) -> None:
    """Print one line for a run that has ended, and why if it was none."""
    counts = Counter(each.what for each in done.outcomes.values())
    told = ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
    parked = f", {done.parked} tasks parked" if run.kind.limit is not None else ""
    alone = f": {run.tests[0]}" if "::" in run.tests[0] else ""
    _print(f"{run.name}{alone}: {told or 'nothing'}{parked}, {done.seconds:.0f} s")
    if done.problem:
        _print(f"{done.problem}:\n{done.log}")


def report(
    done: Mapping[Run, Done], once: Sequence[Difference], differences: Sequence[Difference], listed: Sequence[Known]
) -> int:
    """Print the differences; return 1 if anything is not as it is listed, else 0."""
    for each in once:
        _print(f"\nonce only: {each}")
    unlisted = 0
    for each in differences:
        entry = next((known for known in listed if known.is_at(each.run, each.test)), None)
        unlisted += entry is None
        _print(f"\nDIFFERENT: {each}")
        _print(f"listed: {entry.reason}" if entry else f"NOT LISTED\n{each.throttled.text or each.plain.text}")
    gone = [known for known in listed if _is_gone(known, done, differences)]
    for known in gone:
        _print(f"\nGONE: {known.test} ({known.where}) makes no difference any more; it is listed: {known.reason}")
    problems = [run for run, result in done.items() if result.problem or _nothing_waited(run, result)]
    for run in problems:
        _print(f"\nNO RUN: {run.name}: {done[run].problem or 'no task was ever parked'}")
    _print(
        f"\n{len(differences)} tests differ, {unlisted} of them not listed; {len(gone)} listed ones do not; "
        f"{len(once)} did so once; {len(problems)} runs were none"
    )
    return 1 if unlisted or gone or problems else 0


def _is_gone(known: Known, done: Mapping[Run, Done], differences: Sequence[Difference]) -> bool:
    """Whether its test was run, throttled, where it says, and made no difference."""
    throttled = [(run, test) for run, result in done.items() if run.kind != PLAIN for test in result.outcomes]
    was_run = any(known.is_at(run, test) for run, test in throttled)
    return was_run and not any(known.is_at(each.run, each.test) for each in differences)


def _nothing_waited(run: Run, done: Done) -> bool:
    """Whether the limit, low enough for that, has shown nothing."""
    return run.kind.limit is not None and run.kind.limit < run.scenario.slots and not done.parked


def _print(text: str) -> None:
    print(text, flush=True)  # noqa: T201
