"""The scripts of store/rooms against a room of plain objects, and the index of visits against two dictionaries."""

import asyncio
import json
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dragoman.domain.rooms import Member, Role
from dragoman.store.errors import Refused
from dragoman.store.rooms import rooms as rooms_module
from dragoman.store.rooms.rooms import Closed, Refusal, RoomBounds, Rooms, RoomState
from model.machines import START_MS, Bench, check, finds_a_difference, planted, with_bug
from model.room_model import RoomModel

BOUNDS = RoomBounds(max_members=4, max_languages=2, max_entries=5)
REASON = "no_node"
# Two sessions have one principal, and s1's principal creates the rooms.
PRINCIPALS = {"s1": "p1", "s2": "p2", "s3": "p3", "s4": "p4", "s5": "p4"}
SESSION = st.sampled_from(sorted(PRINCIPALS))
INSTANCE = st.sampled_from(["a", "b", "c"])
LANG = st.sampled_from(["en", "es", "fr", "de"])
HEARS = st.sampled_from(["en", "es", "fr", ""])
ROLE = st.sampled_from([Role.SPEAKER, Role.SPEAKER, Role.LISTENER, Role.LISTENER, Role.HOST])
CAPTION = st.sampled_from(["s1:u0", "s1:u1", "s2:tü|1", "s3:u0", "s3:u1"])
EPOCH = st.sampled_from([0, 0, 0, 1, -1])  # as the difference from the stored one
FLAGS = [("locked", True), ("locked", False), ("paused", False), ("persistent", True), ("persistent", False)]
CHANGE = st.sampled_from([*FLAGS, ("settings", b'{"guests":true}')])
PLACE = st.integers(0, 13)
STEP_MS = st.sampled_from([0, 1, 3999, 4000, 59_999, 60_000, 1_799_999, 1_800_000, BOUNDS.persistent_ms])
CHANGES = st.fixed_dictionaries(
    {"hears": HEARS},
    optional={
        "voice": st.booleans(),
        "speaks": LANG,
        "muted": st.booleans(),
        "name": st.sampled_from(["Ana", 'Zoë/ "x" \\ \n', ""]),
    },
)


class Room(RuleBasedStateMachine):
    """One room after another, each until it is closed. What is done in it are the rules of the classes below."""

    def __init__(self, bench: Bench) -> None:
        super().__init__()
        self.bench, self.now, self.said = bench, START_MS, 0
        self.rooms = Rooms(bench.redis, bench.keys, BOUNDS, now=lambda: self.now)

    @initialize(
        persistent=st.booleans(),
        locked=st.sampled_from([False, False, True]),
        joining=st.lists(HEARS, min_size=1, max_size=5),
    )
    def open(self, persistent: bool, locked: bool, joining: list[str]) -> None:
        self.create(persistent, locked)
        for session, hears in zip(sorted(PRINCIPALS), joining, strict=False):
            role = Role.LISTENER if session in ("s2", "s3") else Role.SPEAKER
            self.join(session, "a", hears, False, role, 0, claimed=session == "s3")

    def create(self, persistent: bool, locked: bool) -> None:
        self.room = self.bench.fresh_name()
        said: dict[str, Any] = {"creator": "p1", "log_epoch": "e", "persistent": persistent, "locked": locked}
        created = self.rooms.create(self.room, "123456", tenant="t", settings=b"{}", **said)
        assert self.bench.do(created) is True
        self.model = RoomModel(BOUNDS, "123456", active_ms=self.now, empty_since_ms=self.now, **said)
        again = self.rooms.create(self.room, "654321", tenant="t", settings=b"[]", **said)
        assert self.bench.do(again) is False
        self.redis_holds_what_the_model_holds()
        self.every_key_has_the_life_of_the_room()

    def someone(self, place: int) -> str:
        """Mostly a member."""
        return [*sorted(self.model.members) * 3, *sorted(PRINCIPALS)][place % (len(self.model.members) * 3 + 5)]

    def epoch(self, session: str, difference: int) -> int:
        member = self.model.members.get(session)
        return max((member.epoch if member is not None else 1) + difference, 0)

    @rule(ms=STEP_MS)
    def time_passes(self, ms: int) -> None:
        self.now += ms

    # -- members ---------------------------------------------------------------------------------

    def join(
        self, session: str, instance: str, hears: str, voice: bool, role: Role, difference: int, claimed: bool = False
    ) -> None:
        epoch, principal = self.epoch(session, difference), PRINCIPALS[session]
        said: dict[str, Any] = {"role": role, "voice": voice, "claimed": claimed}
        member = Member(session, instance, epoch, f"n {session}", "en", hears, principal, **said)
        assert self.bench.do(self.rooms.join(self.room, member)) == self.model.join(member, self.now)

    def update(self, place: int, difference: int, changes: dict[str, Any]) -> None:
        session = self.someone(place)
        epoch = self.epoch(session, difference)
        reply = self.bench.do(self.rooms.update(self.room, session, epoch, changes))
        assert reply == self.model.update(session, epoch, changes)

    def leave(self, place: int, difference: int) -> None:
        session = self.someone(place)
        epoch = self.epoch(session, difference)
        reply = self.bench.do(self.rooms.leave(self.room, session, epoch))
        assert reply == self.model.leave(session, epoch, self.now)

    def acting(self, place: int) -> str:
        """Mostly a host."""
        hosts = [session for session, member in self.model.members.items() if member.role is Role.HOST]
        return hosts[0] if hosts and place % 4 else self.someone(place)

    def remove(self, place: int, target_place: int, difference: int) -> None:
        session, other = self.acting(place), self.someone(target_place)
        epoch = self.epoch(session, difference)
        reply = self.bench.do(self.rooms.remove(self.room, session, epoch, other))
        assert reply == self.model.remove(session, epoch, other, self.now)

    def transfer(self, place: int, to_place: int, difference: int) -> None:
        session, to = self.acting(place), self.someone(to_place)
        epoch = self.epoch(session, difference)
        reply = self.bench.do(self.rooms.transfer(self.room, session, epoch, to))
        assert reply == self.model.transfer(session, epoch, to)

    def set_field(self, place: int, difference: int, change: tuple[str, bool | bytes]) -> None:
        session = self.acting(place)
        epoch = self.epoch(session, difference)
        reply = self.bench.do(self.rooms.set_field(self.room, session, epoch, *change))
        assert reply == self.model.set_field(session, epoch, *change)
        if change[0] == "persistent":
            self.every_key_has_the_life_of_the_room()

    # -- the log ---------------------------------------------------------------------------------

    def original(self, caption: str, place: int, difference: int, lang: str, lost: bool) -> None:
        session = self.someone(place)
        epoch, text, about = self.epoch(session, difference), f"said {self.now}", b'{"by":"\xc3\xbc"}'
        said: dict[str, Any] = {"lang": lang, "text": text, "about": about, "lost": lost}
        reply = self.bench.do(self.rooms.append_original(self.room, caption, session, epoch, **said))
        assert reply == self.model.original(caption, session, epoch, now=self.now, **said)

    def plan(self, caption: str, lang: str) -> None:
        assert self.bench.do(self.rooms.plan(self.room, caption, lang)) == self.model.plan(caption, lang, self.now)

    def translate(self, caption: str, lang: str, n: int, reason: str) -> None:
        reply = self.bench.do(self.rooms.append_translation(self.room, caption, lang, n, "text", reason=reason))
        assert reply == self.model.translate(caption, lang, n, "text", reason, self.now)

    @rule()
    def visit(self) -> None:
        assert self.bench.do(self.rooms.expire_pending(self.room)) == self.model.visit(self.now)

    # -- the end ---------------------------------------------------------------------------------

    @rule(
        only_if_over=st.sampled_from([True, True, True, True, True, False]), wait=st.sampled_from([0, 59_999, 60_000])
    )
    def close(self, only_if_over: bool, wait: int) -> None:
        self.now += wait
        reply = self.bench.do(self.rooms.close(self.room, "why", only_if_over=only_if_over))
        if isinstance(reply, Closed):
            reply.sessions.sort()
        assert reply == self.model.close("why", only_if_over, self.now)
        if self.model.closed:
            self.redis_holds_what_the_model_holds()
            self.nothing_happens_in_a_closed_room()
            self.drop()
            self.open(not self.model.persistent, False, ["es", "fr", "es", "fr"])

    def nothing_happens_in_a_closed_room(self) -> None:
        self.join("s1", "a", "en", True, Role.SPEAKER, 0)
        self.update(0, 0, {"voice": True})
        self.leave(0, 0)
        self.remove(0, 1, 0)
        self.original("s9:u9", 0, 0, "en", True)
        self.translate("s1:u0", "es", 1, "")
        self.plan("s1:u0", "es")
        self.visit()
        assert self.bench.do(self.rooms.close(self.room, "again", only_if_over=False)) is Refusal.NONE
        state = self.bench.do(self.rooms.state(self.room))
        assert state is not None
        assert state.closed
        self.redis_holds_what_the_model_holds()

    @rule(wait=st.sampled_from([59_999, 60_000, 1_800_000]))
    def everyone_leaves_and_some_return(self, wait: int) -> None:
        while self.model.members:
            self.leave(0, 0)
        self.now += wait
        self.visit()
        for session, hears in (("s1", "es"), ("s4", "fr")):
            self.join(session, "b", hears, True, Role.SPEAKER, 0)

    # -- comparison ------------------------------------------------------------------------------

    @invariant()
    def redis_holds_what_the_model_holds(self) -> None:
        self.bench.do(self.compare())

    async def compare(self) -> None:
        redis, keys, model, room = self.bench.redis, self.bench.keys, self.model, self.room
        info, members, found, log, *rows = await asyncio.gather(
            self.rooms.info(room),
            self.rooms.members(room),
            redis.call("HGETALL", keys.room_counts(room)),
            self.rooms.read(room, 0, 100),
            redis.call("ZRANGE", keys.room_seniority(room), 0, -1, "WITHSCORES"),
            redis.call("HGETALL", keys.room_captions(room)),
            redis.call("LRANGE", keys.room_recent(room), 0, -1),
            redis.call("ZRANGE", keys.room_pending(room), 0, -1, "WITHSCORES"),
            redis.call("SMEMBERS", keys.room_removed(room)),
        )
        seniority, captions, recent, pending, removed = rows
        assert info is not None
        if not model.closed:
            state = RoomState(model.version, model.seq, model.log_epoch, model.appended_ms)
            assert await self.rooms.state(room) == state
        fields = (
            "seq",
            "version",
            "joins",
            "locked",
            "paused",
            "persistent",
            "closed",
            "settings",
            "code",
            "log_epoch",
        )
        for name in (*fields, "active_ms", "empty_since_ms"):
            assert getattr(info, name) == getattr(model, name), name
        assert {member.session: member for member in members} == model.members
        assert log == model.log
        assert pairs(captions, json.loads) == {id: asdict(caption) for id, caption in model.captions.items()}
        assert pairs(pending, int) == {"|".join(name): at for name, at in model.pending.items()}
        assert pairs(found, int) == ({} if model.closed else model.counts)
        assert pairs(seniority, int) == model.seniority
        assert [int(seq) for seq in recent] == ([] if model.closed else model.recent)
        assert {name.decode() for name in removed} == model.removed

    def every_key_has_the_life_of_the_room(self) -> None:
        ttl_ms = BOUNDS.transcript_ms if self.model.closed else BOUNDS.ttl_ms(self.model.persistent)
        for key in self.room_keys():
            assert self.bench.call("PTTL", key) == -2 or self.bench.lives(key, ttl_ms), key

    def room_keys(self) -> list[str]:
        keys, room = self.bench.keys, self.room
        names = ("info", "members", "seniority", "counts", "log", "captions", "recent", "pending", "removed")
        return [getattr(keys, f"room_{name}")(room) for name in names]

    def drop(self) -> None:
        try:
            self.every_key_has_the_life_of_the_room()
        finally:
            self.bench.call("DEL", *self.room_keys())
            self.bench.call("ZREM", self.bench.keys.rooms_due, self.room)

    def teardown(self) -> None:
        self.drop()


class Members(Room):
    join = rule(
        session=SESSION,
        instance=INSTANCE,
        hears=HEARS,
        voice=st.booleans(),
        role=ROLE,
        difference=EPOCH,
        claimed=st.sampled_from([False, False, False, True]),
    )(Room.join)
    update = rule(place=PLACE, difference=EPOCH, changes=CHANGES)(Room.update)
    leave = rule(place=PLACE, difference=EPOCH)(Room.leave)
    remove = rule(place=PLACE, target_place=PLACE, difference=EPOCH)(Room.remove)
    transfer = rule(place=PLACE, to_place=PLACE, difference=EPOCH)(Room.transfer)
    set_field = rule(place=PLACE, difference=EPOCH, change=CHANGE)(Room.set_field)


class Captions(Room):
    original = rule(
        caption=CAPTION, place=PLACE, difference=EPOCH, lang=LANG, lost=st.sampled_from([False, False, True])
    )(Room.original)

    @precondition(lambda self: self.model.members)
    @rule(count=st.integers(1, 4), place=PLACE, lang=LANG)
    def talk(self, count: int, place: int, lang: str) -> None:
        for _ in range(count):
            self.original(self.new_caption(), place % len(self.model.members), 0, lang, lost=False)

    @rule(place=PLACE, lang=LANG, lost=st.booleans())
    def talk_while_paused(self, place: int, lang: str, lost: bool) -> None:
        self.set_field(1, 0, ("paused", True))
        self.original(self.new_caption(), place, 0, lang, lost)
        self.set_field(1, 0, ("paused", False))

    @rule(known=st.booleans(), epoch=st.sampled_from(["e", "e2", "e3"]))
    def change_log_epoch(self, known: bool, epoch: str) -> None:
        before = self.model.log_epoch if known else "another"
        reply = self.bench.do(self.rooms.change_log_epoch(self.room, before, epoch))
        assert reply == self.model.change_log_epoch(before, epoch)

    def new_caption(self) -> str:
        self.said += 1
        return f"s1:u{1000 + self.said}"

    @rule(place=PLACE, difference=st.sampled_from([0, 0, 0, 1, -1]), reason=st.sampled_from(["", "", REASON]))
    def translate_planned(self, place: int, difference: int, reason: str) -> None:
        caption, lang, n = self.planned(place)
        self.translate(caption, lang, n + difference, reason)

    @rule(place=PLACE, lang=LANG)
    def plan_another(self, place: int, lang: str) -> None:
        self.plan(self.known_caption(place), lang)

    @rule(place=PLACE, reason=st.sampled_from(["", REASON]))
    def translate_and_plan_anew(self, place: int, reason: str) -> None:
        caption, lang, n = self.planned(place)
        self.translate(caption, lang, n, reason)
        self.plan(caption, lang)

    def planned(self, place: int) -> tuple[str, str, int]:
        """Mostly a language that was planned."""
        rows = self.model.captions.items()
        planned = sorted((id, lang, one.n) for id, row in rows for lang, one in row.langs.items())
        return [*planned, ("s1:u0", "en", 1)][place % (len(planned) + 1)]

    @rule(place=PLACE, who=PLACE, lang=LANG, lost=st.booleans())
    def say_again(self, place: int, who: int, lang: str, lost: bool) -> None:
        self.original(self.known_caption(place), who, 0, lang, lost)

    def known_caption(self, place: int) -> str:
        return [*sorted(self.model.captions), "s1:u0"][place % (len(self.model.captions) + 1)]

    @precondition(lambda self: self.model.pending)
    @rule(early_ms=st.sampled_from([0, 0, 1]))
    def visit_at_the_first_deadline(self, early_ms: int) -> None:
        self.now = max(self.now, min(self.model.pending.values()) - early_ms)
        self.visit()

    @rule(after=st.integers(0, 8), count=st.integers(1, 4), upto=st.integers(0, 9), captions=st.integers(1, 4))
    def read(self, after: int, count: int, upto: int, captions: int) -> None:
        expected = [entry for entry in self.model.log if entry.seq > after and (not upto or entry.seq <= upto)]
        assert self.bench.do(self.rooms.read(self.room, after, count, upto)) == expected[:count]
        last = self.model.recent[-captions:]
        assert self.bench.do(self.rooms.last(self.room, captions)) == (last[0] - 1 if last else 0)


class Conversation(Members, Captions):
    pass


def pairs(flat: list[bytes], value: Any) -> dict[str, Any]:
    return {name.decode(): value(each) for name, each in zip(flat[::2], flat[1::2], strict=True)}


def test_the_scripts_of_a_room_do_what_the_model_does(bench: Bench) -> None:
    check(lambda: Conversation(bench), examples=60, steps=40)


# -- bugs: each must make a difference ----------------------------------------------------------

BUGS = {
    "a room that is created twice": ("create_room", "'EXISTS', info) == 1", "'EXISTS', info) == 2"),
    "a new room that is not empty": ("create_room", "'empty_since_ms', now", "'empty_since_ms', ''"),
    "a new room without a life": ("create_room", "redis.call('PEXPIRE', info, ttl)\n", ""),
    "a member above the bound": ("join_room", ">= max_members", "> max_members"),
    "a lock without effect": ("join_room", "if room[1] == '1' and", "if room[1] == '2' and"),
    "a lock that keeps the creator out": ("join_room", "room[2] == after.principal or", ""),
    "a removed principal that joins": ("join_room", "after.principal) == 1", "after.principal) == 2"),
    "a join with an old epoch": ("join_room", "if after.epoch < before.epoch", "if false"),
    "a role that is lost by joining again": ("join_room", "= before.role,", "= nil,"),
    "a joined room that stays empty": ("join_room", "'empty_since_ms', '', ", ""),
    "a join that is no activity": ("join_room", "'empty_since_ms', '', 'active_ms', now", "'empty_since_ms', ''"),
    "a second host by joining": ("join_room", "'r:host') == 0", "'r:host') >= 0"),
    "a listener in the order of the speakers": ("join_room", "(after.role == 'listener' and 1e12 or 0)", "0"),
    "a join that is counted twice": ("join_room", "if before then count(before, -1) end", ""),
    "a language above the bound": ("join_room", "heard < max_languages", "heard <= max_languages"),
    "a join that does not change the version": ("join_room", "'version', 1)", "'version', 0)"),
    "a new key without a life": ("join_room", "renew()\nlocal room", "local room"),
    "a language that its only listener cannot leave": ("update_member", "heard = heard - 1", "heard = heard"),
    "an update with an old epoch": ("update_member", "if epoch < before.epoch", "if false"),
    "a voice that is not counted": ("update_member", "if member.hears ~= '' and member.voice", "if false"),
    "a count of nobody": ("update_member", "field, by) == 0", "field, by) < 0"),
    "a late leave that removes a resumed member": ("end_member", "if host == '' and epoch < member.epoch", "if false"),
    "a room without a host": ("end_member", "if new_host ~= '' then set_role", "if false then set_role"),
    "a youngest member that becomes host": ("end_member", "'ZRANGE', seniority, 0, 0", "'ZREVRANGE', seniority, 0, 0"),
    "an empty room that does not know since when": ("end_member", "if left == 0", "if left < 0"),
    "a member that is counted after it has left": ("end_member", "count(before, -1)", "count(before, 0)"),
    "a member that can become host after it has left": ("end_member", "redis.call('ZREM', seniority, session)", ""),
    "a removed member that may come back": ("end_member", "redis.call('SADD', removed, member.principal)", ""),
    "a member that removes others without being host": ("end_member", "= host ~= '' and", "= false and"),
    "a host with an old epoch": ("set_room_field", "if epoch < member.epoch", "if false"),
    "a member that transfers what it does not have": ("transfer_host", "member.role ~= 'host'", "false"),
    "a life that does not follow the settings": ("set_room_field", "persistent = value == '1'", ""),
    "a claimed role that is given up": ("join_room", "before.role, before.claimed,", "before.role, nil,"),
    "a claimed role that becomes host": ("join_room", "if not after.claimed then", "if true then"),
    "a claimed listener that becomes the next host": ("transfer_host", " and not before.claimed then", " then"),
    "two hosts after a transfer": ("transfer_host", "set_role(session, 'speaker')\n", ""),
    "a host that is ordered as a listener": ("transfer_host", "if before.role == 'listener' and", "if false and"),
    "a speaker that was fenced": ("append_original", "if member and epoch <", "if false and epoch <"),
    "a speaker that is not in the room": ("append_original", "if not member and kind ~= 'lost'", "if false"),
    "a caption of a paused room": ("append_original", "'paused') == '1'", "'paused') == '2'"),
    "a caption that is appended twice": ("append_original", "if row and", "if false and"),
    "a lost utterance that is not shown when it is recognised": (
        "append_original",
        "row.kind == 'lost' and kind",
        "kind",
    ),
    "a caption that goes with the note that it was lost": ("append_original", "row.seq == tonumber(seq)", "true"),
    "a gap in the numbers": ("append_original", "info, 'seq', 1)", "info, 'seq', 2)"),
    "a deadline that is not added to now": ("append_original", "now + translate_timeout_ms", "translate_timeout_ms"),
    "a translation into the spoken language": ("append_original", "if heard ~= lang then", "if heard then"),
    "a plan for what was lost": ("append_original", "kind == 'original' and counted('h:') or {}", "counted('h:')"),
    "a repeated plan of what is done": ("append_original", "if state.s == 'pending' then\n", "if state then\n"),
    "a log shorter than its bound": ("append_original", "log) > max_entries", "log) >= max_entries"),
    "a caption of an entry that is gone": ("append_original", "redis.call('HDEL', captions, caption)", ""),
    "a pending language of an entry that is gone": (
        "append_original",
        "for lang in pairs(row.langs)",
        "for lang in pairs({})",
    ),
    "a recent caption that is gone": ("append_original", "then redis.call('LPOP', recent) end", "then end"),
    "an append that is no activity": ("append_original", "'active_ms', now, 'appended_ms'", "'appended_ms'"),
    "a plan with the number of the last one": ("plan_translation", ".n or 0) + 1", ".n or 1)"),
    "a plan of what is translated": ("plan_translation", "state.s == 'done'", "state.s == 'no'"),
    "a plan of what is pending": ("plan_translation", "'pending' then return", "'no' then return"),
    "a planned language above the bound": ("plan_translation", ">= max_languages", "> max_languages"),
    "a translation that is written twice": ("append_translation", "state.s ~= 'pending' or ", ""),
    "a translation for an earlier plan": ("append_translation", " or state.n ~= n", ""),
    "a translated language that stays pending": (
        "append_translation",
        "caption)\n    return seq",
        "'')\n    return seq",
    ),
    "a failed translation that counts as done": ("append_translation", "and 'done' or 'untranslated'", "or 'done'"),
    "a row that is written after it was trimmed": ("append_translation", "\nrenew()", "\nwrite(caption, row)\nrenew()"),
    "an entry without the time of its append": ("append_original", "string.format('%.0f', now)", "0"),
    "a last entry of another time": ("append_translation", ", 'appended_ms', now", ""),
    "an epoch that is changed twice": ("change_log_epoch", "== known then", "then"),
    "an epoch that the others do not notice": ("change_log_epoch", "redis.call('HINCRBY', info, 'version', 1)", ""),
    "a language that expires late": ("expire_pending", "'-inf', now,", "'-inf', now - 1,"),
    "a next visit after the deadline": ("expire_pending", "first[2] and first[2] - now or left", "left"),
    "a room that is over late": ("expire_pending", "left <= 0 and", "left < 0 and"),
    "a persistent room that ends when it is empty": ("expire_pending", " and not persistent and", " and"),
    "a close of a room that goes on": ("close_room", "if only_if_over == 1 and over() == ''", "if false"),
    "a closed room with something pending": ("close_room", "recent, pending, removed)", "recent, removed)"),
    "a closed room that lives too long": ("close_room", "redis.call('PEXPIRE', key, transcript_ms)", ""),
}


OF_CAPTIONS = (
    "append_original",
    "change_log_epoch",
    "plan_translation",
    "append_translation",
    "expire_pending",
    "close_room",
)


@pytest.mark.parametrize("redis_at", ["single"], indirect=True)
@pytest.mark.parametrize(
    "bug",
    planted(
        BUGS,
        "a new room that is not empty",
        "a joined room that stays empty",
        "a lock without effect",
        "a count of nobody",
        "a room without a host",
        "a host with an old epoch",
        "two hosts after a transfer",
        "a gap in the numbers",
        "a speaker that was fenced",
        "a plan of what is translated",
        "a translation that is written twice",
        "an epoch that is changed twice",
        "a language that expires late",
        "a closed room that lives too long",
    ),
)
def test_a_bug_in_the_scripts_of_a_room_is_found(bench: Bench, bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, right, wrong = BUGS[bug]
    monkeypatch.setattr(rooms_module, name.upper(), with_bug(f"rooms/{name}", right, wrong))
    machine = Captions if name in OF_CAPTIONS else Members
    try:
        assert finds_a_difference(lambda: machine(bench))
    except Refused:
        pass  # the script has failed
