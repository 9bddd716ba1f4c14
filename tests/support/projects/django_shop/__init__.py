"""A Django project, set up after Celery's documentation."""

from __future__ import annotations

from tests.support.projects.django_shop.celery import app as celery_app

__all__ = ["celery_app"]
