"""``celery throttle`` as a shell runs it: its imports, its exit codes, completion."""

from __future__ import annotations

import json
import re

import pytest
from click import Command, Context
from redis import Redis

from celery_throttle import Limit, __version__
from celery_throttle.control.cli.group import throttle
from tests.control.test_looking import API, ONE
from tests.store.terms_caller import TermsCaller, terms
from tests.support.shell import Shell
from tests.support.workers import ROOT

FEATURES = ("-A", "tests.support.apps.features")
APP = f"{' '.join(FEATURES)} throttle"
AWAY = "redis://:**@127.0.0.1:1/0: the store did not answer, or refused: "
NONE = {"BROKER_URL": "", "RESULT_BACKEND": ""}
NOWHERE = {"BROKER_URL": "redis://:secret@127.0.0.1:1/0", "RESULT_BACKEND": ""}
ENTRY_POINT = [
    *("celery_throttle", "celery_throttle.control", "celery_throttle.control.cli", "celery_throttle.control.cli.group"),
    *("celery_throttle.control.panel", "celery_throttle.core", "celery_throttle.core.lazy", "celery_throttle.tasks"),
    "celery_throttle.tasks.ours",
    "celery_throttle.control.verbs",
]


@pytest.fixture
def of_features(redis: Redis) -> TermsCaller:
    """A worker in the place of the app `FEATURES`, whose prefix is the default."""
    return TermsCaller(redis, "aaaaaaaa", "q", prefix="throttle")


def conf(**settings: object) -> dict[str, str]:
    return {"TEST_CONF": json.dumps(settings)}


def test_every_celery_command_loads_little_of_the_package(shell: Shell) -> None:
    """Nothing but the few small files that have the group: no Redis, no tables, no commands."""
    program = (
        "import sys; sys.path.append(sys.argv.pop(1)); import celery.bin.celery as c; import json;"
        "print(json.dumps([sorted(sys.modules), list(c.celery.commands)]))"
    )
    without = "import importlib.metadata as m; m.entry_points = lambda **_: [];" + program
    (loaded, commands), (before, others) = (shell.run(program=each).json for each in (program, without))
    assert set(commands) - set(others) == {"throttle"}
    assert sorted(set(loaded) - set(before)) == sorted(ENTRY_POINT)


def loaded_by(shell: Shell, *command: str) -> set[str]:
    """The modules of this library that a command has loaded at its end."""
    program = (
        "import sys, atexit; sys.path.append(sys.argv.pop(1)); import celery.__main__ as c;"
        "atexit.register(lambda: sys.stderr.write(' '.join(sys.modules)));"
        "sys.argv[0] = 'celery'; c.main()"
    )
    ended = shell.run(*FEATURES, "throttle", *command, program=program)
    return {each for each in ended.err.split() if each.startswith("celery_throttle")}


def test_status_loads_only_its_own_parts(shell: Shell, of_features: TermsCaller) -> None:
    of_features.arrive("t", ONE)
    others = {
        *("causes", "checks", "leases", "forecast", "metrics"),
        *("removal", "runnable", "server", "queues", "cli.checks", "cli.web", "cli.metrics", "cli.steer"),
    }
    loaded = loaded_by(shell, "status")
    assert "celery_throttle.control.cli.look" in loaded
    assert loaded & {f"celery_throttle.control.{each}" for each in others} == set()
    assert loaded.isdisjoint({"celery_throttle.web", "celery_throttle.store.servers.doctor"})
    assert "celery_throttle.control.checks" in loaded_by(shell, "report")


def test_help_has_and_the_docs_describe_all_commands(shell: Shell) -> None:
    assert "See the limits of all workers, and steer them." in shell.run("--help").out
    helped = shell.run("throttle", "--help")
    assert (helped.code, helped.err) == (0, "")
    assert "3 the store cannot be reached" in helped.out
    shown = " ".join(helped.out.partition("Commands:")[2].split())
    assert "reset End the overrides of permits and of rates: the code's numbers hold again." in shown
    assert "..." not in shown, "no help is cut"
    assert max(map(len, helped.out.splitlines())) <= 80
    described = (ROOT / "docs" / "reference" / "command.md").read_text()
    for name in throttle.list_commands(Context(throttle)):
        assert f"\n  {name} " in helped.out
        assert re.search(rf"[`|, ]{name}( [A-Z_ ]+)?`", described), name
        assert isinstance(throttle.get_command(Context(throttle), name), Command)


def test_it_is_fine(shell: Shell, of_features: TermsCaller) -> None:
    of_features.arrive("t", ONE)
    ended = shell.run(*FEATURES, "throttle", "status")
    assert (ended.code, ended.err) == (0, "")
    assert ended.lines == ["LIMIT    HELD  PARKED", "api    1 of 2       0"]
    ended = shell.run("throttle", "--version")
    assert (ended.code, ended.out) == (0, f"celery-fair-throttle {__version__}\n")
    ended = shell.run(*FEATURES, "throttle", "staus")
    assert ended.code == 2
    assert "Did you mean one of these?\n    status\n" in ended.err


@pytest.mark.parametrize(
    ("line", "env", "code", "said"),
    [
        (f"{APP} status", NOWHERE, 3, AWAY),
        (f"{APP} report", NOWHERE, 3, AWAY),
        (f"{APP} doctor", NOWHERE, 3, AWAY),
        (f"{APP} set gpu 2", NOWHERE, 3, AWAY),
        (f"{APP} top --times 1", NOWHERE, 3, AWAY),
        ("throttle status --url redis://127.0.0.1:1", NONE, 3, "redis://127.0.0.1:1: the store did not answer, or"),
        (f"{APP} status", conf(throttle_leese=3), 2, "Unknown setting 'throttle_leese', did you mean 'throttle_lease'"),
        (f"{APP} status", conf(imports=["nowhere.at_all"]), 2, "The tasks of the app cannot be imported: ModuleNot"),
        ("throttle status", NONE, 2, "No app and no store is known: write celery -A proj throttle status, or --url "),
        ("throttle doctor", NONE, 2, "No app and no store is known: write celery -A proj throttle doctor, or --url "),
        ("throttle status --url nowhere", NONE, 2, "throttle_url must be a URL such as 'redis://host:6379/0', got "),
        (f"{APP} status --url redis://x", {}, 2, "The app of -A has a store"),
        ("throttle status --prefix x", {}, 2, "--prefix needs --url beside it"),
        ("throttle drain --url redis://x", NONE, 2, "drain publishes to the app's broker: name the app with -A, not "),
    ],
)
def test_command_without_a_store_or_a_sound_app_ends_in_one_line(
    shell: Shell, line: str, env: dict[str, str], code: int, said: str
) -> None:
    ended = shell.run(*line.split(), env=env)
    assert (ended.code, ended.out) == (code, "")
    *usage, message = ended.err.splitlines()
    assert all(each.startswith(("Usage: ", "Try ")) for each in usage if each)
    assert message.startswith(f"Error: {said}")


def test_tasks_that_only_a_worker_would_import_are_known(shell: Shell) -> None:
    """A task names the group of a limit, so its module has to be there."""
    settings = conf(imports=["proj_tasks"])
    (shell.directory / "proj_tasks.py").write_text(
        "from tests.support.apps.features import app\nfrom celery_throttle import Limit, Throttled\n"
        "@app.task(base=Throttled, limit=Limit('late', 3, group='eu'), shared=False)\ndef late(): ...\n"
    )
    ended = shell.run(*FEATURES, "throttle", "show", "late", env=settings | {"PYTHONPATH": str(shell.directory)})
    assert (ended.code, ended.err) == (0, "")
    assert ended.rows[1][0] == "late"


def test_a_store_without_an_app(shell: Shell, of_features: TermsCaller, redis: Redis) -> None:
    of_features.know(API)
    TermsCaller(redis, "bbbbbbbb", "q", prefix="other").know(Limit("elsewhere", 1))
    url = shell.env["BROKER_URL"]
    for args, name in ((["--url", url], "api"), (["--url", url, "--prefix", "other"], "elsewhere")):
        ended = shell.run("throttle", "status", *args, env=NONE)
        assert (ended.code, [row[0] for row in ended.rows[1:]]) == (0, [name])
    assert shell.run("throttle", "audit", "--url", url, env=NONE).out == "Nothing was changed.\n"
    named = shell.run("--broker", url, "throttle", "status", env={"RESULT_BACKEND": ""})
    assert [row[0] for row in named.rows[1:]] == ["api"]


def test_options_that_an_app_adds_to_all_commands(shell: Shell) -> None:
    (shell.directory / "proj.py").write_text(
        "import os\nfrom celery import Celery\nfrom celery.signals import user_preload_options\n"
        "from click import Option\napp = Celery(broker=os.environ['BROKER_URL'])\n"
        "app.user_options['preload'].add(Option(['--tier']))\n"
        "@user_preload_options.connect\ndef told(options, **_): print('tier', options['tier'])\n"
    )
    ended = shell.run("-A", "proj", "throttle", "--tier", "gold", "status", env={"PYTHONPATH": str(shell.directory)})
    assert (ended.code, ended.err) == (0, "")
    assert ended.lines[0] == "tier gold"


def completed(shell: Shell, line: str, **env: str) -> list[str]:
    """Return the completions of a shell for the last word of this line."""
    words = {"_CELERY_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    ended = shell.run(env=words | env)
    assert ended.err == ""
    return [each.removeprefix("plain,") for each in ended.lines if each]


def test_completion(shell: Shell, of_features: TermsCaller) -> None:
    """Without the store, the limits of the code are still known; without the app nothing, and no traceback."""
    tenant = Limit("tenant", 1, key="tenant")
    of_features.arrive("t", terms(tenant).needs({"keys": {"tenant": "acme"}}))
    of_features.put("waits", Limit("box", 1, per="host"))
    app = f"celery {APP}"
    assert completed(shell, f"{app} pau") == ["pause"]
    offered = completed(shell, f"{app} show ")
    assert {"gpu", "single", "tests.support.apps.features.work", "tenant"} <= set(offered)
    assert completed(shell, f"{app} pause t") == sorted(name for name in offered if name.startswith("t"))
    assert completed(shell, f"{app} pause tenant --key ") == ["acme"]
    assert completed(shell, f"{app} show box --key ") == ["any host"]
    assert completed(shell, f"{app} pause --key a") == []
    assert completed(shell, f"celery throttle show --url {shell.env['BROKER_URL']} ") == ["box", "tenant"]
    assert "gpu" in completed(shell, f"{app} show ", **NOWHERE)
    assert completed(shell, f"{app} show gpu --key ", **NOWHERE) == []
    assert completed(shell, "celery -A nowhere throttle show ") == []
    assert completed(shell, "celery throttle show ", **NONE) == []
