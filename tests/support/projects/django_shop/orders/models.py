"""The model of the tasks."""

from __future__ import annotations

from django.db import models  # type: ignore[import-untyped]


class Order(models.Model):  # type: ignore[misc]  # Django has no types
    """An order, and whether its picture was made."""

    rendered = models.BooleanField(default=False)

    def __str__(self) -> str:
        return f"order {self.pk}"
