"""``celery throttle metrics``, ``ThrottleControl.metrics()``."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from click import ClickException
from redis import Redis

from celery_throttle import Limit, ThrottleControl
from celery_throttle.control.cli.metrics import _replace
from celery_throttle.control.metrics import _COUNTERS as COUNTERS
from celery_throttle.control.metrics import _ERRORS as ERRORS
from celery_throttle.control.metrics import _GAUGES as GAUGES
from celery_throttle.control.metrics import _WAIT as WAIT
from celery_throttle.control.metrics import Metric, Sample, exposition
from celery_throttle.control.reader import MOST
from celery_throttle.core.wording import one_line
from celery_throttle.embedded import EmbeddedServer
from celery_throttle.settings import settings_of
from tests.control.conftest import Run, add_task, make_app, run_in
from tests.control.desk_story import DeskStory
from tests.control.test_looking import ONE, names, of
from tests.store.caller import KEYS
from tests.store.cost import commands
from tests.store.peek import KEY, expire, peek
from tests.store.stories import stories
from tests.store.terms_caller import TermsCaller, terms
from tests.support.workers import ROOT

ALL = GAUGES | COUNTERS | ERRORS | WAIT
KINDS = dict.fromkeys(COUNTERS | ERRORS, "counter") | dict.fromkeys(WAIT, "histogram")
#: As Prometheus' format has it: a name, labels whose values have \\, \" and \n escaped, a number.
LINE = re.compile(r'(?P<name>[a-z_]+)(?:\{(?P<labels>(?:,?[a-z_]+="(?:[^"\\\n]|\\["\\n])*")*)\})? (?P<value>-?[0-9.]+)')
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')
HISTOGRAMS = {f"celery_throttle_{name}" for name in WAIT}
HOSTILE = 'a"b\\c\nd\\n{x="y"} 1\r\x00\u2028ünï # EOF'


def read(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    """Read metrics: values by name and labels, which have to be in their order, without their own names."""
    assert text.endswith("\n# EOF\n")
    found: dict[str, dict[tuple[str, ...], float]] = {}
    name = ""
    for line in text.split("\n")[:-2]:
        if line.startswith("# HELP "):
            name = line.split(" ")[2]
            assert name not in found
            found[name] = {}
        elif line.startswith("# "):
            assert line == f"# TYPE {name} {KINDS.get(name.removeprefix('celery_throttle_'), 'gauge')}"
        else:
            match = LINE.fullmatch(line)
            assert match, line
            suffix = match["name"].removeprefix(name)
            assert suffix in (("_bucket", "_count", "_sum") if name in HISTOGRAMS else ("",))
            labels = LABEL.findall(match["labels"] or "")
            values = tuple(re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], value) for _, value in labels)
            values += (suffix,) if suffix else ()
            assert values not in found[name]
            found[name][values] = float(match["value"])
    return found


def of_limit(app: Any, limit: str) -> dict[str, float]:
    """Return the metrics of a limit, by the short names."""
    found = read(ThrottleControl(app).metrics())
    short = ((name.removeprefix("celery_throttle_"), each) for name, each in found.items())
    return {name: each["", limit] for name, each in short if ("", limit) in each and name not in COUNTERS}


def of_group(app: Any) -> dict[str, float]:
    found = read(ThrottleControl(app).metrics())
    return {name.removeprefix("celery_throttle_"): each["",] for name, each in found.items() if ("",) in each}


LIMITS = """
a limit, and its changes:
    take a b on=gpu:2; park c on=gpu:2 age=3600; park d on=gpu:2
    metrics gpu permits_declared permits held parked keys full oldest_wait_seconds = 2 2 2 2 0 1 3600
    metrics gpu paused disabled held_back overridden next_start_seconds = 0 0 0 0 0
    metrics gpu starts_per_second_declared starts_per_second = - -
    change gpu pause; metrics gpu permits_declared permits paused = 2 2 1
    change gpu override 9; metrics gpu permits_declared permits overridden full = 2 9 1 0
    change gpu disable; metrics gpu permits_declared permits disabled full = 2 - 1 0
    park late on=idle:1; look; end late; metrics idle oldest_wait_seconds = 0
a limit with keys is summed:
    take a on=tenant[a]:1; take b on=tenant[b]:1; take c on=tenant[c]:1; park a2 on=tenant[a]:1 age=60
    park b2 on=tenant[b]:1 age=700; park c2 on=tenant[c]:1; change tenant/a override 7; change tenant/b pause
    metrics tenant permits held parked keys full paused overridden oldest_wait_seconds = 1 3 3 3 2 1 1 700
an override of all keys counts once:
    take a on=tenant[a]:1; take b on=tenant[b]:1; metrics tenant paused disabled held_back overridden = 0 0 0 0
    change tenant pause; metrics tenant permits paused overridden = 1 1 0
    change tenant override 9; metrics tenant permits paused overridden = 9 1 1
    change tenant disable; metrics tenant permits disabled = - 1
a rate and a hold:
    take t on=mail@1/h; metrics mail permits starts_per_second_declared next_start_seconds = - 0.000277778 3600
    send_back t pause=60; metrics mail held_back = 1
the lowest rate holds, and another one is one override with other permits:
    take t on=mail@10/s,3600/h^1,9; change mail override rate=30/m
    metrics mail starts_per_second_declared starts_per_second overridden = 1 0.5 1
    change mail override 7; metrics mail overridden = 1; change mail disable; metrics mail starts_per_second = -
"""


@pytest.mark.parametrize("steps", stories(LIMITS))
def test_a_story_of_metrics(desk: DeskStory, steps: str) -> None:
    desk.tell(steps)


def test_metrics_of_a_group(app: Any, worker: TermsCaller, redis: Redis) -> None:
    other = TermsCaller(redis, "cccccccc", "q")
    many = terms(Limit("many", 9)).same
    for caller, task in ((worker, "a"), (worker, "b"), (other, "c"), (other, "d")):
        caller.arrive(task, many)

    def counted(*names: str) -> tuple[float, ...]:
        return tuple(of_group(app)[each] for each in names)

    assert " ".join(of_group(app)) == (
        "holders workers workers_silent leases_overdue set_aside settling_seconds store_time_seconds cut "
        "store_errors_total"
    )
    leases = ("holders", "workers", "workers_silent", "leases_overdue")
    assert counted(*leases) == (4, 2, 0, 0)
    redis.zadd(KEY["leases"], dict.fromkeys(("c", "d"), peek(redis).now + settings_of(app).lease * 300), xx=True)
    assert counted(*leases) == (4, 2, 1, 0)
    expire(redis, "c", "d")
    assert counted(*leases) == (4, 1, 1, 2)
    assert counted("store_errors_total", "set_aside", "settling_seconds") == (0, 0, 0)
    worker.exchange(errors=2)
    other.exchange(errors=1)
    worker.put("spoilt", ONE)
    redis.hset(KEY["records"], "spoilt", "{")
    worker.look()
    now = peek(redis).now
    redis.hset(KEY["meta"], "settling", f"{now + 60_000:.0f}")
    assert counted("store_errors_total", "set_aside", "cut") == (3, 1, 0)
    settling, time = counted("settling_seconds", "store_time_seconds")
    assert 50 < settling <= 60
    assert 0 <= time - now / 1000 < 10


def test_limits_of_the_same_name_in_two_groups(server: EmbeddedServer, worker: TermsCaller, redis: Redis) -> None:
    app = make_app(server.url)
    add_task(app, "late", Limit("late", 3, group="eu"))
    worker.know(Limit("late", 5))
    TermsCaller(redis, "cccccccc", "q", prefix=f"{KEYS.prefix}:eu").know(Limit("late", 3))
    found = read(ThrottleControl(app).metrics())
    assert set(found["celery_throttle_holders"]) == {("",), ("eu",)}
    assert found["celery_throttle_permits"] == {("", "late"): 5, ("eu", "late"): 3}


def test_metrics_cost_no_more_where_there_is_more(control: ThrottleControl, worker: TermsCaller, redis: Redis) -> None:
    for number in range(300):
        worker.put(f"t{number}", of(f"k{number}"))
    control.metrics()
    with commands(redis) as calls:
        text = control.metrics()
    assert not any("k1" in line for line in text.splitlines())
    assert calls["evalsha"] < 130
    assert len(text.splitlines()) < 125
    assert read(text)["celery_throttle_cut"] == {("",): 0}


def test_a_long_wait_counts_beside_a_thousand_keys_in_line(control: ThrottleControl, worker: TermsCaller) -> None:
    control.limit("api").pause()
    worker.put("late", ONE, age=600)
    other = terms(Limit("zone", 1, key="tenant"))
    worker.put("of a key", other.needs({"keys": {"zone": "z"}}), age=1200)
    for number in range(MOST + 1):
        for _ in range(1 + number % 2):
            worker.put(f"t{number}", of(f"k{number:04}"))
    worker.know(Limit("idle", 1))
    found = read(control.metrics())["celery_throttle_oldest_wait_seconds"]
    assert 600 <= found["", "api"] < 700
    assert 1200 <= found["", "zone"] < 1300
    assert 0 < found["", "tenant"] < 100
    assert found["", "idle"] == 0


def test_numbers() -> None:
    samples = [Sample({}, value) for value in (0, 3, 100, 0.5, 1795310144.264, 2**40)]
    head, kind, *values, end = exposition([Metric("x", "y", samples)]).splitlines()
    assert (head, kind, end) == ("# HELP x y", "# TYPE x gauge", "# EOF")
    assert values == ["x 0", "x 3", "x 100", "x 0.5", "x 1795310144.264", "x 1099511627776"]


def test_others_can_read_any_names(app: Any, control: ThrottleControl, worker: TermsCaller, redis: Redis) -> None:
    """Other programs may write names to the store that `Limit` refuses; Prometheus' own library has two formats."""
    parser = pytest.importorskip("prometheus_client.parser")
    openmetrics = pytest.importorskip("prometheus_client.openmetrics.parser")
    redis.hset(KEY["used"], HOSTILE, 1)
    worker.arrive("t", ONE)
    assert of_limit(app, one_line(HOSTILE))["held"] == 1
    for parse in (parser.text_string_to_metric_families, openmetrics.text_string_to_metric_families):
        held = next(each for each in parse(control.metrics()) if each.name == "celery_throttle_held")
        assert {each.labels["limit"]: each.value for each in held.samples} == {one_line(HOSTILE): 1, "api": 1}


def test_metrics_of_the_command(control: ThrottleControl, run: Run, worker: TermsCaller) -> None:
    worker.arrive("t", ONE)
    ended = run("metrics")
    assert (ended.code, ended.err) == (0, "")
    steady = [line for line in ended.lines if "store_time" not in line]
    assert steady == [line for line in control.metrics().splitlines() if "store_time" not in line]
    shown = run("metrics", "--json").json
    assert {each["name"] for each in shown} == {f"celery_throttle_{name}" for name in ALL}
    assert shown[0].keys() == names(Metric)
    held = next(each for each in shown if each["name"] == "celery_throttle_held")
    assert held["samples"] == [{"labels": {"group": "", "limit": "api"}, "value": 1, "suffix": ""}]
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `celery_throttle_")]
    assert set(re.findall(r"`celery_throttle_(\w+)`", "\n".join(rows))) == set(ALL), "the page names each"


def test_metrics_into_a_file(own_server: EmbeddedServer, tmp_path: Path) -> None:
    app = make_app(own_server.url)
    path = tmp_path / "throttle.prom"
    umask = os.umask(0o022)
    try:
        ended = run_in(app, "metrics", "--to", str(path))
    finally:
        os.umask(umask)
    assert (ended.code, ended.out) == (0, "")
    assert read(path.read_text())["celery_throttle_up"] == {(): 1}
    assert path.stat().st_mode & 0o777 == 0o644
    before = path.stat().st_ino
    run_in(app, "metrics", "--to", str(path))
    assert path.stat().st_ino != before, "another file in its place: a reader of the old one reads all of it"
    assert list(tmp_path.iterdir()) == [path]
    text = path.read_bytes()
    own_server.kill()
    ended = run_in(app, "metrics", "--to", str(path))
    assert (ended.code, len(ended.err.splitlines())) == (3, 1)
    assert path.read_bytes() == text, "a store that is away leaves the file"


def test_a_file_that_cannot_be_written(run: Run, tmp_path: Path) -> None:
    ended = run("metrics", "--to", str(tmp_path / "nowhere" / "x.prom"))
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.splitlines()[-1].endswith("x.prom cannot be written: No such file or directory")
    (tmp_path / "taken.prom").mkdir()
    assert run("metrics", "--to", str(tmp_path / "taken.prom")).code == 2
    with pytest.raises(ClickException):
        _replace(tmp_path / "taken.prom", "text")
    assert [each.name for each in tmp_path.iterdir()] == ["taken.prom"]
