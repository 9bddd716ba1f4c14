"""Permits and messages, told as stories: a task that comes more than once runs once, and is lost with no worker."""

from __future__ import annotations

import pytest

from tests.store.stories import Story, stories

#: Where tasks stand in line: by the time at which they came to their worker, not by that of its call.
PLACES = """
parked tasks wait in the order given, whatever their ids:
    take t; gather; park t9 t8 t10 t2 t1 t7; send = parked parked parked parked parked parked
    lines = gpu t9 t8 t10 t2 t1 t7
the first is first though its call came later, as a worker that has to ask reports how long ago each came:
    take t; peer: park t2 t4; gather; park t1 age=60; park t3; park t0 age=61; send; lines = gpu t0 t1 t2 t4 t3
the first is first though its call was 50 ms on its way:
    wait 0; take held; look slots=0 clock=100; park t1 age=0.002 clock=99.95; park t2 age=0.03 clock=100
    end held slots=1 = t1
older tasks of a slower call are before newer ones, which need no slot after an outage and come by a faster call:
    wait 0; take t; gather; park t2 age=0.01; park t4 age=0.005; send clock=10; wait 0.03
    gather; park t1 age=0.025; park t3 age=0.018; send clock=10.01; lines = gpu t1 t2 t3 t4
a later task of one worker stands later, though its first calls were late and the last one is not:
    wait 0; take t; look slots=0 clock=100; gather; park t1 t2; send clock=100.001
    gather; park t0 age=0.1; park t3 age=0.04; send clock=100.052; park t4 age=0.03 clock=100.053
    lines = gpu t0 t1 t2 t3 t4
a clock that was set is believed, of the store or of the worker, and the usual delay does not apply then:
    take held; look slots=0 clock=5000; peer: park t1 clock=100; park t2 clock=1000; end held slots=1 = t1
a clock that is set back changes no order:
    take t; park t1; ahead ticket 50000000000000; park t2 t5 t4 t3; lines = gpu t1 t2 t5 t4 t3
"""

ADMITTED = """
as many are granted as there are permits, also to one call:
    ask t1 t2 t3 on=gpu2:2 = granted granted must_park; used = gpu2 2; records = t1 t2
a lease lasts from its beginning by the clock of the store:
    wait 0; take t; wait 599; peer: look; reap = -; wait 2; reap = t
asking again is the same permit, after a lost reply:
    take t; again = granted; used = gpu 1
a second delivery does not run beside the first, though a permit is free:
    take t on=gpu2:2; peer: ask t on=gpu2:2 = must_park
a second delivery of a parked task is parked already:
    take t1; park t2; peer: ask t2 = is_copy
a retry of a parked task has a newer message, which has to be kept:
    take t1; park t2; peer: ask t2 attempt=1 = must_park
a new task overtakes no parked one, which starts in its slot:
    take t1; peer: park t2; end t1; ask t3 = must_park, t2
limits with similar names are different:
    take t1; park t2; take t3 on=gpu2:2; end t1 slots=2 = t2; take t4 on=gpu2:2
a redelivery after the lease ended runs:
    take t; expire t; peer: take t; runs_of t = peer; used = gpu 1
a free permit is taken by the oldest, not by the one just parked:
    take t1; peer: park t2; end t1; park t3 slots=1 = t2
a second delivery keeps the place in line:
    take t; park t1; park t2; park t1; lines = gpu t1 t2
a newer attempt takes the place of the older, not the other way round:
    take t; park t1; park t2; park t1 attempt=1; park t1; lines = gpu t1 t2; messages = t1#1 t2#0
a newer attempt waits for its own permits:
    take t; park t1; park t1 attempt=1 on=gpu2:2 slots=1 = t1#1
a withdrawn task leaves the others in their order, and only its first caller is responsible for it:
    take t; park t1; park t2; park t3; stranger: withdraw t2 unknown = t2#0; lines = gpu t1 t3; peer: withdraw t2 = -
a running task is not withdrawn:
    park t slots=1 = t; withdraw t = -; held = t; messages = t#0
a second delivery is withdrawn from beside a run:
    take t; peer: park t attempt=1; withdraw t = t#1; seconds = -; end t again slots=1 = -
a task and its second delivery are both withdrawn:
    park t slots=1; peer: park t attempt=1; end t return; withdraw t = t#0 t#1; records = -
of many expired holders the one of the redelivery is cleared in any case:
    take a b c d e f g h i t on=many:10; expire a b c d e f g h i t; peer: take t on=many:10; runs_of t = peer
    used = many 2
"""

ENDED = """
the oldest takes the permit in the same call, with its message:
    take t1; park t2; park t3 attempt=1; end t1 slots=4 = t2; end t2 slots=4 = t3#1
no more are granted than there are slots, and the reply asks for another look:
    take t1 t2 on=gpu2:2; park t3 t4 on=gpu2:2; end t1 t2 slots=1 = t3; more = True
the oldest of all limits starts first, whatever the name of its limit:
    take t1; take t2 t3 on=gpu2:2; park on2 on=gpu2:2; park on1; end t1 t2 t3; look = on2; more = True; look = on1
all slots are filled:
    take t1; take t2 t3 on=gpu2:2; park a; park b on=gpu2:2; park c; park d on=gpu2:2; end t1 t2 t3
    look slots=5 = a, b, d; more = False
the line of a limit is one for the tasks of all queues:
    take t0; park d; stranger: park b; park c; stranger: park a; end t0; everywhere: look = d
    everywhere: end d slots=1 = b; everywhere: end b slots=1 = c; everywhere: end c slots=1 = a
nothing is left of a task that has ended, and of its worker:
    park t slots=1 = t; end t; leave; empty
a line is reported when it begins and when it is over:
    take t1; park t2; end t1 slots=1 = t2; closed = gpu; open = -; end t2 slots=1 = -; closed = -; open = gpu
giving back twice frees one permit:
    take t1 on=gpu2:2; take t2 on=gpu2:2; end t1; end t1; used = gpu2 1
a late end does not free the permit of the next one:
    take t1; park t2; expire t1; look = t2; end t1; held = t2
a task that ended is forgotten [done | failed | retry | ignored]:
    park t slots=1 = t; end t *; records = -; messages = -
a requeued task goes to the end of the line, and counts as delivered:
    park t1 slots=1 = t1; park t2; end t1 requeue slots=1 = t2; end t2 slots=1 = -; come_due task; look = t1
    deliveries t1 = 1
a returned task keeps its place, and was not delivered:
    park t1 slots=1 = t1; park t2; end t1 return slots=1 = t1; deliveries t1 = 0
a task that the broker still has is not kept [requeue | return]:
    take t; end t *; records = -
a task that has started early is not run again, as no queue has its message:
    park t slots=1 = t; began t; messages = -; expire t; look = -; records = -
a start of another delivery does not drop the message:
    park t slots=1 = t; began t elsewhere; messages = t#0
a late start does not drop the message of a parked task:
    park t slots=1 = t; expire t; reap; began t; messages = t#0
a lowered limit drains:
    take t1 on=gpu2:2; take t2 on=gpu2:2; park t3 on=gpu2:2; deploy gpu2:1; end t1 slots=1 = -; held = t2
    end t2 slots=1 = t3
a holder whose lease is over is cleared, and others stay:
    take t1 on=gpu2:2; take t2 on=gpu2:2; expire t1; reap = t1; held = t2
no more holders are cleared than asked for, as no call takes long:
    take t1 t2 t3 t4 t5 on=gpu:5; expire t1 t2 t3 t4 t5; reap 2 = t1 t2; reap 2 = t3 t4; reap 2 = t5; reap 2 = -
a stored task of a lost worker goes back to its place:
    peer: park t1 slots=1 = t1; park t2; expire t1; reap; look = t2; end t2 slots=1 = -; come_due task
    look = t1; deliveries t1 = 1
a task of a lost worker that the broker has is forgotten:
    take t; expire t; reap; records = -
an expired holder makes room with the next look:
    take t1; park t2; look = -; expire t1; look = t2
a task of another queue is left alone:
    stranger: park t; look = -; stranger: look = t
"""

RENEWED = """
a renewed lease begins again:
    take t; expire t; renew t = renewed; reap = -
a holder puts itself back after lost data, before its limit is declared:
    take t1 on=gpu2:2; peer: take t2 on=gpu2:2; flush; renew t1 = put back; peer: renew t2 = put back
    renew t1 = renewed; used = gpu2 2; deploy gpu2:2; end t1; held = t2
a full limit takes no holder back:
    take t1; flush; peer: deploy gpu:1; peer: take t2; renew t1 = lost; held = t2
a run whose task went back in line takes it out again:
    park t; look = t; expire t; reap; parked = t; renew t = put back; held = t; parked = -; end t; records = -
each of several has its own answer:
    take t1 on=gpu2:2; peer: take t2 on=gpu2:2; lost_run t2; renew t1 t2 t1 = renewed, lost, renewed; renew = -
callers that wait outside of tasks are kept, and one whose process is gone leaves the line with nothing to report:
    wait 0; take t; park w1 w2 outside wait_ms=50; keep w1 unknown = 1 0; wait 0.06; look = -; parked = w1
    wait 599; look = -; parked = w1
a run whose task runs elsewhere by now is lost, though another permit is free:
    park t on=gpu2:2 slots=1 = t; expire t; reap; come_due task; peer: look = t; renew t = lost
    runs_of t = peer
a retry in line is not lost with the run before it:
    take t; peer: park t attempt=1; expire t; peer: reap; renew t; end t retry; peer: look = t#1
a second delivery in line runs when the first run dies after all:
    take t; peer: park t; expire t; peer: reap; renew t; end t again; peer: look = t
a retry in place of a lost run is not lost with it:
    park t slots=1 = t; expire t; peer: reap; peer: park t attempt=1; renew t; end t again; peer: look = t#1
a retry beside a lost run is not lost with it:
    park t slots=1 = t; peer: park t attempt=1; expire t; peer: reap; renew t; end t again; peer: look = t#1
a renewal that a later call overtook puts nothing back:
    take t; note; end t failed; renew t noted = later; records = -
a renewal of a task that was sent back leaves it in line:
    take t; note; send_back t; renew t noted = later; parked = t; look = t
a later unrelated call keeps a renewal from putting back, until the next one:
    take t; note; expire t; look; renew t noted = later; renew t = put back; renew t noted = renewed
"""

REPLAYED = """
a refusal has the same reason again:
    take ran; end ran at_broker; take t; peer: park there; ask ran there new = has_run is_copy must_park
    again = has_run is_copy must_park
a parked task that has run is not parked again by a copy of the call:
    park t; peer: look = t; peer: end t; again; records = -
a grant that was reclaimed since is not granted again:
    park t; look = t; expire t; reap; come_due task; peer: look = t; worker: again = -; runs_of t = peer
a reclaimed grant that waits is not granted again:
    park t; look = t; expire t; reap; again = -; parked = t
a permit that was reclaimed since is refused:
    take t; expire t; peer: reap; peer: take t2; again = must_park; held = t2
a permit that another delivery has since is refused:
    take t; expire t; peer: take t; again = must_park; runs_of t = peer
a copy returns the remaining grants again:
    park t1 on=gpu2:2; park t2 on=gpu2:2; look slots=2 = t1, t2; expire t1; reap; again = t2
a newer call after a sign-off takes effect, and a sign-off may be repeated:
    take t; leave; leave; end t; records = -
an end that is reported twice frees one permit:
    take t1 t2 on=gpu2:2; end t1; again; used = gpu2 1
an error is counted once:
    errors 2; again; peer: errors 1; look; meta errors = 3
the next call repeats what was not read, as a full store refused a call whose copy was on its way:
    take t; park t1 t2; gather; end t; withdraw t2; send slots=1 = t1; look unread=1 = t1; withdrawn = t2#0; end t1
    records = -
a call that was read is not repeated:
    park t1; look = t1; look unread=0 = -; end t1
grants that were not read take the slots of the next call:
    take h1 h2 on=two:2; park t1 t2 on=two:2; end h1 h2; look = t1; look unread=1 = t1; look = t2
a copy of a call that comes after the sign-off does nothing:
    park t; leave; peer: look = t; peer: end t; copy; records = -
a holder that asks again has a whole lease:
    wait 0; take t; wait 500; ask_again t = granted; wait 500; reap = -; held = t
a row that a call has twice ends nothing else:
    take t1; park t2; end t1 t1; parked = t2
"""

SECOND = """
a second waits for the first though permits are free, and is in no line:
    take t on=gpu2:2; peer: park t on=gpu2:2 slots=1 = -; peer: look = -; seconds = t
a replacement without a lock keeps none, as self.replace() leaves the task id to another task:
    claim t@same; take t@same on=own; lock = t running; peer: ask t attempt=1048576 = must_park
    peer: park t attempt=1048576
    end t ignored; lock = -
a second is dropped when the first succeeds:
    take t; peer: park t; end t slots=1 = -; seconds = -; records = -
a second runs when the first dies:
    take t; peer: park t; expire t; peer: look = t; seconds = -
a second runs when the child of the first is lost:
    take t; peer: park t; end t again slots=1 = t
a retry that arrives before its first attempt has ended runs:
    take t; peer: park t attempt=1; end t again slots=1 = t#1
a newer second outlives a success of the first:
    take t; peer: park t attempt=1; end t slots=1 = t#1
a second keeps the place at which it came:
    take t; peer: park t; park t2; end t again slots=1 = t
of several seconds the newest attempt waits [park t; park u; park t attempt=1 | park t attempt=1; park u; park t]:
    take t; *; seconds = t#1; second_messages = t#1; end t again slots=1 = t#1
the second of a resumed task has a message of its own:
    park t slots=1 = t; peer: park t attempt=1; messages = t#0; second_messages = t#1
a second has the next turn of its key, so that later tasks do not go before it for ever:
    take a0 on=api:1~a; park a1 on=api:1~a; peer: park a0 on=api:1~a; expire a0; park b0 b1 b2 on=api:1~b
    peer: look = a1; peer: end a1 slots=1 = b0; peer: end b0 slots=1 = a0; peer: end a0 slots=1 = b1
a newer second has the turn of the one before it:
    take t on=api:1~a; peer: park t on=api:1~a; park a1 on=api:1~a; peer: park t attempt=1 on=api:1~a
    park b on=api:1~b; end t again slots=1 = t#1
a second may wait for as long as any other:
    wait 0; take t; peer: park t wait_ms=500000; park other; end t again; due task = t; wait 499; look slots=0
    parked = other t; wait 2; look = t expired
a second waits on while the first goes back in line, and is dropped in the end:
    park t slots=1 = t; peer: park t; end t requeue; come_due task; look = t; seconds = t; end t; records = -
"""

#: A task that another worker runs as well, after the lease of its first run was lost.
OVER = """
a task that is back in line is dropped when its lost run succeeds:
    park t slots=1 = t; look slots=0; peer: lose t; parked = t; end t; empty
the run beside a success is the last, however it ends [done | failed | ignored | again | requeue]:
    park t slots=1 = t; look slots=0; peer: lose t
    come_due task; peer: look = t; end t; used = gpu 1; peer: end t * slots=1 = -
    empty
the run beside a success is the last, also if it is to be retried:
    park t slots=1 = t; look slots=0; peer: lose t
    come_due task; peer: look = t; end t; peer: end t retry slots=1 = -
    peer: ask t attempt=1 = has_run
a run beside a success does not come back after a lost lease:
    park t slots=1 = t; look slots=0; peer: lose t
    come_due task; peer: look = t; end t; lose t; look = -; used = -; peer: end t
    empty
a redelivery after two lost leases is dropped, though neither run was parked before:
    take t; peer: lose t; peer: take t; end t; lose t; ask t = has_run
a run beside a success does not go back after a slow down:
    park t slots=1 = t; look slots=0; peer: lose t
    come_due task; peer: look = t; end t; lose t; peer: send_back t; peer: look = -
    records = -
a delivery that waited for the second run is dropped:
    park t slots=1 = t; look slots=0; peer: lose t
    come_due task; peer: look = t; park t; seconds = t; end t; seconds = -
    peer: end t ignored slots=1 = -
a redelivered task is dropped:
    take t; peer: lose t; records = -; end t at_broker; peer: ask t = has_run
a failure ends nothing, as a task may run once more for each lease that is lost:
    park t slots=1 = t; look slots=0; peer: lose t; end t failed; come_due task; peer: look = t
a later attempt is dropped as well:
    park t slots=1 = t; look slots=0; peer: lose t
    come_due task; peer: look = t; peer: park t attempt=1; peer: end t retry; end t
    look = -; records = -
"""

#: Parked tasks whose message the broker may have all the same.
RAN = """
a task of a lost worker that ran elsewhere has run [done | failed | retry]:
    park t; peer: look = t; peer: end t *; peer: ask t = has_run; peer: park t = has_run
a replaced task has given its id to another:
    park t; peer: look = t; peer: end t ignored; peer: take t
its retry is another attempt, which runs:
    park t; peer: look = t; peer: end t retry; peer: take t attempt=1
a retry is on record though its first attempt comes again:
    park t attempt=1; peer: look = t#1; peer: end t; peer: park t = -; peer: park t attempt=1 = has_run; parked = t
    messages = t#0
a run is forgotten when the worker that parked it has acknowledged the message [look | leave]:
    park t; peer: look = t; peer: end t; finished = 0 t; *; finished = -; peer: take t
a run is forgotten after a day:
    wait 0; park t; peer: look = t; peer: end t; wait 86300; peer: reap; finished = 0 t; wait 200; peer: reap
    finished = -
a run of a task whose worker is forgotten leaves no trace, as nothing is to come of it:
    park t; lapse workers:aaaaaaaa; peer: reap; peer: look = t; peer: end t; finished = -
a run after the next call of the worker that parked it leaves no trace:
    park t; look slots=0; peer: look = t; peer: end t; finished = -
an unacknowledged task is on record for any later run:
    park t; unacked t; peer: look = t; peer: end t; finished = 0 t; peer: ask t = has_run
an unacknowledged task that has run is on record:
    park t; peer: look = t; peer: end t; unacked t; finished = 0 t; look; peer: ask t = has_run
a run of the worker that parked it confirms the acknowledgement:
    park t slots=1 = t; end t; finished = -
a task that never began has not run when it comes again:
    park t; peer: look = t; peer: end t never_began; finished = -; peer: take t
an outcome is on record until its message is acknowledged:
    park t; peer: look = t; peer: end t never; peer: ask t = has_run; peer: look; look; finished = -
a run whose message the broker has is not repeated:
    take t; end t at_broker; peer: ask t = has_run
a run whose message is being acknowledged is not repeated:
    take t; end t unacked; finished = 0 t; peer: ask t = has_run
a run whose message was acknowledged after it leaves no trace:
    take t; end t unacked; finished = 0 t; acked t; finished = -; records = -
a run without a lease whose message is being acknowledged leaves no trace:
    take t; expire t; reap = t; end t unacked; acked t; finished = -; records = -
a run that came to nothing is repeated:
    take t; end t again; peer: take t
a call that parks and is sent again confirms nothing:
    park t; peer: look = t; peer: end t; again; finished = 0 t
a delivery that is parked beside a run is on record, too:
    take t; peer: park t; end t again slots=1 = t; end t; finished = 0 t; ask t = has_run
a needless delivery is on record until it is acknowledged:
    take t; peer: park t; end t; ask t = has_run; look slots=0; peer: look slots=0; finished = -
a task that was sent back and ran leaves no trace:
    take t; send_back t; peer: look = t; peer: end t; finished = 0 t; look slots=0; finished = -
a return covers no message that another worker parked:
    park t; peer: look = t; peer: send_back t; peer: look = t; peer: end t; finished = 0 t; look slots=0; finished = -
an unacknowledged delivery beside a run is on record, such as the retry of a task whose end is unknown:
    take t; peer: park t attempt=1; peer: unacked t; end t retry slots=1 = t#1; end t; finished = 1 t
    peer: ask t attempt=1 = has_run
an unacknowledged second delivery is on record, when nothing came of the first:
    take t; peer: park t; peer: unacked t; end t ignored slots=1 = t; end t; finished = 0 t
an attempt with a retry does not come again, though it could not be acknowledged:
    take first; park t; peer: park t attempt=1; unacked t; finished = 0 t; unacked_of t = -
an attempt with a retry is kept by the broker:
    take first; park t unacked; peer: park t attempt=1 unacked; finished = 0 t; unacked_of t = peer; acked t
    finished = -; unacked_of t = peer
an attempt with a retry was acknowledged before:
    take first; park t; park t attempt=1; finished = -
an attempt with a retry beside a run is kept by the broker:
    take t; park t unacked; peer: park t attempt=1 unacked; finished = 0 t; end t retry slots=1 = t#1; end t
    peer: ask t = has_run; peer: ask t attempt=1 = has_run
an unacknowledged task run by its own worker is on record, after a call that a full store refused:
    park t slots=1 = t; fill; refused park u; make_room; gather; unacked t; end t; send; finished = 0 t
    peer: park t = has_run
a task that was sent back twice by a refused call, whose copy came late, runs once:
    take t; send_back t; peer: look = t; peer: end t; gather; unacked t; send_back t; send slots=1 = -; records = -
two deliveries beside a late run cover only themselves:
    peer: park t; look = t; park t; end t return; lost_run t; renew t = put back; end t; look slots=0; park t = has_run
only tasks that the last call parked are acknowledged:
    park t; peer: withdraw t; peer: take t; peer: end t at_broker; park t = has_run; finished = 0 t
the first parking covers no other delivery [peer: ask t = is_copy | peer: park t = is_copy]:
    take first; park t; *; end first slots=1 = t; end t; look slots=0; park t = has_run
    look slots=0; finished = 0 t; peer: look slots=0; finished = -
a delivery beside a run covers no other delivery:
    take t; park t; peer: park t; end t again slots=1 = t; end t; look slots=0; park t = has_run
a retry beside a run covers no other delivery of the attempt before it:
    take t; park t attempt=1; peer: park t; end t retry slots=1 = t#1; end t; look slots=0; park t = has_run
a delivery of a finished task is on record for a call [peer: ask t = has_run | peer: park t = has_run]:
    park t; peer: look = t; peer: end t; *; look slots=0; park t = has_run
    look slots=0; peer: look slots=0; finished = -
"""

#: The broker keeps the message of a parked task until its worker reports that it is acknowledged.
KEPT = """
it is known whenever it runs, for any number of calls since:
    park t unacked; look slots=0; peer: look = t; peer: end t; finished = 0 t; peer: ask t = has_run
    peer: park t = has_run
one that is acknowledged before its run leaves no trace:
    park t unacked; acked t; peer: look = t; peer: end t; finished = -; peer: take t
one that is acknowledged later leaves no trace [acked t; peer: end t | peer: end t; acked t]:
    park t unacked; peer: look = t; *; finished = -; peer: take t
one that is delivered again is known until both are acknowledged:
    park t unacked; peer: park t unacked; peer: look = t; peer: end t; acked t; peer: saved t = done; peer: acked t
    finished = -
one that comes after it ran is kept until both are acknowledged:
    park t unacked; peer: look = t; peer: end t; everywhere: lost_run t; everywhere: unacked t; everywhere: acked t
    finished = 0 t; acked t; finished = -
one that was sent back is kept, as late acknowledgement has its message at the broker:
    take t; send_back t unacked; unacked_of t = worker; peer: look = t; peer: end t; finished = 0 t
an attempt that a parked retry has taken the place of is over:
    take first; park t attempt=1; peer: park t unacked = is_copy; finished = 0 t; peer: acked t; finished = -
an attempt that a retry beside a run has taken the place of is over:
    take t; park t attempt=2; peer: park t attempt=1 unacked = is_copy; finished = 1 t; peer: acked t; finished = -
deliveries beside a run are kept until both are acknowledged:
    take t; park t unacked; peer: park t unacked; acked t; end t; peer: saved t = done; peer: acked t; finished = -
a drained task covers no other message [acked t; peer: look = t; peer: end t | peer: look = t; peer: end t; acked t]:
    park t unacked; lend t = t; drained t = 1; peer: park t unacked; *; peer: saved t = done
a delivery that the broker does not keep has no effect:
    take first; park t; peer: ask t = is_copy; peer: park t = is_copy; unacked_of t = -
one that waits beside a run and is dropped is known, since its message may come again:
    take t; peer: park t unacked; end t; finished = 0 t; peer: acked t; finished = -
one that waits beside a run and was acknowledged leaves no trace:
    take t; peer: park t unacked; peer: acked t; end t; finished = -
a task with an outcome is over, and must not come again from the broker:
    park t unacked; peer: look = t; peer: end t never; finished = 0 t; look; finished = 0 t
a task with an outcome is over with the next call, if it is not kept:
    park t; peer: look = t; peer: end t never; finished = 0 t; look; finished = -
one that was revoked is over:
    take first; park t unacked; peer: withdraw t = t#0; finished = 0 t
a parked message is there:
    take first; park t unacked; park u attempt=2 unacked; saved t u other = there there lost
a message that was lost with the store is lost:
    park t unacked; flush; saved t = lost
a finished task is done:
    park t unacked; peer: look = t; saved t = there; peer: end t; saved t = done
an early acknowledged task is done once it has begun:
    park t unacked; peer: look = t; peer: began t; saved t = done
a holder that the store had lost has no message, and waits beside the run:
    peer: take t; saved t = lost; park t unacked; saved t = there; peer: end t lost; saved t = there
"""

#: A permit that passed from a run that ended to one that began in the same worker, reported afterwards.
PASSED_ON = """
the other holds it then, as if it had asked for it:
    take t1; pass_on t1 t2 attempt=2; used = gpu 1; held = t2; renew t2 = renewed; peer: park t2 attempt=1
    seconds = t2#1; end t2 slots=1 = -; parked = -
it may pass on several times within a call:
    take t0; gather; pass_on t0 t1; pass_on t1 t2; pass_on t2 t3; end t3; send; records = -; used = -
it passes on before the other rows of a call:
    take t1; park t3; gather; pass_on t1 t2; end t2; send slots=1 = t3
a lost lease has nothing to pass on, and the run that goes on is put back only if there is room:
    take t1; expire t1; peer: reap; peer: take t3; pass_on t1 t2; held = t3; renew t2 = lost; peer: end t3
    renew t2 = put back; held = t2
one that is parked elsewhere waits for this run, and does not run after its success:
    peer: take x; take t1 on=gpu2:2; peer: park t2; pass_on t1 t2 on=gpu2:2; held = t2 x; parked = -
    second_messages = t2#0; peer: end x slots=2 = -; end t2; empty
one that runs elsewhere keeps its permit there:
    take t1 on=gpu2:2; peer: take t2 on=gpu2:2; pass_on t1 t2 on=gpu2:2; used = gpu2 1; runs_of t2 = peer
    renew t2 = lost
the second delivery of the ended one follows its result [done | failed]:
    take t1; peer: park t1; pass_on t1 t2 *; parked = -; seconds = -
the retry of the ended one goes on:
    take t1; peer: park t1 attempt=1; pass_on t1 t2 retry; parked = t1; seconds = -
the same call again passes nothing twice:
    take t1 on=gpu2:2; pass_on t1 t2 on=gpu2:2; again; used = gpu2 1; held = t2
a renewal of a past holder puts nothing back:
    take t1 on=gpu2:2; note; pass_on t1 t2 on=gpu2:2; renew t1 noted = later; held = t2
the reply has the state of its limit:
    take t1; pass_on t1 t2; closed = gpu
one whose permit was passed on ends its other run as well:
    park t slots=1 = t; look slots=0; peer: lose t; pass_on t next; empty
"""

#: A task id that is published again and again: other calls, of which each runs. Copies of one publication run once.
PUBLICATIONS = """
another waits at the broker until the first has ended [take t publication=a | park t publication=a; look = t]:
    *; peer: ask t publication=b = id_in_use; peer: park t publication=b = id_in_use; seconds = -
    peer: park t publication=a
another waits for a first that is parked:
    take first; park t publication=a; peer: ask t publication=b = id_in_use; peer: park t publication=b = id_in_use
    end first slots=1 = t; end t; peer: take t publication=b; runs_of t = peer
another is not dropped for a first that has run, and copies of both are:
    take t publication=a; end t at_broker; ask t publication=a = has_run; take t publication=b; end t at_broker
    finished = 0 a t, 0 b t; ask t publication=a = has_run; ask t publication=b = has_run; take t publication=c
a parked one that has run covers only its own copies:
    park t publication=a unacked; peer: look = t; peer: end t; park t publication=a = has_run
    acked t; look; look; park t publication=b; peer: look = t; peer: end t
a message without a name may be a copy of any [publication=a | attempt=0]:
    take t *; end t at_broker; peer: ask t = has_run; peer: park t = has_run
a message with a name may be a copy of one without:
    take t; end t at_broker; ask t publication=a = has_run; park t publication=a = has_run
a copy of a parked message covers that message alone:
    take first; park t publication=a; peer: ask t publication=a = is_copy; peer: park t publication=a = is_copy
a retry keeps the name, and the message before it is over:
    take t publication=a; peer: park t attempt=1 publication=a; end t retry slots=1 = t#1
    ask t publication=a = must_park; end t; ask t publication=b = granted
what replaces a task has another name, and waits for its run [attempt=1]:
    take t publication=a; peer: park t * publication=b; seconds = t#1; end t slots=1 = t#1
a call that runs once is one task under any publication:
    take t@i publication=a; peer: ask t@i publication=b = must_park; peer: park t@i publication=b
    end t; seconds = -; parked = -
another that a late run has put aside goes on after it:
    take t publication=a; expire t; reap; peer: take x; peer: park t publication=b; peer: end x; renew t = put back
    seconds = t; end t slots=1 = t; end t; empty
a late success of one leaves the other alone:
    take t publication=a; expire t; reap; peer: take t publication=b; end t; runs_of t = peer; peer: end t; empty
one that is lent comes back by its name:
    take first; park t publication=a; lend t = t; peer: park t publication=b = id_in_use
"""

STORIES = stories(PLACES, ADMITTED, ENDED, RENEWED, REPLAYED, SECOND, OVER, RAN, KEPT, PASSED_ON, PUBLICATIONS)


@pytest.mark.parametrize("steps", STORIES)
def test_a_story_of_deliveries(story: Story, steps: str) -> None:
    story.tell(steps)
