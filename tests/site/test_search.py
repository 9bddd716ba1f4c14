"""What readers search for is found: the site's own search over its own index, run as ``tox -e docs`` has built it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("quickjs", reason="the dependency group docs is not installed")

from tests.site.searching import SiteSearch

pytestmark = pytest.mark.timeout(600)

#: How many results a reader looks at.
LOOKED_AT = 3
#: Words of readers, and the pages that answer them: one is among the first results.
WANTED = {
    "429": ["howto/api-429"],
    "celery-once": ["howto/switch"],
    "dead worker": ["about/guarantees", "howto/operate"],
    "debounce": ["howto/which-one", "reference/run-once"],
    "deploy": ["howto/operate"],
    "django": ["howto/web-frameworks"],
    "kubernetes": ["howto/autoscaling", "howto/operate"],
    "periodic": ["howto/which-one"],
    "plan": ["howto/tenants", "howto/which-one"],
    "priority": ["howto/which-one", "about/guarantees", "reference/options"],
    "tenant": ["howto/tenants"],
}


@pytest.fixture(scope="session")
def search(site: Path) -> SiteSearch:
    return SiteSearch(site)


@pytest.mark.parametrize("words", WANTED)
def test_searched_words_lead_to_the_page(search: SiteSearch, words: str) -> None:
    first = [each.page for each in search.results(words)[:LOOKED_AT]]
    assert set(first) & set(WANTED[words]), first


def test_docstrings_come_after_prose_unless_their_name_is_searched(search: SiteSearch) -> None:
    pages = [each.page for each in search.results("tenant")]
    assert any(each.startswith("reference/api") for each in pages)
    assert not any(each.startswith("reference/api") for each in pages[: len(pages) // 2])
    best = search.results("LimitStatus")[0]
    assert (best.page, best.anchor.rpartition(".")[2]) == ("reference/api-control", "LimitStatus")


def test_a_number_that_no_page_has_hides_nothing(search: SiteSearch) -> None:
    assert search.results("tenant 123456789")[0].page == "howto/tenants"
    assert search.results("123456789") == []
