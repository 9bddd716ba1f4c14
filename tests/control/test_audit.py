"""``celery throttle audit``: the author of each change, by every way of making it."""

from __future__ import annotations

import getpass
import logging
import re
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from celery_throttle import ConfigurationError, Limit, ThrottleControl, Throttled
from celery_throttle.store.audit import Change
from tests.control.conftest import Run
from tests.control.test_drop import waiting  # noqa: F401 - a fixture
from tests.control.test_looking import names
from tests.support.waiting import until

CALL = ("charge", "-a", "[17]", "-k", '{"amount": 5}')


def actions(throttle: ThrottleControl, *args: Any, **options: Any) -> list[str]:
    return [each.action for each in throttle.audit(*args, **options)]


def test_each_changing_command_is_audited(app: Any, run: Run) -> None:
    assert run("audit").out == "Nothing was changed.\n"
    for command in (["set", "api", "5"], ["pause", "api"], ["disable", "tenant"]):
        run(*command, "--by", "ana", "--why", "incident 42")
    for end in ("reset", "resume", "enable"):
        run(end, "tenant" if end == "enable" else "api", "--by", "bob", "--why", "over")
    app.tasks["charge"].delay(17, amount=5)
    run("unlock", *CALL, "--by", "eve", "--why", "stuck")
    ended = run("audit")
    assert (ended.code, ended.err) == (0, "")
    assert ended.rows[0] == ["AT", "BY", "WHAT", "WHY"]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", row[0]) for row in ended.rows[1:])
    lock, *others = [row[1:] for row in ended.rows[1:]]
    assert lock[0::2] == ["eve", "stuck"]
    assert lock[1].startswith("unlock charge[")
    assert others == [
        ["bob", "enable tenant, any number of -> 0 permits", "over"],
        ["bob", "resume api", "over"],
        ["bob", "reset api, 5 -> 0 permits", "over"],
        ["ana", "disable tenant, 0 -> any number of permits", "incident 42"],
        ["ana", "pause api", "incident 42"],
        ["ana", "override api, 0 -> 5 permits", "incident 42"],
    ], "no worker has declared how many permits the limits have"


STEERS = "a\nb\x1b[2J\rc\x9bd\u202ee\x00"


@pytest.mark.usefixtures("waiting")
def test_words_that_steer_a_terminal_stay_on_their_line(app: Any, run: Run, caplog: pytest.LogCaptureFixture) -> None:
    """Neither in the log nor in anything printed does by or why break a line, or reach a terminal as a command."""
    caplog.set_level(logging.INFO, "celery_throttle")
    throttle = ThrottleControl(app)
    words: dict[str, Any] = {"by": STEERS, "why": STEERS}
    limit, keyed = throttle.limit("api"), throttle.limit("tenant", key=STEERS)
    for one in (limit, keyed):
        one.pause(**words)
        one.override(5, until=60, **words)
        one.disable(**words)
    printed: list[object] = []
    for status in throttle.status():
        printed += [each.text for each in status.states]
        printed += [str(each) for each in (status.paused, status.override, status.disabled, status.held_back) if each]
    printed += throttle.explain("t3").reasons
    printed += [each.why for each in throttle.report().remarks]
    throttle.drop("t3", **words)
    throttle.drop("none\nsuch", **words)
    printed += throttle.explain("t3").reasons
    for one in (limit, keyed):
        one.reset(**words)
        one.resume(**words)
        one.resume(**words)
        one.enable(**words)
        one.drop(**words)
    app.tasks["charge"].delay(17, amount=5)
    throttle.unlock(throttle.locks()[0].identity, **words)
    throttle.drain(**words)
    printed += throttle.audit()
    printed += [record.getMessage() for record in caplog.records]
    assert [each for each in map(str, printed) if not each.isprintable()] == []
    assert sum(r"a\nb\x1b[2J\rc\x9bd\u202ee\x00" in str(each) for each in printed) > 30
    for command in (["status"], ["audit"], ["show", "api"], ["pause", "api", "--by", STEERS, "--why", STEERS]):
        ended = run(*command)
        assert all(line.isprintable() for line in ended.out.split("\n") + ended.err.split("\n"))


def test_its_json_has_the_names_of_the_attributes(app: Any, run: Run) -> None:
    ThrottleControl(app).limit("tenant", key="acme").override(5, until=60, by="ana", why="ünïcode")
    (change,) = ThrottleControl(app).audit()
    (row,) = run("audit", "--json").json
    assert row.keys() == names(Change)
    assert (row["action"], row["limit"], row["key"], row["before"]) == ("override", "tenant", "acme", None)
    assert (row["at"], row["why"], row["after"]["permits"]) == (change.at.isoformat(), "ünïcode", 5)


def test_of_one_limit_or_key(app: Any, run: Run) -> None:
    throttle = ThrottleControl(app)
    throttle.limit("api").pause()
    throttle.limit("tenant").disable()
    throttle.limit("tenant", key="acme").override(3)
    assert actions(throttle) == ["override", "disable", "pause"]
    assert actions(throttle, "tenant") == actions(throttle, app.tasks["serve"]) == ["override", "disable"]
    assert actions(throttle, "tenant", most=1) == actions(throttle, most=1) == ["override"]
    assert [each.action for each in throttle.limit("tenant", key="acme").audit()] == ["override"]
    assert len(run("audit", "tenant").lines) == 3
    assert len(run("audit", "tenant", "--key", "acme").lines) == len(run("audit", "tenant[acme]").lines) == 2
    assert len(run("audit", "--most", "2").lines) == 3


def test_of_all_groups(app: Any) -> None:
    @app.task(base=Throttled, limit=Limit("apart", 2, group="other"), name="apart", shared=False)  # type: ignore[untyped-decorator]
    def apart() -> None: ...

    throttle = ThrottleControl(app)
    for limit in ("api", "apart", "api"):
        throttle.limit(limit).pause()
        # The times of changes are in ms, and only they give groups an order.
        changed_at = max(each.at for each in throttle.audit())
        until(lambda: datetime.now(timezone.utc) - changed_at > timedelta(milliseconds=1))  # noqa: B023 - called at once
    assert [each.limit for each in throttle.audit()] == ["api", "apart", "api"]
    assert [each.limit for each in throttle.audit("apart")] == ["apart"]


def test_unlock_by_a_task_is_audited(app: Any) -> None:
    first = app.tasks["charge"].delay(17, amount=5)
    assert app.tasks["charge"].unlock(17, amount=5)
    assert not app.tasks["charge"].unlock(17, amount=5)
    (change,) = ThrottleControl(app).audit()
    assert (change.action, change.task_name, change.task_id, change.why) == ("unlock", "charge", first.id, "")
    assert change.by.startswith(f"{getpass.getuser()}@")


def test_no_number_of_rows(app: Any) -> None:
    with pytest.raises(ConfigurationError, match="most must be a whole number from 1 to 999999999, got 0"):
        ThrottleControl(app).audit(most=0)
