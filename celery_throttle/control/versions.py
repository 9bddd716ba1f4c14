"""Collect the versions of the process."""

from __future__ import annotations

import platform

import redis
from celery import __version__ as celery_version

from celery_throttle import __version__

__all__ = ["versions"]


def versions() -> dict[str, str]:
    """Return the versions of the library, Celery, redis-py and Python, by name."""
    return {
        "celery_throttle": __version__,
        "celery": celery_version,
        "redis": redis.__version__,
        "python": platform.python_version(),
    }
