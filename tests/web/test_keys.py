"""The keys of a limit: below its holders and parked tasks, found by a part of their name, in an order, page by page."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest

from celery_throttle import ConfigurationError, ThrottleControl
from tests.control.test_looking import TENANT, of
from tests.store.terms_caller import TermsCaller
from tests.web.conftest import Site
from tests.web.test_pages import many, text

LIMIT = "limit?name=tenant"


def shown_keys(answer: Any) -> list[str]:
    """The keys in the table of keys."""
    section = answer.text.partition('aria-labelledby="keys"')[2].partition("</section>")[0]
    return [html.unescape(each) for each in re.findall(r'<th role="rowheader"[^>]*><a [^>]*>(.*?)</a>', section)]


def wait(worker: TermsCaller, **lines: int) -> None:
    """Have so many tasks wait in the line of each key."""
    worker.know(TENANT)
    for key, count in lines.items():
        for number in range(count):
            worker.put(f"{key} {number}", of(key))


def test_keys_stand_below_holders_and_parked_tasks(page: Site, worker: TermsCaller) -> None:
    wait(worker, acme=1)
    shown = page.get(LIMIT).text
    assert shown.index('id="holders"') < shown.index('id="line"') < shown.index('id="keys"')


def test_keys_are_found_by_a_part_of_their_name(page: Site, worker: TermsCaller) -> None:
    wait(worker, acme=1, other=1, Macmillan=1)
    assert sorted(shown_keys(page.get(f"{LIMIT}&find=AC"))) == ["Macmillan", "acme"]
    answer = page.get(f"{LIMIT}&find=zoo")
    assert "No key in use has “zoo” in its name." in text(answer)
    assert 'href="/limit?name=tenant&amp;key=zoo"' in answer.text
    assert 'name="find"' in answer.text


def test_keys_are_sorted_by_backlog_or_by_name(page: Site, app: Any, worker: TermsCaller) -> None:
    wait(worker, acme=1, mid=3, zoo=2)
    ThrottleControl(app).limit("tenant", key="acme").pause()
    assert shown_keys(page.get(LIMIT)) == ["acme", "mid", "zoo"]
    assert shown_keys(page.get(f"{LIMIT}&sort=backlog")) == ["mid", "zoo", "acme"]
    assert shown_keys(page.get(f"{LIMIT}&sort=name")) == ["acme", "mid", "zoo"]
    assert page.get(f"{LIMIT}&sort=nope").status_code == 400


def test_all_keys_are_reached_page_by_page(page: Site, worker: TermsCaller) -> None:
    names = many(worker, 1230)
    seen: list[str] = []
    path = f"{LIMIT}&sort=name"
    while path:
        answer = page.get(path)
        seen += shown_keys(answer)
        following = re.findall(r'<a rel="next" href="/([^"]*)"', answer.text)
        path = html.unescape(following[0]) if following else ""
    assert seen == names
    assert shown_keys(page.get(f"{LIMIT}&sort=name&page=2")) == names[100:200]
    assert 'rel="prev"' in page.get(f"{LIMIT}&sort=name&page=2").text
    for wrong in ("0", "x", "-1", "9" * 20):
        assert page.get(f"{LIMIT}&page={wrong}").status_code == 400


def test_control_lists_keys_in_an_order(app: Any, worker: TermsCaller) -> None:
    wait(worker, acme=1, mid=3, zoo=2)
    limit = ThrottleControl(app).limit("tenant")
    assert [each.key for each in limit.keys(sort="backlog", most=2).rows] == ["mid", "zoo"]
    assert [each.key for each in limit.keys(sort="name", skip=1).rows] == ["mid", "zoo"]
    assert limit.keys(find="O").known == 1
    for wrong in ({"sort": "size"}, {"skip": -1}, {"find": 3}):
        with pytest.raises(ConfigurationError):
            limit.keys(**wrong)
