"""Receiving, confirming and being sent again, on a running server of two instances that deliver before they save."""

import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from chat_speaker import PATIENCE_S, ChatSpeaker, bodies
from dragoman.archive import Status
from dragoman.verify.chat_crowd import token
from e2e.chat.chat_stage import DELIVER_FIRST, SAVE_FIRST, ChatVisit, chat_stage, visiting_chat
from e2e.speech_stage import Stage
from key_leaks import Onlooker
from redis_servers import RedisAt
from waiting import wait_until


@pytest.fixture(scope="module")
def stage(redis_server: RedisAt, onlooker: Onlooker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    flags = {**DELIVER_FIRST, "chat__max_frames_per_s": 100_000}
    with chat_stage(redis_server, tmp_path_factory.mktemp("chat-receiving"), onlooker, flags, 2) as up:
        yield up


async def one_message(visit: ChatVisit) -> tuple[ChatSpeaker, ChatSpeaker, int]:
    """From alice to bob, saved and arrived."""
    alice, bob = await visit.pair(0, 1)
    id = await alice.saved(await alice.chat(bob.uid))
    await bob.expect("SINGLE_CHAT", serverMsgId=str(id))
    return alice, bob, id


async def has_status(visit: ChatVisit, id: int, status: Status) -> None:
    async def reached() -> bool:
        return await visit.status(id) is status

    await wait_until(reached, PATIENCE_S, f"{id} {status!r}")


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
async def test_a_receipt_reaches_the_sender_in_whatever_spelling(stage: Stage, spelled: str, meant: str) -> None:
    async with visiting_chat(stage) as visit:
        alice, bob, id = await one_message(visit)
        await bob.ack(str(id), spelled, alice.uid)
        told = await alice.expect("ACK", serverMsgId=str(id), ackType=meant)
        assert (told["from"], told["to"]) == (str(bob.uid), str(alice.uid))
        assert set(told) == {"type", "ackType", "from", "to", "serverMsgId", "ts"}
        await has_status(visit, id, Status.READ if meant == "read" else Status.DELIVERED)


async def test_a_receipt_may_name_its_message_by_number(stage: Stage) -> None:
    async with visiting_chat(stage) as visit:
        alice, bob, id = await one_message(visit)
        await bob.ack(id)
        await alice.expect("ACK", serverMsgId=str(id), ackType="delivered")


async def test_delivered_and_then_read_are_both_told_and_nothing_is_told_twice(stage: Stage) -> None:
    async with visiting_chat(stage) as visit:
        alice, bob, id = await one_message(visit)
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
        assert await visit.status(id) is Status.READ


async def test_read_implies_delivered_and_counts_for_what_came_before(stage: Stage) -> None:
    async with visiting_chat(stage) as visit:
        alice, bob = await visit.pair(0, 1)
        ids = [await alice.saved(await alice.chat(bob.uid, f"{n}")) for n in range(5)]
        for id in ids:
            await bob.expect("SINGLE_CHAT", serverMsgId=str(id))
        await bob.ack(str(ids[3]), "read")
        await alice.expect("ACK", ackType="read", serverMsgId=str(ids[3]))
        assert [await visit.status(id) for id in ids] == [Status.READ] * 4 + [Status.SAVED]
        state = await visit.archive.member_state(bob.uid, alice.uid)
        assert state is not None
        assert state.my_read_seq == 4
        again = await visit.user(0, bob.uid)
        assert (await again.expect("SINGLE_CHAT"))["serverMsgId"] == str(ids[4])
        assert await again.so_far() == []


async def test_a_receipt_before_the_message_is_saved_is_told_when_it_is(stage: Stage) -> None:
    async with visiting_chat(stage) as visit:
        alice, bob, _ = await one_message(visit)
        with visit.database_away():
            await alice.chat(bob.uid, "early", "n")
            arrived = await bob.expect("SINGLE_CHAT", body="early")
            await bob.ack(arrived["serverMsgId"], "read", alice.uid)
            assert not [frame for frame in await bob.so_far() if frame["type"] == "ERROR"]
        await alice.expect("ACK", ackType="read", serverMsgId=arrived["serverMsgId"])
        await alice.saved("n")
        await has_status(visit, int(arrived["serverMsgId"]), Status.READ)


@pytest.mark.parametrize("who", ["a third", "the sender"])
async def test_nobody_but_the_receiver_can_confirm_a_message(stage: Stage, who: str) -> None:
    async with visiting_chat(stage) as visit:
        alice, _, id = await one_message(visit)
        other = await visit.user(1) if who == "a third" else alice
        await other.ack(str(id), "read", alice.uid)
        assert (await other.refused("ack_not_allowed"))["serverMsgId"] == str(id)
        await other.so_far()
        assert await visit.status(id) is Status.SAVED


@pytest.mark.parametrize("id", ["1", "4194303"])
async def test_an_id_no_server_of_ours_has_made_is_not_found(stage: Stage, id: str) -> None:
    async with visiting_chat(stage) as visit:
        bob = await visit.user()
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


async def test_a_receipt_that_is_none_is_told_why_and_the_connection_stays(stage: Stage) -> None:
    async with visiting_chat(stage) as visit:
        bob = await visit.user()
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


async def test_all_that_waited_comes_after_auth_in_order_however_slowly_it_is_read(stage: Stage) -> None:
    async with visiting_chat(stage) as visit:
        alice, uid = await visit.user(), visit.uid()
        await send_many(alice, uid, 1000, 2000)
        bob = await visit.stranger(1, uid)
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


async def test_what_is_live_queues_behind_what_waited(stage: Stage) -> None:
    async with visiting_chat(stage) as visit:
        alice, uid = await visit.user(), visit.uid()
        await send_many(alice, uid, 250)
        bob = await visit.stranger(1, uid)
        await bob.say("AUTH", token=token(uid))
        for number in range(250, 400):
            await alice.chat(uid, f"{number}")
        await bob.expect("AUTH_OK")
        heard = [await bob.next() for _ in range(400)]
        assert bodies(heard) == [f"{number}" for number in range(400)]
        assert await bob.so_far() == []


async def test_what_was_confirmed_does_not_come_again_and_what_was_not_does(stage: Stage) -> None:
    async with visiting_chat(stage) as visit:
        alice, bob = await visit.pair(0, 1)
        carol = await visit.user(0)
        mine = [await alice.saved(await alice.chat(bob.uid, f"a{n}")) for n in range(3)]
        await carol.saved(await carol.chat(bob.uid, "c0"))
        for _ in range(4):
            await bob.expect("SINGLE_CHAT")
        await bob.ack(str(mine[1]))
        await alice.expect("ACK", ackType="delivered", serverMsgId=str(mine[1]))
        again = await visit.user(0, bob.uid)
        assert [(await again.next())["body"] for _ in range(2)] == ["a2", "c0"]
        assert await again.so_far() == []


async def test_a_message_to_one_who_moves_arrives_where_it_went(stage: Stage) -> None:
    async with visiting_chat(stage) as visit:
        alice, bob = await visit.pair(0, 0)
        for turn in range(10):
            bob = await visit.user(turn % 2, bob.uid)
            id = await alice.saved(await alice.chat(bob.uid, f"{turn}"))
            assert (await bob.expect("SINGLE_CHAT", serverMsgId=str(id)))["body"] == f"{turn}"
            await bob.ack(str(id))
            await alice.expect("ACK", ackType="delivered", serverMsgId=str(id))


# -- over HTTP -------------------------------------------------------------------------------------


async def asked(visit: ChatVisit, who: int, path: str, at: int = 0) -> Any:
    headers = {"Authorization": f"Bearer {token(who)}"}
    async with visit.http.get(f"http://127.0.0.1:{visit.stage.instances[at].port}{path}", headers=headers) as answer:
        told = await answer.json()
    assert (told["ok"], told["code"]) == (True, 0), told
    return told["data"]


async def test_history_unread_counts_and_cursors_follow_what_was_said_and_confirmed(stage: Stage) -> None:
    async with visiting_chat(stage) as visit:
        alice, bob = await visit.pair(0, 1)
        ids = [await alice.saved(await alice.chat(bob.uid, f"{n}")) for n in range(5)]
        for id in ids:
            await bob.expect("SINGLE_CHAT", serverMsgId=str(id))
        await bob.ack(str(ids[2]), "read")
        await alice.expect("ACK", ackType="read")
        (theirs,) = await asked(visit, bob.uid, "/single-chat/conversation/cursor?limit=10", 1)
        assert (theirs["peerUserId"], theirs["unreadCount"], theirs["myLastReadMsgSeq"]) == (str(alice.uid), 2, 3)
        assert theirs["lastMessage"]["content"] == "4"
        (mine,) = await asked(visit, alice.uid, "/single-chat/conversation/cursor?limit=10")
        assert (mine["unreadCount"], mine["peerLastReadMsgSeq"]) == (0, 3)
        state = await asked(visit, alice.uid, f"/single-chat/member/state?peerUserId={bob.uid}")
        assert (state["myLastReadMsgSeq"], state["peerLastReadMsgSeq"]) == (0, 3)
        page = await asked(visit, bob.uid, f"/single-chat/message/cursor?peerUserId={alice.uid}&limit=3&lastSeq=5")
        assert [(row["msgSeq"], row["serverMsgId"]) for row in page] == [(4 - n, str(ids[3 - n])) for n in range(3)]


async def test_a_login_ends_the_connection_of_the_login_before(stage: Stage) -> None:
    async with visiting_chat(stage) as visit:
        name = f"user-{visit.uid()}"

        async def login() -> Any:
            address = f"http://127.0.0.1:{stage.port}/auth/login"
            async with visit.http.post(address, json={"username": name, "password": "pass word"}) as answer:
                return (await answer.json())["data"]

        first = await login()
        speaker = await visit.stranger(uid=int(first["userId"]))
        assert (await speaker.auth(first["accessToken"]))["from"] == str(first["userId"])
        second = await login()
        refused = await visit.stranger(uid=speaker.uid)
        await refused.say("AUTH", token=first["accessToken"])
        await refused.expect("AUTH_FAIL", reason="session_invalid")
        newer = await visit.stranger(uid=speaker.uid)
        await newer.auth(second["accessToken"])
        await speaker.refused("kicked")


# -- again and again -------------------------------------------------------------------------------

RESEND_S = 0.5


@pytest.fixture(scope="module")
def insistent(redis_server: RedisAt, onlooker: Onlooker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    flags = {**SAVE_FIRST, "chat__resend_after_s": RESEND_S}
    with chat_stage(redis_server, tmp_path_factory.mktemp("chat-insistent"), onlooker, flags) as up:
        yield up


async def test_what_a_silent_receiver_does_not_confirm_comes_again_with_growing_pauses(insistent: Stage) -> None:
    async with visiting_chat(insistent) as visit:
        alice, bob = await visit.pair()
        await alice.chat(bob.uid, "hello?")
        times = []
        for _ in range(4):
            await bob.expect("SINGLE_CHAT", body="hello?")
            times.append(time.monotonic())
        pauses = [after - before for before, after in pairwise(times)]
        # The first is measured from what was saved, which may be heard of late; each of the others is twice as long.
        assert pauses[1] >= 1.9 * RESEND_S
        assert pauses[2] >= 3.8 * RESEND_S


async def test_what_was_confirmed_is_not_sent_again_and_what_follows_is_soon(insistent: Stage) -> None:
    async with visiting_chat(insistent) as visit:
        alice, bob = await visit.pair()
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


async def test_what_went_out_after_auth_is_not_sent_again_at_once(insistent: Stage) -> None:
    async with visiting_chat(insistent) as visit:
        alice, uid = await visit.user(), visit.uid()
        await alice.saved(await alice.chat(uid, "waits"))
        long_ago = time.monotonic() + 2 * RESEND_S
        await wait_until(lambda: time.monotonic() > long_ago, PATIENCE_S)
        bob = await visit.user(0, uid)
        await bob.expect("SINGLE_CHAT", body="waits")
        began = time.monotonic()
        await bob.expect("SINGLE_CHAT", body="waits")
        assert time.monotonic() - began >= 0.8 * RESEND_S
