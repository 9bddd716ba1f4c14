"""After the work is done the store is back where it was; while there is nothing to do it is left alone."""

from __future__ import annotations

import re

from redis import Redis

from tests.failures.tools import AT_ONCE, DOORS
from tests.support.journal import Journal
from tests.support.state import State
from tests.support.waiting import always, until
from tests.support.workers import Workers

#: Numbers that the store counts up, and the keys that it may have for each live worker.
COUNTERS = 3
A_WORKER = COUNTERS + 2


def test_waiting_tasks_cost_next_to_no_commands(redis: Redis, workers: Workers, journal: Journal, state: State) -> None:
    started = workers.start_many(2, DOORS, concurrency=2)
    app = workers.app(DOORS)
    journal.wait_begun(app.hold.delay("first"))

    def told() -> int:
        logs = "\n".join(worker.log() for worker in started)
        lines = re.findall(r"\] parked\b.*?(?:; and (\d+) more in the last second)?$", logs, re.MULTILINE)
        return sum(1 + int(others or 0) for others in lines)

    def scripts() -> int:
        statistics = redis.info("commandstats")
        return sum(int(statistics.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in ("eval", "evalsha"))

    began = scripts()
    for number in range(200):
        app.hold.delay(f"parked {number}")
    until(lambda: len(state.parked) == 200, timeout=30)
    # A constant number for each task that came by (park, perhaps ask before) ...
    assert scripts() - began <= 200 * 3 + 50
    until(lambda: told() == 200, timeout=10)  # each second with parked tasks asks the store about one
    # ... and then silence, but for a look every five seconds.
    settled = scripts()
    always(lambda: scripts() <= settled + 5, seconds=2, every=0.2)

    journal.let_all_go()
    journal.wait_finished(201, timeout=AT_ONCE * 2)
    assert scripts() - began <= 200 * 6 + 50
    state.wait_clean()
