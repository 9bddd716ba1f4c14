"""``celery throttle metrics``, ``ThrottleControl.metrics()``."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click import ClickException
from redis import Redis

from celery_throttle import Limit, ThrottleControl, Throttled
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
from tests.control.conftest import Run, make_app, run_in
from tests.control.test_looking import MAIL, ONE, TENANT, fill, names, of
from tests.store.caller import KEYS
from tests.store.cost import commands
from tests.store.peek import KEY, expire, peek
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


# -- measured values ---------------------------------------------------------------------------------------------------


def test_how_a_limit_stands(app: Any, worker: TermsCaller) -> None:
    fill(worker, 2)
    worker.put("three", ONE, age=3600)
    worker.put("four", ONE)
    found = of_limit(app, "api")
    assert 3600 <= found.pop("oldest_wait_seconds") < 3610
    assert found == {
        "permits_declared": 2, "permits": 2, "held": 2, "parked": 2, "next_start_seconds": 0, "keys": 0, "full": 1,
        "paused": 0, "disabled": 0, "held_back": 0, "overridden": 0,
    }  # fmt: skip


def test_keys_are_summed(app: Any, worker: TermsCaller) -> None:
    for number in range(20):
        worker.arrive(f"h{number}", of(f"k{number}"))
        worker.put(f"w{number}", of(f"k{number}"), age=60 * number)
    ThrottleControl(app).limit("tenant", key="k1").override(7)
    ThrottleControl(app).limit("tenant", key="k2").pause()
    found = of_limit(app, "tenant")
    assert {name: found[name] for name in ("permits", "held", "parked", "keys", "full", "paused", "overridden")} == {
        "permits": 1, "held": 20, "parked": 20, "keys": 20, "full": 19, "paused": 1, "overridden": 1,
    }  # fmt: skip
    assert 19 * 60 <= found["oldest_wait_seconds"] < 19 * 60 + 10
    assert not any("k1" in line for line in ThrottleControl(app).metrics().splitlines())


@pytest.mark.parametrize(
    ("change", "name", "permits"),
    [
        (lambda limit: limit.pause(), "paused", 1),
        (lambda limit: limit.disable(), "disabled", None),
        (lambda limit: limit.override(9), "overridden", 9),
    ],
)
def test_metrics_of_overrides(
    app: Any, worker: TermsCaller, change: Callable[[Any], None], name: str, permits: int | None
) -> None:
    """Once, however many keys it holds for."""
    for key in ("a", "b"):
        worker.arrive(key, of(key))
    change(ThrottleControl(app).limit("tenant"))
    found = of_limit(app, "tenant")
    assert {each for each in ("paused", "disabled", "held_back", "overridden") if found[each]} == {name}
    assert (found[name], found.get("permits"), found["permits_declared"]) == (1, permits, 1)


def test_the_rates_that_hold(app: Any, worker: TermsCaller) -> None:
    worker.know(Limit("mail", rate=["10/s", "3600/h"], burst=[1, 9]))
    limit = ThrottleControl(app).limit("mail")
    limit.override(rate="30/m")
    found = of_limit(app, "mail")
    assert (found["starts_per_second_declared"], found["starts_per_second"], found["overridden"]) == (1, 0.5, 1)
    limit.override(7)
    assert of_limit(app, "mail")["overridden"] == 1
    limit.disable()
    assert "starts_per_second" not in of_limit(app, "mail")


def test_a_hold_and_a_rate(app: Any, worker: TermsCaller) -> None:
    run = worker.take("t", MAIL)
    assert 3000 < of_limit(app, "mail")["next_start_seconds"] <= 3600
    assert "permits" not in of_limit(app, "mail")
    worker.send_back(run, 60)
    assert of_limit(app, "mail")["held_back"] == 1


def test_workers_are_counted_by_the_state_of_their_leases(app: Any, worker: TermsCaller, redis: Redis) -> None:
    other = TermsCaller(redis, "cccccccc", "q")
    many = terms(Limit("many", 9)).same
    for caller, task in ((worker, "a"), (worker, "b"), (other, "c"), (other, "d")):
        caller.arrive(task, many)

    def counted() -> tuple[float, ...]:
        found = of_group(app)
        assert " ".join(found) == (
            "holders workers workers_silent leases_overdue set_aside settling_seconds store_time_seconds cut "
            "store_errors_total"
        )
        return tuple(found[each] for each in ("holders", "workers", "workers_silent", "leases_overdue"))

    assert counted() == (4, 2, 0, 0)
    lease = settings_of(app).lease
    redis.zadd(KEY["leases"], dict.fromkeys(("c", "d"), peek(redis).now + lease * 300), xx=True)
    assert counted() == (4, 2, 1, 0)
    expire(redis, "c", "d")
    assert counted() == (4, 1, 1, 2)


def test_metrics_of_a_group(app: Any, worker: TermsCaller, redis: Redis) -> None:
    worker.put("spoilt", ONE)
    redis.hset(KEY["records"], "spoilt", "{")
    worker.look()
    now = peek(redis).now
    redis.hset(KEY["meta"], "settling", f"{now + 60_000:.0f}")
    found = of_group(app)
    assert (found["set_aside"], found["cut"]) == (1, 0)
    assert 50 < found["settling_seconds"] <= 60
    assert 0 <= found["store_time_seconds"] - now / 1000 < 10


def test_store_errors_of_workers_are_counted(app: Any, worker: TermsCaller, redis: Redis) -> None:
    worker.look()
    assert of_group(app)["store_errors_total"] == 0
    worker.exchange(errors=2)
    TermsCaller(redis, "cccccccc", "q").exchange(errors=1)
    assert of_group(app)["store_errors_total"] == 3


def test_limits_of_the_same_name_in_two_groups(server: EmbeddedServer, worker: TermsCaller, redis: Redis) -> None:
    app = make_app(server.url)

    def late() -> None: ...

    app.task(late, base=Throttled, limit=Limit("late", 3, group="eu"), name="late", shared=False)
    worker.know(Limit("late", 5))
    TermsCaller(redis, "cccccccc", "q", prefix=f"{KEYS.prefix}:eu").know(Limit("late", 3))
    found = read(ThrottleControl(app).metrics())
    assert set(found["celery_throttle_holders"]) == {("",), ("eu",)}
    assert found["celery_throttle_permits"] == {("", "late"): 5, ("eu", "late"): 3}


def test_it_costs_no_more_where_there_is_more(app: Any, worker: TermsCaller, redis: Redis) -> None:
    for number in range(300):
        worker.put(f"t{number}", of(f"k{number}"))
    ThrottleControl(app).metrics()
    with commands(redis) as calls:
        text = ThrottleControl(app).metrics()
    assert calls["evalsha"] < 130
    assert len(text.splitlines()) < 125
    assert read(text)["celery_throttle_cut"] == {("",): 0}


def test_a_long_wait_counts_beside_a_thousand_keys_in_line(app: Any, worker: TermsCaller) -> None:
    ThrottleControl(app).limit("api").pause()
    worker.put("late", ONE, age=600)
    other = terms(Limit("zone", 1, key="tenant"))
    worker.put("of a key", other.needs({"keys": {"zone": "z"}}), age=1200)
    for number in range(MOST + 1):
        for _ in range(1 + number % 2):
            worker.put(f"t{number}", of(f"k{number:04}"))
    assert 600 <= of_limit(app, "api")["oldest_wait_seconds"] < 700
    assert 1200 <= of_limit(app, "zone")["oldest_wait_seconds"] < 1300
    assert 0 < of_limit(app, "tenant")["oldest_wait_seconds"] < 100
    worker.know(Limit("idle", 1))
    assert of_limit(app, "idle")["oldest_wait_seconds"] == 0


# -- how it is written -------------------------------------------------------------------------------------------------


def test_names_may_be_anything(app: Any, redis: Redis) -> None:
    """Other programs may write names to the store that `Limit` refuses."""
    redis.hset(KEY["used"], HOSTILE, 1)
    assert of_limit(app, one_line(HOSTILE))["held"] == 1


def test_numbers() -> None:
    samples = [Sample({}, value) for value in (0, 3, 100, 0.5, 1795310144.264, 2**40)]
    head, kind, *values, end = exposition([Metric("x", "y", samples)]).splitlines()
    assert (head, kind, end) == ("# HELP x y", "# TYPE x gauge", "# EOF")
    assert values == ["x 0", "x 3", "x 100", "x 0.5", "x 1795310144.264", "x 1099511627776"]


def test_others_can_read_it(app: Any, worker: TermsCaller, redis: Redis) -> None:
    """Prometheus' own library, in both formats."""
    parser = pytest.importorskip("prometheus_client.parser")
    openmetrics = pytest.importorskip("prometheus_client.openmetrics.parser")
    redis.hset(KEY["used"], HOSTILE, 1)
    worker.arrive("t", ONE)
    text = ThrottleControl(app).metrics()
    for parse in (parser.text_string_to_metric_families, openmetrics.text_string_to_metric_families):
        held = next(each for each in parse(text) if each.name == "celery_throttle_held")
        assert {each.labels["limit"]: each.value for each in held.samples} == {one_line(HOSTILE): 1, "api": 1}


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command(app: Any, run: Run, worker: TermsCaller) -> None:
    worker.arrive("t", ONE)
    ended = run("metrics")
    assert (ended.code, ended.err) == (0, "")
    steady = [line for line in ended.lines if "store_time" not in line]
    assert steady == [line for line in ThrottleControl(app).metrics().splitlines() if "store_time" not in line]
    shown = run("metrics", "--json").json
    assert {each["name"] for each in shown} == {f"celery_throttle_{name}" for name in ALL}
    assert shown[0].keys() == names(Metric)
    held = next(each for each in shown if each["name"] == "celery_throttle_held")
    assert held["samples"] == [{"labels": {"group": "", "limit": "api"}, "value": 1, "suffix": ""}]


def test_into_a_file(run: Run, worker: TermsCaller, tmp_path: Path) -> None:
    worker.know(TENANT)
    path = tmp_path / "throttle.prom"
    umask = os.umask(0o022)
    try:
        ended = run("metrics", "--to", str(path))
    finally:
        os.umask(umask)
    assert (ended.code, ended.out) == (0, "")
    assert ("", "tenant") in read(path.read_text())["celery_throttle_held"]
    assert path.stat().st_mode & 0o777 == 0o644
    before = path.stat().st_ino
    run("metrics", "--to", str(path))
    assert path.stat().st_ino != before  # another file in its place: a reader of the old one reads all of it
    assert list(tmp_path.iterdir()) == [path]


def test_a_store_that_is_away_leaves_the_file(own_server: EmbeddedServer, tmp_path: Path) -> None:
    path = tmp_path / "throttle.prom"
    app = make_app(own_server.url)
    assert run_in(app, "metrics", "--to", str(path)).code == 0
    before = path.read_bytes()
    own_server.kill()
    ended = run_in(app, "metrics", "--to", str(path))
    assert (ended.code, len(ended.err.splitlines())) == (3, 1)
    assert path.read_bytes() == before


def test_a_file_that_cannot_be_written(run: Run, tmp_path: Path) -> None:
    ended = run("metrics", "--to", str(tmp_path / "nowhere" / "x.prom"))
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.splitlines()[-1].endswith("x.prom cannot be written: No such file or directory")
    (tmp_path / "taken.prom").mkdir()
    assert run("metrics", "--to", str(tmp_path / "taken.prom")).code == 2
    with pytest.raises(ClickException):
        _replace(tmp_path / "taken.prom", "text")
    assert [each.name for each in tmp_path.iterdir()] == ["taken.prom"]


def test_the_page_names_each_metric() -> None:
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `celery_throttle_")]
    assert set(re.findall(r"`celery_throttle_(\w+)`", "\n".join(row.split("|")[1] for row in rows))) == set(ALL)
