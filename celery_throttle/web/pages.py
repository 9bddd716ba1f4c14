"""Pages that only read."""

from __future__ import annotations

from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool

from celery_throttle.control.pace import Pace, pace_of
from celery_throttle.control.rows import reasons, rows_of
from celery_throttle.control.throttle_control import ThrottleControl
from celery_throttle.control.verbs import DROPPABLE
from celery_throttle.web.asked import forget, limit_of, most_of, page_of, word
from celery_throttle.web.changes import notice_of, offered
from celery_throttle.web.charts import HEIGHT, charts
from celery_throttle.web.rendering import live, page

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from celery_throttle.control.limit_control import LimitControl
    from celery_throttle.store.history import History
    from celery_throttle.web.charts import Chart
    from celery_throttle.web.readings import Readings

__all__ = ["Pages"]

_MOST = 100
#: Seconds for which an open page shows the alarms of one report: a report asks all workers.
_FRESH = 15.0
#: Lines with room whose first task is read, each with a call.
_MOST_LINES = 50


class Pages:
    """Makes the pages; each method answers a request, in a thread."""

    def __init__(self, app: Any, readings: Readings) -> None:
        self._app, self._readings, self._throttle = app, readings, ThrottleControl(app)

    def overview(self, request: Request) -> Response:
        """Answer with the state of every limit."""
        wanted = request.query_params.get("find", "")
        found = self._readings.overview(wanted, most_of(request, _MOST))
        return live(request, "overview", found=found, find=wanted, now=found.at)

    def limit(self, request: Request) -> Response:
        """Answer with one limit, or one key of it."""
        limit, most = limit_of(self._app, request), most_of(request, _MOST)
        status, find, number = limit.status(), request.query_params.get("find", ""), page_of(request)
        sort: Any = request.query_params.get("sort", "attention")  # keys() checks the value
        keys = limit.keys(most=most, find=find, sort=sort, skip=(number - 1) * most)
        day = request.query_params.get("day") == "1"
        # Starts are counted by limit, not by key.
        keyed = bool(keys.known or find) or (limit.key is None and rows_of(self._app, [status])[0].keyed)
        history = limit.history() if limit.key is None and not keyed else None
        held, holders = status.held_in_all, limit.holders(most=most)
        shown = (need.permits for each in holders for need in each.needs if status.bucket.includes(need.bucket))
        answer = live(
            request,
            "limit",
            limit=limit,
            status=status,
            keys=keys,
            keyed=keyed,
            find=find,
            sort=sort,
            number=number,
            most=most,
            kept=reasons(self._app, (status, *keys.rows), most=_MOST_LINES),
            held=held,
            missing=held - sum(shown),
            waits=status.parked_in_all,
            holders=holders,
            parked=limit.parked(most=most),
            pace=pace_of(status, history) if history else Pace(),
            offered=offered,
            notice=notice_of(request, limit.name, limit.key),
            day=day,
            drawn=_drawn(request, limit, None if day else history, day=day),
            chart_height=HEIGHT,
            now=datetime.now(timezone.utc),
        )
        return forget(request, answer)

    def task(self, request: Request) -> Response:
        """Answer with the reason why a task waits; without ``?id=`` with a form for the id."""
        if not request.query_params.get("id"):
            return page(request, "task.html", found=None, droppable=False, notice="")
        found = self._throttle.explain(word(request, "id").strip())
        answer = live(request, "task", found=found, droppable=found.state in DROPPABLE, notice=notice_of(request))
        return forget(request, answer)

    def locks(self, request: Request) -> Response:
        """Answer with the identity locks and their tasks."""
        most = most_of(request, _MOST)
        answer = live(request, "locks", locks=self._throttle.locks(most=most), most=most, notice=notice_of(request))
        return forget(request, answer)

    def audit(self, request: Request) -> Response:
        """Answer with the changes, their authors and reasons."""
        limit = limit_of(self._app, request) if request.query_params.get("name") else None
        rows = self._throttle.audit() if limit is None else limit.audit()
        return live(request, "audit", limit=limit, rows=rows)

    async def report(self, request: Request) -> Response:
        """Answer with the report and the diagnosis of the store. It asks the workers, which takes a second or two."""
        verdict = await self._readings.verdict.without_thread()
        diagnosis = await self._readings.diagnosis.without_thread()
        show = partial(page, verdict=verdict, diagnosis=diagnosis, now=verdict.at)
        return await run_in_threadpool(show, request, "report.html")

    async def workers(self, request: Request) -> Response:
        """Answer with workers, queues and records set aside. It asks the workers, which takes a second."""
        found = await self._readings.fleet.without_thread()
        return await run_in_threadpool(partial(page, fleet=found, now=found.at), request, "workers.html")

    async def alarms(self, request: Request) -> Response:
        """Answer with the number of alarms alone, for the head line of an open page."""
        verdict = self._readings.verdict
        report = verdict.last(_FRESH) or await verdict.without_thread()
        return page(request, "_alarms.html", report=report)


def _drawn(request: Request, limit: LimitControl, history: History | None, *, day: bool) -> list[Chart] | None:
    """Return the charts of a limit; None for a key, and for the live part of a page."""
    if limit.key is not None or request.query_params.get("part") == "live":
        return None
    return charts(history or limit.history(day=day), limit.audit())
