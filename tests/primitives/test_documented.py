"""The example in the docstring of each primitive runs; and its scripts touch the keys alone that they are given."""

from __future__ import annotations

import re
from importlib.resources import files
from itertools import takewhile
from textwrap import dedent
from typing import Any

import pytest
from redis import Redis

from celery_throttle.primitives import Counter, FairSemaphore, IdentityLock, RateLimiter, Redlock
from tests.primitives.cluster import Cluster

LUA = files("celery_throttle.store") / "lua"


def example(documented: object) -> str:
    """Return the first block of code."""
    _, found, rest = str(documented.__doc__).partition("::\n")
    assert found
    return dedent("\n".join(takewhile(lambda line: not line or line.startswith(" " * 8), rest.splitlines())))


@pytest.mark.parametrize(
    ("documented", "printed", "left"),
    [
        (IdentityLock, "", "{throttle}:2:lock:.*"),
        (FairSemaphore, r".*PermitInfo\(holder='web-1'.*\n", r"{throttle}:2:semaphore:released:\w+"),
        (RateLimiter, "go on; 9 more may start at once\nsleep 0.0 seconds, or use .*\n", "{throttle}:2:rate:.*"),
        (Counter, ".*", "{throttle}:2:counter:newsletter"),
    ],
)
def test_the_example_runs(
    redis: Redis,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    documented: type,
    printed: str,
    left: str,
) -> None:
    monkeypatch.setattr("redis.Redis", lambda: redis)
    names: dict[str, Any] = {}
    exec(example(documented), names)
    assert re.fullmatch(printed, capsys.readouterr().out, re.DOTALL)
    assert redis.dbsize()
    assert all(re.fullmatch(left, key.decode()) for key in redis.scan_iter())
    if documented is IdentityLock:
        stored = names["orders"].execute("SELECT state, fence FROM orders").fetchone()
        assert stored == ("paid", names["held"].fencing_token)
        names["orders"].close()
    if documented is Counter:
        assert names["orders"].get() == 0


def test_the_example_of_a_redlock_runs(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redis.Redis", lambda port: cluster.clients[port - 6379])
    names: dict[str, Any] = {}
    exec(example(Redlock), names)
    assert names["held"].release() is True


@pytest.mark.parametrize("script", ["rate/bookings", "rate/take", "rate/peek", "rate/cancel", *(
    f"counter/{name}" for name in ("value", "call", "get", "add", "advance", "compare_and_set", "get_and_reset")
)])  # fmt: skip
def test_a_script_uses_the_keys_that_it_is_given(script: str) -> None:
    """So that a cluster can route it."""
    used = re.findall(r"redis\.call\('(\w+)'(?:, ([\w\[\]]+))?", (LUA / f"{script}.lua").read_text("utf-8"))
    assert {key for command, key in used if command != "TIME"} <= {"VALUE", "CALL", "KEYS[1]", "RATE"}


@pytest.mark.parametrize("directory", ["counter", "lock", "rate", "semaphore"])
def test_a_script_reads_the_time_once_at_most(directory: str) -> None:
    """Two would differ, before Redis 7.2. A shared part reads it for its scripts."""
    texts = [path.read_text("utf-8") for path in (LUA / directory).iterdir()]
    assert sum(text.count("'TIME'") for text in texts) == 1
