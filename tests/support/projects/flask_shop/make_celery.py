"""The app that a worker is started with."""

from __future__ import annotations

from tests.support.projects.flask_shop import create_app, tasks

__all__ = ["celery_app", "flask_app", "tasks"]

flask_app = create_app()
celery_app = flask_app.extensions["celery"]
