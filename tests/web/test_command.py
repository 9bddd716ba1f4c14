"""``celery throttle web``."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from tests.support.shell import CELERY, Shell
from tests.support.workers import ROOT
from tests.web.conftest import BEARER, TOKEN

WEB = ("-A", "tests.support.apps.features", "throttle", "web")


@contextmanager
def served_by_command(shell: Shell, *args: str) -> Iterator[str]:
    """The URL of a page that the command serves until it is interrupted."""
    process = subprocess.Popen(
        [sys.executable, "-c", CELERY, str(ROOT), *WEB, "--port", "0", "--json", *args],
        cwd=shell.directory,
        env=shell.env | {"THROTTLE_WEB_TOKEN": TOKEN},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout
        yield json.loads(process.stdout.readline())["url"]
    finally:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert "Traceback" not in out + err


def test_it_serves_the_page_until_it_is_interrupted(shell: Shell) -> None:
    with served_by_command(shell) as url:
        assert httpx.get(url).status_code == 401
        assert "No limits are known" in httpx.get(url, headers=BEARER).text
        change = f"{url}limit/change?name=gpu&change=pause"
        command = "celery -A tests.support.apps.features throttle pause --for=2h gpu"
        assert command in httpx.get(change, headers=BEARER).text


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (["--host", "0.0.0.0"], "0.0.0.0 may be reached from other machines: add --token"),
        (["--token", "short"], "The token must be 16 printable ASCII characters or more"),
    ],
)
def test_it_refuses_in_one_line(shell: Shell, args: list[str], error: str) -> None:
    ended = shell.run(*WEB, "--port", "0", *args)
    assert (ended.code, ended.out) == (2, "")
    (line,) = ended.err.splitlines()
    assert line.startswith(f"Error: {error}")


@pytest.mark.parametrize("module", ["starlette", "uvicorn"])
def test_the_extra_is_missing(shell: Shell, module: str) -> None:
    ended = shell.run(*WEB, program=f"import sys; sys.modules['{module}'] = None;{CELERY}")
    assert (ended.code, ended.out) == (2, "")
    (line,) = ended.err.splitlines()
    assert line.startswith("Error: The page needs ")
    assert line.endswith(": pip install 'celery-fair-throttle[web]'")


@pytest.mark.parametrize(("function", "module"), [("asgi", "jinja2"), ("wsgi", "a2wsgi")])
def test_the_extra_is_missing_where_it_is_mounted(shell: Shell, function: str, module: str) -> None:
    program = (
        f"import sys; sys.path.append(sys.argv.pop(1)); sys.modules['{module}'] = None\n"
        f"from celery import Celery; from celery_throttle import ConfigurationError, web\n"
        f"try: web.{function}(Celery())\nexcept ConfigurationError as error: print(error)"
    )
    assert shell.run(program=program).out.endswith("which is not installed: pip install 'celery-fair-throttle[web]'\n")
