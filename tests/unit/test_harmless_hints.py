"""Hints of error messages: following one never destroys, or changes, more than the wrong call would."""

# These calls are wrong on purpose, and a type checker reports them, too.
# mypy: disable-error-code="arg-type, call-arg, misc"

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

from celery_throttle import Limit, ThrottleControl
from celery_throttle.settings import settings_of
from tests.unit.refusals import make_app, message_of

THROTTLE = ThrottleControl(make_app())
GPU = THROTTLE.limit(Limit("gpu", 4))


def refused(**conf: object) -> str:
    return message_of(lambda: settings_of(make_app(**conf)))


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        (lambda: GPU.drop("2f0c"), "write throttle.drop('2f0c') for one task, throttle.limit('gpu', key='2f0c') for"),
        (lambda: GPU.drop("2f0c", dry_run=False), "write throttle.drop('2f0c') for one task"),
        (lambda: GPU.drop(task_id="2f0c"), "takes no task_id='2f0c': write throttle.drop('task-id')"),
        (lambda: GPU.drop(limit="api"), "takes no limit='api': write throttle.limit('api')"),
        (lambda: GPU.drop(key="acme"), "takes no key='acme': write throttle.limit('tenant', key='acme')"),
        (lambda: GPU.resume("acme"), "write throttle.limit('gpu', key='acme') for one key"),
        (lambda: GPU.reset("acme"), "write throttle.limit('gpu', key='acme') for one key"),
        (lambda: GPU.enable("acme"), "write throttle.limit('gpu', key='acme') for one key"),
        (lambda: GPU.release_hold("acme"), "write throttle.limit('gpu', key='acme') for one key"),
        (lambda: GPU.disable("acme"), "write throttle.limit('gpu', key='acme') for one key"),
        (lambda: GPU.pause("acme"), "write throttle.limit('gpu', key='acme') for one key"),
        (lambda: GPU.pause(60), "write until=60"),
        (lambda: THROTTLE.drain("gpu"), "takes no 'gpu': it is of all limits and queues, throttle.drain(dry_run=True)"),
        (lambda: THROTTLE.drain(queue="a"), "takes no queue='a': it is of all limits and queues"),
        (lambda: THROTTLE.drop("one", "two"), "takes no 'two': write throttle.drop('two') for another task"),
    ],
    ids=map(str, range(15)),
)
def test_wrong_call_of_a_change_hints_at_the_right_one(wrong: Callable[[], object], hint: str) -> None:
    assert hint in message_of(wrong)


@pytest.mark.parametrize("what", [GPU, THROTTLE], ids=["limit", "all"])
def test_no_method_suggests_a_value_as_author(what: Any) -> None:
    """``limit.drop("task-id")`` with ``by="task-id"`` would drop the whole line."""
    methods = [each for name, each in inspect.getmembers(what, inspect.ismethod) if not name.startswith("_")]
    signed = [each for each in methods if "by" in inspect.signature(each).parameters]
    assert len(signed) >= 3
    for method in signed:
        several = len(
            [each for each in inspect.signature(method).parameters.values() if each.kind is not each.KEYWORD_ONLY]
        )
        assert not re.search(r"\b(by|why)='x'", message_of(lambda: method(*["x"] * (several + 1)))), method  # noqa: B023


def test_setting_of_the_opposite_name_is_reported_as_opposite() -> None:
    assert "throttle_enabled is the opposite: True enforces limits" in refused(throttle_disabled=False)
    assert "throttle_enabled is the opposite: True enforces limits" in refused(throttle_disable=False)


@pytest.mark.parametrize("name", ["debug", "dry_run", "eager", "verbose", "cleanup", "log"])
def test_setting_like_none_of_ours_is_not_taken_for_one(name: str) -> None:
    """``throttle_debug = False`` as ``throttle_enabled = False`` would turn every limit off."""
    message = refused(**{f"throttle_{name}": False})
    assert "did you mean" not in message
    assert message.startswith(f"Unknown setting 'throttle_{name}': there are throttle_broker, throttle_enabled, ")
