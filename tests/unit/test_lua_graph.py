"""The calls of the shared Lua functions: no circles, and no question that writes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
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


def circles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """The circles of a graph: each a list of nodes that can reach each other."""
    reach = {node: _reach(graph, node) for node in graph}
    rings = {frozenset(other for other in reach[node] if node in reach[other]) for node in graph if node in reach[node]}
    return sorted(sorted(ring) for ring in rings)


def _reach(graph: Mapping[str, Iterable[str]], start: str) -> set[str]:
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
    reach = {name: _reach(calls, name) | {name} for name in functions}
    found = {name: set().union(*(own[other] for other in reach[name])) for name in functions}
    return {name: commands for name, commands in found.items() if commands}


def test_a_circle_is_found() -> None:
    assert circles({"a": ["b"], "b": ["c"], "c": ["b"], "d": ["d"]}) == [["b", "c"], ["d"]]


def test_no_shared_functions_call_each_other_in_a_circle() -> None:
    assert circles({name: each.calls for name, each in shared_functions().items()}) == []


def test_no_shared_files_need_each_other() -> None:
    functions = shared_functions()
    graph: dict[str, set[str]] = {}
    for each in functions.values():
        needed = {functions[name].file for name in each.calls if name in functions}
        graph.setdefault(each.file, set()).update(needed - {each.file})
    assert circles(graph) == []


@pytest.mark.parametrize("script", [name for name in gate_scripts() if only_reads(name)])
def test_a_script_that_only_reads_can_reach_no_writing_command(script: str) -> None:
    text = (files("celery_throttle.store") / "lua" / "gate" / f"{script}.lua").read_text("utf-8")
    writes = writing()
    assert set(COMMAND.findall(text)) <= READING
    assert {name: writes[name] for name in reached(text) if name in writes} == {}


def test_no_function_that_is_named_as_a_question_writes() -> None:
    assert {name: found for name, found in writing().items() if QUESTION.search(name) and name not in VERBS} == {}
