"""Apps that reach no server, tables of wrong code, and the messages with which calls are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery

from celery_throttle import ConfigurationError, Throttled

__all__ = ["make_app", "message_of", "rows", "task_of"]


def make_app(name: str = "shop", **conf: Any) -> Any:
    app = Celery(name, broker="redis://127.0.0.1:1/0", set_as_current=False)
    app.conf.update(conf)
    return app


def task_of(function: Any, /, **options: Any) -> Any:
    """Return the task shop.f with this body, in an app of its own."""
    app = make_app()
    app.task(function, name="shop.f", shared=False, base=Throttled, **options)
    app.finalize()
    return app.tasks["shop.f"]


def message_of(wrong: Callable[[], object]) -> str:
    """Return the message with which a call is refused."""
    with pytest.raises(ConfigurationError) as raised:
        wrong()
    return str(raised.value)


def rows(table: str) -> list[Any]:
    """Return a table, ``code => text`` in each row, as parameters named by the code; a row may go on, indented."""
    lines = [line for line in table.replace("\n    ", " ").splitlines() if line and not line.startswith("#")]
    return [pytest.param(*line.split(" => "), id=line.partition(" => ")[0]) for line in lines]
