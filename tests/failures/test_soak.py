"""After the work is done the store is back where it was; while there is nothing to do it is left alone."""

from __future__ import annotations

import re
import uuid

from redis import Redis

from tests.failures.tools import AT_ONCE, DOORS, LONG_LEASE, queued, unacknowledged
from tests.support.journal import Journal
from tests.support.state import State
from tests.support.waiting import always, until
from tests.support.workers import BASIC, Workers

#: Numbers that the store counts up, and the keys that it may have for each live worker.
COUNTERS = 3
A_WORKER = COUNTERS + 2


def test_keyspace_is_back_where_it_was(workers: Workers, journal: Journal, state: State) -> None:
    started = workers.start_many(2, BASIC, concurrency=3, options=("--max-tasks-per-child", "20"))
    app = workers.app(BASIC)
    declared = {
        "tests.support.apps.basic." + name for name in ("work", "work_late", "work_again", "one", "fail", "retry")
    }
    until(lambda: {each.name for each in state.throttle.status() if each.declared} == declared)
    before = state.size()

    revoked = []
    for number in range(15):
        for task in (app.work, app.work_late, app.work_again, app.one, app.fail, app.retry):
            task.delay(f"{task.name} {number}", 0.005)
        revoked.append(app.one.delay("revoked", 0.005))
        app.one.apply_async(["expired", 0.005], expires=0.1)
        task_id = str(uuid.uuid4())
        app.work_late.apply_async(["twice", 0.005], task_id=task_id)
        app.work_late.apply_async(["twice", 0.005], task_id=task_id)
    app.app.control.revoke([result.id for result in revoked])

    # 5 tasks once, one three times; of the others as many as were in time.
    journal.wait_finished(15 * (5 + 3), timeout=60)
    until(lambda: not unacknowledged(workers) and not queued(workers), timeout=30)
    state.wait_clean()
    assert {run.label for run in journal.runs()} >= {f"{name} {number}" for name in declared for number in range(15)}
    assert state.size() <= before + A_WORKER * len(started)
    for worker in started:
        worker.term()
    for worker in started:
        assert worker.wait() == 0
    assert state.size() <= before + COUNTERS


def test_waiting_tasks_cost_next_to_no_commands(redis: Redis, workers: Workers, journal: Journal, state: State) -> None:
    workers.conf["throttle_lease"] = LONG_LEASE
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
