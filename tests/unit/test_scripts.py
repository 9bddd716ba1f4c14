"""Loading the scripts and building calls to them."""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files

import pytest

from celery_throttle.core.keys import Keys
from celery_throttle.store.scripts import Call, Script, Store, inlined

LUA = files("celery_throttle.store") / "lua" / "gate"
ALONE = "started"  # the one that is too small to need what the others share
BEFORE = "claim_soon"  # what comes before all that, in one of them
AFTER = "reading"  # what comes after it, in those that only read
SHARED = ("common", "lines", "locks", "rules")
NAMES = sorted({path.name.removesuffix(".lua") for path in LUA.iterdir()} - {*SHARED, ALONE, BEFORE, AFTER})
KEYS = Keys("test")


def arguments(call: Call) -> list[object]:
    """What follows the keys."""
    (numkeys, *rest) = call.arguments
    assert isinstance(numkeys, int)
    assert rest[:numkeys] == [*KEYS.all, KEYS.wake]
    return list(rest[numkeys:])


@pytest.fixture
def store() -> Store:
    return Store(KEYS, 60.0, ("q1", "q2"))


@pytest.mark.parametrize("name", NAMES)
def test_a_script_is_loaded_with_what_all_share(name: str) -> None:
    """Once: the text and its SHA1, which is what the server knows it by."""
    script = Script.load(f"gate/{name}", *(f"gate/{shared}" for shared in SHARED))
    texts = [(LUA / f"{part}.lua").read_text("utf-8") for part in (*SHARED, name)]
    assert script.text == inlined("\n".join(texts))
    assert script.sha == hashlib.sha1(script.text.encode()).hexdigest()
    assert Script.load(f"gate/{name}", *(f"gate/{shared}" for shared in SHARED)) is script


@pytest.mark.parametrize("name", NAMES)
def test_a_script_says_what_it_takes_and_returns(name: str) -> None:
    """The first lines of each are its documentation; 6.2 does not know shebangs."""
    text = (LUA / f"{name}.lua").read_text("utf-8")
    assert text.startswith("-- ")
    assert "-- KEYS, ARGV[1..4] as in common.lua" in text
    assert "-- Returns " in text


@pytest.mark.parametrize("name", [*NAMES, *SHARED, ALONE, AFTER])
def test_no_script_uses_a_key_that_is_not_declared(name: str) -> None:
    """The first argument of every command is one of the ten, so a cluster can route it."""
    text = (LUA / f"{name}.lua").read_text("utf-8")
    calls = re.findall(r"redis\.call\('(\w+)'(?:, (\w+))?", text)
    assert {key for command, key in calls if command != "TIME"} <= {
        "LIMITS", "USED", "LEASES", "RECORDS", "PARKED", "MESSAGES", "META", "LOCKS", "LOCK_ENDS", "WAKE",
    }  # fmt: skip


def test_constants_are_written_as_their_values() -> None:
    text = "local A, LONG_B = 1, 20\nlocal K = KEYS[1]\nlocal C = ARGV[1]\nreturn { A, LONG_B, 'A', AB, K, C }\n"
    assert inlined(text) == "\n\nlocal C = ARGV[1]\nreturn { 1, 20, 'A', AB, KEYS[1], C }\n"


def test_every_call_begins_alike(store: Store) -> None:
    """Lease in milliseconds, nonce, slots, queues."""
    assert arguments(store.look("w:1", 3)) == [60000, "w:1", 3, 2, "q1", "q2"]


def test_lists_are_sent_with_their_length(store: Store) -> None:
    call = store.exchange(
        "w:1",
        0,
        [("t1", "w:0", "done")],
        [],
        [("t2", "w:1", "gpu", "4", 0, "", ""), ("t3", "w:2", "gpu", "4", 1, "{}", "{}")],
    )
    assert arguments(call)[6:] == [
        *(1, "t1", "w:0", "done"),
        0,
        *(2, "t2", "w:1", "gpu", "4", 0, "", "", "t3", "w:2", "gpu", "4", 1, "{}", "{}"),
    ]


def test_iterators_are_read_once(store: Store) -> None:
    assert arguments(store.withdraw(iter(["t1", "t2"])))[6:] == [2, "t1", "t2"]


def test_messages_are_sent_as_they_are(store: Store) -> None:
    call = store.park("w:1", 1, "w", 7, [("t", "gpu", "4", 0, "q1", b"\xff\0", "", "")])
    assert arguments(call)[6:] == ["w", 7, 1, "t", "gpu", "4", 0, "q1", b"\xff\0", "", ""]


def test_one_call_can_be_sent_both_ways(store: Store) -> None:
    call = store.mine("w")
    assert call.evalsha() == ("EVALSHA", call.script.sha, *call.arguments)
    assert call.eval() == ("EVAL", call.script.text, *call.arguments)
