"""The shop's endpoints: ``uvicorn examples.payments.web:app``."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.routing import Route

from examples.payments import ledger
from examples.payments.app import app as celery
from examples.payments.app import charge

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request


async def pay(request: Request) -> JSONResponse:
    """Answer a click on "Pay": 202 and the id of the task that charges; each later click gets the same id."""
    order_id, amount = await _payment(request)
    return JSONResponse({"task_id": await run_in_threadpool(_charge, order_id, amount)}, status_code=202)


async def webhook(request: Request) -> JSONResponse:
    """Answer another system's webhook. It publishes by task name alone, so the worker checks for a duplicate."""
    order_id, amount = await _payment(request)
    result = await run_in_threadpool(celery.send_task, "examples.payments.app.charge", (order_id, amount))
    return JSONResponse({"task_id": result.id}, status_code=202)


def order(request: Request) -> JSONResponse:
    """Answer with an order, and the task that charges it."""
    found = ledger.find(request.path_params["order_id"])
    if found is None:
        raise HTTPException(404)
    lock = charge.locked_by(found.order_id, found.amount)
    task = lock and {"task_id": lock.task_id, "state": lock.state}
    return JSONResponse({**asdict(found), "task": task})


def _charge(order_id: int, amount: int) -> str:
    ledger.add(order_id, amount)
    return str(charge.delay(order_id, amount).id)


async def _payment(request: Request) -> tuple[int, int]:
    try:
        body = await request.json()
        return int(body["order_id"]), int(body["amount"])
    except (KeyError, TypeError, ValueError) as error:
        raise HTTPException(400, "order_id and amount must be whole numbers") from error


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    """Make Celery's tasks at the start, close its connections at the end."""
    celery.finalize()  # here, because in the first requests two threads may do it at once
    yield
    celery.close()


app = Starlette(
    routes=[
        Route("/pay", pay, methods=["POST"]),
        Route("/webhook", webhook, methods=["POST"]),
        Route("/orders/{order_id:int}", order),
    ],
    lifespan=lifespan,
)
