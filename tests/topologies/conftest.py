"""Stores of several servers. Those shared by a module's tests are left as they were found."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conftest import new_server
from tests.support import clusters, sentinels
from tests.support.collected import pytest_runtest_protocol, pytest_runtest_teardown  # noqa: F401 - hooks

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def watched() -> Iterator[sentinels.Watched]:
    with sentinels.watched(new_server) as running:
        yield running


@pytest.fixture(scope="module")
def cluster() -> Iterator[clusters.Cluster]:
    with clusters.cluster(new_server) as running:
        yield running
