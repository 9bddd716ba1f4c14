"""The gate's loop on a hub."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from kombu.asynchronous import Hub
from kombu.asynchronous.timer import Timer

from celery_throttle.worker.loop import Loop

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def hub() -> Iterator[Hub]:
    made = Hub(Timer())
    yield made
    made.close()


def test_nothing_of_ours_is_on_the_hub_before_it_begins(hub: Hub) -> None:
    """While a worker greets its neighbours, kombu before 5.7 falls over sockets that it does not know."""
    loop = Loop(hub, threaded=False)
    assert not hub.readers
    loop.reattach()
    assert len(hub.readers) == 1
    loop.close()
    assert not hub.readers


def test_a_post_before_that_is_not_lost(hub: Hub) -> None:
    done: list[str] = []
    loop = Loop(hub, threaded=False)
    loop.post(done.append, "early")
    loop.reattach()
    hub.run_once()
    assert done == ["early"]
    loop.close()
