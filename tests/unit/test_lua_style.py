"""The style of the Lua files: one subject each, functions of one screen, names that fit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

import pytest

import celery_throttle.store

LUA = Path(celery_throttle.store.__file__).parent / "lua"
FILES = {path.relative_to(LUA).as_posix(): path.read_text("utf-8") for path in sorted(LUA.rglob("*.lua"))}
#: The loader gives every script of the gate all functions of the files in gate/shared, and `state`, whose fields
#: begin.lua names.
GATE, GATE_SHARED = "gate/", "gate/shared/"
LONGEST_FUNCTION, SHARED_FUNCTIONS, SHARED_LINES = 40, 10, 150
FUNCTION = re.compile(r"^local function (\w+)\(([^)]*)\)(.*)$")
#: What a line may not do, its comment and its strings left out.
FORBIDDEN = {
    r"^(?!local function \w+\().*\bfunction\b": "makes a function within another",
    r"^local (?!function\b)[\w, ]+$": "declares what is made later",
    r"\bopen_\w*\(": "opens something",
}


def code_of(text: str) -> list[str]:
    """Return the lines without comments and strings."""
    return [re.sub(r"--.*", "", re.sub(r"'(?:\\.|[^'\\\n])*'", "''", line)).rstrip() for line in text.splitlines()]


def sizes_of(lines: list[str]) -> dict[str, int]:
    """Return the number of lines of each function at the top."""
    found = [(number, FUNCTION.match(line)) for number, line in enumerate(lines)]
    return {
        match[1]: 1 if match[3].endswith(" end") else lines.index("end", number) - number + 1
        for number, match in found
        if match
    }


def declared(text: str) -> set[str]:
    """Return all names that a file itself makes."""
    lists = re.findall(r"\blocal (?!function\b)([\w, ]+)|\bfor ([\w, ]+) (?:=|in)\b|\bfunction \w+\(([^)]*)\)", text)
    return {name.strip() for found in lists for names in found for name in names.split(",")}


def written(lines: list[str]) -> Iterator[str]:
    """Yield all names that are assigned to, also a field of theirs, where they are not made."""
    depths = accumulate((line.count("{") - line.count("}") for line in lines), initial=0)
    whole = [line for line, depth in zip(lines, depths, strict=False) if not depth]  # the rest are fields of a table
    for statement in (part.strip() for line in whole for part in re.split(r"\bthen\b|\belse\b|\bdo\b|;", line)):
        targets = re.match(r"(?!(?:local|for|if|while|until|return)\b)([\w.\[\]#+, -]+?) = ", statement)
        yield from re.findall(r"(?:^|, )(\w+)", targets[1]) if targets else ()


def header_faults(code: str, head: str, *, shared: bool, gate: bool) -> Iterator[str]:
    if not re.match(r"-- [A-Z]", head):
        yield "does not begin with a sentence"
    if not shared and "-- Returns " not in head:
        yield "does not say what it returns"
    if gate and not shared and "-- KEYS, ARGV[1] as in shared/begin.lua" not in head:
        yield "does not say that its keys are those of the gate"
    for key in sorted(set(re.findall(r"KEYS\[\d+\]", code))):
        if key not in head and not re.search(r"^-- KEYS\b[^\[\n].* as in ", head, re.MULTILINE):
            yield f"does not say what {key} is"
    if "ARGV" in code and "ARGV" not in head:
        yield "does not say what its arguments are"


def faults(text: str, name: str = "") -> Iterator[str]:
    """Yield the violations of the rules in a file."""
    lines, head = code_of(text), re.match(r"(?:--.*\n)*", text)[0]  # type: ignore[index]  # matches anything
    shared = name.startswith(GATE_SHARED) or re.match(r"-- (Shared by|Put first)\b", text) is not None
    code, gate = "\n".join(lines), name.startswith(GATE)
    yield from (f"line {number} is wide" for number, line in enumerate(text.splitlines(), 1) if len(line) > 110)
    yield from header_faults(code, head, shared=shared, gate=gate)
    sizes = sizes_of(lines)
    yield from (f"{function} has {size} lines" for function, size in sizes.items() if size > LONGEST_FUNCTION)
    if (rest := sum(map(bool, lines)) - sum(sizes.values())) > LONGEST_FUNCTION:
        yield f"{rest} lines are in no function"
    if shared and len(sizes) > SHARED_FUNCTIONS:
        yield f"{len(sizes)} functions are shared"
    if shared and len(lines) > SHARED_LINES:
        yield f"{len(lines)} lines are shared"
    for number, line in enumerate(lines, 1):
        yield from (f"line {number} {does}" for pattern, does in FORBIDDEN.items() if re.search(pattern, line))
    foreign = set(written(lines)) - declared(code) - ({"state"} if gate else set())
    yield from (f"writes {each}, which another file makes" for each in sorted(foreign))
    replies = set(re.findall(r"\blocal (\w+) = redis\.p?call\(", code)) | {"KEYS", "ARGV"}
    numbered = set(re.findall(r"(\w+)\[\d+\]", code)) - replies
    yield from (f"numbers the fields of {each}" for each in numbered)


@pytest.mark.parametrize("name", sorted(FILES))
def test_file_follows_the_rules(name: str) -> None:
    assert list(faults(FILES[name], name)) == []


def test_shared_names_of_gate_scripts_stand_at_their_beginning() -> None:
    named = FILES["gate/shared/begin.lua"].partition("-- worker, call:")[2].partition("local state")[0]
    gate = "\n".join(text for name, text in FILES.items() if name.startswith(GATE))
    used = set(re.findall(r"\bstate\.(\w+)", gate))
    assert used <= {*re.findall(r"\w+", named), "worker", "call"}
    assert len(used) > 15


SCRIPT = "-- Does it.\n-- KEYS[1] it  STRING  it\n-- Returns it.\n"
SHARED = "-- Shared by all.\n"
TEN = "".join(f"local function f{number}() return 1 end\n" for number in range(10))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (SCRIPT + "local IT = KEYS[1]\nlocal one, two = 1, 2\none = two\nreturn IT -- open_it() KEYS[2]\n", None),
        (SCRIPT + "local function one(it)\n  it.x = 'it[1]'\nend\nfor it = 1, 2 do it = 3 end\n", None),
        (SCRIPT + "local one = {\n  two = 2,\n}\nlocal found = redis.call('TIME')\nreturn found[1]\n", None),
        (SCRIPT + "return " + "1" * 104, "line 4 is wide"),
        ("-- it\n-- Returns it.\n", "does not begin with a sentence"),
        ("-- Does it.\nreturn 1\n", "does not say what it returns"),
        (SCRIPT + "return KEYS[2]\n", "does not say what KEYS[2] is"),
        (SCRIPT + "return ARGV[2]\n", "does not say what its arguments are"),
        (SCRIPT + "local function one()\n" + "  it()\n" * 39 + "end\n", "one has 41 lines"),
        (SCRIPT + "it()\n" * 41, "41 lines are in no function"),
        (SHARED + TEN, None),
        (SHARED + TEN + "local function f()\nend\n", "11 functions are shared"),
        (SHARED + "\n" * 150, "151 lines are shared"),
        (SCRIPT + "local function one()\n  local function two() end\nend\n", "line 5 makes a function within another"),
        (SCRIPT + "local one, two\n", "line 4 declares what is made later"),
        (SCRIPT + "open_it()\n", "line 4 opens something"),
        (SCRIPT + "if it then limit = 2 end\n", "writes limit, which another file makes"),
        (SCRIPT + "limits.one = 2\n", "writes limits, which another file makes"),
        (SCRIPT + "local one = 1\none, limit = 2, 3\n", "writes limit, which another file makes"),
        (SCRIPT + "local one = record()\nreturn one[3]\n", "numbers the fields of one"),
    ],
)
def test_rules_find_each_violation(text: str, fault: str | None) -> None:
    assert list(faults(text)) == ([fault] if fault else [])


def test_of_the_gate_a_file_is_shared_where_it_stands() -> None:
    text = "-- Does it.\nlocal function one()\n  state.two = 1\nend\n" + TEN
    of_the_gate = ["does not say what it returns", "does not say that its keys are those of the gate"]
    assert list(faults(text, "gate/shared/it.lua")) == ["11 functions are shared"]
    assert list(faults(text, "gate/it.lua")) == of_the_gate
    assert "writes state, which another file makes" in faults(text, "lock/it.lua")
