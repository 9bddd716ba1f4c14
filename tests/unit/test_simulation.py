"""The simulation of a limit: against formulas of queueing theory, and against its own rules."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from math import inf
from statistics import mean
from typing import Any

import pytest

from celery_throttle import ConfigurationError
from celery_throttle.control import simulation, what_if
from celery_throttle.control.load import read_question
from celery_throttle.control.outcomes import Outcome, compared, outcome_of
from celery_throttle.control.overrides import Numbers
from celery_throttle.control.simulation import MOST_TASKS, Load, Tasks, drawn, shortened, starts_of
from celery_throttle.control.what_if import simulate_load
from celery_throttle.store.limit_status import RateStatus
from tests.unit.refusals import rows

RUN_TIME = 2.0


def simulated(load: Load, numbers: Numbers, seconds: float, *, seed: int = 1) -> tuple[Outcome, list[float]]:
    """The outcome, and the start of each task."""
    load = load._replace(seconds=seconds, seed=seed)
    tasks = drawn(load)
    return outcome_of("asked", numbers, load, tasks), starts_of(tasks, numbers, load.cost, load.next_start_in)


def rows_of(**options: Any) -> dict[str, Outcome]:
    """The compared outcomes of eight permits that are used to seven eighths."""
    numbers = options.pop("numbers", Numbers(8))
    question = read_question(**{"arrivals": "3.5/s", "run_time": RUN_TIME} | options)
    return {each.what: each for each in compared(question.load(None, 1), numbers, question.target)}


# -- formulas ----------------------------------------------------------------------------------------------------------


def erlang_c(permits: int, work: float) -> float:
    """The share of tasks that wait in M/M/k, by the recursion of Erlang B."""
    blocked = 1.0
    for number in range(1, permits + 1):
        blocked = work * blocked / (number + work * blocked)
    return blocked / (1 - work / permits * (1 - blocked))


@pytest.mark.parametrize("permits", [1, 8, 50])
@pytest.mark.parametrize(("use", "rounds"), [(0.5, 1), (0.7, 1), (0.85, 4), (0.95, 6)])
def test_waits_are_those_of_erlang_c(permits: int, use: float, rounds: int) -> None:
    work = use * permits
    load = Load((work / RUN_TIME,), RUN_TIME)
    found = [simulated(load, Numbers(permits), 300_000 / load.per_second, seed=seed)[0] for seed in range(rounds)]
    share = erlang_c(permits, work)
    assert mean(each.waited for each in found) == pytest.approx(share, rel=0.05, abs=0.001)
    wait = share * RUN_TIME / (permits - work)
    assert mean(each.wait_mean or 0 for each in found) == pytest.approx(wait, rel=0.05, abs=0.001)
    assert mean(each.used for each in found) == pytest.approx(work, rel=0.02)


@pytest.mark.parametrize(
    ("arrivals", "spread", "times_as_long", "within"), [(0.4, 0.0, 1 / 2, 0.05), (0.35, 2.0, (1 + 4) / 2, 0.1)]
)
def test_wait_grows_with_the_spread_of_run_times(
    arrivals: float, spread: float, times_as_long: float, within: float
) -> None:
    loads = Load((arrivals,), RUN_TIME, 1.0), Load((arrivals,), RUN_TIME, spread)
    usual, found = (simulated(load, Numbers(1), 500_000.0)[0].wait_mean or 0.0 for load in loads)
    assert found / usual == pytest.approx(times_as_long, rel=within)
    used = arrivals * RUN_TIME
    assert usual == pytest.approx(used * RUN_TIME / (1 - used), rel=0.05)


def test_no_window_has_more_starts_than_rate_and_burst() -> None:
    rates = RateStatus("10/s", 5), RateStatus("120/m", 40)
    _, starts = simulated(Load((30.0,), 0.1), Numbers(None, rates), 600.0)
    for rate in rates:
        for first, last in zip(starts, starts[rate.burst :], strict=False):
            assert last - first >= 1 / rate.per_second - 1e-9
        window = starts[2 * rate.burst :]
        assert all(b - a >= (rate.burst + 1) / rate.per_second - 1e-6 for a, b in zip(starts, window, strict=False))


# -- rules -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("numbers", [Numbers(2), Numbers(None, (RateStatus("2/s", 3),)), Numbers(None)])
def test_tasks_that_arrived_have_started_or_wait(numbers: Numbers) -> None:
    found, starts = simulated(Load((3.5,), RUN_TIME, waits=(0.0,) * 30, running=2), numbers, 600.0)
    assert found.started + found.waiting == found.arrived == len(starts) > 2000
    assert found.used <= (numbers.permits or inf)
    assert starts == sorted(starts)


def test_the_same_seed_gives_the_same_outcomes() -> None:
    assert rows_of(seed=3) == rows_of(seed=3) != rows_of(seed=4)


def test_a_line_is_gone_later_while_tasks_arrive() -> None:
    """Eighty tasks of two seconds with eight permits, and no others: the last eight start after nine rounds."""
    load = Load((0.0001,), RUN_TIME, spread=0.0, waits=(0.0,) * 80, running=8)
    found, _ = simulated(load, Numbers(8), 600.0)
    assert (found.gone_in, found.wait_most) == pytest.approx((20.0, 20.0))
    load = Load((3.0,), RUN_TIME, waits=(0.0,) * 1000, running=8)
    found, _ = simulated(load, Numbers(8), 3600.0)
    assert found.gone_in == pytest.approx(1000 / (8 / RUN_TIME - 3.0), rel=0.2)
    assert found.never == ""
    later, _ = simulated(load, Numbers(8), 600.0)
    assert (later.gone_in, later.cells[-1]) == (None, "later")


def test_a_lowered_limit_drains_first() -> None:
    tasks = drawn(Load((1.0,), RUN_TIME, seconds=60.0, waits=(0.0,), running=5))
    assert starts_of(tasks, Numbers(2))[0] == tasks.ends[3], "one of two has to end after three that are too many"


def test_a_task_that_needs_more_than_the_limit_has_runs_alone() -> None:
    _, wide = simulated(Load((0.4,), RUN_TIME, cost=5), Numbers(3), 600.0)
    _, alone = simulated(Load((0.4,), RUN_TIME), Numbers(1), 600.0)
    assert wide == alone


@pytest.mark.parametrize(
    ("rate", "options", "starts"),
    [
        (RateStatus("1/s", 3), {}, [0, 0, 0, 1, 2]),
        pytest.param(RateStatus("1/s", 3), {"next_start_in": 0.5}, [0.5, 1.5, 2.5, 3.5, 4.5], id="no burst is left"),
        pytest.param(RateStatus("1/s", 1), {"cost": 2}, [0, 2, 4, 6, 8], id="it takes as many starts as permits"),
        (RateStatus("1/s", 4), {"cost": 2}, [0, 0, 2, 4, 6]),
    ],
)
def test_starts_at_a_rate(rate: RateStatus, options: dict[str, Any], starts: list[float]) -> None:
    assert starts_of(Tasks([0.0] * 5, [0.1] * 5, []), Numbers(None, (rate,)), **options) == starts


def test_rates_of_minutes_follow_each_other() -> None:
    tasks = drawn(Load((0.0, 10.0), 1.0, seconds=240.0))
    assert {int(each // 60) for each in tasks.arrivals} == {1, 3}
    assert len(tasks.arrivals) == pytest.approx(1200, rel=0.1)


def test_a_simulation_of_very_many_tasks_is_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    load = Load((1000.0,), 0.1)
    assert shortened(load).seconds == pytest.approx(MOST_TASKS / 1000)
    assert shortened(load._replace(seconds=60.0)).seconds == 60.0
    assert shortened(load._replace(waits=(0.0,) * 10 * MOST_TASKS)).seconds == pytest.approx(50.0)
    for module in (simulation, what_if):
        monkeypatch.setattr(module, "MOST_TASKS", 5000)
    found = simulate_load(Numbers(8), read_question(arrivals=10, run_time=0.1))
    assert found.seconds == pytest.approx(500)
    assert "Only 8m 20s are simulated, because there are more than 5000 tasks." in found.notes


# -- outcomes ----------------------------------------------------------------------------------------------------------


def outcome(tasks: Tasks, permits: int, seconds: float, *, begun: bool = False) -> Outcome:
    return outcome_of("asked", Numbers(permits), Load((0.1,), 1.0, seconds=seconds), tasks, begun=begun)


def test_counts_of_an_outcome() -> None:
    assert outcome(Tasks([0.0, 0.0, 1.5], [1.0] * 3, []), 1, 60.0).gone_in == 1.0, "before the next arrival"
    assert outcome(Tasks([0.0, 0.0, 0.5, 2.5], [1.0] * 4, []), 1, 60.0).gone_in == 2.0
    tasks = Tasks([0.0] * 3, [10.0] * 3, [])
    assert outcome(tasks, 1, 15.0).wait_mean == 10.0
    assert outcome(tasks, 1, 15.0, begun=True).wait_mean == 5.0, "without those that start later"
    used = outcome(Tasks([2.0, 2.0], [1.0, 50.0], [1.0, 50.0]), 8, 10.0).used
    assert used == (1 + 8 + 1 + 10) / 10, "permits are in use until the end at most"


def test_neighbours_are_a_quarter_less_and_more() -> None:
    found = rows_of()
    assert {what: each.permits for what, each in found.items()} == {"asked": 8, "fewer": 6, "more": 10}
    waits = [found[what].wait_p95 or 0 for what in ("fewer", "asked", "more")]
    assert waits == sorted(waits, reverse=True)
    assert found["fewer"].never == "7.0 permits of work arrive for 6"
    assert list(rows_of(numbers=Numbers(1))) == ["asked", "more"], "there is no number below one"
    assert list(rows_of(numbers=Numbers(None))) == ["asked"]


def test_neighbours_of_a_rate_are_other_rates() -> None:
    found = rows_of(numbers=Numbers(None, (RateStatus("8/s", 1), RateStatus("240/m", 10))), target=1)
    rates = {what: [str(rate) for rate in each.rates] for what, each in found.items()}
    assert rates["fewer"] == ["8/s", "180/m (burst 10)"]
    assert rates["more"] == ["8/s", "300/m (burst 10)"]
    assert found["fewer"].never == "3.5 a second arrive for the rate 180/m"
    assert found["least"].rates[0] == RateStatus("8/s", 1)


@pytest.mark.parametrize("permits", [2, 8, 40])
def test_the_least_number_meets_the_target_one_less_does_not(permits: int) -> None:
    least = rows_of(numbers=Numbers(permits), target=2)["least"]
    assert least.wait_p95 is not None
    assert least.wait_p95 <= 2
    assert least.permits is not None
    assert (rows_of(numbers=Numbers(least.permits - 1))["asked"].wait_p95 or 0) > 2


def test_a_target_that_no_number_meets_is_reported() -> None:
    question = read_question(arrivals=5, run_time=1, target=2)
    found = simulate_load(Numbers(8, (RateStatus("2/s", 1),)), question)
    assert [each.what for each in found.outcomes] == ["asked", "fewer", "more"]
    assert "No number keeps 95 % of the waits within 2.0 s." in found.notes


def test_a_simulation_prints_as_a_table() -> None:
    found = simulate_load(Numbers(8), read_question(arrivals="3.5/s", run_time=timedelta(seconds=2), spread=0))
    lines = str(found).splitlines()
    assert lines[0] == (
        "3.5 a second arrive for 1h 0m, each run takes 2.0 s on average, 0 tasks in the line at the beginning."
    )
    assert lines[1].split()[:3] == ["OUTCOME", "PERMITS", "RATE"]
    assert [line.split()[:2] for line in lines[2:5]] == [["asked", "8"], ["-25%", "6"], ["+25%", "10"]]
    assert lines[5] == "Run times are drawn with a spread of 0: the counts have only their sum."
    assert "each run takes 0.025 s on average" in replace(found, run_time=0.025).heading
    assert str(replace(found, limit="tenant", key="acme", cost=3)).startswith("tenant[acme]: 3.5 a second arrive")


# -- options -----------------------------------------------------------------------------------------------------------


#: A wrong option, and how to write it in Python and in a shell.
WRONG = rows("""
arrivals='5' => arrivals='x1.5' or arrivals='5/s' | --arrivals x1.5 or --arrivals 5/s
arrivals='x0' => arrivals='x1.5' or arrivals='5/s' | --arrivals x1.5 or --arrivals 5/s
arrivals=True => arrivals='x1.5' or arrivals='5/s' | --arrivals x1.5 or --arrivals 5/s
arrivals=-1 => arrivals='x1.5' or arrivals='5/s' | --arrivals x1.5 or --arrivals 5/s
run_time='0s' => run_time='x2' or run_time='0.4s' | --runtime x2 or --runtime 0.4s
run_time=float('inf') => run_time='x2' or run_time='0.4s' | --runtime x2 or --runtime 0.4s
spread=11 => spread=0.5 | --spread 0.5
spread='1' => spread=0.5 | --spread 0.5
lasts=0 => lasts=3600 |
lasts='1h' => lasts=3600 |
target=-1 => target=2 |
seed=1.5 => seed=0 |
""")


@pytest.mark.parametrize(("code", "fixes"), WRONG)
def test_a_wrong_option_gets_its_name_and_the_fix(code: str, fixes: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        eval(f"read_question({code})")
    python, shell = fixes.split(" |")
    assert str(caught.value).startswith(f"simulate: {code.partition('=')[0]} must be ")
    assert str(caught.value).endswith(f"write {python}")
    assert caught.value.shell.endswith(shell.strip())


@pytest.mark.parametrize(
    ("options", "per_second", "seconds"),
    [
        ({"arrivals": "5/s", "run_time": "0.4s"}, 5.0, 0.4),
        ({"arrivals": "30/m", "run_time": "1m30s"}, 0.5, 90.0),
        ({"arrivals": "0.5/m", "run_time": timedelta(minutes=2)}, 1 / 120, 120.0),
        ({"arrivals": 0.25, "run_time": 3}, 0.25, 3.0),
    ],
)
def test_arrivals_and_run_times_are_read(options: dict[str, Any], per_second: float, seconds: float) -> None:
    load = read_question(**options).load(None, 1)
    assert (load.per_second, load.run_time) == pytest.approx((per_second, seconds))


def test_a_multiple_needs_counts() -> None:
    for options in ({"arrivals": "x2", "run_time": 1}, {"arrivals": 1}):
        with pytest.raises(ConfigurationError, match=r"arrivals='5/s' and run_time='0.4s'"):
            simulate_load(Numbers(8), read_question(**options))
