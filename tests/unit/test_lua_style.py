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
STATE = re.compile(r"\bstate\.(\w+)")

WIDEST, LONGEST_FUNCTION = 110, 40
SHARED_FUNCTIONS, SHARED_LINES = 10, 150

FUNCTION = re.compile(r"^local function (\w+)\(([^)]*)\)(.*)$")


def code_of(text: str) -> list[str]:
    """Return the lines without comments and strings."""
    return [re.sub(r"--.*", "", re.sub(r"'(?:\\.|[^'\\\n])*'", "''", line)).rstrip() for line in text.splitlines()]


def head_of(text: str) -> str:
    """The comment that a file begins with."""
    return re.match(r"(?:--.*\n)*", text)[0]  # type: ignore[index]  # matches anything


def is_shared(text: str, name: str = "") -> bool:
    return name.startswith(GATE_SHARED) or re.match(r"-- (Shared by|Put first)\b", text) is not None


def functions(lines: list[str]) -> Iterator[tuple[str, int]]:
    """Yield each function at the top with the number of its lines."""
    for number, line in enumerate(lines):
        if found := FUNCTION.match(line):
            ends = number if found[3].endswith(" end") else lines.index("end", number)
            yield found[1], ends - number + 1


def declared(lines: list[str]) -> set[str]:
    """All names that a file itself makes."""
    text = "\n".join(lines)
    lists = re.findall(r"\blocal (?!function\b)([\w, ]+)|\bfor ([\w, ]+) (?:=|in)\b|\bfunction \w+\(([^)]*)\)", text)
    return {name.strip() for found in lists for names in found for name in names.split(",")}


def written(lines: list[str]) -> Iterator[str]:
    """Yield all names that are assigned to, also a field of theirs, where they are not made."""
    depths = accumulate((line.count("{") - line.count("}") for line in lines), initial=0)
    whole = [line for line, depth in zip(lines, depths, strict=False) if not depth]  # the rest are fields of a table
    statements = (part.strip() for line in whole for part in re.split(r"\bthen\b|\belse\b|\bdo\b|;", line))
    for statement in statements:
        targets = re.match(r"(?!(?:local|for|if|while|until|return)\b)([\w.\[\]#+, -]+?) = ", statement)
        yield from re.findall(r"(?:^|, )(\w+)", targets[1]) if targets else ()


def numbered(lines: list[str]) -> Iterator[str]:
    """Yield all things of which a field is meant by its number, unless they are a reply of Redis."""
    text = "\n".join(lines)
    replies = set(re.findall(r"\blocal (\w+) = redis\.p?call\(", text))
    yield from set(re.findall(r"(\w+)\[\d+\]", text)) - replies - {"KEYS", "ARGV"}


def faults(text: str, name: str = "") -> list[str]:
    """Return the violations of the rules in a file."""
    shared = is_shared(text, name)
    lines, head = code_of(text), head_of(text)
    wide = [f"line {number} is wide" for number, line in enumerate(text.splitlines(), 1) if len(line) > WIDEST]
    others = {"state"} if name.startswith(GATE) else set()
    return [
        *wide,
        *header_faults(lines, head, shared=shared, gate=name.startswith(GATE)),
        *size_faults(lines, shared=shared),
        *code_faults(lines, others),
    ]


def header_faults(lines: list[str], head: str, *, shared: bool, gate: bool) -> Iterator[str]:
    text = "\n".join(lines)
    if not re.match(r"-- [A-Z]", head):
        yield "does not begin with a sentence"
    if not shared and "-- Returns " not in head:
        yield "does not say what it returns"
    if gate and not shared and "-- KEYS, ARGV[1] as in shared/begin.lua" not in head:
        yield "does not say that its keys are those of the gate"
    for key in sorted(set(re.findall(r"KEYS\[\d+\]", text))):
        if key not in head and not re.search(r"^-- KEYS\b[^\[\n].* as in ", head, re.MULTILINE):
            yield f"does not say what {key} is"
    if "ARGV" in text and "ARGV" not in head:
        yield "does not say what its arguments are"


def size_faults(lines: list[str], *, shared: bool) -> Iterator[str]:
    sizes = dict(functions(lines))
    yield from (f"{name} has {size} lines" for name, size in sizes.items() if size > LONGEST_FUNCTION)
    rest = sum(map(bool, lines)) - sum(sizes.values())
    if rest > LONGEST_FUNCTION:
        yield f"{rest} lines are in no function"
    if shared and len(sizes) > SHARED_FUNCTIONS:
        yield f"{len(sizes)} functions are shared"
    if shared and len(lines) > SHARED_LINES:
        yield f"{len(lines)} lines are shared"


def code_faults(lines: list[str], others: set[str]) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        if re.search(r"\bfunction\b", line) and not FUNCTION.match(line):
            yield f"line {number} makes a function within another"
        if re.match(r"local [\w, ]+$", line) and not re.match(r"local function\b", line):
            yield f"line {number} declares what is made later"
        if re.search(r"\bopen_\w*\(", line):
            yield f"line {number} opens something"
    own = declared(lines)
    yield from (f"writes {name}, which another file makes" for name in sorted(set(written(lines)) - own - others))
    yield from (f"numbers the fields of {name}" for name in numbered(lines))


@pytest.mark.parametrize("name", sorted(FILES))
def test_file_follows_the_rules(name: str) -> None:
    assert faults(FILES[name], name) == []


def test_shared_names_of_gate_scripts_stand_at_their_beginning() -> None:
    begin = FILES["gate/shared/begin.lua"]
    named = set(re.findall(r"\w+", begin.partition("-- worker, call:")[2].partition("local state")[0])) | {
        "worker",
        "call",
    }
    used = {field for name, text in FILES.items() if name.startswith(GATE) for field in STATE.findall(text)}
    assert used <= named
    assert len(used) > 15


TEN = "".join(f"local function f{number}() return 1 end\n" for number in range(10))
SCRIPT = "-- Does it.\n-- KEYS[1] it  STRING  it\n-- Returns it.\n"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (SCRIPT, None),
        (SCRIPT + "local IT = KEYS[1]\nlocal one, two = 1, 2\none = two\nreturn IT -- open_it() KEYS[2]\n", None),
        (SCRIPT + "local function one(it)\n  it.x = 'it[1]'\nend\nfor it = 1, 2 do it = 3 end\n", None),
        (SCRIPT + "local one = {\n  two = 2,\n}\n", None),
        (SCRIPT + "local found = redis.call('TIME')\nreturn found[1]\n", None),
        (SCRIPT + "return " + "1" * 104, "line 4 is wide"),
        ("-- it\n-- Returns it.\n", "does not begin with a sentence"),
        ("-- Does it.\nreturn 1\n", "does not say what it returns"),
        (SCRIPT + "return KEYS[2]\n", "does not say what KEYS[2] is"),
        (SCRIPT + "return ARGV[2]\n", "does not say what its arguments are"),
        (SCRIPT + "local function one()\n" + "  it()\n" * 39 + "end\n", "one has 41 lines"),
        (SCRIPT + "it()\n" * 41, "41 lines are in no function"),
        ("-- Shared by all.\n" + TEN, None),
        (
            "-- Shared by all.\n" + "".join(f"local function f{i}()\nend\n" for i in range(11)),
            "11 functions are shared",
        ),
        ("-- Shared by all.\n" + "\n" * 150, "151 lines are shared"),
        (SCRIPT + "local function one()\n  local function two() end\nend\n", "line 5 makes a function within another"),
        (SCRIPT + "local one = function() end\n", "line 4 makes a function within another"),
        (SCRIPT + "local one, two\n", "line 4 declares what is made later"),
        (SCRIPT + "open_it()\n", "line 4 opens something"),
        (SCRIPT + "limit = 2\n", "writes limit, which another file makes"),
        (SCRIPT + "if it then limit = 2 end\n", "writes limit, which another file makes"),
        (SCRIPT + "limits.one = 2\n", "writes limits, which another file makes"),
        (SCRIPT + "local one = 1\none, limit = 2, 3\n", "writes limit, which another file makes"),
        (SCRIPT + "local one = record()\nreturn one[3]\n", "numbers the fields of one"),
    ],
)
def test_rules_find_each_violation(text: str, fault: str | None) -> None:
    assert faults(text) == ([fault] if fault else [])


def test_of_the_gate_a_file_is_shared_where_it_stands() -> None:
    text = "-- Does it.\nlocal function one()\n  state.two = 1\nend\n" + TEN
    assert faults(text, "gate/shared/it.lua") == ["11 functions are shared"]
    assert faults(text, "gate/it.lua") == [
        "does not say what it returns",
        "does not say that its keys are those of the gate",
    ]
    assert "writes state, which another file makes" in faults(text, "lock/it.lua")
