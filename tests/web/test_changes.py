"""Changes by the page: the buttons, each form with its forecast, its effect, and the same as commands."""

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
from tests.control.test_looking import API, ONE, TENANT, fill_and_park, of
from tests.store.terms_caller import TermsCaller, terms
from tests.web.conftest import Site
from tests.web.test_pages import HOSTILE, KEYS, text

CHANGE = "limit/change?name=api"


def api(app: Any) -> LimitControl:
    return ThrottleControl(app).limit("api")


def copied(answer: Any) -> list[str]:
    """The commands that a page gives to copy."""
    return [html.unescape(each) for each in re.findall(r"<code>(.*?)</code>", answer.text)]


def buttons(answer: Any) -> list[str]:
    """The changes that a page offers, in their order."""
    group = answer.text.partition('<p class="changes"')[2].partition("</p>")[0]
    return re.findall(r"change=([\w-]+)", html.unescape(group))


def followed(page: Site, answer: Any) -> Any:
    """Return the page to which a change leads."""
    assert answer.status_code == 303
    return page.get(answer.headers["location"].lstrip("/"))


@pytest.fixture(autouse=True)
def _known(worker: TermsCaller) -> None:
    worker.know(API)


# -- buttons -----------------------------------------------------------------------------------------------------------

#: The task that was sent back waits, too.
HELD_BACK = ["release-hold", "pause", "set", "disable", "drop"]


@pytest.mark.parametrize(
    ("begin", "offers"),
    [
        (lambda limit, worker: None, ["pause", "set", "disable"]),
        (lambda limit, worker: limit.pause(), ["resume", "pause", "set", "disable"]),
        (lambda limit, worker: limit.disable(), ["enable", "pause", "set", "disable"]),
        (lambda limit, worker: limit.override(3), ["reset", "pause", "set", "disable"]),
        (lambda limit, worker: worker.send_back(worker.take("t", API), 900.0), HELD_BACK),
        (lambda limit, worker: worker.put("t", ONE), ["pause", "set", "disable", "drop"]),
    ],
    ids=["runs", "is paused", "is disabled", "is overridden", "is held back", "has parked tasks"],
)
def test_changes_that_are_offered_where_a_limit(
    page: Site, app: Any, worker: TermsCaller, begin: Callable[[LimitControl, TermsCaller], object], offers: list[str]
) -> None:
    begin(api(app), worker)
    for live in ("", "&part=live"):
        shown = page.get(f"limit?name=api{live}")
        assert buttons(shown) == offers
        assert shown.text.index("Held") < shown.text.index('<p class="changes"')


def test_key_of_a_paused_limit_offers_to_resume_the_limit(page: Site, app: Any, worker: TermsCaller) -> None:
    worker.know(TENANT)
    worker.put("t", of("acme"))
    ThrottleControl(app).limit("tenant").pause()
    answer = page.get("limit?name=tenant&key=acme")
    assert buttons(answer)[0] == "resume"
    (link,) = re.findall(r'href="([^"]*change=resume)"[^>]*>Resume tenant', answer.text)
    assert "key=" not in link


@pytest.mark.parametrize("change", ["pause", "disable", "set"])
def test_change_lasts_two_hours_unless_something_else_is_chosen(page: Site, app: Any, change: str) -> None:
    shown = page.get(f"{CHANGE}&change={change}")
    assert 'name="for" value="2h"' in shown.text
    assert "--for=2h" in copied(shown)[0]
    assert "--for" not in copied(page.get(f"{CHANGE}&change={change}&permits=3&for=2h&ever=1"))[0]
    page.post(CHANGE, {"change": change, "permits": "3", "for": "2h", "ever": "1"})
    status = api(app).status()
    said = status.paused or status.disabled or status.override
    assert said
    assert said.until is None


@pytest.mark.parametrize("path", [f"{CHANGE}&change=drop", f"{CHANGE}&change=disable", "task/drop?id=t"])
def test_first_button_of_a_form_changes_nothing(page: Site, worker: TermsCaller, path: str) -> None:
    """A browser takes the first one when the user presses Enter in a field."""
    worker.put("t", ONE)
    form = page.get(path).text.partition('<form method="post"')[2].partition("</form>")[0]
    assert 'formmethod="get"' in re.findall(r"<button[^>]*>", form)[0]


# -- limits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "ends", "attribute"),
    [("set", "reset", "override"), ("pause", "resume", "paused"), ("disable", "enable", "disabled")],
)
def test_each_change_and_its_end(page: Site, app: Any, change: str, ends: str, attribute: str) -> None:
    fields = {"change": change, "permits": "7", "for": "1h30m", "why": "their <big> day"}
    assert followed(page, page.post(CHANGE, fields)).status_code == 200
    said = getattr(api(app).status(), attribute)
    assert (said.by, said.why) == ("ana", "their <big> day")
    assert round((said.until - said.since).total_seconds()) == 5400
    for was_not in (False, True):
        shown = text(followed(page, page.post(CHANGE, {"change": ends, "why": "enough"})))
        assert ("was not " in shown) is was_not
        assert getattr(api(app).status(), attribute) is None
    last = api(app).audit()[0]
    assert (last.action, last.by, last.why) == (ends, "ana", "enough")


def test_a_hold_is_released_and_parked_tasks_are_dropped(page: Site, app: Any, worker: TermsCaller) -> None:
    worker.send_back(worker.take("t", API), 900.0)
    assert api(app).status().held_back
    page.post(CHANGE, {"change": "release-hold"})
    assert api(app).status().held_back is None
    for task in ("t1", "t2"):
        worker.put(task, ONE)
    assert "3 tasks would be dropped." in text(page.get(f"{CHANGE}&change=drop"))
    assert api(app).status().parked == 3
    answer = page.post(CHANGE, {"change": "drop", "why": "wrong input"})
    assert api(app).status().parked == 0
    assert "3 tasks dropped." in text(followed(page, answer))


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
    for name, value in (("permits", ""), ("rate", "10/s, 100/h"), ("burst", "1, 20")):
        assert f'name="{name}" value="{value}"' in form
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
    """A simulation that is not possible leaves the form."""
    worker.know(Limit("api", 8))
    asked = f"{CHANGE}&change=set&permits=4"
    assert "Limit api: too few of its runs were counted" in text(page.get(f"{asked}&simulate=1"))
    store_counts(steady(300))
    assert "What if" not in text(page.get(asked))
    answer = page.get(f"{asked}&rate=9/s&simulate=1&arrivals=x1.5&run_time=2s")
    assert answer.status_code == 200
    shown, found = text(answer), api(app).simulate(4, rate="9/s", arrivals="x1.5", run_time="2s")
    assert found.heading in shown
    cells = [html.unescape(each) for each in re.findall(r'<td role="cell"[^>]*>(.*?)</td>', answer.text)]
    assert cells == [cell for row in found.outcomes for cell in row.cells]
    assert all(note in shown for note in found.notes)
    assert 'name="arrivals" value="x1.5"' in answer.text
    answer = page.get(f"{asked}&simulate=1&arrivals=<b>")
    assert answer.status_code == 200
    assert "simulate: arrivals must be 'x1.5' or a number a second, got '<b>'" in html.unescape(answer.text)
    assert "<b>" not in answer.text
    assert "4 permits instead of" in text(answer)
    assert api(app).status().override is None


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"change": "set", "permits": "0"}, "must be a whole number from 1"),
        ({"change": "set", "permits": "many"}, "Permits must be a whole number"),
        ({"change": "set", "permits": "5/s"}, "write it as the rate, 5/s"),
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
    assert page.get("?path=1&request=2&self=3").status_code == 200, "parts of a query may have any name"


# -- the notice of a change --------------------------------------------------------------------------------------------


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
    page.post(CHANGE, {"change": "pause"})
    page.get(f"{at}&part=live")
    assert "api is paused." in claimed(page.get(at))
    assert "is paused." not in claimed(page.get(at))
    for value in ("pause", "pause..", "<b>..", "drop.9.0", ".", "pause.\xb2."):
        sent = f"celery_throttle_done={value}".encode("latin-1")
        assert "api" not in claimed(page.get(at, headers={"Cookie": sent}))


# -- tasks and locks ---------------------------------------------------------------------------------------------------


def test_one_task_is_dropped(page: Site, app: Any, worker: TermsCaller) -> None:
    fill_and_park(worker, 2)
    assert "task/drop" in page.get("task?id=t3").text
    assert "task/drop" not in page.get("task?id=t0").text
    assert page.get("task/drop?id=t0").status_code == 400
    answer = page.post("task/drop?id=t3", {"why": "wrong input"})
    assert "1 task dropped." in text(followed(page, answer))
    assert api(app).status().parked == 1
    change = ThrottleControl(app).audit()[0]
    assert (change.action, change.by, change.why, change.task_id) == ("drop", "ana", "wrong input", "t3")


def test_a_lock_is_taken_away(page: Site, app: Any) -> None:
    app.tasks["charge"].apply_async((17, 5))
    (link,) = re.findall(r'href="/(locks/unlock[^"]*)"', page.get("locks").text)
    path = html.unescape(link)
    assert "with the smaller fencing token" in text(page.get(path))
    for said in ("The lock is free.", "No task had the lock."):
        assert said in text(followed(page, page.post(path, {"why": "lost"})))
        assert ThrottleControl(app).locks() == ()
    assert ThrottleControl(app).audit()[0].by == "ana"


# -- the same as commands ----------------------------------------------------------------------------------------------


def carry_out(app: Any, in_python: str) -> None:
    eval(in_python, {"ThrottleControl": ThrottleControl, "app": app})


def test_the_commands_do_the_same(page: Site, app: Any, worker: TermsCaller) -> None:
    """Each is run as it is copied, for all names; its change is undone before the next."""
    limit = Limit(HOSTILE, 1, key="k")
    for name, key in (("api", None), *((HOSTILE, key) for key in KEYS)):
        if key is not None:
            worker.arrive(f"t {key}", terms(limit).needs({"keys": {HOSTILE: key}}))
        query = {"name": name, "change": "set", "permits": "6", "for": "2h", "why": 'it\'s `$(x)` "big" -- \\'}
        in_shell, in_python = copied(page.get(f"limit/change?{urlencode(query | ({'key': key} if key else {}))}"))
        steers = ThrottleControl(app).limit(name, key=key)
        for change in (partial(run_in, app, *_after_throttle(in_shell)), partial(carry_out, app, in_python)):
            change()
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
    carry_out(app, in_python)
    assert shlex.split(in_shell)[4] == change


def test_terminal_escapes_are_not_pasted_into_a_shell() -> None:
    command = Commands("celery -A shop").throttle("drop", options=[("task", "a\r\x1b[2Jb'c\\"), ("yes", None)])
    assert command.isprintable()
    assert _after_throttle(command) == ["drop", "--task=a\r\x1b[2Jb'c\\", "--yes"]
    assert python(Bucket("a'b", "\n"), "pause", why="x").isprintable()
