"""The fixed values of the protocol: error codes, close codes, event names.

Fields with these values are plain `str` in the messages, because an unknown value of a peer is ignored and never
refused. The enums are for values that the server sends or compares with.
"""

from enum import IntEnum, StrEnum


class ErrorCode(StrEnum):
    INVALID_MESSAGE = "INVALID_MESSAGE"
    INTERNAL_ERROR = "INTERNAL_ERROR"
    INVALID_SESSION = "INVALID_SESSION"
    SESSION_CLOSED = "SESSION_CLOSED"
    NODE_UNAVAILABLE = "NODE_UNAVAILABLE"
    NODE_OVERLOADED = "NODE_OVERLOADED"
    MODEL_NOT_AVAILABLE = "MODEL_NOT_AVAILABLE"
    MODEL_LOAD_FAILED = "MODEL_LOAD_FAILED"
    UNSUPPORTED_FEATURE = "UNSUPPORTED_FEATURE"
    INVALID_PAIRING_CODE = "INVALID_PAIRING_CODE"
    NO_AVAILABLE_NODE = "NO_AVAILABLE_NODE"
    WS_DISCONNECTED = "WS_DISCONNECTED"
    NMT_TIMEOUT = "NMT_TIMEOUT"
    TTS_TIMEOUT = "TTS_TIMEOUT"
    JOB_TIMEOUT = "JOB_TIMEOUT"
    MODEL_VERIFY_FAILED = "MODEL_VERIFY_FAILED"
    MODEL_CORRUPTED = "MODEL_CORRUPTED"
    NO_GPU_AVAILABLE = "NO_GPU_AVAILABLE"
    NODE_ID_CONFLICT = "NODE_ID_CONFLICT"
    INVALID_CAPABILITY_SCHEMA = "INVALID_CAPABILITY_SCHEMA"
    SCHEDULER_DEPENDENCY_DOWN = "SCHEDULER_DEPENDENCY_DOWN"
    PROCESSING_ERROR = "PROCESSING_ERROR"
    INSTANCE_LOST = "INSTANCE_LOST"
    LIMIT_EXCEEDED = "LIMIT_EXCEEDED"


# Codes of a failed job_result that every node would return: such a job is not tried again.
FINAL_CODES = frozenset({ErrorCode.INVALID_MESSAGE, ErrorCode.INVALID_SESSION, ErrorCode.SESSION_CLOSED})


class RoomErrorCode(StrEnum):
    ROOM_NOT_FOUND = "ROOM_NOT_FOUND"
    ROOM_FULL = "ROOM_FULL"
    INVALID_ROOM_CODE = "INVALID_ROOM_CODE"
    ALREADY_IN_ROOM = "ALREADY_IN_ROOM"
    INTERNAL_ERROR = "INTERNAL_ERROR"
    NOT_IN_ROOM = "NOT_IN_ROOM"
    NOT_HOST = "NOT_HOST"
    NOT_ALLOWED = "NOT_ALLOWED"  # a listener, or a member that is muted, has no voice
    ROOM_LOCKED = "ROOM_LOCKED"
    ROOM_PAUSED = "ROOM_PAUSED"
    REMOVED = "REMOVED"
    TOO_MANY_LANGUAGES = "TOO_MANY_LANGUAGES"
    CAPTION_NOT_FOUND = "CAPTION_NOT_FOUND"
    LIMIT_EXCEEDED = "LIMIT_EXCEEDED"
    SCHEDULER_DEPENDENCY_DOWN = "SCHEDULER_DEPENDENCY_DOWN"


class RoomEnd(StrEnum):
    """Why a room is over for a member: `reason` of room_expired."""

    CLOSED = "closed"  # by the host
    REMOVED = "removed"  # the host removed this member
    OPERATOR = "operator"
    EMPTY = "empty"
    IDLE = "idle"
    GONE = "gone"


class EmptyReason(StrEnum):
    """Values of `extra.reason` in a job_result without speech: there will be no text."""

    ASR_EMPTY = "ASR_EMPTY"
    NO_TEXT_ASSIGNED = "NO_TEXT_ASSIGNED"


class UiEventName(StrEnum):
    INPUT_STARTED = "INPUT_STARTED"
    INPUT_ENDED = "INPUT_ENDED"
    ASR_PARTIAL = "ASR_PARTIAL"
    ASR_FINAL = "ASR_FINAL"
    DISPATCHED = "DISPATCHED"
    NODE_ACCEPTED = "NODE_ACCEPTED"
    NMT_DONE = "NMT_DONE"
    TTS_PLAY_STARTED = "TTS_PLAY_STARTED"
    TTS_PLAY_ENDED = "TTS_PLAY_ENDED"
    ERROR = "ERROR"


class BackpressureAction(StrEnum):
    BUSY = "BUSY"
    PAUSE = "PAUSE"
    SLOW_DOWN = "SLOW_DOWN"


class Platform(StrEnum):
    WEB = "web"
    IOS = "ios"
    ANDROID = "android"
    API_GATEWAY = "api-gateway"


class Mode(StrEnum):
    ONE_WAY = "one_way"
    TWO_WAY_AUTO = "two_way_auto"


class CancelReason(StrEnum):
    """Why a job was cancelled while its session goes on: the code of the job, and `reason` of its job_cancel."""

    SKIPPED = "SKIPPED"  # its utterance was skipped by the release window


class NodeFeature(StrEnum):
    """Values of `advanced_features`; only `slots:N` and `previews:N` have an argument."""

    JOB_ACK = "job_ack"
    RESUME = "resume"
    REATTEMPT = "reattempt"
    DRAIN = "drain"
    TEXT_JOBS = "text_jobs"  # it takes jobs with `text` instead of audio, for the pairs in `text_pairs`
    PREVIEW = "preview"  # it recognises utterances while they are spoken, as many at a time as `previews:N` says


class PreviewEnd(StrEnum):
    """`reason` of preview_close."""

    CUT = "cut"  # a job with all the audio follows
    SILENCE = "silence"  # nothing was said, no job follows
    CANCELLED = "cancelled"  # nothing more is needed


class PreviewRefusal(StrEnum):
    """Why an utterance is not previewed, or not any more: a node may name others in preview_refused."""

    NO_NODE = "no_node"  # no node that serves the languages can preview one more
    FULL = "full"  # the node previews as many as it can
    UNKNOWN = "unknown"  # the node's instance does not have the preview: it was silent for too long
    NODE = "node"  # the node refused, or gave up
    NODE_LOST = "node_lost"
    INBOX_FULL = "inbox_full"  # of the node's instance
    LINK = "link"  # Redis is slow, or unavailable


class TextKind(StrEnum):
    """What asked for a text job. Text of chat leaves nodes that also serve speech one free slot."""

    ROOM = "room"
    CHAT = "chat"


class Close(IntEnum):
    """Close codes of the server. 4000-4499: the client should reconnect. 4500-4999: it should not."""

    SHUTDOWN = 4000
    SLOW_CONSUMER = 4001
    IDLE = 4002
    OVERLOADED = 4003
    LEASE_LOST = 4004
    NOT_REGISTERED = 4005
    RATE = 4006  # too many frames a second, or too much work
    TIMEOUT = 4007  # no answer to a ping

    BAD_MESSAGE = 4500
    UNAUTHORIZED = 4501
    TOO_BIG = 4502
    REPLACED = 4503
    NODE_ID_CONFLICT = 4504
    ENDED = 4505  # by an operator


def may_come_back(close_code: int) -> bool:
    """Whether a peer closed with this code should reconnect; with codes of others it should."""
    return not 4500 <= close_code <= 4999


class ProtocolError(Exception):
    """The answer to the peer: an error code and a sentence for a person."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class BadAudio(ProtocolError):
    """Audio that does not match its format."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_MESSAGE, message)
