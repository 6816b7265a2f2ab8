"""What one member may ask of rooms, and that speech of others goes on whatever it does."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

import aiohttp
import pytest

from dragoman.client import Room, RoomRefused
from dragoman.domain.limits.sessions import WORK_AT_ONCE
from support.raw_node import silent
from support.rooms import Gathering, gathering, room, translation, translator
from support.speech import SECRET, TIMEOUT_S, Harness, Talker, module_harness, token, with_healthy_client
from support.waiting import wait_until

JOBS, PER_S, OPENED, PERSISTENT, MEMBERS = 10, 20, 3, 1, 12
JOINS = 10_000
LANGUAGES = [f"l{number}" for number in range(9)]
FLAGS: dict[str, object] = {
    "security__secret": SECRET,
    "limits__open_jobs_per_principal": JOBS,
    "limits__utterances_per_s": PER_S,
    "rooms__opened_per_minute": OPENED,
    "rooms__captions_per_minute": 0,
    "rooms__persistent_per_day": PERSISTENT,
    "rooms__max_languages": len(LANGUAGES),
    "rooms__max_members": MEMBERS,
}
limited = module_harness(FLAGS, headers={"Authorization": f"Bearer {token('operator', 'olga')}"})


async def test_greedy_member_of_a_room_with_eight_languages_is_slowed_down_and_refused(limited: Harness) -> None:
    async with with_healthy_client(limited) as scenario, gathering(scenario) as met:
        node = await translator(scenario, LANGUAGES, work=silent, node_id="texts", token=token("node", "texts"))
        greedy = await met.join(LANGUAGES[0], token=token(sub="greedy"))
        for lang in LANGUAGES[1:]:
            await met.join(lang, token=token(sub=f"reader {lang}"))
        slowed = await scenario.count("dragoman_session_limits_total{limit=work}")
        writing = [greedy.room.write(f"sentence {number}") for number in range(2 * WORK_AT_ONCE)]
        answers = await asyncio.gather(*writing, return_exceptions=True)
        refused = [one for one in answers if isinstance(one, RoomRefused)]
        assert refused
        assert {one.code for one in refused} == {"LIMIT_EXCEEDED"}
        assert "Too many of your translations are open" in str(refused[0])
        assert await scenario.count("dragoman_session_limits_total{limit=work}") > slowed
        assert len(node.jobs) <= 2 * JOBS + len(LANGUAGES)
        # Another one writes meanwhile.
        await met.members[1].room.write("unaffected")
        await greedy.shows("unaffected")


async def test_principal_cannot_open_one_room_after_another(limited: Harness) -> None:
    async with with_healthy_client(limited) as scenario, gathering(scenario) as met:
        answers = list[str]()
        for number in range(OPENED + 1):
            room = Room(met.url(0), name=f"{number}", speaks="en", token=token(sub="opener"))
            try:
                await room.join()
                answers.append("")
            except RoomRefused as error:
                answers.append(error.code)
            await room.leave()
        assert answers == [""] * OPENED + ["LIMIT_EXCEEDED"]
        other = await met.join("en", token=token(sub="other"))
        await wait_until(lambda: other.room.count == 1, TIMEOUT_S)


async def test_token_for_one_room_gives_no_speech_outside_that_room(limited: Harness) -> None:
    async with with_healthy_client(limited) as scenario, gathering(scenario) as met:
        host = await met.join(scenario.src, token=token(sub="host"))
        node = await scenario.node(
            features=("job_ack", "preview:2"), node_id="speech", token=token("node", "speech"), text_pairs=[]
        )
        for claim in (met.id, "another-room"):
            credential = token(sub=f"guest of {claim}", room=claim, role="speaker")
            guest = await scenario.talker(token=credential, previews=True)
            await scenario.say_utterance(guest, 0)
            refused = await guest.failed(0)
            assert (refused["code"], "join it" in refused["message"]) == ("NOT_IN_ROOM", True)
            chunks = await scenario.talker(token=credential, previews=True)
            for _ in range(4):
                await chunks.speak(50)
            await chunks.speak(final=True)
            assert (await chunks.failed(0))["code"] == "NOT_IN_ROOM"
        assert not [one for one in node.heard if one["type"] in ("job_assign", "preview_audio")]
        # In its room it speaks, until the host removes it.
        guest = await scenario.talker(token=token(sub="guest", room=met.id, role="speaker"))
        await guest.say("room_join", room_id=met.id, display_name="Guest", speaks=scenario.src)
        await guest.until(lambda m: m["type"] == "room_joined", TIMEOUT_S)
        await scenario.say_utterance(guest, 0)
        await host.until(lambda caption: caption.text == "said 0")
        await host.room.remove(guest.session_id)
        await guest.until(lambda m: m["type"] == "room_expired", TIMEOUT_S)
        await scenario.say_utterance(guest, 1)
        assert (await guest.failed(1))["code"] == "NOT_IN_ROOM"
        assert len(node.jobs) == 1


async def test_guests_of_a_room_cannot_have_more_open_jobs_than_one_client(limited: Harness) -> None:
    async with with_healthy_client(limited) as scenario, gathering(scenario) as met:
        node = await translator(scenario, LANGUAGES, work=silent, node_id="guests", token=token("node", "guests"))
        await met.join(LANGUAGES[0], token=token(sub="owner of the room"))
        guests = [
            await met.join(lang, token=token(sub=f"guest-{lang}", room=met.id, role="speaker"))
            for lang in LANGUAGES[1:]
        ]
        writing = [guest.room.write(f"sentence {number}") for number in range(3) for guest in guests]
        answers = await asyncio.gather(*writing, return_exceptions=True)
        assert "LIMIT_EXCEEDED" in {one.code for one in answers if isinstance(one, RoomRefused)}
        # Each sentence that was let in adds a job for every language.
        assert len(node.jobs) <= 2 * JOBS + len(LANGUAGES) * len(guests)
        # The owner writes meanwhile.
        await met.members[0].room.write("unaffected")
        await guests[0].shows("unaffected")


async def test_principal_cannot_fill_the_codes_with_persistent_rooms(limited: Harness) -> None:
    async with with_healthy_client(limited) as scenario:
        answers = list[str]()
        for _ in range(PERSISTENT + 1):
            talker = await scenario.talker(token=token(sub="hoarder"))
            await talker.say("room_create", display_name="Hoarder", settings={"persistent": True})
            answer = await talker.until(lambda m: m["type"] in ("room_create_ack", "room_error"), TIMEOUT_S)
            answers.append(answer.get("code", ""))
            await talker.ws.close()
        assert answers == [""] * PERSISTENT + ["LIMIT_EXCEEDED"]
        # Nor by making a room persistent that it has opened.
        talker = await scenario.talker(token=token(sub="hoarder"))
        await talker.say("room_create", display_name="Hoarder")
        await talker.until(lambda m: m["type"] == "room_create_ack", TIMEOUT_S)
        await talker.say("room_settings", settings={"persistent": True}, request_id="r")
        answer = await talker.until(lambda m: m["type"] in ("room_ok", "room_error"), TIMEOUT_S)
        assert answer["code"] == "LIMIT_EXCEEDED"


async def test_caption_is_refused_in_more_languages_than_a_room_may_have(limited: Harness) -> None:
    async with with_healthy_client(limited) as scenario:
        talker = await scenario.talker(token=token(sub="polyglot"))
        await talker.say("room_create", display_name="Polyglot", speaks="l0", hears="l0")
        await talker.until(lambda m: m["type"] == "room_create_ack", TIMEOUT_S)
        await talker.say("room_text", text="hello", client_msg_id="m")
        caption = await talker.until(lambda m: m["type"] == "caption", TIMEOUT_S)
        answers = list[str]()
        for number in range(1, len(LANGUAGES) + 2):
            about = {"caption_id": caption["caption_id"], "lang": f"l{number}", "request_id": f"r{number}"}
            await talker.say("room_translate", **about)
            answer = await talker.until(lambda m: m.get("request_id") == about["request_id"], TIMEOUT_S)  # noqa: B023
            answers.append(answer.get("code", ""))
        assert answers == [""] * len(LANGUAGES) + ["TOO_MANY_LANGUAGES"]


async def test_preferences_are_kept_for_members_only(limited: Harness) -> None:
    async with with_healthy_client(limited) as scenario:
        talker = await scenario.talker(token=token(sub="chooser"))
        await talker.say("room_create", display_name="Chooser")
        opened = await talker.until(lambda m: m["type"] == "room_create_ack", TIMEOUT_S)
        about = {"room_code": opened["room_code"], "receive_raw_voice": False}
        await talker.say("room_raw_voice_preference", target_session_id="x" * 256, **about)
        refused = await talker.until(lambda m: m["type"] == "room_error", TIMEOUT_S)
        assert refused["code"] == "NOT_IN_ROOM"
        await talker.say("room_raw_voice_preference", target_session_id=talker.session_id, **about)
        preferences = {talker.session_id: False}
        await talker.until(
            lambda m: m["type"] == "room_members" and m["members"][0]["raw_voice_preferences"] == preferences, TIMEOUT_S
        )


async def test_full_room_lets_in_who_joins_again_and_nobody_else(limited: Harness) -> None:
    async with with_healthy_client(limited) as scenario, gathering(scenario) as met:
        members = [await met.join("en", token=token(sub=f"one of {MEMBERS}: {number}")) for number in range(MEMBERS)]
        with pytest.raises(RoomRefused, match="as many members") as refused:
            await met.join("en", token=token(sub="one too many"))
        assert refused.value.code == "ROOM_FULL"
        assert members[1].room.socket is not None
        members[1].room.socket.abort()
        await members[0].room.write("all of us")
        for member in members:
            await member.shows("all of us")
        await members[2].room.leave()
        met.members.remove(members[2])
        await (await met.join("en", token=token(sub="instead"))).shows("all of us")


async def test_ten_thousand_joins_of_one_connection_are_refused_and_the_room_goes_on(limited: Harness) -> None:
    async with with_healthy_client(limited) as scenario, gathering(scenario) as met:
        await translator(scenario, ["j1", "j2"], node_id="joins", token=token("node", "joins"))
        ann, berta = [await met.join(lang, token=token(sub=f"friend {lang}")) for lang in ("j1", "j2")]
        eve = Talker(await scenario.socket(timeout=aiohttp.ClientWSTimeout(ws_close=0.1)))
        await eve.init(token=token(sub="eve"))
        join = json.dumps({"type": "room_join", "room_id": met.id, "display_name": "Eve", "speaks": "j1"})

        async def flood() -> None:
            for _ in range(JOINS):
                await eve.ws.send_str(join)

        answers: Counter[str] = Counter()

        async def count_answers() -> None:
            async for frame in eve.ws:
                message = json.loads(frame.data)
                answers[message.get("code") or message["type"]] += 1

        slowed, began = await scenario.count("dragoman_session_limits_total{limit=work}"), monotonic()
        async with cancelled_at_the_end(flood(), count_answers()):
            for number in range(20):
                await ann.room.write(f"sentence {number}")
                await berta.shows(translation("j2", f"sentence {number}"))
            await wait_until(lambda: answers["room_joined"] > WORK_AT_ONCE, TIMEOUT_S)
        # The server reads no more of them than a client may ask for: the others are still on their way.
        assert answers["room_joined"] + answers["LIMIT_EXCEEDED"] <= 2 * WORK_AT_ONCE + PER_S * (monotonic() - began)
        assert set(answers) <= {"room_joined", "room_members", "caption", "LIMIT_EXCEEDED"}
        assert await scenario.count("dragoman_session_limits_total{limit=work}") > slowed


@asynccontextmanager
async def cancelled_at_the_end(*work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


brief = module_harness({"rooms__empty_grace_s": 0.5, "rooms__idle_s": 1.0})


async def test_idle_room_expires_with_its_reason_and_an_empty_one_is_gone(brief: Harness) -> None:
    async with room(brief) as (_, idle), room(brief) as (_, empty):
        member, other = await idle.join("en"), await empty.join("en")
        await other.room.leave()
        await wait_until(lambda: member.room.ended == "Nothing was said in the room for a long time.", TIMEOUT_S)
        await wait_until(lambda: _is_gone(empty), TIMEOUT_S)
        assert await _is_gone(idle)


async def _is_gone(met: Gathering) -> bool:
    found = await met.store.info(met.id)
    return found is None or bool(found.closed)


async def test_persistent_room_outlives_its_members(brief: Harness) -> None:
    async with room(brief) as (scenario, met):
        host = await scenario.talker()
        await host.say("room_create", display_name="Host", speaks="en", settings={"persistent": True})
        met.id = (await host.until(lambda m: m["type"] == "room_create_ack", TIMEOUT_S))["room_id"]
        await host.say("room_text", text="kept", client_msg_id="1")
        await host.say("room_leave")
        await host.ws.close()
        async with room(brief) as (_, brief_one):
            left = await brief_one.join("en")
            await left.room.leave()
            await wait_until(lambda: _is_gone(brief_one), TIMEOUT_S)
        assert not await _is_gone(met)
        await (await met.join("en")).shows("kept")
