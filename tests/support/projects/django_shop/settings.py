"""Settings: Celery's and ours have CELERY_ in front."""

from __future__ import annotations

import os

SECRET_KEY = "not one"
USE_TZ = True
INSTALLED_APPS = ["tests.support.projects.django_shop.orders"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ["SHOP_DATABASE"],
        "OPTIONS": {"timeout": 20},
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
THROTTLE_RATES = {"api": "5/s"}  # another package's

CELERY_BROKER_URL = os.environ["BROKER_URL"]
CELERY_RESULT_BACKEND = os.environ["RESULT_BACKEND"]
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BEAT_SCHEDULE = {"sweep": {"task": "sweep", "schedule": 0.5}}
CELERY_TASK_ANNOTATIONS = {"annotated": {"limit": 1}}
CELERY_THROTTLE_PREFIX = "shop"
CELERY_THROTTLE_REAP_EVERY = 1.0
