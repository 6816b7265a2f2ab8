"""push_entry.lua, finish_entries.lua, move_to_dlq.lua and close_inbox.lua against lists of entries."""

from dataclasses import dataclass

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dragoman.store.inbox import FINISH_ENTRIES, MOVE_TO_DLQ, PUSH_ENTRY
from dragoman.store.instances import CLOSE_INBOX, OPEN_INBOX
from dragoman.store.script import Script
from model.machines import START_MS, Bench, check, finds_a_difference, with_bug

GROUP, CONSUMER = "scheduler", "i"
MAXLEN, MAX_BYTES, DLQ_MAXLEN = 4, 20, 2
PLACE = st.integers(0, 5)


@dataclass
class Item:
    id: str
    size: int
    given: bool = False


class Box(RuleBasedStateMachine):
    """One inbox with its dead letters. Ids are Redis' own and learned after the push."""

    def __init__(
        self,
        bench: Bench,
        push_entry: Script = PUSH_ENTRY,
        finish_entries: Script = FINISH_ENTRIES,
        move_to_dlq: Script = MOVE_TO_DLQ,
    ) -> None:
        super().__init__()
        self.bench, self.push_script, self.finish_script, self.dlq_script = (
            bench,
            push_entry,
            finish_entries,
            move_to_dlq,
        )
        instance = bench.fresh_name()
        self.opened, self.inbox = bench.keys.open(instance), bench.keys.inbox(instance)
        self.counts, self.dlq = bench.keys.counts(instance), bench.keys.dlq(instance)
        self.is_open = False
        self.items: list[Item] = []
        self.over: list[Item] = []  # done or dead: named again by those who come late
        self.letters: list[str] = []
        self.tally = {"added": 0, "done": 0, "dead": 0, "bytes": 0}

    @initialize()
    def open(self) -> None:
        keys = {"opened": self.opened, "inbox": self.inbox}
        assert self.bench.do(OPEN_INBOX(self.bench.redis, **keys, incarnation="a", group=GROUP)) == b"OK"
        self.is_open = True

    @rule(size=st.sampled_from([0, 1, 5, 10, 20, 21]))
    def push(self, size: int) -> None:
        keys = {"opened": self.opened, "inbox": self.inbox, "counts": self.counts}
        values = {"maxlen": MAXLEN, "max_bytes": MAX_BYTES, "kind": "kind", "trace": "t"}
        reply = self.bench.do(self.push_script(self.bench.redis, **keys, **values, size=size, data=b"x" * size))
        if not self.is_open:
            assert reply == b"GONE"
        elif len(self.items) >= MAXLEN or self.tally["bytes"] + size > MAX_BYTES:
            assert reply == b"FULL"
        else:
            ((id, _),) = self.bench.call("XREVRANGE", self.inbox, "+", "-", "COUNT", 1)
            assert reply == b"OK " + id
            self.items.append(Item(id.decode(), size))
            self.tally["added"] += 1
            self.tally["bytes"] += size

    @rule(count=st.integers(2, 4))
    def push_some(self, count: int) -> None:
        for _ in range(count):
            self.push(1)

    @rule(count=st.integers(1, 4))
    def read(self, count: int) -> None:
        command = ("XREADGROUP", "GROUP", GROUP, CONSUMER, "COUNT", count, "STREAMS", self.inbox, ">")
        reply = self.bench.do(self.bench.redis.call_at(self.inbox, *command))
        expected = [item for item in self.items if not item.given][:count]
        assert [id.decode() for id, _ in (reply[0][1] if reply else [])] == [item.id for item in expected]
        for item in expected:
            item.given = True

    @precondition(lambda self: self.items)
    @rule(places=st.lists(PLACE, min_size=1, max_size=4), late=st.booleans())
    def done(self, places: list[int], late: bool) -> None:
        """Some entries, the same one perhaps twice, and perhaps one that somebody else finished before."""
        self.finish([self.items[place % len(self.items)] for place in places] + self.over[-1:] * late)

    def finish(self, named: list[Item]) -> None:
        entries = [part for item in named for part in (item.id, item.size)]
        keys = {"inbox": self.inbox, "counts": self.counts}
        reply = self.bench.do(self.finish_script(self.bench.redis, **keys, group=GROUP, entries=entries))
        finished = [item for item in self.items if item in named]
        self.leave(finished, "done")
        assert reply == len(finished)

    @precondition(lambda self: self.items)
    @rule(place=PLACE)
    def dead_letter(self, place: int) -> None:
        self.bury(self.items[place % len(self.items)])

    @precondition(lambda self: self.over)
    @rule(place=PLACE)
    def dead_letter_too_late(self, place: int) -> None:
        self.bury(self.over[place % len(self.over)])

    def bury(self, item: Item) -> None:
        keys = {"inbox": self.inbox, "dlq": self.dlq, "counts": self.counts}
        values = {"maxlen": DLQ_MAXLEN, "reason": "why", "deliveries": 6, "now": START_MS}
        reply = self.bench.do(self.dlq_script(self.bench.redis, **keys, **values, group=GROUP, id=item.id))
        if item not in self.items:
            assert reply == b"NONE"
        elif len(self.letters) >= DLQ_MAXLEN:
            assert reply == b"FULL"
        else:
            assert reply == b"OK"
            self.letters.append(item.id)
            self.leave([item], "dead")

    def leave(self, items: list[Item], why: str) -> None:
        for item in items:
            self.items.remove(item)
            self.over.append(item)
            self.tally[why] += 1
            self.tally["bytes"] -= item.size

    @precondition(lambda self: self.tally["added"])
    @rule()
    def close(self) -> None:
        """If it can be; while it is closed everybody is told so, and it is opened again by the next."""
        assert self.close_here() == (b"BUSY" if self.items else b"OK")
        if self.items:
            return
        self.is_open = False
        self.tally = dict.fromkeys(self.tally, 0)
        self.redis_holds_what_the_model_holds()
        self.push(1)
        self.finish(self.over[-1:])
        assert self.close_here() == b"NONE"
        self.redis_holds_what_the_model_holds()
        self.open()

    def close_here(self) -> bytes:
        keys = {"opened": self.opened, "inbox": self.inbox, "counts": self.counts}
        reply: bytes = self.bench.do(CLOSE_INBOX(self.bench.redis, **keys, holder="a"))
        return reply

    @precondition(lambda self: self.letters)
    @rule()
    def a_person_empties_the_dead_letters(self) -> None:
        self.bench.call("DEL", self.dlq)
        self.letters = []

    @invariant()
    def redis_holds_what_the_model_holds(self) -> None:
        there = [id.decode() for id, _ in self.bench.call("XRANGE", self.inbox, "-", "+")]
        assert there == [item.id for item in self.items]
        if self.is_open:
            rows = self.bench.call("XPENDING", self.inbox, GROUP, "-", "+", 100)
            assert [id.decode() for id, *_ in rows] == [item.id for item in self.items if item.given]
        counts = {name: int(value) for name, value in self.bench.hash(self.counts).items()}
        assert counts == {name: value for name, value in self.tally.items() if name in counts}
        assert all(name in counts for name, value in self.tally.items() if value)
        letters = [
            dict(zip(flat[::2], flat[1::2], strict=True)) for _, flat in self.bench.call("XRANGE", self.dlq, "-", "+")
        ]
        assert [letter[b"entry_id"].decode() for letter in letters] == self.letters

    @invariant()
    def the_books_balance(self) -> None:
        assert self.tally["added"] == self.tally["done"] + self.tally["dead"] + len(self.items)
        assert self.tally["bytes"] == sum(item.size for item in self.items)

    def teardown(self) -> None:
        self.bench.call("DEL", self.opened, self.inbox, self.counts, self.dlq)


def test_the_scripts_of_the_inbox_do_what_the_model_does(bench: Bench) -> None:
    check(lambda: Box(bench))


BUGS = {
    "a bound off by one": ("push_entry", ">= maxlen", "> maxlen"),
    "bytes that are not counted back": ("finish_entries", "bytes = bytes + tonumber(entries[i + 1])", ""),
    "an entry counted though it was gone": ("finish_entries", "entries[i]) == 1 then", "entries[i]) >= 0 then"),
    "a dead letter that stays pending": ("move_to_dlq", "\nredis.call('XACK', inbox, group, id)\nredis", "\nredis"),
}


@pytest.mark.parametrize("redis_at", ["single"], indirect=True)
@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_in_the_scripts_of_the_inbox_is_found(bench: Bench, bug: str) -> None:
    name, right, wrong = BUGS[bug]
    script = with_bug(name, right, wrong)
    assert finds_a_difference(lambda: Box(bench, **{name: script}))
