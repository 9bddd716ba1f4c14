"""The mutants themselves. None is judged here: that takes minutes."""

from __future__ import annotations

from collections import Counter

import pytest

from celery_throttle.store.gate_script import gate_scripts
from tests.mutants.mutations import JUDGED, mutants, mutants_of

TEXT = """\
-- A subject.
local MOST = 8

local function first(task)
  local found = look(task)
  if not found then return nil end
  state.found = found
  redis.call('HDEL', RECORDS, task) -- it has gone
  write({
    task = task,
  })
  repeat go_on() until found
  return found
end
"""


def test_statements_go_and_conditions_are_inverted() -> None:
    assert [(each.line, each.what, each.after.strip()) for each in mutants_of("it", TEXT)] == [
        (6, "inverted", "if not (not found) then return nil end"),
        (7, "without", ""),
        (8, "without", ""),
    ]


def test_all_shared_files_have_some_and_each_judged_line_once() -> None:
    found = mutants()
    assert len({str(each) for each in found}) == len(found)
    assert len(found) > 20 * len({each.file for each in found}) / 2
    assert "exchange" in gate_scripts()
    keys = Counter(each.key for each in found)
    assert {each: keys[each] for each in JUDGED} == dict.fromkeys(JUDGED, 1)


def test_a_mutant_of_another_text_is_refused() -> None:
    (mutant, *_) = mutants_of("it", TEXT)
    with pytest.raises(ValueError, match=r"it.lua:6 inverted: .*: the file has another line there"):
        mutant.applied(TEXT.replace("not found", "found"))
    assert "if not (not found) then" in mutant.applied(TEXT)
