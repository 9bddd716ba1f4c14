"""Identity locks: the task that may run, the tasks that wait for it, and the results of the others, told as stories."""

from __future__ import annotations

import pytest

from tests.store.stories import Story, stories

PUBLISHING = """
claiming again is ours, as a retry that publishes itself does:
    claim t1 = claimed; claim t1 = ours
a duplicate gets the holder of the lock [return_existing | raise | skip]:
    claim t1; claim t2 * = taken t1; lock = t1 queued
the last one is kept to run next, and each newer one replaces the one before it:
    take t1; claim t2 keep_last = claimed; claim t3 keep_last = replaces t2; lock = t1 running; next = t3
other arguments are another lock:
    take t1; claim t2@other = claimed; take t3@third
giving up frees a queued one:
    claim t1; give_up t2 = 0; give_up t1 = 1; give_up t1 = 0; lock = -
one that runs is not given up:
    take t1; give_up t1 = 0; lock = t1 running
giving up the next one leaves the running one:
    take t1; claim t2 keep_last; give_up t2 = 1; lock = t1 running; next = -
giving up lets the follower run:
    claim t1; peer: arrive t2 = -; give_up t1; peer: look = t2 run
unlocking takes the lock from any holder:
    claim t1; unlock t2 = 0; unlock t1 = 1; unlock = 0; lock = -
a claim finds that the worker of the first is lost:
    take t1; expire t1; claim t2 = claimed; held = -
"""

GATE = """
the lock comes before the permit, so a singleton that waits for a permit has its lock:
    take t1 on=gpu; arrive t2@other on=gpu = -; lock other = t2 queued; verdict t2 = run
    end t1 slots=1 = t2 run; newer t2 t1
a task that is never parked takes no lock, since its message may not come again:
    take t1 on=gpu; ask t2@other on=gpu; lock other = -; end t1; take t2@other on=gpu
a duplicate takes no permit while it waits:
    take t1 on=gpu2:2; arrive t2 on=gpu2:2 slots=1 = -; used = gpu2 1; verdict t2 = follow; take t3@other on=gpu2:2
a duplicate needs no place in a full line:
    take t1 on=crowd<1; arrive t2@other on=crowd<1 = -; park t3@third on=crowd<1 = crowded; park t4 on=crowd<1 = -
    end t1 slots=2 = t2 run, t4 conclude t1
a duplicate that waits makes no line full:
    take t1 on=crowd<1; arrive t2 on=crowd<1; arrive t3 on=crowd<1; park t4@other on=crowd<1 = -
    park t5@third on=crowd<1 = crowded
duplicates get the outcome, which takes no permit [done | failed]:
    take t1 on=gpu; arrive t2 on=gpu; arrive t3 on=gpu
    end t1 * slots=3 = t2 conclude t1, t3 conclude t1; used = -; lock = -; end t2; end t3; empty
duplicates without a slot get the outcome later, whatever the holder is by then:
    take t0; arrive t1; arrive t2; arrive t3; end t0; claim t9
    peer: look slots=9 = t1 conclude t0, t2 conclude t0, t3 conclude t0
a duplicate from another queue gets the outcome, which this worker cannot give it:
    take t1; stranger: arrive t2; end t1 slots=1 = -; stranger: look = t2 conclude t1
a duplicate runs when the first was interrupted, which is no outcome:
    take t1; arrive t2; arrive t3; end t1 ignored slots=2 = t2 run; lock = t2 running
asking twice gives the same token, after a lost reply and by another call:
    take t1; again = granted; ask_again t1 = granted
a task that makes way as it could start leaves its lane, as the lock of the newer call was over for a moment:
    take h1@1 on=gpu; take h2@2 h3@3 on=gpu2:2; publish older replace; publish newer replace; park newer on=gpu2:2
    lock_ends; park older on=gpu; end h1 h2 h3 slots=1 = newer run; stored lanes = q; look = older replaced newer
more wait to run next than can go on at once, and time alone brings a call to the rest of them:
    publish t1 keep_last; take t1; publish t2 keep_last; arrive t2 = -; come_due lock next:same; lose_lock
    look = t2 run
a late end frees no other lock:
    take t1; arrive t2; lease_ends t1; look = t2 run; end t1 slots=1 = -; lock = t2 running
one that comes again keeps its lock [retry | requeue | return]:
    publish t1; take t1; arrive t2; end t1 * slots=2 = -; lock = t1 queued; claim t3 = taken t1
    take t1 attempt=1; end t1 slots=2 = t2 conclude t1
a duplicate that must not run takes a slot only, and no permit:
    take t1 on=gpu; arrive t2 raise on=gpu slots=1 = t2 duplicate t1; used = gpu 1; end t2; used = gpu 1
    arrive t3 skip on=gpu slots=1 = t3 skip t1; used = gpu 1; end t3; lock = t1 running
    arrive t4 replace on=gpu slots=1 = -; verdict t4 = follow
a holder that is put back leaves the line in which its other delivery waits:
    take t1 on=gpu; lease_ends t1; peer: reap 1; lock_ends; peer: claim t2; peer: arrive t1 on=gpu = -
    renew t1 = put back; parked = -
a retry that finds no lock is as old as its call [replace | keep_last]:
    publish t1 *; take t1; lease_ends t1; publish t2 *; lock_ends; publish t1; take t2
    arrive t1 slots=1 = t1 replaced t2; end t2
the last one runs after the one that runs, and those between them do not:
    publish t1 keep_last; take t1; publish t2 keep_last; arrive t2 = -; publish t3 keep_last; look slots=2 = -
    arrive t3 slots=1 = t2 replaced t1; end t1 slots=1 = t3 run
the next one runs though another delivery of it has expired:
    take t1 keep_last; peer: arrive t2 keep_last = -; peer: never t2; end t1 slots=1 = t2 run
a second delivery waits for the first, and is no duplicate of itself:
    take t1; arrive t1 slots=1 = -; seconds = t1; end t1 ignored slots=1 = t1 run
a revoked one that is parked frees its lock:
    take t0@other on=gpu; arrive t1 on=gpu; arrive t2; withdraw t1 = t1#0; look = t2 run
"""

HOW_LONG = """
until expires, a failure keeps the lock, and only the same task may run again:
    take t1 expires; end t1 failed; lock = t1 failed; claim t2 expires = taken t1
    arrive t2 expires slots=1 = t2 conclude t1; take t1 expires; end t1; lock = t1 done
until expires, a failed one makes the lock no longer [done | failed | retry | ignored]:
    publish t1 expires; mark; take t1; end t1 failed; wait 1800; take t1 attempt=1; end t1 *; as_marked
until expires, a failed one that waits to run again has no outcome yet:
    take t1 expires; end t1 failed; take t0@other on=gpu; arrive t1 expires on=gpu = -
    arrive t2 expires slots=1 = -; end t0 slots=1 = t1 run; end t1 slots=1 = t2 conclude t1
until expires, it lasts from its publishing to the millisecond, whatever the outcome [done | failed]:
    publish t1 expires; mark; take t1 expires; as_marked; renew t1; end t1 *; as_marked; lock = t1 *
    arrive t2 expires slots=1 = t2 conclude t1
until expires, a retry does not begin it again:
    publish t1 expires; mark; take t1 expires; end t1 retry; take t1 expires attempt=1; as_marked
    end t1; as_marked
until expires, an interrupted one keeps its lock:
    publish t1 expires; mark; take t1 expires; end t1 ignored; claim t2 expires = taken t1; as_marked
until started, it is free from the start on:
    claim t1 started = claimed; claim t2 started = taken t1; take t1 started; lock = -; claim t2 started = claimed
    take t2 started; newer t2 t1; claim t3 started; end t1; end t2; lock = t3 queued
until started, a later attempt runs despite another lock [return_existing | raise | skip | replace]:
    publish t1 started *; take t1; publish t2 started *; end t1 retry; take t1 attempt=1; lock = t2 queued
    end t1; lock = t2 queued; take t2
until started, a follower has the outcome of its first with a new lock [done | failed]:
    publish t1 started; peer: arrive t2 started = -; take t1; peer: publish t3 started; peer: take t3
    end t1 * slots=1 = t2 conclude t1
until started, a follower runs after a lost first, or after a published one that has the lock by then:
    publish t1 started; peer: arrive t2 started = -; take t1; peer: publish t3 started; peer: take t3
    expire t1; peer: reap 1; peer: look = t2 run
until started, a follower runs after a lost first, beside one that was not published:
    publish t1 started; peer: arrive t2 started = -; take t1; peer: take t3 started
    expire t1; peer: reap 1; peer: look = t2 run
until started, a restored run leaves the lock of others alone:
    take t1 started; flush; claim t2 started; renew t1 = put back; lock = t2 queued; claim t3 started = taken t2
until started, a task that is revoked elsewhere keeps no lock [retry | again | return]:
    publish t1 started; take t1; peer: never t1; end t1 *; peer: claim t2 started = claimed
one that may not wait any longer has no lock, also while no worker has a slot to end it:
    take other@other on=gpu; park t1 on=gpu wait_ms=600000; lock = t1 queued; come_due task t1; look slots=0; lock = -
    look = t1 expired; lock = -; renew t1; lock = -
one that waits for the lock of another may expire, too [return_existing | keep_last]:
    take t1 *; park t2 * expires_ms=600000; come_due task t2; look slots=0; look = t2 expired; lock = t1 running
a success is remembered for others and for another delivery:
    take t1 remember=60; end t1; lock = t1 done; claim t2 remember=60 = taken t1
    arrive t2 remember=60 slots=1 = t2 conclude t1; arrive t1 remember=60 slots=2 = t1 done t1
    wait 61; lock = -; take t3 remember=60; reap; lock = t3 running
a remembered success goes when its time is over:
    take t1 remember=60; end t1; wait 61; lock = -; reap; empty
until expires, a failure goes when its time is over:
    claim t1 expires lock_ttl=60 least=60; take t1 expires lock_ttl=60; end t1 failed; lock = t1 failed; wait 61
    lock = -; reap; empty
a failure is not remembered:
    take t1 remember=60; end t1 failed; lock = -
a success is remembered though its lease had ended, if no other task took the lock:
    take t1 remember=60; lease_ends t1; end t1; lock = t1 done
a success that is reported early outlives its worker:
    park t1 remember=60 slots=1 = t1 run; succeeded t1 = 1; lease_ends t1; reap; come_due task; look = t1 done t1
an early success of an earlier grant of the task counts:
    take t1 remember=60; succeeded t1 before = 1; lock = t1 done
a success is remembered beside the lock of another run, after a lost lease:
    park t remember=60 slots=1 = t run; look slots=0; expire t; peer: look slots=0; come_due task
    peer: look = t run; end t
    expire t; look = -; claim t2 remember=60 = taken t; peer: end t; claim t2 remember=60 = taken t
a success is remembered though its task went back in line:
    park t remember=60 slots=1 = t run; look slots=0; expire t; peer: look slots=0; end t
    claim t2 remember=60 = taken t; records = -
an early success counts though the lock is lost:
    take t1 remember=60; lease_ends t1; peer: reap 1; lock = -; succeeded t1 = 1; peer: claim t2 remember=60 = taken t1
an early success does not take the lock of another task:
    take t1 remember=60; lease_ends t1; peer: reap 1; peer: take t2 remember=60; succeeded t1 = 0; lock = t2 running
an early success does not count if an operator took the lock away:
    take t1 remember=60; unlock; succeeded t1 = 0; lock = -
"""

LEASES = """
a lock is put back after the store lost everything:
    take t1 on=gpu; flush; renew t1 = put back; lock = t1 running; used = gpu 1; claim t2 = taken t1; end t1; lock = -
a lock lasts as long as a lease that is renewed or asked for again [renew t1 = renewed | ask_again t1 = granted]:
    wait 0; take t1; wait 500; *; wait 500; claim t2 = taken t1
a call runs though its first was lost with more than one call clears:
    take o1@1 o2@2 o3@3 o4@4 o5@5 o6@6 o7@7 o8@8 o9@9; take t1 skip; expire o1 o2 o3 o4 o5 o6 o7 o8 o9 t1
    take t2 skip; lock = t2 running
a follower of an ended lock goes on after any discovery [say other pause | reserve mails@100/m | lock = -]:
    claim t1; peer: arrive t2 on=gpu = -; lock_ends; *; peer: look = t2 run
a permit that the answer gives back is for the next task:
    take t on=gpu; peer: park waits@other on=gpu; lock_ends; everywhere: take other; again = must_park
    peer: look = waits run
a duplicate runs when the lease of the first ends without a call:
    wait 0; take t1; arrive t2; wait 599; look = -; wait 2; look = t2 run
a run that goes on keeps the success of its other delivery, and for as long after its end:
    wait 0; take t1 remember=2; expire t1; peer: take t1 remember=2; peer: end t1; lock = t1 done
    renew t1 = put back; wait 3; peer: claim t2 remember=2 = taken t1; end t1 failed; lock = t1 done; wait 3; lock = -
a start that is asked for again after its lock ended has it again:
    take t1; lapse locks:same; again = granted; lock = t1 running; held = t1
a grant that is replayed after its lock ended comes with it:
    park t1 slots=1 = t1 run; lapse locks:same; again = parked, t1 run; lock = t1 running; held = t1
a start that is asked for again is refused when another task has the lock:
    take t1; lapse locks:same; peer: take t2; again = must_park; lock = t2 running; held = t2
a grant is not replayed when another task has the lock:
    park t1 slots=1 = t1 run; lapse locks:same; peer: take t2; again = parked; lock = t2 running; held = t2
a task that nothing has claimed keeps no lock until it comes again [retry | again | requeue | return]:
    take t1; peer: arrive t2 = -; end t1 * slots=1 = t2 run
    peer: arrive t1 attempt=1 = -; end t2 slots=1 = t1#1 conclude t2
a task keeps the lock that its retry has claimed:
    take t1; peer: arrive t2 = -; claim t1 = ours; end t1 retry slots=1 = -; lock = t1 queued; lasts_hours 1
    take t1 attempt=1; end t1 slots=1 = t2 conclude t1
tokens grow over a loss of the data:
    take t1; flush; take t2; newer t2 t1
a restored lock has the token of its task, by which its success is known:
    take t1 remember=60; flush; renew t1; succeeded t1 = 1
a restored lock of a parked task has its token:
    park t1 remember=60 slots=1; look; expire t1; peer: reap 1; renew t1 = put back; succeeded t1 = 1
the next one runs though the lock ended before its renewal:
    take t1 keep_last; peer: arrive t2 keep_last = -; lock_ends; renew t1 = renewed; end t1 slots=1 = t2 run
a follower of an ended lock waits for its restored holder:
    take t1; lock_ends; claim t2; peer: arrive t3 = -; lock_ends; renew t1 = renewed; end t1 slots=1 = t3 conclude t1
a follower of a first that has not started waits for the running one:
    take t1; lock_ends; claim t2; arrive t3; renew t1 = renewed; end t1 slots=1 = t3 conclude t1
a success is remembered though its holder is put back, whose worker does not have it yet:
    take t1 remember=60; succeeded t1; lease_ends t1; reap 1; renew t1 = put back; lock = t1 done; end t1
    claim t2 remember=60 = taken t1
a follower gets the success of a holder that is back in line:
    park t1 remember=60 slots=1; peer: arrive t2 remember=60 slots=1 = -; lease_ends t1; peer: reap 1
    succeeded t1 = 1; end t1; parked = t2; peer: look slots=2 = t2 conclude t1; peer: end t2; held = -; parked = -
a running one takes its lock back from one that has not started:
    take t1; flush; claim t2; renew t1 = put back; arrive t2 slots=1 = -; end t1 slots=1 = t2 conclude t1
a stepped back delivery waits for none of its own followers:
    take t1; lease_ends t1; peer: reap 1; lock_ends; peer: claim t2; peer: arrive t1 = -; renew t1 = put back
    peer: arrive t2 = -; expire t1; peer: reap 1; peer: look slots=2 = t1 run
    peer: end t1 slots=1 = t2 conclude t1
a duplicate that is put back takes no lock, it only has the outcome of its first:
    take t1; peer: arrive t2; end t1 slots=1; lease_ends t2; peer: reap 1; peer: claim t3; renew t2 = put back
    lock = t3 queued
a revoked retry keeps no lock when its first run is lost:
    take t1; claim t1; peer: never t1; lock = t1 running; expire t1; peer: reap 1; lock = -
a task that is revoked elsewhere during its grant keeps no lock [retry | again | return]:
    publish t1; take t1; peer: publish t2; peer: arrive t2 = -; peer: never t1; end t1 * slots=1 = t2 run
the next one comes before followers, though no retry comes [lock_ends | spoil_lock; peer: claim t9 = taken t3]:
    publish t1 keep_last; take t1; peer: publish t2; peer: arrive t2 = -
    peer: publish t3 keep_last; peer: arrive t3 = -; end t1 retry; *; peer: look slots=2 = t3 run
a grant that comes to nothing leaves the lock as it was:
    publish t1; take t1; end t1 return; lock = t1 queued; peer: never t1; take t1; end t1 return; lock = -
a revoked task that starts again waits for its retry, though an earlier lock would have ended:
    take t1 expires lock_ttl=5; peer: never t1; end t1 failed; take t1 expires lock_ttl=5; wait 20; end t1 retry
    lock = t1 queued
a lock that another one runs with is lost:
    take t1; flush; peer: take t2; renew t1 = lost; lock = t2 running; end t1; lock = t2 running
a task that was unlocked does not take its lock again with a renewal:
    take t1; unlock; renew t1; lock = -; claim t2 skip; renew t1; lock = t2 queued
a lost one that goes back in line keeps its lock:
    park t1 skip on=gpu slots=1; lease_ends t1; reap; lock = t1 queued; claim t2 skip = taken t1
one that is next and has not arrived is next after a lost one, too:
    publish t1 keep_last; take t1; publish t2 keep_last; lease_ends t1; reap; lock = t2 queued
the next one keeps the lock while it waits for a permit, as long as it may wait:
    take t0@other on=gpu; publish t1 keep_last; take t1; publish t2 keep_last; arrive t2 on=gpu; unlock; look
    lock = t2 queued; lasts_hours 1
"""

AWAITED = """
a late duplicate with a waiting caller has the outcome [done | failed]:
    publish t1; take t1; publish t2 awaited = t1; publish t3 awaited = t1; end t1 *; lock = -
    arrive t2 slots=1 = t2 conclude t1; end t2; arrive t3 slots=1 = t3 conclude t1; end t3; empty
one that goes back in line is counted once:
    take t1; publish t2 awaited; publish t3 awaited; end t1; arrive t2 slots=1; end t2 return
    look = t2 conclude t1; end t2; arrive t3 slots=1 = t3 conclude t1
one that is not published asks for nothing:
    take t1; publish t2 awaited = t1; give_up t2 t1 = 0; end t1; empty
one that is revoked asks for nothing, also if the first has ended:
    publish t1; take t1; publish t2 awaited; publish t3 awaited; end t1; never t2
    arrive t3 slots=1 = t3 conclude t1; never t3; awaited = -
one without a caller takes no place of one with a caller:
    take t1; publish t2 awaited; arrive t3; end t1 slots=1 = t3 conclude t1; end t3
    arrive t2 slots=1 = t2 conclude t1
a late one gets the remembered outcome, if that had not ended when it was published:
    take t1 remember=60; end t1; publish t2 remember=60 awaited = t1; lock_ends; arrive t2 slots=1 = t2 conclude t1
the outcome of the first counts those that ask for it, and its lock does not count them again:
    take t1 remember=60; publish t2 remember=60 awaited = t1; lock_awaited = 1; end t1; lock_awaited = 0
one runs if the first had no outcome:
    take t1; publish t2 awaited; end t1 ignored; arrive t2 = t2
a retry that does not run keeps no lock, though its first attempt is delivered again after the first:
    take other; publish t awaited = other; end other; take t return_existing; peer: park t attempt=1 = -
    end t at_broker; peer: look = t#1 conclude other; peer: end t; lock = -
one that has the lock goes on as its holder:
    take t1; publish t3 awaited; publish t2 awaited; end t1 ignored; take t2; claim t2 = ours
    end t2 retry; lock = t2 queued; take t2 attempt=1; end t2; lock = -
"""

LINES = """
the one before the last does not run after it:
    publish t1 keep_last; take t1; publish t2 keep_last; arrive t2; end t1 retry; publish t3 keep_last
    look slots=4 = -; take t3; look slots=4 = t2 replaced t3; end t2; end t3 slots=4 = -
the line of the next one stays open:
    publish t1 keep_last; take t1; publish t2 keep_last; arrive t2; end t1 retry; publish t3 keep_last
    look slots=4; take t3; publish t4 keep_last; arrive t4; end t3; look slots=4 = t4 run
the line of the next one stays open after an ended lock:
    publish t1 keep_last; take t1; publish t2 keep_last; arrive t2; lease_ends t1; lock_ends
    publish t3 keep_last; take t3; publish t4 keep_last; arrive t4; end t3; look slots=4 = t4 run
a follower that is published again waits its turn:
    take t1; arrive t2; arrive t3; lease_ends t1; claim t3 = taken t2; look slots=4 = t2 run
    end t2 slots=4 = t3 conclude t2
one that was to be skipped and is published again runs:
    take t1 skip; arrive t2 skip; end t1; claim t2 skip = claimed; look slots=4 = t2 run; lock = t2 running
one that ran before it became a duplicate has no token:
    park t1 slots=1 = t1 run; unlock; peer: take t2; lease_ends t1; reap; come_due task; look = -
    peer: end t2 slots=1 = t1 conclude t2
a verdict that is given back is offered again at once:
    take t1 on=gpu; arrive t2 skip on=gpu slots=1; end t2 return slots=1 = t2 skip t1
a follower of another queue is not passed over, as it had no turn that it could have missed:
    take t1; stranger: arrive t2; look; look; passed = -; end t1 slots=1 = -; stranger: look = t2 conclude t1
a replacement by another singleton before the end keeps no lock:
    publish t1; take t1; peer: publish t1@other; peer: arrive t1@other attempt=1048576; end t1 ignored; lock = -
"""

NEWEST = """
the newest replaces one that is queued [replace | keep_last]:
    claim t1; claim t2 * = replaces t1; later t2 t1; lock = t2 queued
one that runs is not replaced:
    take t1; claim t2 replace = taken t1; lock = t1 running
one that is next already is not replaced by itself:
    take t1; claim t2 keep_last = claimed; claim t2 keep_last = claimed
a parked task gets its replacement as soon as the newest has come, without a permit:
    take t0@other on=gpu; publish t1 replace; arrive t1 on=gpu; publish t2 replace
    arrive t2 on=gpu slots=1 = t1 replaced t2; lock = t2 queued
a parked one does not start during the publish of the newest:
    take t0@other on=gpu; publish t1 replace; arrive t1 on=gpu; publish t2 replace; end t0 slots=2 = -
    take t2 on=gpu; look slots=2 = t1 replaced t2
a newest that is not published replaces no task:
    take t0@other on=gpu; publish t1 replace; arrive t1 on=gpu; publish t2 replace; publish t3 replace
    give_up t3 = 1; claim t1 replace = ours; end t0 slots=2 = t1 run
a last one that is not published replaces no task:
    publish t1 keep_last; take t1; publish t2 keep_last; arrive t2 = -; publish t3 keep_last; give_up t3 = 1
    look slots=2 = -; end t1 slots=2 = t2 run
a newest that is not published replaces no task whose turn came [replace | keep_last]:
    take t0@other on=gpu; publish t1 *; arrive t1 on=gpu
    publish t2 *; end t0 slots=2 = -; take t0@other on=gpu; publish t3 *; end t0 slots=2 = -; take t0@other on=gpu
    give_up t3 = 1; look slots=2 = -; end t0 slots=2 = t1 run
a last one that is not published replaces no task whose first ended:
    publish t1 keep_last; take t1; publish t2 keep_last; arrive t2 = -; publish t3 keep_last; end t1 slots=2 = -
    give_up t3 = 1; look slots=2 = t2 run
the newest of a dead publisher replaces no task:
    take t0@other on=gpu; publish t1 replace; arrive t1 on=gpu; publish t2 replace; end t0 slots=2 = -; lock_ends
    look slots=2 = t1 run
the last one replaces the one before after a first that does not come again:
    publish t1 keep_last; take t1; publish t2 keep_last; arrive t2; publish t3 keep_last; end t1 retry
    give_up t1 = 1; look slots=2 = -; take t3; look slots=2 = t2 replaced t3
a follower of a replaced retry gets its end:
    publish t1 replace; take t1; publish t2 replace; arrive t2 = -; end t1 retry; publish t3 replace
    look slots=2 = -; take t3; look slots=2 = t2 replaced t3
a newest that is not published replaces no follower of a retry:
    publish t1 replace; take t1; publish t2 replace; arrive t2 = -; end t1 retry; publish t3 replace
    look slots=2 = -; give_up t3; look slots=2 = t2 run
the newest call replaces any parked one once it has arrived [return_existing | raise | skip]:
    take t0@other on=gpu; publish t1 *; arrive t1 on=gpu; publish t2 replace; end t0 slots=2 = -
    take t2 on=gpu; look slots=2 = t1 replaced t2
the newest call that does not come replaces no parked one [return_existing | raise | skip]:
    take t0@other on=gpu; publish t1 *; arrive t1 on=gpu; publish t2 replace; end t0 slots=2 = -
    give_up t2; look slots=2 = t1 run
the next one runs though another has the outcome of the first:
    publish t1 keep_last; take t1; publish t2 keep_last; arrive t2; publish t3 return_existing awaited
    end t1 slots=5 = t2 run; arrive t3 slots=1 = t3 conclude t1; end t2; lock = -
the next one runs though an older one is published again, which has lost its lease:
    publish t0 keep_last; take t0; lease_ends t0; peer: publish t1 keep_last; peer: take t1
    peer: publish t2 keep_last; peer: arrive t2; publish t0 awaited; peer: end t1 slots=5 = t2 run
an unlock while the newest is on its way strands no task:
    publish t1 keep_last; park t1 on=gpu slots=1; publish t2 keep_last; arrive t2 on=gpu; end t1 requeue
    publish t3 keep_last; unlock = 1; come_due task; arrive t3 on=gpu = t2 run; look slots=5 = -
    end t2 slots=5 = t3 run; end t3 slots=5 = t1 conclude t3; parked = -
the lock of the next one lasts until its ETA:
    publish t1 keep_last; take t1; claim t2 keep_last; sent t2 least=360000; end t1; lock = t2 queued; lasts_hours 100
the lock of the next one lasts as long after its arrival:
    publish t1 keep_last; take t1; claim t2 keep_last; sent t2 least=360000; arrive t2 keep_last; end t1
    lock = t2 queued; lasts_hours 100
a replaced task that is published again is the newest:
    take t0@other on=gpu; publish t1 replace; arrive t1 on=gpu; publish t2 replace; claim t1 replace = replaces t2
    arrive t2 on=gpu slots=1 = t2 replaced t1; end t0 slots=2 = t1 run
a replaced task that is published again can be taken out [withdraw t1 | drop gpu t1]:
    take t0@other on=gpu; publish t1 replace; arrive t1 on=gpu; publish t2 replace; publish t1 replace; *; lock = -
a task that was next does not replace its replacement:
    publish t1 keep_last; take t1; publish t2 keep_last; publish t3 keep_last; end t1 retry
    arrive t2 slots=1 = -; arrive t3 slots=1 = t3; look = t2 replaced t3
a retry without its lock replaces no newer task [replace | keep_last]:
    publish t1 *; take t1; lease_ends t1; publish t2 *; publish t1; take t2; arrive t1 slots=1 = t1 replaced t2
    end t2
one that was replaced on its way does not run:
    publish t1 replace; publish t2 replace; arrive t1 slots=1 = -; take t2; look = t1 replaced t2
a later publish is newer though the lock had ended:
    publish t1 replace; lock_ends; publish t2 replace; lock_ends; take t0@other on=gpu; arrive t1 on=gpu; take t2
    end t0 slots=2 = t1 replaced t2
a newer one that arrives first is the last one, since the order of publishing counts:
    publish t1 keep_last; take t1; publish t2 keep_last; publish t3 keep_last; arrive t3 = -
    arrive t2 slots=1 = t2 replaced t1; end t1 slots=2 = t3 run
a last one has not come when the first comes again:
    publish t1 keep_last; take t1; publish t2 keep_last; arrive t2; publish t3 keep_last; end t1 retry
    take t1 attempt=1; end t1 slots=2 = -; give_up t3 = 1; look slots=2 = t2 run
"""

TOLD = """
a skipped task does not run when it is delivered again, after its worker was killed:
    take t0 skip; peer: arrive t1 skip slots=1 = t1 skip t0; expire t1; look = t1 skip t0; end t1 never
    end t0; everywhere: ask t1 skip = has_run
the other message of a skipped task does not run:
    take t0 skip; peer: arrive t1 skip slots=1; everywhere: arrive t1 skip = -; end t0; peer: end t1 never
    everywhere: look = -
a replaced task does not run when its message comes late:
    publish t0 replace; publish t1 replace; take t1; everywhere: arrive t0 slots=1 = t0 replaced t1
    everywhere: end t0 told_again; end t1; peer: park t0 slots=1 = has_run
an outcome that is asked for before the end leaves nothing:
    publish t0 remember=60; peer: publish t1 remember=60 awaited; take t0; succeeded t0
    peer: arrive t1 slots=1 = t1 conclude t0; peer: end t1; end t0; awaited = -; lock = t0 done; lock_awaited = 0
a follower of a lost lease gets its end, as the lock outlasts the lease [done | failed]:
    claim t0 expires; take t0 expires; peer: arrive t1 expires = -; expire t0; peer: look; end t0 *
    peer: look = t1 conclude t0; lock = t0 *
"""

STEERED = """
the lock is why a duplicate waits:
    take first; arrive second; state second = waiting for its identity lock; place second = 1
    why second = Task first has its identity lock (which runs, since TIME): it waits for its outcome.
    state first = held; why first = It runs, or is about to, on worker aaaaaaaa, and holds no permit.; listed = second
    limit_of second = None
the lock of a dropped task is free, and the end of the task does not touch the next one:
    arrive t0@other on=gpu; arrive t1 on=gpu; drop gpu = 1; lock = -; claim t2 = claimed; look slots=9 = t1 expired
    end t1 never
    lock = t2 queued
a duplicate that waited for a dropped task runs:
    arrive t0@other on=gpu; arrive t1 on=gpu; arrive t2 on=gpu; parked_by_limit gpu = t1 runs, t2 waits; drop gpu t1 = 1
    lock = t2 queued; parked_by_limit gpu = t2 runs
duplicates are dropped with it:
    arrive t0@other on=gpu; arrive t1 on=gpu; arrive t2 on=gpu; arrive t3 on=gpu; drop gpu = 3; lock = -; lines = -
one that was to run next is dropped:
    take t0 keep_last on=gpu; arrive t1 keep_last on=gpu; next = t1; drop gpu = 1; lock = t0 running; next = -
a drained singleton keeps its lock, and the duplicates that wait for it stay:
    arrive t0@other on=gpu; publish t1; arrive t1 on=gpu; arrive t2 on=gpu; lend t1 t2 = t1; drained t1
    lock = t1 queued; arrive t1 on=gpu; lines = follow:same:t1 t2, gpu t1
one that is to run next is lent out:
    take t0 keep_last on=gpu; arrive t1 keep_last on=gpu; lend t1 = t1; drained t1 = 1
one whose turn came while it was lent out runs [not_drained t1 | expire t1]:
    take t0 keep_last on=gpu; arrive t1 keep_last on=gpu; lend t1; end t0 slots=1 = -; *; look = t1 run
the lock of a task that succeeds while it is lent out ends, as its published message will not run:
    park t slots=1 = t run; look slots=0; expire t; peer: look slots=0; lend t = t; end t; drained t; lock = -
a duplicate with an outcome is not dropped, as its result names the task that has its lock:
    arrive t0 on=gpu; arrive t1 raise on=gpu; drop gpu t1 = 0; look = t1 duplicate t0
a lent task runs if its newer call is given up:
    publish t0 keep_last; take t0 on=gpu; publish t1 keep_last; arrive t1 on=gpu; publish t2 keep_last; lend t1 = t1
    not_drained t1; give_up t2 = 1; look = -; end t0 slots=1 = t1 run
"""

STORIES = stories(PUBLISHING, GATE, HOW_LONG, LEASES, AWAITED, LINES, NEWEST, TOLD, STEERED)


@pytest.mark.parametrize("steps", STORIES)
def test_a_story_of_locks(lock_story: Story, steps: str) -> None:
    lock_story.tell(steps)
