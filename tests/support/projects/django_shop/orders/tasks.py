"""Tasks that Celery finds by itself."""

from __future__ import annotations

from typing import Any

from celery import shared_task
from celery.contrib.django.task import DjangoTask

from celery_throttle import Throttled
from tests.support.apps import run_for
from tests.support.projects.django_shop.orders.models import Order


@shared_task(base=Throttled, limit=2, bind=True)
def render(self: Any, order_id: int) -> None:
    order = Order.objects.get(pk=order_id)
    order.rendered = True
    order.save()
    run_for(self, f"order {order_id}", 0.2)


@shared_task(base=Throttled, singleton=True, name="sweep", bind=True)
def sweep(self: Any) -> None:
    """Beat sends it."""
    run_for(self, "sweep")


@shared_task(base=Throttled, name="annotated", bind=True)
def annotated(self: Any, label: str) -> None:
    """Its limit is in the settings."""
    run_for(self, label, 0.2)


class ShopTask(Throttled, DjangoTask):  # type: ignore[type-arg] # generic for mypy alone
    """The mix that is otherwise made by itself, written down."""

    abstract = True


@shared_task(base=ShopTask, limit=1, name="invoice", bind=True)
def invoice(self: Any, label: str) -> None:
    run_for(self, label, 0.1)
