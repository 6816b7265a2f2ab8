import json
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.protocol import chat
from dragoman.protocol.chat import AckType, BadField, BadJson, Frame, MissingType, Reason, Refused
from support.tables import for_each

TS = 1_700_000_000_123
# Every character that a text may hold; NUL is refused, halves of surrogate pairs are no characters.
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
ids = st.integers(1, chat.MAX_ID)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec="utf-8"), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
NAMES = ["type", "clientMsgId", "serverMsgId", "from", "to", "token", "ackType", "msgType", "body", "x"]


def sent(**fields: Any) -> bytes:
    return json.dumps({"type": "SINGLE_CHAT"} | fields).encode()


def refusal(data: bytes) -> Refused:
    with pytest.raises(Refused) as refused:
        chat.decode_frame(data)
    return refused.value


def read(data: bytes) -> Frame | Refused:
    try:
        return chat.decode_frame(data)
    except Refused as refused:
        return refused


# ---------------------------------------------------------------- reading


@for_each([b"", b" ", b"{", b"nonsense", b"{}x", b'{"type":"PING"}}', b"\xef\xbb\xbf{}", b"\0"])
def test_malformed_json_is_bad_json(data: bytes) -> None:
    assert refusal(data).reason is Reason.BAD_JSON


@for_each([b"null", b"[]", b"7", b'"PING"', b"true"])
def test_json_that_is_not_an_object_is_bad_json(data: bytes) -> None:
    assert refusal(data).message.startswith("The frame is not a JSON object")


@for_each([b"{}", b'{"type":null}', b'{"type":""}', b'{"body":"x"}'])
def test_a_frame_without_a_type_is_refused_as_that(data: bytes) -> None:
    refused = refusal(data)
    assert isinstance(refused, MissingType)
    assert refused.reason is Reason.MISSING_TYPE


@for_each(product(["type", "clientMsgId", "token", "ackType", "msgType", "body"], [7, 1.5, True, [], {}]))
def test_a_text_of_another_type_is_bad_json_and_named(name: str, value: object) -> None:
    refused = refusal(sent(**{name: value}))
    assert isinstance(refused, BadField)
    assert refused.reason is Reason.BAD_JSON
    assert f"`{name}`" in refused.message


@for_each(product(["serverMsgId", "from", "to"], [True, [], {}]))
def test_an_id_that_is_neither_text_nor_number_is_bad_json(name: str, value: object) -> None:
    assert f"`{name}`" in refusal(sent(**{name: value})).message


@for_each(
    product(
        [b"body", b"clientMsgId", b"to"],
        [b'"\\ud800"', b'"\\udc00x"', b'"\\ud83d"', b'"\xed\xa0\x80"', b'"\xff"', b'"\\u0000"'],
    )
)
def test_text_that_no_database_stores_is_bad_json(name: bytes, value: bytes) -> None:
    assert isinstance(refusal(b'{"type":"X","%b":%b}' % (name, value)), BadJson)


def test_unknown_fields_must_be_text_as_well() -> None:
    assert isinstance(refusal(b'{"type":"X","new":"\xff"}'), BadJson)


def test_a_backslash_before_u0000_is_just_a_backslash() -> None:
    assert chat.decode_frame(b'{"type":"X","body":"\\\\u0000"}').body == "\\u0000"


def test_a_frame_nested_too_deeply_is_bad_json() -> None:
    assert isinstance(refusal(b'{"type":"X","new":' + b"[" * 60_000), BadJson)


def test_a_msg_type_beyond_32_characters_is_bad_json() -> None:
    assert chat.decode_frame(sent(msgType="x" * 32)).msgType == "x" * 32
    assert "`msgType`" in refusal(sent(msgType="x" * 33)).message


def test_a_refusal_quotes_no_text_and_is_short() -> None:
    assert len(refusal(b'{"type":"X","body":"' + b"secret" * 1000).message) <= 200
    assert "secret" not in refusal(b'{"type":"X","body":["secret"]}').message


@for_each(
    [
        ("1", 1),
        (1, 1),
        ("9223372036854775807", 2**63 - 1),
        (2**63 - 1, 2**63 - 1),
        ("007", 7),
        (None, None),
        ("", None),
        (" 1", None),
        ("1 ", None),
        ("+1", None),
        ("-1", None),
        ("1.0", None),
        ("1e3", None),
        ("1_000", None),
        ("0x10", None),
        ("١", None),
        ("²", None),
        ("abc", None),
        ("9223372036854775808", None),
        ("9" * 5000, None),
        (2**63, None),
        (10**30, None),
        (0, None),
        ("0", None),
        (-1, None),
        (1.0, None),
        (1.5, None),
    ],
)
def test_an_id_is_a_positive_decimal_number_of_63_bits_and_all_else_is_none(value: object, id: int | None) -> None:
    for name in ("serverMsgId", "from", "to"):
        frame = chat.decode_frame(sent(**{name: value}))
        assert getattr(frame, "from_" if name == "from" else name) == id, name


@given(texts, texts, ids)
def test_every_text_passes_unchanged(body: str, client_msg_id: str, to: int) -> None:
    frame = chat.decode_frame(chat.say(client_msg_id, to, body))
    assert (frame.body, frame.clientMsgId, frame.to, frame.msgType) == (body, client_msg_id, to, "TEXT")


# ---------------------------------------------------------------- writing


@given(texts, texts, texts, ids, ids, ids, st.none() | st.integers(1, 2**53))
def test_a_message_written_is_the_one_read(
    body: str, client_msg_id: str, msg_type: str, from_: int, to: int, id: int, seq: int | None
) -> None:
    data = chat.chat(from_, to, client_msg_id, id, msg_type, body, TS, seq)
    frame = chat.decode_server_frame(data)
    assert (frame.type, frame.from_, frame.to, frame.serverMsgId) == ("SINGLE_CHAT", from_, to, id)
    assert (frame.clientMsgId, frame.msgType, frame.body) == (client_msg_id, msg_type, body)
    assert (frame.msgSeq, frame.ts) == (seq, TS)


@given(texts, st.none() | texts, st.sampled_from(AckType), ids, ids)
def test_an_acknowledgement_written_is_the_one_read(
    client_msg_id: str, body: str | None, ack_type: AckType, sender: int, id: int
) -> None:
    frame = chat.decode_server_frame(chat.ack(ack_type, sender, client_msg_id, id, TS, body))
    assert (frame.type, frame.ackType, frame.from_, frame.to) == ("ACK", ack_type, sender, None)
    assert (frame.clientMsgId, frame.serverMsgId, frame.body, frame.ts) == (client_msg_id, id, body, TS)


@given(texts, st.none() | texts, st.none() | ids, st.sampled_from(Reason))
def test_everything_written_is_compact_json_with_its_type_first(
    text: str, client_msg_id: str | None, id: int | None, reason: Reason
) -> None:
    for data in (
        chat.error(reason, TS, client_msg_id, id),
        chat.auth_fail(reason, TS),
        chat.ack(AckType.SAVED, 1, text, 2, TS),
        chat.chat(1, 2, text, 3, text, text, TS),
        chat.auth(text),
        chat.say(text, 4, text),
    ):
        told = json.loads(data)
        compact = json.dumps(told, separators=(",", ":"), ensure_ascii=False)
        assert json.loads(compact) == told
        # Python and msgspec escape different control characters; where there are none the bytes are the same.
        if all(ord(letter) >= 0x20 and letter != "\x7f" for letter in text + (client_msg_id or "")):
            assert data == compact.encode()
        assert data.startswith(b'{"type":"')
        assert None not in told.values()


@for_each(["body", "clientMsgId", "token", "from", "to"])
def test_a_refusal_of_a_nul_names_its_field(field: str) -> None:
    with pytest.raises(chat.BadField, match=f"`{field}`"):
        chat.decode_frame(json.dumps({"type": "SINGLE_CHAT", field: "a\0b"}).encode())


# ---------------------------------------------------------------- words


@for_each(
    [
        ("delivered", AckType.DELIVERED),
        ("received", AckType.DELIVERED),
        ("ack_receive", AckType.DELIVERED),
        ("ACK_RECEIVE", AckType.DELIVERED),
        ("read", AckType.READ),
        ("ack_read", AckType.READ),
        ("saved", None),
        ("accepted", None),
        ("", None),
        ("nonsense", None),
    ]
)
def test_a_receipt_has_several_spellings(word: str, meaning: AckType | None) -> None:
    assert chat.receipt_type(word) is meaning
