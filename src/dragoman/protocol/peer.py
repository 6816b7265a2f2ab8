"""Messages between instances, carried by inboxes and by announcements.

A frame of a client or node is carried as the bytes that were received, so audio is never parsed on the way.
The tag is the type of the inbox entry; the version is its `v`.
"""

from collections.abc import Mapping

import msgspec

from dragoman.protocol.codec import sentence_of
from dragoman.protocol.codes import ErrorCode, ProtocolError


class Peer(msgspec.Struct, tag_field="type", omit_defaults=True, frozen=True):
    """One message from instance to instance."""


# -- through inboxes: must arrive ----------------------------------------------------------------


class AssignJob(Peer, tag="assign", frozen=True):
    """To a node's owner: write this job_assign to its socket."""

    node_id: str
    epoch: int
    job_id: str
    attempt: int
    driver: str
    frame: msgspec.Raw


class CancelJob(Peer, tag="cancel", frozen=True):
    """To a node's owner: write this job_cancel to its socket."""

    node_id: str
    job_id: str
    frame: msgspec.Raw


class FromNode(Peer, tag="from_node", frozen=True):
    """To a job's driver: frames of its node, in order (job_ack, job_started, asr_partial, job_result)."""

    node_id: str
    epoch: int
    job_id: str
    frames: list[msgspec.Raw]


class Bounced(Peer, tag="bounced", frozen=True):
    """To a job's driver: the assignment reached an instance that does not own the node."""

    node_id: str
    epoch: int
    job_id: str
    attempt: int


class ToPreview(Peer, tag="to_preview", frozen=True):
    """To a node's owner: write these frames (preview_open, preview_audio, preview_close) to its socket. `opens`: they
    begin the preview, whose words go to the instance `listener`. `closes`: they end it. Never repeated."""

    node_id: str
    epoch: int
    preview_id: str
    listener: str
    frames: list[msgspec.Raw]
    opens: bool = False
    closes: bool = False


class FromPreview(Peer, tag="from_preview", frozen=True):
    """To the instance of a speaker: what its node recognised so far; or, with `refused`, why it does not any more."""

    preview_id: str
    number: int
    text: str = ""
    refused: str = ""


class Evict(Peer, tag="evict", frozen=True):
    """To a node's former owner: the node has connected elsewhere; close connections older than `epoch`."""

    node_id: str
    epoch: int


class SessionMoved(Peer, tag="session_moved", frozen=True):
    """To a session's former owner: it was resumed elsewhere, under `epoch`."""

    session_id: str
    epoch: int


class JobMoved(Peer, tag="job_moved", frozen=True):
    """To a session's owner, from the driver of one of its jobs: the job went to another node."""

    session_id: str
    index: int


class RoomUtterance(msgspec.Struct, array_like=True, frozen=True):
    """An utterance that was spoken in a room: where its caption goes. Also in the record of its job."""

    room_id: str
    epoch: int  # of the session when it was cut; 0: the session cannot resume
    name: str  # of the speaker
    lang: str  # spoken; `auto`: the node detects it
    target: str  # into which the job translates, too; '' = it only recognises
    started_ms: int
    duration_ms: int | None


class JobEnded(Peer, tag="job_ended", frozen=True):
    """To a session's owner, or parked until it has one: how one of its jobs ended, with the node's answer."""

    session_id: str
    index: int
    job_id: str
    trace_id: str
    outcome: str
    code: str = ""
    message: str = ""
    node_id: str = ""
    frame: msgspec.Raw = msgspec.Raw(b"null")
    room: RoomUtterance | None = None


class ForwardedUtterance(Peer, tag="forwarded_utterance", frozen=True):
    """To a session's owner: an utterance received on a socket of another instance, where its result is sent."""

    session_id: str
    instance: str
    connection: int
    subject: str
    tenant: str
    frame: msgspec.Raw


class ToSocket(Peer, tag="to_socket", frozen=True):
    """To the instance that has the socket: write this frame."""

    connection: int
    session_id: str
    frame: msgspec.Raw


class UserPush(msgspec.Struct, array_like=True, frozen=True):
    """A message for one user."""

    user: int
    id: int
    sender: int
    frame: msgspec.Raw


class ChatPush(Peer, tag="chat_push", frozen=True):
    """To the instance of these receivers: write these messages. Missed ones are resent from the archive."""

    pushes: list[UserPush]


class EarlyMessage(msgspec.Struct, array_like=True, frozen=True):
    """A message that is not saved yet, for one connection of its receiver.

    `after`: the message of the same sender to this receiver without which it must not be written; 0: there is none.
    """

    user: int
    connection: int
    id: int
    sender: int
    shard: int
    after: int
    frame: msgspec.Raw


class EarlyPushes(Peer, tag="early_pushes", frozen=True):
    """To the instance of these receivers, announced or in its inbox. What is lost is pushed when it is saved."""

    messages: list[EarlyMessage]


class UserNotice(msgspec.Struct, array_like=True, frozen=True):
    """A frame for one user about a message it sent. `ended`: the serverMsgId, if the message is saved or never will be.

    `keep`: a user that is not connected gets it with its next AUTH. `saved`: the clientMsgId, if the frame is an ACK
    saved.
    """

    user: int
    ended: int
    frame: msgspec.Raw
    keep: bool = False
    saved: str = ""


class ChatNotices(Peer, tag="chat_notices", frozen=True):
    """To the instance of these senders: what became of their messages."""

    notices: list[UserNotice]


class ChatKick(Peer, tag="chat_kick", frozen=True):
    """To the former owner of a user: it has a newer connection; end that one."""

    user: int
    connection: int


class ChatOwnerCheck(Peer, tag="chat_owner_check", frozen=True):
    """To the instance that the owner key of a user names: is that connection open? The connection of the user that
    asks, `owner`, is ended if it is."""

    user: int
    connection: int
    owner: str


class ChatResend(Peer, tag="chat_resend", frozen=True):
    """To the instance of these receivers: messages were not pushed; resend what the archive has for them."""

    users: list[int]


class DrainInstance(Peer, tag="drain", frozen=True):
    """To an instance, from an operator: accept nothing new and finish what runs."""


class DrainNode(Peer, tag="drain_node", frozen=True):
    """To a node's owner, from an operator: assign no new job to the node, or assign jobs again."""

    node_id: str
    draining: bool


class EndSession(Peer, tag="end_session", frozen=True):
    """To a session's owner, from an operator: end it."""

    session_id: str


class RoomEntry(msgspec.Struct, array_like=True, frozen=True):
    """An entry of a room's log, as `domain.rooms.Entry`."""

    seq: int
    kind: str
    caption: str
    lang: str
    text: str
    about: str = ""
    at_ms: int = 0


class RoomVoice(msgspec.Struct, array_like=True, frozen=True):
    """The sound of a translation, for members that want it. It is not in the log."""

    audio: msgspec.Raw  # a base64 JSON string
    format: str


class RoomEntries(Peer, tag="room_entries", frozen=True):
    """To an instance with members of the room: deliver these. What is missed is read from the log."""

    room_id: str
    entries: list[RoomEntry]
    appended_at: float = 0.0  # unix time, by the clock of the sender
    voice: RoomVoice | None = None  # of the last entry


class RoomPartial(Peer, tag="room_partial", frozen=True):
    """To an instance with members that hear the language: partial text of an utterance. Dropped under pressure."""

    room_id: str
    session_id: str  # of the speaker
    name: str
    index: int
    lang: str
    text: str


class RoomChanged(Peer, tag="room_changed", frozen=True):
    """To an instance with members of the room: its members or settings changed; the room has this version now."""

    room_id: str
    version: int


class RoomMemberRemoved(Peer, tag="room_member_removed", frozen=True):
    """To the instance of a member: the host has removed it."""

    room_id: str
    session_id: str


class RoomEnded(Peer, tag="room_ended", frozen=True):
    """To an instance with members of the room: the room is closed."""

    room_id: str
    reason: str


class RoomSignal(Peer, tag="room_signal", frozen=True):
    """To the instance of a member: write this frame of another member (webrtc_*) to its socket."""

    room_id: str
    session_id: str
    frame: msgspec.Raw


InboxMessage = (
    AssignJob
    | CancelJob
    | FromNode
    | Bounced
    | ToPreview
    | FromPreview
    | Evict
    | SessionMoved
    | JobMoved
    | JobEnded
    | ForwardedUtterance
    | ToSocket
    | ChatPush
    | ChatNotices
    | ChatKick
    | ChatOwnerCheck
    | ChatResend
    | EarlyPushes
    | DrainInstance
    | DrainNode
    | EndSession
    | RoomEntries
    | RoomPartial
    | RoomChanged
    | RoomMemberRemoved
    | RoomEnded
    | RoomSignal
)

# -- announced: may be missed --------------------------------------------------------------------


class NodeSeen(Peer, tag="node_seen", frozen=True):
    """A node connected or changed; with its snapshot, so that it is usable at once."""

    snapshot: msgspec.Raw


class NodeLost(Peer, tag="node_lost", frozen=True):
    """A node's connection of `epoch` is over: each driver fails over its own jobs there."""

    node_id: str
    epoch: int


class SlotFreed(Peer, tag="slot_freed", frozen=True):
    """A full node has a free slot again: waiting jobs may be placed."""

    node_id: str


class CoolingDown(Peer, tag="cooling_down", frozen=True):
    """A node cannot serve a service for `for_ms`; service '*' is the whole node.

    `failing`: it failed several jobs in a row; with 0 ms: it works again.
    """

    node_id: str
    service: str
    for_ms: int
    failing: bool = False


class SwitchesChanged(Peer, tag="switches_changed", frozen=True):
    """The two-phase switches were changed: read them."""


class RevocationChanged(Peer, tag="revocation_changed", frozen=True):
    """A token or principal was revoked, or allowed again: the list has this version now."""

    version: int
    name: str
    revoked: bool
    at_ms: int = 0
    by: str = ""
    until_ms: int = 0


class ShardFreed(Peer, tag="shard_freed", frozen=True):
    """A chat shard was released: the instance it is assigned to may take it now."""

    shard: int


class PushedEarly(Peer, tag="pushed_early", frozen=True):
    """To the instance that saves these messages: each was pushed to this connection (`instance|connection`) already."""

    messages: list[tuple[int, str]]


Announcement = (
    NodeSeen
    | NodeLost
    | SlotFreed
    | CoolingDown
    | SwitchesChanged
    | ShardFreed
    | RevocationChanged
    | EarlyPushes
    | PushedEarly
)

_encode = msgspec.json.Encoder().encode
_inbox: msgspec.json.Decoder[InboxMessage] = msgspec.json.Decoder(InboxMessage)
_announced: msgspec.json.Decoder[Announcement] = msgspec.json.Decoder(Announcement)


def encode_peer(message: InboxMessage | Announcement) -> bytes:
    return _encode(message)


def room_of(record: Mapping[str, str]) -> RoomUtterance | None:
    """Of the record of a job, if its utterance was spoken in a room. One that cannot be read counts as none."""
    try:
        return msgspec.json.decode(record["room"], type=RoomUtterance) if "room" in record else None
    except msgspec.DecodeError:
        return None


def kind_of(message: InboxMessage | Announcement) -> str:
    return str(message.__struct_config__.tag)


def decode_inbox(data: bytes) -> InboxMessage:
    try:
        return _inbox.decode(data)
    except RecursionError:
        sentence = "The message is nested too deeply."
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        sentence = sentence_of(error)
    raise ProtocolError(ErrorCode.INVALID_MESSAGE, f"The inbox entry cannot be read: {sentence}")


def decode_announcement(data: bytes) -> Announcement | None:
    """None if it cannot be read: an announcement is a hint, and a later release may have new kinds."""
    try:
        return _announced.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
