"""``celery throttle audit``: the author of each change, by every way of making it."""

from __future__ import annotations

import getpass
import re
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from celery_throttle import ConfigurationError, Limit, ThrottleControl
from celery_throttle.store.audit import Change
from tests.control.conftest import Run, add_task
from tests.control.test_locks import CALL
from tests.control.test_looking import names
from tests.support.waiting import until


def actions(control: ThrottleControl, *args: Any, **options: Any) -> list[str]:
    return [each.action for each in control.audit(*args, **options)]


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


def test_json_of_the_audit_has_the_names_of_the_attributes(control: ThrottleControl, run: Run) -> None:
    control.limit("tenant", key="acme").override(5, until=60, by="ana", why="ünïcode")
    (change,) = control.audit()
    (row,) = run("audit", "--json").json
    assert row.keys() == names(Change)
    assert (row["action"], row["limit"], row["key"], row["before"]) == ("override", "tenant", "acme", None)
    assert (row["at"], row["why"], row["after"]["permits"]) == (change.at.isoformat(), "ünïcode", 5)


def test_audit_of_one_limit_or_key(app: Any, control: ThrottleControl, run: Run) -> None:
    control.limit("api").pause()
    control.limit("tenant").disable()
    control.limit("tenant", key="acme").override(3)
    assert actions(control) == ["override", "disable", "pause"]
    assert actions(control, "tenant") == actions(control, app.tasks["serve"]) == ["override", "disable"]
    assert actions(control, "tenant", most=1) == actions(control, most=1) == ["override"]
    assert [each.action for each in control.limit("tenant", key="acme").audit()] == ["override"]
    assert len(run("audit", "tenant").lines) == 3
    assert len(run("audit", "tenant", "--key", "acme").lines) == len(run("audit", "tenant[acme]").lines) == 2
    assert len(run("audit", "--most", "2").lines) == 3
    with pytest.raises(ConfigurationError, match="most must be a whole number from 1 to 999999999, got 0"):
        control.audit(most=0)


def test_audit_of_all_groups(app: Any, control: ThrottleControl) -> None:
    add_task(app, "apart", Limit("apart", 2, group="other"))
    for limit in ("api", "apart", "api"):
        control.limit(limit).pause()
        # The times of changes are in ms, and only they give groups an order.
        changed_at = max(each.at for each in control.audit())
        until(lambda: datetime.now(timezone.utc) - changed_at > timedelta(milliseconds=1))  # noqa: B023 - called at once
    assert [each.limit for each in control.audit()] == ["api", "apart", "api"]
    assert [each.limit for each in control.audit("apart")] == ["apart"]


def test_unlock_by_a_task_is_audited(app: Any, control: ThrottleControl) -> None:
    first = app.tasks["charge"].delay(17, amount=5)
    assert app.tasks["charge"].unlock(17, amount=5)
    assert not app.tasks["charge"].unlock(17, amount=5)
    (change,) = control.audit()
    assert (change.action, change.task_name, change.task_id, change.why) == ("unlock", "charge", first.id, "")
    assert change.by.startswith(f"{getpass.getuser()}@")
