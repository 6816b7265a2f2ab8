"""The SDK for speech clients: send audio, receive translations.

    from dragoman.client import Session

    async with Session("ws://127.0.0.1:5010/ws/session", src="en", tgt="es") as session:
        async for result in session.stream_file("speech.wav"):
            print(result.index, result.text_translated)

See `Session` for live audio and whole utterances. A lost connection is resumed, on another instance if need be, without
loss. Results arrive in the order they are ready; a `Transcript` shows them in the order they were spoken. Chat is in
`dragoman.client.chat`.
"""

from dragoman.client.events import (
    Detected,
    Ended,
    Event,
    Failed,
    InRoom,
    Line,
    Partial,
    Progress,
    Rejected,
    Renewed,
    Result,
    Resumed,
    SessionClosed,
    SessionError,
    SessionLost,
    Throttled,
    Transcript,
    Unreachable,
)
from dragoman.client.pacing import Throttle
from dragoman.client.recording import Recording, UnsupportedAudio
from dragoman.client.room import Room, RoomCaption, RoomRefused
from dragoman.client.session import Session, SessionOptions
from dragoman.client.session_connection import Timing
from dragoman.client.session_state import UtteranceOptions

__all__ = [
    "Detected",
    "Ended",
    "Event",
    "Failed",
    "InRoom",
    "Line",
    "Partial",
    "Progress",
    "Recording",
    "Rejected",
    "Renewed",
    "Result",
    "Resumed",
    "Room",
    "RoomCaption",
    "RoomRefused",
    "Session",
    "SessionClosed",
    "SessionError",
    "SessionLost",
    "SessionOptions",
    "Throttle",
    "Throttled",
    "Timing",
    "Transcript",
    "Unreachable",
    "UnsupportedAudio",
    "UtteranceOptions",
]
