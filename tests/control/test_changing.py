"""``celery throttle set``, ``pause``, ``disable``, ``release-hold`` and their opposites; the table of these changes."""

from __future__ import annotations

import getpass
import inspect
import time
from dataclasses import fields
from datetime import timedelta
from typing import Any, get_args

import click
import pytest

from celery_throttle import ConfigurationError, Limit, ThrottleControl
from celery_throttle.control.cli.group import throttle
from celery_throttle.control.cli.params import duration
from celery_throttle.control.limit_control import LimitControl
from celery_throttle.control.verbs import DROP, VERBS, Ending, Verb
from celery_throttle.signals import limit_changed
from celery_throttle.store.limit_status import LimitStatus, RateStatus
from tests.control.conftest import Run
from tests.control.desk_story import DeskStory
from tests.control.test_looking import API, ONE, fill
from tests.store.caller import started
from tests.store.stories import stories
from tests.store.terms_caller import TermsCaller, terms

MAIL = Limit("mail", rate="60/h", burst=2)
BOTH = Limit("both", 3, rate=["10/s", "100/h"], burst=[1, 20])

OVERRIDES = ("override", "rate_override", "paused", "disabled", "held_back")


@pytest.mark.parametrize(
    ("command", "numbers", "end", "name", "state"),
    [
        ("set", ["5"], "reset", "override", "overridden"),
        ("set", ["--rate", "30/m"], "reset", "rate_override", "overridden"),
        ("pause", [], "resume", "paused", "paused"),
        ("disable", [], "enable", "disabled", "disabled"),
    ],
    ids=["permits", "rate", "pause", "disable"],
)
def test_a_change_of_a_limit_or_a_key_and_its_end(
    control: ThrottleControl, run: Run, command: str, numbers: list[str], end: str, name: str, state: str
) -> None:
    ended = run(command, "api", *numbers, "--for", "2h", "--why", "big day", "--by", "ana")
    assert (ended.code, ended.err) == (0, "")
    assert "(big day)" in ended.rows[1][-1]
    status = control.limit("api").status()
    said = getattr(status, name)
    assert (said.by, said.why, said.until - said.since) == ("ana", "big day", timedelta(hours=2))
    assert [each for each in OVERRIDES if getattr(status, each)] == [name]
    ended = run(end, "api", "--by", "bob")
    assert (ended.code, len(ended.lines)) == (0, 2)
    assert getattr(control.limit("api").status(), name) is None
    ended = run(end, "api")
    assert (ended.code, ended.lines[0]) == (0, f"api was not {state}.")
    shown = run(command, "api", *numbers, "--json").json
    assert shown.keys() == {"changed", "status"}
    assert (shown["changed"], shown["status"]["name"]) == (True, "api")
    said = shown["status"][name]
    assert (said["until"], said["why"]) == (None, "")
    assert said["by"].startswith(f"{getpass.getuser()}@")
    assert [run(end, "api", "--json").json["changed"] for _ in range(2)] == [True, False]
    assert run(command, "tenant", *numbers, "--key", "acme").rows[1][0] == "tenant[acme]"
    for key, is_said in (("acme", True), ("other", False), (None, False)):
        assert bool(getattr(control.limit("tenant", key=key).status(), name)) == is_said
    assert run(end, "tenant", "--json").json["changed"] is False
    assert run(end, "tenant[acme]", "--json").json["changed"] is True


EFFECTS = """
more permits start tasks at once, and a pause of the limit lets none start:
    arrive a b c d on=gpu:2; look slots=4 = -; change gpu override 3; look slots=4 = c; change gpu pause
    change gpu override 9; look slots=4 = -; change gpu resume = True; change gpu resume = False; look slots=4 = d
the end of a hold of one key, or of all, beside a pause of one:
    take ta on=tenant[a]:1; take tb on=tenant[b]:1; take tc on=tenant[c]:1; send_back ta pause=3600
    send_back tb pause=3600; send_back tc pause=3600; change tenant/a release_hold = True; look slots=4 = ta
    change tenant/c pause; change tenant release_hold = True; change tenant release_hold = False; look slots=4 = tb
    change tenant/c resume; look slots=4 = tc
a rate of one key holds for that alone:
    take a1 on=tenant[a]:1; end a1; change tenant/a override rate=1/h; change tenant/b override 2
    arrive a2 a3 on=tenant[a]:1 = a2; end a2; look slots=4 = -; arrive b1 b2 b3 on=tenant[b]:1 = b1 b2
"""


@pytest.mark.parametrize("steps", stories(EFFECTS))
def test_a_story_of_changes(desk: DeskStory, steps: str) -> None:
    desk.tell(steps)


@pytest.mark.parametrize("later", [60, 0.5])
def test_until_may_be_a_unix_time(control: ThrottleControl, later: float) -> None:
    """It is not so many seconds from now, which would be in 2083."""
    limit = control.limit("api")
    limit.pause(until=time.time() + later)
    paused = limit.status().paused
    assert paused
    assert paused.until
    assert abs(paused.until.timestamp() - time.time() - later) < 10
    with pytest.raises(ConfigurationError, match="is over already"):
        limit.pause(until=time.time() - 60)
    with pytest.raises(ConfigurationError, match="until must be seconds or a timedelta"):
        limit.pause(until=time.time() * 1000)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("10m", 600), ("2h", 7200), ("1d", 86400), ("1h30m", 5400), ("1d1s", 86401), ("0.5s", 0.5)],
)
def test_durations(text: str, seconds: float) -> None:
    assert duration(text).total_seconds() == seconds


@pytest.mark.parametrize("text", ["", "2", "2x", "h", "-2h", "0s", "0h0m", "1m1h", "2 h", "1e3s"])
def test_no_durations(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is no duration: write 90s, 10m, 2h, 1d or 1h30m"):
        duration(text)


def test_rates_and_permits_are_overridden_together(
    control: ThrottleControl, worker: TermsCaller, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[Any] = []

    def hear(sender: str, event: Any, **_: Any) -> None:
        heard.append((sender, event.action, event.permits, event.rates))

    worker.know(BOTH)
    limit = control.limit("both")
    limit_changed.connect(hear)
    with caplog.at_level("INFO"):
        ended = run(
            "set", "both", "5", "--rate", "5/s", "--rate", "50/h", "--burst", "1", "--burst", "9", "--for", "1h"
        )
    limit_changed.disconnect(hear)
    assert (ended.code, ended.err) == (0, "")
    status, rates = limit.status(), (RateStatus("5/s", 1), RateStatus("50/h", 9))
    assert (status.in_force, status.rates_in_force) == (5, rates)
    assert heard == [("both", "override", 5, rates)]
    (line,) = [each for each in caplog.messages if "override" in each]
    assert line.startswith("Limit both: override 5, rate 5/s and 50/h (burst 9) by ")
    assert line.endswith(", until 1:00:00: no reason given")
    (change,) = limit.audit()
    what = "override both, 3 -> 5 permits, rate 10/s and 100/h (burst 20) -> 5/s and 50/h (burst 9), until "
    assert change.what.startswith(what)
    assert run("audit", "both").rows[1][2] == change.what
    for rate, in_force in ((["5/s", "50/h"], [("5/s", 1), ("50/h", 20)]), ("5/s", [("5/s", 1)])):
        limit.override(rate=rate)
        found = [(each.rate, each.burst) for each in limit.status().rates_in_force]
        assert found == in_force, "the bursts are the code's where it has as many rates"


def test_a_limit_with_a_rate_alone_gets_permits_and_another_rate(
    control: ThrottleControl, worker: TermsCaller, run: Run
) -> None:
    worker.know(MAIL)
    ended = run("set", "mail", "--rate", "30/m", "--by", "ana", "--for", "2h")
    assert ended.rows[0] == ["LIMIT", "HELD", "PARKED", "RATES", "STATE"]
    assert ended.rows[1][:4] == ["mail", "0", "0", "30/m"]
    said = "rate override 30/m (burst 2) instead of 60/h (burst 2) by ana until "
    assert ended.rows[1][4].startswith(said)
    mail = control.limit("mail")
    status = mail.status()
    assert (status.override, status.rates, status.rates_in_force) == (
        None, (RateStatus("60/h", 2),), (RateStatus("30/m", 2),),
    )  # fmt: skip
    assert f" {said}" in str(status)
    assert run("reset", "mail").rows[1][3:] == ["60/h"]
    assert run("set", "mail", "1", "--by", "ana").rows[1] == ["mail", "0 of 1", "0", "60/h", "override 1 by ana"]
    fill(worker, 3, terms(MAIL).same)
    assert [each.task_id for each in mail.holders()] == ["t0"]
    mail.reset()
    assert started(worker.look(9)) == ("t1",)
    mail.override(rate="1/h", by="ana")
    (why, *_) = control.explain("t2").reasons
    assert why.startswith("The rate of limit mail (1/h, instead of 60/h (burst 2) since ")
    assert " by ana) allows the next start in " in why


def test_a_limit_without_a_rate_gets_one(control: ThrottleControl, run: Run, worker: TermsCaller) -> None:
    worker.know(API)
    assert run("set", "api", "--rate", "1/h").rows[1][3] == "1/h"
    fill(worker, 2)
    assert [each.task_id for each in control.holders("api")] == ["t0"]
    assert run("explain", "t1").lines[1].startswith("The rate of limit api (1/h, instead of none since ")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "override needs a number of permits or a rate: write override(5), or override(rate='50/m')"),
        ({"burst": 5}, "override needs a number of permits or a rate: write override(rate='50/m', burst=5)"),
        ({"permits": 5, "burst": 2}, "burst needs a rate beside it: write override(5, rate='50/m', burst=2)"),
        ({"permits": "50/m"}, "got '50/m': write override(rate='50/m')"),
        *(({"permits": each}, "permits must be a whole number from 1") for each in (0, -1, 10**9, True, "5")),
        ({"rate": "50 per minute"}, "write '50/m'"),
        ({"rate": 50}, "got 50: write '10/s'"),
        ({"rate": "50/m", "burst": 0}, "Limit 'mail': burst must be a whole number"),
        ({"rate": ["50/m", "10/m"]}, "Limit 'mail': 50/m never matters beside 10/m"),
    ],
)
def test_impossible_numbers_are_refused(
    control: ThrottleControl, worker: TermsCaller, given: dict[str, Any], said: str
) -> None:
    worker.know(MAIL)
    mail = control.limit("mail")
    for method in (mail.override, mail.forecast):
        with pytest.raises(ConfigurationError, match="Limit ") as raised:
            method(**given)
        assert said.replace("override", method.__name__) in str(raised.value)
    assert mail.audit() == ()


def test_a_hold_is_ended_early(control: ThrottleControl, run: Run, worker: TermsCaller) -> None:
    worker.send_back(worker.take("t1", API), 3600.0)
    worker.arrive("t2", ONE)
    assert run("status").rows[1][-1].startswith("held back by t1 until ")
    assert started(worker.look(4)) == ()
    ended = run("release-hold", "api", "--by", "ana", "--why", "they are back")
    assert (ended.code, ended.err, ended.rows[1][:3]) == (0, "", ["api", "0 of 2", "2"])
    assert started(worker.look(4)) == ("t1", "t2"), "it was sent back to the head of its line"
    (change,) = control.audit("api")
    assert (change.action, change.by, change.why, change.after) == ("release-hold", "ana", "they are back", None)
    assert change.before
    assert (change.before.by, change.before.why) == ("t1", "rate limited")
    ended = run("release-hold", "api")
    assert (ended.code, ended.lines[0]) == (0, "api was not held back.")
    assert run("release-hold", "api", "--json").json["changed"] is False
    assert len(control.audit()) == 1


def test_changes_that_end_another_one_are_those_of_the_type() -> None:
    assert {name for name, verb in VERBS.items() if verb.ends} == set(get_args(Ending))
    assert {what for verb in VERBS.values() for what in verb.ends} <= {each.name for each in fields(LimitStatus)}


@pytest.mark.parametrize("verb", [*VERBS.values(), DROP], ids=lambda verb: verb.name)
def test_method_and_command_are_those_of_the_table(verb: Verb) -> None:
    method: Any = getattr(LimitControl, verb.method)
    numbers = {"permits", "rate", "burst"} if verb.permits else set()
    taken = {"by", "why"} | numbers | ({"until"} if verb.lasts else set()) | ({"dry_run"} if verb is DROP else set())
    assert set(inspect.signature(method).parameters) - {"self"} == taken
    assert " ".join(method.__doc__.split()).startswith(verb.help.rstrip("."))
    if verb is not DROP:
        command: Any = throttle.get_command(click.Context(throttle), verb.name)
        effect = {"dry_run"} if verb.permits or verb.ends else set()
        taken = {"limit", "key", "by", "why"} | numbers | effect | ({"lasts"} if verb.lasts else set())
        assert {each.name for each in command.params} - {"as_json", "url", "prefix"} == taken
        assert command.help.startswith(verb.help)
