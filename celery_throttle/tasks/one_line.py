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

    While the command loads the app it shows the traceback of any exception, so there the command is ended itself.
    Elsewhere it stays as it is.
    """
    try:
        yield
    except ConfigurationError as error:
        click = sys.modules.get("click")  # Celery's command line is made of it; nobody else has to load it
        context = click and click.get_current_context(silent=True)
        if click is None or context is None or isinstance(error, click.ClickException):
            raise
        if _loads_the_app(context):
            raise SystemExit(f"Error: {error}") from error
        raise _shown_by(click.ClickException)(str(error)) from error


def _loads_the_app(context: Any) -> bool:
    """Whether this is Celery's own command, and it does not have the app yet."""
    root, theirs = context.find_root(), sys.modules.get("celery.bin.celery")
    return theirs is not None and root.command is theirs.celery and root.obj is None


@lru_cache(maxsize=1)
def _shown_by(kind: type[Exception]) -> Any:
    return type("ConfigurationError", (ConfigurationError, kind), {})
