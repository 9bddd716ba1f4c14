"""A Flask project, set up after Flask's documentation: a factory, and tasks that run in the context of its app."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery, Task
from flask import Flask


def create_app() -> Flask:
    """Return the web app, with its Celery app among its extensions."""
    app = Flask(__name__)
    app.config.from_mapping(
        CELERY={
            "broker_url": os.environ["BROKER_URL"],
            "result_backend": os.environ["RESULT_BACKEND"],
            "broker_connection_retry_on_startup": True,
        },
        GREETING="hello",
    )
    init_celery(app)
    return app


def init_celery(app: Flask) -> Any:
    """Return the Celery app of a web app."""

    class FlaskTask(Task):  # type: ignore[type-arg]
        def __call__(self, *args: object, **kwargs: object) -> object:
            with app.app_context():
                return self.run(*args, **kwargs)

    celery_app = Celery(app.name, task_cls=FlaskTask)
    celery_app.config_from_object(app.config["CELERY"])
    celery_app.set_default()
    app.extensions["celery"] = celery_app
    return celery_app
