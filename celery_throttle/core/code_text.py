"""Write values of options, functions too, as text that is the same in each process of one release, to compare releases.

A function is compared by its name and by a hash of its code, its defaults and the values that it encloses. Globals that
it reads are not looked at. The hash depends on the version of Python, so the text has that version.
"""

from __future__ import annotations

import hashlib
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["comparable", "text_of"]

_LONGEST = 200
#: How far nested functions and containers are followed; a function may enclose itself.
_DEEPEST = 8
_PYTHON = "{}.{}".format(*sys.version_info[:2])
_HASHED = re.compile(r" \(code [0-9a-f]{8}, Python ([0-9.]+)\)$")


def text_of(value: object) -> str:
    """Return a value of an option as text; of a function its name, with a hash of its code."""
    if callable(value):
        return f"{_name_of(value)} (code {_hash(_shape(value))}, Python {_PYTHON})"
    text = _shape(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]}... ({_hash(text)})"


def comparable(texts: Iterable[str]) -> dict[str, str]:
    """Return each text with the form to compare: one function has several hashes if workers have several Pythons."""
    found = {text: _HASHED.search(text) for text in texts}
    pythons = {match[1] for match in found.values() if match}
    if len(pythons) < 2:  # noqa: PLR2004
        return {text: text for text in found}
    return {text: text[: match.start()] if match else text for text, match in found.items()}


def _name_of(function: object) -> str:
    while isinstance(function, partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{getattr(named, '__module__', '')}.{getattr(named, '__qualname__', '')}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def _shape(value: object, depth: int = 0) -> str:
    """Return a text in which nothing depends on the process: no address, and no order of a set."""
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return repr(value)
    if depth > _DEEPEST:
        return "..."
    parts = [_shape(each, depth + 1) for each in _parts_of(value)]
    return f"[{', '.join(sorted(parts) if isinstance(value, (Mapping, AbstractSet)) else parts)}]"


def _parts_of(value: object) -> Iterable[object]:
    for kind, parts_of in _PARTS:
        if isinstance(value, kind):
            return parts_of(value)
    call = inspect.getattr_static(type(value), "__call__", None)
    return (_name_of(value), call if isinstance(call, FunctionType) else None)


#: The parts by which values of a type are compared.
_PARTS: tuple[tuple[type[Any], Callable[[Any], Iterable[object]]], ...] = (
    (Mapping, lambda value: value.items()),
    (AbstractSet, iter),
    (list, iter),
    (tuple, iter),
    (CodeType, lambda code: (code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_consts)),
    (FunctionType, lambda each: (each.__code__, each.__defaults__, each.__kwdefaults__, *map(_content, _cells(each)))),
    (MethodType, lambda method: (method.__func__,)),
    (partial, lambda each: (each.func, each.args, each.keywords)),
)


def _cells(function: FunctionType) -> Iterable[object]:
    return function.__closure__ or ()


def _content(cell: object) -> object:
    try:
        return cell.cell_contents  # type: ignore[attr-defined]
    except ValueError:  # not set yet
        return None
