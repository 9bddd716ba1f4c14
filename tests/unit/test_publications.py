"""The names of publications: by our publisher, or by the delivery tag of the broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from celery_throttle.core.contents import publication_in
from celery_throttle.tasks.publications import with_publication
from celery_throttle.worker.celery_side.publications import name_by_broker

TAG = "c5e9a1f0-9d8c-4a37-8a5e-0c4b8d3b7a10"


def message(tag: object, transport: str = "") -> Any:
    return SimpleNamespace(delivery_tag=tag, channel=SimpleNamespace(connection=SimpleNamespace(driver_type=transport)))


def test_each_call_has_a_name_of_its_own_beside_other_headers() -> None:
    options: dict[str, Any] = {"task_id": "t", "headers": {"tenant": "acme", "throttle": {"cost": 2}}}
    first, second = (with_publication(options)["headers"] for _ in range(2))
    assert first["throttle"].pop("publication") != second["throttle"].pop("publication")
    assert first == second == options["headers"]


def test_retry_keeps_the_name_and_another_call_does_not() -> None:
    header = with_publication({"task_id": "t"})["headers"]
    assert with_publication({"task_id": "t", "retries": 1, "headers": header})["headers"] == header
    assert with_publication({"task_id": "t", "headers": header})["headers"] != header


@pytest.mark.parametrize("name", [None, 7, "", "a b", "a/b", "\0", "ä", "x" * 41, ["a"]])
def test_name_that_cannot_be_used_is_none(name: object) -> None:
    assert publication_in({"publication": name}) == ""


@pytest.mark.parametrize("transport", ["redis", "memory", "filesystem"])
def test_tag_that_stays_with_the_message_is_its_name(transport: str) -> None:
    for redelivered in (False, True):
        assert name_by_broker(message(TAG, transport), redelivered=redelivered) == "c5e9a1f0"


def test_tag_of_a_delivery_is_no_name() -> None:
    """SQS and others give each delivery its own tag, and AMQP counts deliveries, but marks those that come again."""
    assert name_by_broker(message(TAG, "sqs"), redelivered=False) == ""
    assert name_by_broker(SimpleNamespace(delivery_tag=TAG, channel=None), redelivered=False) == ""
    assert name_by_broker(message(7, "amqp"), redelivered=True) == ""
    first, second = (name_by_broker(message(7, "amqp"), redelivered=False) for _ in range(2))
    assert first != second
    assert publication_in({"publication": first}) == first
