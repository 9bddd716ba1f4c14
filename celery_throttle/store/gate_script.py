"""Compose the text of a script of the gate.

The shared files (``lua/gate/shared``) are plain functions of one subject each, in any order. Lua creates each function
of a script again in each call, and each local that a function uses costs time. So this module writes constants as
values and omits functions that a script cannot reach. A script creates the functions that nearly each call needs
(`AT_ONCE`) at its start, and each other function at its first call.

A server compiles three texts: that of ``exchange``, one of all scripts that only read, and one of all others. The first
argument of the latter two names the script to run. Each text has the shared functions, so a text for each script would
fill the server's Lua heap with copies. The garbage of Lua grows with the heap, and its collection makes some calls
slow. One text for all scripts would take long to compile.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

__all__ = [
    "ALONE",
    "AT_ONCE",
    "SharedFunction",
    "gate_scripts",
    "gate_text",
    "inlined",
    "only_reads",
    "reached",
    "shared_functions",
]

#: The script with a text of its own.
ALONE = "exchange"

#: The functions that nearly each exchange, start or end of a run calls: found by counting the calls.
AT_ONCE = (
    *(
        "is_known",
        "load_worker",
        "id_of",
        "readable",
        "decoded",
        "wrong_part",
        "unwritable_part",
        "wrong_in_worker",
        "is_digits",
    ),
    *("apply_changes", "apply_change", "end_run", "confirm_copies", "answer_rows", "answer_row"),
    *("reap_all", "reap_leases", "first_lease_ends", "any_parked", "serve", "save_worker", "reply_with", "grant_rows"),
    *("next_look_ms", "name_buckets", "needs_of", "takes", "limit_of", "rule_of", "declared_of", "held_of"),
    *("any_override", "settling", "room_for", "has_permits", "barred", "change_used", "add_count", "touch"),
    *("record_of", "load_record", "wrong_in_record", "wrong_in_delivery", "save_record"),
    *("mark_changed", "write_records", "packed_record"),
    *("admit", "meet_record", "confirm_if_finished", "finished_as", "delivery_of", "hold", "take"),
    *("ended", "give", "comes_back", "run_over", "forget_task", "forget_delivery", "finish", "settle_second"),
    "load_second",
)

_VALUE = r"(?:\d+|KEYS\[\d+\])"
_CONSTANTS = re.compile(rf"^local ([A-Z][A-Z_]*(?:, [A-Z][A-Z_]*)*) = ({_VALUE}(?:, {_VALUE})*)$", re.MULTILINE)
_NAME_OR_STRING = re.compile(r"'[^'\n]*'|\b[A-Z][A-Z_]*\b")
_FUNCTION = re.compile(r"^local function (\w+)(\(.*?^end)$", re.MULTILINE | re.DOTALL)
_CALL_OR_STRING = re.compile(r"'[^'\n]*'|(?<![.\w:])(\w+)(?=\()")
_ONLY_READS = "\nstate.only_reads = true\n"
_COMMENT = re.compile(r"^\s*--.*\n", re.MULTILINE)
# Indentation and comments cost time when a server compiles. Line ends stay, for the line numbers in error messages.
_NOT_CODE = re.compile(r"^[ \t]+|[ \t]*--.*$", re.MULTILINE)

# The file that comes before all others, whole; and the rate functions, which the primitives share.
_FIRST = "gate/shared/begin"
_OTHERS = ("rate/gcra",)


@dataclass(frozen=True)
class SharedFunction:
    """A shared function: its file, its text from the parameters on, and the names that it calls."""

    file: str
    body: str
    calls: frozenset[str]


def gate_scripts() -> list[str]:
    """Return the names of all scripts of the gate."""
    return _names("gate")


def gate_text(name: str) -> str:
    """Return the text that has ``lua/gate/<name>.lua``, with the shared functions before it."""
    return _whole(_writing(_read(f"gate/{ALONE}"))) if name == ALONE else _text_of_several(only_reads(name))


def only_reads(name: str) -> bool:
    """Return whether a script of the gate writes nothing."""
    return _ONLY_READS in _read(f"gate/{name}")


@cache
def _text_of_several(only_read: bool) -> str:
    names = [name for name in _names("gate") if name != ALONE and only_reads(name) is only_read]
    scripts = [f"if script == '{name}' then\n{inlined(_COMMENT.sub('', _read(f'gate/{name}')))}\nend" for name in names]
    own = "\n".join(["local script = argument()", *scripts])
    return _whole(own if only_read else _writing(own))


def _writing(own: str) -> str:
    """Return the text of a script that writes its changed records on each return."""
    return f"local function carry_out()\n{own}\nend\nlocal reply = carry_out()\nwrite_records()\nreturn reply"


def _whole(own: str) -> str:
    found = reached(own)
    at_once = [each for each in AT_ONCE if each in found]
    later = sorted(found.difference(at_once))
    # No metatable: each call through one would leave the interpreter's loop for another one.
    names = {each: f"F[{number}]" for number, each in enumerate(at_once, 1)}
    names |= {each: f"make({number})" for number, each in enumerate(later, len(at_once) + 1)}
    bodies = [
        f"F[{number}] = function{_renamed(shared_functions()[each].body, names)}"
        for number, each in enumerate(names, 1)
    ]
    first = len(at_once)
    made = _MADE.replace("NILS", ", ".join(["nil"] * _ROOM)).replace("CASES", _cases(bodies[first:], first + 1))
    made = made.replace("BODIES", "\n".join(bodies[:first]))
    parts = [_read(_FIRST), _constants(), made, _renamed(own, names)]
    text = "local rcall = redis.call\n" + inlined("\n".join(parts)).replace("redis.call(", "rcall(")
    return _NOT_CODE.sub("", text)


#: F has each shared function under a number, once it was created: creating functions costs most.
_MADE = """local F = { NILS }
local function make(which)
local made = F[which]
if made then return made end
CASES
return F[which]
end
BODIES"""
#: Room in F from the start: room for functions that few calls need would only make the table larger.
_ROOM = 64


def _cases(bodies: list[str], first: int) -> str:
    """Return the statements that run the body with the number ``which``, found by binary search."""
    if len(bodies) <= 1:
        return "".join(bodies)
    half = len(bodies) // 2
    lower, upper = _cases(bodies[:half], first), _cases(bodies[half:], first + half)
    return f"if which < {first + half} then\n{lower}\nelse\n{upper}\nend"


def inlined(text: str) -> str:
    """Return a script with its constants (``local LEASES, RECORDS = KEYS[5], KEYS[6]``) written as values."""
    values: dict[str, str] = {}
    for names, numbers in _CONSTANTS.findall(text):
        values |= dict(zip(names.split(", "), numbers.split(", "), strict=True))
    # An empty line stays in the place of each, so that the line numbers in error messages stay right.
    return _NAME_OR_STRING.sub(lambda match: values.get(match.group(), match.group()), _CONSTANTS.sub("", text))


def _renamed(text: str, names: dict[str, str]) -> str:
    """Return the text with its calls of shared functions replaced by calls through F."""
    return _CALL_OR_STRING.sub(lambda match: names.get(match.group(1), match.group()), text)


def reached(text: str) -> set[str]:
    """Return the names of the shared functions that the text of a script can reach."""
    functions = shared_functions()
    found: set[str] = set()
    todo = _calls(text)
    while todo:
        name = todo.pop()
        if name in functions and name not in found:
            found.add(name)
            todo |= functions[name].calls
    return found


def _calls(text: str) -> set[str]:
    return {match.group(1) for match in _CALL_OR_STRING.finditer(_COMMENT.sub("", text)) if match.group(1)}


@cache
def shared_functions() -> dict[str, SharedFunction]:
    """Return all shared functions by their names."""
    found: dict[str, SharedFunction] = {}
    for name in _shared():
        for function, body in _FUNCTION.findall(_COMMENT.sub("", _read(name))):
            if function in found:
                raise ValueError(f"{name}.lua: there is another shared function {function!r}")
            found[function] = SharedFunction(name.split("/")[-1], body, frozenset(_calls(body)))
    return found


@cache
def _constants() -> str:
    return "\n".join(match.group() for name in _shared() for match in _CONSTANTS.finditer(_read(name)))


@cache
def _shared() -> tuple[str, ...]:
    names = (f"gate/shared/{name}" for name in _names("gate/shared"))
    return (*_OTHERS, *(name for name in names if name != _FIRST))


def _names(folder: str) -> list[str]:
    found = (files("celery_throttle.store") / "lua" / folder).iterdir()
    return sorted(each.name.removesuffix(".lua") for each in found if each.name.endswith(".lua"))


def _read(name: str) -> str:
    return (files("celery_throttle.store") / "lua" / f"{name}.lua").read_text("utf-8")
