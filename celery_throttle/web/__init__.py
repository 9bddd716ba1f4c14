"""The operator's page: mount it in an app of your own, or serve it with ``celery -A proj throttle web``.

Needs ``pip install 'celery-fair-throttle[web]'``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_throttle.errors import ConfigurationError
from celery_throttle.settings import checked_app

if TYPE_CHECKING:
    from celery_throttle.web.guard import Access, User

__all__ = ["asgi", "wsgi"]

_INSTALL = "pip install 'celery-fair-throttle[web]'"


def asgi(app: Any, access: Access | None = None, user: User | None = None, *, command: str = "celery -A proj") -> Any:
    """Return the page as an ASGI app: ``fastapi_app.mount("/throttle", asgi(celery_app, access=...))``.

    Args:
        app: the Celery app that has the limits.
        access: takes Starlette's `Request` and returns the rights of its sender. ``"read"``: read. ``"arguments"``:
            read, and see the arguments of tasks, which may be secrets. ``"change"``: read and change. ``"all"``: all of
            this. None: no access. An ordinary function (which runs in a thread) or a coroutine function. Without
            ``access`` every visitor may read.
        user: takes the request and returns the author of a change, for the audit; None: ``user@host`` of this process.
        command: the beginning of commands that the page offers to copy.

    Raises:
        ConfigurationError: ``app`` is no Celery app, or the extra is not installed.
    """
    app = checked_app("asgi", app)
    try:
        from celery_throttle.web.site import site  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    return site(app, access, user, command)


def wsgi(app: Any, access: Access | None = None, user: User | None = None, *, command: str = "celery -A proj") -> Any:
    """Return the page as a WSGI app: ``DispatcherMiddleware(flask_app, {"/throttle": wsgi(celery_app, access=...)})``.

    The WSGI environment of a request is ``request.scope["wsgi_environ"]``.
    """
    page = asgi(app, access, user, command=command)
    try:
        from a2wsgi import ASGIMiddleware  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    return ASGIMiddleware(page)


def _missing(error: ModuleNotFoundError) -> ConfigurationError:
    return ConfigurationError(f"The page needs {error.name}, which is not installed: {_INSTALL}")
