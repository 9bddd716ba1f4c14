"""Putting scripts together, and building calls to them."""

from __future__ import annotations

import hashlib
import json
import re
from importlib.resources import files

import pytest

from celery_throttle.core.facts import Facts, Message, Result
from celery_throttle.core.keys import Keys
from celery_throttle.store.calls import Store
from celery_throttle.store.exchange import Arrival, DeliveryChange, Exchange
from celery_throttle.store.gate_script import ALONE, AT_ONCE, gate_text, inlined, reached
from celery_throttle.store.portions import MOST_RENEWED, take_rows
from celery_throttle.store.scripts import Call, Script, pack

LUA = files("celery_throttle.store") / "lua" / "gate"
SHARED = [path.read_text("utf-8") for path in (LUA / "shared").iterdir()]
NAMES = sorted(path.name.removesuffix(".lua") for path in LUA.iterdir() if path.name.endswith(".lua"))
KEYS = Keys("test")
MADE = re.compile(r"^F\[(\d+)\] = function", re.MULTILINE)
CALLED = re.compile(r"\b(?:F\[|make\()(\d+)[])]\(")
TEXTS = {name: gate_text(name) for name in NAMES}


def own_text(name: str) -> str:
    return (LUA / f"{name}.lua").read_text("utf-8")


def code(text: str) -> str:
    """Without comments and strings."""
    return re.sub(r"'[^'\n]*'", "''", re.sub(r"--\[\[.*?\]\]|--.*", "", text))


def arguments(call: Call) -> list[object]:
    """Return the arguments after the keys."""
    (numkeys, *rest) = call.arguments
    assert isinstance(numkeys, int)
    assert rest[:numkeys] == [*KEYS.all, KEYS.wake]
    return list(rest[numkeys:])


@pytest.fixture
def store() -> Store:
    return Store(KEYS, 60.0)


# -- the text of a script ----------------------------------------------------------------------------------------------


def test_a_script_is_loaded_once() -> None:
    """A worker puts all texts together before its loop begins."""
    Script.of_gate.cache_clear()
    Script.load_gate()
    assert Script.of_gate.cache_info().currsize == len(NAMES)
    for name, text in TEXTS.items():
        script = Script.of_gate(name)
        assert (script.text, script.sha) == (text, hashlib.sha1(text.encode()).hexdigest())
        assert Script.of_gate(name) is script


def test_no_script_uses_a_key_that_is_not_declared() -> None:
    """The first argument of every command is one of the keys, or a name for one of them, so a cluster can route it."""
    begin = (LUA / "shared" / "begin.lua").read_text("utf-8")
    declarations = "\n".join(re.findall(r"^local [A-Z_, ]+ = KEYS.*$", begin, re.MULTILINE)).replace("KEYS", "")
    declared = set(re.findall(r"[A-Z][A-Z_]+", re.sub(r"--.*", "", declarations)))
    text = "\n".join([*SHARED, *map(own_text, NAMES)])
    calls = re.findall(r"redis\.p?call\('(\w+)'(?:, (\w+))?", text)
    used = {key for command, key in calls if command != "TIME"}
    assert used <= declared | {"key", "hash", "other", "source", "ring"}
    assert len(used) > 20


@pytest.mark.parametrize("name", NAMES)
def test_script_has_exactly_the_functions_that_it_can_reach(name: str) -> None:
    """Common helpers are made at once, and others later."""
    text = TEXTS[name]
    made = sorted(map(int, MADE.findall(text)))
    assert made == list(range(1, len(made) + 1))
    assert set(made) == {int(number) for number in CALLED.findall(text)}
    making, _, after = text.partition("local function make(which)\n")[2].partition("\nreturn F[which]\nend\n")
    at_once, later = {*MADE.findall(after)}, {*MADE.findall(making)}
    assert {*re.findall(r"\bF\[(\d+)\]\(", text)} <= at_once
    assert {*re.findall(r"\bmake\((\d+)\)\(", text)} <= later
    assert not at_once & later


@pytest.mark.parametrize("name", NAMES)
def test_text_that_a_server_compiles_has_no_more_than_it_needs(name: str) -> None:
    """No indentation, comments, constants that are not computed, and functions that are neither its own nor of Lua."""
    text = code(TEXTS[name])
    assert re.findall(r"^[ \t]|--", TEXTS[name], re.MULTILINE) == []
    assert set(re.findall(r"\b[A-Z][A-Z_]+\b", text)) <= {"KEYS", "ARGV", "NOW", "NOW_US", "LEASE_MS", "BARRED", "F"}
    known = set(re.findall(r"local function (\w+)", text)) | set(re.findall(r"local (\w+) = ", text)) | {"go_on"}
    lua = {"if", "and", "or", "not", "return", "function", "while", "until", "ipairs", "pairs", "tonumber", "tostring"}
    lua |= {"pcall", "type", "next", "unpack", "assert", "in", "elseif"}
    assert set(re.findall(r"(?<![.\w:])(\w+)\(", text)) <= known | lua


def test_helpers_made_at_once_are_those_of_an_exchange() -> None:
    assert {*AT_ONCE} <= reached(own_text(ALONE) + "write_records()")
    assert len(AT_ONCE) == len({*AT_ONCE}) <= 64


def test_script_that_may_let_a_task_start_serves() -> None:
    """Else a task that got a lock, or room, by its clean-up is forgotten."""
    may_start = {name for name in NAMES if "touch" in reached(own_text(name))}
    serves = {name for name in may_start if re.search(r"serve\(\)|state\.only_reads = true", own_text(name))}
    assert may_start - serves <= {"declare", "wake"}  # they look at all buckets of a limit


def test_a_server_compiles_three_texts() -> None:
    """The more there are, the larger is Lua's heap, and the longer its clearing away of garbage."""
    assert len(set(TEXTS.values())) == 3
    only_read = {name for name in NAMES if TEXTS[name] == TEXTS["status"]}
    assert {"explain", "parked", "holders"} <= only_read
    assert not only_read & {ALONE, "renew", "reap", "mend", "add_history"}


def test_script_is_named_by_its_first_argument_except_one(store: Store) -> None:
    for call, own in ((store.reap(7), ["reap", 7]), (store.leave("w"), ["worker_leaves", "w"])):
        assert arguments(call) == [60000, *own], "behind the lease in milliseconds"
    assert "if script == 'reap' then" in TEXTS["reap"]
    assert "script ==" not in TEXTS[ALONE]


def test_constants_are_written_as_their_values() -> None:
    text = "local A, LONG_B = 1, 20\nlocal K = KEYS[1]\nlocal C = ARGV[1]\nreturn { A, LONG_B, 'A', AB, K, C }\n"
    assert inlined(text) == "\n\nlocal C = ARGV[1]\nreturn { 1, 20, 'A', AB, KEYS[1], C }\n"


# -- calls -------------------------------------------------------------------------------------------------------------


def test_rows_of_a_worker_are_one_object(store: Store) -> None:
    one = Arrival("t1", "1:gpu", "q1", 0, "", "w:1")
    said = Exchange(
        3,
        arrived=[
            one,
            one._replace(message=b"\xff\0", turn=("gpu", "k", 5), wait_ms=7, outside=True, age=0.25),
            one._replace(message=b"m", pause=(1.5, "1:gpu"), expires_ms=9),
            one._replace(task='t"2', attempt=1, lock='{"how":1}', code="c", unacked=True, turn=("gpu", "k", 5)),
        ],
        changed=[
            DeliveryChange("began", "t7", 0, "w:7"),
            DeliveryChange("unacked", "t6", 2, "w:6"),
            DeliveryChange("ended", 't"0', 1, "w:0", facts=Facts(False, Message.PLACE), needs="1:gpu"),
            DeliveryChange("passed", "t8", 0, "w:8", facts=Facts(True, Message.NOBODY, Result.FAILURE), to=one),
        ],
        gone=[("revoked", "t5"), ("never", "t3", "i", "t2")],
    )
    lease, packed, *messages = arguments(store.exchange("w", 9, ("q1", "q2"), said))
    asks = {"task": "t1", "nonce": "w:1", "needs": "1:gpu", "queue": "q1", "attempt": 0}
    assert (lease, messages) == (60000, [b"\xff\0", b"m"])
    assert json.loads(str(packed)) == {
        "worker": "w",
        "number": 9,
        "slots": 3,
        "queues": ["q1", "q2"],
        "arrived": [
            asks,
            {**asks, "message": 1, "age_ms": 250.0, "turn": ["gpu", "k", 5], "wait_ms": 7, "outside": True},
            {**asks, "message": 1, "age_ms": 0.0, "pause_ms": 1500, "about": "1:gpu", "expires_ms": 9},
            {**asks, "task": 't"2', "attempt": 1, "lock": {"how": 1}, "code": "c", "unacked": True},
        ],
        "changed": [
            ["began", "t7", 0, "w:7", ""],
            ["unacked", "t6", 2, "w:6", ""],
            ["ended", 't"0', 1, "w:0", "", "place", "nothing", False],
            ["passed", "t8", 0, "w:8", "", "nobody", "failure", True, asks],
        ],
        "gone": [["revoked", "t5"], ["never", "t3", "i", "t2"]],
    }


def test_call_without_rows_is_short(store: Store) -> None:
    _, packed = arguments(store.exchange("w", 1, (), Exchange()))
    assert json.loads(str(packed)) == {"worker": "w", "number": 1, "slots": 0, "queues": []}


def test_a_call_takes_as_many_rows_as_fit() -> None:
    rows = list(range(120))
    taken = [take_rows(rows) for _ in range(4)]
    assert ([row for rows in taken for row in rows], rows) == (list(range(120)), [])
    kinds = ("arrived", "changed", "unacked", "gone")
    assert max(map(len, taken)) * len(kinds) <= 500
    assert len(take_rows(list(range(1000)), MOST_RENEWED)) * 2 <= 500


def test_renewal_has_the_number_of_the_call_before_it(store: Store) -> None:
    one = Arrival("t1", "1:gpu", "q1", 2, "", "w:1")
    *_, packed = arguments(store.renew("w", 9, [one], ["t2"]))
    held = {"task": "t1", "nonce": "w:1", "needs": "1:gpu", "queue": "q1", "attempt": 2}
    assert json.loads(str(packed)) == {"worker": "w", "number": 9, "held": [held], "waiting": ["t2"]}


def test_a_call_can_be_sent_both_ways(store: Store) -> None:
    call = store.crowd("gpu")
    assert call.evalsha() == ("EVALSHA", call.script.sha, *call.arguments)
    assert call.eval() == ("EVAL", call.script.text, *call.arguments)
    assert call.packed() == pack(call.evalsha())
