"""``python -m tests.matrix``: what it returns when rows pass, fail or are skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.matrix import __main__ as matrix
from tests.matrix.cells import Outcome, Row, Versions


@pytest.mark.parametrize(
    ("here", "failed", "code"),
    [("3.12", (), 0), ("3.12", ("t",), 1), ("", (), 2), ("3.11", ("t",), 1), ("3.11", (), 2)],
    ids=["all passed", "one failed", "all skipped", "one failed, one skipped", "one passed, one skipped"],
)
def test_return_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: str, failed: tuple[str, ...], code: int
) -> None:
    """A row that did not run does not count as one that passed."""
    versions = Versions("3.12.1", "5.6.0", "5.6.0", "6.0.0", "server")
    monkeypatch.setattr(Row, "possible", property(lambda row: here and row.python <= here))
    monkeypatch.setattr(matrix, "_outcomes", lambda _: (versions, [Outcome(3, 0, failed)]))
    page = tmp_path / "matrix.md"
    assert matrix.main(["3.11-5.6", "3.12-5.6", "--page", str(page)]) == code
    assert page.exists() == bool(here)
