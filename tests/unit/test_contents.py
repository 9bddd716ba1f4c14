"""The values of a message: which can be used, which fail their task, and which errors let a run be tried again."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from celery.backends.base import Backend
from celery.exceptions import BackendStoreError
from kombu.exceptions import EncodeError, OperationalError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import DataError, ResponseError

from celery_throttle.core.contents import attempt_of, check_links, check_stamps, check_time_limits, rounds_of, stored_id
from celery_throttle.errors import UnusableMessage
from celery_throttle.worker.celery_side.failing import may_pass
from celery_throttle.worker.store_side.sifting import is_about_content

NAN = float("nan")


@pytest.mark.parametrize("task_id", ["a", "7", "äöü\N{SNOWMAN}", "a b\n", "x" * 1000])
def test_id_that_is_text_is_stored_as_it_is(task_id: str) -> None:
    assert stored_id(task_id) == task_id


def test_other_ids_are_stored_as_hashes_that_differ() -> None:
    others: list[object] = [7, 7.5, None, True, "", "\0", "\ud800", "a\ud800", "x" * 1001, ("7",)]
    stored = [stored_id(each) for each in others]
    assert all(each.startswith("sha256:") and stored_id(each) == each for each in stored)
    assert len(set(stored)) == len(others)


@pytest.mark.parametrize(("retries", "attempt"), [(2, 2), (None, 0), ("x", 0), ([1], 0), (True, 1), (1.5, 1)])
def test_retries_that_are_no_number_count_as_none(retries: object, attempt: int) -> None:
    assert attempt_of(retries, None) == attempt


@pytest.mark.parametrize("value", [-1, 1 << 20, 1e308, NAN, float("inf"), 10**30])
def test_numbers_without_an_order_are_refused(value: Any) -> None:
    with pytest.raises(UnusableMessage, match="retries is "):
        attempt_of(value, None)
    with pytest.raises(UnusableMessage, match="replaced_task_nesting is"):
        attempt_of(0, value)


@pytest.mark.parametrize("limits", [[1], 7, "ab", ["x", None], [None, NAN], [10**400, None], {"a": 1, "b": 2}])
def test_time_limits_that_no_pool_takes_are_refused(limits: object) -> None:
    with pytest.raises(UnusableMessage, match="timelimit is"):
        check_time_limits(limits)


def test_usual_values_pass() -> None:
    check_time_limits([1, None])
    check_time_limits((0.5, 2))
    check_stamps({"stamped_headers": ["tenant"], "stamps": {"tenant": "acme"}})
    check_stamps({"stamped_headers": None})
    check_links({"callbacks": None})
    assert [rounds_of({"rounds": each}) for each in (3, -1, "x", True, None)] == [3, 0, 0, 0, 0]


@pytest.mark.parametrize(
    "stamps", [{"stamped_headers": 7}, {"stamped_headers": [[1]]}, {"stamped_headers": ["a"], "stamps": 7}]
)
def test_stamps_that_celery_cannot_compare_are_refused(stamps: dict[str, Any]) -> None:
    with pytest.raises(UnusableMessage, match="stamp"):
        check_stamps(stamps)


@pytest.mark.parametrize("links", [[1], "x", 7, {1: 2}])
def test_links_that_are_no_object_are_refused(links: object) -> None:
    with pytest.raises(UnusableMessage, match="third part"):
        check_links(links)


class OwnError(Exception):
    """As the client of a result backend has them."""


class OwnDataError(OwnError):
    """A value that this client cannot store."""


OwnDataError.__name__ = "DataError"


class Away(Backend):
    """A result backend whose client raises an error."""

    def fail(self, error: Exception) -> None:
        raise error


@pytest.mark.parametrize(
    "error", [OSError(), OperationalError(), BackendStoreError("x"), RuntimeError("no new futures")]
)
def test_error_of_a_connection_or_a_pool_may_pass(error: Exception) -> None:
    assert may_pass(error)


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (OwnError(), True), (RedisConnectionError(), True), (OwnDataError(), False), (DataError(), False),
        (TypeError(), False), (UnicodeEncodeError("utf-8", "\ud800", 0, 1, ""), False), (EncodeError(), False),
        (RecursionError(), False),
    ],
)  # fmt: skip
def test_error_within_a_result_backend_may_pass_if_no_value_causes_it(error: Exception, passes: bool) -> None:
    assert not may_pass(error), "it was raised nowhere yet"
    with pytest.raises(type(error)) as raised:
        Away(Celery(set_as_current=False)).fail(error)
    assert may_pass(raised.value) is passes


@pytest.mark.parametrize(
    ("text", "is_so"),
    [
        ("user_script:12: Expected value but found invalid unicode escape code at character 9 script: ab", True),
        ("Error running script (call to f_ab): @user_script:9: user_script:9: attempt to index a nil value", True),
        ("OOM command not allowed when used memory > 'maxmemory'. script: ab, on @user_script:3.", False),
        ("Error running script (call to f_ab): @user_script:9: @user_script: 9: -OOM command not allowed", False),
        ("MISCONF Redis is configured to save RDB snapshots", False),
        ("READONLY You can't write against a read only replica. script: ab", False),
        ("max number of clients reached", False),
    ],
)
def test_refusal_for_the_state_of_a_server_is_not_about_a_row(text: str, is_so: bool) -> None:
    assert is_about_content(ResponseError(text)) is is_so
