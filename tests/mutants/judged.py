"""Mutants that change nothing that can be seen from outside the scripts, and why. A new one is judged by hand."""

from __future__ import annotations

__all__ = ["JUDGED"]

#: By file and line, without the space before it.
JUDGED: dict[tuple[str, str], str] = {
    ("needs", "state.needs[text] = needs"): "a text is read once more, to the same needs, and only that takes longer",
    ("next_starts", "state.oldest[section] = found"): "it is read once more, to the same, and only that takes longer",
    (
        "starts",
        "if state.adds_ends then reap_ends(4) end",
    ): "inverted, the other calls clear some: only their cost changes",
}
