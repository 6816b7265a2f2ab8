"""One authenticated chat connection: who it is, and what it is sent (`inbound`). What it sends is in `outbound`, which
knows its user; the user does not know it, so that both are gone when the connection is."""

from time import monotonic

from dragoman.domain.chat.open_requests import Notice, OpenRequests
from dragoman.domain.chat.unsaved import Unsaved
from dragoman.domain.limits.bytes_a_day import BytesADay
from dragoman.protocol import chat as wire
from dragoman.protocol.codes import Close
from dragoman.services.chat.clock import now_ms
from dragoman.services.chat.inbound import ChatSocket, Inbound
from dragoman.services.chat.mailroom import Mail


class ChatUser:
    def __init__(
        self, id: int, socket: ChatSocket, owner: str, mail: Mail, *, expires_s: float, session_version: int
    ) -> None:
        self.id, self.socket, self.owner = id, socket, owner
        self.inbound = Inbound(id, socket, mail)
        self.since_moved: set[int] | None = None  # whom it wrote to; None: it did not move, or we know all of it
        self.expires_s = expires_s  # wall clock, as the token says it
        self.session_version = session_version
        self.verified = False  # session version and owner: not while Redis is away
        self.frames_when_pinged: int | None = None  # to see whether it is still there, before it is verified late
        self.news_due = False  # whether what became of its messages while it was away could not be brought to an end
        self.words_told = set[bytes]()  # of those: Redis may have them yet
        self.looked_at = monotonic()  # at its session version
        self.unsaved = Unsaved()
        self.bytes_a_day = BytesADay(0)
        self.requests = OpenRequests()
        self._ts = 0  # of the latest frame about a message it sent
        self.unread_s = 0.0  # how long it was not read, since somebody asked
        self._unread_since = 0.0
        self.resend_pause_s = 0.0
        self.confirmed_at = 0.0  # when it last said that it has got something

    def say(self, frame: bytes) -> None:
        self.inbound.say(frame)

    def moved(self) -> None:
        """It came from an instance that did not see it leave, and may have saved messages that it could not push."""
        self.since_moved = set()

    def told(self, frame: bytes, ended: int, saved: str = "") -> None:
        """What became of a message it sent; `ended` is its serverMsgId, if it is not on its way any more.

        `saved` is the clientMsgId, if that is what the frame says.
        """
        if ended:
            self.unsaved.ended(ended)
        notice = self.requests.notified(saved, ended, frame) if saved else Notice.WRITE
        if notice in (Notice.WRITE, Notice.WRITE_DUPLICATE):
            self.say_stamped(frame, duplicate=notice is Notice.WRITE_DUPLICATE)

    def stamp(self) -> int:
        """The `ts` of a frame about a message it sent: never below that of an earlier one, whatever the clock does."""
        self._ts = max(self._ts, now_ms())
        return self._ts

    def say_stamped(self, frame: bytes, *, duplicate: bool = False) -> None:
        """A frame that another part made earlier, or another instance by its own clock: its `ts` is that of writing."""
        self.say(wire.stamped(frame, self.stamp(), duplicate=duplicate))

    def error(self, reason: wire.Reason, client_msg_id: str | None = None, server_msg_id: int | None = None) -> None:
        self.say(wire.error(reason, self.stamp(), client_msg_id, server_msg_id))

    def end(self, reason: wire.Reason, code: Close) -> None:
        """Tell why, and close."""
        self.error(reason)
        self.socket.close(code, reason)

    def stop_reading(self) -> None:
        self._unread_since = monotonic()
        self.socket.pause_reading()

    def read_on(self) -> None:
        self.unread_s += monotonic() - self._unread_since
        self.socket.resume_reading()

    def check_pulse(self, ping_idle_s: float) -> None:
        """Who has heard nothing for long is asked for a word; the gateway closes who has not said one for longer."""
        if monotonic() - self.inbound.said_at >= ping_idle_s:
            self.say(wire.ping(now_ms()))
