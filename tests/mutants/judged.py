"""Mutants that change nothing that can be seen from outside the scripts, and why. A new one is judged by hand."""

from __future__ import annotations

__all__ = ["JUDGED"]

#: By file and line, without the space before it.
JUDGED: dict[tuple[str, str], str] = {
    (
        "grants",
        "state.packed[task] = packed_record(task) -- nothing changes it any more in this call",
    ): "it saves encoding the record once more, to the same text",
}
