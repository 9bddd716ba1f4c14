"""The version of this package, as it was installed (a build takes it from the tag), and those of what it runs on."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

__all__ = ["__version__", "versions"]

try:
    __version__ = version("celery-fair-throttle")
except PackageNotFoundError:  # a source tree that is on the path, and not installed
    __version__ = "0+unknown"


def versions() -> dict[str, str]:
    """Return the versions of the library, Celery, redis-py and Python, by name."""
    packages = {"celery_throttle": __version__, "celery": version("celery"), "redis": version("redis")}
    return {**packages, "python": platform.python_version()}
