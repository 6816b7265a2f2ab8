"""Messages about rooms, on /ws/session.

A client sends them for a session of its own; without `session_id` they concern the session that its connection opened
last. None of them is in the outbox of a session: what a room has said is in the room's log, and `room_seq` is a number
of that log.
"""

from typing import Annotated

from msgspec import Meta

from dragoman.protocol.fields import (
    ABSENT,
    Base64,
    Count,
    Id,
    Index,
    JsonAny,
    Lang,
    Message,
    Name,
    OptionalLang,
    Part,
    Sentence,
    UnixMs,
    Word,
)

ClientMessageId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}\Z")]
Terms = Annotated[list[Word], Meta(max_length=100)]

# ---------------------------------------------------------------- client → server


class RoomRequest(Message, kw_only=True):
    """`session_id`: of the sender; without it, the session that the connection opened or resumed last. A request with a
    `request_id` is answered by room_ok or room_error with the same id."""

    session_id: Id | None = None
    request_id: ClientMessageId | None = None


class RoomSettings(Part):
    """What a host decides. A field that is left out stays as it is."""

    locked: bool | None = None
    guests: bool | None = None
    persistent: bool | None = None
    vocabulary: Terms | None = None


class RoomCreate(RoomRequest, tag="room_create"):
    client_ts: UnixMs | None = None
    display_name: Name | None = None
    preferred_lang: OptionalLang = None
    speaks: OptionalLang = None
    hears: OptionalLang = None
    voice: bool | None = None
    settings: RoomSettings | None = None


class RoomJoin(RoomRequest, tag="room_join"):
    """By `room_id` or `room_code`. A client that sends no field from `speaks` on is one that knows translation_result
    only. `last_room_seq`: the number that it has received last, 0 for everything. `listener`: it only reads."""

    room_id: Id | None = None
    room_code: Id | None = None
    display_name: Name | None = None
    preferred_lang: OptionalLang = None
    speaks: OptionalLang = None
    hears: OptionalLang = None
    voice: bool | None = None
    originals: bool | None = None
    listener: bool | None = None
    log_epoch: Id | None = None
    last_room_seq: Count | None = None


class RoomUpdate(RoomRequest, tag="room_update"):
    display_name: Name | None = None
    speaks: OptionalLang = None
    hears: OptionalLang = None
    voice: bool | None = None
    originals: bool | None = None
    muted: bool | None = None


class RoomText(RoomRequest, tag="room_text"):
    """A sentence that was typed. The same `client_msg_id` again is the same caption."""

    text: Sentence
    client_msg_id: ClientMessageId
    lang: OptionalLang = None


class RoomTranslate(RoomRequest, tag="room_translate"):
    """Asks for a caption in a language: again if it is untranslated, or anew."""

    caption_id: Id
    lang: Lang


class RoomLeave(RoomRequest, tag="room_leave"):
    room_id: Id | None = None
    room_code: Id | None = None


class RoomRemove(RoomRequest, tag="room_remove"):
    """By the host: end the membership of a session, and keep its principal out."""

    target_session_id: Id


class RoomTransfer(RoomRequest, tag="room_transfer"):
    """By the host: make another member the host."""

    target_session_id: Id


class RoomLock(RoomRequest, tag="room_lock"):
    locked: bool


class RoomPause(RoomRequest, tag="room_pause"):
    """While a room is paused, nothing is said in it."""

    paused: bool


class RoomChangeSettings(RoomRequest, tag="room_settings"):
    settings: RoomSettings


class RoomClose(RoomRequest, tag="room_close"):
    """By the host: the room is over for everybody."""


class RoomRawVoicePreference(Message, tag="room_raw_voice_preference"):
    room_code: Id
    target_session_id: Id
    receive_raw_voice: bool


# The webrtc messages go both ways; the server puts the sender's session id into `to`.


class WebrtcOffer(Message, tag="webrtc_offer"):
    room_code: Id
    to: Id
    sdp: JsonAny


class WebrtcAnswer(Message, tag="webrtc_answer"):
    room_code: Id
    to: Id
    sdp: JsonAny


class WebrtcIce(Message, tag="webrtc_ice"):
    room_code: Id
    to: Id
    candidate: JsonAny


WebrtcMessage = WebrtcOffer | WebrtcAnswer | WebrtcIce
RoomCommand = (
    RoomCreate
    | RoomJoin
    | RoomUpdate
    | RoomText
    | RoomTranslate
    | RoomLeave
    | RoomRemove
    | RoomTransfer
    | RoomLock
    | RoomPause
    | RoomChangeSettings
    | RoomClose
    | RoomRawVoicePreference
    | WebrtcOffer
    | WebrtcAnswer
    | WebrtcIce
)

# ---------------------------------------------------------------- server → client


class RoomCreateAck(Message, tag="room_create_ack"):
    """Also sent to joiners: the original web client shows members only after it."""

    room_code: Id
    room_id: Id
    link: str | None = None


class RoomJoined(Message, tag="room_joined"):
    """`complete`: false if the log no longer has everything after `last_room_seq`. `unserved`: the language that the
    member hears, if no node translates into it now; its captions arrive as originals."""

    room_id: Id
    room_code: Id
    you: Id
    role: Word
    log_epoch: Id
    room_seq: Count
    complete: bool
    unserved: Lang | None = None


class RoomMember(Part):
    participant_id: Id
    session_id: Id
    raw_voice_preferences: dict[str, bool]
    joined_at: str
    display_name: str | None = None
    preferred_lang: str | None = None
    speaks: str | None = None
    hears: str | None = None
    voice: bool | None = None
    role: Word | None = None
    muted: bool | None = None


class RoomMembers(Message, tag="room_members"):
    """Above 200 members: the receiver, the host and the speakers only; `count` is the number of all."""

    room_code: Id
    members: list[RoomMember]
    count: Count | None = None
    locked: bool | None = None
    paused: bool | None = None


class Speaker(Part):
    session_id: Id
    name: str


class Caption(Message, tag="caption"):
    """An original: what somebody said or typed. `source` is speech or text."""

    room_id: Id
    room_seq: Count
    caption_id: Id
    speaker: Speaker
    lang: str
    text: str
    source: Word
    started_at_ms: UnixMs
    utterance_index: Index | None = None
    duration_ms: Count | None = None
    backfilled: bool | None = None


class CaptionTranslation(Message, tag="caption_translation"):
    """With `untranslated`, the reason, `text` is the original."""

    room_id: Id
    room_seq: Count
    caption_id: Id
    lang: str
    text: str
    untranslated: Word | None = None
    tts_audio: Base64 = ABSENT
    tts_format: Word | None = None


class CaptionLost(Message, tag="caption_lost"):
    room_id: Id
    room_seq: Count
    caption_id: Id
    speaker: Speaker
    reason: str


class CaptionPartial(Message, tag="caption_partial"):
    """What has been recognised so far of an utterance. Not in the log and not numbered: the next partial and the
    caption or caption_lost with the same id replace it. With an empty text nothing follows."""

    room_id: Id
    caption_id: Id
    speaker: Speaker
    utterance_index: Index
    lang: str
    text: str


class RoomOk(Message, tag="room_ok"):
    """A request was carried out."""

    request_id: Id


class RoomError(Message, tag="room_error"):
    code: str
    message: str | None = None
    request_id: Id | None = None


class RoomExpired(Message, tag="room_expired"):
    """The room is over, or the receiver was removed from it. `reason` is a RoomEnd, `message` the same for people."""

    room_code: Id
    message: str
    room_id: Id | None = None
    reason: Word | None = None


RoomMessage = (
    RoomCreateAck
    | RoomOk
    | RoomJoined
    | RoomMembers
    | Caption
    | CaptionTranslation
    | CaptionLost
    | CaptionPartial
    | RoomError
    | RoomExpired
)
