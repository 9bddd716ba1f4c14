"""The operator's page of the demo: ``THROTTLE_URL=redis://localhost:6379/0 uvicorn examples.demo.page:page``."""

from __future__ import annotations

from celery_throttle.web import asgi
from examples.demo.app import app

page = asgi(app)
