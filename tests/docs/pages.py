"""The pages of the docs as programs and as sections, for tests of what they promise."""

from __future__ import annotations

import re
from typing import Any

from tests.support.workers import ROOT

__all__ = ["app_of", "sections_of"]

_FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def app_of(page: str, app: Any) -> dict[str, Any]:
    """Declare the tasks of a page for an app; return what its blocks define."""
    blocks = [
        block
        for block in _FENCE.findall((ROOT / "docs" / page).read_text())
        if "@app.task" in block or block.startswith("# shop.py")
    ]
    names: dict[str, Any] = {"__name__": app.main, "app": app}
    for block in blocks:
        source = re.sub(r"^app = Celery\(.*\)$", "", block, flags=re.MULTILINE)
        exec(source.replace("@app.task(", "@app.task(shared=False, "), names)
    return names


def sections_of(page: str) -> dict[str, str]:
    """Return the text below each heading of a page, up to the next heading of its level or a higher one."""
    lines = (ROOT / page).read_text().splitlines()
    found, fenced = [], False
    for number, line in enumerate(lines):
        fenced ^= line.startswith("```")
        if not fenced and (heading := re.match(r"(#+) (.+)", line)):
            found.append((number, len(heading[1]), heading[2]))
    sections = {}
    for index, (number, level, title) in enumerate(found):
        ends = [other for other, deeper, _ in found[index + 1 :] if deeper <= level]
        sections[title] = "\n".join(lines[number + 1 : ends[0] if ends else None])
    return sections
