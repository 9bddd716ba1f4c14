"""The differences that are known, each with its reason. One that is not here, or no longer occurs, is an error."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LISTED", "Known"]


@dataclass(frozen=True, slots=True)
class Known:
    """A test that ends otherwise if its tasks are throttled.

    Attributes:
        test: file, class, name and parameters, as they are printed.
        where: on which workers, under which limit, as it is printed; ``*`` stands for anything.
        reason: why it may.
    """

    test: str
    where: str
    reason: str


#: `self.replace` gives the last task of what comes instead the id and the attempt of the task that it replaces.
_REPLACED = (
    "defect: after a task was parked and ran, another of its id and attempt is dropped as if the broker delivered it "
    "again (tests/workers/test_messages.py, test_a_parked_task_is_replaced_by_a_chain)"
)

LISTED = (
    Known("test_canvas.py::test_group::test_task_replace_with_group_preserves_group_order", "*, limit 2", _REPLACED),
    Known("test_canvas.py::test_chord::test_replaced_nested_chord", "*, limit 2", _REPLACED),
    # Each replacement comes while the task before it still holds its permit, so it waits, under any limit.
    Known("test_tasks.py::test_task_replacement::test_replaced_task_nesting_increments[3]", "*, 4 slots, *", _REPLACED),
)
