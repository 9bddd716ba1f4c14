"""The keys of a limit, and the hosts of one with permits on each host: listed, found, sorted, page by page."""

from __future__ import annotations

import html
import json
import re
from typing import Any

import pytest
from redis import Redis

from celery_throttle import ConfigurationError, Limit, ThrottleControl
from celery_throttle.control.findings import Commands
from celery_throttle.core.buckets import Bucket
from celery_throttle.core.sites import Sites
from tests.control.conftest import run_in
from tests.control.test_looking import TENANT, of
from tests.store.terms_caller import TermsCaller
from tests.web.conftest import Site
from tests.web.test_pages import many, text

LIMIT = "limit?name=tenant"
GPU = Limit("gpu", 1, per="host")


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


def test_keys_are_found_by_a_part_of_their_name(page: Site, worker: TermsCaller) -> None:
    """Below the holders and the parked tasks."""
    wait(worker, acme=1, other=1, Macmillan=1)
    shown = page.get(LIMIT).text
    assert shown.index('id="holders"') < shown.index('id="line"') < shown.index('id="keys"')
    assert sorted(shown_keys(page.get(f"{LIMIT}&find=AC"))) == ["Macmillan", "acme"]
    answer = page.get(f"{LIMIT}&find=zoo")
    assert "No key in use has “zoo” in its name." in text(answer)
    assert 'href="/limit?name=tenant&amp;key=zoo"' in answer.text
    assert 'name="find"' in answer.text


def test_keys_are_sorted_by_backlog_or_by_name(page: Site, app: Any, worker: TermsCaller) -> None:
    wait(worker, acme=1, mid=3, zoo=2)
    limit = ThrottleControl(app).limit("tenant")
    ThrottleControl(app).limit("tenant", key="acme").pause()
    assert shown_keys(page.get(LIMIT)) == ["acme", "mid", "zoo"]
    assert shown_keys(page.get(f"{LIMIT}&sort=backlog")) == ["mid", "zoo", "acme"]
    assert shown_keys(page.get(f"{LIMIT}&sort=name")) == ["acme", "mid", "zoo"]
    assert page.get(f"{LIMIT}&sort=nope").status_code == 400
    assert [each.key for each in limit.keys(sort="backlog", most=2).rows] == ["mid", "zoo"]
    assert [each.key for each in limit.keys(sort="name", skip=1).rows] == ["mid", "zoo"]
    assert limit.keys(find="O").known == 1
    wrong: list[dict[str, Any]] = [{"sort": "size"}, {"skip": -1}, {"find": 3}]
    for each in wrong:
        with pytest.raises(ConfigurationError):
            limit.keys(**each)


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
    second = page.get(f"{LIMIT}&sort=name&page=2")
    assert shown_keys(second) == names[100:200]
    assert 'rel="prev"' in second.text
    for wrong in ("0", "x", "-1", "9" * 20):
        assert page.get(f"{LIMIT}&page={wrong}").status_code == 400


# -- permits on each host ----------------------------------------------------------------------------------------------


@pytest.fixture
def hosts(redis: Redis) -> None:
    """Two hosts are full, and a task waits."""
    for host in ("a7", "a8"):
        worker = TermsCaller(redis, host, "q", sites=Sites({"host": host, "worker": host}))
        worker.take(f"on {host}", GPU)
    worker.put("waits", GPU)


@pytest.mark.usefixtures("hosts")
def test_the_page_has_a_row_for_each_host(page: Site) -> None:
    """The line of any host can only be dropped."""
    answer = page.get("limit?name=gpu")
    assert shown_keys(answer) == ["any host", "host=a7", "host=a8"]
    assert "1 permit on each host" in text(answer)
    assert "gpu [host=a7]" in text(page.get("limit?name=gpu&key=host%3Da7"))
    line = page.get("limit?name=gpu&key=any+host")
    assert "gpu [any host]" in text(line)
    assert re.findall(r"limit/change\?[^\"]*change=([\w-]+)", line.text) == ["drop"]


@pytest.mark.usefixtures("hosts")
@pytest.mark.parametrize("change", ["pause", "disable", "set 1", "set 1 --dry-run"])
def test_the_line_of_any_host_cannot_be_changed_alone(app: Any, change: str) -> None:
    """No task would notice: it starts by the permits of one host."""
    verb, *numbers = change.split()
    ended = run_in(app, verb, "gpu", *numbers, "--key", "any host")
    assert ended.code == 2
    fix = f"write `celery throttle {verb} gpu` or `celery throttle {verb} gpu --key host=a7`"
    assert fix in " ".join(ended.err.split())
    assert not ThrottleControl(app).limit("gpu").audit()


@pytest.mark.usefixtures("hosts")
@pytest.mark.parametrize(
    ("args", "shown"),
    [
        ("status --keys", ["gpu[host=a7]", "gpu[host=a8]", "gpu[any host]", "waits for a host with a permit free"]),
        ("show gpu --key a7", ["on a7"]),  # the store alone knows that the limit has permits on each host
        ("show gpu --key host=a7", ["on a7"]),
        ("explain waits", ["on a host that has a permit free"]),
        ("set gpu 2 --dry-run", ["At most 1 task would start", "how many are free there was not looked at."]),
    ],
)
def test_the_command_shows_each_host(app: Any, args: str, shown: list[str]) -> None:
    out = run_in(app, *args.split()).out
    assert [each for each in shown if each not in out] == []


@pytest.mark.usefixtures("hosts")
def test_a_host_is_written_as_it_is_read(app: Any) -> None:
    """Also where a program reads it, and in the command of a finding."""
    throttle = ThrottleControl(app)
    keys = [each.key for each in throttle.limit("gpu").keys().rows]
    assert sorted(keys, key=str) == ["any host", "host=a7", "host=a8"]
    assert {*keys} <= {each["key"] for each in json.loads(run_in(app, "status", "--keys", "--json").out)}
    for key in ("host", "any host"):
        shown = run_in(app, "show", "gpu", "--key", key).out
        assert "gpu[any host]" in shown
        assert "No task waits" not in shown
    throttle.limit("gpu", key="host=a7").pause()
    assert throttle.audit()[0].key == "host=a7"
    assert Commands().throttle("resume", Bucket.parse("gpu\x1f\x1dhost=a7")) == (
        "celery -A proj throttle resume --key=host=a7 gpu"
    )
