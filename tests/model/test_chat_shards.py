"""The scripts of a chat shard against a few lists: what was accepted, what is dead.

Instances take, lose and retake the lease in every order, and each goes on acting on what it last believed. Time passes
by hand: a lease or a claim that lapses is a key that is removed.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dragoman.domain.limits.rates import cost
from dragoman.store.chat import shards as chat_shards
from dragoman.store.chat.entries import AcceptReply, ChatEntry, SavedEntry, ShardStatus
from dragoman.store.chat.shards import DAY_MS, DeadLetterLimits, Shards, StreamNames
from dragoman.store.keys import Keys
from dragoman.store.redis import Dedicated
from model.machines import SLACK_MS, START_MS, Bench, check, finds_a_difference, planted, with_bug

SHARE = 4
TTL_MS = 600_000
# Ids are compared as texts: they become one digit longer after the second, and no double can hold them.
START_ID = 10**18 - 3
LETTERS = 3  # dead letters that are kept
MESSAGES_A_DAY = 20  # that a sender may store; all bodies are as long

SENDERS = st.sampled_from([7, 8])
CLIENT_IDS = st.sampled_from("abc")
BODIES = st.sampled_from(["x", "x", "y"])
RECEIVERS = st.sampled_from([9, 9, 9, 10])
INSTANCES = st.sampled_from(["i1", "i2"])
WHO = st.sampled_from(["", "", "", "i1", "i2"])  # '' is who holds the shard
PLACE = st.integers(0, 5)
COUNT = st.integers(1, 4)
HEARD = st.sampled_from([0, 0, 0, 1, 2])  # how often a sender asked again, as the holder knows


@dataclass
class Item:
    id: int
    client_msg_id: str
    sender: int
    body: str
    to: int = 9
    entry: str = ""  # in the stream it is in; learned from Redis

    @property
    def key(self) -> tuple[int, str]:
        return self.sender, self.client_msg_id


@dataclass
class Claim:
    id: int
    to: int
    digest: str  # '' when its row is that of an earlier message
    saved: bool = False
    again: int = 0  # how often its sender asked once more

    def as_hash(self) -> dict[str, str]:
        marks = {"saved": int(self.saved), "repeats": self.again}
        texts = {"id": str(self.id), "to": str(self.to), "digest": self.digest}
        return {name: text for name, text in texts.items() if text} | {name: str(n) for name, n in marks.items() if n}


@dataclass
class Row:
    id: int
    to: int
    body: str


class Direct(Dedicated):
    """Reads without waiting, on the connection of the model."""

    async def call(self, *command: Any, patience_s: float) -> Any:
        return await self._redis.call_at(command[-2], *command)


class Shard(RuleBasedStateMachine):
    def __init__(self, bench: Bench) -> None:
        super().__init__()
        self.bench, self.reader = bench, Direct(bench.redis, "", "reader")
        self.keys = Keys(f"{bench.keys.prefix}:{bench.fresh_name()}")
        streams = f"{self.keys.im}:stream:single_chat"
        names = StreamNames(f"{streams}:accepted", f"{streams}:to_save", "deliver", "save")
        self.shards = Shards(
            bench.redis, self.keys, names, 1, TTL_MS, DeadLetterLimits(LETTERS), MESSAGES_A_DAY * cost("x")
        )
        (self.tag,) = self.shards._tags
        self.claims: dict[tuple[int, str], Claim] = {}
        self.rows: dict[tuple[int, str], Row] = {}
        self.accepted: list[Item] = []
        self.dead: list[Item] = []  # those that are kept
        self.over: list[Item] = []  # done with: named again by those who come late
        self.seen: set[tuple[int, str]] = set()
        self.last_id = 0
        self.counts: Counter[str] = Counter()
        self.spent: Counter[int] = Counter()  # messages of each sender's day
        self.fence, self.lease = 0, ""
        self.believed = {"i1": "i1|0", "i2": "i2|0"}  # what each instance takes for its lease

    @initialize()
    def begin(self) -> None:
        for instance in ("i1", "i2"):
            self.take(instance, 0, "")

    # -- accepting -------------------------------------------------------------------------------

    @rule(
        sender=SENDERS,
        client_msg_id=CLIENT_IDS,
        body=BODIES,
        ahead=st.sampled_from([1, 1, 1, 1000, 0, -1]),
        to=RECEIVERS,
    )
    def accept(self, sender: int, client_msg_id: str, body: str, ahead: int, to: int = 9) -> None:
        id = max(self.last_id, START_ID) + ahead
        self.seen.add((sender, client_msg_id))
        entry = ChatEntry("", id, client_msg_id, sender, to, "TEXT", body, START_MS, START_MS, "i", "save_first")
        reply = self.bench.do(self.shards.accept(entry, body, SHARE))
        assert reply == self.accept_here(Item(id, client_msg_id, sender, body, to))

    def accept_here(self, item: Item) -> tuple[AcceptReply, int]:
        if claim := self.claims.get(item.key):
            if claim.to != item.to:
                return AcceptReply.MISMATCH, claim.id
            same = claim.digest == item.body
            if claim.saved:
                return AcceptReply.SAVED if same else AcceptReply.SAVED_OTHER, claim.id
            claim.again += 1
            return AcceptReply.DUPLICATE if same else AcceptReply.DUPLICATE_OTHER, claim.id
        if self.spent[item.sender] >= MESSAGES_A_DAY:
            return AcceptReply.OVER, self.spent[item.sender] * cost("x")
        if self.backlog >= SHARE:
            return AcceptReply.BUSY, self.backlog
        if item.id <= self.last_id:
            return AcceptReply.STALE_ID, self.last_id
        self.claims[item.key] = Claim(item.id, item.to, item.body)
        self.accepted.append(item)
        item.entry = self.newest(self.shards.accepted(0))
        self.last_id = item.id
        self.counts["accepted"] += 1
        self.spent[item.sender] += 1
        return AcceptReply.OK, self.backlog

    @rule(sender=SENDERS, count=st.sampled_from([1, 15]))
    def spend(self, sender: int, count: int) -> None:
        """Messages were saved at once."""
        self.spent[sender] += count
        used, left_s = self.bench.do(self.shards.spend(sender, count * cost("x")))
        assert used == self.spent[sender] * cost("x")
        assert 0 < left_s * 1000 <= DAY_MS

    @rule(sender=SENDERS)
    def a_day_ends(self, sender: int) -> None:
        self.bench.do(self.bench.redis.call("DEL", self.keys.spent(self.tag, sender)))
        del self.spent[sender]

    @invariant()
    def bytes_of_a_day_are_counted_and_do_not_stay(self) -> None:
        for sender in (7, 8):
            used, left_s = self.bench.do(self.shards.spent(sender))
            assert used == self.spent[sender] * cost("x")
            assert (left_s > 0) == (used > 0)

    @rule(count=COUNT)
    def accept_some(self, count: int) -> None:
        for number in range(count):
            self.accept(7 + number % 2, f"new-{self.last_id}", "x", 1)

    @rule(sender=SENDERS, client_msg_id=CLIENT_IDS, body=BODIES)
    def save_without_accepting(self, sender: int, client_msg_id: str, body: str) -> None:
        """As long as nothing of the sender is under way."""
        if all(item.sender != sender for item in self.under_way):
            self.remember(Item(self.last_id + START_ID, client_msg_id, sender, body))

    @precondition(lambda self: self.backlog)
    @rule(place=PLACE)
    def save_what_was_accepted_unheard(self, place: int) -> None:
        """The answer to accept came too late, and the message was saved under the same id."""
        self.remember(self.under_way[place % self.backlog])

    def remember(self, item: Item) -> None:
        self.seen.add(item.key)
        row = self.rows.setdefault(item.key, Row(item.id, item.to, item.body))
        self.bench.do(self.shards.remember(*item.key, row.id, row.to, row.body))
        self.claims.setdefault(item.key, Claim(row.id, row.to, row.body, saved=True))
        self.last_id = max(self.last_id, row.id)

    @rule(ahead=st.sampled_from([1, 1000, 0, -1]))
    def rise(self, ahead: int) -> None:
        """Something was saved at once, and is not to be remembered."""
        id = max(self.last_id, START_ID) + ahead
        self.last_id = max(self.last_id, id)
        assert int(self.bench.do(self.shards.raise_last_id(7, id))) == self.last_id

    @precondition(lambda self: self.backlog)
    @rule(place=PLACE, body=BODIES, lapsed=st.booleans())
    def send_again(self, place: int, body: str, lapsed: bool) -> None:
        """What is still under way, perhaps for longer than its claim lives; or another text under its clientMsgId."""
        key = self.under_way[place % self.backlog].key
        if lapsed:
            self.lapse(key)
        self.accept(*key, body, 1)

    @precondition(lambda self: self.claims)
    @rule(place=PLACE)
    def a_claim_lapses(self, place: int) -> None:
        self.lapse(sorted(self.claims)[place % len(self.claims)])

    def lapse(self, key: tuple[int, str]) -> None:
        self.claims.pop(key, None)
        self.bench.call("DEL", self.keys.claim(self.tag, *key))

    # -- the lease -------------------------------------------------------------------------------

    @rule(instance=INSTANCES, above=st.sampled_from([0, 0, -1, 1, 7]), end=st.sampled_from(["", "lapse", "give up"]))
    def take(self, instance: str, above: int, end: str) -> None:
        """What SQL knows may be behind or above what Redis remembers; somebody may still hold the shard."""
        if end == "lapse":
            self.bench.call("DEL", self.keys.lease(self.tag))
            self.lease = ""
        elif end == "give up":
            self.bench.do(self.shards.release_lease(0, self.believed[instance]))
            self.lease = "" if self.holds(instance) else self.lease
        known = max(self.fence + above, 0)
        fence = self.bench.do(self.shards.take_lease(0, instance, known, TTL_MS))
        if self.lease:
            assert fence == 0
            return
        self.fence = max(self.fence, known) + 1
        assert fence == self.fence
        self.lease = self.believed[instance] = f"{instance}|{fence}"

    @rule(instance=INSTANCES)
    def keep(self, instance: str) -> None:
        assert self.bench.do(self.shards.renew_lease(0, self.believed[instance], TTL_MS)) == self.holds(instance)

    @property
    def holder(self) -> str:
        return self.lease.partition("|")[0] or "i1"

    def holds(self, instance: str) -> bool:
        return self.believed[instance] == self.lease

    # -- the stages ------------------------------------------------------------------------------

    @rule(place=PLACE, count=COUNT)
    def read(self, place: int, count: int) -> None:
        """Whoever reads takes nothing."""
        after = self.accepted[place - 1].entry if 0 < place <= self.backlog else "0"
        expected = self.accepted[place if after != "0" else 0 :][:count]
        reply = self.bench.do(self.shards.next_entries(self.reader, self.shards.accepted(0), after, count))
        assert [(e.entry, e.id, e.client_msg_id, e.sender, e.body) for e in reply] == [
            (item.entry, item.id, item.client_msg_id, item.sender, item.body) for item in expected
        ]

    @rule(who=WHO, places=st.lists(PLACE, min_size=1, max_size=4), late=st.booleans(), heard=HEARD)
    def saved(self, who: str, places: list[int], late: bool, heard: int) -> None:
        """Some that are rows, also when the lease lapses before Redis hears of it; and perhaps one of before."""
        instance = who or self.holder
        batch = [item for place, item in enumerate(self.accepted) if place in places]
        batch = [item for item in batch if self.row_of(item).to == item.to]
        named = [item for item in self.over[-1:] * late if item.key in self.rows] + batch
        told = [SavedEntry(self.entry_of(item, item.entry), self.rows[item.key].id, heard) for item in named]
        reply = self.bench.do(self.shards.finish_saved(0, self.believed[instance], self.shards.accepted(0), told))
        if not self.holds(instance):
            assert reply is None
            return
        stay = [(item.id, asked) for item in named if (asked := self.is_saved(item, heard))]
        assert [(row.entry.id, row.repeats) for row in reply] == stay

    def row_of(self, item: Item) -> Row:
        """Its own, or the one that is there."""
        return self.rows.setdefault(item.key, Row(item.id, item.to, item.body))

    def is_saved(self, item: Item, heard: int) -> int:
        """How often its sender asked, if that is more than was heard: then it stays."""
        asked = self.asked(item)
        if asked > heard:
            return asked
        if item in self.accepted:
            self.leave(item, "saved")
            if self.is_claimed(item):  # else it is of a later try, which will meet the row itself
                claim, row = self.claims[item.key], self.rows[item.key]
                claim.digest = claim.digest if row.id == item.id else ""
                claim.id, claim.saved = row.id, True
        return 0

    def is_claimed(self, item: Item) -> bool:
        claim = self.claims.get(item.key)
        return claim is not None and claim.id == item.id and not claim.saved

    def asked(self, item: Item) -> int:
        return self.claims[item.key].again if self.is_claimed(item) else 0

    @precondition(lambda self: self.backlog)
    @rule(who=WHO, place=PLACE, late=st.booleans(), heard=HEARD, keep=st.sampled_from([True, True, False]))
    def bury(self, who: str, place: int, late: bool, heard: int, keep: bool = True) -> None:
        instance = who or self.holder
        item = self.accepted[place % self.backlog]
        for _ in range(1 + late):
            what, stream = self.entry_of(item, item.entry), self.shards.accepted(0)
            call = self.shards.move_to_dead(
                0, self.believed[instance], stream, what, "why", 5, notified=heard, keep=keep
            )
            claim = self.claims.get(item.key)
            asked = claim.again if claim is not None and claim.id == item.id and item in self.accepted else 0
            stays = asked if asked > heard else 0
            assert self.bench.do(call) == (stays if self.holds(instance) else None)
            if self.holds(instance) and not stays and item in self.accepted:
                self.leave(item, "dead")
                if keep:
                    self.dead.append(item)
                    self.counts["dropped"] += len(self.dead[:-LETTERS])
                    self.dead = self.dead[-LETTERS:]
                if item.key in self.claims and self.claims[item.key].id == item.id:
                    del self.claims[item.key]

    @precondition(lambda self: self.backlog)
    @rule(place=PLACE, heard=HEARD, bad=st.booleans())
    def ask_again_before_the_end(self, place: int, heard: int, bad: bool) -> None:
        """Between the word to the sender and the end of its message, whichever that is."""
        item = self.under_way[place % self.backlog]
        self.accept(*item.key, item.body, 1)
        if bad:
            self.bury("", self.accepted.index(item), False, heard)
        else:
            self.saved("", list(range(SHARE)), False, heard)

    def leave(self, item: Item, why: str) -> None:
        self.accepted.remove(item)
        self.over.append(item)
        self.counts[why] += 1

    # -- what must be so -------------------------------------------------------------------------

    @invariant()
    def redis_holds_what_the_model_holds(self) -> None:
        """All of it looked at in one round trip."""
        shards, call = self.shards, self.bench.redis.call
        accepted, dead, unsaved, last_id, tally = self.bench.do(
            _together(
                *(call("XRANGE", stream, "-", "+") for stream in (shards.accepted(0), shards.dead(0))),
                call("HGETALL", self.keys.unsaved(self.tag)),
                call("HGET", self.keys.shard(self.tag), "last_id"),
                shards.status(0),
            )
        )
        assert _ids(accepted) == [item.entry for item in self.accepted]
        letters = [_texts(fields) for _, fields in dead]
        assert [(letter["serverMsgId"], letter["deadReason"]) for letter in letters] == [
            (str(item.id), "why") for item in self.dead
        ]
        assert _texts(unsaved) == {
            str(sender): str(count) for sender, count in Counter(item.sender for item in self.under_way).items()
        }
        assert int(last_id or 0) == self.last_id
        assert tally == ShardStatus(
            self.backlog, self.counts["accepted"], self.counts["saved"], self.counts["dead"], self.fence, self.lease,
            len(self.accepted), 0, len(self.dead), self.counts["dropped"],
        )  # fmt: skip

    @invariant()
    def claims_are_those_of_the_model(self) -> None:
        known = sorted(self.seen)
        keys = [self.keys.claim(self.tag, *key) for key in known]
        call = self.bench.redis.call
        there = self.bench.do(_together(*(call(word, key) for key in keys for word in ("HGETALL", "PTTL"))))
        for key, fields, life in zip(known, there[::2], there[1::2], strict=True):
            claim = self.claims.get(key)
            assert _texts(fields) == (claim.as_hash() if claim else {})
            assert not claim or TTL_MS - SLACK_MS < life <= TTL_MS

    @invariant()
    def the_books_balance_and_nothing_is_out_of_order(self) -> None:
        assert self.counts["accepted"] == self.counts["saved"] + self.counts["dead"] + self.backlog
        for sender in (7, 8):
            ids = [item.id for item in self.under_way if item.sender == sender]
            assert ids == sorted(set(ids)), "in the order in which they were accepted"
        for key, claim in self.claims.items():
            assert key in self.rows or any(item.key == key for item in self.under_way), "a claim of nothing"
            if claim.saved:
                row = self.rows[key]
                assert (row.id, row.to) == (claim.id, claim.to)
                assert claim.digest in ("", row.body), (
                    "who repeats it with another body is not told that it is the same"
                )

    @property
    def under_way(self) -> list[Item]:
        return self.accepted

    @property
    def backlog(self) -> int:
        return len(self.accepted)

    # -- looking ---------------------------------------------------------------------------------

    def entries(self, stream: str) -> list[str]:
        return _ids(self.bench.call("XRANGE", stream, "-", "+"))

    def newest(self, stream: str) -> str:
        entries = self.entries(stream)
        assert entries, "Redis has not appended what the model has"
        return entries[-1]

    @staticmethod
    def entry_of(item: Item, entry: str) -> ChatEntry:
        return ChatEntry(
            entry, item.id, item.client_msg_id, item.sender, item.to, "TEXT", item.body, 0, 0, "i", "save_first"
        )

    def teardown(self) -> None:
        keys, shards = self.keys, self.shards
        claims = [keys.claim(self.tag, *key) for key in self.seen]
        claims += [keys.spent(self.tag, sender) for sender in (7, 8)]
        streams = (shards.accepted(0), shards.dead(0))
        self.bench.call("DEL", *streams, *claims, keys.shard(self.tag), keys.unsaved(self.tag), keys.lease(self.tag))


async def _together(*asked: Awaitable[Any]) -> list[Any]:
    return await asyncio.gather(*asked)


def _ids(rows: Sequence[Sequence[Any]]) -> list[str]:
    return [row[0].decode() for row in rows]


def _texts(flat: Sequence[bytes]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in zip(flat[::2], flat[1::2], strict=True)}


def test_the_scripts_of_a_shard_do_what_the_model_does(bench: Bench) -> None:
    check(lambda: Shard(bench), examples=40, steps=40)


COMPARED = "#last > #id or (#last == #id and last >= id)"
BUGS = {
    "a bound off by one": ("ACCEPT_MESSAGE", "backlog >= share", "backlog > share"),
    "ids compared as numbers": ("ACCEPT_MESSAGE", COMPARED, "(tonumber(last) or 0) >= tonumber(id)"),
    "ids compared as plain texts": ("ACCEPT_MESSAGE", COMPARED, "last >= id"),
    "a receiver that is not compared": ("ACCEPT_MESSAGE", "first[2] ~= to", "false"),
    "a body that is not compared": ("ACCEPT_MESSAGE", "first[3] ~= digest", "false"),
    "saved told of what is not": ("ACCEPT_MESSAGE", "if first[4] then", "if first[1] then"),
    "the body of a later try for that of the row": ("FINISH_SAVED", "if claim and row ~= own then", "if false then"),
    "accepted, not counted for the shard": ("ACCEPT_MESSAGE", "(known[3] or 0) + 1", "(known[3] or 0)"),
    "accepted, not counted for its sender": ("ACCEPT_MESSAGE", "redis.call('HINCRBY', unsaved, sender, 1)\n", ""),
    "a fence that forgets what SQL knows": ("TAKE_LEASE", "or 0), fence) + 1", "or 0), 0) + 1"),
    "a lease taken from its holder": ("TAKE_LEASE", "redis.call('EXISTS', lease) == 1", "false"),
    "saved though another holds the shard": ("FINISH_SAVED", "redis.call('GET', lease) ~= holder", "false"),
    "saved and kept": ("FINISH_SAVED", "  redis.call('XDEL', stream, unpack(ids))", "  local _ = 0"),
    "saved, not counted down for its sender": ("FINISH_SAVED", "unsaved, sender, -count)", "unsaved, sender, 0)"),
    "saved, and its sender forgotten": ("FINISH_SAVED", "sender) or 0) > count then", "sender) or 0) > count + 1 then"),
    "saved, not counted down for the shard": (
        "FINISH_SAVED", "redis.call('HINCRBY', shard, 'backlog', -#done)\n", ""
    ),
    "saved twice by who comes late": ("FINISH_SAVED", "is_there(ids[1]) and is_there(ids[#ids])", "true"),
    "the claim of a later try marked": ("FINISH_SAVED", "mine and claim, own", "claim, own"),
    "who asked again is not told": ("FINISH_SAVED", "if mine and tonumber", "if false and tonumber"),
    "who asked again is told for ever": ("FINISH_SAVED", "> tonumber(notified)", "> 0"),
    "moved though another holds the shard": ("MOVE_TO_DEAD", "redis.call('GET', lease) ~= holder", "false"),
    "moved and kept": ("MOVE_TO_DEAD", "redis.call('XDEL', source, entry)\n", ""),
    "buried, not counted": ("MOVE_TO_DEAD", "redis.call('HINCRBY', shard, 'dead', 1)\n", ""),
    "bytes beyond the quota": ("ACCEPT_MESSAGE", "used + size > quota", "used > quota"),
    "bytes that count for ever": ("ACCEPT_MESSAGE", "redis.call('PEXPIRE', spent, day)", ""),
    "kept though its sender is at fault": ("MOVE_TO_DEAD", "if keep == 1 then", "if true then"),
    "too many dead letters": ("TRIM_DEAD_LETTERS", "redis.call('XTRIM', dead, 'MAXLEN', max_letters)", "0"),
    "dropped, not counted": ("TRIM_DEAD_LETTERS", "redis.call('HINCRBY', shard, 'dropped', dropped)", ""),
    "a claim kept at the dead letter": ("MOVE_TO_DEAD", "redis.call('DEL', claim)", ""),
    "the claim of a later try removed": ("MOVE_TO_DEAD", "if mine then redis.call", "if true then redis.call"),
    "who asked again is not told of its end": ("MOVE_TO_DEAD", "if mine and tonumber", "if false and tonumber"),
    "asked again, not noted": ("ACCEPT_MESSAGE", "  redis.call('HINCRBY', claim, 'repeats', 1)\n", ""),
    "remembered over what is known": ("REMEMBER_MESSAGE", "redis.call('EXISTS', claim) == 1", "false"),
    "remembered, and its id forgotten": ("REMEMBER_MESSAGE", "redis.call('HSET', shard, 'last_id', id)", ""),
    "ids that fall": ("RAISE_LAST_ID", "if #last > #id or (#last == #id and last >= id)", "if false"),
}  # fmt: skip


@pytest.mark.timeout(900)
@pytest.mark.parametrize("redis_at", ["single"], indirect=True)
@pytest.mark.parametrize(
    "bug",
    planted(
        BUGS,
        "ids compared as plain texts",
        "accepted, not counted for its sender",
        "a lease taken from its holder",
        "saved though another holds the shard",
        "who asked again is not told of its end",
        "remembered over what is known",
        "ids that fall",
    ),
)
def test_a_bug_in_the_scripts_of_a_shard_is_found(bench: Bench, monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    name, right, wrong = BUGS[bug]
    monkeypatch.setattr(chat_shards, name, with_bug(f"chat/{name.lower()}", right, wrong))
    assert finds_a_difference(lambda: Shard(bench), examples=400, steps=40)
