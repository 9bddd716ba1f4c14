"""Celery's own tests, as they are in the source distribution of the version that is installed here."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

__all__ = ["fetch"]


def fetch(directory: Path) -> Path:
    """Download the source distribution into the directory, and return the folder ``t`` of it: nothing else is taken.

    The ``celery`` beside it would be imported instead of the one that is installed.
    """
    release = version("celery")
    wanted = ["--no-binary", "celery", "--no-deps", "--dest", str(directory), f"celery=={release}"]
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", *wanted], check=True)
    archive = directory / f"celery-{release}.tar.gz"
    with tarfile.open(archive) as source:
        top = f"celery-{release}/"
        members = [each for each in source.getmembers() if each.name.startswith(f"{top}t/")]
        for each in members:
            each.name = each.name.removeprefix(top)
        source.extractall(directory, members=members, filter="data")
    return directory / "t"
