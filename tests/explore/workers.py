"""The actions of a worker: it delivers, asks, reads replies, begins and ends runs.

A model of the real gate, by hand.
"""

from __future__ import annotations

import json
from dataclasses import replace

from celery_throttle.core.dedup import fenced
from celery_throttle.core.facts import Facts, Message, Result
from celery_throttle.store.exchange import Arrival, DeliveryChange, Exchange
from celery_throttle.store.exchange_reply import Answer, Grant, Reply, read_exchanged
from celery_throttle.store.identity_locks import OURS, TAKEN, read_claimed
from tests.explore.checks import check_begin
from tests.explore.order import check_order
from tests.explore.store import CALLS
from tests.explore.world import Permit, Run, Sent, Worker, World, number_of
from tests.explore.worlds import IDENTITY
from tests.simulation.invariants import Violation

__all__ = ["carry_out", "deliver", "end", "end_spare", "hear", "pump", "renewal", "send"]


def deliver(world: World, place: int) -> None:
    """The broker gives its next message to a worker."""
    worker, copy = world.worker(place), world.next_copy
    assert copy is not None, "no message waits"
    task = world.config.tasks[copy.task]
    copy.at = place
    worker.deliveries += 1
    lock = world.plan(copy.task, copy.header).spec if task.dedup else ""
    nonce = f"{worker.name}:{worker.deliveries:x}"
    run = Run(
        copy.task, copy.attempt, nonce, lock, copy.header, copy.number, worker.epoch, redelivered=copy.redelivered
    )
    book = world.state.books[run.task]
    if book.revoked:
        book.tell("revoked")
        world.acknowledge(worker, run)
        _never(world, worker, run.task)
        return
    worker.runs[nonce] = run
    if not worker.closed.isdisjoint([world.bound(each, nonce) for each in task.buckets]):
        run.state = "parking"
        worker.say.arrived.append(nonce)
    elif worker.spare and not run.redelivered and _is_plain(world, run):
        worker.permits[nonce] = worker.spare.popitem()[1]
        worker.passed.append(nonce)
        _begin(world, worker, run)
    else:
        run.state = "asking"
        worker.say.arrived.append(nonce)


def pump(world: World, place: int) -> None:
    """Send the rows that cannot wait."""
    worker = world.state.workers[place]
    if worker is not None and worker.sent is None and worker.say.urgent:
        send(world, place)


def send(world: World, place: int) -> None:
    """Send all that there is to say."""
    worker = world.worker(place)
    end_spare(worker)
    worker.call += 1
    for nonce in list(worker.passed):
        _settle(world, worker, nonce)
    slots = 0 if worker.leaving else max(world.free_slots(place), 0)
    said, queue = worker.say, world.config.queues[place]
    over = {row.nonce for row in said.ended}
    unacked = [DeliveryChange("unacked", *which, nonce) for nonce, which in said.unacked.items()]
    row = Exchange(
        slots=slots,
        arrived=[_arrival(world, worker.runs[nonce]) for nonce in said.arrived],
        changed=[row for row in said.changed if row.event != "began" or row.nonce not in over] + unacked,
        gone=said.gone,
    )
    calls = replace(CALLS, sites=world.sites(worker.name))
    packed = calls.exchange(worker.name, worker.call, (queue,), row, world.state.birth).packed()
    worker.sent = Sent(packed, said.arrived)
    worker.say = type(said)()
    worker.offered = slots


def _arrival(world: World, run: Run) -> Arrival:
    if run.state == "asking":
        return world.arrival(run)
    arrival = world.arrival(run, b"%d" % run.redelivered)
    return arrival._replace(pause=(1.0, world.task(run).needs)) if run.state == "back" else arrival


def carry_out(world: World, place: int) -> None:
    """The store carries out the call under way."""
    sent = world.worker(place).sent
    assert sent is not None, "nothing is under way"
    before = world.state.content
    (raw,) = world.call(sent.packed)
    reply = read_exchanged(raw)
    if reply is None:
        raise Violation("the store asks for the limits, though it was never emptied")
    sent.carried, sent.reply = True, reply
    granted = granted_by(sent, reply)
    world.state.lapsed.difference_update(granted)
    if not world.config.steering:
        check_order(world, before, granted, world.config.permits)


def granted_by(sent: Sent, reply: Reply) -> list[str]:
    """Return the nonces that got permits, or have them still."""
    asked = [nonce for nonce, answer in zip(sent.arrived, reply.arrived, strict=True) if _is_granted(answer)]
    return [grant.nonce for grant in reply.grants] + asked


def _is_granted(answer: int) -> bool:
    return answer == Answer.GRANTED or answer > max(Answer)


def hear(world: World, place: int) -> None:
    """Read the answer; one that is too late makes the worker ask again."""
    worker = world.worker(place)
    sent = worker.sent
    assert sent is not None, "nothing is under way"
    reply = sent.reply
    assert reply is not None, "it was not carried out"
    if sent.late:
        sent.carried, sent.late, sent.reply = False, 0, None
        return
    worker.sent, worker.offered = None, 0
    for nonce, answer in zip(sent.arrived, reply.arrived, strict=True):
        if answer == Answer.SENT_BACK:
            worker.permits.pop(nonce, None)
        _answered(world, worker, worker.runs[nonce], answer)
    for grant in reply.grants:
        _resumed(world, worker, grant)
    for each in reply.withdrawn:
        world.state.books[number_of(each.task)].tell("revoked")
        _never(world, worker, number_of(each.task))
    worker.closed -= set(reply.open)
    if set(reply.closed) - worker.closed:
        end_spare(worker)
    worker.closed |= set(reply.closed)


def _answered(world: World, worker: Worker, run: Run, answer: int) -> None:
    wanted = run.state == "asking"
    if answer == Answer.MUST_PARK:
        if wanted:
            run.state = "parking"
            worker.say.arrived.append(run.nonce)
        else:
            del worker.runs[run.nonce]
    elif not _is_granted(answer):
        _parked(world, worker, run)
    elif not wanted:
        facts = _facts(worker, run, Result.NOTHING, began=False)
        worker.say.changed.append(DeliveryChange("ended", run.task_id, run.attempt, run.nonce, facts=facts))
        del worker.runs[run.nonce]
    else:
        if answer != Answer.GRANTED:
            run.lock = fenced(run.lock, answer)[0]
        worker.permits[run.nonce] = Permit(world.arrival(run))
        if world.state.books[run.task].revoked:  # as `execute_using_pool` finds
            world.state.books[run.task].tell("revoked")
            world.acknowledge(worker, run)
            _over(world, worker, run, Facts(began=False, message=Message.NOBODY))
            _never(world, worker, run.task)
        else:
            _begin(world, worker, run)


def _parked(world: World, worker: Worker, run: Run) -> None:
    """The store has it: the broker need not keep it."""
    world.acknowledge(worker, run)
    if not run.acked and not run.stored:
        worker.say.unacked[run.nonce] = (run.task_id, run.attempt)
    del worker.runs[run.nonce]


def _resumed(world: World, worker: Worker, grant: Grant) -> None:
    lock, task = grant.lock, number_of(grant.task)
    book = world.state.books[task]
    if worker.leaving:
        facts = Facts(began=False, message=Message.PLACE)
        worker.say.changed.append(DeliveryChange("ended", grant.task, grant.attempt, grant.nonce, facts=facts))
        return
    again = grant.deliveries > 0 or grant.message == b"1"
    run = Run(task, grant.attempt, grant.nonce, lock.spec if lock else "", None, None, worker.epoch, redelivered=again)
    worker.runs[run.nonce] = run
    worker.permits[run.nonce] = Permit(world.arrival(run))
    verdict = lock.verdict if lock else "run"
    others = [other.told for number, other in enumerate(world.state.books) if number != task]
    if verdict in ("replaced", "skip", "duplicate") and set(others) == {"not published"}:
        raise Violation(f"unpublished: {grant.task} is told {verdict!r}, and no other call was published")
    if grant.expired or verdict not in ("run", "conclude") or book.revoked:
        book.tell("revoked" if book.revoked else "expired" if grant.expired else verdict)
        _over(world, worker, run, _told(run, revoked=verdict in ("run", "conclude") and not grant.expired))
        # Celery reports these; the outcome of a request that was to conclude is one of our own task.
        if verdict in ("skip", "replaced") or (verdict == "run" and (book.revoked or grant.expired)):
            _never(world, worker, task)
        return
    if lock:
        run.header = (json.loads(run.lock)["claim"], "")
    run.conclude = lock.first if lock and verdict == "conclude" else ""
    _begin(world, worker, run)


def _told(run: Run, *, revoked: bool) -> Facts:
    """As `Run.facts_unrun` of the real gate."""
    if run.redelivered and not revoked:
        return Facts(began=False, message=Message.BROKER, result=Result.FAILURE)
    return Facts(began=False, message=Message.NOBODY)


def _begin(world: World, worker: Worker, run: Run) -> None:
    run.state = "running"
    if not world.task(run).late:
        if run.stored:
            worker.say.changed.append(DeliveryChange("began", run.task_id, run.attempt, run.nonce))
        else:
            world.acknowledge(worker, run)
        run.acked = True
    if not run.conclude:
        check_begin(world, worker, run)
        fence = int(json.loads(run.lock).get("fence", 0)) if run.lock else 0
        world.state.bodies[run.nonce] = (run.task, run.lock and world.plan(run.task, None).identity, fence)


def end(world: World, place: int, nonce: str, outcome: str) -> None:
    """A run comes to this end."""
    if outcome != "success":
        world.spend(outcome)
    worker = world.worker(place)
    run = worker.runs[nonce]
    book, task = world.state.books[run.task], world.task(run)
    world.state.bodies.pop(nonce, None)
    if outcome == "limited":
        book.credit += 1
        run.state = "back"
        _settle(world, worker, nonce)
        worker.say.arrived.append(nonce)
        return
    run.state = "gone"
    if outcome == "retry":
        _retry(world, run)
    else:
        book.tell("concluded" if run.conclude else outcome)
        if outcome == "success" and not run.conclude and task.dedup and task.dedup.remember:
            _succeeded(world, run, task.dedup.remember)
    if task.late:
        world.acknowledge(worker, run)
        run.acked = True
    facts = _facts(worker, run, Result(outcome), began=True)
    if _is_plain(world, run) and _can_pass(worker, facts, task.buckets):
        permit = worker.permits.pop(nonce)
        permit.result = permit.result or outcome
        worker.passed = [each for each in worker.passed if each != nonce]
        worker.spare[nonce] = permit
        del worker.runs[nonce]
    else:
        _over(world, worker, run, facts)


def _is_plain(world: World, run: Run) -> bool:
    """As `Tasks.is_plain` of the real gate."""
    return world.config.passes_on and not run.lock and not world.task(run).late


def _can_pass(worker: Worker, facts: Facts, buckets: list[str]) -> bool:
    fits = facts.message is Message.NOBODY and not worker.leaving
    return fits and worker.closed.isdisjoint(buckets)


def _succeeded(world: World, run: Run, remember: float) -> None:
    """Report the success from the child, at once."""
    lock = json.loads(run.lock)
    world.call(CALLS.succeeded(lock["identity"], run.task_id, int(lock["fence"]), remember))


def _retry(world: World, run: Run) -> None:
    header = run.header
    if run.lock:
        lock = json.loads(run.lock)
        header = (lock["claim"], lock.get("first", ""))
        if lock["lock_until"] != "started":
            spec = world.plan(run.task, header).spec
            claimed = read_claimed(world.call(CALLS.claim(run.task_id, spec, 3600.0))[0])
            if claimed.answer == TAKEN and claimed.other != run.task_id:
                world.state.books[run.task].tell("swallowed")
                return
            header = (claimed.claim, "")
            world.put(run.task, run.attempt + 1, header)
            is_retry = claimed.answer == OURS
            if not (is_retry and lock["lock_until"] == "expires"):
                world.call(CALLS.sent(IDENTITY, run.task_id, claimed.claim, 3600.0, is_retry=is_retry))
            return
    world.put(run.task, run.attempt + 1, header)


def _over(world: World, worker: Worker, run: Run, facts: Facts) -> None:
    _settle(world, worker, run.nonce)
    worker.permits.pop(run.nonce, None)
    worker.runs.pop(run.nonce, None)
    worker.say.changed.append(DeliveryChange("ended", run.task_id, run.attempt, run.nonce, facts=facts))


def _settle(world: World, worker: Worker, nonce: str) -> None:
    """Report a permit that was passed on, before any other row about its new holder."""
    if nonce in worker.passed:
        worker.passed.remove(nonce)
        permit = worker.permits[nonce]
        told, to = permit.told, world.arrival(worker.runs[nonce])
        facts = Facts(began=True, message=Message.NOBODY, result=Result(permit.result))
        worker.say.changed.append(DeliveryChange("passed", told.task, told.attempt, told.nonce, facts=facts, to=to))
        worker.permits[nonce] = Permit(to)


def end_spare(worker: Worker) -> None:
    """Give back the permits that no run has."""
    for permit in worker.spare.values():
        told = permit.told
        facts = Facts(began=True, message=Message.NOBODY, result=Result(permit.result))
        worker.say.changed.append(DeliveryChange("ended", told.task, told.attempt, told.nonce, facts=facts))
    worker.spare = {}


def _facts(worker: Worker, run: Run, result: Result, *, began: bool) -> Facts:
    """As `Run.facts` of the real gate."""
    if not run.acked:
        return Facts(began, Message.PLACE if run.stored else Message.BROKER, result)
    late = not run.stored and run.epoch != worker.epoch
    again = (late or run.redelivered) and result is not Result.NOTHING
    return Facts(began, Message.BROKER if again else Message.NOBODY, result)


def _never(world: World, worker: Worker, task: int) -> None:
    """Celery announces that a task was revoked, so the gate learns that it never runs."""
    if world.config.tasks[task].dedup:
        plan = world.plan(task, world.state.books[task].header)
        worker.say.gone.append(("never", f"t{task}", plan.identity, plan.first))


def renewal(worker: Worker) -> tuple[list[bytes], list[str]]:
    """Return the calls that renew all that a worker holds, and the nonces that they are about: see `renewals`."""
    back = {nonce for nonce, run in worker.runs.items() if run.state == "back"}
    calls, nonces = [], []
    for goes_back, number in ((False, worker.call), (True, -1)):
        held = [permit.told for nonce, permit in worker.permits.items() if (nonce in back) is goes_back]
        if held:
            calls.append(CALLS.renew(worker.name, number, held).packed())
            nonces += [row.nonce for row in held]
    return calls, nonces
