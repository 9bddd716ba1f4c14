"""The calls of the shared Lua functions: no circles, and no question that writes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from graphlib import TopologicalSorter
from importlib.resources import files

import pytest

from celery_throttle.store.gate_script import gate_scripts, only_reads, reached, shared_functions

COMMAND = re.compile(r"redis\.p?call\('(\w+)'")
#: The commands in the scripts that change nothing.
READING = {
    *("BITFIELD_RO", "EXISTS", "GET", "GETRANGE", "HEXISTS", "HGET", "HGETALL", "HKEYS", "HLEN", "HMGET", "HRANDFIELD"),
    *("HSCAN", "HSTRLEN", "TIME", "ZCARD", "ZLEXCOUNT", "ZRANDMEMBER", "ZRANGE", "ZRANGEBYLEX", "ZRANGEBYSCORE"),
    *("ZSCAN", "ZSCORE"),
}
#: Prefixes and suffixes of functions that return an answer.
QUESTION = re.compile(
    r"^(?:is|has|was|load|kept|live|first|last|next_look|held|counted|rule|room|meta|settling|fits|any|"
    r"oldest|called|lock_till|nearest|free|booked|blocked|barred)(?:_|$)|_(?:of|in|at|for|by)$"
)
#: Verbs that end like questions.
VERBS = {"again_at", "book_at", "list_at", "read_on"}


def reach_of(graph: Mapping[str, Iterable[str]], start: str) -> set[str]:
    found: set[str] = set()
    todo = set(graph[start])
    while todo:
        node = todo.pop()
        if node in graph and node not in found:
            found.add(node)
            todo |= set(graph[node])
    return found


def writing() -> dict[str, set[str]]:
    """The writing commands that each shared function can reach; nothing of those that can reach none."""
    functions = shared_functions()
    own = {name: set(COMMAND.findall(each.body)) - READING for name, each in functions.items()}
    calls = {name: each.calls for name, each in functions.items()}
    found = {name: own[name].union(*(own[other] for other in reach_of(calls, name))) for name in functions}
    return {name: commands for name, commands in found.items() if commands}


def test_no_shared_functions_or_files_form_a_circle() -> None:
    functions = shared_functions()
    calls = {name: {other for other in each.calls if other in functions} for name, each in functions.items()}
    files_: dict[str, set[str]] = {}
    for name, each in functions.items():
        files_.setdefault(each.file, set()).update({functions[other].file for other in calls[name]} - {each.file})
    for graph in (calls, files_):
        TopologicalSorter(graph).prepare()


@pytest.mark.parametrize("script", [name for name in gate_scripts() if only_reads(name)])
def test_a_script_that_only_reads_can_reach_no_writing_command(script: str) -> None:
    text = (files("celery_throttle.store") / "lua" / "gate" / f"{script}.lua").read_text("utf-8")
    writes = writing()
    assert set(COMMAND.findall(text)) <= READING
    assert {name: writes[name] for name in reached(text) if name in writes} == {}


def test_no_function_that_is_named_as_a_question_writes() -> None:
    assert {name: found for name, found in writing().items() if QUESTION.search(name) and name not in VERBS} == {}
