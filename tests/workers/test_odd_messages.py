"""A message that no publisher of ours would write costs its own task at most: other calls run, and no cap breaks."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from tests.support.journal import Journal
from tests.support.odd import LOG_FORMAT, lines_of_ours, put, raw
from tests.support.state import State
from tests.support.waiting import until
from tests.support.workers import Worker, Workers

ODD = "tests.support.apps.odd"
SURROGATE = "\ud800x"
INNOCENT = 12
#: The most lines in the log of a worker for each odd message, beside those of Celery about each call.
MOST_LINES = 20


class Case(NamedTuple):
    """A kind of odd messages: their task, headers and number."""

    task: str
    headers: dict[str, Any]
    number: int = 1
    body: Any = None


@pytest.fixture
def workers(workers: Workers) -> Workers:
    """With logs that `lines_of_ours` can read."""
    workers.conf["worker_log_format"] = LOG_FORMAT
    return workers


def of_header(task: str, **header: Any) -> Case:
    return Case(task, {"throttle": header})


#: Plain Celery runs all innocent calls beside each.
CASES = {
    "id that is a number": Case("one", {"id": 7}),
    "id with a surrogate": Case("one", {"id": SURROGATE}),
    "id with a zero byte": Case("one", {"id": "\0x"}),
    "empty id": Case("one", {"id": ""}),
    "retries that are no number": Case("one", {"retries": "x"}, 8),
    "huge retries": Case("one", {"retries": 1e308}),
    "nesting that is no number": Case("one", {"replaced_task_nesting": [1]}, 8),
    "key with a surrogate": of_header("keyed", keys={f"{ODD}.keyed": SURROGATE}),
    "turn with a surrogate": of_header("fair", fair=[SURROGATE, 1]),
    "turn with a step that is no number": of_header("fair", fair=["a", True]),
    "identity with a surrogate": of_header("once", identity="\ud800" * 40, on_conflict="skip"),
    "claim of other digits": of_header("once", identity="a" * 40, on_conflict="skip", claim="٣"),
    "first with a surrogate": of_header("once", identity="a" * 40, on_conflict="skip", first=SURROGATE),
    "booking with a surrogate": of_header("paced", reserved=SURROGATE),
    "stamps that are no list": Case("one", {"stamped_headers": 7}),
    "links that are no object": Case("one", {}, body=[["odd"], {}, [1]]),
    "arguments that are no list": Case("keyed", {}, body=[7, {}, {}]),
}


def odd_messages(case: Case) -> list[dict[str, Any]]:
    return [raw(f"{ODD}.{case.task}", case.headers, body=case.body) for _ in range(case.number)]


def assert_innocent_run(app: Any, worker: Worker, odd: int) -> None:
    """Check that calls of another task run, and that the log has few lines."""
    results = [app.innocent.delay(f"i{number}") for number in range(INNOCENT)]
    until(lambda: all(each.ready() for each in results), timeout=20, describe=worker.tail)
    assert len(lines_of_ours(worker.log())) < odd * MOST_LINES, worker.tail()
    assert "refused a call" not in worker.log()


@pytest.mark.parametrize("name", CASES)
def test_odd_message_leaves_other_calls_alone(workers: Workers, state: State, name: str) -> None:
    worker = workers.start(ODD, pool="threads", concurrency=4)
    app, case = workers.app(ODD), CASES[name]
    put(workers.broker, *odd_messages(case))
    assert_innocent_run(app, worker, case.number)
    until(lambda: not state.holders and not state.count, timeout=15, describe=worker.tail)
    assert_innocent_run(app, worker, case.number)


def test_parked_task_with_an_odd_name_runs_once(workers: Workers, state: State, journal: Journal) -> None:
    """Celery counts calls by their name, and acknowledges none whose name cannot be counted."""
    workers.start(ODD, concurrency=2)
    app = workers.app(ODD)
    state.limit(f"{ODD}.one").pause()
    odd = raw(f"{ODD}.one", {"shadow": [1]})
    put(workers.broker, odd)
    state.wait_parked(1)
    state.limit(f"{ODD}.one").resume()
    journal.wait_finished(1, "odd")
    state.wait_empty()
    assert app.one.AsyncResult(odd["headers"]["id"]).state == "SUCCESS"
    assert len(journal.runs("odd")) == 1


@pytest.mark.parametrize("pool", ["threads", "prefork"])
@pytest.mark.parametrize("limits", [[1], 7, ["x", None]])
def test_parked_task_with_odd_time_limits_fails(
    workers: Workers, state: State, journal: Journal, pool: str, limits: Any
) -> None:
    worker = workers.start(ODD, pool=pool, concurrency=2)
    app = workers.app(ODD)
    state.limit(f"{ODD}.one").pause()
    state.wait_parked(app.one.delay("first"))
    odd = raw(f"{ODD}.one", {"timelimit": limits})
    put(workers.broker, odd)
    worker.wait_for_log(rf"{odd['headers']['id']}\] received")
    state.limit(f"{ODD}.one").resume()
    result = app.one.AsyncResult(odd["headers"]["id"])
    until(result.ready, timeout=10, describe=worker.tail)
    assert result.state == "FAILURE"
    assert "timelimit" in str(result.result)
    assert repr(limits) in str(result.result)
    assert_innocent_run(app, worker, 1)
    assert not journal.runs("odd")


@pytest.mark.parametrize("cost", [0, True, [1], -1, None, 1e308])
def test_odd_cost_of_a_fixed_cost_exceeds_no_cap(workers: Workers, state: State, journal: Journal, cost: Any) -> None:
    worker = workers.start(ODD, pool="threads", concurrency=8)
    workers.app(ODD)
    header = {"keys": {f"{ODD}.held": "odd"}, "cost": cost}
    put(workers.broker, *(raw(f"{ODD}.held", {"throttle": header}) for _ in range(6)))
    journal.wait_running(2)
    until(lambda: state.count == 4, describe=worker.tail)
    journal.let_all_go()
    journal.wait_finished(6)
    assert journal.max_running() == 2
    assert not state.throttle.set_aside()


@pytest.mark.parametrize("key", ["a\0b", "a\x01b", "a\x1db", "\x1dhost", "", "x" * 5000, 7])
def test_key_that_cannot_be_used_is_read_from_the_arguments(
    workers: Workers, state: State, journal: Journal, key: Any
) -> None:
    worker = workers.start(ODD, pool="threads", concurrency=4)
    header = {"keys": {f"{ODD}.held": key}}
    put(workers.broker, *(raw(f"{ODD}.held", {"throttle": header}) for _ in range(3)))
    journal.wait_running(2)
    until(lambda: state.count == 1, describe=worker.tail)
    assert state.used == {f"{ODD}.held[odd]": 2}
    journal.let_all_go()
    journal.wait_finished(3)
    assert not state.throttle.set_aside()


def test_odd_cost_does_not_stop_the_counts_of_a_worker(workers: Workers, journal: Journal) -> None:
    worker = workers.start(ODD, pool="threads", concurrency=4)
    put(workers.broker, raw(f"{ODD}.paced", {"throttle": {"cost": 1e308}}))
    journal.wait_finished(1, "odd")
    worker.term()  # a worker sends the rest of its counts at its end
    worker.wait()
    assert "Traceback" not in worker.log()


def test_cost_that_cannot_be_used_is_computed_again(workers: Workers, state: State, journal: Journal) -> None:
    workers.start(ODD, pool="threads", concurrency=4)
    put(workers.broker, raw(f"{ODD}.weighed", {"throttle": {"cost": 1e308}}, body=[["odd", 30.0], {}, {}]))
    journal.wait_running(1, "odd")
    assert state.used == {"weighed": 2}


# -- rows that the parsing would have missed ---------------------------------------------------------------------------


def test_task_that_the_store_refuses_fails_alone(workers: Workers, state: State) -> None:
    """No check of its key: the store refuses each call that has its row."""
    worker = workers.start(ODD, pool="threads", concurrency=4, env={"UNCHECKED": "key"})
    app = workers.app(ODD)
    odd = [raw(f"{ODD}.keyed", {"throttle": {"keys": {f"{ODD}.keyed": SURROGATE}}}) for _ in range(2)]
    innocent = [raw(f"{ODD}.innocent", body=[[f"beside {number}"], {}, {}]) for number in range(10)]
    put(workers.broker, *innocent[:4], odd[0], *innocent[4:], odd[1])
    for each in odd:
        result = app.keyed.AsyncResult(each["headers"]["id"])
        until(result.ready, timeout=15, describe=worker.tail)
        assert "the store refuses what its message has: " in str(result.result)
    for each in innocent:
        assert app.innocent.AsyncResult(each["headers"]["id"]).get(timeout=15)
    assert len(lines_of_ours(worker.log())) < 2 * MOST_LINES, worker.tail()
    until(lambda: not state.holders and not state.count)


def test_task_whose_row_cannot_be_written_fails_alone(workers: Workers, state: State, journal: Journal) -> None:
    """No check of its id: the worker cannot write a call that has its row."""
    worker = workers.start(ODD, pool="threads", concurrency=4, env={"UNCHECKED": "id"})
    app = workers.app(ODD)
    odd = raw(f"{ODD}.one", {"id": 7})
    innocent = [raw(f"{ODD}.innocent", body=[[f"beside {number}"], {}, {}]) for number in range(10)]
    put(workers.broker, *innocent[:4], odd, *innocent[4:])
    for each in innocent:
        assert app.innocent.AsyncResult(each["headers"]["id"]).get(timeout=15)
    worker.wait_for_log("the store refuses what its message has: ")
    until(lambda: not state.holders and not state.count)
    assert not journal.runs("odd")
