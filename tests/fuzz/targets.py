"""Every decoder, with what must hold for whatever it is given.

- It takes the input or refuses it with its own error, and raises nothing else.
- A refusal is short, can be shown, names the field that was touched, and quotes nothing that is somebody's text.
- What was taken is written as JSON that others can read, and read again it is the same.
"""

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from contract.test_chat_messages import FROM_CLIENTS, FROM_OUR_CLIENT, TO_CLIENTS
from dragoman.gateway import chat_user_api, operator_chat_api
from dragoman.gateway.http_requests import BadRequest
from dragoman.protocol import audio, chat, codec, peer
from dragoman.protocol.chat_http import LoginRequest, RefreshRequest, VerifyRequest
from dragoman.protocol.codes import BadAudio, ErrorCode, ProtocolError
from dragoman.protocol.fields import ABSENT
from dragoman.services.chat.accounts import Denied
from fuzz import doors
from fuzz.mutate import BytesMutator, Case, JsonMutator, compact
from fuzz.refusal import LONGEST_SENTENCE, is_good_refusal
from fuzz.search import Target

SAMPLES: Final = json.loads((Path(__file__).parent.parent / "contract" / "samples.json").read_text(encoding="utf-8"))


def read_by_others(data: bytes) -> Any:
    """As a strict parser reads it: UTF-8, and numbers JSON has."""

    def refuse(word: str) -> float:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(data.decode(), parse_constant=refuse, parse_int=len)


# ---------------------------------------------------------------- speech and peers


def messages(side: str, decode: Callable[[bytes], Any]) -> Target:
    def check(case: Case) -> bool:
        try:
            message = decode(case.data)
        except ProtocolError as error:
            is_good_refusal(error.message, case.field, word=error.code, words=[ErrorCode.INVALID_MESSAGE])
            return False
        written = codec.encode(message)
        read_by_others(written)
        again = decode(written)
        assert again == message
        assert codec.encode(again) == written
        return True

    return Target(side, JsonMutator([compact(sample) for sample in SAMPLES[side].values()]), check)


def through(side: str, decode: Callable[[bytes], Any]) -> Target:
    """What passes through and is looked into nevertheless."""

    def check(case: Case) -> bool:
        try:
            message = decode(case.data)
        except ProtocolError:
            return False
        if reason := codec.reason_of(getattr(message, "extra", ABSENT)):
            assert isinstance(reason, str)
        if error := getattr(message, "error", None):
            codec.unavailable_model(error)
        return True

    seeds = [sample for sample in SAMPLES[side].values() if sample["type"] == "job_result"]
    return Target("job_result", JsonMutator([compact(sample) for sample in seeds]), check)


_FRAME: Final = msgspec.Raw(compact({"type": "job_ack", "token": "x"}))
INBOX: Final[Sequence[peer.InboxMessage]] = (
    peer.AssignJob("n", 1, "j", 1, "a", _FRAME),
    peer.CancelJob("n", "j", _FRAME),
    peer.FromNode("n", 7, "j", [_FRAME, _FRAME]),
    peer.Bounced("n", 1, "j", 2),
    peer.Evict("n", 9),
    peer.SessionMoved("s", 3),
    peer.JobMoved("s", 4),
    peer.JobEnded("s", 1, "j", "t", "DONE", "CODE", "why", "n", _FRAME),
    peer.ForwardedUtterance("s", "a", 5, "sub", "tenant", _FRAME),
    peer.ToSocket(5, "s", _FRAME),
    peer.ChatPush([peer.UserPush(1, 2, 3, _FRAME)]),
    peer.ChatNotices([peer.UserNotice(1, 2, _FRAME, True), peer.UserNotice(1, 2, _FRAME)]),
    peer.ChatKick(1, 2),
    peer.ChatOwnerCheck(1, 2, "i1|3"),
    peer.ChatResend([1, 2, 3]),
    peer.EarlyPushes([peer.EarlyMessage(1, 2, 3, 4, 5, 6, _FRAME)]),
    peer.DrainInstance(),
    peer.DrainNode("n", True),
    peer.EndSession("s"),
)
ANNOUNCED: Final[Sequence[peer.Announcement]] = (
    peer.NodeSeen(_FRAME),
    peer.NodeLost("n", 2),
    peer.SlotFreed("n"),
    peer.CoolingDown("n", "*", 1000),
    peer.SwitchesChanged(),
    peer.ShardFreed(3),
)


def inbox(case: Case) -> bool:
    try:
        message = peer.decode_inbox(case.data)
    except ProtocolError as error:
        is_good_refusal(
            error.message, case.field, 2 * LONGEST_SENTENCE, word=error.code, words=[ErrorCode.INVALID_MESSAGE]
        )
        return False
    assert peer.decode_inbox(peer.encode_peer(message)) == message
    return True


def announcement(case: Case) -> bool:
    message = peer.decode_announcement(case.data)
    if message is None:
        return False
    assert peer.decode_announcement(peer.encode_peer(message)) == message
    return True


# ---------------------------------------------------------------- chat


def chat_frame(case: Case) -> bool:
    try:
        frame = chat.decode_frame(case.data)
    except chat.Refused as refused:
        words = [chat.Reason.BAD_JSON, chat.Reason.MISSING_TYPE]
        is_good_refusal(refused.message, case.field, word=refused.reason, words=words)
        return False
    if frame.clientMsgId is not None and frame.to is not None and frame.body is not None:
        said = chat.say(frame.clientMsgId, frame.to, frame.body, frame.msgType or chat.TEXT)
        read_by_others(said)
        again = chat.decode_frame(said)
        assert (again.clientMsgId, again.to, again.body) == (frame.clientMsgId, frame.to, frame.body)
        heard = chat.decode_server_frame(chat.chat(1, frame.to, frame.clientMsgId, 7, "TEXT", frame.body, 9))
        assert (heard.body, heard.clientMsgId) == (frame.body, frame.clientMsgId)
    for text in (frame.body, frame.clientMsgId, frame.token):
        assert text is None or "\0" not in text, "no database keeps a NUL"
    return True


def server_frame(case: Case) -> bool:
    try:
        chat.decode_server_frame(case.data)
    except chat.Refused as refused:
        is_good_refusal(refused.message, case.field)
        return False
    return True


def body(kind: type[Any]) -> Callable[[Case], bool]:
    def check(case: Case) -> bool:
        try:
            found = chat_user_api.decode_body(case.data, kind)
        except Denied as denied:
            is_good_refusal(denied.message, case.field)
            return False
        assert chat_user_api.decode_body(msgspec.json.encode(found), kind) == found
        return True

    return check


def switches(case: Case) -> bool:
    try:
        operator_chat_api.decode_switches(case.data)
    except BadRequest as wrong:
        is_good_refusal(str(wrong), "")
        return False
    return True


# ---------------------------------------------------------------- audio


def _frames() -> list[bytes]:
    chunk = audio.AudioFrame(audio.FrameKind.CHUNK, "s-52584E7A", 3, 77, False, RUNS[0])
    final = audio.AudioFrame(audio.FrameKind.FINAL, "s-é", 2**32 - 1, 2**32 - 1, True, b"")
    return [audio.build_frame(chunk), audio.build_frame(final), audio.build_frame(chunk._replace(is_final=True))]


RUNS: Final = [
    audio.opus_run([audio.SILENCE_PACKET] * 13),
    audio.opus_run([bytes(80), b"x", bytes(range(200)) * 2]),
    b"",
]


def binary_frame(case: Case) -> bool:
    try:
        frame = audio.parse_frame(case.data)
    except BadAudio as error:
        is_good_refusal(error.message, "")
        return False
    assert audio.parse_frame(audio.build_frame(frame)) == frame
    return True


def opus(case: Case) -> bool:
    """Against a second, plainer reading."""
    rest, packets, whole = case.data, [], True
    while rest and whole:
        size = int.from_bytes(rest[:2], "little")
        whole = len(rest) > 2 and 0 < size <= len(rest) - 2
        packets.append(rest[2 : 2 + size])
        rest = rest[2 + size :]
    try:
        counted = audio.opus_packets(case.data)
    except BadAudio as error:
        is_good_refusal(error.message, "")
        assert not whole
        return False
    assert whole
    assert counted == len(packets)
    assert audio.opus_run(packets) == case.data
    return True


def base64_text(case: Case) -> bool:
    """What stands in a message as audio; only JSON strings get as far."""
    try:
        raw = msgspec.json.decode(b'{"a":%b}' % case.data, type=_Holder).a
        text = msgspec.json.decode(raw, type=str)
    except (ValueError, RecursionError):
        return False
    try:
        expected = base64.b64decode(text.encode(), validate=True)
    except (binascii.Error, ValueError):
        expected = None
    try:
        found = audio.decode_base64(raw)
    except BadAudio as error:
        is_good_refusal(error.message, "")
        assert expected is None or b"\\" in case.data or base64.b64encode(expected).decode() != text, "it was sound"
        return False
    assert expected is not None
    assert found == expected
    return True


class _Holder(msgspec.Struct):
    a: msgspec.Raw


# ---------------------------------------------------------------- all of them

TARGETS: Final = (
    messages("client", codec.decode_client),
    messages("server", codec.decode_server),
    messages("node", codec.decode_node),
    messages("to_node", codec.decode_to_node),
    through("node", codec.decode_node),
    Target("inbox", JsonMutator([peer.encode_peer(message) for message in INBOX]), inbox),
    Target("announcement", JsonMutator([peer.encode_peer(message) for message in ANNOUNCED]), announcement),
    Target(
        "chat_frame",
        JsonMutator(
            [compact(json.loads(text)) for text in [f for f, _ in FROM_CLIENTS] + [f for f, _ in FROM_OUR_CLIENT]]
        ),
        chat_frame,
    ),
    Target("server_frame", JsonMutator([compact(json.loads(text)) for text, _ in TO_CLIENTS]), server_frame),
    Target("login", JsonMutator([compact({"username": "ann", "password": "x"})], ""), body(LoginRequest)),
    Target("refresh", JsonMutator([compact({"refreshToken": "x"})], ""), body(RefreshRequest)),
    Target("verify", JsonMutator([compact({"accessToken": "x"})], ""), body(VerifyRequest)),
    Target(
        "switches", JsonMutator([compact({"enabled": True, "rollout_percent": 50, "fail_open": "off"})], ""), switches
    ),
    Target("binary_frame", BytesMutator(_frames()), binary_frame),
    Target("opus", BytesMutator(RUNS), opus),
    Target(
        "base64",
        BytesMutator([b'"%b"' % base64.b64encode(run) for run in RUNS] + [b'"aa\\/\\u003d"', b'"AA\\u003d="']),
        base64_text,
    ),
    *doors.TARGETS,
)
