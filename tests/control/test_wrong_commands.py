"""The answers of ``celery throttle`` to a wrong command: the right one, as a shell takes it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from typing import Any

import pytest

from celery_throttle import Limit, Throttled
from celery_throttle.control.cli.group import throttle
from tests.control.conftest import run_in
from tests.store.terms_caller import TermsCaller, terms
from tests.support.shell import Ended, Shell

Run = Callable[..., Ended]

#: Arguments that only Python takes.
PYTHON = re.compile(r"\bthrottle\.\w+\(|\b\w+=(?!\[|\d)|\bwrite \w+\(|\w\(\)")


@pytest.fixture
def shop(app: Any, worker: TermsCaller) -> Any:
    """The app with a task of two limits, one without, and a parked task."""

    @app.task(base=Throttled, limit=[Limit("one", 1), Limit("two", 1)], name="both", shared=False)  # type: ignore[untyped-decorator]
    def both() -> None: ...

    worker.put("task-1", terms(Limit("api", 2)).same)
    return app


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        ("pause api --key x", "celery throttle pause api"),
        ("show api[x]", "celery throttle show api"),
        ("pause both", "celery throttle pause one"),
        ("resume charge", "celery throttle locks"),
        ("pause tenant[x", "celery throttle pause tenant --key x"),
        ("pause tenant[x] --key y", "celery throttle pause tenant --key x"),
        ("pause task-1", "celery throttle explain task-1"),
        ("history tenant[acme]", "celery throttle history tenant"),
        ("explain ''", "celery throttle explain TASK_ID"),
        ("drop --task ''", "celery throttle drop --task TASK_ID"),
        ("runnable ''", "celery throttle runnable celery"),
        ("set api", "celery throttle set api 5"),
        ("set api 5/m", "celery throttle set api --rate 5/m"),
        ("set api 0", "celery throttle pause api"),
        ("set api x", "celery throttle set api 5"),
        ("set api 99999999999999999999", "celery throttle disable api"),
        ("set api 3 --burst 3", "celery throttle set api 3 --rate 50/m --burst=3"),
        ("set api --rate 5/m --burst 2 --burst 3", "celery throttle set api --rate=5/m --burst=2"),
        ("audit --key x", "celery throttle audit LIMIT --key x"),
        ("drop", "celery throttle drop LIMIT"),
        ("drop api --task x", "celery throttle drop --task x"),
        ("drop --key x", "celery throttle drop LIMIT --key x"),
        ("locks charge", "celery throttle locks charge --args '[17]' --kwargs '{\"amount\": 5}'"),
        ("locks --args [1]", "celery throttle locks TASK --args '[17]'"),
        ("unlock", "celery throttle unlock TASK"),
        ("doctor --yes", "celery throttle doctor --repair --yes"),
        ("remove-data --force", "celery throttle remove-data --yes --force"),
        ("remove-data --yes", "celery throttle drain"),
    ],
)
def test_an_error_names_the_command_to_type(shop: Any, line: str, fix: str) -> None:
    ended = run_in(shop, *shlex.split(line))
    assert ended.code in (1, 2)
    message = ended.err[ended.err.index("Error: ") :]
    commands = re.findall(r"`(.*?)`", message)
    assert fix in commands
    for each in commands:
        begin, group, name, *_ = shlex.split(each)
        assert (begin, group) == ("celery", "throttle")
        assert name in throttle.list_commands(None)  # type: ignore[arg-type]
    assert not PYTHON.search(re.sub("`.*?`", "", message))


@pytest.mark.parametrize("line", ["set api --rate 5/m --burst 0", "set api --rate 5", "stop api", "pause nope"])
def test_an_error_without_a_command_has_no_python(shop: Any, line: str) -> None:
    ended = run_in(shop, *line.split())
    assert ended.code in (1, 2)
    assert not PYTHON.search(ended.err)


def test_the_command_to_type_names_the_app_or_the_store(shell: Shell) -> None:
    ended = shell.run("-A", "tests.support.apps.features", "throttle", "set", "gpu", "0")
    assert "`celery -A tests.support.apps.features throttle pause gpu`" in ended.err
    url = shell.env["BROKER_URL"]
    ended = shell.run("throttle", "drop", "--url", url, env={"BROKER_URL": "", "RESULT_BACKEND": ""})
    assert f"`celery throttle drop --url {url} LIMIT`" in ended.err


def test_help_of_the_group_is_not_cut(run: Run) -> None:
    helped = run("--help").out
    commands = " ".join(helped.partition("Commands:")[2].split())
    assert "..." not in commands
    assert "reset End the overrides of permits and of rates: the code's numbers hold again." in commands
    assert max(map(len, helped.splitlines())) <= 80


def test_a_wrong_value_is_reported_with_its_option(run: Run) -> None:
    assert "Invalid value for '--for': '1y' is no duration: write 90s" in run("pause", "api", "--for", "1y").err
    assert "Invalid value for '--most': 0 is not in the range" in run("show", "api", "--most", "0").err
