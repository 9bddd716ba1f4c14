"""The start of a worker: setups and stores that it refuses in one line, and its report of the others."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import NoPermissionError

from celery_throttle.core.keys import Keys
from celery_throttle.embedded import EmbeddedServer
from celery_throttle.store.servers.client import connection_factory
from celery_throttle.store.servers.doctor import findings, refusal
from celery_throttle.worker.held_back import outage
from celery_throttle.worker.held_back.held_back import HeldBack
from celery_throttle.worker.held_back.outage import Outage
from celery_throttle.worker.reported import paced_log
from celery_throttle.worker.reported.paced_log import PacedLog
from celery_throttle.worker.runs import Content, Run
from tests.support.relay import Relay
from tests.support.timers import Timers
from tests.support.tls import TlsFront, make_certificate
from tests.support.workers import BASIC, Workers
from tests.workers.conftest import FEATURES, ONCE, greeting

FORGETFUL = "tests.support.apps.forgetful"


def refused(workers: Workers, **how: Any) -> str:
    """Return the last line of a worker that does not start."""
    worker = workers.start(**how, wait=False)
    assert worker.wait() == 1
    assert not re.search("Traceback|secret", worker.log())
    return worker.log().splitlines()[-1]


@pytest.mark.parametrize(
    ("app", "conf", "said"),
    [
        (BASIC, {"throttle_leese": 3}, "Unknown setting 'throttle_leese', did you mean 'throttle_lease'?"),
        (BASIC, {"task_annotations": {f"{BASIC}.work": {"limit": "two"}}}, f"Task {BASIC}.work: limit must be a whole"),
        (ONCE, {"result_backend": "rpc://"}, rf"Task {ONCE}.\w+: on_conflict='re.*rpc://"),
        (
            BASIC,
            {"throttle_url": "redis://one:secret@127.0.0.1:{}/0"},
            r"The store redis://one:\*\*@127.0.0.1:{}/0 refuses the user or the password",
        ),
        (BASIC, {"broker_url": "memory://", "result_backend": "cache+memory://"}, ".*throttle_url = 'redis://"),
    ],
    ids=["setting", "option", "backend", "password", "no store"],
)
def test_wrong_setup_ends_in_one_line(
    workers: Workers, server: EmbeddedServer, app: str, conf: dict[str, Any], said: str
) -> None:
    workers.broker = conf.get("broker_url", workers.broker)
    workers.backend = conf.get("result_backend", workers.backend)
    if "throttle_url" in conf:
        conf, said = {"throttle_url": conf["throttle_url"].format(server.port)}, said.format(server.port)
    line = refused(workers, app=app, conf=conf)
    assert re.match(f"Error: {said}", line), line


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("Limit('gpu', limit=4)", "Error: Limit 'gpu' takes no limit=4: write Limit('gpu', 4)"),
        (
            "def f(order_id): ...\napp.task(f, base=Throttled, limt=5)\napp.finalize()",
            "Error: Task mistaken.f: unknown option 'limt', did you mean 'limit'?",
        ),
    ],
    ids=["limit", "option"],
)
def test_wrong_setup_at_import_ends_in_one_line(workers: Workers, tmp_path: Path, code: str, said: str) -> None:
    (tmp_path / "mistaken.py").write_text(
        "from celery import Celery\n"
        "from celery_throttle import Limit, Throttled\n"
        f"app = Celery('shop', broker={workers.broker!r})\n"
        f"{code}\n"
    )
    assert refused(workers, app="mistaken", quick=False) == said


# -- stores ------------------------------------------------------------------------------------------------------------

FIX = r"\(.*\): correct throttle_url \(or the broker's URL"


@pytest.mark.parametrize("own_server", [{"options": {"requirepass": "right"}}], indirect=True)
@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://:wrong@{locked}/0", f"refuses the user or the password {FIX}"),
        ("redis://{locked}/0", f"refuses the user or the password {FIX}"),
        ("redis://:right@{locked}/99", f"has no such database {FIX}"),
        ("redis://{secure}/0", r"speaks TLS: write rediss:// in throttle_url \(or the broker's"),
        ("rediss://{open}/0", r"speaks no TLS: write redis:// in throttle_url \(or the broker's"),
        *(
            (f"rediss://{{open}}/0?{option}=/not/there.pem", f"names /not/there.pem as {option}, which cannot be read")
            for option in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
        ),
        ("redis://{old}/0", r"is Redis 6\.0\.\d+, which lacks commands .*: upgrade it to 6.2 or later"),
        ("redis://few:secret@{open}/0", "None$"),  # it does not tell its version
        ("redis://127.0.0.1:1/0", "None$"),  # it may answer yet
    ],
)
def test_a_store_is_refused_with_the_fix(
    own_server: EmbeddedServer, server: EmbeddedServer, redis: Any, tmp_path: Path, url: str, said: str
) -> None:
    version = redis.info("server")["redis_version"]
    redis.execute_command("ACL", "SETUSER", "few", "on", ">secret", "~*", "+@all", "-info")
    with TlsFront(server.port, *make_certificate(tmp_path)) as front, Relay(server.port) as relay:
        # Its scripts would fail once a second, for ever.
        relay.instead = (f"redis_version:{version}".encode(), b"redis_version:" + b"6.0.16789"[: len(version)])
        ports = {"locked": own_server.port, "secure": front.port, "open": server.port, "old": relay.port}
        place = url.format(**{name: f"127.0.0.1:{port}" for name, port in ports.items()})
        make: Any = connection_factory(place, Keys("throttle"))
        assert re.match(said, str(refusal(make())))
    redis.execute_command("ACL", "DELUSER", "few")


class FakeClient:
    """Answers INFO and CONFIG GET; None stands for a refusal."""

    def __init__(self, info: dict[str, Any], config: dict[str, str] | None) -> None:
        self._info, self._config = info, config

    def info(self) -> dict[str, Any]:
        return self._info

    def config_get(self, name: str) -> dict[str, str]:
        if self._config is None:
            raise NoPermissionError("this user has no permissions to run the 'config|get' command")
        return {name: self._config[name]}


GOOD = {"role": "master", "redis_version": "7.2.4", "maxmemory_policy": "noeviction", "aof_enabled": 1}


@pytest.mark.parametrize(
    ("info", "config", "fix"),
    [
        ({}, None, None),
        ({"redis_version": "6.0.16"}, {}, "is Redis 6.0.16: upgrade it to 6.2 or later"),
        ({"redis_version": "5.0.7"}, {}, "is Redis 5.0.7: upgrade it to 6.2 or later"),
        *(({"redis_version": version}, {}, None) for version in ("6.2.0", "6.10.1", "7.0.15", "10.1")),
        ({"role": "slave"}, None, "is a replica, .* point throttle_url at the primary"),
        ({"maxmemory_policy": "volatile-ttl"}, None, "set maxmemory-policy noeviction"),
        ({"maxmemory_policy": None}, {"maxmemory-policy": "allkeys-lfu"}, "set maxmemory-policy noeviction"),
        ({"maxmemory_policy": None}, None, None),
        ({"aof_enabled": 0}, {"save": ""}, "set appendonly yes"),
        ({"aof_enabled": 0}, {"save": "3600 1"}, None),
        ({"aof_enabled": 0}, None, None),
    ],
    ids=str,
)
def test_problems_of_a_store_come_with_the_fix(
    info: dict[str, Any], config: dict[str, str] | None, fix: str | None
) -> None:
    found = list(findings(FakeClient({**GOOD, **info}, config)))  # type: ignore[arg-type]
    assert len(found) == (fix is not None)
    assert all(re.search(str(fix), each) for each in found)


# -- the report --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("own_server", [{"persistent": True}], indirect=True)
def test_worker_logs_its_throttled_tasks_and_no_warning(own_server: EmbeddedServer, workers: Workers) -> None:
    worker = workers.start(FEATURES, conf={"throttle_url": f"redis://:@127.0.0.1:{own_server.port}/0"})
    assert re.fullmatch(
        r"\d+ tasks throttled, limits gpu, single, \S+, \S+ and \S+; "
        rf"store redis://:\*\*@127\.0\.0\.1:{own_server.port}/0: (Redis|Valkey) \d\S+, "
        r"hints work, persistence by append-only file, nothing is evicted",
        greeting(worker),
    )
    assert not re.search("WARNING.*celery_throttle:", worker.log())


@pytest.mark.parametrize("own_server", [{"options": {"maxmemory-policy": "allkeys-lru"}}], indirect=True)
def test_problems_of_the_store_stand_out(own_server: EmbeddedServer, workers: Workers) -> None:
    with Redis(port=own_server.port) as client:
        client.execute_command("ACL", "SETUSER", "silent", "on", ">secret", "resetchannels", "~*", "+@all")
    worker = workers.start(conf={"throttle_url": f"redis://silent:secret@127.0.0.1:{own_server.port}/0"})
    said, log = greeting(worker), worker.log()
    assert said.endswith("hints are REFUSED, NO persistence, keys MAY BE EVICTED (allkeys-lru)")
    assert "store redis://silent:**@127" in said
    assert log.count("maxmemory-policy allkeys-lru") == log.count("set maxmemory-policy noeviction") == 1
    assert log.count("set appendonly yes") == 1
    assert "replica" not in log
    assert "secret" not in log


def test_a_store_that_is_away_is_named(workers: Workers) -> None:
    """It may come; until then the log names the awaited address and the tasks that wait."""
    worker = workers.start(ONCE, conf={"throttle_url": "redis://somebody:secret@127.0.0.1:1/7"})
    assert greeting(worker).endswith(" run once; store redis://somebody:**@127.0.0.1:1/7: it does not answer")
    (line,) = worker.wait_for_log(r"cannot reach the store .*")
    assert "redis://somebody:**@127.0.0.1:1/7): throttled tasks wait, unacknowledged, until it is back" in line
    assert "secret" not in worker.log()


def test_worker_logs_options_without_effect(workers: Workers) -> None:
    log = workers.start(FORGETFUL).log()
    ours = re.escape(f"WARNING/MainProcess] celery_throttle: Task {FORGETFUL}.")
    for remark in (r"render has limit=.* but not base=Throttled: it is NOT limited", "bare has base=Throttled but no"):
        assert len(re.findall(ours + remark, log)) == 1


@pytest.mark.parametrize(
    ("action", "said"),
    [
        ("hold", "throttled tasks wait, unacknowledged, until it is back; 2 wait here"),
        ("run", "throttled tasks run without a permit"),
        ("fail", "throttled tasks fail"),
    ],
)
def test_outage_is_logged_every_minute(
    action: Any, said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 1000.0
    monkeypatch.setattr(outage, "monotonic", lambda: now)
    caplog.set_level(logging.ERROR, paced_log.__name__)
    nothing: Any = None
    timers: Any = Timers()
    held = HeldBack(nothing, nothing, lambda more: None)
    away = Outage("", action, held, lambda run: None, lambda run, error: None, PacedLog(timers))
    if action == "hold":
        away.meet(Run(None, Content("t"), epoch=0))
        away.meet(Run(None, Content("t"), epoch=0))
    for _ in range(130):
        away.unreachable(ConnectionError("refused"))
        now += 1
        timers.ring()
    away.over()
    timers.ring()
    away.unreachable(ConnectionError("refused again"))
    at_first = said.partition(";")[0]
    assert [record.getMessage() for record in caplog.records] == [
        f"celery_throttle: cannot reach the store (refused): {at_first}",
        f"celery_throttle: still cannot reach the store (refused): {said}",
        f"celery_throttle: still cannot reach the store (refused): {said}",
        f"celery_throttle: cannot reach the store (refused again): {at_first}",
    ]
