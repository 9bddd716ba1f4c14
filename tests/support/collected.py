"""Results are collected with the test that made them, for the directories whose ``conftest`` imports these hooks.

Their backend must still be there: each result cancels its subscription on its way out.
"""

from __future__ import annotations

import gc
from collections.abc import Generator

import pytest

__all__ = ["pytest_runtest_protocol", "pytest_runtest_teardown"]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown() -> None:
    gc.collect()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Once all fixtures are gone, leave lasting objects out of the next collection: it takes 50 ms otherwise."""
    result = yield
    gc.collect()
    gc.freeze()
    return result
