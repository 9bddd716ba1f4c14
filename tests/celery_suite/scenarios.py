"""The runs: the tests, their workers, and how much their tasks are throttled."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FILES", "KINDS", "PLAIN", "SCENARIOS", "SLICE", "SLICE_TESTS", "Kind", "Scenario"]

#: Those that need nothing but Redis; `test_backend.py` needs Azure, against its name. Missing ones of the installed
#: Celery are left out.
FILES = (
    "test_canvas.py",
    "test_group_chains.py",
    "test_tasks.py",
    "test_redis_backend.py",
    "test_inspect.py",
    "test_security.py",
)


@dataclass(frozen=True, slots=True)
class Kind:
    """How much every task is throttled: by one limit that all of them share, or not at all."""

    name: str
    limit: int | None


PLAIN = Kind("plain", None)
#: The first is never reached; the second is by any two tasks that run for a moment.
KINDS = (Kind("limit 1000", 1000), Kind("limit 2", 2))


@dataclass(frozen=True, slots=True)
class Scenario:
    """A worker, and when it acknowledges."""

    own_process: bool
    slots: int
    late: bool

    @property
    def name(self) -> str:
        """As it is printed, and named in the list of known differences."""
        where = "a process" if self.own_process else "in-process"
        return f"{where}, {self.slots} slot{'s' if self.slots > 1 else ''}, {'late' if self.late else 'early'}"

    def kinds(self) -> tuple[Kind, ...]:
        """Those that can make a difference: a limit of 2 never has a task wait where there is but one slot."""
        return KINDS if self.slots > 1 else KINDS[:1]


SCENARIOS = tuple(
    Scenario(own_process, slots, late)
    for own_process, slots in ((False, 1), (False, 4), (True, 4))
    for late in (False, True)
)
#: Some of the workers, and some of the tests, as pytest's ``-k``.
SLICE = (Scenario(own_process=False, slots=4, late=False), Scenario(own_process=True, slots=4, late=True))
SLICE_TESTS = (
    "(replace or retried or retries or reject or stamps or link_option or time_limits or test_basic or priority "
    "or test_fail or simple_canvas or True-True-True or pending_chord or large_group_pipeline) "
    "and not (callback or with_errback or header_link "
    # These depend on which process is faster, also without us.
    "or body_chain_child or nesting_)"
)
