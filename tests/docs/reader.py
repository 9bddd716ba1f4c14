"""A reader of a page: pastes each of its blocks where the block belongs, in an empty folder, and runs its tests.

A block whose first line is a comment with a file name, ``# shop.py``, goes on with that file, which is imported as a
module. ``# shop.py, instead`` begins the file again. Every other block is typed into a shell in that folder. Files of
tests are run by pytest, and ``tests.py`` by Django.
"""

from __future__ import annotations

import builtins
import dis
import doctest
import importlib
import os
import re
import subprocess
import sys
import unittest
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import celery._state
from celery import Celery
from sybil import Document, Example
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser
from sybil.region import Lexeme

__all__ = ["Reader", "file_of", "needs_file"]

#: Values that differ from run to run: dates and times, ids that end in dots, seconds, fencing tokens.
DIFFERS = re.compile(
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d|\b\d\d:\d\d\b|\b[0-9a-f]{4}\.\.\.|\b\d+(\.\d)?(?= s\b)|\b\d{16}\b"
)
FILE = re.compile(r"# (\w+\.py)(, instead)?\n")
#: An app, a task, a test or a fixture: they are written into a file.
NEEDS_FILE = re.compile(r"= Celery\(|^@.*\btask\b|^ *(?:async )?def test_|^@pytest\.fixture", re.MULTILINE)
#: The settings of the Django project into which a reader pastes ``tests.py``.
DJANGO = """SECRET_KEY = "a test"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
"""
#: The state that Celery keeps of all apps of the process.
STATE: Any = celery._state


def file_of(block: str) -> str | None:
    """Return the name of the file that a block is a part of, None for a block of the shell."""
    found = FILE.match(block)
    return found[1] if found else None


def needs_file(block: str) -> bool:
    """Return whether a block has a part that a reader writes into a file."""
    return bool(NEEDS_FILE.search(block))


class Reader:
    """A reader of one page.

    Args:
        page: path of the page.
        url: the server in place of ``redis://localhost``.
        folder: the folder in which the reader works; the process is in it, and imports from it.
    """

    def __init__(self, page: Path, url: str, folder: Path) -> None:
        parsers = PythonCodeBlockParser(doctest_optionflags=doctest.ELLIPSIS), SkipParser()
        self._document = Document.parse(str(page), *parsers)
        self._url, self._folder = url, folder
        self._shell = self._document.namespace
        self._shell["__name__"] = "__main__"
        self._typed: list[str] = []
        self._modules: dict[str, ModuleType] = {}

    def paste(self) -> None:
        """Paste all blocks, in order, but for those that the page skips; then run the tests of the page."""
        others = list(STATE._apps)
        STATE._apps.clear()  # Celery would give them the shared tasks of the page, whose names may be the same
        try:
            for example in self._document.examples():
                with suppress(unittest.SkipTest):
                    self._paste(example)
            self._check_names()
            self._run_tests()
        finally:
            self._forget_modules()
            STATE._apps.update(others)

    def _paste(self, example: Example) -> None:
        if isinstance(example.parsed, doctest.Example):
            example.parsed.want = DIFFERS.sub("...", example.parsed.want)
        elif isinstance(block := example.parsed, Lexeme):
            text = block.replace("redis://localhost", self._url)
            if found := FILE.match(text):
                self._write(found[1], text, anew=found[2] is not None)
                return
            example.parsed = Lexeme(text, block.offset, block.line_offset)
            self._typed.append(text)
        example.evaluate()

    def _write(self, file: str, text: str, *, anew: bool) -> None:
        """Write a block into a file, and run it as a part of its module, if it is no file of tests."""
        path, name = self._folder / file, file.removesuffix(".py")
        if anew:  # in a process of its own
            assert path.exists(), f"no block of {file} above"
            self._forget_modules()
            STATE._on_app_finalizers.clear()  # Celery gives the tasks of every app to every other one
            path.unlink()
        before = path.read_text() + "\n\n" if path.exists() else ""
        path.write_text(before + text)
        if _is_of_tests(file):
            return
        if name in self._modules:
            lines = "\n" * before.count("\n")
            exec(compile(lines + text, path, "exec"), vars(self._modules[name]))
        else:
            self._import(name)
        for module in self._modules.values():
            for app in vars(module).values():
                if issubclass(type(app), Celery):  # isinstance would look for a shared task in the current app
                    app.finalize(auto=True)  # binds the tasks

    def _import(self, name: str) -> ModuleType:
        importlib.invalidate_caches()
        module = self._modules[name] = importlib.import_module(name)
        assert module.__file__ == str(self._folder / f"{name}.py")
        return module

    def _forget_modules(self) -> None:
        for name in self._modules:
            sys.modules.pop(name, None)
        self._modules.clear()
        STATE._apps.clear()  # those of the page: Celery would give them the shared tasks that are imported again

    def _check_names(self) -> None:
        """Raise NameError for a function that uses a name which its file, or the shell, does not have."""
        for path in self._folder.glob("*.py"):
            if not _is_of_tests(path.name):
                _check_names(path.name, path.read_text(), vars(self._import(path.stem)))
        _check_names("the shell", "\n".join(self._typed), self._shell)

    def _run_tests(self) -> None:
        files = [path for path in self._folder.glob("*.py") if _is_of_tests(path.name) and path.name != "conftest.py"]
        by_pytest = [path for path in files if path.name != "tests.py"]
        environment = os.environ | {"THROTTLE_TEST_URL": self._url}
        if by_pytest:
            pytest = Path(sys.executable).with_name("pytest")
            output = self._run([str(pytest), "--strict-markers"], environment)
            assert f" {sum(map(_count, by_pytest))} passed" in output.splitlines()[-1], output
        if len(files) > len(by_pytest):
            (self._folder / "project.py").write_text(DJANGO)
            output = self._run(
                [sys.executable, "-m", "django", "test", "tests"], environment | {"DJANGO_SETTINGS_MODULE": "project"}
            )
            assert f"Ran {_count(self._folder / 'tests.py')} test" in output, output

    def _run(self, command: list[str], environment: dict[str, str]) -> str:
        done = subprocess.run(
            command, cwd=self._folder, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        output = done.stdout + done.stderr
        assert done.returncode == 0, output
        return output


def _is_of_tests(file: str) -> bool:
    return file.startswith("test") or file == "conftest.py"


def _count(path: Path) -> int:
    return len(re.findall(r"^ *(?:async )?def test_", path.read_text(), flags=re.MULTILINE))


def _check_names(where: str, text: str, namespace: dict[str, Any]) -> None:
    for code in _functions(compile(text, where, "exec")):
        for each in dis.get_instructions(code):
            name = each.argval
            if each.opname == "LOAD_GLOBAL" and name not in namespace and not hasattr(builtins, name):
                raise NameError(f"name {name!r} is not defined in {where}, in {code.co_name}()")


def _functions(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _functions(each)
