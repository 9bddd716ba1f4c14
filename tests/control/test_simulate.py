"""``celery throttle simulate``, ``limit.simulate()``: from counts of the last hour, and with the rules of the gate."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any

import pytest

from celery_throttle import ConfigurationError, Limit, ThrottleControl
from celery_throttle.control.outcomes import Outcome
from celery_throttle.control.what_if import Simulation
from celery_throttle.core.history import SLOT, Place, place_of
from tests.control.conftest import Run, add_task, run_in
from tests.control.hours import steady
from tests.control.test_looking import API, TENANT, fill, names, of
from tests.store.terms_caller import TermsCaller, terms

Count = Callable[..., None]
EIGHT = Limit("api", 8)


def an_hour(arrivals: Sequence[float], permits: int, run_time: float, seed: int) -> tuple[list[list[float]], int]:
    """Play an hour event by event, from the arrivals a second of each minute; return its counts, and the last line."""
    rng, counts = random.Random(seed), [[0.0] * SLOT for _ in arrivals]
    events: list[tuple[float, str, float]] = []
    for minute, per_second in enumerate(arrivals):
        at = minute * 60.0
        while (at := at + rng.expovariate(per_second)) < (minute + 1) * 60:
            heappush(events, (at, "arrives", 0.0))
    line: list[float] = []
    free = permits
    while events and events[0][0] < len(arrivals) * 60:
        now, what, took = heappop(events)
        slot = counts[int(now // 60)]
        if what == "arrives":
            line.append(now)
            slot[Place.PARKED] += not free
        else:
            free += 1
            slot[Place.ENDED] += 1
            slot[Place.RUN_TIME] += took * 1000
        if line and free:
            free -= 1
            since, took = line.pop(0), rng.expovariate(1 / run_time)
            slot[place_of(now - since)] += 1
            slot[Place.WAIT_TIME] += (now - since) * 1000
            heappush(events, (now + took, "ends", took))
    return counts, len(line)


def simulate(app: Any, *permits: int, limit: str = "api", key: str | None = None, **options: Any) -> Simulation:
    return ThrottleControl(app).limit(limit, key=key).simulate(*permits, **options)


def by_what(found: Simulation) -> dict[str, Outcome]:
    return {each.what: each for each in found.outcomes}


@pytest.fixture
def eight(worker: TermsCaller, store_counts: Count) -> Count:
    """Store the counts of a limit of eight permits."""
    worker.know(EIGHT)
    return store_counts


@pytest.mark.usefixtures("workers_answer")
@pytest.mark.parametrize("seed", range(8))
def test_as_many_start_at_once_as_in_a_forecast(app: Any, worker: TermsCaller, seed: int) -> None:
    """The simulation and `Play` have the same rules: numbers, costs, rates with their bursts, what runs already."""
    rng = random.Random(seed)
    cost, rated = rng.choice((1, 1, 2, 5)), rng.random() < 0.5
    rate: Any = {"rate": "1/h", "burst": rng.randint(1, 9)} if rated and cost == 1 else {}
    limit = Limit("other", rng.randint(cost, 6), **rate)
    add_task(app, "other", limit, cost=cost)
    fill(worker, 20, terms(limit, cost=cost).same)
    for permits in range(1, 25, 3):
        forecast = ThrottleControl(app).limit("other").forecast(permits)
        found = simulate(app, permits, limit="other", arrivals="1/d", run_time=86400 * 365, spread=0, lasts=1)
        assert found.outcomes[0].started == forecast.starts, (permits, limit, cost)
        assert (found.parked, found.cost) == (forecast.parked, cost)


@pytest.mark.parametrize("seed", range(3))
def test_an_hour_predicts_its_own_mean_wait(app: Any, eight: Count, seed: int) -> None:
    arrivals = [15.0 if minute % 12 else 27.5 for minute in range(59)]
    counts, _ = an_hour(arrivals, 8, 0.4, seed)
    eight(counts)
    found = simulate(app)
    measured, check = by_what(found)["measured"], by_what(found)["check"]
    assert check.wait_mean == pytest.approx(measured.wait_mean, rel=0.25)
    assert check.waited == pytest.approx(measured.waited, rel=0.25)
    assert check.used == pytest.approx(measured.used, rel=0.05)
    assert found.fits
    assert found.per_second == pytest.approx(sum(arrivals) / 59, rel=0.05)
    assert found.run_time == pytest.approx(0.4, rel=0.05)
    assert not any(each.startswith("!") for each in found.notes)


def test_an_hour_whose_line_grew_predicts_its_mean_wait(app: Any, worker: TermsCaller, eight: Count) -> None:
    counts, line = an_hour([4.2] * 59, 8, 2.0, 1)
    assert line > 200
    fill(worker, line + 8, terms(EIGHT).same)
    eight(counts)
    rows = by_what(simulate(app))
    assert rows["check"].wait_mean == pytest.approx(rows["measured"].wait_mean, rel=0.25)
    assert rows["measured"].waiting == line
    assert rows["asked"].never.endswith("permits of work arrive for 8")


def test_a_line_that_was_there_all_the_time_is_simulated(app: Any, worker: TermsCaller, eight: Count) -> None:
    """Four a second arrive and start behind 400 others: that is a wait of 100 seconds, also for the first of them."""
    fill(worker, 400 + 8, terms(EIGHT).same)
    eight(steady(240, minutes=3, wait=100.0, run_time=2.0))
    rows = by_what(simulate(app, spread=0))
    assert rows["measured"].wait_mean == pytest.approx(100)
    assert rows["check"].wait_mean == pytest.approx(100, rel=0.1)


def test_other_numbers_are_compared_under_the_hours_load(app: Any, eight: Count) -> None:
    eight(steady(300))
    found = simulate(app, 4, arrivals="x1.5", run_time="x2", target=1)
    assert (found.limit, found.key, found.seconds, found.spread, found.cost) == ("api", None, 3600.0, 1.0, 1)
    assert [found.per_second, found.run_time] == pytest.approx([7.5, 2.0])
    rows = by_what(found)
    assert [(each.what, each.permits) for each in found.outcomes[:5]] == [
        ("measured", 8), ("check", 8), ("asked", 4), ("fewer", 3), ("more", 5),
    ]  # fmt: skip
    assert rows["measured"].arrived == rows["measured"].started == rows["check"].arrived == 59 * 300
    assert rows["asked"].never == "15.0 permits of work arrive for 4"
    assert rows["asked"].arrived == pytest.approx(7.5 * 3600, rel=0.01)
    assert rows["least"].permits is not None
    assert 16 <= rows["least"].permits <= 20
    assert simulate(app, 4, seed=2) == simulate(app, 4, seed=2) != simulate(app, 4, seed=3)
    rows = by_what(simulate(app, rate="4/s", burst=3))
    assert [str(each) for each in rows["asked"].rates] == ["4/s (burst 3)"]
    assert rows["asked"].never == "5 a second arrive for the rate 4/s"
    assert rows["measured"].rates == rows["check"].rates == ()


def test_a_shorter_time_simulates_the_newest_minutes(app: Any, eight: Count) -> None:
    eight(steady(60, minutes=30) + steady(300, minutes=10))
    assert simulate(app).per_second == pytest.approx((30 * 1 + 10 * 5) / 40), "from the first minute with counts on"
    found = simulate(app, lasts=300)
    assert found.per_second == pytest.approx(5.0)
    assert by_what(found)["check"].arrived == 30 * 60 + 10 * 300


def test_the_present_line_is_simulated(app: Any, worker: TermsCaller) -> None:
    fill(worker, 12)
    found = simulate(app, 5, arrivals="1/h", run_time="10s", spread=0)
    assert found.parked == 10
    assert found.outcomes[0].gone_in == pytest.approx(20.0), "three at once, five after ten seconds, then the last two"
    assert [each.what for each in found.outcomes] == ["asked", "fewer", "more"], "nothing was counted"
    assert found.fits is None


def test_a_model_that_does_not_fit_is_reported(app: Any, control: ThrottleControl, eight: Count) -> None:
    """Tasks waited shorter than in the simulation; or although few permits were in use."""
    eight(steady(300, wait=0.05, run_time=1.55))
    found = simulate(app)
    assert found.fits is False
    assert found.notes[-1].endswith("Possible reasons: run times that differ less (spread 0: all alike).")
    eight(steady(120, wait=30.0, held_most=4, sent_back=1))
    control.limit("api").override(8, by="ana")
    found = simulate(app)
    assert found.fits is False
    assert found.notes[-1] == (
        "! The model does not fit: tasks waited 30 s on average, in the simulation 0.0 s. Possible reasons: the "
        "limit was changed in that time; bursts within a minute, or slow workers; workers short of slots (3 of 8 "
        "permits were held at most); RateLimited held it back."
    )
    add_task(app, "both", Limit("api", 2), Limit("mail", 1))
    eight(steady(60, wait=30.0, run_time=0.1))
    assert simulate(app).notes[-1].endswith("or slow workers; its tasks also wait for mail.")


def test_a_stopped_limit_is_simulated_as_if_it_were_not(app: Any, control: ThrottleControl, eight: Count) -> None:
    eight(steady(300))
    control.limit("api").pause()
    found = simulate(app)
    assert by_what(found)["asked"].waiting < 100
    assert "Limit api is stopped now; the simulation leaves that out." in found.notes


def test_too_few_counts_are_an_error_with_the_fix(app: Any, run: Run, worker: TermsCaller, store_counts: Count) -> None:
    with pytest.raises(ConfigurationError, match="Limit api: no worker has declared it"):
        simulate(app, arrivals=5, run_time=1)
    worker.know(API)
    store_counts(steady(2, minutes=1))
    with pytest.raises(ConfigurationError, match=r"write simulate\(arrivals='5/s', run_time='0.4s'\)$"):
        simulate(app)
    ended = run("simulate", "api")
    assert (ended.code, ended.out) == (2, "")
    assert "too few of its runs were counted" in ended.err
    assert ended.err.endswith("throttle simulate api --arrivals 5/s --runtime 0.4s`\n")
    assert run("simulate", "api", "--arrivals", "5/s", "--runtime", "0.4s").code == 0


def test_a_limit_with_keys_has_no_counts_of_one_key(
    app: Any, run: Run, worker: TermsCaller, store_counts: Count
) -> None:
    worker.know(TENANT)
    store_counts(steady(300), "tenant")
    for key in (None, "acme"):
        with pytest.raises(ConfigurationError, match="counted for all its keys together"):
            simulate(app, limit="tenant", key=key)
    ended = run("simulate", "tenant", "--key", "acme")
    assert ended.err.endswith("throttle simulate 'tenant[acme]' --arrivals 5/s --runtime 0.4s`\n")
    for number in range(4):
        worker.arrive(f"a{number}", of("acme"))
    found = simulate(app, 2, limit="tenant", key="acme", arrivals="1/s", run_time=0.4)
    assert (found.key, found.parked) == ("acme", 3)


def test_simulate_prints_a_table(app: Any, run: Run, eight: Count) -> None:
    eight(steady(300, run_time=1.4))
    ended = run("simulate", "api", "--permits", "12", "--target", "2s", "--seed", "3")
    assert (ended.code, ended.err) == (0, "")
    found = simulate(app, 12, target=2, seed=3)
    heading = "api: 5 a second arrive for 1h 0m, each run takes 1.4 s on average, 0 tasks in the line at the beginning."
    assert ended.lines[0] == found.heading == heading
    assert ended.lines[2].split() == ["OUTCOME", "PERMITS", "WAITED", "MEAN", "P50", "P95", "MOST", "USED", "LINE"]
    firsts = [(row[0], row[1]) for row in ended.rows[3:9]]
    assert firsts == [
        ("measured", "8"), ("the same, simulated", "8"), ("asked", "12"), ("-25%", "9"), ("+25%", "15"),
        ("least for the target", "9"),
    ]  # fmt: skip
    assert ended.lines[10:] == list(found.notes)
    shown = run("simulate", "api", "--permits", "4", "--json").json
    assert shown.keys() == names(Simulation)
    assert [each["what"] for each in shown["outcomes"]] == ["measured", "check", "asked", "fewer", "more"]
    assert shown["outcomes"][2].keys() == names(Outcome)


def test_without_a_limit_no_store_is_needed(app: Any) -> None:
    app.conf.throttle_url = "redis://127.0.0.1:1/0"
    ended = run_in(app, "simulate", "--arrivals", "5/s", "--runtime", "1.4s", "--rate", "4/s", "--burst", "3")
    assert (ended.code, ended.err) == (0, "")
    assert ended.rows[3][1:3] == ["any", "4/s (burst 3)"]
    assert ended.rows[3][-1] == "never: 5 a second arrive for the rate 4/s"
    assert run_in(app, "simulate", "api").code == 3, "which asks the store"
