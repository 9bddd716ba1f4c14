"""The version of this package, as it was installed: a build takes it from the tag."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

__all__ = ["__version__"]

try:
    __version__ = version("celery-fair-throttle")
except PackageNotFoundError:  # a source tree that is on the path, and not installed
    __version__ = "0+unknown"
