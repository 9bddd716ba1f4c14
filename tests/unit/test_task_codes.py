"""The stored form of a task's name, and its reading."""

from __future__ import annotations

import pytest

from celery_throttle.core.buckets import Bucket
from celery_throttle.core.naming import outside_queue
from celery_throttle.core.task_codes import TaskNames, code_of

GPU, TENANT, OWN = Bucket("gpu"), Bucket("tenant", "acme"), Bucket("shop.render")
NAMES = TaskNames({"shop.render": {"shop.render", "tenant"}, "shop.train": {"gpu"}, "shop.pay": set()})


@pytest.mark.parametrize(
    ("name", "limits", "buckets"),
    [
        ("shop.render", {"shop.render", "tenant"}, [TENANT, OWN]),
        ("shop.train", {"gpu"}, [GPU]),
        ("shop.pay", set(), []),
    ],
)
def test_it_is_found(name: str, limits: set[str], buckets: list[Bucket]) -> None:
    assert NAMES.find(code_of(name, limits), buckets, "celery") == name


def test_task_named_by_its_limit_needs_no_code() -> None:
    assert code_of("shop.render", {"shop.render", "tenant"}) == ""
    assert len(code_of("shop.train", {"gpu"})) == 8


def test_unknown_code_is_not_guessed() -> None:
    assert NAMES.find(code_of("shop.other", {"gpu"}), [GPU], "celery") is None
    assert NAMES.find("", [GPU], "celery") is None
    assert NAMES.find("", [OWN], outside_queue("script/1/ab")) is None
    assert TaskNames({}).find("", [OWN], "celery") is None


def test_two_names_with_one_code_match_neither() -> None:
    alike = ("plumless", "buckeroo")  # known to have the same CRC-32
    assert len({code_of(name, ()) for name in alike}) == 1
    assert TaskNames({name: {"gpu"} for name in alike}).find(code_of(alike[0], ()), [GPU], "celery") is None
