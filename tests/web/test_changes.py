"""Changes by the page: each button, its forecast, the same as commands; and the effect of the commands."""

from __future__ import annotations

import html
import re
import shlex
import subprocess
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import urlencode

import pytest

from celery_throttle import Limit, ThrottleControl
from celery_throttle.control.findings import Commands
from celery_throttle.control.limit_control import LimitControl
from celery_throttle.core.buckets import Bucket
from celery_throttle.web.changes import python
from tests.control.conftest import run_in
from tests.control.hours import steady
from tests.control.test_looking import API, ONE, fill, fill_and_park, of
from tests.store.terms_caller import TermsCaller, terms
from tests.web.conftest import Site
from tests.web.test_pages import HOSTILE, KEYS, text

CHANGE = "limit/change?name=api"


def api(app: Any) -> LimitControl:
    return ThrottleControl(app).limit("api")


def copied(answer: Any) -> list[str]:
    """The commands that a page gives to copy."""
    return [html.unescape(each) for each in re.findall(r"<code>(.*?)</code>", answer.text)]


@pytest.fixture(autouse=True)
def _known(worker: TermsCaller) -> None:
    worker.know(API)


# -- limits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "begins", "attribute"),
    [("set", "reset", "override"), ("pause", "resume", "paused"), ("disable", "enable", "disabled")],
)
def test_each_change_and_its_end(page: Site, app: Any, change: str, begins: str, attribute: str) -> None:
    fields = {"change": change, "permits": "7", "for": "1h30m", "why": "their <big> day"}
    answer = page.post(CHANGE, fields)
    assert answer.status_code == 303
    said = getattr(api(app).status(), attribute)
    assert (said.by, said.why) == ("ana", "their <big> day")
    assert round((said.until - said.since).total_seconds()) == 5400
    assert page.get(answer.headers["location"].lstrip("/")).status_code == 200
    for expected in ("", "was not "):
        answer = page.post(CHANGE, {"change": begins, "why": "enough"})
        shown = text(page.get(answer.headers["location"].lstrip("/")))
        assert (expected in shown) if expected else ("was not" not in shown)
        assert getattr(api(app).status(), attribute) is None
    last = api(app).audit()[0]
    assert (last.action, last.by, last.why) == (begins, "ana", "enough")


def test_a_hold_is_released(page: Site, app: Any, worker: TermsCaller) -> None:
    worker.send_back(worker.take("t", API), 900.0)
    assert api(app).status().held_back
    page.post(CHANGE, {"change": "release-hold"})
    assert api(app).status().held_back is None


def test_parked_tasks_are_dropped(page: Site, app: Any, worker: TermsCaller) -> None:
    fill(worker, 5)
    looked = page.get(f"{CHANGE}&change=drop")
    assert "3 tasks would be dropped." in text(looked)
    assert api(app).status().parked == 3
    answer = page.post(CHANGE, {"change": "drop", "why": "wrong input"})
    assert api(app).status().parked == 0
    assert "3 tasks dropped." in text(page.get(answer.headers["location"].lstrip("/")))


def test_only_one_key_is_meant(page: Site, app: Any, worker: TermsCaller) -> None:
    for key in KEYS:
        worker.arrive(f"t {key}", of(key))
    for key in KEYS:
        page.post(f"limit/change?{urlencode({'name': 'tenant', 'key': key})}", {"change": "pause"})
        paused = {each.key for each in ThrottleControl(app).status() if each.paused}
        assert paused == set(KEYS[: KEYS.index(key) + 1])


def test_another_rate(page: Site, app: Any, worker: TermsCaller) -> None:
    """Of a limit that has only a rate, the form begins with that."""
    worker.know(Limit("mail", rate=["10/s", "100/h"], burst=[1, 20]))
    at, limit = "limit/change?name=mail", ThrottleControl(app).limit("mail")
    form = page.get(f"{at}&change=set").text
    assert 'name="permits" value=""' in form
    assert 'name="rate" value="10/s, 100/h"' in form
    assert 'name="burst" value="1, 20"' in form
    fields = {"change": "set", "permits": "", "rate": "5/s,50/h", "burst": "1, 9", "for": "2h"}
    looked = page.get(f"{at}&{urlencode(fields)}")
    assert "mail: rate 5/s and 50/h (burst 9) instead of 10/s and 100/h (burst 20)." in text(looked)
    shown, python_shown = copied(looked)
    assert "set --rate=5/s --rate=50/h --burst=1 --burst=9 --for=2h mail" in shown
    assert python_shown.endswith(".override(rate=['5/s', '50/h'], burst=[1, 9], until=7200)")
    assert limit.status().rate_override is None
    assert page.post(at, fields).status_code == 303
    said = limit.status().rate_override
    assert said
    assert (said.by, [str(each) for each in said.rates]) == ("ana", ["5/s", "50/h (burst 9)"])
    assert "write it as the rate, 5/s" in html.unescape(page.post(at, {"change": "set", "permits": "5/s"}).text)


@pytest.mark.parametrize(
    ("begins", "asked", "forecast"),
    [
        (lambda limit: None, "set&permits=4&for=2h&why=x", {"permits": 4}),
        (lambda limit: limit.pause(), "resume", {"after": "resume"}),
        (lambda limit: limit.override(1), "reset", {"after": "reset"}),
        (lambda limit: limit.disable(), "enable", {"after": "enable"}),
        (lambda limit: None, "release-hold", {"after": "release-hold"}),
    ],
)
def test_form_of_a_change_has_its_forecast(
    page: Site, app: Any, worker: TermsCaller, begins: Callable[[Any], None], asked: str, forecast: dict[str, Any]
) -> None:
    begins(api(app))
    for number in range(5):
        worker.put(f"t{number}", ONE)
    before = api(app).audit()
    shown = text(page.get(f"{CHANGE}&change={asked}"))
    for line in str(api(app).forecast(**forecast)).split("\n"):
        assert line in shown
    assert api(app).audit() == before


def test_an_hour_is_simulated_beside_the_override(
    page: Site, app: Any, worker: TermsCaller, store_counts: Callable[..., None]
) -> None:
    worker.know(Limit("api", 8))
    store_counts(steady(300))
    asked = f"{CHANGE}&change=set&permits=4"
    assert "What if" not in text(page.get(asked))
    answer = page.get(f"{asked}&rate=9/s&simulate=1&arrivals=x1.5&run_time=2s")
    assert answer.status_code == 200
    shown, found = text(answer), api(app).simulate(4, rate="9/s", arrivals="x1.5", run_time="2s")
    assert found.heading in shown
    cells = [html.unescape(each) for each in re.findall(r'<td role="cell"[^>]*>(.*?)</td>', answer.text)]
    assert cells == [cell for row in found.outcomes for cell in row.cells]
    assert all(note in shown for note in found.notes)
    assert 'name="arrivals" value="x1.5"' in answer.text
    assert api(app).status().override is None


def test_a_simulation_that_is_not_possible_leaves_the_form(page: Site, store_counts: Callable[..., None]) -> None:
    answer = page.get(f"{CHANGE}&change=set&permits=4&simulate=1")
    assert answer.status_code == 200
    assert "Limit api: too few of its runs were counted" in html.unescape(answer.text)
    store_counts(steady(300))
    answer = page.get(f"{CHANGE}&change=set&permits=4&simulate=1&arrivals=<b>")
    assert "simulate: arrivals must be 'x1.5' or a number a second, got '<b>'" in html.unescape(answer.text)
    assert "<b>" not in answer.text
    assert "4 permits instead of 2" in text(answer)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"change": "set", "permits": "0"}, "must be a whole number from 1"),
        ({"change": "set", "permits": "many"}, "Permits must be a whole number"),
        ({"change": "set", "permits": "5", "for": "soon"}, "'soon' is no duration: write 90s, 10m, 2h, 1d or 1h30m"),
        ({"change": "pause", "for": "0s"}, "is no duration"),
        ({"change": "pause", "why": "x" * 501}, "why must be text of 500 characters at most"),
    ],
)
def test_failed_change_is_shown(page: Site, app: Any, fields: dict[str, str], error: str) -> None:
    answers = [page.post(CHANGE, fields)]
    if len(fields.get("why", "")) < 500:
        answers.append(page.get(f"{CHANGE}&{urlencode(fields)}"))
    for answer in answers:
        assert answer.status_code == 400
        assert error in text(answer)
    status = api(app).status()
    assert (status.override, status.paused) == (None, None)


def test_a_form_that_is_far_too_long(page: Site) -> None:
    assert page.post(CHANGE, {"change": "pause", "why": "x" * 20_000}).status_code == 413


def claimed(answer: Any) -> str:
    """Return the page's notes about the change that has led to it."""
    return str(answer.text.partition("</h1>")[2].partition("<div id")[0]).strip()


@pytest.mark.parametrize("path", ["limit?name=api", "task?id=t", "locks?"])
def test_page_claims_nothing_that_an_address_makes_up(page: Site, path: str) -> None:
    nothing = claimed(page.get(path))
    for made_up in ("done=drop&count=9", "done=pause", "done=unlock&count=1", "done=%3Cb%3Ehacked&count=9"):
        assert claimed(page.get(f"{path}&{made_up}")) == nothing


def test_page_claims_a_change_once_and_where_it_was_made(page: Site) -> None:
    at = page.post(CHANGE, {"change": "pause"}).headers["location"].lstrip("/")
    assert "is paused." not in claimed(page.get("limit?name=tenant"))
    page.client.cookies.clear()
    at = page.post(CHANGE, {"change": "pause"}).headers["location"].lstrip("/")
    page.get(f"{at}&part=live")
    assert "api is paused." in claimed(page.get(at))
    assert "is paused." not in claimed(page.get(at))
    for value in ("pause", "pause..", "<b>..", "drop.9.0", ".", "pause.\xb2."):
        sent = f"celery_throttle_done={value}".encode("latin-1")
        assert "api" not in claimed(page.get(at, headers={"Cookie": sent}))


def test_parts_of_a_query_may_have_any_name(page: Site) -> None:
    assert page.get("?path=1&request=2&self=3").status_code == 200


# -- tasks and locks ---------------------------------------------------------------------------------------------------


def test_one_task_is_dropped(page: Site, app: Any, worker: TermsCaller) -> None:
    fill_and_park(worker, 2)
    assert "task/drop" in page.get("task?id=t3").text
    assert "task/drop" not in page.get("task?id=t0").text
    assert page.get("task/drop?id=t0").status_code == 400
    answer = page.post("task/drop?id=t3", {"why": "wrong input"})
    assert "1 task dropped." in text(page.get(answer.headers["location"].lstrip("/")))
    assert api(app).status().parked == 1
    change = ThrottleControl(app).audit()[0]
    assert (change.action, change.by, change.why, change.task_id) == ("drop", "ana", "wrong input", "t3")


def test_a_lock_is_taken_away(page: Site, app: Any) -> None:
    app.tasks["charge"].apply_async((17, 5))
    (link,) = re.findall(r'href="/(locks/unlock[^"]*)"', page.get("locks").text)
    path = html.unescape(link)
    assert "with the smaller fencing token" in text(page.get(path))
    for said in ("The lock is free.", "No task had the lock."):
        answer = page.post(path, {"why": "lost"})
        assert said in text(page.get(answer.headers["location"].lstrip("/")))
        assert ThrottleControl(app).locks() == ()
    assert ThrottleControl(app).audit()[0].by == "ana"


# -- the same as commands ----------------------------------------------------------------------------------------------


def test_the_commands_do_the_same(page: Site, app: Any, worker: TermsCaller) -> None:
    """Each is run as it is copied, for all names; its change is undone before the next."""
    limit = Limit(HOSTILE, 1, key="k")
    for name, key in (("api", None), *((HOSTILE, key) for key in KEYS)):
        if key is not None:
            worker.arrive(f"t {key}", terms(limit).needs({"keys": {HOSTILE: key}}))
        query = {"name": name, "change": "set", "permits": "6", "for": "2h", "why": 'it\'s `$(x)` "big" -- \\'}
        in_shell, in_python = copied(page.get(f"limit/change?{urlencode(query | ({'key': key} if key else {}))}"))
        steers = ThrottleControl(app).limit(name, key=key)
        for carry_out in (
            partial(run_in, app, *_after_throttle(in_shell)),
            partial(eval, in_python, {"ThrottleControl": ThrottleControl, "app": app}),
        ):
            carry_out()
            said = steers.status().override
            assert said is not None
            assert (said.permits, said.why) == (6, query["why"])
            assert round((said.until - said.since).total_seconds()) == 7200 if said.until else False
            assert steers.reset()


def _after_throttle(command: str) -> list[str]:
    """Return a command as a shell splits it, from its name on."""
    begin, found, words = command.partition(" throttle ")
    assert (begin, bool(found)) == ("celery -A shop", True)
    done = subprocess.run(["bash", "-c", f"printf '%s\\0' {words}"], capture_output=True, check=True)
    return done.stdout.decode().split("\0")[:-1]


@pytest.mark.parametrize("change", ["reset", "pause", "resume", "disable", "enable", "release-hold", "drop"])
def test_each_command_is_one_of_ours(page: Site, app: Any, change: str) -> None:
    in_shell, in_python = copied(page.get(f"{CHANGE}&change={change}"))
    assert run_in(app, *_after_throttle(in_shell)).code == 0
    eval(in_python, {"ThrottleControl": ThrottleControl, "app": app})
    assert shlex.split(in_shell)[4] == change


def test_terminal_escapes_are_not_pasted_into_a_shell() -> None:
    command = Commands("celery -A shop").throttle("drop", options=[("task", "a\r\x1b[2Jb'c\\"), ("yes", None)])
    assert command.isprintable()
    assert _after_throttle(command) == ["drop", "--task=a\r\x1b[2Jb'c\\", "--yes"]
    assert python(Bucket("a'b", "\n"), "pause", why="x").isprintable()
