"""The shop: ``uvicorn examples.flash_sale.web:app``, in any number of processes."""

from __future__ import annotations

import uuid
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from redis.asyncio import Redis
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse
from starlette.routing import Route

from celery_throttle.primitives import AsyncCounter
from examples.flash_sale.app import REDIS_URL, record
from examples.flash_sale.app import app as celery
from examples.flash_sale.stock import PREFIX, STOCK, asked_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from starlette.requests import Request


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """Hold the connections that all requests share."""
    celery.finalize()  # here, because in the first requests two threads may do it at once
    async with Redis.from_url(REDIS_URL) as client:
        app.state.redis = client
        yield
    celery.close()


async def buy(request: Request) -> JSONResponse:
    """Sell one unit of an item: 201 and the order, or 409 if there is none left."""
    item = request.path_params["item"]
    order_id = uuid.uuid4().hex
    # No lock is needed, because no other request gets the same number. With the id, a call that redis-py sends again
    # after a lost reply does not take a second unit.
    unit = await AsyncCounter(request.app.state.redis, asked_for(item), prefix=PREFIX).add(call_id=order_id)
    if unit > STOCK:
        return JSONResponse({"refused": "no stock"}, status_code=409)
    # If this fails, the unit is lost and not sold again, because the broker may have the order.
    await run_in_threadpool(record.delay, order_id, item, unit)
    return JSONResponse({"order_id": order_id, "unit": unit}, status_code=201)


app = Starlette(routes=[Route("/buy/{item}", buy, methods=["POST"])], lifespan=lifespan)
