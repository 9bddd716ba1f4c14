"""Every block of code in the README and in docs runs as it is written, and prints the shown output.

A page is one program: its blocks run one after the other, on the suite's server in place of ``redis://localhost``. A
block that makes no app is given one, of its own, so that a page may declare a limit twice. Its tasks are bound at its
end. No worker runs here: the contents of a busy store are put there before (`BUSY`).
"""

from __future__ import annotations

import doctest
import gc
import re
import unittest
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakSet

import celery._state
import pytest
from celery import Celery
from kombu.message import Message
from redis import Redis
from sybil import Document, Example
from sybil.example import SybilFailure
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser
from sybil.region import Lexeme

from celery_throttle import ConfigurationError, Limit
from celery_throttle.embedded import EmbeddedServer
from celery_throttle.store.exchange_reply import Answer
from celery_throttle.store.parcel import pack
from tests.store.terms_caller import TermsCaller, terms
from tests.support.workers import ROOT

PAGES = [str(path.relative_to(ROOT)) for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))]
#: Languages of fences: those that run, and those without code of ours; a drawing has none.
LANGUAGES = {"python", "console", "yaml", "{eval-rst}", ""}
#: Values that differ from run to run: dates and times, ids that end in dots, seconds, fencing tokens.
DIFFERS = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d|\b\d\d:\d\d\b|\b[0-9a-f]{4}\.\.\.|\b\d+(\.\d)?(?= s\b)|\b\d{16}\b"
)

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


class Page:
    """A page, whose blocks run on the server at a URL in place of ``redis://localhost``."""

    def __init__(self, name: str, url: str) -> None:
        parsers = PythonCodeBlockParser(doctest_optionflags=doctest.ELLIPSIS), SkipParser()
        self._document = Document.parse(str(ROOT / name), *parsers)
        self._names = self._document.namespace
        self._names["__name__"] = "shop"  # tasks are named for their module
        self._url = url

    def run(self) -> None:
        """Run all blocks, in order, but for those that the page skips."""
        for example in self._document.examples():
            with suppress(unittest.SkipTest):
                self._run(example)

    def _run(self, example: Example) -> None:
        if isinstance(example.parsed, doctest.Example):
            example.parsed.want = DIFFERS.sub("...", example.parsed.want)
        elif isinstance(example.parsed, Lexeme):
            block = example.parsed
            text = block.replace("redis://localhost", self._url)
            example.parsed = Lexeme(text, block.offset, block.line_offset)
            # Celery gives the tasks of every app to every other one.
            STATE._on_app_finalizers.clear()
            STATE._apps.clear()
            self._names["app"] = Celery("shop", broker=self._url, backend=self._url)
        example.evaluate()
        self._names["app"].finalize(auto=True)


@pytest.fixture(autouse=True)
def _apps_of_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The shared tasks and the current app of a page must not come to other tests."""
    monkeypatch.setattr("celery._state._on_app_finalizers", set())
    monkeypatch.setattr("celery._state._apps", WeakSet())
    monkeypatch.setattr(STATE._tls, "current_app", None)
    yield
    gc.collect()  # results, while their backend is there: each cancels its subscription


@pytest.mark.parametrize("name", PAGES)
def test_the_blocks_of_a_page_run(name: str, server: EmbeddedServer, redis: Redis) -> None:
    worker = TermsCaller(redis, "1a2b3c4d", "celery", lease=60.0, prefix="throttle")
    for limit, task_name, count in BUSY.get(name, ()):
        fill(worker, limit, task_name, count)
    Page(name, server.url).run()


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


APP = "from celery_throttle import Throttled\n@app.task(base=Throttled, limit=-1)\ndef f(): ..."


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("print(1 +)", SyntaxError),
        ("@app.task(base=Throttled)\ndef f(): ...", NameError),
        (APP, ConfigurationError),
        (">>> 1 + 1\n3", SybilFailure),
    ],
)
def test_a_block_that_does_not_work_fails(
    text: str, error: type[Exception], tmp_path: Path, server: EmbeddedServer
) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\n```python\nx = 1\n```\n\n```python\n{text}\n```\n")
    with pytest.raises(error):
        Page(str(page), server.url).run()
