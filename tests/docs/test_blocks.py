"""Every block of code in the README and in docs runs as it is written, and prints the shown output.

Each page is pasted alone, by a `Reader`: what the page has is all that there is, but for the suite's server in place of
``redis://localhost``. No worker runs here: the contents of a busy store are put there before (`BUSY`).
"""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from weakref import WeakSet

import celery._state
import pytest
from kombu.message import Message
from redis import Redis
from sybil.example import SybilFailure

from celery_throttle import ConfigurationError, Limit
from celery_throttle.embedded import EmbeddedServer
from celery_throttle.store.exchange_reply import Answer
from celery_throttle.store.parcel import pack
from tests.docs.reader import Reader, file_of, needs_file
from tests.store.terms_caller import TermsCaller, terms
from tests.support.workers import ROOT

PAGES = [str(path.relative_to(ROOT)) for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))]
#: Languages of fences: those that run, and those without code of ours; a drawing has none.
LANGUAGES = {"python", "console", "yaml", "{eval-rst}", ""}
#: The state that Celery keeps of all apps of the process.
STATE: Any = celery._state
#: The store in use that pages show: a limit, the name of a task, and how many of it have arrived.
BUSY: dict[str, list[tuple[Limit, str, int]]] = {
    "docs/reference/control.md": [(Limit("api", 8), "sync", 20), (Limit("tenant", 2, key="tenant"), "call", 3)],
}


def fill(worker: TermsCaller, limit: Limit, task_name: str, count: int) -> None:
    """Let tasks arrive at a worker: as many as may hold permits, the others are parked."""
    needs = terms(limit).needs({"keys": {limit.name: "acme"}})
    message = pack(Message("[[], {}, {}]", headers={"task": f"shop.{task_name}"}, content_type="application/json"))
    for number in range(count):
        task = f"{number:x}f0c{limit.name}"
        if worker.ask(task, needs)[0] != Answer.GRANTED:
            worker.put(task, needs, message=message)


@pytest.fixture(autouse=True)
def _apps_and_folder_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """The shared tasks, the current app and the files of a page must not come to other tests."""
    monkeypatch.setattr("celery._state._on_app_finalizers", set())
    monkeypatch.setattr("celery._state._apps", WeakSet())
    monkeypatch.setattr(STATE._tls, "current_app", None)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    gc.collect()  # results, while their backend is there: each cancels its subscription


def blocks_of(name: str) -> list[str]:
    return re.findall(r"^ *```python\n(.*?)^ *```", (ROOT / name).read_text(), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.timeout(600)  # pages with tests
@pytest.mark.parametrize("name", PAGES)
def test_a_pasted_page_works(name: str, server: EmbeddedServer, redis: Redis, tmp_path: Path) -> None:
    worker = TermsCaller(redis, "1a2b3c4d", "celery", lease=60.0, prefix="throttle")
    for limit, task_name, count in BUSY.get(name, ()):
        fill(worker, limit, task_name, count)
    Reader(ROOT / name, server.url, tmp_path).paste()


@pytest.mark.parametrize("name", PAGES)
def test_a_block_with_an_app_a_task_or_a_test_names_its_file(name: str) -> None:
    assert [each for each in blocks_of(name) if needs_file(each) and file_of(each) is None] == []


def test_recipes_are_short() -> None:
    recipes = [each for each in blocks_of("docs/howto/test-limits.md") if "def test_" in each]
    assert len(recipes) == 10
    assert max(len(each.splitlines()) for each in recipes) <= 15


@pytest.mark.parametrize("name", PAGES)
def test_every_block_names_its_language(name: str) -> None:
    """Without its language a block would not run, unnoticed."""
    fences = re.findall(r"^ *```(.*)$", (ROOT / name).read_text(), flags=re.MULTILINE)
    assert len(fences) % 2 == 0
    assert set(fences) <= LANGUAGES
    assert set(fences[1::2]) <= {""}


@pytest.mark.parametrize("name", [*PAGES, "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md", "tests/README.md"])
def test_every_link_leads_to_a_file_and_a_heading(name: str) -> None:
    for link in re.findall(r"\]\((?!http)([^)]+)\)", (ROOT / name).read_text()):
        target, _, anchor = link.partition("#")
        path = (ROOT / name).parent / target if target else ROOT / name
        assert path.exists(), link
        headings = re.findall(r"^#+ (.+)$", path.read_text(), flags=re.MULTILINE) if anchor else []
        anchors = {re.sub(r"[^\w -]", "", each).strip().lower().replace(" ", "-") for each in headings}
        assert not anchor or anchor in anchors, link


APP = """# shop.py
from celery import Celery
from celery_throttle import Throttled

app = Celery("shop", broker="redis://localhost", backend="redis://localhost")

@app.task(base=Throttled, limit=LIMIT)
def charge(order_id):
    return order_id
"""
CONFTEST = """# conftest.py
import pytest

@pytest.fixture
def throttle_celery_app():
    from shop import app
    return app
"""
TEST = """# test_shop.py
from shop import charge

def test_a_charge(throttle, throttle_worker):
    assert charge.delay(17).get(timeout=5) == 17
"""
DJANGO = """# tests.py
from django.test import TestCase
from shop import app

class ShopTest(TestCase):
    def test_app(self):
        assert app.main == "shop"
"""
GOOD = APP.replace("LIMIT", "1")


def paste(tmp_path: Path, url: str, *blocks: str) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n" + "\n\n".join(f"```python\n{each.rstrip()}\n```" for each in blocks) + "\n")
    Reader(page, url, tmp_path).paste()


@pytest.mark.timeout(600)
def test_blocks_of_files_and_of_a_shell_work_together(server: EmbeddedServer, tmp_path: Path) -> None:
    typed = ">>> from shop import ship\n>>> ship.name\n'shop.ship'\n"
    added = "# shop.py\n@app.task\ndef ship(): charge.delay(1)\n"
    paste(tmp_path, server.url, GOOD, added, typed, CONFTEST, TEST, DJANGO)


def test_a_file_begins_again(server: EmbeddedServer, tmp_path: Path) -> None:
    again = "# shop.py, instead\nfrom celery import Celery\n\napp = Celery('shop')\n"
    paste(tmp_path, server.url, GOOD, again, "import shop\nassert not hasattr(shop, 'charge')\n")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("blocks", "error"),
    [
        (["print(1 +)"], SyntaxError),
        (["# tasks.py\n@app.task\ndef f(): ..."], NameError),
        ([GOOD, "app.finalize()"], NameError),
        ([GOOD, "# more.py\ndef view():\n    return charge.delay(1)"], NameError),
        (["def view():\n    return charge.delay(1)"], NameError),
        ([APP.replace("LIMIT", "-1")], ConfigurationError),
        ([">>> 1 + 1\n3"], SybilFailure),
        ([GOOD, CONFTEST, TEST.replace("from shop import charge", "")], AssertionError),
        ([GOOD, TEST], AssertionError),
        ([GOOD, CONFTEST, TEST, TEST], AssertionError),  # the second hides the first
        ([GOOD, DJANGO.replace('"shop"', '"mail"')], AssertionError),
        (["# shop.py, instead\nx = 1"], AssertionError),
    ],
)
def test_a_page_that_does_not_work_fails(
    blocks: list[str], error: type[Exception], tmp_path: Path, server: EmbeddedServer
) -> None:
    with pytest.raises(error):
        paste(tmp_path, server.url, *blocks)
