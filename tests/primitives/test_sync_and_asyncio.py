"""Each primitive for threads and its twin for asyncio: the same members in the same order, with the same arguments."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import TYPE_CHECKING, Any

import pytest

from celery_throttle import primitives

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

#: Modules that have one kind each, as (threads, asyncio).
MODULES = [
    ("lease.sync", "lease.aio"),
    ("lock.sync", "lock.aio"),
    ("semaphore.sync", "semaphore.aio"),
    ("semaphore.sync_mailbox", "semaphore.aio_mailbox"),
    ("redlock.sync", "redlock.aio"),
    ("redlock.sync_nodes", "redlock.aio_nodes"),
]
#: Modules that have both.
SHARED = ["rate", "counter"]
#: Tests for one kind only: forks and threads that come and go; tasks that are cancelled.
ALONE = {
    "Mailboxes": {"_begin"},
    "Node": {"_begin", "_next"},
    "RenewableLease": {"__init__"},
    "AsyncIdentityLock": {"_undo"},
    "AsyncQuestion": {"_until"},
}
FUNCTIONS_ALONE = {"in_background"}
SAME_IN_ASYNCIO = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "AsyncIterator": "Iterator",
    "AsyncRedis": "Redis",
}


def module(name: str) -> ModuleType:
    return importlib.import_module(f"{primitives.__name__}.{name}")


def own(things: ModuleType | type, kind: Any) -> dict[str, Any]:
    """Return the members that are defined there itself, in their order."""
    name = things.__name__ if inspect.ismodule(things) else things.__module__
    return {key: value for key, value in vars(things).items() if kind(value) and value.__module__ == name}


def classes() -> Iterator[tuple[type, type]]:
    """Yield all twins."""
    for sync, aio in [*MODULES, *((both, both) for both in SHARED)]:
        of_asyncio = own(module(aio), inspect.isclass)
        for name, twin in of_asyncio.items():
            if name.startswith("Async"):
                yield getattr(module(sync), name.removeprefix("Async")), twin


def alike(text: object) -> str:
    """A name or an annotation as the twin for threads has it."""
    words = re.sub(r"\w+", lambda word: SAME_IN_ASYNCIO.get(word.group(), word.group()), str(text))
    return re.sub(r"\bAsync(?=[A-Z])", "", words)


def arguments(function: Any) -> list[tuple[str, object, object, str]]:
    """Return names, kinds, defaults and annotations; and the type of the result."""
    signature = inspect.signature(function)
    found = [(each.name, each.kind, each.default, alike(each.annotation)) for each in signature.parameters.values()]
    return [*found, ("", "returns", "", alike(signature.return_annotation))]


def members(of: type) -> dict[str, Any]:
    """Methods and properties by the name that they have in the twin for threads, in their order."""
    alone = ALONE.get(of.__name__, set())
    found = {name: getattr(value, "fget", value) for name, value in vars(of).items()}
    return {
        SAME_IN_ASYNCIO.get(name, name): inspect.unwrap(value)
        for name, value in found.items()
        if inspect.isfunction(value) and name not in alone and value.__qualname__.startswith(of.__name__)
    }


def documented(of: Any) -> list[str]:
    """The arguments that a docstring explains."""
    text = inspect.getdoc(of) or ""
    section = re.search(r"^Args:\n((?: .*\n?|\n)+)", text, re.MULTILINE)
    return re.findall(r"^ {4}(\w+):", section[1], re.MULTILINE) if section else []


TWINS = list(classes())
METHODS = [
    pytest.param(sync, aio, name, id=f"{sync.__name__}.{name}")
    for sync, aio in TWINS
    for name in members(aio)
    if not (name.startswith("_") and name != "__init__")
]


def test_all_public_names_have_a_twin() -> None:
    """All that are no plain values."""
    values = {"Decision", "LockInfo", "PermitInfo", "Rate"}
    names = {name for name in primitives.__all__ if not name.startswith("Async")} - values
    assert {f"Async{name}" for name in names} == {name for name in primitives.__all__ if name.startswith("Async")}
    assert {getattr(primitives, name) for name in names} <= {sync for sync, _ in TWINS}


@pytest.mark.parametrize(("sync", "aio"), MODULES)
def test_modules_are_laid_out_alike(sync: str, aio: str) -> None:
    of_threads, of_asyncio = module(sync), module(aio)
    assert list(own(of_threads, inspect.isclass)) == [alike(name) for name in own(of_asyncio, inspect.isclass)]
    functions = [name for name in own(of_asyncio, inspect.isfunction) if name not in FUNCTIONS_ALONE]
    assert list(own(of_threads, inspect.isfunction)) == functions
    for name in functions:
        if name.startswith("_"):
            continue  # a thread waits there, a task does not
        assert arguments(getattr(of_threads, name)) == arguments(getattr(of_asyncio, name))


@pytest.mark.parametrize(("sync", "aio"), TWINS)
def test_classes_are_laid_out_alike(sync: type, aio: type) -> None:
    assert list(members(sync)) == list(members(aio))


@pytest.mark.parametrize(("sync", "aio", "name"), METHODS)
def test_signatures_agree(sync: type, aio: type, name: str) -> None:
    assert arguments(members(sync)[name]) == arguments(members(aio)[name])


@pytest.mark.parametrize("each", [each for twins in TWINS for each in twins])
def test_an_explained_argument_exists(each: type) -> None:
    """And none is left out, and they come in the order of the signature."""
    for documents, takes in [(each, each.__init__), *((method, method) for method in members(each).values())]:  # type: ignore[misc]
        names = [name for name in inspect.signature(takes).parameters if name != "self"]
        assert documented(documents) in ([], names), documents


@pytest.mark.parametrize(("sync", "aio"), [twins for twins in TWINS if documented(twins[0]) and documented(twins[1])])
def test_shared_explanations_are_equal(sync: type, aio: type) -> None:
    assert documented(sync) == documented(aio)


@pytest.mark.parametrize(("sync", "aio", "name"), METHODS)
def test_a_docstring_refers_to_its_twin(sync: type, aio: type, name: str) -> None:
    """It explains the arguments itself, or refers to their explanation."""
    text = inspect.getdoc(vars(aio).get(name))
    if name == "__init__" or text is None or not documented(vars(sync)[name]):
        return
    assert f"As `{sync.__name__}.{name}`" in text
