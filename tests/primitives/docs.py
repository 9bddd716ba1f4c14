"""The example in a docstring."""

from __future__ import annotations

from itertools import takewhile
from textwrap import dedent


def example(documented: object) -> str:
    """Return the first block of code."""
    _, found, rest = str(documented.__doc__).partition("::\n")
    assert found
    return dedent("\n".join(takewhile(lambda line: not line or line.startswith(" " * 8), rest.splitlines())))
