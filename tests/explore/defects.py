"""Defects of the scripts, each a line that is changed, and a world in which the search finds it."""

from __future__ import annotations

from tests.explore.store import Defect

__all__ = ["DEFECTS"]

DEFECTS = {
    Defect("a lock is not given back", "    drop_lock(identity)\n", ""): "once/2",
    Defect(
        "a renewal brings back what has ended",
        " or load_worker(id_of(report.worker)).number > report.number",
    ): "plain/2:late-renewal",
    Defect(
        "a call of a connection that is gone counts",
        "if before.number > state.call then return",
        "if false then return",
    ): "plain/2:store",
    Defect(
        "nobody knows that a task has run",
        "if only_told or is_over then finish(task, record, message == 'broker') end",
    ): "plain/2:broker",
    Defect("who waits to run next is forgotten", "    wake_next(identity)\n  else", "  else"): "once/2/keep_last/gpu",
    Defect("there is always room", "return rule.permits - rule.used >= ", "return 1 or "): "plain/2",
    Defect(
        "an ended run keeps its lease", "  redis.call('ZREM', LEASES, task)\n  if not began then", "  if not began then"
    ): "plain/2",
    Defect(
        "the sum of all keys keeps what has ended",
        "  add_sum(what, limit, by - math.min(count, 0))",
        "  add_sum(what, limit, math.max(by, 0))",
    ): "keys/2",
}
