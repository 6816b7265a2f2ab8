"""Receiving, confirming and being sent again, on a running server of two instances that deliver before they save."""

import time
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
    module_chat_harness,
    new_chat_scenario,
)
from support.speech import Harness
from support.waiting import wait_until

harness = module_chat_harness({**DELIVER_FIRST, "limits__chat_frames_per_s": 100_000}, instances=2)


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
async def test_receipt_reaches_the_sender_in_every_spelling(scenario: ChatScenario, spelled: str, meant: str) -> None:
    alice, bob, id = await one_message(scenario)
    await bob.ack(str(id), spelled, alice.uid)
    told = await alice.expect("ACK", serverMsgId=str(id), ackType=meant)
    assert (told["from"], told["to"]) == (str(bob.uid), str(alice.uid))
    assert set(told) == {"type", "ackType", "from", "to", "serverMsgId", "ts"}
    await has_status(scenario, id, Status.READ if meant == "read" else Status.DELIVERED)


async def test_delivered_and_read_are_each_sent_once(scenario: ChatScenario) -> None:
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


async def test_receipt_before_the_save_is_sent_after_the_save(scenario: ChatScenario) -> None:
    alice, bob, _ = await one_message(scenario)
    async with scenario.database_away():
        await alice.chat(bob.uid, "early", "n")
        arrived = await bob.expect("SINGLE_CHAT", body="early")
        await bob.ack(arrived["serverMsgId"], "read", alice.uid)
        assert not [frame for frame in await bob.so_far() if frame["type"] == "ERROR"]
    await alice.expect("ACK", ackType="read", serverMsgId=arrived["serverMsgId"])
    await alice.saved("n")
    await has_status(scenario, int(arrived["serverMsgId"]), Status.READ)


@pytest.mark.parametrize("who", ["a third", "the sender"])
async def test_only_the_receiver_can_confirm_a_message(scenario: ChatScenario, who: str) -> None:
    alice, _, id = await one_message(scenario)
    other = await scenario.user(1) if who == "a third" else alice
    await other.ack(str(id), "read", alice.uid)
    assert (await other.refused("ack_not_allowed"))["serverMsgId"] == str(id)
    await other.so_far()
    assert await scenario.status(id) is Status.SAVED


@pytest.mark.parametrize("id", ["1", "4194303"])
async def test_receipt_of_an_unknown_id_is_not_found(scenario: ChatScenario, id: str) -> None:
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


async def test_invalid_receipt_gets_a_reason_and_the_connection_stays_open(scenario: ChatScenario) -> None:
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


async def test_undelivered_messages_come_in_order_after_auth_to_a_slow_reader(scenario: ChatScenario) -> None:
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


async def test_live_messages_queue_behind_undelivered_ones(scenario: ChatScenario) -> None:
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


async def test_only_unconfirmed_messages_are_sent_again(scenario: ChatScenario) -> None:
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


async def test_message_follows_its_receiver_to_another_instance(scenario: ChatScenario) -> None:
    alice, bob = await scenario.pair(0, 0)
    for turn in range(10):
        bob = await scenario.user(turn % 2, bob.uid)
        id = await alice.saved(await alice.chat(bob.uid, f"{turn}"))
        assert (await bob.expect("SINGLE_CHAT", serverMsgId=str(id)))["body"] == f"{turn}"
        await bob.ack(str(id))
        await alice.expect("ACK", ackType="delivered", serverMsgId=str(id))


# -- over HTTP -------------------------------------------------------------------------------------


# -- again and again -------------------------------------------------------------------------------

RESEND_S = 0.5


insistent = module_chat_harness({**SAVE_FIRST, "chat__resend_after_s": RESEND_S})


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
