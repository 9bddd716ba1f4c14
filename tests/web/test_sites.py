"""A limit with permits on each host, on the page and in the commands."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from redis import Redis

from celery_throttle import Limit, ThrottleControl
from celery_throttle.control.findings import Commands
from celery_throttle.core.buckets import Bucket
from celery_throttle.core.sites import Sites
from tests.control.conftest import run_in
from tests.store.terms_caller import TermsCaller
from tests.web.conftest import Site
from tests.web.test_keys import shown_keys
from tests.web.test_pages import text

GPU = Limit("gpu", 1, per="host")
LIMIT = "limit?name=gpu"


@pytest.fixture(autouse=True)
def hosts(redis: Redis) -> None:
    """Two hosts are full, and a task waits."""
    for host in ("a7", "a8"):
        worker = TermsCaller(redis, host, "q", sites=Sites({"host": host, "worker": host}))
        worker.take(f"on {host}", GPU)
    worker.put("waits", GPU)


def test_the_page_has_a_row_for_each_host(page: Site) -> None:
    answer = page.get(LIMIT)
    assert shown_keys(answer) == ["any host", "host=a7", "host=a8"]
    assert "1 permit on each host" in text(answer)
    assert "gpu [host=a7]" in text(page.get(f"{LIMIT}&key=host%3Da7"))


def test_the_line_of_any_host_can_only_be_dropped(page: Site) -> None:
    answer = page.get(f"{LIMIT}&key=any+host")
    assert "gpu [any host]" in text(answer)
    assert re.findall(r"limit/change\?[^\"]*change=([\w-]+)", answer.text) == ["drop"]


@pytest.mark.parametrize("change", ["pause", "disable", "set 1", "set 1 --dry-run"])
def test_the_line_of_any_host_cannot_be_changed_alone(app: Any, change: str) -> None:
    """No task would notice: it starts by the permits of one host."""
    verb, *numbers = change.split()
    ended = run_in(app, verb, "gpu", *numbers, "--key", "any host")
    assert ended.code == 2
    fix = f"write `celery throttle {verb} gpu` or `celery throttle {verb} gpu --key host=a7`"
    assert fix in " ".join(ended.err.split())
    assert not ThrottleControl(app).limit("gpu").audit()


def test_the_command_has_a_row_for_each_host(app: Any) -> None:
    shown = run_in(app, "status", "--keys").out
    for row in ("gpu[host=a7]", "gpu[host=a8]", "gpu[any host]", "waits for a host with a permit free"):
        assert row in shown
    keys = [each["key"] for each in json.loads(run_in(app, "status", "--keys", "--json").out)]
    assert {"any host", "host=a7", "host=a8"} <= {*keys}


@pytest.mark.parametrize("key", ["host", "any host"])
def test_the_command_shows_the_line_of_any_host(app: Any, key: str) -> None:
    shown = run_in(app, "show", "gpu", "--key", key).out
    assert "gpu[any host]" in shown
    assert "No task waits" not in shown


@pytest.mark.parametrize("key", ["a7", "host=a7"])
def test_the_command_shows_the_permits_of_one_host(app: Any, key: str) -> None:
    """The app has no task with this limit: the store alone knows that it has permits on each host."""
    assert "on a7" in run_in(app, "show", "gpu", "--key", key).out


def test_a_key_is_written_as_it_is_read(app: Any) -> None:
    """Also where a program reads it, and in the command of a finding."""
    throttle = ThrottleControl(app)
    keys = [each.key for each in throttle.limit("gpu").keys().rows]
    assert sorted(keys, key=str) == ["any host", "host=a7", "host=a8"]
    throttle.limit("gpu", key="host=a7").pause()
    assert throttle.audit()[0].key == "host=a7"
    assert Commands().throttle("resume", Bucket.parse("gpu\x1f\x1dhost=a7")) == (
        "celery -A proj throttle resume --key=host=a7 gpu"
    )


def test_a_task_tells_where_it_can_start(app: Any) -> None:
    (reason,) = ThrottleControl(app).explain("waits").reasons[-1:]
    assert "on a host that has a permit free" in reason


def test_a_dry_run_does_not_know_what_is_free(app: Any) -> None:
    shown = run_in(app, "set", "gpu", "2", "--dry-run").out
    assert "At most 1 task would start" in shown
    assert "Permits on each host: how many are free there was not looked at." in shown
