"""What a limit may be."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from celery_throttle.core.limits import Limit, described
from celery_throttle.errors import ConfigurationError


@pytest.mark.parametrize("name", ["gpu", "a b", "é", "{x}:*", "n" * 200])
def test_any_printable_name_will_do(name: str) -> None:
    assert Limit(name, 1).name == name


@pytest.mark.parametrize("name", ["", "n" * 201, "a\0b", "a\nb", "a\n", "\x7f", None, 5, b"gpu"])
def test_a_name_that_cannot_work_is_refused(name: Any) -> None:
    """Control characters separate the parts of a place in line."""
    with pytest.raises(ConfigurationError, match="Limit name must be"):
        Limit(name, 1)


@pytest.mark.parametrize("permits", [0, -1, 1.0, "4", True, None])
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
    ],
)
def test_a_declaration_for_people(limit: Limit, said: str) -> None:
    assert described(limit.declared) == said
