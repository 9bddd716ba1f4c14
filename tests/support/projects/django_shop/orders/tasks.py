"""Tasks that Celery finds by itself."""

from __future__ import annotations

import time
from typing import Any

from celery import shared_task
from celery.contrib.django.task import DjangoTask

from celery_throttle import Throttled
from tests.support.journal import Journal
from tests.support.projects.django_shop.orders.models import Order


@shared_task(base=Throttled, limit=2, bind=True)
def render(self: Any, order_id: int) -> None:
    with Journal.from_environment().run(self.request, f"order {order_id}"):
        time.sleep(0.2)
        order = Order.objects.get(pk=order_id)
        order.rendered = True
        order.save()


@shared_task(base=Throttled, singleton=True, name="sweep", bind=True)
def sweep(self: Any) -> None:
    """Beat sends it."""
    with Journal.from_environment().run(self.request, "sweep"):
        pass


@shared_task(base=Throttled, name="annotated", bind=True)
def annotated(self: Any, label: str) -> None:
    """Its limit is in the settings."""
    with Journal.from_environment().run(self.request, label):
        time.sleep(0.2)


class ShopTask(Throttled, DjangoTask):  # type: ignore[type-arg] # generic for mypy alone
    """The mix that is otherwise made by itself, written down."""

    abstract = True


@shared_task(base=ShopTask, limit=1, name="invoice", bind=True)
def invoice(self: Any, label: str) -> None:
    with Journal.from_environment().run(self.request, label):
        time.sleep(0.1)
