"""``drop`` with the id of a task where the name of a limit belongs, and with both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from celery_throttle import ConfigurationError, ThrottleControl
from tests.control.test_drop import ALL, parked, waiting
from tests.support.shell import Ended

Run = Callable[..., Ended]

__all__ = ["waiting"]


@pytest.mark.usefixtures("waiting")
@pytest.mark.parametrize(
    ("args", "said"),
    [
        (
            ["api", "--task", "t2", "--yes"],
            "one task of any limit: write `celery throttle drop --task t2`",
        ),
        (
            ["--key", "acme", "--task", "t2", "--yes"],
            "one task of any limit: write `celery throttle drop --task t2`",
        ),
        (["--key", "acme", "--yes"], "--key is one of a limit: write `celery throttle drop LIMIT --key acme`"),
    ],
)
def test_drop_of_two_things_names_the_smaller(app: Any, run: Run, args: list[str], said: str) -> None:
    ended = run("drop", *args)
    assert ended.code == 2
    assert said in ended.err
    assert parked(app) == ALL


@pytest.mark.usefixtures("waiting")
def test_drop_of_an_id_as_a_limit_names_the_command_for_one_task(app: Any, run: Run) -> None:
    ended = run("drop", "t2", "--yes")
    assert (ended.code, parked(app)) == (1, ALL)
    assert ended.err == (
        "Error: No limit 't2', but a task has this id: write `celery throttle explain t2` or "
        "`celery throttle drop --task t2`. Known limits: api, tenant\n"
    )
    with pytest.raises(ConfigurationError, match=r"^No limit 't2', but a task has this id: explain and drop take it"):
        ThrottleControl(app).limit("t2")
