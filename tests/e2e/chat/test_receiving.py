"""Receiving, confirming and being sent again, on a running server of two instances that deliver before they save."""

import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from dragoman.archive import Status
from dragoman.tools.verify.clients import token
from support.chat import (
    DELIVER_FIRST,
    SAVE_FIRST,
    TIMEOUT_S,
    ChatScenario,
    ChatSpeaker,
    bodies,
    chat_harness,
    new_chat_scenario,
)
from support.redis_servers import KeyInspector, RedisAt
from support.speech import Harness
from support.waiting import wait_until


@pytest.fixture(scope="module")
def harness(
    redis_server: RedisAt, key_inspector: KeyInspector, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Harness]:
    flags = {**DELIVER_FIRST, "limits__chat_frames_per_s": 100_000}
    with chat_harness(redis_server, tmp_path_factory.mktemp("chat-receiving"), key_inspector, flags, 2) as up:
        yield up


async def one_message(scenario: ChatScenario) -> tuple[ChatSpeaker, ChatSpeaker, int]:
    """From alice to bob, saved and arrived."""
    alice, bob = await scenario.pair(0, 1)
    id = await alice.saved(await alice.chat(bob.uid))
    await bob.expect("SINGLE_CHAT", serverMsgId=str(id))
    return alice, bob, id


async def has_status(scenario: ChatScenario, id: int, status: Status) -> None:
    async def reached() -> bool:
        return await scenario.status(id) is status

    await wait_until(reached, TIMEOUT_S, f"{id} {status!r}")


# -- receipts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spelled", "meant"),
    [
        ("delivered", "delivered"),
        ("received", "delivered"),
        ("ack_receive", "delivered"),
        ("read", "read"),
        ("ack_read", "read"),
    ],
)
async def test_receipt_reaches_the_sender_in_every_spelling(harness: Harness, spelled: str, meant: str) -> None:
    async with new_chat_scenario(harness) as scenario:
        alice, bob, id = await one_message(scenario)
        await bob.ack(str(id), spelled, alice.uid)
        told = await alice.expect("ACK", serverMsgId=str(id), ackType=meant)
        assert (told["from"], told["to"]) == (str(bob.uid), str(alice.uid))
        assert set(told) == {"type", "ackType", "from", "to", "serverMsgId", "ts"}
        await has_status(scenario, id, Status.READ if meant == "read" else Status.DELIVERED)


async def test_a_receipt_may_name_its_message_by_number(harness: Harness) -> None:
    async with new_chat_scenario(harness) as scenario:
        alice, bob, id = await one_message(scenario)
        await bob.ack(id)
        await alice.expect("ACK", serverMsgId=str(id), ackType="delivered")


async def test_delivered_and_read_are_each_sent_once(harness: Harness) -> None:
    async with new_chat_scenario(harness) as scenario:
        alice, bob, id = await one_message(scenario)
        await alice.so_far()
        for kind in ("delivered", "read"):
            await bob.ack(str(id), kind)
            assert (await alice.next())["ackType"] == kind
        for kind in ("delivered", "read"):
            await bob.ack(str(id), kind)
        later = await bob.saved(await bob.chat(alice.uid))
        await alice.expect("SINGLE_CHAT")
        await alice.ack(str(later))
        await bob.expect("ACK", ackType="delivered")  # written after what was said before it
        assert await alice.so_far() == []
        assert await scenario.status(id) is Status.READ


async def test_read_implies_delivered_for_earlier_messages(harness: Harness) -> None:
    async with new_chat_scenario(harness) as scenario:
        alice, bob = await scenario.pair(0, 1)
        ids = [await alice.saved(await alice.chat(bob.uid, f"{n}")) for n in range(5)]
        for id in ids:
            await bob.expect("SINGLE_CHAT", serverMsgId=str(id))
        await bob.ack(str(ids[3]), "read")
        await alice.expect("ACK", ackType="read", serverMsgId=str(ids[3]))
        assert [await scenario.status(id) for id in ids] == [Status.READ] * 4 + [Status.SAVED]
        state = await scenario.archive.member_state(bob.uid, alice.uid)
        assert state is not None
        assert state.my_read_seq == 4
        again = await scenario.user(0, bob.uid)
        assert (await again.expect("SINGLE_CHAT"))["serverMsgId"] == str(ids[4])
        assert await again.so_far() == []


async def test_receipt_before_the_save_is_sent_after_the_save(harness: Harness) -> None:
    async with new_chat_scenario(harness) as scenario:
        alice, bob, _ = await one_message(scenario)
        with scenario.database_away():
            await alice.chat(bob.uid, "early", "n")
            arrived = await bob.expect("SINGLE_CHAT", body="early")
            await bob.ack(arrived["serverMsgId"], "read", alice.uid)
            assert not [frame for frame in await bob.so_far() if frame["type"] == "ERROR"]
        await alice.expect("ACK", ackType="read", serverMsgId=arrived["serverMsgId"])
        await alice.saved("n")
        await has_status(scenario, int(arrived["serverMsgId"]), Status.READ)


@pytest.mark.parametrize("who", ["a third", "the sender"])
async def test_only_the_receiver_can_confirm_a_message(harness: Harness, who: str) -> None:
    async with new_chat_scenario(harness) as scenario:
        alice, _, id = await one_message(scenario)
        other = await scenario.user(1) if who == "a third" else alice
        await other.ack(str(id), "read", alice.uid)
        assert (await other.refused("ack_not_allowed"))["serverMsgId"] == str(id)
        await other.so_far()
        assert await scenario.status(id) is Status.SAVED


@pytest.mark.parametrize("id", ["1", "4194303"])
async def test_receipt_of_an_unknown_id_is_not_found(harness: Harness, id: str) -> None:
    async with new_chat_scenario(harness) as scenario:
        bob = await scenario.user()
        await bob.ack(id)
        assert (await bob.refused("message_not_found"))["serverMsgId"] == id
        assert await bob.so_far() == []


BAD_RECEIPTS: list[tuple[str, dict[str, Any]]] = [
    ("missing_ack_type", {"serverMsgId": "5"}),
    ("missing_ack_type", {}),
    ("missing_ack_type", {"serverMsgId": "5", "ackType": ""}),
    ("unknown_ack_type", {"serverMsgId": "5", "ackType": "seen"}),
    ("unknown_ack_type", {"serverMsgId": "5", "ackType": "saved"}),
    ("missing_server_msg_id", {"ackType": "read"}),
    ("missing_server_msg_id", {"ackType": "read", "serverMsgId": "x"}),
    ("missing_server_msg_id", {"ackType": "read", "serverMsgId": "-1"}),
    ("missing_server_msg_id", {"ackType": "read", "serverMsgId": str(2**63)}),
]


async def test_invalid_receipt_gets_a_reason_and_the_connection_stays_open(harness: Harness) -> None:
    async with new_chat_scenario(harness) as scenario:
        bob = await scenario.user()
        for reason, fields in BAD_RECEIPTS:
            await bob.say("ACK", **fields)
            assert (await bob.next())["reason"] == reason, fields
        assert await bob.so_far() == []


# -- what waited -----------------------------------------------------------------------------------


async def send_many(alice: ChatSpeaker, to: int, count: int, size: int = 0) -> None:
    names = [await alice.chat(to, f"{n}".ljust(size, "."), f"w{n}") for n in range(count)]
    for name in names:
        await alice.saved(name)
    alice.heard.clear()


async def test_undelivered_messages_come_in_order_after_auth_to_a_slow_reader(harness: Harness) -> None:
    async with new_chat_scenario(harness) as scenario:
        alice, uid = await scenario.user(), scenario.uid()
        await send_many(alice, uid, 1000, 2000)
        bob = await scenario.stranger(1, uid)
        await bob.auth()
        live = await alice.chat(uid, "live")  # pushed while all that waits in front of what bob has not read
        await alice.expect("ACK", ackType="accepted", clientMsgId=live)
        for number in range(1000):
            frame = await bob.next()
            assert frame["body"].rstrip(".") == f"{number}"
            if number % 100 == 99:
                await bob.ack(frame["serverMsgId"])
                await alice.expect("ACK", ackType="delivered", serverMsgId=frame["serverMsgId"])
        assert (await bob.next())["body"] == "live"
        assert await bob.so_far() == []


async def test_live_messages_queue_behind_undelivered_ones(harness: Harness) -> None:
    async with new_chat_scenario(harness) as scenario:
        alice, uid = await scenario.user(), scenario.uid()
        await send_many(alice, uid, 250)
        bob = await scenario.stranger(1, uid)
        await bob.say("AUTH", token=token(uid))
        for number in range(250, 400):
            await alice.chat(uid, f"{number}")
        await bob.expect("AUTH_OK")
        heard = [await bob.next() for _ in range(400)]
        assert bodies(heard) == [f"{number}" for number in range(400)]
        assert await bob.so_far() == []


async def test_only_unconfirmed_messages_are_sent_again(harness: Harness) -> None:
    async with new_chat_scenario(harness) as scenario:
        alice, bob = await scenario.pair(0, 1)
        carol = await scenario.user(0)
        mine = [await alice.saved(await alice.chat(bob.uid, f"a{n}")) for n in range(3)]
        await carol.saved(await carol.chat(bob.uid, "c0"))
        for _ in range(4):
            await bob.expect("SINGLE_CHAT")
        await bob.ack(str(mine[1]))
        await alice.expect("ACK", ackType="delivered", serverMsgId=str(mine[1]))
        again = await scenario.user(0, bob.uid)
        assert [(await again.next())["body"] for _ in range(2)] == ["a2", "c0"]
        assert await again.so_far() == []


async def test_message_follows_its_receiver_to_another_instance(harness: Harness) -> None:
    async with new_chat_scenario(harness) as scenario:
        alice, bob = await scenario.pair(0, 0)
        for turn in range(10):
            bob = await scenario.user(turn % 2, bob.uid)
            id = await alice.saved(await alice.chat(bob.uid, f"{turn}"))
            assert (await bob.expect("SINGLE_CHAT", serverMsgId=str(id)))["body"] == f"{turn}"
            await bob.ack(str(id))
            await alice.expect("ACK", ackType="delivered", serverMsgId=str(id))


# -- over HTTP -------------------------------------------------------------------------------------


async def asked(scenario: ChatScenario, who: int, path: str, at: int = 0) -> Any:
    headers = {"Authorization": f"Bearer {token(who)}"}
    async with scenario.http.get(
        f"http://127.0.0.1:{scenario.harness.instances[at].port}{path}", headers=headers
    ) as answer:
        told = await answer.json()
    assert (told["ok"], told["code"]) == (True, 0), told
    return told["data"]


async def test_history_unread_counts_and_cursors_follow_messages_and_receipts(harness: Harness) -> None:
    async with new_chat_scenario(harness) as scenario:
        alice, bob = await scenario.pair(0, 1)
        ids = [await alice.saved(await alice.chat(bob.uid, f"{n}")) for n in range(5)]
        for id in ids:
            await bob.expect("SINGLE_CHAT", serverMsgId=str(id))
        await bob.ack(str(ids[2]), "read")
        await alice.expect("ACK", ackType="read")
        (theirs,) = await asked(scenario, bob.uid, "/single-chat/conversation/cursor?limit=10", 1)
        assert (theirs["peerUserId"], theirs["unreadCount"], theirs["myLastReadMsgSeq"]) == (str(alice.uid), 2, 3)
        assert theirs["lastMessage"]["content"] == "4"
        (mine,) = await asked(scenario, alice.uid, "/single-chat/conversation/cursor?limit=10")
        assert (mine["unreadCount"], mine["peerLastReadMsgSeq"]) == (0, 3)
        state = await asked(scenario, alice.uid, f"/single-chat/member/state?peerUserId={bob.uid}")
        assert (state["myLastReadMsgSeq"], state["peerLastReadMsgSeq"]) == (0, 3)
        page = await asked(scenario, bob.uid, f"/single-chat/message/cursor?peerUserId={alice.uid}&limit=3&lastSeq=5")
        assert [(row["msgSeq"], row["serverMsgId"]) for row in page] == [(4 - n, str(ids[3 - n])) for n in range(3)]


async def test_a_login_ends_the_connection_of_the_login_before(harness: Harness) -> None:
    async with new_chat_scenario(harness) as scenario:
        name = f"user-{scenario.uid()}"

        async def login() -> Any:
            address = f"http://127.0.0.1:{harness.port}/auth/login"
            async with scenario.http.post(address, json={"username": name, "password": "pass word"}) as answer:
                return (await answer.json())["data"]

        first = await login()
        speaker = await scenario.stranger(uid=int(first["userId"]))
        assert (await speaker.auth(first["accessToken"]))["from"] == str(first["userId"])
        second = await login()
        refused = await scenario.stranger(uid=speaker.uid)
        await refused.say("AUTH", token=first["accessToken"])
        await refused.expect("AUTH_FAIL", reason="session_invalid")
        newer = await scenario.stranger(uid=speaker.uid)
        await newer.auth(second["accessToken"])
        await speaker.refused("kicked")


# -- again and again -------------------------------------------------------------------------------

RESEND_S = 0.5


@pytest.fixture(scope="module")
def insistent(
    redis_server: RedisAt, key_inspector: KeyInspector, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Harness]:
    flags = {**SAVE_FIRST, "chat__resend_after_s": RESEND_S}
    with chat_harness(redis_server, tmp_path_factory.mktemp("chat-insistent"), key_inspector, flags) as up:
        yield up


async def test_unconfirmed_messages_are_resent_with_growing_pauses(insistent: Harness) -> None:
    async with new_chat_scenario(insistent) as scenario:
        alice, bob = await scenario.pair()
        await alice.chat(bob.uid, "hello?")
        times = []
        for _ in range(4):
            await bob.expect("SINGLE_CHAT", body="hello?")
            times.append(time.monotonic())
        pauses = [after - before for before, after in pairwise(times)]
        # The first is measured from what was saved, which may be heard of late; each of the others is twice as long.
        assert pauses[1] >= 1.9 * RESEND_S
        assert pauses[2] >= 3.8 * RESEND_S


async def test_confirmed_message_is_not_resent_and_the_next_one_is_resent_soon(insistent: Harness) -> None:
    async with new_chat_scenario(insistent) as scenario:
        alice, bob = await scenario.pair()
        first = await alice.saved(await alice.chat(bob.uid, "one"))
        for _ in range(4):  # by now the pauses are long
            await bob.expect("SINGLE_CHAT", body="one")
        await bob.ack(str(first))
        await alice.expect("ACK", ackType="delivered", serverMsgId=str(first))
        await alice.chat(bob.uid, "two")
        began = time.monotonic()
        for _ in range(2):
            assert (await bob.expect("SINGLE_CHAT"))["body"] == "two"
        assert time.monotonic() - began < 7 * RESEND_S  # the next pause of "one" would have been 8


async def test_message_sent_after_auth_is_not_resent_at_once(insistent: Harness) -> None:
    async with new_chat_scenario(insistent) as scenario:
        alice, uid = await scenario.user(), scenario.uid()
        await alice.saved(await alice.chat(uid, "waits"))
        long_ago = time.monotonic() + 2 * RESEND_S
        await wait_until(lambda: time.monotonic() > long_ago, TIMEOUT_S)
        bob = await scenario.user(0, uid)
        await bob.expect("SINGLE_CHAT", body="waits")
        began = time.monotonic()
        await bob.expect("SINGLE_CHAT", body="waits")
        assert time.monotonic() - began >= 0.8 * RESEND_S
