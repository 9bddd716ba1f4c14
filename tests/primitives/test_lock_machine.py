"""Any sequence of calls on identity locks, against a model.

``HYPOTHESIS_EXAMPLES=5000`` runs that many random sequences; without it the same few run every time.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from celery_throttle.embedded import EmbeddedServer
from celery_throttle.errors import LeaseLost
from celery_throttle.primitives import HeldLock, IdentityLock
from tests.primitives.resending import Resending
from tests.support.machines import run_machine

FENCE = b"{throttle}:2:lock:fence"
IDENTITIES = ("a", "a*", b"\xff:a")
OWNERS = (None, None, "me", "you")
#: Time does not pass by itself here.
LEASE, LONGER = 3_600.0, 7_200.0

identities = st.sampled_from(IDENTITIES)
picks = st.integers(0, 30)
sent = st.sampled_from((1, 1, 1, 2, 3))


def key_of(identity: str | bytes) -> str:
    raw = identity.encode() if isinstance(identity, str) else identity
    return f"{{throttle}}:2:lock:{hashlib.sha256(raw).hexdigest()}"


@dataclass(frozen=True)
class Grant:
    """The holder of a lock in the model."""

    owner: str
    token: int


class LockMachine(RuleBasedStateMachine):
    """Several holders, on time and late, some of whose calls are sent again."""

    client: ClassVar[Resending]

    def __init__(self) -> None:
        super().__init__()
        self.client.times = 1
        self.client.flushall()
        self.locks = IdentityLock(self.client, lease=LEASE)
        self.model: dict[str | bytes, Grant] = {}
        self.handles: list[HeldLock] = []
        self.granted: list[int] = []
        #: grants that were released, or forgotten, and that the store remembers for a resent call
        self.released: set[int] = set()
        self.forgotten: set[int] = set()

    @rule(identity=identities, owner=st.sampled_from(OWNERS), times=sent)
    def acquire(self, identity: str | bytes, owner: str | None, times: int) -> None:
        """Acquire: granted if the lock is free, or again to its holder."""
        before = self.model.get(identity)
        self.client.times = times
        held = self.locks.acquire(identity, owner=owner)
        assert (held is None) == (before is not None and before.owner != owner)
        if held is None:
            return
        self.handles.append(held)
        if before is None:
            assert held.fencing_token > max(self.granted, default=0)
            self.granted.append(held.fencing_token)
            self.model[identity] = Grant(held.owner, held.fencing_token)
        else:
            assert held.fencing_token == before.token

    @precondition(lambda self: self.handles)
    @rule(pick=picks, times=sent, longer=st.booleans())
    def renew(self, pick: int, times: int, longer: bool) -> None:
        """Renew: only the present holder can; any other gets an error."""
        held = self._pick(pick)
        self.client.times = times
        knew = held._releasing or held.lost
        try:
            assert held.renew(LONGER if longer else None) is True
        except LeaseLost:
            assert knew or not self._has(held)
            assert held.lost or held._releasing
        else:
            assert self._has(held)
            assert self.client.pttl(key_of(held.identity)) > (held._seconds - 600) * 1000

    @precondition(lambda self: self.handles)
    @rule(pick=picks, times=sent, anew=st.booleans())
    def release(self, pick: int, times: int, anew: bool) -> None:
        """On time, late, or again, also by a copy of the handle that does not remember (a call resent much later)."""
        held = self._pick(pick)
        answered = held._released
        if anew:
            held = self._copy(held)
        self.client.times = times
        expected = self._has(held) or held.fencing_token in self.released
        if answered is not None and not anew:
            expected = answered
        assert held.release() is expected
        if self._has(held):
            assert expected
            del self.model[held.identity]
            self.released.add(held.fencing_token)

    @rule(identity=identities)
    def expire(self, identity: str | bytes) -> None:
        """The lease ends."""
        self.client.delete(key_of(identity))
        self.model.pop(identity, None)

    @precondition(lambda self: self.granted)
    @rule(identity=identities, pick=picks, times=sent)
    def forget(self, identity: str | bytes, pick: int, times: int) -> None:
        """Only the grant that was looked at, be it of another lock."""
        grant, token = self.model.get(identity), self.granted[-1 - pick % len(self.granted)]
        self.client.times = times
        present = grant is not None and grant.token == token
        assert self.locks.forget(identity, token) is (present or token in self.forgotten)
        if present:
            del self.model[identity]
            self.forgotten.add(token)

    @rule()
    def lose_everything(self) -> None:
        """The server comes back empty."""
        self.client.flushall()
        self.model.clear()
        self.released.clear()
        self.forgotten.clear()

    @rule()
    def lose_the_scripts(self) -> None:
        self.client.script_flush()

    @invariant()
    def the_store_agrees(self) -> None:
        self.client.times = 1
        for identity in IDENTITIES:
            info, grant = self.locks.locked_by(identity), self.model.get(identity)
            assert (info and Grant(info.owner, info.fencing_token)) == grant

    @invariant()
    def at_most_one_handle_works(self) -> None:
        """Besides copies of the same grant."""
        working = {(held.identity, held.fencing_token) for held in self.handles if self._has(held)}
        assert len({identity for identity, _ in working}) == len(working)

    @invariant()
    def every_key_ends_but_the_last_token(self) -> None:
        keys = set(self.client.scan_iter())
        assert all(self.client.pttl(key) > 0 for key in keys - {FENCE})
        assert len(keys - {FENCE}) == len(self.model) + len(self.released) + len(self.forgotten)

    def _pick(self, pick: int) -> HeldLock:
        # Recent ones are the interesting ones.
        return self.handles[-1 - pick % len(self.handles)]

    def _has(self, held: HeldLock) -> bool:
        return self.model.get(held.identity) == Grant(held.owner, held.fencing_token)

    def _copy(self, held: HeldLock) -> HeldLock:
        return HeldLock(
            self.client,
            self.locks._calls,
            held._grant,
            identity=held.identity,
            owner=held.owner,
            seconds=LEASE,
            deadline=held._deadline,
            on_lost=None,
        )


@pytest.mark.slow
@pytest.mark.usefixtures("redis")
def test_any_sequence_of_calls_keeps_the_rules_of_locks(server: EmbeddedServer) -> None:
    """One owner, growing tokens, and nothing a late holder does reaches the next one."""
    with Resending.from_url(server.url) as resending:

        class OnThisServer(LockMachine):
            client = resending

        run_machine(OnThisServer, examples=25, steps=40, random_steps=60)
