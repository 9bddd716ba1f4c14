"""Limits by key, several at once, rates, costs, deadlines, and what operators do with them, told as stories."""

from __future__ import annotations

import pytest

from tests.store.stories import Story, stories

SEVERAL = """
each key has its own permits and its own line, and is not declared by itself:
    arrive a1 a2 on=tenant[a]:1 = a1; arrive b1 b2 on=tenant[b]:1 = b1; used = tenant/a 1, tenant/b 1
    end a1 slots=2 = a2; stored limits = tenant
a key may be the name of another limit, and one name may begin with another:
    take t1 on=api[x]:1; take t2 on=apix:1; take t3 on=x:1; ask t4 on=api[x]:1 = must_park
a task takes all permits or none:
    arrive a1 a2 a3 on=api:3+tenant[a]:2 = a1 a2; used = api 2, tenant/a 2; lines = tenant/a a3
a flooding tenant blocks no other on the shared limit:
    arrive a0 a1 a2 a3 a4 a5 a6 a7 a8 on=api:3+tenant[a]:2 = a0 a1; arrive b1 on=api:3+tenant[b]:2 = b1
    used = api 3, tenant/a 2, tenant/b 1
a crowd on the shared limit makes way, and keeps its order:
    take c0 c1 c2 on=api:3; arrive a0 a1 a2 a3 a4 a5 on=api:3+tenant[a]:2 = -; arrive b1 on=api:3+tenant[b]:2 = -
    end c0 slots=9 = a0; end c1 slots=9 = a1; end c2 slots=9 = b1; used = api 3, tenant/a 2, tenant/b 1
    lines = tenant/a a2 a3 a4 a5
a line does not go to a full limit as a whole:
    arrive a0 a1 a2 a3 a4 a5 a6 a7 on=api:3+tenant[a]:2 = a0 a1; arrive c1 on=api:3 = c1; park c2 on=api:3; end a0
    look = a2; lines = api c2, tenant/a a3 a4 a5 a6 a7
a holder that is back after a flush counts on every limit:
    take a1 on=api:3+tenant[a]:2; flush; renew a1 = put back; used = api 1, tenant/a 1; rejoin; end a1
    empty
a lost worker frees every limit:
    peer: take a1 a2 on=api:3+tenant[a]:2; arrive a3 on=api:3+tenant[a]:2 = -; expire a1; look = a3
    used = api 2, tenant/a 2
"""

DECLARED = """
the newest number holds, as the worker that starts last has the newest code:
    deploy gpu:2; deploy gpu2:7; peer: deploy gpu:5; deploy gpu:1; in_force gpu = 1; in_force gpu2 = 7
a caller that keeps earlier declarations, as a process with permits outside of tasks, declares only new limits:
    deploy gpu:2; peer: take t on=gpu:9+new:3; in_force gpu = 2; in_force new = 3
"""

COSTS = """
a cost takes that many permits:
    take big on=gpu:4 cost=3; arrive s1 s2 on=gpu:4 = s1; used = gpu 4; end big slots=5 = s2; used = gpu 2
one that needs many is not overtaken:
    take s0 s1 s2 s3 on=gpu:4; arrive big on=gpu:4 cost=4 = -; arrive s9 on=gpu:4 = -
    end s0 slots=5 = -; end s1 slots=5 = -; end s2 slots=5 = -; end s3 slots=5 = big
one that needs many is not overtaken by another queue, and is not offered what it cannot take:
    stranger: take s0 s1 s2 s3 on=gpu:4; arrive big on=gpu:4 cost=2 = -; stranger: park l0 l1 l2 l3 l4 on=gpu:4
    stranger: end s0 slots=5 = -; offered = -; stranger: arrive last on=gpu:4 = -; stranger: end s1 slots=5 = -
    offered = 2:gpu q; look = big; used = gpu 4
one that needs more than there are runs alone:
    take s on=gpu:2; arrive big on=gpu:2 cost=5 = -; end s slots=1 = big; used = gpu 5
one that changes lines in a look is not overtaken there:
    take l0 l1 on=left:2; take r0 r1 r2 on=right:3; park big on=left:2+right:3 cost=2; park small on=right:3
    lines = left big, right small; expire l0 l1 r0; look slots=5 = -; lines = right big small
"""

TURNS = """
keys take turns, and none is left idle:
    take x on=api:1~a; park a0 a1 a2 a3 a4 a5 on=api:1~a; park b0 b1 b2 on=api:1~b; park c0 on=api:1~c
    serve 3 = abc; serve 4 = aabb; serve 3 = aaa
one that is to come again has the next turn of its key, not behind all others:
    take x on=api:1~c; park a0 on=api:1~a; park b0 b1 b2 b3 on=api:1~b; end x slots=1 = a0
    end a0 requeue slots=1 = b0; come_due task; serve 2 = ab; serve 2 = bb
an absent key saves no turns up:
    take x on=api:1~a; park a0 a1 a2 a3 a4 a5 a6 a7 a8 a9 on=api:1~a; serve 6 = aaaaaa
    park b0 b1 b2 b3 on=api:1~b; serve 6 = aaabbb
the order of turns lasts as long as a task waits, also for hours as in a pause:
    wait 0; take x on=api:1~a; park a0 a1 a2 on=api:1~a; wait 3601; renew x = renewed; reap; turns = api api/a
    park b0 on=api:1~b; serve 2 = ab; serve 2 = aa; end a2; wait 3601; reap; turns = -
turns that are over go also while tasks wait:
    wait 0; take x on=api:1~c; park a0 on=api:1~a; park b0 b1 b2 on=api:1~b; end x slots=1 = a0; end a0 slots=1 = b0
    end b0 slots=1 = b1; turns = api api/a api/b; wait 3601; renew b1 = renewed; reap; turns = api api/b
a newer attempt of a task before all others takes no turn:
    take t on=api:1~a; send_back t; park b on=api:1~b; park t on=api:1~a attempt=1; look = t#1
    end t slots=1 = b; turns = api api/b
"""

RATES = """
a booking ends by itself:
    wait 0; take m1 on=mail@20/s; end m1; stored rates = mail; wait 1; reap; stored rates = -
a task that takes more than the burst starts, and those after it wait for as long:
    wait 0; ask a on=mail@20/s^2 cost=3 = granted; ask b on=mail@20/s^2 = must_park; wait 0.1
    ask b on=mail@20/s^2 = granted
bookings move with a clock that was set back, once:
    wait 0; take m1 on=mail@1/s; wait -5; ask m2 on=mail@1/s = must_park; ask m2 on=mail@1/s = must_park
starts come as the rate allows:
    wait 0; arrive m0 m1 m2 m3 on=mail@20/s^2 = m0 m1; look slots=9 = -
    wait 0.049; look slots=9 = -; wait 0.001; look slots=9 = m2; look_when_told 50 60 = m3; used = mail 4
a rate counts starts and nothing else, such as one that is refused, withdrawn or renewed:
    arrive m1 m2 on=mail:1@1/d^3 = m1; withdraw m2; renew m1 = renewed; end m1; arrive m3 on=mail:1@1/d^3 = m3; end m3
    arrive m4 on=mail:1@1/d^3 = m4; end m4; arrive m5 on=mail:1@1/d^3 = -
a cost is that many starts:
    arrive m1 on=mail@1/d^5 cost=4 = m1; arrive m2 on=mail@1/d^5 cost=2 = -
each key has its own starts, and of several rates each holds:
    wait 0; arrive a1 on=mail[a]@1/s,1/d^1,2 = a1; arrive b1 on=mail[b]@1/s,1/d^1,2 = b1
    arrive a2 on=mail[a]@1/s,1/d^1,2 = -; wait 1; look slots=9 = a2; arrive a3 on=mail[a]@1/s,1/d^1,2 = -
    look slots=9 = -; told 10000 600000
a task of a rate and a limit waits for both:
    wait 0; arrive a1 on=tenant[a]:1+mail@20/s = a1; arrive b1 on=tenant[b]:1+mail@20/s = -
    arrive a2 on=tenant[a]:1+mail@20/s = -; lines = mail b1, tenant/a a2; wait 0.05; look slots=9 = b1
a start that was not made is free again, unless later starts have relied on it:
    take m1 on=mail@1/d^2; take n0 on=mail@1/d^2; end n0 never; take n1 on=mail@1/d^2; end n1 return
    take n2 on=mail@1/d^2; end n2 never; take m2 on=mail@1/d^2; arrive m3 on=mail@1/d^2 = -
    end m1 never; look slots=9 = -; end m2; look slots=9 = -
a start that was not made counts on no limit:
    take m1 on=who[a]:1+mail@1/d+hour@1/h; end m1 never; used = -; take m2 on=who[a]:1+mail@1/d+hour@1/h
"""

WAITING = """
a task past its deadline gets that outcome:
    wait 0; take g1; park g2 deadline=0.05; park g3; look = -; wait 0.051; look = g2 expired; used = gpu 1
    end g1 slots=1 = g3
a newer attempt has a deadline of its own:
    take t; park t1 deadline=60; come_due task t1; look slots=0; park t1 attempt=1 deadline=60; end t slots=1 = t1#1
parking with a deadline returns a time to look:
    wait 0; take g1; park g2 deadline=0.5; look_when_told 500 600 = g2 expired
one that starts in time has no deadline any more:
    take g1; park g2 deadline=600; due task = g2; end g1 slots=1 = g2; due task = -; look = -
one that is returned unstarted may wait for no longer:
    wait 0; park g deadline=100; wait 60; look = g; end g return; due task = g; wait 41; look = g expired
one that began in time and comes again has no deadline any more:
    park g deadline=600 slots=1 = g; end g again; come_due task; look slots=0; due task = -
a deadline counts from when the task came to its worker:
    wait 0; take g1; park g2 deadline=3 age=5; park g3 deadline=9 age=5; look = g2 expired; wait 4.1; look = g3 expired
another delivery of a parked task does not begin its deadline anew:
    wait 0; take g; park t deadline=100; wait 60; peer: park t deadline=100; wait 41; look = t expired
one that has expired leaves its line before its turn, and does not count as parked:
    wait 0; take g1 on=gpu:1<1; park g2 on=gpu:1<1 expires_ms=500; park g3 on=gpu:1<1 = crowded; wait 0.6
    look slots=0; park g3 on=gpu:1<1; lines = gpu g3; look = g2 expired; used = gpu 1; due task = -
a message expires after its task has begun, too, when that comes again:
    wait 0; park g deadline=50 expires_ms=100000 slots=1 = g; wait 60; end g again; due task = g; wait 30
    look slots=0; due task = g; wait 11; look = g expired
a message may expire during a pause:
    wait 0; park g expires_ms=500 slots=1 = g; end g again; wait 0.6; look = g expired; due task = -; wait 1; look = -
no more are parked than may wait:
    arrive g1 g2 g3 on=gpu:1<2 = g1; park g4 on=gpu:1<2 = crowded; lines = gpu g2 g3
a repeated call has the same refusals:
    arrive g1 on=gpu<1 = g1; gather; park g2 g3 on=gpu<1; send = parked crowded; peer: withdraw g2 = g2#0
    again = parked crowded; lines = -
of several limits the most crowded one refuses, whatever the line in which a task stands:
    arrive b1 b2 on=api:1+gpu:9<1 = b1; park b3 on=api:1+gpu:9<1 = crowded; arrive a1 on=api:1 = -; lines = api b2 a1
"""

SENT_BACK = """
a task that is sent back is first again when its limit goes on:
    wait 0; take a on=api:1; arrive b on=api:1 = -; send_back a pause=0.1; used = -; lines = api a b
    ask c on=api:1 = must_park; look_when_told 1 110 = a
those that are sent back go before all others, and first come first served among themselves:
    take a b on=api:2; arrive c on=api:2; send_back a; send_back b; look slots=2 = a, b
those that are sent back go before all others while their limit is held:
    take a b on=api:2; send_back a pause=600; send_back b pause=600; arrive c on=api:2 = -; lines = api a b c
only the limit that it is about is held:
    take a1 on=api:3+tenant[a]:2; send_back a1 pause=600 about=tenant/a
    arrive a2 on=api:3+tenant[a]:2 = -; arrive b1 on=api:3+tenant[b]:2 = b1
one whose lease was lost is not put in twice:
    take a on=api:1; expire a; peer: park a on=api:1; peer: look = a; send_back a pause=600; used = api 1; lines = -
a task that an emptied store does not know is kept:
    take a1 on=api:3+tenant[a]:2; flush; send_back a1; look = a1; used = api 1, tenant/a 1
a pause that has ended leaves nothing, for a key that no task uses any more either:
    wait 0; take a1 on=api:3+tenant[a]:2; send_back a1 pause=0.05 about=tenant/a; withdraw a1
    stored overrides = tenant/a
    wait 0.06; reap; stored overrides = -
"""

OVERRIDES = """
with fewer permits those that run go on:
    arrive t0 t1 t2 t3 on=api:2 = t0 t1; say api override 1; end t0 slots=5 = -; used = api 1; end t1 slots=5 = t2
    unsay api override = 1; look slots=5 = t3; unsay api override = 0; stored overrides = -
a pause lets nothing start, and its end wakes the queue:
    arrive t0 t1 t2 on=api:2 = t0 t1; say api pause; end t0 slots=5 = -; end t1 slots=5 = -
    arrive new on=api:2 slots=5 = -; look slots=5 = -; lines = api t2 new; listen; unsay api pause = 1; ready = q
    look slots=5 = t2, new
an override of one key comes before that of all:
    arrive a0 a1 a2 a3 on=tenant[a]:1 = a0; arrive b0 b1 b2 b3 on=tenant[b]:1 = b0; say tenant/a override 3
    look slots=9 = a1, a2; say tenant override 2; look slots=9 = b1; unsay tenant/a override; in_force tenant/a = 2
one key is paused:
    say tenant/a pause; arrive a on=tenant[a]:1 = -; arrive b b2 on=tenant[b]:1 = b; look slots=9 = -
    unsay tenant/a pause; look slots=9 = a
all keys are paused, and a pause of one goes on after that:
    arrive a on=tenant[a]:1; arrive b on=tenant[b]:1; say tenant pause; arrive c on=tenant[c]:1 = -
    say tenant/c pause; unsay tenant pause; look slots=9 = -; unsay tenant/c pause; look slots=9 = c
a disabled limit counts and parks no task, and has to drain afterwards:
    arrive t0 t1 t2 on=api:2 = t0 t1; say api disable; look slots=9 = t2; arrive t3 on=api:2 = t3; used = api 4
    unsay api disable; arrive t4 on=api:2 = -; look slots=9 = -
a disabled limit has no rate:
    arrive t0 t1 t2 on=mail@1/h = t0; say mail disable; look slots=9 = t1, t2
a pause outdoes disable:
    say api disable; say api pause; arrive t on=api:2 slots=5 = -; unsay api disable; unsay api pause; look slots=5 = t
parking and looking return the end of an override [tenant pause 1 | tenant/a pause 1 | tenant override 1 | tenant/a override 1]:
    wait 0; take t0 on=tenant[a]:2; say * until=+300; park t1 on=tenant[a]:2 slots=1 = -; told 300 310
    look = -; look_when_told 300 310 = t1
a task of several limits gets the end, too:
    wait 0; say right override 2 until=+300; take small on=right:3; park big on=left:2+right:3 cost=2 slots=1 = -
    look_when_told 300 310 = big
a rate holds again when disable ends:
    wait 0; arrive t0 t1 t2 on=mail:1@1/h^2 = t0; say mail disable until=+200; look slots=9 = t1, t2
    wait 0.2; arrive late on=mail:1@1/h^2 = -
the sooner of two ends counts:
    wait 0; say api pause until=+60000; say api override 1 until=+200; park t on=api:2 slots=1 = -; told 200 210
    wait 0.2; look = -; told 1000 60000
one without an end stays beside one that ends [say api pause | say api override 1]:
    wait 0; say api pause until=+1; say api override 1 until=+1; *; wait 0.001; reap; stored overrides = api
    say api pause until=+1; say api override 1 until=+1; wait 0.001; reap; stored overrides = -
one that is taken back leaves the store as it was:
    arrive t0 t1 t2 on=api:2; say api override 2; unsay api override; say api pause; unsay api pause; say api disable
    unsay api disable; end t0; end t1; look = t2; end t2; empty; stored overrides = -
one is kept until its end:
    wait 0; say api pause until=+60000; wait 59; reap; stored overrides = api; wait 2; reap; stored overrides = -
a time that is over is refused:
    say api pause until=1000 = -1; stored overrides = -
an override that has ended cannot be taken back:
    wait 0; say api pause until=+1; wait 0.001; unsay api pause = 0; stored overrides = -
"""  # noqa: E501 - a title with its words

#: A task of several limits that changed lines so often that newer ones wait for it.
BARS = """
a newer task comes when the bar ends:
    wait 0; take l on=left:1; take r on=right:1; park elder on=left:1+right:1; moved elder 7; end l slots=1 = -
    bars = left elder, right elder; arrive younger on=left:1 = -; due bucket = left right
    look_when_told 60000 60010 = younger
a task that waits for its lock bars no other:
    take l on=left; take r on=right; park elder@same on=left+right; moved elder 7; end l slots=1 = -
    lapse locks:same; ask other@same on=own = granted; park younger on=left; end r slots=2 = younger
    verdict elder = follow
one with a limit of a first one takes nothing from it:
    take l on=left:1; take r on=right:1; take o on=own:1; park elder on=left:1+right:1; park other on=own:1+left:1
    bar elder left right; moved other 7; end o slots=1 = -; moves other = 8; bars = left elder, right elder
    withdraw other; bars = left elder, right elder
a bar stays beside an override that ends:
    take t on=api; park elder on=tenant[a]+api; bar elder api; say api override 3; unsay api override; bars = api elder
one that leaves its line bars no other [drop api elder | withdraw elder | lend elder]:
    take t on=api:1; park elder on=tenant[a]:1+api:1; moved elder 8; bar elder api tenant/a; *; bars = -
    take newer on=tenant[a]:1
"""

DRAINED = """
a published task has left the store, and a running one is not lent out:
    take t0; park t1 t2; lend t1 t2 nobody t0 = t1 t2; waiting = -; messages = t1#0 t2#0; look slots=9 = -
    why t1 = The store is being drained: its message is on the way back to its queue.
    drained t1 t2 = 2; drained t1 t2 = 0; end t0; empty
a lent task is not started, and is before no other:
    take t0; arrive t1 = -; lend t1 = t1; end t0 slots=5 = -; used = -; arrive t2 = t2
a lost publisher leaves both copies, and takes nothing away when it returns:
    take t0; arrive t1 t2 = -; lend t1 = t1; expire t1; reap; lines = gpu t1 t2; used = gpu 1; drained t1 = 0
    lines = gpu t1 t2; end t0 slots=1 = t1; deliveries t1 = 0
an early delivery of a drained task is not lost with the copy that is about to go:
    take t0; arrive t1 = -; lend t1 = t1; peer: ask t1 = must_park; peer: park t1 = -; lines = -; drained t1 = 1
    lines = gpu t1; messages = t1#0
a delivery of an unreported drain runs once:
    take t0; arrive t1 = -; lend t1 = t1; peer: park t1; expire t1; end t0 slots=9 = t1; end t1 slots=9 = -
    peer: look slots=9 = -
one that could not be published is in its place again:
    take t0; park t1 t2 t3 t4; lend t1 t2 t3 = t1 t2 t3; drained t1 = 1; not_drained t2 t3; lines = gpu t2 t3 t4
    end t0 slots=1 = t2; deliveries t2 = 0
a task that will not run is not lent:
    take t0; arrive t1 = -; drop gpu; lend t1 = -
"""

DROPPED = """
of one key, or of all keys of a limit, only the tasks are dropped that need it:
    arrive a0 a1 a2 on=tenant[a]:1; arrive b0 b1 b2 on=tenant[b]:1; arrive t0 t1 t2 on=api:1; drop tenant/a = 2
    drop tenan = 0; drop tenant/ = 0; lines = api t1 t2, tenant/b b1 b2; drop tenant = 2; lines = api t1 t2
one with an outcome is dropped once:
    arrive t0 t1 on=api; drop api t1 = 1; drop api t1 = 0; audited = 1; parked_by_limit api = -
    parked_by_limit = t1 told; state t1 = ended without running
    why t1 = It was dropped by ana, at TIME: it ends as revoked.
    why t1 2 = That takes a worker with a free slot that consumes queue 'q'.
the order of all lines is known:
    take back on=api; arrive a0 on=tenant[a]; arrive b0 b1 on=tenant[b]; arrive a1 on=tenant[a]; arrive b2 on=tenant[b]
    send_back back pause=60; parked_by_limit = back runs, b1 runs, a1 runs, b2 runs
one in the line of another limit is dropped, too:
    take t0 on=tenant[a]:1; arrive both on=tenant[a]:1+api:1 = -; lines = tenant/a both; drop api = 1; lines = -
a drop survives the loss of the worker that reports it:
    take t0; park t1; drop gpu = 1; look = t1 expired; expire t1; peer: look = t1 expired
a later task waits:
    take t0; arrive t1 = -; drop gpu = 1; arrive t2 = t1 expired; lines = gpu t2
a full line has room again:
    arrive t0 t1 on=crowd:1<1 = t0; park t2 on=crowd:1<1 = crowded; drop crowd = 1; park t2 on=crowd:1<1 = -
a permit outside of tasks is waited for:
    take t0; park outer outside wait_ms=60000; drop gpu outer = 0; drop gpu = 0; end t0 slots=1 = outer
a running task goes on:
    take t0; drop gpu t0 nobody = 0; used = gpu 1; renew t0 = renewed
another delivery of it does not run either:
    park t slots=1 = t; peer: park t attempt=1; end t return; drop gpu = 1; look slots=4 = t expired
    end t never slots=4 = -; peer: look slots=4 = -
it does not run when it is redelivered, by a broker to which its worker could not acknowledge it:
    peer: take t0; park t1; drop gpu = 1; peer: park t1 = has_run; peer: look slots=4 = t1 expired; peer: end t1 never
    peer: ask t1 = has_run
another delivery of it may come again, too:
    park t slots=1 = t; look slots=0; peer: park t; end t requeue; drop gpu t = 1; look = t expired; end t never
    ask t = has_run
an acknowledged task is forgotten:
    take t0; park t1; drop gpu = 1; finished = 0 t1; look slots=4 = t1 expired; finished = -; end t1 never; end t0
    empty
"""

#: First in line is a task of a queue that only the stranger consumes, then one of ours.
PASSED_OVER = """
another queue takes its turn, and leaves nothing of its offer:
    take t1; stranger: park theirs; park ours; end t1 slots=1 = -; stranger: look = theirs; offered = -
a new task starts behind one that is passed over:
    take t1; stranger: park t2; end t1; ask t3 = must_park; park t3 slots=1 = -; pass_over gpu q2; look = t3; end t3
    take t4
a queue without a worker is passed over after its moment:
    wait 0; take t1; stranger: park theirs; park ours; end t1 slots=1 = -; look = -; wait 1; look = ours
a task of a passed over queue overtakes none before it:
    take t1; stranger: park theirs; park ours; end t1; pass_over gpu q2; look = ours; end ours
    stranger: ask newer = must_park, theirs
a withdrawn task takes its offer along:
    take t1; stranger: park theirs; park ours; end t1 slots=1 = -; withdraw theirs; offered = -; look = ours
one that is passed over can be withdrawn:
    take t1; stranger: park theirs; park ours; end t1; pass_over gpu q2; look slots=0; withdraw theirs; passed = -
    look = ours
a line without followers is not offered:
    take t1; stranger: park theirs; end t1; offered = -
the other queue gets one hint and a moment, and the caller a time to look again:
    wait 0; take t1; stranger: park theirs; park ours; listen; end t1 slots=1 = -; told 1 110; closed = gpu; ready = q2
    look = -; told 1 110; hints = -
a dead queue is asked again once a minute, with one hint, so its turn delays no task:
    wait 0; take t1; stranger: park theirs; park ours; listen; end t1; pass_over gpu q2; look slots=0; more = True
    wait 59.9; look slots=0; passed = 1:gpu q2; wait 0.2; look slots=0; passed = -; told 1 110
    pass_over gpu q2; look slots=0; more = True; wait 59.9; look slots=0; passed = 1:gpu q2; ready = q2 q
a lane has its turn again in the same call, also at a key that the call has looked at before:
    take t1 on=tenant[k]; stranger: park theirs on=tenant[k]; park ours on=tenant[k]; end t1; pass_over tenant/k q2
    look slots=0; come_due limit tenant; come_due lane; look = -
a queue that answers is offered its turn again:
    wait 0; take t1; stranger: park theirs; park ours; end t1; pass_over gpu q2; look = ours
    stranger: park theirs2; park ours2; end ours; stranger: look = theirs; stranger: end theirs; look = -; told 1 110
a passed over queue keeps its place, so a worker that can start its task finds that first:
    take t1; stranger: park theirs; park ours; end t1; pass_over gpu q2; look slots=0; passed = 1:gpu q2
    everywhere: look = theirs
one that is passed over is in line again after a while:
    take t1; stranger: park theirs; park ours; end t1; pass_over gpu q2; look = ours; come_due lane
    end ours slots=1 = -; passed = -; stranger: look = theirs
one that is passed over is in line again without free permits:
    take t1; stranger: park theirs; park ours; end t1; pass_over gpu q2; look = ours; come_due lane; look; passed = -
an offer on one limit does not hold up another:
    wait 0; take t1; stranger: park theirs; park ours; park other on=gpu2:2; end t1; look slots=2 = other
    told 1 110
a lone task of another queue is a line:
    take t1; stranger: park theirs; end t1 slots=1 = -; closed = gpu
all lanes behind one that is passed over get a moment at once:
    take t1; park t2 queue=dead0; park t3 queue=dead1; park t4 queue=dead2; park ours; end t1; pass_over gpu dead0
    look slots=0; offered = 1:gpu dead1 1:gpu dead2
the next task of a passed over queue can start at once, though the first has left its line:
    take t1; stranger: park theirs; stranger: park theirs2; park ours; end t1; pass_over gpu q2; look slots=0
    withdraw theirs; passed = 1:gpu q2; stranger: look = theirs2
"""

RATE_OVERRIDES = """
a faster rate counts from the last start:
    wait 0; arrive m1 m2 on=mail@1/d = m1; wait 2; say mail override 20/m; next_start mail = 1; look = -; told 1000 1010
    wait 1; look = m2; next_start mail = 3
a start that was booked for later keeps its time:
    wait 0; reserve mail@1/m = 0; reserve mail@1/m = 60; reserve mail@1/m = 120; say mail override 1/s
    reserve mail@1/m = 121
a slower rate counts from the last start:
    wait 0; take m1 on=mail@20/m; wait 2; say mail override 1/m; next_start mail = 58; unsay mail override = 1
    next_start mail = 1
a change between two starts leaves no trace, as two more might have started:
    wait 0; take m0 m1 m2 on=mail@10/m^5; mark; say mail override 1/d^3; next_start mail = 0
    say mail override 10/s^3; next_start mail = 0; say mail override 10/m^3; next_start mail = 0
    unsay mail override; as_marked; arrive n0 n1 n2 on=mail@10/m^5 = n0 n1
no burst is given twice, however often the rate changes:
    wait 0; take m0 on=mail@1/h^3; say mail override 2/h^3; take m1 on=mail@1/h^3
    say mail override 1/m^3; take m2 on=mail@1/h^3; say mail override 30/m^3; ask m3 on=mail@1/h^3 = must_park
    say mail override 2/h^3; ask m4 on=mail@1/h^3 = must_park; say mail override 1/m^3; ask m5 on=mail@1/h^3 = must_park
of several rates each goes on from the nearest, the hour's three are used up, the second's one is free:
    wait 0; take m0 on=mail@10/s,100/h^1,3; wait 1; take m1 on=mail@10/s,100/h^1,3; wait 1
    take m2 on=mail@10/s,100/h^1,3; wait 1; say mail override 5/s,60/h^1,3; next_start mail = 55.667
    say mail override 5/s; next_start mail = 0
of several rates each goes on from the nearest, also from a faster one, where one of two is free:
    wait 0; take m0 on=mail@10/m,100/d^2,3; wait 10; take m1 on=mail@10/m,100/d^2,3; wait 10
    take m2 on=mail@10/m,100/d^2,3; say mail override 5/m^2; next_start mail = 0
a smaller burst starts the next after one spacing:
    wait 0; take m0 m1 m2 m3 m4 on=mail@10/m^5; say mail override 10/m; next_start mail = 6; say mail override 1/h
    next_start mail = 3600
a start that did not begin is given back after a change:
    wait 0; take m1 on=mail@1/h; say mail override 2/h; end m1 never; next_start mail = 0
an override of one key comes before that of all rates:
    wait 0; take a on=tenant[a]@1/h; take b on=tenant[b]@1/h; say tenant/a override 1/m; say tenant override 2/h
    next_start tenant/a = 60; next_start tenant/b = 1800; unsay tenant/a override; next_start tenant/a = 1800
    unsay tenant override; next_start tenant/a = 3600
a rate override ends by itself and wakes parked tasks, not after the day that it would take [tenant | tenant/a]:
    wait 0; take t1 on=tenant[a]@10/s; say * override 1/d until=+2000; park t2 on=tenant[a]@10/s; look = -
    told 2000 2010; wait 2; look = t2
a disabled limit has no other rate either:
    wait 0; say mail override 2/d; say mail disable; take m0 m1 m2 m3 on=mail@1/d
a rate that a deploy changes goes on from the last start:
    wait 0; take m0 m1 m2 on=mail@1/h^3; deploy mail@2/h^3; arrive m3 on=mail@2/h^3 = -
a limit without a rate gets one:
    wait 0; take t0 on=api:4; say api override 1/s; arrive t1 t2 t3 on=api:4 = t1; wait 1; look slots=9 = t2
    unsay api override; look slots=9 = t3
a limit that gets a rate passes no permit on:
    wait 0; arrive t0 on=api:4 = t0; closed = -; say api override 10/s; pass_on t0 t1 on=api:4; closed = api; open = -
    next_start api = 0.1; unsay api override; ask t2 on=api:4; open = api; closed = -
a limit that gets a rate passes no permit on while that rate lets more start:
    arrive t0 on=api:4 = t0; say api override 10/s^3; pass_on t0 t1 on=api:4; closed = api; open = -
a rate that is taken back leaves no booking:
    wait 0; say api override 1/s; take t0 on=api:4; end t0; unsay api override; wait 2; reap; stored overrides = -
    stored rates = -
"""

REASONS = """
a full limit is why, and the tasks before it:
    arrive t0 t1 t2 t3 on=api:2; state t3 = parked; why t3 = Limit api is full: 2 of 2 permits are held.
    why t3 2 = 1 task is before it in the line of api, of queue 'q'.
    stranger: park later on=api:2; place later = 3; state t0 = held
    why t0 = It runs, or is about to, on worker aaaaaaaa, and holds 1 permit of api.
an override is why:
    say api override 1 until=+60000; arrive t0 t1 on=api:2
    why t1 = Limit api is full: 1 of 1 permits are held: 1 instead of 2 since TIME until TIME by ana@desk, because: w.
a pause is why:
    say tenant/a pause; arrive t on=tenant[a]:1+api:2 = -
    why t = Limit tenant[a] is paused since TIME by ana@desk, because: w.
    why t 2 = It needs 1 permit of tenant[a] and 1 permit of api at once, and waits in the line of tenant[a].
a rate is why:
    wait 0; arrive t0 t1 on=mail@1/h = t0; why t1 = The rate of limit mail (1/h) allows the next start in 3600.0 s.
of several limits the one that is full is named:
    arrive t0 t1 on=tenant[a]:1+api:2 = t0; why t1 = Limit tenant[a] is full: 1 of 1 permits are held.
    why t1 2 = It needs 1 permit of tenant[a] and 1 permit of api at once, and waits in the line of tenant[a].
a cost is why:
    arrive small on=gpu:4; arrive big on=gpu:4 cost=4 = -
    why big = Limit gpu is full: 1 of 4 permits are held, and it needs 4.
a queue without a consumer is why:
    say api pause; stranger: park left on=api:2; park next on=api:2; unsay api pause; pass_over api q2; look slots=0
    why left = Its queue 'q2' has been passed over: it was offered a start, and no worker with a free slot consumes it.
    why left 2 = It can start: it waits for a worker with a free slot that consumes queue 'q2'.
    why next = 1 task is before it, but passed over: no worker with a free slot consumes queue 'q2'.
    why next 2 = It can start...; look = next
further back in a line that no worker serves the reason is the same as of the first:
    arrive held on=one:1; stranger: park first on=one:1; stranger: park second on=one:1; end held
    why second = 1 task is before it in the line of one, of queue 'q2'.
    why second 2 = The first of them can start: it waits for a worker with a free slot that consumes queue 'q2'.
    why first = It can start: it waits for a worker with a free slot that consumes queue 'q2'.
a lost lease and a deadline are why:
    park t on=api:1 deadline=60 slots=1; expire t; look slots=0
    why t = It has begun once without an outcome. It goes back in line after a pause...
    come_due task t; look slots=0; why t 2 = It was started once before...
    arrive first on=api:1 deadline=60; arrive late on=api:1 deadline=60 = -
    why late 3 = Its start_deadline is over at...
    come_due task late; look slots=0; state late = ended without running
    why late = Its start_deadline was over at...
whichever comes first ends a wait, and is named:
    take t on=api:1; park a on=api:1 deadline=60 expires_ms=30000; why a 2 = Its expires is over at...
    park b on=api:1 deadline=30 expires_ms=60000; why b 3 = Its start_deadline is over at...
    wait 31; look slots=0; why a = Its expires was over at...; why b = Its start_deadline was over at...
a store that lost its data is why:
    take t; flush; rejoin; park t2; why t2 = The store lost its data: nothing starts for another...
a permit outside of tasks is taken by its process:
    park outer queue=~dddddddd
    why outer = It can start: it is a permit outside of tasks, which the process that waits for it has to take.
an older task that goes first is why for those after it:
    arrive t0 t1 on=api:2; park older on=api:2; park both on=api:2+right:1; park later on=api:2; bar both api
    why later 2 = Task both, which needs several limits and waited for long, goes first on limit api.
    why later 3 = 2 tasks are before it in the line of api, of queue 'q'.
    why older 0 = Limit api is full: 2 of 2 permits are held.
    why both 2 = It needs 1 permit of api and 1 permit of right at once, and waits in the line of api.
    why both 3 = 1 task is before it in the line of api, of queue 'q'.
a lost worker is why:
    arrive t0 on=api:2; expire t0; why t0 2 = Its lease ended LONG s ago, so its worker is lost...
a second delivery is named:
    arrive t0 on=api:2; stranger: park t0 on=api:2 attempt=1
    why t0 0 = Another delivery of the same task id waits for this one to end.
of other tasks nothing is known:
    take t; state other = unknown; place other = None
    why other = No worker has seen it yet, or it has ended: look at its queue...
"""

FIRSTS = """
each line has a first task:
    stranger: park api0 on=api:2; park api1 on=api:2; arrive a0 a1 a2 on=tenant[a]; arrive b0 b1 b2 on=tenant[b]
    deploy limit; firsts tenant/b api limit tenant tenant/a nope = b1, api0, None, None, a1, None
the next one follows when the oldest starts or is dropped:
    park a0 on=tenant[a] age=100; park b0 on=tenant[b] age=99; park c0 on=tenant[c] age=98; park a1 on=tenant[a] age=50
    park b1 on=tenant[b] age=49; park c1 on=tenant[c] age=48; say tenant pause; drop tenant a0; look = a0 expired
    oldest tenant = tenant/b b0; unsay tenant pause; look slots=3 = b0, c0, a1; oldest tenant = tenant/b b1
one that is passed over is still the first, and waits for longest:
    say api pause; stranger: park left on=api:2; park next on=api:2; unsay api pause; pass_over api q2; look slots=0
    firsts api = left; oldest api = api left; look = next; firsts api other = left, None; oldest api = api left
    stranger: look = left; oldest api = None
where tasks take turns the first is the next in turn, and the wait counts for the oldest:
    take a on=fair~a; park a0 a1 a2 a3 a4 on=fair~a; end a slots=1 = a0; stranger: park b on=fair~b; firsts fair = b
    oldest fair = fair a1
"""

HINTS = """
a raised limit wakes the queue whose turn it is, and then the next:
    take t1; park t2 t3; stranger: park t4; park t5 on=gpu2:1 queue=other; listen; deploy gpu:4; ready = q
    look slots=3 = t2, t3; ready = q2; stranger: look slots=2 = t4
a raised override wakes every queue in turn:
    arrive t0 t1 t2 t3 on=api:2; stranger: park there on=api:2; listen; say api override 4
    hints = line api, ready q, due 100; look slots=9 = t2, t3; say api override 5 = 1; stranger: look slots=9 = there
a limit that is not raised sends no hint [2 | 1]:
    take t1 t2 on=gpu2:2; park t3 on=gpu2:2; listen; deploy gpu2:*; ready = -
a lost lease wakes the queue whose turn it is, and no other:
    take t1; take t2 on=gpu2:1; park t3 t4; stranger: park t5; park t6 on=gpu2:1 queue=q3; listen; expire t1; reap
    ready = q

a worker without slots wakes the others:
    take t1; park t2; listen; end t1 = -; more = True; ready = q
a queue is woken once by one call, however many of its tasks could start:
    take t1; take t2 t3 on=gpu2:2; park t4; park t5 on=gpu2:2; listen; end t1 t2 t3 = -; ready = q
a task without a slot in its call is ready for any worker, and needs no other look:
    take t1; take t2 t3 on=gpu2:2; park t4; park t5 on=gpu2:2; end t1 t2 t3 slots=1 = t4; more = True; due bucket = -
a task without a slot in its call is offered, if another queue waits behind it:
    take t1; take t2 t3 on=gpu2:2; park t4; park t5 on=gpu2:2; stranger: park t6 on=gpu2:2
    end t1 t2 t3 slots=1 = t4; offered = 1:gpu2 q
a new line is reported once, so that workers park at once:
    take t1; listen; park t2; hints = line gpu; peer: park t3; hints = -
a line within one call is not reported:
    deploy gpu:1; listen; park t1 slots=1 = t1; hints = -
"""

STORIES = stories(
    SEVERAL,
    DECLARED,
    COSTS,
    TURNS,
    RATES,
    WAITING,
    SENT_BACK,
    OVERRIDES,
    BARS,
    DRAINED,
    DROPPED,
    PASSED_OVER,
    RATE_OVERRIDES,
    REASONS,
    FIRSTS,
    HINTS,
)


@pytest.mark.parametrize("steps", STORIES)
def test_a_story_of_limits(story: Story, steps: str) -> None:
    story.tell(steps)
