"""JSON answers, with the content of each command's ``--json``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, PlainTextResponse, Response

from celery_throttle.control.cli.output import readable
from celery_throttle.control.limit_control import MOST
from celery_throttle.control.throttle_control import ThrottleControl
from celery_throttle.web.asked import limit_of, most_of, word

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request

    from celery_throttle.web.readings import Readings, Recent

__all__ = ["Api"]


class Api:
    """The answers below ``/api``: each endpoint by its name in ``answers``."""

    def __init__(self, app: Any, readings: Readings) -> None:
        self._app, self._throttle = app, ThrottleControl(app)
        values: dict[str, Callable[[Request], object]] = {
            "limits": lambda request: self._throttle.status(most=most_of(request, MOST), last_hour=True),
            "limit": self._limit,
            "task": lambda request: self._throttle.explain(word(request, "id")),
            "locks": lambda request: self._throttle.locks(most=most_of(request, MOST)),
            "audit": self._audit,
        }
        self.answers: dict[str, Callable[[Request], Any]] = {name: _as_json(value) for name, value in values.items()}
        self.answers |= {"report": _shared(readings.verdict), "doctor": _shared(readings.diagnosis)}

    def metrics(self, _: Request) -> Response:
        """Answer with the metrics for Prometheus."""
        return PlainTextResponse(self._throttle.metrics(), media_type="text/plain; version=0.0.4")

    def _limit(self, request: Request) -> object:
        limit, most = limit_of(self._app, request), most_of(request, 100)
        return {
            "status": [limit.status(last_hour=True), *limit.keys(most=MOST).rows],
            "holders": limit.holders(most=most),
            "parked": limit.parked(most=most),
        }

    def _audit(self, request: Request) -> object:
        most = most_of(request, 200)
        if request.query_params.get("name"):
            return limit_of(self._app, request).audit(most=most)
        return self._throttle.audit(most=most)


def _as_json(value: Callable[[Request], object]) -> Callable[[Request], Response]:
    def answer(request: Request) -> Response:
        return JSONResponse(readable(value(request)))

    return answer


def _shared(readings: Recent[Any]) -> Callable[[Request], Awaitable[Response]]:
    async def answer(_: Request) -> Response:
        return JSONResponse(readable(await readings.without_thread()))

    return answer
