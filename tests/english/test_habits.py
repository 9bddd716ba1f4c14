"""The habits are found where they are, and not in code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.english.habits import findings

MODULE = '''\
"""Whoever asks is told."""

x = "nobody"  # a limit, and what it has


def f():
    """Return the parked tasks. `who` is a name."""
'''


def habits_of(folder: Path, name: str, text: str) -> list[str]:
    path = folder / name
    path.write_text(text, "utf-8")
    return sorted(found.habit for found in findings(path))


def test_comments_and_docstrings_are_read_and_code_is_not(tmp_path: Path) -> None:
    expected = ["a pronoun for a thing", "programs that talk", "what as a noun"]
    assert habits_of(tmp_path, "module.py", MODULE) == expected
    text = "Return the parked tasks of a limit. A worker that stops reports what it has left.\n"
    assert habits_of(tmp_path, "page.md", text) == []


@pytest.mark.parametrize(
    ("text", "habit"),
    [
        ("It goes to somebody else.", "a pronoun for a thing"),
        ("The line, who waits in it.", "who without a noun"),
        ("It depends on what waits.", "what as a noun"),
        ("The worker hears of it.", "programs that talk"),
        (" ".join(["word"] * 31) + ".", "a long sentence"),
    ],
)
def test_each_habit_is_found(tmp_path: Path, text: str, habit: str) -> None:
    assert habits_of(tmp_path, "page.md", text) == [habit]
    assert habits_of(tmp_path, "script.lua", f"-- {text}\nlocal who = 'nobody'\n") == [habit]
