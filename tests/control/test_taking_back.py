"""The forecasts of resume, enable, reset and release-hold, compared with their effects."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from celery_throttle import ConfigurationError, Limit, ThrottleControl
from celery_throttle.control import forecast
from celery_throttle.control.forecast import Forecast
from celery_throttle.control.queues import Slots
from celery_throttle.core.wording import often
from tests.control.conftest import Run
from tests.control.hours import tell_counts
from tests.control.test_forecast import DRAINS, LIMITS, all_started, arrive_by_chance
from tests.control.test_looking import API, ONE, TENANT, of
from tests.store.terms_caller import TermsCaller, terms
from tests.support.incident import incident
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("workers_answer")

METHODS = {"resume": "resume", "enable": "enable", "reset": "reset", "release-hold": "release_hold"}


def after(app: Any, change: str, limit: str = "api", key: str | None = None) -> Forecast:
    steers: Any = ThrottleControl(app).limit(limit, key=key)
    found: Forecast = steers.forecast(after=change)
    return found


def change(app: Any, change: str, limit: str = "api", key: str | None = None) -> None:
    getattr(ThrottleControl(app).limit(limit, key=key), METHODS[change])()


def put(worker: TermsCaller, count: int) -> None:
    for number in range(count):
        worker.put(f"t{number}", ONE)


# -- how many start ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("begin", "change", "lines"),
    [
        (lambda limit: limit.pause(), "resume",
         ["api: not paused any more.", "2 tasks would start at once, if workers have slots for them.",
          "3 tasks would wait on: limit api is full, 2 of 2 permits are held then."]),
        (lambda limit: limit.override(1), "reset",
         ["api: 2 permits instead of 1.", "1 task would start at once, if workers have slots for them.",
          "3 tasks would wait on: limit api is full, 2 of 2 permits are held then."]),
        (lambda limit: limit.override(4), "reset",
         ["api: 2 permits instead of 4.", f"2 {DRAINS}", "0 tasks would start at once.",
          "1 task would wait on: limit api is full, 4 of 2 permits are held then."]),
        (lambda limit: limit.disable(), "enable",
         ["api: not disabled any more, 2 permits instead of any number.", f"3 {DRAINS}",
          "0 tasks would start at once.", "No task waits for it."]),
    ],
    ids=["after a pause", "after fewer permits", "after more permits", "after no limit"],
)  # fmt: skip
def test_dry_run_prints(
    app: Any, run: Run, worker: TermsCaller, begin: Callable[[Any], None], change: str, lines: list[str]
) -> None:
    worker.know(API)
    limit = ThrottleControl(app).limit("api")
    begin(limit)
    put(worker, 5)
    worker.look(9)
    ended = run(change, "api", "--dry-run")
    assert (ended.code, ended.err, ended.lines) == (0, "", lines)
    assert [each.action for each in limit.audit()] != [change], "nothing is changed"


def test_reset_of_a_rate(app: Any, worker: TermsCaller) -> None:
    mail = Limit("mail", rate="1000/s", burst=4)
    worker.know(mail)
    ThrottleControl(app).limit("mail").override(rate="1/d", burst=1)
    for number in range(6):
        worker.put(f"t{number}", terms(mail).same)
    assert all_started(worker) == 1
    until(lambda: after(app, "reset", "mail").starts)  # a millisecond after the last start
    found = after(app, "reset", "mail")
    assert (found.starts, found.at_most) == (4, True)
    assert str(found).splitlines()[0] == "mail: rate 1000/s (burst 4) instead of 1/d."
    assert found.per_second == 1000
    assert "About 1000 a second would start from then on." in str(found)


def test_reset_of_a_rate_that_the_code_has_not(app: Any, worker: TermsCaller) -> None:
    worker.know(Limit("api", 3))
    ThrottleControl(app).limit("api").override(rate="1/d")
    put(worker, 9)
    assert all_started(worker) == 1
    assert after(app, "reset").starts == 2
    change(app, "reset")
    assert all_started(worker) == 2


def test_release_hold(app: Any, run: Run, worker: TermsCaller) -> None:
    worker.send_back(worker.take("t", ONE), 60)
    put(worker, 3)
    ended = run("release-hold", "api", "--dry-run", "--json").json
    assert (ended["starts"], ended["after"], ended["changes"]) == (2, "release-hold", True)
    change(app, "release-hold")
    assert all_started(worker) == 2


@pytest.mark.parametrize("name", METHODS)
def test_nothing_to_end_is_reported(app: Any, run: Run, worker: TermsCaller, name: str) -> None:
    worker.know(API)
    found = after(app, name)
    assert not found.changes
    assert run(name, "api", "--dry-run").lines[0].endswith(", nothing would change.")


def test_other_obstacles_still_block_the_start(app: Any, worker: TermsCaller) -> None:
    worker.know(API)
    limit = ThrottleControl(app).limit("api")
    limit.override(1)
    limit.pause()
    put(worker, 3)
    assert [each.why for each in after(app, "reset").bounds] == ["limit api is paused"]
    assert after(app, "resume").starts == 1


@pytest.mark.parametrize("paused", [(None,), ("a",), (None, "a"), ("a", "b")])
@pytest.mark.parametrize("resumed", [None, "a"])
def test_pause_of_a_key_and_of_its_limit(
    app: Any, worker: TermsCaller, paused: tuple[str | None, ...], resumed: str | None
) -> None:
    """A pause of either stops a key; the end of one leaves the other."""
    worker.know(TENANT)
    for key in paused:
        ThrottleControl(app).limit("tenant", key=key).pause()
    for key in "ab":
        worker.put(f"task {key}", of(key))
    worker.look(9)
    found = after(app, "resume", "tenant", resumed)
    assert found.changes == (resumed in paused)
    change(app, "resume", "tenant", resumed)
    assert found.starts == all_started(worker)


#: All overrides of a limit or a key.
_SAID: tuple[Callable[[Any, random.Random], Any], ...] = (
    lambda limit, _: limit.pause(),
    lambda limit, _: limit.disable(),
    lambda limit, chance: limit.override(chance.randrange(1, 6)),
)


@pytest.mark.parametrize("seed", range(40))
def test_forecast_of_an_end_matches_the_outcome(app: Any, worker: TermsCaller, seed: int) -> None:
    chance, throttle = random.Random(seed), ThrottleControl(app)
    for each in LIMITS:
        worker.know(each)
    places = [("api", None), ("third", None), ("tenant", None), ("tenant", "a"), ("tenant", "b")]
    for name, key in chance.sample(places, chance.randrange(1, 5)):
        chance.choice(_SAID)(throttle.limit(name, key=key), chance)
    arrive_by_chance(worker, chance)
    name, key = chance.choice(places)
    meant = chance.choice(["resume", "enable", "reset"])
    found = after(app, meant, name, key)
    change(app, meant, name, key)
    assert found.starts == all_started(worker)


def test_a_limit_of_many_keys_is_counted_to_the_end(app: Any, worker: TermsCaller) -> None:
    worker.know(TENANT)
    ThrottleControl(app).limit("tenant").pause()
    for number in range(1100):
        worker.put(f"t{number}", of(f"k{number}"))
    found = after(app, "resume", "tenant")
    assert (found.parked, found.starts, found.looked_at) == (1100, 1000, 1000)


# -- the reach of workers ----------------------------------------------------------------------------------------------


def with_slots(monkeypatch: pytest.MonkeyPatch, *workers: tuple[set[str], int]) -> None:
    slots = [Slots(frozenset(queues), free) for queues, free in workers]
    monkeypatch.setattr(forecast, "free_slots", lambda _: slots)
    monkeypatch.setattr(forecast, "consumed", lambda _: {queue for each in slots for queue in each.queues})


@pytest.mark.parametrize(
    ("workers", "slots", "line"),
    [
        ([({"q"}, 8)], 2, "2 tasks would start at once, workers have slots for them."),
        ([({"q"}, 1)], 1, "2 tasks would start as workers have slots for them, 1 of them at once."),
        ([({"q"}, 1), ({"q", "r"}, 1), ({"r"}, 9)], 2, "2 tasks would start at once, workers have slots for them."),
    ],
)
def test_free_slots_are_counted(
    app: Any,
    worker: TermsCaller,
    monkeypatch: pytest.MonkeyPatch,
    workers: list[tuple[set[str], int]],
    slots: int,
    line: str,
) -> None:
    worker.know(API)
    ThrottleControl(app).limit("api").pause()
    put(worker, 5)
    with_slots(monkeypatch, *workers)
    found = after(app, "resume")
    assert (found.slots, str(found).splitlines()[1]) == (slots, line)


def test_one_slot_is_not_counted_for_two_queues(app: Any, worker: TermsCaller, monkeypatch: pytest.MonkeyPatch) -> None:
    worker.know(API)
    ThrottleControl(app).limit("api").pause()
    for queue in ("q", "r"):
        worker.put(f"of {queue}", ONE, queue=queue)
    with_slots(monkeypatch, ({"q", "r"}, 1))
    assert after(app, "resume").slots == 1
    with_slots(monkeypatch, ({"q", "r"}, 1), ({"q"}, 1))
    assert after(app, "resume").slots == 2


def ran(worker: TermsCaller, limit: Limit, seconds: float) -> None:
    """Let ten runs of a limit have taken so long each."""
    tell_counts(worker, limit, ended=10, run_time=10_000 * seconds)


@pytest.mark.parametrize(
    ("free", "per_second"),
    [(8, 1.0), (1, 0.5), (None, 1.0)],  # two permits and runs of 2 s; one slot; no worker answers
)
def test_starts_a_second_are_those_of_permits_and_slots(
    app: Any, worker: TermsCaller, monkeypatch: pytest.MonkeyPatch, free: int | None, per_second: float
) -> None:
    worker.know(API)
    ThrottleControl(app).limit("api").pause()
    put(worker, 5)
    assert after(app, "resume").per_second is None, "no run shows how long one takes"
    ran(worker, API, 2.0)
    if free is not None:
        with_slots(monkeypatch, ({"q"}, free), ({"elsewhere"}, 9))
    assert after(app, "resume").per_second == per_second


def test_incident_with_many_keys_is_bound_by_slots(
    app: Any, run: Run, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = incident(redis, paused_keys=1540, keys=1540)
    ran(made.works, TENANT, 2.0)
    with_slots(monkeypatch, ({"q"}, 24))
    found = after(app, "resume", "tenant")
    assert (found.parked, found.slots, found.per_second) == (1540, 24, 12.0)
    assert run("resume", "tenant", "--dry-run").lines == [
        "tenant: not paused any more.",
        "1000 tasks would start as workers have slots for them, 24 of them at once.",
        "About 12 a second would start from then on.",
        "Of 1540 tasks that wait, 1000 in its lines were looked at.",
    ]


@pytest.mark.parametrize("bad", ["pause", "", 1, "set"])
def test_a_change_that_ends_nothing_is_an_error(app: Any, worker: TermsCaller, bad: Any) -> None:
    worker.know(API)
    with pytest.raises(ConfigurationError, match=r"Limit api: forecast: after must be one of 'reset', 'resume'"):
        ThrottleControl(app).limit("api").forecast(after=bad)


def test_numbers_beside_a_change_are_an_error(app: Any, worker: TermsCaller) -> None:
    worker.know(API)
    with pytest.raises(ConfigurationError, match=r"not both: write forecast\(after='resume'\)"):
        ThrottleControl(app).limit("api").forecast(5, after="resume")


@pytest.mark.parametrize(
    ("per_second", "text"),
    [(12.3, "12 a second"), (1.26, "1.3 a second"), (0.5, "30 a minute"), (1 / 60, "1 a minute"),
     (2 / 3600, "2 an hour"), (1e-6, "less than one an hour")],
)  # fmt: skip
def test_how_often(per_second: float, text: str) -> None:
    assert often(per_second) == text
