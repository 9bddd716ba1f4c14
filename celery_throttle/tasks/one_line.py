"""Print a `ConfigurationError` that ends one of Celery's commands as one line, without a traceback."""

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
    """Have one of Celery's commands print a `ConfigurationError` as ``Error: ...`` and end with status 1.

    While the command loads the app it would print a traceback of any exception, so this raises `SystemExit` there.
    Outside of such a command the error is not changed.
    """
    try:
        yield
    except ConfigurationError as error:
        click = sys.modules.get("click")  # Celery's command line has loaded it; other programs need not
        context = click and click.get_current_context(silent=True)
        if click is None or context is None or isinstance(error, click.ClickException):
            raise
        if _loads_the_app(context):
            raise SystemExit(f"Error: {error}") from error
        raise _shown_by(click.ClickException)(str(error)) from error


def _loads_the_app(context: Any) -> bool:
    """Return whether this is Celery's own command, and the command does not have the app yet."""
    root, theirs = context.find_root(), sys.modules.get("celery.bin.celery")
    return theirs is not None and root.command is theirs.celery and root.obj is None


@lru_cache(maxsize=1)
def _shown_by(kind: type[Exception]) -> Any:
    return type("ConfigurationError", (ConfigurationError, kind), {})
