"""What is wrong with options and settings, as one line where it ends one of Celery's commands, and not a traceback."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from celery_throttle.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["in_one_line"]


@contextmanager
def in_one_line() -> Iterator[None]:
    """Let a `ConfigurationError` be one that Celery's command line shows as ``Error: ...`` and ends with status 1.

    Elsewhere it stays as it is.
    """
    try:
        yield
    except ConfigurationError as error:
        click = sys.modules.get("click")  # Celery's command line is made of it; nobody else has to load it
        if click is None or click.get_current_context(silent=True) is None or isinstance(error, click.ClickException):
            raise
        raise _shown_by(click.ClickException)(str(error)) from error


@lru_cache(maxsize=1)
def _shown_by(kind: type[Exception]) -> Any:
    return type("ConfigurationError", (ConfigurationError, kind), {})
