"""The literal frames of chat: existing clients and load generators match some of them by text, so bytes are compared.

Together the tables hold every type, every field and every reason of the protocol; the last tests see to that.
"""

import json
from typing import Any

import msgspec
import pytest

from dragoman.domain.chat.rules import VIOLATIONS
from dragoman.protocol import chat
from dragoman.protocol.chat import AckType, Frame, FrameType, Reason, ServerFrame, Translation, Untranslated
from support.tables import for_each

TS = 1700000000123
ID = 9007199254740993  # beyond what a JavaScript number can hold

TO_CLIENTS: list[tuple[bytes, bytes]] = [
    (chat.auth_ok(42, TS), b'{"type":"AUTH_OK","from":"42","ts":1700000000123}'),
    (
        chat.auth_fail(Reason.INVALID_TOKEN, TS),
        b'{"type":"AUTH_FAIL","reason":"invalid_token","ts":1700000000123}',
    ),
    (chat.ping(TS), b'{"type":"PING","ts":1700000000123}'),
    (chat.pong(TS), b'{"type":"PONG","ts":1700000000123}'),
    (
        chat.ack(AckType.ACCEPTED, 42, "c-1", ID, TS),
        b'{"type":"ACK","ackType":"accepted","from":"42","clientMsgId":"c-1","serverMsgId":"9007199254740993",'
        b'"ts":1700000000123}',
    ),
    (
        chat.ack(AckType.SAVED, 42, "c-1", ID, TS, "so ***"),
        b'{"type":"ACK","ackType":"saved","from":"42","clientMsgId":"c-1","serverMsgId":"9007199254740993",'
        b'"body":"so ***","ts":1700000000123}',
    ),
    (
        chat.ack(AckType.SAVED, 42, "c-1", ID, TS, "the first body", duplicate=True),
        b'{"type":"ACK","ackType":"saved","from":"42","clientMsgId":"c-1","serverMsgId":"9007199254740993",'
        b'"body":"the first body","duplicate":true,"ts":1700000000123}',
    ),
    (
        chat.stamped(chat.ack(AckType.SAVED, 42, "c-1", ID, 1, 'a,"ts":2}'), TS, duplicate=True),
        b'{"type":"ACK","ackType":"saved","from":"42","clientMsgId":"c-1","serverMsgId":"9007199254740993",'
        b'"body":"a,\\"ts\\":2}","duplicate":true,"ts":1700000000123}',
    ),
    (
        chat.chat(42, 43, "c-1", ID, "TEXT", "hi", TS),
        b'{"type":"SINGLE_CHAT","from":"42","to":"43","clientMsgId":"c-1","serverMsgId":"9007199254740993",'
        b'"msgType":"TEXT","body":"hi","ts":1700000000123}',
    ),
    (
        chat.chat(42, 43, "c-1", ID, "TEXT", 'hi "you" \n é 😀 \x01', TS, 7),
        b'{"type":"SINGLE_CHAT","from":"42","to":"43","clientMsgId":"c-1","serverMsgId":"9007199254740993",'
        b'"msgSeq":7,"msgType":"TEXT","body":"hi \\"you\\" \\n \xc3\xa9 \xf0\x9f\x98\x80 \\u0001","ts":1700000000123}',
    ),
    (
        chat.relay_ack(AckType.DELIVERED, 43, 42, ID, TS),
        b'{"type":"ACK","ackType":"delivered","from":"43","to":"42","serverMsgId":"9007199254740993",'
        b'"ts":1700000000123}',
    ),
    (
        chat.relay_ack(AckType.READ, 43, 42, ID, TS),
        b'{"type":"ACK","ackType":"read","from":"43","to":"42","serverMsgId":"9007199254740993","ts":1700000000123}',
    ),
    (chat.auth_ok(42, TS, "es"), b'{"type":"AUTH_OK","from":"42","translate":"es","ts":1700000000123}'),
    (
        chat.chat(42, 43, "c-1", ID, "TEXT", "hi", TS, 7, "en", Translation("es", "hola")),
        b'{"type":"SINGLE_CHAT","from":"42","to":"43","clientMsgId":"c-1","serverMsgId":"9007199254740993",'
        b'"msgSeq":7,"msgType":"TEXT","body":"hi","lang":"en","translation":{"lang":"es","body":"hola"},'
        b'"ts":1700000000123}',
    ),
    (
        chat.translation(ID, "es", TS, body="hola"),
        b'{"type":"TRANSLATION","serverMsgId":"9007199254740993","lang":"es","body":"hola","ts":1700000000123}',
    ),
    (
        chat.translation(ID, "es", TS, reason=Untranslated.NO_NODE),
        b'{"type":"TRANSLATION","serverMsgId":"9007199254740993","lang":"es","reason":"no_node","ts":1700000000123}',
    ),
    (chat.error(Reason.BAD_JSON, TS), b'{"type":"ERROR","reason":"bad_json","ts":1700000000123}'),
    (
        chat.error(Reason.SERVER_BUSY, TS, "c-1"),
        b'{"type":"ERROR","reason":"server_busy","clientMsgId":"c-1","ts":1700000000123}',
    ),
    (
        chat.error(Reason.SAVE_FAILED, TS, "c-1", ID),
        b'{"type":"ERROR","reason":"save_failed","clientMsgId":"c-1","serverMsgId":"9007199254740993",'
        b'"ts":1700000000123}',
    ),
]

FROM_CLIENTS: list[tuple[bytes, Frame]] = [
    (b'{"type":"AUTH","token":"a.b.c"}', Frame("AUTH", token="a.b.c")),
    (b'{"type":"REAUTH","token":"a.b.c"}', Frame("REAUTH", token="a.b.c")),
    (b'{"type":"PING"}', Frame("PING")),
    (b'{"type":"PONG","ts":1700000000123}', Frame("PONG", ts=TS)),
    (b'{"type":"PING","ts":{"a":[1]}}', Frame("PING")),
    (
        b'{"type":"SINGLE_CHAT","clientMsgId":"c-1","to":"43","body":"hi"}',
        Frame("SINGLE_CHAT", clientMsgId="c-1", to=43, body="hi"),
    ),
    (
        b'{ "type": "SINGLE_CHAT", "clientMsgId": "c-1", "from": 1, "to": 43, "msgType": "TEXT", "body": "hi",'
        b' "serverMsgId": null, "groupId": null, "ts": 1, "x": {"y": [1]} }',
        Frame("SINGLE_CHAT", clientMsgId="c-1", from_=1, to=43, msgType="TEXT", body="hi", ts=1),
    ),
    (
        b'{"type":"ACK","ackType":"delivered","serverMsgId":"9007199254740993","to":"42"}',
        Frame("ACK", ackType="delivered", serverMsgId=ID, to=42),
    ),
    (b'{"type":"AUTH","token":"a.b.c","translate":"es"}', Frame("AUTH", token="a.b.c", translate="es")),
    (
        b'{"type":"TRANSLATE","serverMsgId":"9007199254740993","lang":"pt-BR"}',
        Frame("TRANSLATE", serverMsgId=ID, lang="pt-BR"),
    ),
    (b'{"type":"TRANSLATE","serverMsgId":1,"lang":["es"]}', Frame("TRANSLATE", serverMsgId=1, lang="")),
    (
        b'{"type":"ACK","ackType":"ack_read","serverMsgId":9007199254740993,"to":42}',
        Frame("ACK", ackType="ack_read", serverMsgId=ID, to=42),
    ),
    (b'{"type":"FRIEND_REQUEST","to":"42"}', Frame("FRIEND_REQUEST", to=42)),
    (
        b'{"type":"GROUP_CHAT","groupId":"9","clientMsgId":"c-1","body":"hi"}',
        Frame("GROUP_CHAT", clientMsgId="c-1", body="hi"),
    ),
    (b'{"type":"CALL_INVITE","to":42}', Frame("CALL_INVITE", to=42)),
]

FROM_OUR_CLIENT: list[tuple[bytes, bytes]] = [
    (chat.auth("a.b.c"), b'{"type":"AUTH","token":"a.b.c"}'),
    (chat.reauth("a.b.c"), b'{"type":"REAUTH","token":"a.b.c"}'),
    (chat.auth("a.b.c", "es"), b'{"type":"AUTH","token":"a.b.c","translate":"es"}'),
    (chat.translate(ID, "es"), b'{"type":"TRANSLATE","serverMsgId":"9007199254740993","lang":"es"}'),
    (
        chat.say("c-1", 43, "hi", lang="en"),
        b'{"type":"SINGLE_CHAT","clientMsgId":"c-1","to":"43","msgType":"TEXT","body":"hi","lang":"en"}',
    ),
    (chat.ping(), b'{"type":"PING"}'),
    (chat.pong(), b'{"type":"PONG"}'),
    (chat.say("c-1", 43, "hi"), b'{"type":"SINGLE_CHAT","clientMsgId":"c-1","to":"43","msgType":"TEXT","body":"hi"}'),
    (
        chat.receipt(AckType.DELIVERED, ID, 42),
        b'{"type":"ACK","ackType":"delivered","serverMsgId":"9007199254740993","to":"42"}',
    ),
    (
        chat.receipt(AckType.READ, ID, 42),
        b'{"type":"ACK","ackType":"read","serverMsgId":"9007199254740993","to":"42"}',
    ),
]

IN_AUTH_FAIL = "missing_token invalid_token session_invalid"
CLOSES = "kicked session_invalid token_expired unauthorized auth_timeout reauth_uid_mismatch too_many_requests"
CLOSES_THE_FOURTH_TIME = "bad_json missing_type not_implemented"
STAYS = (
    "server_busy internal_error save_failed duplicate_msg_id_mismatch missing_msg_id missing_to missing_body "
    "body_too_long cannot_send_to_self missing_ack_type unknown_ack_type missing_server_msg_id message_not_found "
    "ack_not_allowed quota_exceeded missing_lang"
)


@for_each(TO_CLIENTS + FROM_OUR_CLIENT)
def test_frames_are_encoded_to_these_exact_bytes(written: bytes, literal: bytes) -> None:
    assert written == literal


@for_each(FROM_CLIENTS)
def test_frames_of_clients_are_decoded(literal: bytes, frame: Frame) -> None:
    assert chat.decode_frame(literal) == frame


@for_each([literal for _, literal in TO_CLIENTS])
def test_our_client_understands_what_the_server_writes(literal: bytes) -> None:
    frame, told = chat.decode_server_frame(literal), json.loads(literal)
    read = {
        ("from" if name == "from_" else name): msgspec.to_builtins(value)
        for name, value in msgspec.structs.asdict(frame).items()
        if value is not None
    }
    assert read == {
        name: int(value) if name in ("from", "to", "serverMsgId") else value for name, value in told.items()
    }


@for_each([literal for _, literal in FROM_OUR_CLIENT])
def test_the_server_understands_what_our_client_writes(literal: bytes) -> None:
    assert chat.decode_frame(literal).type == json.loads(literal)["type"]


@for_each(FROM_CLIENTS)
def test_null_is_the_same_as_nothing_and_unknown_fields_are_ignored(literal: bytes, frame: Frame) -> None:
    fields: dict[str, Any] = json.loads(literal)
    nulls = {name: None for name in Frame.__struct_fields__ if name not in fields and name != "from_"}
    more = json.dumps(fields | nulls | {"x_new": {"deep": [1, {"a": None}]}})
    assert chat.decode_frame(more.encode()) == frame


@for_each(Reason)
def test_every_reason_can_be_encoded(reason: Reason) -> None:
    assert chat.error(reason, TS) == b'{"type":"ERROR","reason":"%b","ts":%d}' % (reason.value.encode(), TS)


def test_the_reasons_are_these_and_no_others() -> None:
    words = f"{IN_AUTH_FAIL} {CLOSES} {CLOSES_THE_FOURTH_TIME} {STAYS}".split()
    assert set(words) == set(Reason)


def test_these_reasons_end_a_connection() -> None:
    assert set(CLOSES.split()) == chat.CLOSING
    assert set(CLOSES_THE_FOURTH_TIME.split()) == VIOLATIONS


def test_these_reasons_mean_send_it_again() -> None:
    assert {"server_busy", "internal_error"} == chat.RETRY


def test_every_type_has_a_sample() -> None:
    literals = [literal for _, literal in TO_CLIENTS + FROM_OUR_CLIENT] + [literal for literal, _ in FROM_CLIENTS]
    assert {json.loads(literal)["type"] for literal in literals} >= set(FrameType)


@pytest.mark.parametrize(
    ("kind", "literals"),
    [(Frame, [literal for literal, _ in FROM_CLIENTS]), (ServerFrame, [literal for _, literal in TO_CLIENTS])],
)
def test_every_field_has_been_seen_in_a_sample(kind: type[Frame], literals: list[bytes]) -> None:
    seen = {name for literal in literals for name in json.loads(literal)}
    assert {"from" if name == "from_" else name for name in kind.__struct_fields__} - seen <= {"token"}
