"""Each primitive for threads and its twin for asyncio: the same methods, with the same arguments and explanations."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

from celery_throttle import primitives

#: Plain values, which are for both.
VALUES = {"Decision", "LockInfo", "PermitInfo", "Rate"}
NAMES = sorted({name.removeprefix("Async") for name in primitives.__all__} - VALUES)
TWINS = [(getattr(primitives, name), getattr(primitives, f"Async{name}")) for name in NAMES]
WORDS = {"__aenter__": "__enter__", "__aexit__": "__exit__", "AsyncRedis": "Redis"}


def methods(of: type) -> dict[str, Any]:
    """Return all methods by the name that they have in the twin for threads, those of private bases too."""
    found = {name: value for name, value in inspect.getmembers(of, inspect.isfunction) if not name.startswith("_")}
    return found | {"__init__": of.__init__}  # type: ignore[misc]


def alike(text: object) -> str:
    """Return an annotation as the twin for threads has it."""
    words = re.sub(r"\w+", lambda word: WORDS.get(word.group(), word.group()), str(text))
    return re.sub(r"\bAsync(?=[A-Z])", "", words)


def arguments(function: Any) -> list[tuple[str, object, object, str]]:
    """Return names, kinds, defaults and annotations."""
    signature = inspect.signature(function)
    return [(each.name, each.kind, each.default, alike(each.annotation)) for each in signature.parameters.values()]


def documented(of: Any) -> list[str]:
    """Return the arguments that a docstring explains."""
    text = inspect.getdoc(of) or ""
    section = re.search(r"^Args:\n((?: .*\n?|\n)+)", text, re.MULTILINE)
    return re.findall(r"^ {4}(\w+):", section[1], re.MULTILINE) if section else []


@pytest.mark.parametrize(("sync", "aio"), TWINS)
def test_twins_have_the_same_methods(sync: type, aio: type) -> None:
    assert {name: arguments(each) for name, each in methods(sync).items()} == {
        name: arguments(each) for name, each in methods(aio).items()
    }


@pytest.mark.parametrize("each", [each for twins in TWINS for each in twins])
def test_an_explained_argument_exists(each: type) -> None:
    """And none is left out, and they come in the order of the signature."""
    for documents, takes in [(each, each.__init__), *((method, method) for method in methods(each).values())]:  # type: ignore[misc]
        names = [name for name in inspect.signature(takes).parameters if name != "self"]
        assert documented(documents) in ([], names), documents


@pytest.mark.parametrize(("sync", "aio"), TWINS)
def test_a_docstring_refers_to_its_twin(sync: type, aio: type) -> None:
    """It explains the arguments itself, or refers to their explanation."""
    for name, method in methods(sync).items():
        if name != "__init__" and documented(method):
            assert f"As `{sync.__name__}.{name}`" in (inspect.getdoc(methods(aio)[name]) or "")


def test_wrong_arguments_are_an_error_of_the_class_that_is_used() -> None:
    with pytest.raises(TypeError, match=r"^IdentityLock\.acquire\(\) got an unexpected keyword argument 'wait'"):
        primitives.IdentityLock.acquire(object(), "a", wait=5)  # type: ignore[call-arg]
