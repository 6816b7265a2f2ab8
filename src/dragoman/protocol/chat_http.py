"""The HTTP interface of chat: codes, the envelope of every answer, requests and responses.

Every answer is `{"ok","code","message","data","ts"}`. Ids are strings, as in frames: they go beyond what a number of
JavaScript can hold. On input either is accepted.
"""

from enum import IntEnum
from typing import Any

import msgspec

from dragoman.protocol.chat import Translation


class Code(IntEnum):
    OK = 0
    BAD_REQUEST = 40000
    UNAUTHORIZED = 40100
    FORBIDDEN = 40300
    NOT_FOUND = 40400
    TOO_MANY_REQUESTS = 42900
    FAILED = 50000


class Envelope(msgspec.Struct, gc=False):
    """`data` is null where there is none."""

    ok: bool
    code: int
    message: str
    data: Any
    ts: int


class Data(msgspec.Struct, rename="camel", omit_defaults=True):
    """What an answer holds; what is not known is left out."""


# ---------------------------------------------------------------- asked


class LoginRequest(Data):
    username: str | None = None
    password: str | None = None
    invite: str | None = None  # a code of an operator, for a new account where `chat.registration` is invite


class RefreshRequest(Data):
    refresh_token: str | None = None


class VerifyRequest(Data):
    access_token: str | None = None


# ---------------------------------------------------------------- answered


class LoginData(Data):
    user_id: str
    access_token: str
    refresh_token: str
    access_token_expires_in_seconds: int
    refresh_token_expires_in_seconds: int


class RefreshData(Data):
    user_id: str
    access_token: str
    access_token_expires_in_seconds: int


class VerifyData(Data):
    """`reason` is a word of ERROR or AUTH_FAIL, where the token is not good."""

    ok: bool
    user_id: str | None = None
    reason: str | None = None


class MessageData(Data):
    id: str
    chat_type: str
    single_chat_id: str
    from_user_id: str
    to_user_id: str
    msg_type: str
    status: str
    msg_seq: int
    client_msg_id: str
    server_msg_id: str
    created_at: int
    updated_at: int
    content: str
    lang: str | None = None  # that its sender named
    translation: Translation | None = None


class ConversationData(Data):
    single_chat_id: str
    peer_user_id: str
    updated_at: int
    unread_count: int
    my_last_read_msg_seq: int
    peer_last_read_msg_seq: int
    last_message: MessageData | None = None


class MemberStateData(Data):
    single_chat_id: str
    peer_user_id: str
    my_last_read_msg_seq: int
    peer_last_read_msg_seq: int
