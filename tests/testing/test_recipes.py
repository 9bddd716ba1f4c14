"""The tests in the docs pass, as a project of a user has them, and the ten recipes are short."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.support.workers import ROOT

if TYPE_CHECKING:
    from celery_throttle.embedded import EmbeddedServer

pytest_plugins = "pytester"

SETTINGS = """
    SECRET_KEY = "a test"
    DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
"""
CONFTEST = """
    import django, pytest
    django.setup()

    @pytest.fixture
    def throttle_celery_app():
        from shop import app
        return app
"""
#: The app of the tutorial, which its page gets from the reader's project.
APP = 'from celery import Celery\napp = Celery("shop")\n'
RECIPES, TUTORIAL = "docs/howto/test-limits.md", "docs/tutorial/in-tests.md"


def blocks(page: str) -> list[str]:
    """Return the blocks of code of a page, without those that print something."""
    found = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    return [each for each in found if ">>>" not in each]


def test_each_recipe_has_twelve_lines_at_most() -> None:
    recipes = [each for each in blocks(RECIPES) if "def test_" in each]
    assert len(recipes) == 10
    assert all(len(each.splitlines()) <= 12 for each in recipes)


@pytest.mark.parametrize(("page", "before", "passed"), [(RECIPES, "", 10), (TUTORIAL, APP, 4)])
def test_the_tests_of_a_page_pass(
    page: str,
    before: str,
    passed: int,
    pytester: pytest.Pytester,
    server: EmbeddedServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("THROTTLE_TEST_URL", server.url)
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "shop_settings")
    code = [each for each in blocks(page) if "def throttle_celery_app" not in each]
    (pytester.path / "shop.py").write_text(before + "\n".join(code))
    pytester.makepyfile(shop_settings=SETTINGS)
    pytester.makeconftest(CONFTEST)
    pytester.runpytest_subprocess("shop.py").assert_outcomes(passed=passed)
