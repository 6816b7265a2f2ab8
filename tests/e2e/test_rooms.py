"""Rooms over real sockets: people who share no language read each other, on any instances."""

import asyncio
from typing import Any

import msgspec
import pytest

from dragoman.client import Room, RoomRefused
from dragoman.domain.rooms import About, EntryKind
from dragoman.store.redis import Redis
from support.raw_node import silent
from support.redis_servers import LONG_CLUSTER
from support.rooms import Gathering, languages, room, time_to_end_ms, translation, translator
from support.speech import TIMEOUT_S, Harness, module_harness
from support.waiting import wait_until

A, B = 0, 1
TRANSLATE_TIMEOUT_MS = 1500
FLAGS: dict[str, object] = {"rooms__translate_timeout_ms": TRANSLATE_TIMEOUT_MS, "rooms__captions_per_minute": 0}
harness = module_harness(FLAGS, FLAGS, on=("single", LONG_CLUSTER))


async def test_two_people_with_two_languages_on_two_instances_read_each_other(harness: Harness) -> None:
    en, es = languages(2)
    async with room(harness) as (scenario, met):
        await translator(scenario, [en, es], A)
        ann = await met.join(en, A)
        berta = await met.join(es, B, room="", code=ann.room.code)
        await asyncio.gather(ann.room.write("good morning"), berta.room.write("buenos días"))
        seen = await berta.shows(translation(es, "good morning"))
        assert (seen.speaker, seen.original, seen.translated_into) == ("member 0", "good morning", es)
        seen = await ann.shows(translation(en, "buenos días"))
        assert (seen.speaker, seen.original, seen.translated_into) == ("member 1", "buenos días", en)
        await met.check(2)
        await wait_until(lambda: {one.hears for one in ann.room.members} == {en, es}, TIMEOUT_S)


async def test_four_members_in_three_languages_receive_exactly_the_log(harness: Harness) -> None:
    en, es, fr = langs = languages(3)
    async with room(harness) as (scenario, met):
        await translator(scenario, langs, A)
        await translator(scenario, langs, B)
        members = [await met.join(lang, at) for lang, at in ((en, A), (es, B), (fr, A), (en, B))]
        for number in range(10):
            await asyncio.gather(*(one.room.write(f"{number} of {at}") for at, one in enumerate(members)))
        log = await met.check(40)
        assert sum(entry.kind is EntryKind.TRANSLATION for entry in log) == 80


async def test_caption_is_untranslated_at_once_when_no_node_serves_the_language(harness: Harness) -> None:
    en, es, nowhere = languages(3)
    async with room(harness) as (scenario, met):
        await translator(scenario, [en, es])
        ann, reader, alone = await met.join(en), await met.join(es, B), await met.join(nowhere, B)
        assert (reader.room.unserved, alone.room.unserved) == (None, nowhere)
        await ann.room.write("hello")
        seen = await alone.until(lambda caption: bool(caption.untranslated))
        assert (seen.text, seen.untranslated) == ("hello", "no_node")
        await reader.shows(translation(es, "hello"))
        await met.check(1)


async def test_other_languages_are_unaffected_when_the_only_node_of_one_is_lost(harness: Harness) -> None:
    en, es, fr = languages(3)
    async with room(harness) as (scenario, met):
        await translator(scenario, [en, es], A)
        doomed = await translator(scenario, [en, fr], B, silent)
        ann, spanish, french = await met.join(en, A), await met.join(es, B), await met.join(fr, B)
        await ann.room.write("one")
        await doomed.job()
        doomed.die()
        await spanish.shows(translation(es, "one"))
        await french.until(lambda caption: caption.untranslated in ("timeout", "failed", "no_node"))
        assert time_to_end_ms(await met.log(), EntryKind.UNTRANSLATED) <= TRANSLATE_TIMEOUT_MS + 1000
        await translator(scenario, [en, fr], B)
        await ann.room.write("two")
        await french.shows(translation(fr, "two"))
        await met.check(2)


async def test_untranslated_caption_is_translated_when_a_member_asks_again(harness: Harness) -> None:
    en, es = languages(2)
    async with room(harness) as (scenario, met):
        ann, berta = await met.join(en, A), await met.join(es, B)
        await ann.room.write("later")
        missing = await berta.until(lambda caption: bool(caption.untranslated))
        await translator(scenario, [en, es], B)
        await berta.room.translate(missing)
        await berta.shows(translation(es, "later"))


async def test_caption_that_a_member_asks_for_before_it_was_delivered_arrives_once_and_in_order(
    harness: Harness,
) -> None:
    """Another instance appends, and its push is lost: the member's instance reads the log a moment later."""
    en, es = languages(2)
    async with room(harness) as (_, met):
        ann, berta = await met.join(en, A), await met.join(es, A)
        session, caption = ann.room.session_id, f"{ann.room.session_id}:t1"
        epoch = next(one.epoch for one in await met.store.members(met.id) if one.session == session)
        about = msgspec.json.encode(About(session, "Ann", "text", 0))
        await met.store.append_original(met.id, caption, session, epoch, lang=en, text="hello", about=about)
        await met.store.append_translation(met.id, caption, es, 1, translation(es, "hello"))
        await berta.room.translate(caption)
        await met.check(1)


async def test_late_joiner_reads_what_was_said_before(harness: Harness) -> None:
    en, es = languages(2)
    async with room(harness) as (scenario, met):
        await translator(scenario, [en, es])
        ann, _ = await met.join(en, A), await met.join(es, A)
        for number in range(60):
            await ann.room.write(f"sentence {number}")
        await met.check(60)
        late = await met.join(es, B)
        await late.shows(translation(es, "sentence 59"))
        await met.check(60)
        recent = await met.join(es, B, from_start=False)
        await recent.shows(translation(es, "sentence 59"))
        assert sum(caption.translation is None for caption in recent.received) == 50
        met.members.remove(recent)


async def test_member_that_loses_its_connection_resumes_on_another_instance_without_hole_or_duplicate(
    harness: Harness,
) -> None:
    en, es = languages(2)
    async with room(harness) as (scenario, met):
        await translator(scenario, [en, es])
        ann, berta = await met.join(en, A), await met.join(es, B, A)
        for number in range(30):
            await ann.room.write(f"sentence {number}")
            if number % 10 == 5 and berta.room.socket is not None:
                berta.room.socket.abort()
        await met.check(30)
        assert berta.room.complete
        await wait_until(lambda: berta.room.count == 2, TIMEOUT_S)


# -- Redis loses what it has confirmed ------------------------------------------------------------


class RoomKeys:
    """The keys of a room as they are now. `restore` is a Redis that has lost everything since."""

    def __init__(self, redis: Redis, keys: list[str]) -> None:
        self._redis, self._keys, self._dumped = redis, keys, list[bytes | None]()

    @classmethod
    async def of(cls, met: Gathering) -> "RoomKeys":
        names = ("info", "members", "seniority", "counts", "log", "captions", "recent", "pending", "removed")
        keys = [getattr(met.store.keys, f"room_{name}")(met.id) for name in names]
        saved = cls(met.store.redis, keys)
        saved._dumped = list(await asyncio.gather(*(saved._redis.call("DUMP", key) for key in keys)))
        return saved

    async def restore(self) -> None:
        await asyncio.gather(*map(self._restore, self._keys, self._dumped))

    async def _restore(self, key: str, dumped: bytes | None) -> None:
        if dumped is None:
            await self._redis.call("DEL", key)
        else:
            await self._redis.call("RESTORE", key, 600_000, dumped, "REPLACE")

    async def delete(self) -> None:
        await asyncio.gather(*(self._redis.call("DEL", key) for key in self._keys))


async def test_members_are_informed_and_miss_nothing_that_follows_when_redis_has_lost_entries(
    harness: Harness,
) -> None:
    en, es = languages(2)
    async with room(harness) as (scenario, met):
        await translator(scenario, [en, es])
        ann, berta = await met.join(en, A), await met.join(es, B, A)
        await ann.room.write("kept")
        await berta.shows(translation(es, "kept"))
        saved = await RoomKeys.of(met)
        for text in ("lost 1", "lost 2"):
            await ann.room.write(text)
            await berta.shows(translation(es, text))
        await saved.restore()
        await wait_until(lambda: not ann.room.complete and not berta.room.complete, TIMEOUT_S, "both are informed")
        berta.received.clear()
        await ann.room.write("after")
        await berta.shows(translation(es, "after"))
        assert berta.room.socket is not None
        berta.room.socket.abort()
        await ann.room.write("at last")
        await berta.shows(translation(es, "at last"))
        assert berta.numbers == [entry.seq for entry in await met.log()][2:]


async def test_numbers_that_are_used_again_at_once_are_not_mistaken_for_the_lost_entries(harness: Harness) -> None:
    en, es = languages(2)
    async with room(harness) as (scenario, met):
        await translator(scenario, [en, es])
        ann, berta = await met.join(en, A), await met.join(es, B)
        await ann.room.write("kept")
        await berta.shows(translation(es, "kept"))
        saved = await RoomKeys.of(met)
        await ann.room.write("lost")
        await berta.shows(translation(es, "lost"))
        await saved.restore()
        for number in range(5):
            await ann.room.write(f"new {number}")
        for number in range(5):
            await berta.shows(translation(es, f"new {number}"))
        originals = [one.original for one in berta.received if one.translation is None]
        assert originals == ["kept", "lost", *(f"new {number}" for number in range(5))]
        await wait_until(lambda: not ann.room.complete and not berta.room.complete, TIMEOUT_S)


async def test_member_whose_joining_redis_has_lost_joins_again(harness: Harness) -> None:
    en, es = languages(2)
    async with room(harness) as (scenario, met):
        await translator(scenario, [en, es])
        ann = await met.join(en, A)
        saved = await RoomKeys.of(met)
        berta = await met.join(es, B)
        await wait_until(lambda: ann.room.count == 2, TIMEOUT_S)
        await saved.restore()
        await berta.room.write("still here")
        await ann.shows(translation(en, "still here"))
        await ann.room.write("welcome back")
        await berta.shows(translation(es, "welcome back"))


async def test_members_are_informed_when_redis_has_lost_the_room(harness: Harness) -> None:
    en, es = languages(2)
    async with room(harness) as (_, met):
        ann, berta = await met.join(en, A), await met.join(es, B)
        await (await RoomKeys.of(met)).delete()
        for member in (ann, berta):
            await wait_until(lambda: member.room.ended == "The room does not exist any more.", TIMEOUT_S)  # noqa: B023


async def test_members_receive_the_rest_of_the_log_and_the_reason_when_no_push_of_the_closing_reaches_them(
    harness: Harness,
) -> None:
    (en,) = languages(1)
    async with room(harness) as (_, met):
        ann, berta = await met.join(en, A), await met.join(en, B)
        await ann.room.write("said")
        await berta.shows("said")
        (said,) = await met.log()
        caption, speaker, text = f"{said.caption}-last", ann.room.session_id, "the last words"
        await met.store.append_original(met.id, caption, speaker, 1 << 40, lang=en, text=text, about=said.about)
        await met.store.close(met.id, "closed", only_if_over=False)
        for member in (ann, berta):
            await member.shows("the last words")
            await wait_until(lambda: member.room.ended == "The host has closed the room.", TIMEOUT_S)  # noqa: B023


async def test_member_reads_another_language_from_its_change_on(harness: Harness) -> None:
    en, es, fr = languages(3)
    async with room(harness) as (scenario, met):
        await translator(scenario, [en, es, fr])
        ann, berta = await met.join(en), await met.join(es, B)
        await ann.room.write("one")
        await berta.shows(translation(es, "one"))
        await berta.room.update(hears=fr)
        await ann.room.write("two")
        await berta.shows(translation(fr, "two"))
        assert translation(es, "two") not in berta.texts


async def test_host_locks_pauses_removes_transfers_and_closes(harness: Harness) -> None:
    en, es = languages(2)
    async with room(harness) as (scenario, met):
        await translator(scenario, [en, es])
        host, guest, third = await met.join(en, A), await met.join(es, A), await met.join(es, B)
        with pytest.raises(RoomRefused, match="Only the host"):
            await guest.room.lock()
        await host.room.lock()
        with pytest.raises(RoomRefused, match="locked"):
            await met.join(es, B)
        await host.room.lock(False)
        await host.room.pause()
        with pytest.raises(RoomRefused, match="paused"):
            await guest.room.write("now?")
        await host.room.pause(False)
        await host.room.remove(third.room.session_id)
        await wait_until(lambda: host.room.count == 2, TIMEOUT_S)
        with pytest.raises(RoomRefused, match="over, or was left"):
            await third.room.write("still here?")
        await host.room.transfer(guest.room.session_id)
        with pytest.raises(RoomRefused, match="Only the host"):
            await host.room.close()
        await guest.room.close()
        await wait_until(lambda: _is_over(host.room), TIMEOUT_S)
        with pytest.raises(RoomRefused, match="no such room"):
            await met.join(es, B)


async def _is_over(room: Room) -> bool:
    try:
        await room.update(muted=False)
    except RoomRefused:
        return True
    return False


async def test_longest_present_member_becomes_host_when_the_host_leaves(harness: Harness) -> None:
    (en,) = languages(1)
    async with room(harness) as (_, met):
        host, second, third = await met.join(en, A), await met.join(en, B), await met.join(en, A)
        await host.room.leave()
        await wait_until(
            lambda: (
                {one.session_id: one.role for one in third.room.members}
                == {second.room.session_id: "host", third.room.session_id: "speaker"}
            ),
            TIMEOUT_S,
        )


async def test_listener_only_reads_and_does_not_become_host(harness: Harness) -> None:
    (en,) = languages(1)
    async with room(harness) as (scenario, met):
        host = await met.join(en, A)
        reader = await scenario.talker(B, src_lang=en)
        await reader.say("room_join", room_id=met.id, speaks=en, listener=True)
        joined = await reader.until(lambda m: m["type"] == "room_joined", TIMEOUT_S)
        assert joined["role"] == "listener"
        await reader.say("room_text", text="from a listener", client_msg_id="m1", request_id="r1")
        refused = await reader.until(lambda m: m["type"] == "room_error", TIMEOUT_S)
        assert refused["code"] == "NOT_ALLOWED"
        await host.room.leave()
        late = await met.join(en, A)
        assert late.room.role == "host"
        assert {one.role for one in await met.store.members(met.id)} == {"host", "listener"}
        await wait_until(lambda: {one.role for one in late.room.members} == {"host", "listener"}, TIMEOUT_S)


async def test_same_sentence_sent_twice_is_one_caption(harness: Harness) -> None:
    en, es = languages(2)
    async with room(harness) as (scenario, met):
        await translator(scenario, [en, es])
        talker = await scenario.talker(A, src_lang=en)
        await talker.say("room_create", display_name="Ann", speaks=en)
        created = await talker.until(lambda m: m["type"] == "room_create_ack", TIMEOUT_S)
        met.id = created["room_id"]
        await met.join(es, B)
        for _ in range(2):
            await talker.say("room_text", text="once", client_msg_id="one", request_id="r")
            await talker.until(lambda m: m["type"] == "room_ok", TIMEOUT_S)
        await met.check(1)


async def test_existing_clients_get_translation_results_of_the_others(harness: Harness) -> None:
    """Clients that know neither captions nor cursors: `room_create`, `room_join` with a code, and results."""
    en, es = languages(2)
    async with room(harness) as (scenario, met):
        await translator(scenario, [en, es])
        one, other = await scenario.talker(A, src_lang=en), await scenario.talker(B, src_lang=es)
        await one.say("room_create", client_ts=1, display_name="One")
        code = (await one.until(lambda m: m["type"] == "room_create_ack", TIMEOUT_S))["room_code"]
        await other.say("room_join", room_code=code, display_name="Other")
        ack = await other.until(lambda m: m["type"] in ("room_create_ack", "room_members"), TIMEOUT_S)
        assert (ack["type"], ack["room_code"]) == ("room_create_ack", code)
        members = await one.until(lambda m: m["type"] == "room_members" and len(m["members"]) == 2, TIMEOUT_S)
        assert [member["preferred_lang"] for member in members["members"]] == [en, es]
        met.id = ack["room_id"]
        speaker = await met.join(en, A)
        await speaker.room.write("hello")
        result = await other.until(lambda m: m["type"] == "translation_result", TIMEOUT_S)
        assert (result["text_asr"], result["text_translated"]) == ("hello", translation(es, "hello"))
        assert (result["session_id"], result["utterance_index"]) == (speaker.room.session_id, 1_000_000_000)
        result = await one.until(lambda m: m["type"] == "translation_result", TIMEOUT_S)
        assert (result["text_asr"], result["text_translated"]) == ("hello", "hello")
        await one.say("webrtc_offer", room_code=code, to=other.session_id, sdp={"type": "offer"})
        offer = await other.until(lambda m: m["type"] == "webrtc_offer", TIMEOUT_S)
        assert (offer["to"], offer["sdp"]) == (one.session_id, {"type": "offer"})


BAD: list[tuple[dict[str, Any], str]] = [
    ({"type": "room_join", "room_id": "no-such-room", "hears": "en"}, "ROOM_NOT_FOUND"),
    ({"type": "room_join", "room_code": "000000"}, "INVALID_ROOM_CODE"),
    ({"type": "room_join", "room_code": "☃" * 6}, "INVALID_ROOM_CODE"),
    ({"type": "room_join"}, "INVALID_ROOM_CODE"),
    ({"type": "room_leave"}, "NOT_IN_ROOM"),
    ({"type": "room_update", "hears": "en"}, "NOT_IN_ROOM"),
    ({"type": "room_text", "text": "hello", "client_msg_id": "1"}, "NOT_IN_ROOM"),
    ({"type": "room_translate", "caption_id": "x", "lang": "en"}, "NOT_IN_ROOM"),
    ({"type": "room_lock", "locked": True}, "NOT_IN_ROOM"),
    ({"type": "webrtc_offer", "room_code": "123456", "to": "x", "sdp": {}}, "NOT_IN_ROOM"),
    ({"type": "room_text", "text": "x" * 65_536, "client_msg_id": "1"}, "INVALID_MESSAGE"),
    ({"type": "room_text", "text": "hello", "client_msg_id": "a b"}, "INVALID_MESSAGE"),
    ({"type": "room_create", "display_name": "n" * 10_000}, "INVALID_MESSAGE"),
    ({"type": "room_create", "settings": {"vocabulary": ["term"] * 10_000}}, "INVALID_MESSAGE"),
    ({"type": "room_update", "session_id": "s-OF-SOMEBODY-ELSE", "hears": "en"}, "INVALID_SESSION"),
]


BAD_OF_A_HOST: list[tuple[dict[str, Any], str]] = [
    ({"type": "room_remove", "target_session_id": "s-OF-SOMEBODY-ELSE"}, "NOT_IN_ROOM"),
    ({"type": "room_transfer", "target_session_id": "s-OF-SOMEBODY-ELSE"}, "NOT_IN_ROOM"),
    (
        {"type": "room_raw_voice_preference", "room_code": "1", "target_session_id": "s-X", "receive_raw_voice": True},
        "NOT_IN_ROOM",
    ),
    ({"type": "webrtc_ice", "room_code": "123456", "to": "s-OF-SOMEBODY-ELSE", "candidate": {}}, "NOT_IN_ROOM"),
    ({"type": "room_translate", "caption_id": "of-another-room:t1", "lang": "en"}, "CAPTION_NOT_FOUND"),
    ({"type": "room_join", "room_id": "another-room", "hears": "en"}, "ALREADY_IN_ROOM"),
    ({"type": "room_create", "display_name": "Eve"}, "ALREADY_IN_ROOM"),
    ({"type": "room_text", "text": " \n ", "client_msg_id": "1"}, "NOT_ALLOWED"),
    ({"type": "room_settings", "settings": {"vocabulary": ["term"] * 10_000}}, "INVALID_MESSAGE"),
]


async def test_bad_room_messages_get_a_clear_error_and_nobody_else_is_affected(harness: Harness) -> None:
    en, es = languages(2)
    async with room(harness) as (scenario, met):
        await translator(scenario, [en, es])
        ann, berta = await met.join(en, A), await met.join(es, B)
        stranger, host = await scenario.talker(A), await scenario.talker(A)
        await host.say("room_create", display_name="Eve", speaks=en)
        await host.until(lambda m: m["type"] == "room_create_ack", TIMEOUT_S)
        bad = [(stranger, *one) for one in BAD] + [(host, *one) for one in BAD_OF_A_HOST]
        for number, (talker, message, code) in enumerate(bad):
            await talker.say(**message)
            error = await talker.until(lambda m: m["type"] in ("error", "room_error"), TIMEOUT_S)
            assert (error["code"], bool(error["message"])) == (code, True), message
            await ann.room.write(f"sentence {number}")
        await berta.shows(translation(es, f"sentence {len(bad) - 1}"))
        await met.check(len(bad))
        assert await stranger.pong()
        assert await host.pong()


async def test_name_with_control_characters_is_shown_without_them(harness: Harness) -> None:
    (en,) = languages(1)
    async with room(harness) as (_, met):
        member = await met.join(en, A, name="Eve\x1b[2J\u202e\n!")
        await wait_until(lambda: [one.display_name for one in member.room.members] == ["Eve[2J!"], TIMEOUT_S)
