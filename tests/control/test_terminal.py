"""The output of commands on a terminal of 80 columns and 24 lines."""

from __future__ import annotations

import re

import pytest
from redis import Redis

from celery_throttle import Limit
from celery_throttle.control.cli.output import Column, Table
from celery_throttle.store.scripts import execute
from tests.store.terms_caller import TermsCaller, terms
from tests.support.shell import Shell

FEATURES = ("-A", "tests.support.apps.features", "throttle")
TENANT = Limit("tenant", 1, key="tenant")
IDS = [f"a9aafb67-d93e-449d-b1e6-63caaa97d{number:03}" for number in range(60)]
NAMES = "0123456789abcdef" * 3


@pytest.fixture
def crowd(redis: Redis) -> TermsCaller:
    """A worker whose tasks hold and wait, and one key is paused for a long reason."""
    caller = TermsCaller(redis, "aaaaaaaa", "queue-with-a-long-name", prefix="throttle")
    for number, task in enumerate(IDS):
        needs = terms(TENANT).needs({"keys": {"tenant": f"{number % 30}-{NAMES}"}})
        (caller.arrive if number < 30 else caller.put)(task, needs)
    for number in range(30, 33):
        caller.put(f"longest {number}", terms(TENANT).needs({"keys": {"tenant": f"29-{NAMES}"}}))
    why = "their incident 42, of which all of the details stand in the ticket"
    execute(redis, caller.store.control("tenant", "pause", "1", "0", "ana", why))
    return caller


def screen(text: str) -> list[str]:
    """Return the lines on the screen, without the codes that clear it and make text bold."""
    return re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text.rpartition("\x1b[2J")[2]).replace("\r", "").split("\n")


@pytest.mark.usefixtures("crowd")
def test_top_fits_a_terminal_with_its_header_and_longest_lines(shell: Shell) -> None:
    lines = screen(shell.on_terminal(*FEATURES, "top", "--times", "1"))
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert lines[0].endswith(" UTC")
    assert lines[1].split() == ["LIMIT", "HELD", "PARKED", "KEYS", "STATE"]
    assert lines[2].split()[:6] == ["tenant", "30", "(1", "each)", "33", "30"]
    assert lines[3].startswith("tenant[29-")
    assert re.match(r"The first 20 of \d+ limits and keys; --most shows more\.", lines[-2])


@pytest.mark.usefixtures("crowd")
@pytest.mark.parametrize("command", [["show", "tenant"], ["show", "tenant", "--most", "3"], ["locks"], ["reap"]])
@pytest.mark.parametrize("columns", ["80", "60"])
def test_task_ids_of_a_table_never_break(shell: Shell, command: list[str], columns: str) -> None:
    piped = set(re.findall("|".join(IDS), shell.run(*FEATURES, *command).out))
    lines = screen(shell.on_terminal(*FEATURES, *command, COLUMNS=columns))
    assert {found for line in lines for found in re.findall("|".join(IDS), line)} == piped
    assert max(map(len, lines)) <= int(columns)
    assert bool(piped) == (command[0] == "show")


@pytest.mark.usefixtures("crowd")
def test_headings_are_bold_unless_no_colour_is_wanted(shell: Shell) -> None:
    assert "\x1b[1m" in shell.on_terminal(*FEATURES, "status")
    assert "\x1b" not in shell.on_terminal("--no-color", *FEATURES, "status")


def test_a_table_that_is_not_in_a_terminal_is_never_cut() -> None:
    table = Table((Column("A", str), Column("B", str, folds=True)), [["a" * 100, "b c " * 100]])
    assert [len(row) for row in table.lines(None)] == [1, 1]


def test_text_is_folded_before_columns_go_to_the_next_line() -> None:
    columns = (Column("TASK", str), Column("N", str, right=True), Column("WHY", str, folds=True))
    table = Table(columns, [["t" * 36, "1", "one two three four five six seven"]])
    assert list(table.lines(70)) == [
        ["TASK" + " " * 34 + "N  WHY"],
        ["t" * 36 + "  1  one two three four five six", " " * 41 + "seven"],
    ]
    assert list(table.lines(40)) == [
        ["TASK" + " " * 34 + "N", "  WHY"],
        ["t" * 36 + "  1", "  one two three four five six seven"],
    ]
    assert max(len(line) for line in table.cut(50)) == 50
    table = Table(columns, [["abc" * 5, "17", "some text with words"]])
    for width in range(1, 60):
        lines = [line for row in table.lines(width) for line in row]
        assert all(len(line) <= max(width, 8) for line in lines)
        assert set("abc17sometextwithwords") <= set("".join(lines)), "any width shows all"
