"""Sending, on each of the three ways a message can go, on a running server of two instances."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from support.chat import (
    PATHS,
    ChatScenario,
    ChatSpeaker,
    Heard,
    bodies,
    chat_harness,
    module_chat_harness,
    new_chat_scenario,
)
from support.redis_servers import KeyInspector, RedisAt
from support.speech import Harness
from support.waiting import wait_until

FAST: dict[str, object] = {"limits__chat_frames_per_s": 1_000_000}
LISTED = "heck\ndarn\n"
CLIENTS_FIELDS = {"type", "from", "to", "clientMsgId", "serverMsgId", "msgSeq", "msgType", "body", "ts"}


@pytest.fixture(scope="module", params=PATHS)
def harness(
    request: pytest.FixtureRequest,
    redis_server: RedisAt,
    key_inspector: KeyInspector,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Harness]:
    folder = tmp_path_factory.mktemp("chat-sending")
    words = folder / "words.txt"
    words.write_text(LISTED)
    flags = {**FAST, **PATHS[request.param], "chat__words_file": str(words)}
    with chat_harness(redis_server, folder, key_inspector, flags, 2) as up:
        yield up


def path_of(harness: Harness) -> str:
    two_phase = harness.instances[0].settings.chat.two_phase
    if not two_phase.enabled:
        return "off"
    return "deliver first" if two_phase.deliver_before_saved else "save first"


def acks(harness: Harness) -> list[str]:
    return ["saved"] if path_of(harness) == "off" else ["accepted", "saved"]


async def told(speaker: ChatSpeaker, count: int) -> list[Heard]:
    return [await speaker.next() for _ in range(count)]


# -- the frames ------------------------------------------------------------------------------------


@pytest.mark.parametrize("there", [0, 1], ids=["on one instance", "across"])
async def test_sender_and_receiver_get_exactly_these_frames(scenario: ChatScenario, there: int) -> None:
    alice, bob = await scenario.pair(0, there)
    await alice.chat(bob.uid, "hello", "n1")
    heard = await told(alice, len(acks(scenario.harness)))
    assert [frame["ackType"] for frame in heard] == acks(scenario.harness)
    for frame in heard:
        assert set(frame) - {"body"} == {"type", "ackType", "from", "clientMsgId", "serverMsgId", "ts"}
        assert (frame["type"], frame["from"], frame["clientMsgId"]) == ("ACK", str(alice.uid), "n1")
        assert frame.get("body", "hello") == "hello"
    (id,) = {frame["serverMsgId"] for frame in heard}
    got = await bob.next()
    assert {k: got[k] for k in ("type", "from", "to", "clientMsgId", "serverMsgId", "msgType", "body")} == {
        "type": "SINGLE_CHAT",
        "from": str(alice.uid),
        "to": str(bob.uid),
        "clientMsgId": "n1",
        "serverMsgId": id,
        "msgType": "TEXT",
        "body": "hello",
    }
    assert set(got) <= CLIENTS_FIELDS
    assert got.get("msgSeq", 1) == 1
    # Delivered first it is mostly without; a shard that has just changed hands delivers when it has saved.
    assert "msgSeq" in got or path_of(scenario.harness) == "deliver first"
    assert scenario.rows(alice.uid) == [(int(id), "n1", "hello")]
    assert await alice.so_far() == await bob.so_far() == []


async def test_message_goes_as_far_as_its_mode_allows_while_the_database_is_down(scenario: ChatScenario) -> None:
    alice, bob = await scenario.pair(0, 1)
    await alice.saved(await alice.chat(bob.uid))  # both have been heard of
    await bob.expect("SINGLE_CHAT")
    await alice.so_far()
    async with scenario.database_away():
        await alice.chat(bob.uid, "now", "n")
        first = await alice.next()
        if path_of(scenario.harness) == "off":
            assert first["reason"] == "server_busy"
            return
        assert first["ackType"] == "accepted"
        if path_of(scenario.harness) == "deliver first":
            assert (await bob.next())["body"] == "now"
        assert await alice.so_far() == await bob.so_far() == []
    assert await alice.saved("n") == int(first["serverMsgId"])
    if path_of(scenario.harness) == "save first":
        assert (await bob.next())["body"] == "now"


CHECKS: list[tuple[str, dict[str, Any]]] = [
    ("missing_msg_id", {"clientMsgId": None}),
    ("missing_msg_id", {"clientMsgId": ""}),
    ("missing_msg_id", {"clientMsgId": "x" * 65}),
    ("missing_msg_id", {"clientMsgId": None, "to": None, "body": None}),
    ("missing_to", {"to": None}),
    ("missing_to", {"to": "somebody"}),
    ("missing_to", {"to": "-5"}),
    ("missing_to", {"to": None, "body": None}),
    ("missing_body", {"body": None}),
    ("missing_body", {"body": ""}),
    ("missing_body", {"body": None, "to": "me"}),
    ("body_too_long", {"body": "x" * 4097}),
    ("body_too_long", {"body": "x" * 4097, "to": "me"}),
    ("cannot_send_to_self", {"to": "me"}),
]


async def test_first_failed_check_gives_the_reason_and_the_connection_stays_open(scenario: ChatScenario) -> None:
    alice = await scenario.user()
    for reason, changed in CHECKS:
        fields = {"clientMsgId": "n", "to": "7", "body": "hello"} | changed
        if fields["to"] == "me":
            fields["to"] = str(alice.uid)
        await alice.say("SINGLE_CHAT", **{name: value for name, value in fields.items() if value is not None})
        frame = await alice.next()
        assert (frame["type"], frame["reason"]) == ("ERROR", reason), changed
        if reason != "missing_msg_id":
            assert frame["clientMsgId"] == "n"
    assert await alice.so_far() == []
    assert scenario.rows(alice.uid) == []


async def test_filtered_words_are_starred_for_sender_and_receiver(scenario: ChatScenario) -> None:
    alice, bob = await scenario.pair()
    await alice.chat(bob.uid, "oh Heck and DARN it", "n")
    assert (await bob.expect("SINGLE_CHAT"))["body"] == "oh *** and *** it"
    await alice.saved("n")
    assert scenario.rows(alice.uid)[0][2] == "oh *** and *** it"


# -- ids and order ---------------------------------------------------------------------------------


async def test_ids_of_a_sender_rise_across_instances_and_reconnects(scenario: ChatScenario) -> None:
    uid, to, ids = scenario.uid(), scenario.uid(), []
    for turn in range(6):
        alice = await scenario.user(turn % 2, uid)
        for _ in range(5):
            ids.append(await alice.saved(await alice.chat(to)))
    assert ids == sorted(set(ids))
    assert ids[-1] < 2**63
    assert [row[0] for row in scenario.rows(uid)] == ids


async def many(harness: Harness, count: int) -> None:
    """At full speed, from one instance to another."""
    async with new_chat_scenario(harness) as scenario:
        alice, bob = await scenario.pair(0, 1)

        async def speak() -> None:
            for number in range(count):
                await alice.chat(bob.uid, f"{number}", f"n{number}")

        async def listen() -> None:
            for number in range(count):
                frame = await bob.next()
                assert (frame["type"], frame["body"]) == ("SINGLE_CHAT", f"{number}")
            await bob.ack(frame["serverMsgId"], "read", alice.uid)

        async def be_told() -> None:
            order: dict[str, int] = {"accepted": 0, "saved": 0}
            while order["saved"] < count:
                frame = await alice.next()
                if frame["type"] == "ACK" and frame["ackType"] in order:
                    assert frame["clientMsgId"] == f"n{order[frame['ackType']]}"
                    order[frame["ackType"]] += 1
                else:
                    assert frame["type"] in ("ACK", "PING"), frame

        await asyncio.gather(speak(), listen(), be_told())
        assert [row[1] for row in scenario.rows(alice.uid)] == [f"n{number}" for number in range(count)]


async def test_a_thousand_messages_at_full_speed_arrive_in_order_on_another_instance(harness: Harness) -> None:
    await many(harness, 200 if path_of(harness) == "off" else 1000)


@pytest.mark.long
async def test_ten_thousand_messages_at_full_speed_arrive_in_order_on_another_instance(harness: Harness) -> None:
    await many(harness, 1000 if path_of(harness) == "off" else 10_000)


# -- the same again --------------------------------------------------------------------------------


async def test_a_repeated_message_has_the_same_id_and_reaches_its_receiver_once(scenario: ChatScenario) -> None:
    alice, bob = await scenario.pair(0, 1)
    id = await alice.saved(await alice.chat(bob.uid, "once", "n"))
    await alice.so_far()
    await alice.chat(bob.uid, "once", "n")
    again = await told(alice, len(acks(scenario.harness)))
    assert [frame["ackType"] for frame in again] == acks(scenario.harness)
    assert {int(frame["serverMsgId"]) for frame in again} == {id}
    await alice.saved(await alice.chat(bob.uid, "next", "m"))
    assert [(await bob.next())["body"] for _ in range(2)] == ["once", "next"]
    assert await bob.so_far() == []
    assert len(scenario.rows(alice.uid)) == 2


async def test_a_repetition_on_another_instance_is_recognised(scenario: ChatScenario) -> None:
    alice, bob = await scenario.pair(0, 0)
    id = await alice.saved(await alice.chat(bob.uid, "once", "n"))
    elsewhere = await scenario.user(1, alice.uid)
    await elsewhere.chat(bob.uid, "once", "n")
    assert await elsewhere.saved("n") == id
    assert len(scenario.rows(alice.uid)) == 1


@pytest.mark.parametrize("body", ["once", "other"])
async def test_repeated_id_for_another_receiver_is_refused(scenario: ChatScenario, body: str) -> None:
    alice, bob = await scenario.pair()
    await alice.saved(await alice.chat(bob.uid, "once", "n"))
    await alice.so_far()
    await alice.chat(scenario.uid(), body, "n")
    assert (await alice.next())["reason"] == "duplicate_msg_id_mismatch"
    assert await alice.so_far() == []
    assert [row[2] for row in scenario.rows(alice.uid)] == ["once"]


async def test_repeated_id_with_another_body_is_answered_with_the_first_message(scenario: ChatScenario) -> None:
    alice, bob = await scenario.pair()
    before = await scenario.other_bodies()
    id = await alice.saved(await alice.chat(bob.uid, "once", "n"))
    await alice.so_far()
    for _ in range(2):
        await alice.chat(bob.uid, "other", "n")
        saved = await alice.expect("ACK", ackType="saved")
        acks = [*await alice.so_far(), saved]
        assert len(acks) == (1 if path_of(scenario.harness) == "off" else 2)
        assert {(ack["serverMsgId"], ack["body"], ack["duplicate"]) for ack in acks} == {(str(id), "once", True)}
    assert [row[2] for row in scenario.rows(alice.uid)] == ["once"]
    assert bodies(await bob.so_far()) == ["once"]
    assert await scenario.other_bodies() == before + 2
    await alice.chat(bob.uid, "once", "n")
    assert "duplicate" not in await alice.expect("ACK", ackType="saved")


async def test_repetition_before_the_save_is_answered_after_the_save(scenario: ChatScenario) -> None:
    if path_of(scenario.harness) == "off":
        pytest.skip("does not apply: off, so there is nothing between sent and saved")
    alice, bob = await scenario.pair()
    async with scenario.database_away():
        await alice.chat(bob.uid, "once", "n")
        first = await alice.expect("ACK", ackType="accepted")
        await alice.chat(bob.uid, "once", "n")
        again = await alice.expect("ACK", ackType="accepted")
        assert again["serverMsgId"] == first["serverMsgId"]
        await alice.chat(bob.uid, "other", "n")
        other = await alice.expect("ACK", ackType="accepted", duplicate=True)
        assert (other["serverMsgId"], other["body"]) == (first["serverMsgId"], "once")
        await alice.chat(scenario.uid(), "once", "n")
        await alice.refused("duplicate_msg_id_mismatch", clientMsgId="n")
        assert not [frame for frame in await alice.so_far() if frame.get("ackType") == "saved"]
    saved = await alice.expect("ACK", ackType="saved")
    assert (saved["serverMsgId"], saved["body"], saved["duplicate"]) == (first["serverMsgId"], "once", True)
    assert (await bob.expect("SINGLE_CHAT"))["body"] == "once"
    assert len(scenario.rows(alice.uid)) == 1


async def test_repetition_on_a_new_connection_gets_saved_there(scenario: ChatScenario) -> None:
    if path_of(scenario.harness) == "off":
        pytest.skip("does not apply: off, so there is nothing between sent and saved")
    alice, to = await scenario.user(), scenario.uid()
    async with scenario.database_away():
        await alice.chat(to, "once", "n")
        first = await alice.expect("ACK", ackType="accepted")
        elsewhere = await scenario.user(1, alice.uid)
        await elsewhere.chat(to, "once", "n")
        await elsewhere.expect("ACK", ackType="accepted", serverMsgId=first["serverMsgId"])
    assert await elsewhere.saved("n") == int(first["serverMsgId"])


# -- beyond the claim, and beyond what may wait ----------------------------------------------------


# Redis forgets soon, and little may wait for the database.
forgetful = module_chat_harness(
    {"chat__idempotency_ttl_s": 1.0, "chat__two_phase__max_backlog": 40}, modes=("save first", "deliver first")
)


async def saved_and_forgotten(scenario: ChatScenario) -> tuple[ChatSpeaker, int, int]:
    """A sender, a receiver, and the id of message `n`, whose claim Redis has forgotten."""
    alice, to = await scenario.user(), scenario.uid()
    id = await alice.saved(await alice.chat(to, "once", "n"))

    async def forgotten() -> bool:
        return not await scenario.claimed(alice.uid, "n")

    await wait_until(forgotten, 10)
    return alice, to, id


async def test_a_repetition_after_the_claim_has_lapsed_makes_no_second_row(forgetful: Harness) -> None:
    async with new_chat_scenario(forgetful) as scenario:
        alice, to, id = await saved_and_forgotten(scenario)
        await alice.chat(to, "once", "n")
        assert await alice.saved("n") == id
        assert len(scenario.rows(alice.uid)) == 1


async def test_another_body_after_the_claim_has_lapsed_is_answered_with_the_first_message(forgetful: Harness) -> None:
    async with new_chat_scenario(forgetful) as scenario:
        alice, to, id = await saved_and_forgotten(scenario)
        before = await scenario.other_bodies()
        await alice.chat(to, "other", "n")
        saved = await alice.expect("ACK", ackType="saved", clientMsgId="n", duplicate=True)
        assert (saved["serverMsgId"], saved["body"]) == (str(id), "once")
        assert [row[2] for row in scenario.rows(alice.uid)] == ["once"]
        assert await scenario.other_bodies() == before + 1


async def test_repeated_id_for_another_receiver_is_refused_after_the_claim_lapsed(forgetful: Harness) -> None:
    async with new_chat_scenario(forgetful) as scenario:
        alice, to, _ = await saved_and_forgotten(scenario)
        before = await scenario.dead_letters(alice.uid)
        await alice.chat(scenario.uid(), "once", "n")
        await alice.refused("duplicate_msg_id_mismatch", clientMsgId="n")
        await alice.saved(await alice.chat(to, "goes on", "m"))
        assert await scenario.dead_letters(alice.uid) == before
        assert [row[2] for row in scenario.rows(alice.uid)] == ["once", "goes on"]


async def test_shard_is_busy_while_its_backlog_is_full(forgetful: Harness) -> None:
    async with new_chat_scenario(forgetful) as scenario:
        alice, to = await scenario.user(), scenario.uid()
        async with scenario.database_away():
            for number in range(6):
                await alice.chat(to, f"{number}", f"n{number}")
            heard = await told(alice, 6)
            assert [frame.get("ackType") for frame in heard] == ["accepted"] * 5 + [None]
            assert (heard[5]["reason"], heard[5]["clientMsgId"]) == ("server_busy", "n5")
        for number in range(5):
            await alice.saved(f"n{number}")

        async def taken() -> bool:
            await alice.chat(to, "5", "n5")
            return bool((await alice.next()).get("ackType") == "accepted")

        await wait_until(taken, 10)
        await alice.saved("n5")
        assert [row[2] for row in scenario.rows(alice.uid)] == [f"{number}" for number in range(6)]
