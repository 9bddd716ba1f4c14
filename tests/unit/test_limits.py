"""Valid and invalid limits."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from celery_throttle.core.buckets import Bucket
from celery_throttle.core.declaration import described
from celery_throttle.core.limits import MOST_STEP, Limit
from celery_throttle.core.policy import Policy, limits_text, needs_text
from celery_throttle.errors import ConfigurationError


@pytest.mark.parametrize("name", ["gpu", "a b", "é", "{x}:*", "n" * 200])
def test_any_printable_name_will_do(name: str) -> None:
    assert Limit(name, 1).name == name


@pytest.mark.parametrize("name", ["", "n" * 201, "a\0b", "a\nb", "a\n", "\x7f", None, 5, b"gpu"])
def test_a_name_that_cannot_work_is_refused(name: Any) -> None:
    """Control characters separate the parts of a place in line."""
    with pytest.raises(ConfigurationError, match="Limit name must be"):
        Limit(name, 1)


@pytest.mark.parametrize("permits", [0, -1, 1.0, "4", True])
def test_permits_are_a_whole_number_of_one_or_more(permits: Any) -> None:
    """The message names the limit and the value."""
    with pytest.raises(ConfigurationError, match=rf"'gpu'.*got {permits!r}"):
        Limit("gpu", permits)


def test_equal_limits_are_the_same_limit() -> None:
    assert {Limit("gpu", 4), Limit("gpu", 4)} == {Limit("gpu", 4)}
    assert Limit("gpu", 4) != Limit("gpu", 5)


def test_a_limit_does_not_change() -> None:
    """Several tasks share it."""
    with pytest.raises(FrozenInstanceError):
        Limit("gpu", 4).permits = 5  # type: ignore[misc]


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        (Limit("gpu", 4), "4"),
        (Limit("mail", rate="100/m"), "100/m (burst 1)"),
        (Limit("api", 8, rate=["10/s", "5000/h"], burst=[1, 500]), "8, 10/s (burst 1), 5000/h (burst 500)"),
        (Limit("few", 2, max_parked=9), "2, max_parked=9"),
        (Limit("gpu", 2, per="host"), "2 on each host"),
        (Limit("thumbs", share=0.5, per="worker"), "0.5 of each worker"),
    ],
)
def test_a_declaration_for_people(limit: Limit, said: str) -> None:
    assert described(limit.declared) == said


def test_the_limits_of_a_task_for_people() -> None:
    gpu, acme = Bucket("gpu"), Bucket("tenant", "acme")
    assert limits_text(needs_text([(acme, 1), (gpu, 2)], booked=gpu)) == "tenant[acme], gpu"
    assert limits_text("") == ""


@pytest.mark.parametrize(
    "weights",
    [{"a": 3, "b": 2}, {"a": 97, "b": 89, "c": 83, "d": 79, "e": 73, "f": 71, "g": 67, "h": 61, "i": 59}, {"a": 1000}],
)
def test_turns_are_in_proportion_to_weights(weights: dict[str, int]) -> None:
    limit = Limit("api", 1, fair_by="who", weights=weights)
    one = limit.step("another")
    assert one <= MOST_STEP
    for who, weight in weights.items():
        assert isinstance(limit.step(who), int)
        assert one / limit.step(who) == pytest.approx(weight, rel=0.005)


@pytest.mark.parametrize(("step", "carried"), [(1, True), (MOST_STEP, True), (MOST_STEP + 1, False), (0, False)])
def test_a_message_cannot_make_a_turn_too_long(step: int, carried: bool) -> None:
    """Else its worker computes the needs of the call itself."""
    assert Policy((Limit("api", 1, fair_by="who"),)).carried({"fair": ["a", step]}) is carried


@pytest.mark.parametrize(
    "text",
    [
        "Limit('gpu', 4)",
        "Limit('mail', rate='100/m', burst=10)",
        "Limit('tenant', 2, key='tenant_id', max_parked=5, group='eu')",
        "Limit('api', 8, fair_by='tenant_id', weights={'gold': 3})",
    ],
)
def test_it_is_shown_as_it_is_written(text: str) -> None:
    assert repr(eval(text)) == text
