"""The server that demos and tests bring along."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_throttle import ConfigurationError
from celery_throttle.embedded import EmbeddedServer, find_server, server_url
from tests.conftest import ROOT
from tests.support.waiting import until
from tests.support.workers import alive


def test_a_server_listens_on_loopback_only_and_keeps_nothing(own_server: EmbeddedServer) -> None:
    """A server of a test or a demo must not be reachable from elsewhere."""
    with Redis.from_url(own_server.url, decode_responses=True) as client:
        assert client.config_get("bind")["bind"].split() == ["127.0.0.1"]
        assert client.config_get("save")["save"] == ""


@pytest.mark.parametrize(
    ("own_server", "left"), [({}, None), ({"persistent": True}, "1")], indirect=["own_server"], ids=["empty", "full"]
)
def test_a_killed_server_comes_back_on_the_same_port(own_server: EmbeddedServer, left: str | None) -> None:
    """The failure tests rely on it. A persistent one keeps its data, also when its disk is busy."""
    url = own_server.url
    with Redis.from_url(url, decode_responses=True) as client:
        client.set("here", "1")
        own_server.kill()
        own_server.restart()
        assert own_server.url == url
        assert client.get("here") == left
        # With everysec it would keep acknowledged data in memory.
        assert left is None or client.config_get("appendfsync")["appendfsync"] == "always"


def test_frozen_server_accepts_and_stays_silent(own_server: EmbeddedServer) -> None:
    """The worst kind of outage: no error, no answer."""
    own_server.freeze()
    with Redis.from_url(own_server.url, socket_timeout=0.2, retry=None) as client, pytest.raises(RedisTimeoutError):
        client.ping()
    own_server.thaw()
    with Redis.from_url(own_server.url) as client:
        assert client.ping()


def test_a_stopped_server_leaves_no_process_and_no_files() -> None:
    """Also when it hangs."""
    with EmbeddedServer(prefer=("wheel", "path")) as server:
        pid, directory = server.pid, server.directory
        server.freeze()
    assert not alive(pid)
    assert not directory.exists()


def test_the_server_dies_with_a_killed_parent(tmp_path: Path) -> None:
    """SIGKILL runs no clean-up code."""
    program = (
        f"import sys, time; sys.path.append({ROOT!r})\n"
        "from celery_throttle.embedded import EmbeddedServer\n"
        f"import tempfile; tempfile.tempdir = {str(tmp_path)!r}\n"
        "server = EmbeddedServer(prefer=('wheel', 'path')).start()\n"
        "print(server.pid, flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=tmp_path) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    until(lambda: not alive(pid), describe="The server outlived its parent.")


def test_a_given_url_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is started then."""
    monkeypatch.setenv("THROTTLE_URL", "redis://example.invalid:1/0")
    with server_url() as url:
        assert url == "redis://example.invalid:1/0"


def test_missing_server_binary_is_reported_with_its_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three fixes, by name."""
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigurationError, match=r"THROTTLE_URL"):
        find_server(("path",))
