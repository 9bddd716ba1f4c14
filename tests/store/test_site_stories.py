"""The rules of limits with permits on each host, worker or tag, told as stories (see `tests.store.stories`)."""

from __future__ import annotations

import pytest

from tests.store.stories import Story, stories

#: Limits with permits on each host, worker or tag.
SITES = """
each host has the permits:
    a7: take t1 t2 on=gpu/host:2; a8: take t3 t4 on=gpu/host:2; used = gpu/host=a7 2, gpu/host=a8 2
    a7: ask t5 on=gpu/host:2 = must_park; a7: end t1; a7: take t5 on=gpu/host:2
permits are counted for each worker:
    a7: take t1 on=own/worker:1; a7b: take t2 on=own/worker:1; a7: ask t3 on=own/worker:1 = must_park
a task that waits is started by the host that has room:
    a7: take t1 t2 on=gpu/host:2; a7: park p0 p1 p2 p3 on=gpu/host:2 slots=1 = -; a8: look slots=8 = p0, p1
    used = gpu/host=a7 2, gpu/host=a8 2
all hosts have one line, so a task that comes to a host with room does not start before older tasks:
    a7: take t1 t2 on=gpu/host:2; a7: park p on=gpu/host:2; a8: ask late on=gpu/host:2 = must_park, p
    a8: park late on=gpu/host:2; a7: park later on=gpu/host:2; a7: end t1 slots=1 = late
a task does not start before one that waits for a host and for another limit:
    a7: take t1 t2 on=gpu/host:2; a7: park p on=gpu/host:2+api:1; a8: ask late on=gpu/host:2 = must_park, p
a task goes back in line for any host:
    a7: park t on=gpu/host:2; a7: look = t; used = gpu/host=a7 1; a7: end t again; come_due task
    a8: look = t
    used = gpu/host=a8 1; a8: end t; empty
all hosts have one line, in which no more are parked than may wait:
    a7: take t on=gpu/host:1<1; a7: park p on=gpu/host:1<1; a8: park late on=gpu/host:1<1 = crowded
a worker without the tag takes none:
    a7: ask t on=own/gpu_box:1 = must_park; a7: park t on=own/gpu_box:1 slots=4 = -; box: look = t
    used = own/gpu_box=b1 1
a refused head of one tag does not hold up another:
    a7: take r on=red/red:1; a7: park r2 r3 on=red/red:1; a7: park b on=blue/blue:1; a7: look slots=3 = b
another limit holds up only its own:
    a7: take t on=api:1; a7: park both on=gpu/host:2+api:1; a7: park other on=gpu/host:2; a7: look slots=3 = other
    a7: end t slots=3 = both
a newer task does not take the permits that an older one needs:
    a7: take t on=gpu/host:2; a7: park big on=gpu/host:2 cost=2; a7: park small on=gpu/host:2
    a7: look slots=3 = -; a7: end t slots=3 = big
a task that needs more than is free on its host does not keep others from their start:
    a7: take t on=gpu/host:2; a7: park big on=gpu/host:2 cost=2; a7: park other on=api:1; a7: look slots=1 = other
a task that finds too little free on its host can start on another:
    a7: take x on=api:2 cost=2; a7: park both on=gpu/host:2+api:2 cost=2; a7: look = -; a7: take t on=gpu/host:2
    a7: end x slots=1 = -; a8: look = both
a task whose host is full holds up the next for a moment only:
    wait 0; a7: take x on=api:1; a7: park both on=gpu/host:2+api:1; a7: look = -; a7: take t1 t2 on=gpu/host:2
    a7: park next on=api:1; a7: end x slots=1 = -; wait 0.11; a7: look = next
a permit of a lost worker comes back on its host:
    a7: take t1 t2 on=gpu/host:2; a8: take u1 u2 on=gpu/host:2; a8: park p on=gpu/host:2; expire t1 t2
    a8: look slots=2 = -; used = gpu/host=a8 2; a7b: look slots=2 = p
workers of the site get the hint, as the worker that gave the permit back has no slot:
    a7: take t1 t2 on=gpu/host:2; a7: park p on=gpu/host:2; listen; a7: end t1; hints = site host=a7
another lane of the site is announced to the worker that had no slot more:
    a7: take h1 h2 on=api:2; a7: park t1 on=api:2+gpu/host:1; a7: park t2 on=api:2+disk/host:1
    a7: end h1 h2 slots=1 = t1; more = True; a7: look = t2
a raised limit starts tasks on each site:
    a7: take t1 t2 on=gpu/host:2; a8: take u1 u2 on=gpu/host:2; a7: park p1 p2 p3 on=gpu/host:2; listen
    a7: deploy gpu/host:3; hints = site host; a7: look slots=4 = p1; a8: look slots=4 = p2
"""

#: Several queues at the sites of one limit.
SITE_TURNS = """
the first task in line starts on a host with room, also if another worker of the host has to start it:
    a7: take t on=gpu/host; z7: park x on=gpu/host; a7: park w1 w2 on=gpu/host; listen; a7: end t slots=1 = -
    hints = site host=a7; a7: look = -; z7: look = x; z7: end x slots=1 = -; a7: look = w1
the first task in line gets all the permits of a host that it needs:
    a7: take t1 t2 on=gpu/host:2; z7: park x on=gpu/host:2 cost=2; a7: park w on=gpu/host:2; a7: end t1 slots=1 = -
    a7: end t2 slots=1 = -; z7: look = x; z7: end x; a7: look = w
a queue without workers on a host has a moment there, and then newer tasks start:
    wait 0; a7: take t on=gpu/host; z8: park x on=gpu/host; a7: park w1 w2 w3 on=gpu/host; a7: end t slots=1 = -
    told 1 110; wait 0.09; a7: look = -; wait 0.02; a7: look = w1; a7: end w1 slots=1 = w2
    a8: look = -; wait 0.11; a8: look = w3; a8: end w3; z8: look = x
a queue that was passed over on a host has its turn again when its worker takes a task there:
    wait 0; a7: take t on=gpu/host; z7: park x1 x2 on=gpu/host; a7: park w1 w2 on=gpu/host; a7: end t slots=1 = -
    wait 0.11; a7: look = w1; a7: end w1; z7: look = x1; z7: end x1; a7: look = -; z7: look = x2
a queue that was passed over on a host has its turn again after a minute:
    wait 0; a7: take t on=gpu/host; z7: park x on=gpu/host; a7: park w1 w2 on=gpu/host; a7: end t slots=1 = -
    wait 0.11; a7: look = w1; wait 60.1; renew w1 = renewed; a7: end w1 slots=1 = -; z7: look = x
a moment at a host is void if an older task takes the room:
    wait 0; a7: take t on=gpu/host; z7: park x on=gpu/host; a7: park w on=gpu/host age=1; a7: park w2 on=gpu/host
    a7: end t slots=1 = w; wait 0.2; a7: look = -; a7: end w slots=1 = -; z7: look = x
several queues without workers on a host have their moment together:
    wait 0; a7: take t on=gpu/host; a8: park x1 on=gpu/host queue=q3; a8: park x2 on=gpu/host queue=q4
    a8: park x3 on=gpu/host queue=q5; a7: park w on=gpu/host; a7: end t slots=1 = -; wait 0.11; a7: look = -
    wait 0.11; a7: look = w
a worker that is the site alone does not wait for tasks of other queues:
    a7: take t on=own/worker; z7: park x on=own/worker; a7: park w on=own/worker; a7: end t slots=1 = w
a task that lacks a permit of its host alone is in the line of the host, wherever it became ready:
    a8: take y on=api; z7: park x on=gpu/host+api; z7: look = -; a7: take t on=gpu/host; a7: park w on=gpu/host
    a8: end y; z7: look = -; listen; a7: end t slots=1 = -; hints = site host=a7; z7: look = x
a task that lacks a permit of another limit does not keep the permits of a host from newer tasks:
    a7: take t on=gpu/host; a8: take y on=api; z7: park x on=gpu/host+api; a7: park w1 w2 on=gpu/host
    a7: end t slots=1 = w1; a8: end y; a7: end w1 slots=1 = -; z7: look = x
tasks take turns at a host, over all its lanes:
    a7: take x on=gpu/host~c; a7: park a1 a2 a3 on=gpu/host~a; a7: park b1 b2 on=gpu/host~b+api; a7: serve 4 = aabb
    a7: serve 1 = a
tasks take turns at a host, over all queues:
    a7: take x on=gpu/host~c; a7: park a1 a2 a3 on=gpu/host~a; z7: park b1 on=gpu/host~b; a7: end x slots=1 = a1
    a7: end a1 slots=1 = -; z7: look = b1; z7: end b1; a7: look = a2
"""


@pytest.mark.parametrize("steps", stories(SITES, SITE_TURNS))
def test_a_story_of_limits_with_sites(story: Story, steps: str) -> None:
    story.tell(steps)
