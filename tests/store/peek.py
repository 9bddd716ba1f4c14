"""Everything the store keeps, read without its scripts, and whether it agrees with itself."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any, cast

from redis import Redis

from celery_throttle.core.keys import _NAMES
from celery_throttle.core.policy import costs_of
from tests.store.caller import KEYS

KEY = dict(zip(_NAMES, KEYS.all, strict=True))
_APART = ("follow:", "next:", "again:")
#: Kinds of entries that end by themselves, as KEYS ends names them.
_ENDING = ("locks", "rates", "turns", "overrides", "aside", "workers")


@dataclass(frozen=True)
class Record:
    """The record of one delivery in the store."""

    raw: dict[str, Any]

    @property
    def held(self) -> bool:
        return "nonce" in self.raw

    @property
    def nonce(self) -> str:
        return str(self.raw.get("nonce", ""))

    @property
    def attempt(self) -> int:
        return int(self.raw.get("attempt", 0))

    @property
    def ticket(self) -> int:
        return int(self.raw["ticket"])

    @property
    def place(self) -> int:
        return int(self.raw.get("place", self.ticket))

    @property
    def queue(self) -> str:
        return str(self.raw["queue"])

    @property
    def deliveries(self) -> int:
        return int(self.raw.get("deliveries", 0))

    @property
    def unacked(self) -> set[str]:
        """Which of its deliveries the broker keeps."""
        return {name for name, call in self.raw.get("out", {}).items() if not call}

    @property
    def told(self) -> dict[str, int]:
        """The workers that have still to acknowledge its message, and their calls with that reply."""
        return {name: int(call) for name, call in self.raw.get("out", {}).items() if call}

    @property
    def lock(self) -> dict[str, Any]:
        return cast("dict[str, Any]", self.raw.get("lock") or {})

    @property
    def verdict(self) -> str:
        return str(self.lock.get("verdict", "run"))

    @property
    def identity(self) -> str:
        return str(self.lock.get("identity", ""))

    @property
    def needs(self) -> list[tuple[str, int]]:
        """The permits that it needs to start."""
        return [(bucket.text, cost) for bucket, cost in costs_of(self.raw["needs"])]

    @property
    def takes(self) -> list[tuple[str, int]]:
        """The permits that it waits for, and holds when it starts."""
        return [] if self.raw.keys() & {"expired", "lent", "again"} or self.verdict != "run" else self.needs

    @property
    def lane(self) -> str:
        what = self.raw["needs"]
        if self.raw.get("expired"):
            what = ""
        elif self.raw.get("again"):
            what = "again:"
        elif self.verdict == "follow":
            what = f"follow:{self.identity}:{self.lock['first']}"
        elif self.verdict == "next":
            what = f"next:{self.identity}"
        elif self.verdict != "run":
            what = ""
        return f"{what}\0{self.queue}"

    def member(self, task: str) -> str:
        place, ticket = _ordered(self.place), _ordered(self.ticket)
        return f"{self.lane}\0{place}{'' if place == ticket else ticket}.{task}"


def _ordered(number: int) -> str:
    return f"{10**15 + number:016d}"


@dataclass(frozen=True)
class Snapshot:
    """The store at one instant; hashes and sorted sets by name."""

    hashes: dict[str, dict[str, bytes]]
    sets: dict[str, dict[str, float]]
    records: dict[str, Record]
    seconds: dict[str, Record]
    #: how many duplicates will ask for the outcome of a task
    awaited: dict[str, int]
    #: retries that attempts which are over may still bring, by attempt and task: "0 t"
    finished: dict[str, set[str]]
    #: whose record is unreadable
    unreadable: frozenset[str]
    #: server time in milliseconds
    now: float

    @property
    def limits(self) -> dict[str, int]:
        """As last declared; those that have more than a number are left out."""
        return {name: int(said) for name, said in self.hashes["limits"].items() if said.isdigit()}

    @property
    def used(self) -> dict[str, int]:
        return {bucket: int(held) for bucket, held in self.hashes["used"].items()}

    @property
    def ran(self) -> dict[tuple[int, str], set[str]]:
        """Return the expected retries of attempts that have run."""
        found: dict[tuple[int, str], set[str]] = {}
        for member, out in self.finished.items():  # the attempt, the publication if it has one, and the task
            attempt, *_, task = member.split(" ")
            found.setdefault((int(attempt), task), set()).update(out)
        return found

    @property
    def leases(self) -> dict[str, float]:
        return self.sets["leases"]

    @property
    def messages(self) -> dict[str, bytes]:
        return {task: message for task, message in self.hashes["messages"].items() if not task.startswith("\0")}

    @property
    def second_messages(self) -> dict[str, bytes]:
        return {task[1:]: message for task, message in self.hashes["messages"].items() if task.startswith("\0")}

    @property
    def meta(self) -> dict[str, str]:
        return {name: value.decode() for name, value in self.hashes["meta"].items()}

    @property
    def lanes(self) -> dict[str, dict[str, Any]]:
        return {lane: json.loads(packed) for lane, packed in self.hashes["lanes"].items()}

    @property
    def locks(self) -> dict[str, dict[str, Any]]:
        return {identity: json.loads(packed) for identity, packed in self.hashes["locks"].items()}

    @property
    def parked(self) -> dict[str, Record]:
        return {task: record for task, record in self.records.items() if not record.held}

    @property
    def offered(self) -> set[str]:
        """Return the lanes whose queues have a moment to take their turn."""
        return {lane for lane, entry in self.lanes.items() if entry.get("offered")}

    def due(self, kind: str) -> dict[str, float]:
        """Return when each entry of this kind (bucket, lane, task, lock) is due, by its name."""
        found = (member.partition(":") for member in self.sets["due"])
        return {name: self.sets["due"][f"{kind}:{name}"] for each, _, name in found if each == kind}

    @property
    def passed(self) -> set[str]:
        """The lanes that are passed over."""
        return set(self.due("lane"))

    def lock_ends(self, identity: str = "same") -> float:
        return self.sets["ends"].get(f"locks:{identity}", 0)

    def live_lock(self, identity: str = "same") -> dict[str, Any] | None:
        """The lock, unless its time has passed."""
        return self.locks.get(identity) if self.lock_ends(identity) > self.now else None

    def holders(self, bucket: str) -> list[str]:
        return sorted(t for t, record in self.records.items() if record.held and bucket in dict(record.takes))

    def waiting(self, bucket: str) -> list[str]:
        """Return the line of this bucket, oldest first."""
        found = [(r.ticket, task) for task, r in self.parked.items() if self.line_of(r) == bucket]
        return [task for _, task in sorted(found)]

    def line_of(self, record: Record) -> str:
        """Return the bucket in whose line a parked task is; else the cause of its wait."""
        return str(self.lanes.get(record.lane, {}).get("at") or record.lane.partition("\0")[0])


def peek(client: Redis) -> Snapshot:
    """Read the store while no other client writes to it."""
    kinds = {name: name in _SETS for name in KEY}
    # No transaction: Redis 7.0 refuses even one that only reads when it is out of memory.
    with client.pipeline(transaction=False) as pipe:
        pipe.time()
        for name, key in KEY.items():
            if kinds[name]:
                pipe.zrange(key, 0, -1, withscores=True)
            else:
                pipe.hgetall(key)
        (seconds, microseconds), *found = pipe.execute()
    hashes, sets = {}, {}
    for name, content in zip(KEY, found, strict=True):
        if kinds[name]:
            sets[name] = {member.decode(): score for member, score in content}
        else:
            hashes[name] = {field.decode(): value for field, value in content.items()}
    return snapshot(hashes, sets, seconds * 1000 + microseconds // 1000)


def snapshot(hashes: dict[str, dict[str, bytes]], sets: dict[str, dict[str, float]], now: float) -> Snapshot:
    """Return the content of these hashes and sorted sets at this time (ms)."""
    found, unreadable = _records(hashes["records"])
    records = {task: record for task, record in found.items() if "needs" in record.raw}
    others = {task: Record(record.raw["second"]) for task, record in found.items() if record.raw.get("second")}
    awaited = {task: int(record.raw["awaited"]) for task, record in found.items() if "awaited" in record.raw}
    finished = {
        f"{attempt} {task}": {*out} if isinstance(out, dict) else set()
        for task, record in found.items()
        for attempt, out in record.raw.get("finished", {}).items()
    }
    return Snapshot(hashes, sets, records, others, awaited, finished, unreadable, now)


_SETS = frozenset(("leases", "lines", "heads", "ready", "due", "ends", "audit", "oldest"))


def _records(packed: dict[str, bytes]) -> tuple[dict[str, Record], frozenset[str]]:
    records, bad = {}, set()
    for task, value in packed.items():
        try:
            raw = json.loads(value)
        except ValueError:
            raw = None
        if isinstance(raw, dict) and raw.get("v") == 2:
            records[task] = Record(raw)
        else:
            bad.add(task)
    return records, frozenset(bad)


def check(store: Snapshot) -> None:
    """Whether all the indexes say the same; true at any instant."""
    if store.unreadable:
        return
    held = {task: record for task, record in store.records.items() if record.held}
    assert held.keys() == store.leases.keys()
    assert store.used == _counted(record.takes for record in held.values())
    waiting = Counter(bucket for record in store.parked.values() for bucket, _ in record.takes)
    assert {bucket: int(count) for bucket, count in store.hashes["waiting"].items()} == waiting
    assert {field: int(count) for field, count in store.hashes["sums"].items()} == _sums(store.used, waiting)
    assert store.sets["lines"].keys() == {record.member(task) for task, record in store.parked.items()}
    hurried = {
        task
        for task, record in store.parked.items()
        if record.raw.keys() & {"deadline", "expires", "again"} and not record.raw.get("expired")
    }
    assert hurried == store.due("task").keys()
    assert store.parked.keys() <= store.messages.keys() <= store.records.keys() | store.hashes["aside"].keys()
    assert store.seconds.keys() == store.second_messages.keys()
    assert store.seconds.keys() <= store.records.keys()
    _check_lanes(store)
    _check_ends(store)


def _sums(used: dict[str, int], waiting: dict[str, int]) -> dict[str, int]:
    """Return the sums over all keys of a limit."""
    sums: Counter[str] = Counter()
    for what, counts in (("used", used), ("waiting", waiting), ("keys", dict.fromkeys({*used, *waiting}, 1))):
        for bucket, count in counts.items():
            limit, separator, _ = bucket.partition("\x1f")
            sums[f"{what}\0{limit}"] += count if separator else 0
    return {field: count for field, count in sums.items() if count}


def _counted(each: Any) -> dict[str, int]:
    used: Counter[str] = Counter()
    for takes in each:
        used.update(dict(takes))
    return dict(used)


def _check_lanes(store: Snapshot) -> None:
    """Check that each lane is listed by its first task, in the right place."""
    first: dict[str, tuple[str, Record]] = {}
    for task, record in sorted(store.parked.items(), key=lambda item: item[1].member(item[0])):
        if not record.lane.startswith(_APART):
            first.setdefault(record.lane, (task, record))
    lanes = store.lanes
    assert lanes.keys() == first.keys()
    heads, ready, passed, oldest = set(), set(), set(), set()
    for lane, (_, record) in first.items():
        entry = lanes[lane]
        what, _ = lane.split("\0")
        if "ticket" in entry:
            assert entry["ticket"] == _ordered(record.ticket)
            assert entry.get("place", entry["ticket"]) in (_ordered(record.ticket), _ordered(record.place))
            ready.add(_ready_member(lane, entry))
            heads |= _heads_at_sites(lane, entry)
        if not what:
            assert "at" not in entry
            continue
        assert entry["at"] in dict(record.needs)
        oldest.add(f"{entry['at'].partition(chr(31))[0]}\0{_ordered(record.ticket)}{lane}")
        if entry.get("passed"):
            passed.add(lane)
        else:
            assert entry["rank"] in (_ordered(record.ticket), _ordered(record.place))
            assert "ticket" in entry or "\x1d" not in entry["at"]
            heads.add(f"{entry['at']}\0{entry['rank']}\0{lane}")
    assert store.sets["heads"].keys() == heads
    assert store.sets["ready"].keys() == ready
    assert store.passed == passed
    assert store.sets["oldest"].keys() == oldest


def _open_buckets(lane: str) -> list[str]:
    return [bucket.text for bucket, _ in costs_of(lane.split("\0", maxsplit=1)[0]) if "\x1d" in bucket.text]


def _ready_member(lane: str, entry: dict[str, Any]) -> str:
    """Return the member of KEYS ready for a lane: with open needs it has its place there."""
    section, sites = lane.split("\0")[1], "\x01".join(_open_buckets(lane))
    if sites:
        return f"{section}\x1d\x1d{sites}\0{entry.get('place', entry['ticket'])}{entry['ticket']}{lane}"
    return f"{section}\0{entry['ticket']}{lane}"


def _heads_at_sites(lane: str, entry: dict[str, Any]) -> set[str]:
    """Return the members of KEYS heads for a ready lane in the lines of its open buckets."""
    return {f"{bucket}\0{entry.get('place', entry['ticket'])}\0{lane}" for bucket in _open_buckets(lane)}


def _check_ends(store: Snapshot) -> None:
    """Check that each entry that ends by itself is in the index of ends."""
    noted = {f"records:{task}" for task in {*store.awaited, *(task for _, task in store.ran)}}
    assert noted == {member for member in store.sets["ends"] if member.startswith("records:")}
    for name in _ENDING:
        fields = {f"{name}:{field}" for field, packed in store.hashes[name].items() if not _for_good(name, packed)}
        ends = {member for member in store.sets["ends"] if member.startswith(f"{name}:")}
        assert fields <= ends, f"{fields - ends} stay for ever"
        assert ends <= {f"{name}:{field}" for field in store.hashes[name]}, "an end of a field that is gone"


def _for_good(name: str, packed: bytes) -> bool:
    return name == "overrides" and any(one[1] == 0 for one in json.loads(packed).values())


def check_empty(store: Snapshot) -> None:
    """Only the limits, the counters, the list of workers and the audit stay."""
    left = {name for name, content in (store.hashes | store.sets).items() if content}
    assert left <= {"limits", "meta", "workers", "audit", "ends"}
    assert all(member.startswith(("workers:", "meta:")) for member in store.sets["ends"])


def startable(store: Snapshot, permits: dict[str, int]) -> set[str]:
    """Return the lanes whose first task is first in its bucket and has room, even if no index lists them."""
    lost = set()
    firsts: dict[str, str] = {}
    for head in sorted(store.sets["heads"]):
        bucket, rank_lane = head.split("\0", 1)
        firsts.setdefault(bucket, rank_lane.split("\0", 1)[1])
    for bucket, lane in firsts.items():
        cost = {b.text: c for b, c in costs_of(lane.split("\0")[0])}[bucket]
        free = permits[bucket.partition("\x1f")[0]] - store.used.get(bucket, 0)
        known = "ticket" in store.lanes[lane] or bucket in store.due("bucket")
        if free >= min(cost, permits[bucket.partition("\x1f")[0]]) and not known:
            lost.add(lane)
    return lost


def change(client: Redis, key: str, field: str | bytes, **parts: object) -> None:
    """Change parts of a stored object."""
    kept = json.loads(client.hget(KEY[key], field) or b"{}")
    client.hset(KEY[key], field, json.dumps({**kept, **parts}))


def expire(client: Redis, *tasks: str) -> None:
    """Let the leases of these holders end, as if their workers had been silent for so long."""
    for task in tasks:
        client.zadd(KEY["leases"], {task: 1}, xx=True)


def be_away(client: Redis) -> None:
    """Make the store look as after an outage of an hour: no calls, and all leases over."""
    for name, packed in client.hgetall(KEY["workers"]).items():
        change(client, "workers", name, since=json.loads(packed)["since"] - 3_600_000)
    expire(client, *peek(client).leases)


def end_moment(client: Redis) -> None:
    """End the moment that was given, without a call."""
    ended = peek(client).now - 1
    for task in peek(client).leases:
        client.zadd(KEY["leases"], {task: ended})
    client.hset(KEY["meta"], "moment", f"{ended:.0f}")


def lapse(client: Redis, *members: str) -> None:
    """Let the time of these pass: ``locks:identity``, ``overrides:bucket``, ``turns:...``."""
    for member in members:
        client.zadd(KEY["ends"], {member: 1}, xx=True)


def pass_over(client: Redis, bucket: str, queue: str) -> None:
    """End the moment that a queue has for its turn, so that the next caller passes it over."""
    for lane, entry in peek(client).lanes.items():
        if entry.get("at") == bucket and lane.endswith(f"\0{queue}") and not entry.get("passed"):
            change(client, "lanes", lane, offered=1)
            client.zadd(KEY["due"], {f"bucket:{bucket}": 1})


def let_come_due(client: Redis, kind: str, *names: str) -> None:
    """Let it be time for these, or for all of this kind; see `Snapshot.due`."""
    for name in names or peek(client).due(kind):
        client.zadd(KEY["due"], {f"{kind}:{name}": 1})
