"""The operator's page in a Django project, for staff."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from asgiref.sync import async_to_sync
from django.contrib.auth.views import redirect_to_login  # type: ignore[import-untyped]
from django.core.exceptions import PermissionDenied  # type: ignore[import-untyped]
from django.http import HttpResponse  # type: ignore[import-untyped]
from django.urls import include, re_path  # type: ignore[import-untyped]
from django.views.decorators.csrf import csrf_exempt  # type: ignore[import-untyped]

from celery_throttle.errors import ConfigurationError
from celery_throttle.web import asgi

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.http import HttpRequest

__all__ = ["CHANGE_LIMITS", "VIEW_ARGUMENTS", "throttle_page"]

#: The permission for changes, unless the project names another one.
CHANGE_LIMITS = "celery_throttle.change_limits"
#: The permission to see the arguments of tasks, alike.
VIEW_ARGUMENTS = "celery_throttle.view_arguments"

_RIGHTS, _USER = "celery_throttle.rights", "celery_throttle.user"


def throttle_page(
    app: Any,
    access: Callable[[HttpRequest], str | None] | None = None,
    *,
    permission: str = CHANGE_LIMITS,
    arguments: str = VIEW_ARGUMENTS,
    command: str = "celery -A proj",
) -> Any:
    """Return the page for ``urlpatterns``: ``path("throttle/", throttle_page(app))``.

    A visitor without a login is redirected to the login page. The audit has each change with the user's name.

    Args:
        app: the Celery app.
        access: returns the rights of a request, as the ``access`` of `celery_throttle.web.asgi`. Without it, active
            staff may read, and the two permissions give further rights.
        permission: the permission for changes; superusers have it.
        arguments: the permission to see the arguments of tasks, which may be secrets; superusers have it.
        command: the beginning of commands that the page offers to copy.

    Raises:
        ConfigurationError: ``app`` is no Celery app, a permission has no app label, or the extra ``[web]`` is not
            installed.
    """
    _check_permission("permission", permission, CHANGE_LIMITS)
    _check_permission("arguments", arguments, VIEW_ARGUMENTS)
    page = asgi(app, lambda request: request.scope[_RIGHTS], lambda request: request.scope[_USER], command=command)

    def view(request: HttpRequest, rest: str) -> HttpResponse:
        rights = access(request) if access else _of_staff(request, permission, arguments)
        if rights is None:
            if not request.user.is_authenticated:
                return redirect_to_login(request.get_full_path())
            raise PermissionDenied
        return _answered(page, request, rest, {_RIGHTS: rights, _USER: request.user.get_username()})

    # csrf_exempt, because the page itself refuses changes from other origins, and its forms have no CSRF tokens.
    return include([re_path(r"^(?P<rest>.*)$", csrf_exempt(view), name="celery_throttle")])


def _check_permission(option: str, given: Any, default: str) -> None:
    if not isinstance(given, str) or not all(given.partition(".")):
        raise ConfigurationError(
            f"throttle_page: {option} must be 'app_label.codename', got {given!r}: write {default!r}"
        )


def _of_staff(request: HttpRequest, permission: str, arguments: str) -> str | None:
    user = request.user
    if not (user.is_active and user.is_staff):  # an anonymous user is neither
        return None
    if user.has_perm(permission):
        return "all" if user.has_perm(arguments) else "change"
    return "arguments" if user.has_perm(arguments) else "read"


def _answered(page: Any, request: HttpRequest, rest: str, known: dict[str, object]) -> HttpResponse:
    """Return the page's answer, under a WSGI server as under an ASGI server."""
    messages: list[dict[str, Any]] = []
    body = [{"type": "http.request", "body": request.body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        return body.pop() if body else {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        messages.append(message)

    async_to_sync(page)(_scope(request, rest) | known, receive, send)
    first, *parts = messages
    content = b"".join(each.get("body", b"") for each in parts)
    response = HttpResponse(content, status=first["status"], reason=HTTPStatus(first["status"]).phrase)
    del response["Content-Type"]  # the headers below have the page's own, if there is one
    for name, value in first["headers"]:
        response[name.decode("latin-1")] = value.decode("latin-1")
    return response


def _scope(request: HttpRequest, rest: str) -> dict[str, Any]:
    path = request.path
    headers = {name.lower().encode("latin-1"): value.encode("latin-1") for name, value in request.headers.items()}
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.scheme,
        "path": path,
        "root_path": path.removesuffix(rest).rstrip("/"),
        "query_string": request.META.get("QUERY_STRING", "").encode("latin-1"),
        "headers": list(headers.items()),
        "client": None,
        "server": None,
    }
