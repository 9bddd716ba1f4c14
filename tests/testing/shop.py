"""The app of the tests of the kit."""

from __future__ import annotations

from typing import Any

from celery import Celery

from celery_throttle import Limit, RateLimited, Throttled

__all__ = ["API", "MAILS", "TENANT", "make_shop"]

API = Limit("api", 2)
TENANT = Limit("tenant", 1, key="tenant_id")
MAILS = Limit("mails", rate="1/h")


def make_shop(**settings: Any) -> Any:
    """Return an app whose own broker and store cannot be reached."""
    app = Celery("shop", broker="redis://127.0.0.1:1", backend="redis://127.0.0.1:1", set_as_current=False)
    app.conf.update(settings)
    _add_limited(app)
    _add_singletons(app)

    @app.task(shared=False, name="shop.total")
    def total(amounts: list[int]) -> int:
        return sum(amounts)

    return app


def _add_limited(app: Celery) -> None:
    @app.task(shared=False, base=Throttled, name="shop.render", limit=API)
    def render(video_id: int) -> int:
        return video_id

    @app.task(
        shared=False,
        base=Throttled,
        name="shop.crawl",
        limit=[TENANT, Limit("crawls", 5)],
        cost="pages",
        start_deadline=60,
    )
    def crawl(tenant_id: str, pages: int = 1) -> None: ...

    @app.task(shared=False, base=Throttled, name="shop.call", limit=TENANT, acks_late=True)
    def call(tenant_id: str) -> None: ...

    @app.task(shared=False, base=Throttled, name="shop.mail", limit=MAILS)
    def mail(address: str) -> None: ...

    @app.task(shared=False, base=Throttled, name="shop.sync", limit=1)
    def sync() -> None:
        raise RateLimited(30, max_rounds=1)


def _add_singletons(app: Celery) -> None:
    @app.task(shared=False, base=Throttled, singleton=True, name="shop.charge", unique_on=["order_id"])
    def charge(order_id: int, amount: int = 1) -> int:
        return order_id * amount

    @app.task(shared=False, base=Throttled, singleton=True, name="shop.remind", remember=3600, on_conflict="skip")
    def remind(order_id: int) -> int:
        return order_id

    @app.task(shared=False, base=Throttled, singleton=True, name="shop.index", unique_on=[], on_conflict="keep_last")
    def index(word: str) -> str:
        return word
