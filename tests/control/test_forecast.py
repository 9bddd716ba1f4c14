"""``--dry-run``, ``limit.forecast()``: compared with the effect of another number, or of the end of a change."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from redis import Redis

from celery_throttle import ConfigurationError, Limit, ThrottleControl
from celery_throttle.control import forecast
from celery_throttle.control.forecast import Forecast
from celery_throttle.control.play import Bound
from celery_throttle.control.queues import Slots
from celery_throttle.core.wording import often
from celery_throttle.store.limit_status import RateStatus
from tests.control.conftest import Run
from tests.control.desk_story import DeskStory, all_started
from tests.control.hours import tell_counts
from tests.control.test_looking import API, ONE, TENANT, fill, names, of
from tests.store.caller import started
from tests.store.peek import KEY, peek
from tests.store.stories import stories
from tests.store.terms_caller import TermsCaller, terms
from tests.support.incident import incident
from tests.support.waiting import until

pytestmark = pytest.mark.usefixtures("workers_answer")

DRAINS = "more run than may then: none starts in their place until they have ended."
WITH_SLOTS = "would start at once, if workers have slots for them."
METHODS = {"resume": "resume", "enable": "enable", "reset": "reset", "release-hold": "release_hold"}

NUMBERS = """
tasks of the limit may wait for another limit:
    take t0 t1 on=gpu:2; park w0 w1 w2 w3 on=gpu:2+tenant[acme]:1; park other on=gpu:2+tenant[zeta]:1; look
    forecast gpu 10 = 2, 3 full tenant/acme; bound gpu 10 = limit tenant[acme] is full, 1 of 1 permits are held then
    change gpu override 10; starts = 2
a pause lets none start:
    arrive a b c d on=gpu:2; change gpu pause; forecast gpu 3 = 0, 2 paused gpu
    bound gpu 3 = limit gpu is paused; change gpu override 3; starts = 0
a limit that is not enforced lets all start:
    arrive a b c d on=gpu:2; change gpu disable; forecast gpu 3 = 2; change gpu override 3; starts = 2
a hold lets none start:
    take t on=gpu:2; send_back t pause=60; forecast gpu 9 = 0, 1 held-back gpu
    bound gpu 9 = limit gpu is held back
a rate has so much of its burst:
    take t on=mail:1@1/h^3; park a b c d e on=mail:1@1/h^3; forecast mail 9 = at most 3, 2 rate mail
    bound mail 9 = the rate of limit mail (1/h) allows no more at once; change mail override 9; starts = 2
    forecast mail 10 = 0, 3 rate mail; bound mail 10 = the rate of limit mail (1/h) allows the next start in ...
a task of a queue without a consumer does not start, and a caller outside of tasks has none:
    take a b on=gpu:2; park mailed on=gpu:2 queue=mail; park here on=gpu:2; park apart on=gpu:2 queue=~4711 outside
    forecast gpu 3 = 1, 1 no-worker mail, 1 full gpu
an override of a key comes first:
    arrive a0 a1 a2 a3 on=tenant[a]:1; arrive b0 b1 b2 b3 on=tenant[b]:1
    forecast tenant 3 = 4, 1 full tenant/a, 1 full tenant/b; forecast tenant/a 3 = 2, 1 full tenant/a
    change tenant/b override 2; starts = 1; forecast tenant 3 = 2, 1 full tenant/a, 2 full tenant/b
    change tenant override 3; starts = 2
tasks take turns:
    take t on=fair:1~a; park a b c d on=fair:1~a; park e on=fair:1~b cost=2; forecast fair 3 = 1, 4 full fair
    change fair override 3; starts = 1
an unreadable record does not start:
    arrive a b c d on=gpu:2; spoil c; forecast gpu 9 = 1
"""

ENDS = """
the end of a rate that the code has not:
    deploy gpu:3; change gpu override rate=1/d; park a b c d e f g h i on=gpu:3; starts = 1
    forecast gpu after=reset = 2, 6 full gpu; change gpu reset; starts = 2
the end of a hold:
    take t on=gpu:2; send_back t pause=60; park a b c on=gpu:2; forecast gpu after=release-hold = 2, 2 full gpu
    change gpu release_hold; starts = 2
the end of one of two changes:
    deploy gpu:2; change gpu override 1; change gpu pause; park a b c on=gpu:2
    forecast gpu after=reset = 0, 3 paused gpu; forecast gpu after=resume = 1, 2 full gpu
a key is stopped by its own pause and by that of its limit:
    park a on=tenant[a]:1; park b on=tenant[b]:1; change tenant pause; change tenant/a pause
    forecast tenant/a after=resume = 0, 1 paused tenant/a; forecast tenant after=resume = 1, 1 paused tenant/a
    change tenant/a resume; starts = 0; forecast tenant after=resume = 2; change tenant resume; starts = 2
"""


@pytest.mark.parametrize("steps", stories(NUMBERS, ENDS))
def test_a_story_of_forecasts(desk: DeskStory, steps: str) -> None:
    desk.tell(steps)


@pytest.mark.parametrize(
    ("begin", "tasks", "change", "lines"),
    [
        (None, 12, ["set", "api", "5"], ["api: 5 permits instead of 2.", f"3 tasks {WITH_SLOTS}",
         "7 tasks would wait on: limit api is full, 5 of 5 permits are held then."]),
        (None, 4, ["set", "api", "9"], ["api: 9 permits instead of 2.", f"2 tasks {WITH_SLOTS}",
         "No task would wait for it any longer."]),
        (None, 1, ["set", "api", "9"], ["api: 9 permits instead of 2.", "0 tasks would start at once.",
         "No task waits for it."]),
        (None, 3, ["set", "api", "1"], ["api: 1 permit instead of 2.", f"1 {DRAINS}", "0 tasks would start at once.",
         "1 task would wait on: limit api is full, 2 of 1 permits are held then."]),
        (lambda limit: limit.pause(), 5, ["resume", "api"], ["api: not paused any more.", f"2 tasks {WITH_SLOTS}",
         "3 tasks would wait on: limit api is full, 2 of 2 permits are held then."]),
        (lambda limit: limit.override(1), 5, ["reset", "api"], ["api: 2 permits instead of 1.", f"1 task {WITH_SLOTS}",
         "3 tasks would wait on: limit api is full, 2 of 2 permits are held then."]),
        (lambda limit: limit.override(4), 5, ["reset", "api"], ["api: 2 permits instead of 4.", f"2 {DRAINS}",
         "0 tasks would start at once.", "1 task would wait on: limit api is full, 4 of 2 permits are held then."]),
        (lambda limit: limit.disable(), 5, ["enable", "api"], [
         "api: not disabled any more, 2 permits instead of any number.", f"3 {DRAINS}", "0 tasks would start at once.",
         "No task waits for it."]),
        *((None, 0, [name, "api"], ["api: not ..., nothing would change."]) for name in METHODS),
    ],
)  # fmt: skip
def test_dry_run_prints(
    control: ThrottleControl,
    run: Run,
    worker: TermsCaller,
    begin: Callable[[Any], None] | None,
    tasks: int,
    change: list[str],
    lines: list[str],
) -> None:
    worker.know(API)
    limit = control.limit("api")
    if begin:
        begin(limit)
    fill(worker, tasks)
    before = limit.audit()
    ended = run(*change, "--dry-run")
    assert (ended.code, ended.err, limit.audit()) == (0, "", before)
    if tasks:
        assert ended.lines == lines
    else:
        assert ended.lines[0].endswith(", nothing would change.")
        assert not limit.forecast(after=change[0]).changes  # type: ignore[arg-type]


def test_forecast_as_json(run: Run, worker: TermsCaller) -> None:
    fill(worker, 4)
    shown = run("set", "api", "3", "--dry-run", "--json").json
    assert shown.keys() == names(Forecast)
    assert (shown["starts"], shown["permits"], shown["permits_before"], shown["parked"]) == (1, 3, 2, 2)
    (bound,) = shown["bounds"]
    assert bound.keys() == names(Bound)
    assert (bound["limit"], bound["tasks"]) == ("api", 1)
    worker.send_back(worker.take("held back", of("acme")), 60)
    shown = run("release-hold", "tenant[acme]", "--dry-run", "--json").json
    assert (shown["starts"], shown["after"], shown["changes"]) == (1, "release-hold", True)


def test_forecast_text_is_one_line_for_any_names() -> None:
    told = Forecast("a\nb", None, 1, None, 0, False, 0, (Bound("x\x1by", 1),), 0, 0)
    assert str(told).splitlines() == [
        r"a\nb: 1 permit instead of any number.", "0 tasks would start at once.", r"1 task would wait on: x\x1by.",
    ]  # fmt: skip
    assert len(str(replace(told, parked=3)).splitlines()) == 4


def test_what_is_not_known_is_reported(
    control: ThrottleControl, worker: TermsCaller, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(forecast, "consumed", asked.append)
    limit = control.limit("api")
    assert (limit.forecast(3).unchecked, asked) == ((), []), "no worker is asked where no task waits"
    fill(worker, 9)
    found = limit.forecast(4)
    assert (found.starts, len(asked)) == (2, 1)
    assert str(found).splitlines()[-1].startswith("? Which queues the workers consume")
    monkeypatch.setattr(forecast, "consumed", lambda _: {"q"})
    monkeypatch.setattr(forecast, "MOST", 3)
    found = limit.forecast(4)
    assert (found.starts, found.looked_at, found.parked) == (2, 3, 7)
    assert "Of 7 tasks that wait, 3 in its lines were looked at." in str(found)
    redis.hset(KEY["meta"], "settling", f"{peek(redis).now + 60_000:.0f}")
    assert limit.forecast(3).unchecked == ("The holders: the store has just lost its data, and workers put them back.",)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        *(({"after": bad}, "after must be one of 'reset', 'resume'") for bad in ("pause", "", 1, "set")),
        ({"permits": 5, "after": "resume"}, r"not both: write forecast\(after='resume'\)"),
    ],
)
def test_a_forecast_of_no_change_is_an_error(
    control: ThrottleControl, worker: TermsCaller, given: dict[str, Any], said: str
) -> None:
    worker.know(API)
    with pytest.raises(ConfigurationError, match=f"Limit api: forecast.*{said}"):
        control.limit("api").forecast(**given)


# -- rates -------------------------------------------------------------------------------------------------------------

MAIL = Limit("mail", rate="60/h", burst=2)


def test_forecast_of_another_rate(control: ThrottleControl, worker: TermsCaller, run: Run) -> None:
    fill(worker, 7, terms(MAIL).same)
    ended = run("set", "mail", "--rate", "1/m", "--burst", "1", "--dry-run")
    assert (ended.code, ended.err) == (0, "")
    assert ended.lines[:2] == ["mail: rate 1/m instead of 60/h (burst 2).", "0 tasks would start at once."]
    assert ended.lines[2].startswith("5 tasks would wait on: the rate of limit mail (1/m) allows the next start in ")
    assert ended.lines[3:] == ["At 1/m it takes 4m 0s at the least until the line is gone."]
    mail = control.limit("mail")
    found = mail.forecast(rate="1000/s", burst=5)
    assert (found.rates, found.permits, found.least) == ((RateStatus("1000/s", 5),), None, 0)
    assert mail.status().rate_override is None
    until(lambda: mail.forecast(4, rate="1000/s", burst=1).starts)  # a millisecond after the last start
    for permits, rate, instead in (
        (4, "1/m", "4 permits instead of any number, rate 1/m instead of 60/h (burst 2)."),
        (5, "1000/s", "5 permits instead of 4, rate 1000/s instead of 1/m."),
    ):
        found = mail.forecast(permits, rate=rate, burst=1)
        assert str(found).splitlines()[0] == f"mail: {instead}"
        mail.override(permits, rate=rate, burst=1)
        assert found.starts == len(started(worker.look(9)))


def test_forecast_of_the_end_of_a_rate(control: ThrottleControl, worker: TermsCaller) -> None:
    worker.know(Limit("mail", rate="1000/s", burst=4))
    mail = control.limit("mail")
    mail.override(rate="1/d", burst=1)
    for number in range(6):
        worker.put(f"t{number}", terms(MAIL).same)
    assert all_started(worker) == 1
    until(lambda: mail.forecast(after="reset").starts)  # a millisecond after the last start
    found = mail.forecast(after="reset")
    assert (found.starts, found.at_most, found.per_second) == (4, True, 1000)
    changed, starts, *_ = str(found).splitlines()
    assert changed == "mail: rate 1000/s (burst 4) instead of 1/d."
    assert starts.startswith("At most 4 tasks would start at once")
    assert "About 1000 a second would start from then on." in str(found)


# -- compared with the outcome -----------------------------------------------------------------------------------------

LIMITS = [API, TENANT, Limit("third", 3)]


def arrive_by_chance(worker: TermsCaller, chance: random.Random) -> None:
    """Have some tasks of any needs arrive in any order; those start that can start without a change."""
    for number in range(chance.randrange(5, 40)):
        some = [each for each in LIMITS if chance.random() < 0.6] or [API]
        needs = terms(*some, cost=chance.choice([1, 1, 1, 2])).needs({"keys": {"tenant": chance.choice("abc")}})
        worker.arrive(f"t{number}", needs)
    all_started(worker)


#: In which lanes go to another line together, or a task is refused by two limits at once.
TELLING = (314, 436, 464, 485, 579, 771, 827, 1058, 1110, 1135, 1213, 1452)


@pytest.mark.parametrize("seed", [*range(40), *TELLING])
def test_forecast_matches_the_outcome(control: ThrottleControl, worker: TermsCaller, seed: int) -> None:
    """Any tasks; then another number of any limit."""
    chance = random.Random(seed)
    arrive_by_chance(worker, chance)
    meant = chance.choice(LIMITS)
    worker.know(meant)
    key = chance.choice("abc") if meant is TENANT and chance.random() < 0.5 else None
    permits = chance.randrange(1, 12)
    found = control.limit(meant, key=key).forecast(permits)
    control.limit(meant, key=key).override(permits)
    assert found.starts == all_started(worker)


#: The overrides of a limit or a key, by their ends.
CHANGES: dict[Any, Callable[[Any, random.Random], Any]] = {
    "resume": lambda limit, _: limit.pause(),
    "enable": lambda limit, _: limit.disable(),
    "reset": lambda limit, chance: limit.override(chance.randrange(1, 6)),
}


@pytest.mark.parametrize("seed", range(50))
def test_forecast_of_an_end_matches_the_outcome(control: ThrottleControl, worker: TermsCaller, seed: int) -> None:
    """A pause of a limit or of its key stops the key, so the end of one of them may start none."""
    chance = random.Random(seed)
    for each in LIMITS:
        worker.know(each)
    places = [("api", None), ("third", None), ("tenant", None), ("tenant", "a"), ("tenant", "b")]
    made = {place: chance.choice(list(CHANGES)) for place in chance.sample(places, chance.randrange(1, 5))}
    for (name, key), end in made.items():
        CHANGES[end](control.limit(name, key=key), chance)
    arrive_by_chance(worker, chance)
    place, meant = chance.choice(places), chance.choice(list(CHANGES))
    limit = control.limit(place[0], key=place[1])
    found = limit.forecast(after=meant)
    assert found.changes == (made.get(place) == meant)
    getattr(limit, meant)()
    assert found.starts == all_started(worker)


# -- the reach of workers ----------------------------------------------------------------------------------------------


def with_slots(monkeypatch: pytest.MonkeyPatch, *workers: tuple[str, int]) -> None:
    """As if workers of these queues had so many free slots."""
    slots = [Slots(frozenset(queues), free) for queues, free in workers]
    monkeypatch.setattr(forecast, "free_slots", lambda _: slots)
    monkeypatch.setattr(forecast, "consumed", lambda _: {queue for each in slots for queue in each.queues})


def paused(control: ThrottleControl, worker: TermsCaller, queues: str = "qqqqq") -> Any:
    """Return a limit that is paused while tasks of these queues wait."""
    worker.know(API)
    limit = control.limit("api")
    limit.pause()
    for number, queue in enumerate(queues):
        worker.put(f"t{number}", ONE, queue=queue)
    return limit


AT_ONCE = "2 tasks would start at once, workers have slots for them."
ONE_AT_ONCE = "2 tasks would start as workers have slots for them, 1 of them at once."


@pytest.mark.parametrize(
    ("queues", "workers", "slots", "line"),
    [
        ("qqqqq", [("q", 8)], 2, AT_ONCE),
        ("qqqqq", [("q", 1)], 1, ONE_AT_ONCE),
        ("qqqqq", [("q", 1), ("qr", 1), ("r", 9)], 2, AT_ONCE),
        ("qr", [("qr", 1)], 1, ONE_AT_ONCE),
        ("qr", [("qr", 1), ("q", 1)], 2, AT_ONCE),
    ],
)
def test_free_slots_are_counted(
    control: ThrottleControl,
    worker: TermsCaller,
    monkeypatch: pytest.MonkeyPatch,
    queues: str,
    workers: list[tuple[str, int]],
    slots: int,
    line: str,
) -> None:
    """One slot is not counted for two queues."""
    limit = paused(control, worker, queues)
    with_slots(monkeypatch, *workers)
    found = limit.forecast(after="resume")
    assert (found.slots, str(found).splitlines()[1]) == (slots, line)


@pytest.mark.parametrize(
    ("free", "per_second"),
    [(8, 1.0), (1, 0.5), (None, 1.0)],  # two permits and runs of 2 s; one slot; no worker answers
)
def test_starts_a_second_are_those_of_permits_and_slots(
    control: ThrottleControl,
    worker: TermsCaller,
    monkeypatch: pytest.MonkeyPatch,
    free: int | None,
    per_second: float,
) -> None:
    limit = paused(control, worker)
    assert limit.forecast(after="resume").per_second is None, "no run shows how long one takes"
    tell_counts(worker, API, ended=10, run_time=20_000)
    if free is not None:
        with_slots(monkeypatch, ("q", free), ("r", 9))
    assert limit.forecast(after="resume").per_second == per_second


def test_incident_with_many_keys_is_bound_by_slots(
    control: ThrottleControl, run: Run, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = incident(redis, paused_keys=1540, keys=1540)
    tell_counts(made.works, TENANT, ended=10, run_time=20_000)
    with_slots(monkeypatch, ("q", 24))
    found = control.limit("tenant").forecast(after="resume")
    assert (found.parked, found.starts, found.looked_at, found.slots) == (1540, 1000, 1000, 24)
    assert found.per_second == 12.0
    assert run("resume", "tenant", "--dry-run").lines == [
        "tenant: not paused any more.",
        "1000 tasks would start as workers have slots for them, 24 of them at once.",
        "About 12 a second would start from then on.",
        "Of 1540 tasks that wait, 1000 in its lines were looked at.",
    ]


@pytest.mark.parametrize(
    ("per_second", "text"),
    [(12.3, "12 a second"), (1.26, "1.3 a second"), (0.5, "30 a minute"), (1 / 60, "1 a minute"),
     (2 / 3600, "2 an hour"), (1e-6, "less than one an hour")],
)  # fmt: skip
def test_how_often(per_second: float, text: str) -> None:
    assert often(per_second) == text
