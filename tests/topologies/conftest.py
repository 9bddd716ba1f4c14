"""Stores of several servers. Those shared by a module's tests are left as they were found."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

from tests.conftest import new_server
from tests.support import clusters, sentinels

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown() -> None:
    """Collect results while their backend is there: on their way out they tell it that nobody waits any more."""
    gc.collect()


@pytest.fixture(scope="module")
def watched() -> Iterator[sentinels.Watched]:
    with sentinels.watched(new_server) as running:
        yield running


@pytest.fixture(scope="module")
def cluster() -> Iterator[clusters.Cluster]:
    with clusters.cluster(new_server) as running:
        yield running
