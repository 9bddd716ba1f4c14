"""The example in the docstring of each primitive runs; and its scripts touch the keys alone that they are given."""

from __future__ import annotations

import re
from importlib.resources import files
from itertools import takewhile
from textwrap import dedent
from typing import Any

import pytest
from redis import Redis

from celery_throttle.primitives import Counter, FairSemaphore, IdentityLock, RateLimiter

LUA = files("celery_throttle.store") / "lua"


def example(documented: object) -> str:
    """Return the first block of code."""
    _, found, rest = str(documented.__doc__).partition("::\n")
    assert found
    return dedent("\n".join(takewhile(lambda line: not line or line.startswith(" " * 8), rest.splitlines())))


@pytest.mark.parametrize(
    ("documented", "printed", "left"),
    [
        (IdentityLock, "", "{throttle}:3:lock:.*"),
        (FairSemaphore, r".*PermitInfo\(holder='web-1'.*\n", r"{throttle}:3:semaphore:released:\w+"),
        (RateLimiter, "go on; 9 more may start at once\nsleep 0.0 seconds, or use .*\n", "{throttle}:3:rate:.*"),
        (Counter, ".*", "{throttle}:3:counter:newsletter"),
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


@pytest.mark.parametrize(
    ("directory", "keys"),
    [
        ("counter", "VALUE CALL KEYS[1]"),
        ("lock", "LOCK FENCE RECEIPT"),
        ("rate", "RATE"),
        ("semaphore", "LEASES HOLDERS LINE LOOKS WAITERS LIMIT RECEIPT key"),
    ],
)
def test_scripts_use_the_keys_that_they_are_given_and_read_the_time_once(directory: str, keys: str) -> None:
    """So that a cluster can route them; and two times would differ, before Redis 7.2."""
    text = "\n".join(path.read_text("utf-8") for path in (LUA / directory).iterdir())
    assert text.count("'TIME'") == 1
    used = re.findall(r"redis\.call\('(\w+)'(?:, ([\w\[\]]+))?", text)
    assert {key for command, key in used if command != "TIME" and key} <= set(keys.split())
