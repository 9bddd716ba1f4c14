"""The printed report and its result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from tests.celery_suite import comparing
from tests.celery_suite.comparing import Difference
from tests.celery_suite.job import Run
from tests.celery_suite.listed import Known
from tests.celery_suite.runner import Done

__all__ = ["report", "say"]


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
        _print(f"\nonce only: {each.name}: {each.plain.what} plain, {each.throttled.what} throttled")
    for each in differences:
        entry = comparing.known(each, listed)
        _print(f"\nDIFFERENT: {each.name}: {each.plain.what} plain, {each.throttled.what} throttled")
        _print(f"listed: {entry.reason}" if entry else f"NOT LISTED\n{each.throttled.text or each.plain.text}")
    unlisted = [each for each in differences if comparing.known(each, listed) is None]
    gone = comparing.gone(listed, done, differences)
    for known in gone:
        _print(f"\nGONE: {known.test} ({known.where}) makes no difference any more; it is listed: {known.reason}")
    problems = [run for run, result in done.items() if result.problem or _nothing_waited(run, result)]
    for run in problems:
        _print(f"\nNO RUN: {run.name}: {done[run].problem or 'no task was ever parked'}")
    _print(
        f"\n{len(differences)} tests differ, {len(unlisted)} of them not listed; {len(gone)} listed ones do not; "
        f"{len(once)} did so once; {len(problems)} runs were none"
    )
    return 1 if unlisted or gone or problems else 0


def _nothing_waited(run: Run, done: Done) -> bool:
    """Whether the limit, low enough for that, has shown nothing."""
    return run.kind.limit is not None and run.kind.limit < run.scenario.slots and not done.parked


def _print(text: str) -> None:
    print(text, flush=True)  # noqa: T201
