"""The app of `tests.support.apps.doors`, with the receiver that docs/reference/signals.md shows."""

from __future__ import annotations

import re
from typing import Any

from celery_throttle import signals
from tests.support.apps.doors import app
from tests.support.workers import ROOT

__all__ = ["app"]


def _block() -> str:
    page = (ROOT / "docs" / "reference" / "signals.md").read_text()
    found = re.search(r"^## The state of a parked task$.*?^```python$(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert found
    return found[1]


#: Of the block, which goes on in the file of an earlier one; signals keep receivers weakly.
names: dict[str, Any] = {"app": app, "signals": signals}
exec(_block(), names)
