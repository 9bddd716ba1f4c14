"""A worker is SIGKILLed whose tasks hold permits of several limits: all of them come back, and nothing else changes."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.failures.tools import SHORT_LEASE, redeliver
from tests.support.journal import Journal, Run, peak
from tests.support.state import State
from tests.support.waiting import until
from tests.support.workers import Workers

TERMS = "tests.support.apps.terms"


@pytest.mark.slow
def test_a_worker_is_lost_in_the_middle(workers: Workers, journal: Journal, state: State) -> None:
    """Caps hold, parked tasks run, and tasks that are acknowledged late run again."""
    workers.conf["throttle_lease"] = SHORT_LEASE
    app = workers.app(TERMS)
    tenants = [f"t{number % 5}" for number in range(100)]
    for number, tenant in enumerate(tenants):  # before there are workers, which might be done with them by the last one
        (app.both_late if number % 2 else app.both).delay(tenant, 0.1)
    lost, other = workers.start_many(2, TERMS, concurrency=6)
    journal.wait_finished(20)
    # None is on its way from the broker, where Celery's own transport loses it: an empty queue is no proof.
    until(lambda: (lost.log() + other.log()).count("] received\n") == len(tenants))
    until(lambda: any(run.worker.startswith(lost.name) for run in journal.running()))

    lost.kill()

    early, late = (Counter(tenants[half::2]) for half in (0, 1))

    def there(runs: list[Run]) -> list[Run]:
        """Without those that began while their worker was killed: their end was not noted."""
        return [run for run in runs if run.stopped is not None or not run.worker.startswith(lost.name)]

    def done() -> bool:
        if not there(journal.running()) and not state.parked:
            redeliver(workers)  # the unacknowledged messages of the lost one, as the broker does after its timeout
        # A task that was killed between its last line and the word that it has ended runs again.
        return Counter(run.label for run in journal.finished(task=".both_late")) >= late

    until(
        done,
        timeout=60,
        every=0.2,
        describe=lambda: f"{journal.summary()} {state.describe()}",
    )
    state.wait_clean()
    # Acknowledged when they were given to a child, so only the tasks of the children are lost; or one runs again if the
    # worker was killed before it could report that a child had it.
    gone = early - Counter(run.label for run in journal.finished(task=".both"))
    assert len(journal.runs(task=".both")) <= 50 + 6
    assert sum(gone.values()) <= 6
    assert peak(there(journal.runs())) <= 8
    assert max(peak(there(journal.runs(tenant))) for tenant in set(tenants)) <= 2
