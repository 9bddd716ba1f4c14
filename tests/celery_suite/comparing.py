"""Where throttled tests end otherwise than plain ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tests.celery_suite.job import Run
from tests.celery_suite.listed import Known
from tests.celery_suite.outcomes import Outcome
from tests.celery_suite.runner import Done
from tests.celery_suite.scenarios import PLAIN

__all__ = ["Difference", "confirmed", "gone", "known", "repeats", "suspects"]


@dataclass(frozen=True)
class Difference:
    """A test that ends otherwise if its tasks are throttled."""

    run: Run
    test: str
    plain: Outcome
    throttled: Outcome

    @property
    def name(self) -> str:
        """As it is printed."""
        return f"{self.test} ({self.run.name})"


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
    plain, throttled = (
        alone[Run(each.run.scenario, kind, (each.test,))].outcomes.get(each.test) for kind in (PLAIN, each.run.kind)
    )
    if plain is None or plain.what == "failed":
        return False
    return throttled is None or throttled.what != plain.what


def known(difference: Difference, listed: Sequence[Known]) -> Known | None:
    """Return the entry of the list that has this difference."""
    return next((each for each in listed if _is_at(each, difference.run, difference.test)), None)


def gone(listed: Sequence[Known], done: Mapping[Run, Done], differences: Sequence[Difference]) -> list[Known]:
    """Return the entries whose test was run, throttled, where they say, and made no difference."""
    return [
        each
        for each in listed
        if any(_is_at(each, run, test) for run, result in done.items() if run.kind != PLAIN for test in result.outcomes)
        and not any(_is_at(each, difference.run, difference.test) for difference in differences)
    ]


def _is_at(each: Known, run: Run, test: str) -> bool:
    return each.test == test and fnmatchcase(run.name, each.where)
