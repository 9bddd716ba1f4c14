"""The operator's page, to be mounted beside an app of one's own; ``celery -A proj throttle web`` serves it by itself.

``pip install 'celery-fair-throttle[web]'`` has what it needs.
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
        app: the Celery app whose limits are meant.
        access: takes Starlette's `Request` and returns what its sender may do: ``"read"``; ``"arguments"``, to read,
            and to see the arguments of tasks, which may be secrets; ``"change"``, to read and to change; ``"all"``; or
            None: nothing. An ordinary function (which runs in a thread) or a coroutine function. Without ``access``
            each visitor may read.
        user: takes the request and returns who changes something, for the audit; None: ``user@host`` of this process.
        command: how your commands begin, for what the page gives to copy.

    Raises:
        ConfigurationError: ``app`` is none, or the extra is not installed.
    """
    app = checked_app("asgi", app)
    try:
        from celery_throttle.web.site import site  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    return site(app, access, user, command)


def wsgi(app: Any, access: Access | None = None, user: User | None = None, *, command: str = "celery -A proj") -> Any:
    """Return the same as a WSGI app: ``DispatcherMiddleware(flask_app, {"/throttle": wsgi(celery_app, access=...)})``.

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
