# ruff: noqa: INP001 - no package
"""The search of the site: numbers such as 429 are words, and words that readers use lead to the page that has ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sphinx import addnodes
from sphinx.search.en import SearchEnglish

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx

#: Entries of the index, which the search lists before all else. Only where the words of the pages do not suffice.
ENTRIES = {
    "about/guarantees": ["dead worker"],
    "howto/operate": ["deploy", "kubernetes"],
    "howto/autoscaling": ["kubernetes"],
}


class English(SearchEnglish):
    """English with numbers of three digits or more, for which `scorer.js` looks."""

    def word_filter(self, word: str) -> bool:
        return super().word_filter(word) or (word.isdigit() and len(word) >= 3)  # noqa: PLR2004 - as scorer.js


def add_entries(app: Sphinx, document: nodes.document) -> None:
    words = ENTRIES.get(app.env.docname, ())
    document.insert(0, addnodes.index(entries=[("single", word, "", "main", None) for word in words]))


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_search_language(English)
    app.connect("doctree-read", add_entries)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
