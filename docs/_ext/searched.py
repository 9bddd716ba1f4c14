# ruff: noqa: INP001 - no package
"""The search of the site: numbers such as 429 are words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sphinx.search.en import SearchEnglish

if TYPE_CHECKING:
    from sphinx.application import Sphinx


class English(SearchEnglish):
    """English with numbers of three digits or more, for which `scorer.js` looks."""

    def word_filter(self, word: str) -> bool:
        return super().word_filter(word) or (word.isdigit() and len(word) >= 3)  # noqa: PLR2004 - as scorer.js


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_search_language(English)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
