"""Turns: whoever waits on a limit with turns has one, also beside other limits, told as stories."""

from __future__ import annotations

from collections import Counter

import pytest

from celery_throttle.core.limits import Limit
from celery_throttle.store.exchange import Arrival
from celery_throttle.store.exchange_reply import Grant
from tests.store.stories import Story, stories
from tests.store.terms_caller import TermsCaller, terms

TURNLESS = """
a caller outside of tasks waits for one round, not for the end of the line:
    take x on=api~x; arrive a1 a2 on=api~a = -; park o1 outside wait_ms=60000 on=api~; arrive a3 a4 on=api~a = -
    end x slots=1 = a1; end a1 slots=1 = o1; end o1 slots=1 = a2; end a2 slots=1 = a3; end a3 slots=1 = a4
a task of a worker that does not know of the turns waits for one round, too:
    take x on=api~x; arrive a1 a2 on=api~a = -; arrive o1 o2 on=api~ = -; arrive a3 on=api~a = -
    end x slots=1 = a1; end a1 slots=1 = o1; end o1 slots=1 = a2; end a2 slots=1 = o2; end o2 slots=1 = a3
tasks without a turn take turns as one key, and have no more than another key:
    take x on=api~x; arrive o1 o2 o3 on=api~ = -; arrive a1 a2 on=api~a = -; end x slots=1 = o1; end o1 slots=1 = a1
    end a1 slots=1 = o2; end o2 slots=1 = a2; end a2 slots=1 = o3
a task without a turn that raised RateLimited goes before all others:
    take o1 on=api~; arrive a1 on=api~a = -; send_back o1; look = o1
a task without a turn that goes back to its own place keeps it [return | lost]:
    wait 0; take x on=api~x; arrive o1 on=api~ = -; arrive a1 a2 on=api~a = -; end x slots=1 = o1; end o1 *
    wait 2; look = o1
a task without a turn that was rejected stands behind the others of its round:
    take x on=api~x; arrive o1 on=api~ = -; arrive a1 on=api~a = -; end x slots=1 = o1
    arrive a2 on=api~a = -; end o1 requeue slots=1 = a1
a task that waited for a lock has a turn when it waits for permits:
    take x on=api~x; take o0@one; arrive o1@one keep_last on=api~ = -; arrive a1 a2 a3 on=api~a = -; end o0
    end x slots=1 = a1; end a1 slots=1 = o1 run
the turns of a limit count at its own bucket only:
    take x on=api~x; take g on=gpu; arrive a1 a2 on=api~a = -; arrive o1 on=api~+gpu = -; arrive p1 on=gpu = -
    end g slots=1 = p1; end p1; end x slots=1 = a1; end a1 slots=1 = o1; end o1 slots=1 = a2
a task that costs more than others has one turn:
    take x1 x2 on=api:2~x; arrive a1 a2 a3 on=api:2~a = -; arrive o1 on=api:2~ cost=2 = -; end x1 slots=1 = a1
    end x2 slots=1 = -; end a1 slots=1 = o1; end o1 slots=2 = a2, a3
each site of a limit has the turns of the limit:
    a7: take x on=gpu/host~x; a7: arrive a1 a2 on=gpu/host~a = -; a7: arrive o1 on=gpu/host~ = -
    a7: end x slots=1 = a1; a7: end a1 slots=1 = o1
"""

BARS = """
a task that goes first on its limits does so in the order of turns:
    take x on=api~x; take g on=gpu; park a1 on=api~a; park elder on=api~a+gpu; moved elder 7; end x slots=1 = a1
    end a1 slots=1 = -; moves elder = 8; park c1 c2 c3 on=api~c; look = c1; end g slots=1 = -; end c1 slots=1 = c2
    end c2 slots=1 = elder; bars = -; end elder slots=1 = c3
"""


@pytest.mark.parametrize("steps", stories(TURNLESS, BARS))
def test_a_story_of_turns(story: Story, steps: str) -> None:
    story.tell(steps)


@pytest.mark.parametrize("weights", [{"a": 3}, {"a": 6, "b": 2}])
def test_tasks_without_a_turn_have_the_weight_of_a_key_without_one(
    worker: TermsCaller, weights: dict[str, int]
) -> None:
    limit = Limit("api", 1, fair_by="who", weights=weights)
    needs = {who: terms(limit).needs({"fair": [who, limit.step(who)]}) for who in "abc"}
    run: Arrival | Grant = worker.take("x", needs["c"])
    for number in range(20):
        for who in "ab":
            worker.put(f"{who}{number}", needs[who])
        worker.exchange(0, parked=[worker.parcel(f"o{number}", needs["c"], outside=True)._replace(turn=None)])
    ran: Counter[str] = Counter()
    for _ in range(2 + sum(weights.values()) - len(weights) + 1):
        (run,) = worker.release(run, slots=1).grants
        ran[run.task[0]] += 1
    assert ran["o"] == 1
    assert ran["a"] >= weights["a"] - 1
