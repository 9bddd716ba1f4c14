"""The answers of ``celery throttle`` to a wrong command: the right one, as a shell takes it."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest

from celery_throttle import ConfigurationError, Limit, ThrottleControl
from celery_throttle.control.cli.group import throttle
from tests.control.conftest import add_task, run_in
from tests.store.terms_caller import TermsCaller, terms
from tests.support.shell import Shell

#: Arguments that only Python takes.
PYTHON = re.compile(r"\bthrottle\.\w+\(|\b\w+=(?!\[|\d)|\bwrite \w+\(|\w\(\)")
LONG = "x" * 501
READING = ("show", "history", "audit", "pause")
KNOWN = "Known limits: api, one, tenant, two"


@pytest.fixture
def shop(app: Any, worker: TermsCaller) -> Any:
    """The app with a task of two limits, one without, and a parked task."""

    def plain() -> None: ...

    app.task(plain, name="plain", shared=False)
    add_task(app, "both", Limit("one", 1), Limit("two", 1))
    worker.put("task-1", terms(Limit("api", 2)).same)
    return app


def refused(shop: Any, line: str) -> tuple[int, str]:
    """Return the exit code of a command, and its message of one line, which stands last; it changes nothing."""
    ended = run_in(shop, *shlex.split(line))
    assert ended.out == ""
    *usage, message = ended.err.splitlines()
    assert all(each.startswith(("Usage: ", "Try ")) for each in usage if each)
    assert message.startswith("Error: ")
    assert ThrottleControl(shop).audit() == ()
    assert [each.task_id for each in ThrottleControl(shop).parked()] == ["task-1"]
    return ended.code, message


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        # The name of a limit, and its key.
        ("pause nope", 1, f"Error: No limit 'nope': {KNOWN}"),
        ("show nope --json", 1, f"Error: No limit 'nope': {KNOWN}"),
        ("show ap", 1, f"Error: No limit 'ap', did you mean 'api'? {KNOWN}"),
        ("simulate apy", 1, "Error: No limit 'apy', did you mean 'api'?"),
        ("set nope[x 3", 1, "Error: No limit 'nope[x'"),
        ("show nope[x]", 1, f"Error: No limit 'nope': {KNOWN}"),
        ("audit nope", 1, f"Error: No limit 'nope': {KNOWN}"),
        ("drop nope", 1, f"Error: No limit 'nope': {KNOWN}"),
        ("pause", 2, "Error: Missing argument 'LIMIT'."),
        ("pause api --key x", 2, "Error: Limit 'api' has no keys: write `celery throttle pause api`"),
        ("show api[x]", 2, "`celery throttle show api`"),
        ("pause tenant[x", 1, "Error: No limit 'tenant[x': write `celery throttle pause tenant --key x`"),
        ("pause tenant[x] --key y", 1, "`celery throttle pause tenant --key x`"),
        ("history tenant[acme]", 2, "`celery throttle history tenant`"),
        ("audit --key x", 2, "Error: --key is one of a limit: write `celery throttle audit LIMIT --key x`"),
        # A task in the place of a limit.
        ("pause both", 1, "Error: Task both has several limits, 'one' or 'two': write `celery throttle pause one`"),
        ("show charge", 1, "Error: Task charge runs once and has no limit: `celery throttle locks` shows"),
        ("resume charge", 1, "Error: Task charge runs once and has no limit: `celery throttle locks` shows"),
        (
            "pause task-1",
            1,
            (
                "Error: No limit 'task-1', but a task has this id: write `celery throttle explain task-1` or "
                f"`celery throttle drop --task task-1`. {KNOWN}"
            ),
        ),
        ("drop task-1 --yes", 1, "`celery throttle drop --task task-1`"),
        # Tasks.
        ("explain ''", 2, "`celery throttle explain TASK_ID`"),
        ("drop --task ''", 2, "`celery throttle drop --task TASK_ID`"),
        ("drop --task t --yes --json", 1, "Error: No task 't' is known to the store: it has ended, or is in its"),
        ("drop --task t", 1, "Error: No task 't' is known to the store: it has ended, or is in its queue"),
        ("drop", 2, "Error: write `celery throttle drop LIMIT`, with --key or without, or `celery throttle drop"),
        ("drop api --task x --yes", 2, "one task of any limit: write `celery throttle drop --task x`"),
        ("drop --key x --task y --yes", 2, "one task of any limit: write `celery throttle drop --task y`"),
        ("drop --key x --yes", 2, "Error: --key is one of a limit: write `celery throttle drop LIMIT --key x`"),
        ("runnable ''", 2, "`celery throttle runnable celery`"),
        # Permits and rates.
        ("set api", 2, "Error: A number of permits or a rate is missing: write `celery throttle set api 5` or "),
        ("set api 5/m", 2, "'5/m' is a rate: write `celery throttle set api --rate 5/m`"),
        ("set api 0", 2, "'0' is no whole number of 1 or more: `celery throttle pause api` lets none start"),
        ("set api 0 --dry-run", 2, "'0' is no whole number of 1 or more: `celery throttle pause api` lets none start"),
        ("set api -3", 2, "Error: '-3' is no whole number of 1 or more"),
        ("set api x", 2, "'x' is no whole number of 1 or more: write `celery throttle set api 5`"),
        ("set api 9999999999", 2, "'9999999999' is more than 999999999: `celery throttle disable api` enforces"),
        (
            "set api 3 --burst 3",
            2,
            "Error: --burst needs --rate beside it: write `celery throttle set api 3 --rate 50/m --burst=3`",
        ),
        ("set api --rate 5/m --burst 2 --burst 3", 2, "`celery throttle set api --rate=5/m --burst=2`"),
        ("set api --rate 5/m --burst 0", 2, "Error: Invalid value for '--burst': 0 is not in the range"),
        ("set api --rate 5", 2, "A rate is text such as '100/m', got '5'"),
        # Other options.
        ("pause api --for 1y", 2, "Error: Invalid value for '--for': '1y' is no duration: write 90s"),
        ("pause api --for 100000d", 2, "'100000d' is longer than ten years: leave it out for a change"),
        ("show api --most 0", 2, "Error: Invalid value for '--most': 0 is not in the range"),
        ("set api 3 --nope", 2, "Error: No such option"),
        ("doctor --yes", 2, "`celery throttle doctor --repair --yes`"),
        ("remove-data --force", 2, "`celery throttle remove-data --yes --force`"),
        ("remove-data --yes", 1, "`celery throttle drain`"),
        # The name of the operator, and the reason.
        (f"pause api --why {LONG}", 2, "Error: Limit api: why must be text of 500 characters at most, got 'xx"),
        (f"pause api --why {LONG}", 2, "write --why 'their incident 42'"),
        (f"drop api --yes --by {LONG}", 2, "Error: Limit api: by must be text of 500 characters at most, got 'xx"),
        (f"drain --yes --by {LONG}", 2, "write --by ana"),
        (f"remove-data --yes --by {LONG}", 2, "write --by ana"),
        (f"unlock charge -a [17,5] --why {LONG}", 2, "write --why 'their incident 42'"),
        # Identity locks.
        ("locks nope", 1, "Error: No throttled task 'nope' in this app. Its singletons: charge"),
        ("unlock nope", 1, "Error: No throttled task 'nope' in this app. Its singletons: charge"),
        ("locks charge -a [17]", 2, "Error: Task charge: these are not its arguments: missing amount"),
        ("unlock charge -a [17]", 2, "Error: Task charge: these are not its arguments: missing amount"),
        ("locks charge", 2, "`celery throttle locks charge --args '[17]' --kwargs '{\"amount\": 5}'`"),
        ("locks --args [1]", 2, "--args and --kwargs need a task: write `celery throttle locks TASK --args '[17]'`"),
        ("unlock", 2, "`celery throttle unlock TASK"),
        ("unlock", 2, "`celery throttle unlock --identity ID`"),
        ("unlock charge --identity x", 2, "`celery throttle unlock --identity ID`"),
        ("unlock --identity x -a [1]", 2, "`celery throttle unlock --identity ID`"),
        # Simulations.
        ("simulate api --arrivals 5", 2, "must be 'x1.5' or a number a second, got '5': write --arrivals x1.5"),
        ("simulate api --runtime 3", 2, "must be 'x2' or a time, got '3': write --runtime x2 or --runtime 0.4s"),
        ("simulate api --spread -1", 2, "Error: --spread must be a number from 0 to 10, got -1.0: write --spread 0.5"),
        ("simulate api --permits 0", 2, "Error: Invalid value for '--permits': 0 is not in the range 1<=x<=999999999."),
        ("simulate api --target 2", 2, "Error: Invalid value for '--target': '2' is no duration: write 90s, 10m"),
        ("simulate api --burst 3", 2, "Error: --burst needs --rate beside it: write --rate 50/m --burst 3"),
        ("simulate api --rate 5/s --burst 3 --burst 4", 2, "Error: 2 bursts for 1 rate: write one for all, or one for"),
        ("simulate api --rate 5", 2, "Error: Limit api: A rate is text such as '100/m', got '5'"),
        ("simulate api --for 1y", 2, "Error: Invalid value for '--for': '1y' is no duration: write 90s, 10m"),
        ("simulate api --for 31d", 2, "Error: --for must be at most 30 days: write --for 1h"),
        ("simulate api --target 31d", 2, "Error: --target must be at most 30 days: write --target 2s"),
        ("simulate", 2, "Error: Without LIMIT a number is missing: write --permits 8 or --rate 50/m"),
        ("simulate --key acme --permits 8", 2, "throttle simulate LIMIT --key acme`"),
        ("simulate --permits 8", 2, "Error: Without a LIMIT there are no counts: write `"),
    ],
)  # fmt: skip
def test_an_error_names_the_command_to_type(shop: Any, line: str, code: int, said: str) -> None:
    ended, message = refused(shop, line)
    assert (ended, said in message) == (code, True), message
    for each in re.findall(r"`(.*?)`", message):
        begin, group, name, *_ = shlex.split(each)
        assert (begin, group) == ("celery", "throttle")
        assert name in throttle.list_commands(None)  # type: ignore[arg-type]
    assert not PYTHON.search(re.sub("`.*?`", "", message))


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        *((f"{command} plain", 1, "Task plain has no limit: give it base=Throttled, limit=5") for command in READING),
        ("locks call", 2, "Task call: it has no lock, since it has no singleton=True"),
        ("unlock call", 2, "Task call: it has no lock, since it has no singleton=True"),
    ],
)
def test_an_error_about_code_or_text_begins_with_its_place(shop: Any, line: str, code: int, said: str) -> None:
    ended, message = refused(shop, line)
    assert (ended, message[: len("Error: ") + len(said)]) == (code, f"Error: {said}")


def test_limit_named_by_the_id_of_a_task_is_an_error_of_python(shop: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^No limit 'task-1', but a task has this id: explain and drop take"):
        ThrottleControl(shop).limit("task-1")


def test_the_command_to_type_names_the_app_or_the_store(shell: Shell) -> None:
    ended = shell.run("-A", "tests.support.apps.features", "throttle", "set", "gpu", "0")
    assert "`celery -A tests.support.apps.features throttle pause gpu`" in ended.err
    url = shell.env["BROKER_URL"]
    for words, meant in ((["drop"], "LIMIT"), (["runnable", ""], "celery")):
        ended = shell.run("throttle", *words, "--url", url, env={"BROKER_URL": "", "RESULT_BACKEND": ""})
        assert f"`celery throttle {words[0]} --url {url} {meant}`" in ended.err
