"""The app of the tests of the kit."""

from __future__ import annotations

from functools import partial
from typing import Any

from celery_throttle import Limit, RateLimited, Throttled
from tests.support.kit import new_app, task_maker

__all__ = ["API", "MAILS", "TENANT", "make_shop"]

API = Limit("api", 2)
TENANT = Limit("tenant", 1, key="tenant_id")
MAILS = Limit("mails", rate="1/h")


def of_video(video_id: int) -> int:
    return video_id


def of_tenant(tenant_id: str, pages: int = 1) -> None: ...


def of_address(address: str) -> None: ...


def slow_down() -> None:
    raise RateLimited(30, max_rounds=1)


def of_order(order_id: int, amount: int = 1) -> int:
    return order_id * amount


def total(amounts: list[int]) -> int:
    return sum(amounts)


def make_shop(**settings: Any) -> Any:
    """Return an app whose own broker and store cannot be reached."""
    app = new_app("shop", **settings)
    task_maker(app)("total", total)
    make = partial(task_maker(app), base=Throttled)
    make("render", of_video, limit=API)
    make("crawl", of_tenant, limit=[TENANT, Limit("crawls", 5)], cost="pages", start_deadline=60)
    make("call", of_tenant, limit=TENANT, acks_late=True)
    make("mail", of_address, limit=MAILS)
    make("sync", slow_down, limit=1)
    make("charge", of_order, singleton=True, unique_on=["order_id"])
    make("remind", of_order, singleton=True, remember=3600, on_conflict="skip")
    make("index", singleton=True, unique_on=[], on_conflict="keep_last")
    return app
