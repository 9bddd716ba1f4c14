"""The outcome of a test: all its stages and subtests taken together."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Outcome", "read"]

#: Later ones outweigh earlier ones.
_ORDER = ("passed", "skipped", "xfailed", "xpassed", "failed")


@dataclass
class Outcome:
    """``passed``, ``skipped``, ``xfailed``, ``xpassed`` or ``failed``; and pytest's text."""

    what: str = "passed"
    text: str = ""

    def add(self, report: dict[str, Any]) -> None:
        """Take one more stage or subtest into account."""
        what = _what(report)
        if _ORDER.index(what) > _ORDER.index(self.what):
            self.what = what
        if what == "failed" and not self.text:
            self.text = report["text"]


def read(reports: Path) -> dict[str, Outcome]:
    """Return the outcome of each test, by its name: file, class and parameters."""
    found: dict[str, Outcome] = {}
    for line in reports.read_text().splitlines() if reports.exists() else ():
        report = json.loads(line)
        found.setdefault(report["test"].removeprefix("t/integration/"), Outcome()).add(report)
    return found


def _what(report: dict[str, Any]) -> str:
    if not report["xfail"]:
        return str(report["outcome"])
    return "xfailed" if report["outcome"] == "skipped" else "xpassed"
