"""Talk to a server from Python: a session in ten lines.

    from dragoman.client import Session

    async with Session("ws://127.0.0.1:5010/ws/session", src="en", tgt="es") as session:
        async for result in session.stream_file("speech.wav"):
            print(result.index, result.text_translated)

Live audio: `session.translate(chunks)` with an async iterator of chunks, or `send(chunk)` and `cut()` beside
`async for event in session`. Whole utterances: `utterance(audio)`. A lost connection is resumed without a word lost;
results arrive first come, first served, and a `Transcript` keeps them in the order they were spoken.
"""

from dragoman.client.errors import SessionError, SessionLost, SessionOver, Unreachable
from dragoman.client.events import (
    Detected,
    Ended,
    Event,
    Failed,
    Partial,
    Pressed,
    Progress,
    Refused,
    Renewed,
    Result,
    Resumed,
)
from dragoman.client.keeper import Timing
from dragoman.client.recording import Recording, UnsupportedAudio
from dragoman.client.session import Session
from dragoman.client.throttle import Throttle
from dragoman.client.transcript import Line, Transcript

__all__ = [
    "Detected",
    "Ended",
    "Event",
    "Failed",
    "Line",
    "Partial",
    "Pressed",
    "Progress",
    "Recording",
    "Refused",
    "Renewed",
    "Result",
    "Resumed",
    "Session",
    "SessionError",
    "SessionLost",
    "SessionOver",
    "Throttle",
    "Timing",
    "Transcript",
    "Unreachable",
    "UnsupportedAudio",
]
