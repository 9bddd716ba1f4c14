"""Stores of several servers. Those shared by a module's tests are left as they were found."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import new_server
from tests.support import clusters, sentinels
from tests.support.collected import pytest_runtest_protocol, pytest_runtest_teardown  # noqa: F401 - hooks


@pytest.fixture(scope="module")
def watched() -> Iterator[sentinels.Watched]:
    with sentinels.watched(new_server) as running:
        yield running


@pytest.fixture(scope="module")
def cluster() -> Iterator[clusters.Cluster]:
    with clusters.cluster(new_server) as running:
        yield running
