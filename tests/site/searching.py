"""The search of the built site: its own scripts and its own index, in a JavaScript engine."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

import quickjs

#: What the scripts find in a browser when they are loaded. They look at the page only to show results.
BROWSER = """
var window = globalThis, SPHINX_HIGHLIGHT_ENABLED = false;
var document = {getElementById: () => null};
var _ = text => text, _ready = () => {};
"""
#: As `Search.query` of searchtools.js, which shows the last result first.
ASK = """
var found = query => JSON.stringify(
    Search._performSearch(...Search._parseQuery(query)).reverse().map(each => [each[0], each[1], each[2], each[4]])
);
"""
NEEDED = {"searchtools.js", "language_data.js", "searchindex.js"}


class Result(NamedTuple):
    """A result as it is listed: the page without suffix, the text of the link, the anchor, the score."""

    page: str
    text: str
    anchor: str
    score: float


class SiteSearch:
    """The search of a built site.

    Args:
        html: the folder of the site.
    """

    def __init__(self, html: Path) -> None:
        self._engine = quickjs.Context()
        self._engine.eval(BROWSER)
        scripts = re.findall(r'<script src="([^"?]+)', (html / "search.html").read_text())
        for script in (each for each in scripts if Path(each).name in NEEDED):
            self._engine.eval((html / script).read_text())
        self._engine.eval(ASK)

    def results(self, query: str) -> list[Result]:
        """Return all results, best first."""
        return [Result(*each) for each in json.loads(self._engine.get("found")(query))]
