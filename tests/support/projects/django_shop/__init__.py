"""A Django project, set up as Celery's documentation says."""

from __future__ import annotations

from tests.support.projects.django_shop.celery import app as celery_app

__all__ = ["celery_app"]
