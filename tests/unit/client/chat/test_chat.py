"""A chat against a peer that acts out what servers do."""

import asyncio
import base64
import json
import time
from dataclasses import replace

import pytest

from dragoman.client.chat import (
    AccessDenied,
    Chat,
    ChatClosed,
    Kicked,
    RateLimit,
    SendFailed,
    Sent,
    Translation,
    Unreachable,
)
from dragoman.protocol import chat as wire
from dragoman.protocol.chat import AckType, Reason, Untranslated
from support.waiting import wait_until
from unit.client.chat.fake_chat_server import ME, OTHER, QUICK, TS, FakeChatServer, Peer, chatting, noted, serving

ACCEPTED, SAVED, DELIVERED, READ = AckType.ACCEPTED, AckType.SAVED, AckType.DELIVERED, AckType.READ


async def test_a_chat_in_ten_lines(peer: Peer, chat: Chat) -> None:
    sent = await chat.send(to=OTHER, body="hi")
    frame = await peer.take(10, ACCEPTED, SAVED)
    assert (frame["to"], frame["body"], frame["msgType"]) == ("2", "hi", "TEXT")
    await sent.accepted
    await sent.saved
    assert (chat.user_id, sent.server_msg_id, chat.unsaved) == (ME, 10, 0)
    await peer.push(11, "hello")
    message = await anext(chat.messages())
    assert (message.from_user, message.body, message.server_msg_id) == (OTHER, "hello", 11)
    ack = await peer.hear("ACK")
    assert (ack["ackType"], ack["serverMsgId"], ack["to"]) == ("delivered", "11", "2")
    chat.read(message)
    assert (await peer.hear("ACK"))["ackType"] == "read"


async def test_a_server_that_saves_while_we_wait_says_saved_alone(peer: Peer, chat: Chat) -> None:
    sent = await chat.send(OTHER, "hi")
    await peer.take(10, SAVED)
    await sent.accepted
    assert sent.accepted
    assert sent.saved


async def test_receipts_of_the_receiver_may_come_before_saved() -> None:
    calls, note = noted()
    async with chatting(on_receipt=note) as (_, peer, chat):
        sent = await chat.send(OTHER, "hi")
        frame = await peer.take(10, ACCEPTED)
        await peer.receipt(DELIVERED, 10)
        await sent.delivered
        assert not sent.saved
        await peer.tell(frame, 10, SAVED)
        await peer.receipt(READ, 10)
        await sent.read
        assert sent.saved
        assert calls == [sent] * 4


@pytest.mark.parametrize("reason", [Reason.SERVER_BUSY, Reason.INTERNAL_ERROR])
async def test_message_refused_as_busy_is_resent_before_later_ones(peer: Peer, chat: Chat, reason: Reason) -> None:
    sent = await chat.send(OTHER, "1")
    await chat.send(OTHER, "2")
    names = []
    for _ in range(3):
        frame = await peer.hear("SINGLE_CHAT")
        names.append((frame["clientMsgId"], frame["body"]))
        await peer.refuse(frame, reason)
    assert names == [(sent.client_msg_id, "1")] * 3
    await peer.take(10, ACCEPTED)
    assert (await peer.hear("SINGLE_CHAT"))["body"] == "2"


@pytest.mark.parametrize("reason", [Reason.BODY_TOO_LONG, Reason.DUPLICATE_MSG_ID_MISMATCH, Reason.CANNOT_SEND_TO_SELF])
async def test_refused_message_fails_and_the_next_one_is_sent(peer: Peer, chat: Chat, reason: Reason) -> None:
    sent = await chat.send(OTHER, "1")
    await chat.send(OTHER, "2")
    await peer.refuse(await peer.hear("SINGLE_CHAT"), reason)
    with pytest.raises(SendFailed) as failure:
        await sent.accepted
    assert (failure.value.reason, sent.failed) == (reason, reason)
    assert (await peer.hear("SINGLE_CHAT"))["body"] == "2"


async def test_a_message_that_could_not_be_saved_has_failed_after_it_was_accepted(peer: Peer, chat: Chat) -> None:
    sent = await chat.send(OTHER, "1")
    frame = await peer.take(10, ACCEPTED)
    await sent.accepted
    await peer.refuse(frame, Reason.SAVE_FAILED)
    with pytest.raises(SendFailed, match="save_failed"):
        await sent.saved
    assert chat.unsaved == 0


# -- coming back


async def test_after_a_lost_connection_all_that_is_not_saved_is_sent_again_in_order() -> None:
    lines, note = noted()
    async with chatting(on_connection=note) as (server, peer, chat):
        saved, accepted, waiting = [await chat.send(OTHER, body) for body in ("saved", "accepted", "waiting")]
        await peer.take(10, ACCEPTED, SAVED)
        await peer.take(11, ACCEPTED)
        await peer.hear("SINGLE_CHAT")
        await saved.saved
        await accepted.accepted
        peer.drop()
        peer = await server.let_in()
        again = [await peer.take(10 + number, ACCEPTED, SAVED) for number in (1, 2)]
        assert [frame["clientMsgId"] for frame in again] == [accepted.client_msg_id, waiting.client_msg_id]
        await waiting.saved
        await accepted.saved
        assert [up for up, _ in lines] == [True, False, True]


async def test_messages_sent_offline_go_out_on_the_next_connection() -> None:
    lines, note = noted()
    async with chatting(on_connection=note) as (server, peer, chat):
        peer.drop()
        await wait_until(lambda: len(lines) > 1)
        sent = await chat.send(OTHER, "hi")
        peer = await server.let_in()
        await peer.take(10, SAVED)
        await sent.saved


async def test_read_receipt_is_resent_after_a_lost_connection(server: FakeChatServer, peer: Peer, chat: Chat) -> None:
    messages = chat.messages()
    for number in (10, 11):
        await peer.push(number)
        chat.read(await anext(messages))
    peer.drop()  # whether it has read what it was told, nobody knows
    peer = await server.let_in()
    told = await peer.hear("ACK")
    assert (told["ackType"], told["serverMsgId"], told["to"]) == ("read", "11", "2")
    await peer.say(wire.ping(TS))
    await peer.hear("PONG")  # the first word after it: the highest is enough


async def test_any_of_several_addresses_will_do() -> None:
    async with serving() as first, serving() as second:
        chat = Chat([first.url, second.url], token="t", timing=QUICK)
        peer, _ = await asyncio.gather(first.let_in(), chat.open())
        await peer.close(4000)
        await second.let_in()
        await chat.abort()


async def test_being_kicked_is_the_end() -> None:
    reported: list[tuple[bool, str]] = []
    async with chatting(on_connection=lambda up, why: reported.append((up, why))) as (server, peer, chat):
        unknown = await chat.send(OTHER, "hi")
        await peer.hear("SINGLE_CHAT")
        await peer.say(wire.error(Reason.KICKED, TS))
        with pytest.raises(Kicked):
            await anext(chat.messages())
        with pytest.raises(ChatClosed):
            await unknown.saved
        with pytest.raises(Kicked):
            await chat.send(OTHER, "again")
        await peer.gone()
        assert server.waiting == 0
        await wait_until(lambda: len(reported) == 2)
    assert reported == [(True, ""), (False, "this user is connected elsewhere now (kicked)")]


async def test_chat_that_its_user_closes_is_not_reported_as_a_lost_connection() -> None:
    reported: list[bool] = []
    async with chatting(on_connection=lambda up, why: reported.append(up)) as (_, peer, chat):
        await chat.abort()
        await peer.gone()
    assert reported == [True]


# -- who we are


async def test_refused_token_is_reported() -> None:
    async with serving() as server:

        async def refuse() -> None:
            peer = await server.next()
            await peer.hear("AUTH")
            await peer.say(wire.auth_fail(Reason.INVALID_TOKEN, TS))
            await peer.close()

        refusing = asyncio.ensure_future(refuse())
        with pytest.raises(AccessDenied, match="invalid_token"):
            await Chat(server.url, token="t", timing=QUICK).open()
        await refusing


async def test_a_function_is_asked_for_another_token_once() -> None:
    tokens = iter(["old", "new"])
    async with serving() as server:
        chat = Chat(server.url, token=lambda: next(tokens), timing=QUICK)
        opening = asyncio.ensure_future(chat.open())
        peer = await server.next()
        assert (await peer.hear("AUTH"))["token"] == "old"
        await peer.say(wire.auth_fail(Reason.INVALID_TOKEN, TS))
        await peer.close(4501)
        peer = await server.next()
        assert (await peer.hear("AUTH"))["token"] == "new"
        await peer.say(wire.auth_ok(ME, TS))
        await opening
        await chat.abort()


def made_up_token(lasts_s: float) -> str:
    claims = base64.urlsafe_b64encode(json.dumps({"exp": time.time() + lasts_s}).encode()).decode().rstrip("=")
    return f"e30.{claims}.x"


async def test_a_token_about_to_expire_is_renewed_on_the_same_connection() -> None:
    tokens = iter([made_up_token(30), made_up_token(3600)])

    async def token() -> str:
        return next(tokens)

    async with chatting(token=token) as (_, peer, chat):
        await peer.hear("PING")
        await peer.hear("REAUTH")
        assert chat.connected


async def test_a_session_that_is_over_is_not_fought_for() -> None:
    async with chatting(token=lambda: "t") as (server, peer, chat):
        await peer.say(wire.error(Reason.SESSION_INVALID, TS))
        with pytest.raises(AccessDenied, match="session_invalid"):
            await anext(chat.messages())
        assert server.waiting == 0


async def test_missing_server_is_reported_at_once() -> None:
    with pytest.raises(Unreachable):
        await Chat("ws://127.0.0.1:1/ws", token="t", timing=QUICK).open()


# -- listening


async def test_doubles_are_dropped_and_acknowledged_again(peer: Peer, chat: Chat) -> None:
    messages = chat.messages()
    await peer.push(10)
    assert (await anext(messages)).server_msg_id == 10
    await peer.hear("ACK")
    await peer.push(10)
    assert (await peer.hear("ACK"))["serverMsgId"] == "10"
    await peer.push(11)
    assert (await anext(messages)).server_msg_id == 11


async def test_unread_message_is_not_acknowledged(peer: Peer, chat: Chat) -> None:
    await peer.push(10)
    await peer.push(10)
    await peer.say(wire.ping(TS))
    await peer.hear("PONG")  # the first word after them: no ACK
    await anext(chat.messages())
    await peer.hear("ACK")


async def test_a_reader_that_falls_behind_gets_the_rest_by_coming_back_in_order() -> None:
    async with chatting(max_unread=2) as (server, peer, chat):
        for number in (10, 11, 12, 13):
            await peer.push(number)
        await peer.say(wire.ping(TS))
        await peer.hear("PONG")
        messages = chat.messages()
        assert [(await anext(messages)).server_msg_id for _ in range(2)] == [10, 11]
        await peer.gone()
        peer = await server.let_in()
        for number in (12, 13):
            await peer.push(number)
        assert [(await anext(messages)).server_msg_id for _ in range(2)] == [12, 13]


async def test_receipts_can_be_left_to_the_application() -> None:
    async with chatting(acknowledge=False) as (_, peer, chat):
        await peer.push(10)
        message = await anext(chat.messages())
        await peer.say(wire.ping(TS))
        await peer.hear("PONG")
        chat.delivered(message)
        assert (await peer.hear("ACK"))["ackType"] == "delivered"


# -- bounds and the end


async def test_sending_waits_while_too_much_is_not_saved() -> None:
    async with chatting(max_unsaved=1) as (_, peer, chat):
        await chat.send(OTHER, "1")
        second = asyncio.ensure_future(chat.send(OTHER, "2"))
        frame = await peer.take(10, ACCEPTED)
        assert not second.done()
        await peer.tell(frame, 10, SAVED)
        await second


async def test_closing_waits_for_what_is_not_saved() -> None:
    async with chatting(timing=replace(QUICK, close_s=10)) as (_, peer, chat):
        sent = await chat.send(OTHER, "1")
        closing = asyncio.ensure_future(chat.close())
        await peer.take(10, SAVED)
        await closing
        assert sent.saved
        await peer.gone()


async def test_closing_waits_until_what_was_handed_out_is_acknowledged() -> None:
    async with chatting(timing=replace(QUICK, close_s=10), rate_limit=RateLimit(50, 1)) as (_, peer, chat):
        messages = chat.messages()
        for number in (10, 11, 12):
            await peer.push(number)
        for _ in range(3):
            await anext(messages)
        await chat.close()
        assert [(await peer.hear("ACK"))["serverMsgId"] for _ in range(3)] == ["10", "11", "12"]
        await peer.gone()


async def test_close_reports_unknown_outcomes_to_waiting_callers(peer: Peer, chat: Chat) -> None:
    sent = await chat.send(OTHER, "1")
    await peer.take(10, ACCEPTED)
    waiting = asyncio.ensure_future(_saved(sent))
    await chat.close()
    with pytest.raises(ChatClosed):
        await waiting
    assert sent.failed is None
    with pytest.raises(ChatClosed):
        await chat.send(OTHER, "2")


async def _saved(sent: Sent) -> None:
    await sent.saved


@pytest.mark.parametrize(
    ("to", "body"), [(0, "x"), (2, ""), (2, "x" * 4097), (2, "\U0001f600" * 2049), (2, "a\0b"), (2, "\ud800")]
)
async def test_invalid_message_is_not_sent(chat: Chat, to: int, body: str) -> None:
    with pytest.raises(ValueError):
        await chat.send(to, body)


async def test_malformed_frame_is_ignored(peer: Peer, chat: Chat) -> None:
    await peer.say(b"not json", b'{"type":"NEWS"}', b'{"type":"SINGLE_CHAT","body":"from nobody"}')
    await peer.push(10)
    assert (await anext(chat.messages())).server_msg_id == 10


async def test_every_answer_to_a_message_is_reported_also_repeated_ones() -> None:
    seen = list[tuple[str, int]]()
    async with chatting(on_exchange=lambda name, what, ts: seen.append((what, ts))) as (_, peer, chat):
        sent = await chat.send(OTHER, "1", client_msg_id="a")
        await peer.refuse(await peer.hear("SINGLE_CHAT"), Reason.SERVER_BUSY)
        frame = await peer.take(10, ACCEPTED, SAVED)
        await sent.saved
        await peer.tell(frame, 10, SAVED)
        await wait_until(lambda: len(seen) == 6)
    assert seen == [("sent", 0), ("error", TS), ("sent", 0), ("accepted", TS), ("saved", TS), ("saved", TS)]


# -- translations ----------------------------------------------------------------------------------


async def test_translation_is_asked_for_and_returned() -> None:
    async with chatting() as (_, peer, chat):
        asked = asyncio.ensure_future(chat.translate(7, "es"))
        frame = await peer.hear("TRANSLATE")
        assert (frame["serverMsgId"], frame["lang"]) == ("7", "es")
        await peer.say(wire.translation(8, "es", TS, body="otra"), wire.translation(7, "es", TS, body="hola"))
        assert await asked == Translation(7, "es", "hola")


async def test_translation_that_the_server_has_not_got_has_a_reason() -> None:
    async with chatting() as (_, peer, chat):
        busy = asyncio.ensure_future(chat.translate(7, "es"))
        await peer.hear("TRANSLATE")
        unknown = asyncio.ensure_future(chat.translate(8, "es"))
        await peer.hear("TRANSLATE")
        await peer.say(
            wire.error(Reason.MESSAGE_NOT_FOUND, TS, server_msg_id=8),
            wire.translation(7, "es", TS, reason=Untranslated.BUSY),
        )
        assert await unknown == Translation(8, "es", None, "message_not_found")
        assert await busy == Translation(7, "es", None, "busy")


async def test_translation_is_asked_for_again_after_a_reconnect() -> None:
    async with chatting() as (server, peer, chat):
        asked = asyncio.ensure_future(chat.translate(7, "es"))
        await peer.hear("TRANSLATE")
        peer.drop()
        again = await server.let_in()
        await again.hear("TRANSLATE")
        await again.say(wire.translation(7, "es", TS, body="hola"))
        assert (await asked).body == "hola"


async def test_translation_that_never_comes_ends_with_no_answer() -> None:
    async with chatting(timing=replace(QUICK, translate_s=0.05)) as (_, peer, chat):
        assert await chat.translate(7, "es") == Translation(7, "es", None, "no_answer")
        await peer.hear("TRANSLATE")
        await peer.say(wire.translation(7, "es", TS, body="too late"))


async def test_waiting_for_a_translation_ends_with_the_chat() -> None:
    async with chatting() as (_, peer, chat):
        asked = asyncio.ensure_future(chat.translate(7, "es"))
        await peer.hear("TRANSLATE")
        await chat.abort()
        with pytest.raises(ChatClosed):
            await asked
        with pytest.raises(ChatClosed):
            await chat.translate(7, "es")


async def test_chat_in_a_language_gets_the_translation_of_each_message() -> None:
    calls, note = noted()
    async with serving() as server:
        chat = Chat(server.url, token="t", timing=QUICK, translate="es", on_translation=note)
        opening = asyncio.ensure_future(chat.open())
        peer = await server.next()
        assert (await peer.hear("AUTH"))["translate"] == "es"
        await peer.say(wire.auth_ok(ME, TS, "es"))
        await opening
        await peer.say(
            wire.chat(OTHER, ME, "c1", 1, "TEXT", "hello", TS, lang="en"),
            wire.translation(1, "es", TS, body="hola"),
            wire.chat(OTHER, ME, "c2", 2, "TEXT", "bye", TS, 2, "en", wire.Translation("es", "adiós")),
        )
        messages = chat.messages()
        first, second = await anext(messages), await anext(messages)
        assert (first.body, first.lang, first.translation) == ("hello", "en", None)
        assert second.translation == "adiós"
        assert calls == [Translation(1, "es", "hola")]
        await chat.abort()


async def test_message_names_its_language() -> None:
    async with chatting() as (_, peer, chat):
        await chat.send(OTHER, "Moin", lang="de")
        assert (await peer.hear("SINGLE_CHAT"))["lang"] == "de"
