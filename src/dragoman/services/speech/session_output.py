"""What the client of a session is sent: by the session's own socket, or by the one at which an utterance arrived.

Numbered messages of a session that can resume go through its outbox. The outbox refers to the attachment of the
socket and not to the session, so a session that ended is freed without the garbage collector.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from dragoman.protocol.codec import encode
from dragoman.protocol.codes import Close
from dragoman.protocol.extra import detected_language
from dragoman.protocol.fields import Message, Numbered
from dragoman.protocol.node import JobResult
from dragoman.protocol.peer import JobEnded
from dragoman.protocol.session import LanguageDetected
from dragoman.services.loops import Tasks
from dragoman.services.sockets import Attachment, Socket
from dragoman.services.speech.outbox import Outbox
from dragoman.store.sessions import ResumableSessions


class SessionOutput:
    def __init__(self, session_id: str, socket: Socket | None) -> None:
        self.outbox: Outbox | None = None  # of a session that can resume
        self._session_id, self._attachment = session_id, Attachment(socket)
        self._reply_to: dict[int, Socket] = {}  # index → the socket at which the utterance arrived
        self._language = ""  # the last that the client was sent as detected

    @property
    def socket(self) -> Socket | None:
        return self._attachment.socket

    def attach(self, socket: Socket | None) -> None:
        self._attachment.attach(socket)

    def make_resumable(
        self,
        store: ResumableSessions,
        tasks: Tasks,
        *,
        epoch: int,
        seq: int,
        version: int,
        on_fenced: Callable[[str, Sequence[JobEnded]], None],
    ) -> None:
        self.outbox = Outbox(
            store,
            self._session_id,
            epoch,
            seq,
            tasks,
            version=version,
            deliver=self._attachment.send,
            on_fenced=partial(on_fenced, self._session_id),
            on_full=partial(self._attachment.close, Close.OVERLOADED, "too much is waiting for this client"),
        )

    # -- sockets of single utterances ------------------------------------------------------------

    def reply_to(self, index: int, socket: Socket | None) -> None:
        """Messages about `index` go to `socket`; None is the session's own, whichever that is when they are sent."""
        if socket is not None:
            self._reply_to[index] = socket

    def forget(self, index: int) -> None:
        self._reply_to.pop(index, None)

    def _socket_of(self, index: int) -> Socket | None:
        socket = self._reply_to.get(index) if self._reply_to else None
        return None if socket is None or socket.closed else socket

    # -- sending ---------------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        """To the session's own socket."""
        if self.outbox is not None and isinstance(message, Numbered):
            self.outbox.post([message])
        elif self._attachment.socket is not None:
            self._attachment.socket.send(encode(message))

    def reply(self, index: int, message: Message) -> None:
        """About one utterance."""
        socket = self._socket_of(index)
        if socket is None:
            self.send(message)
        else:
            socket.send(encode(message))

    def language(self, index: int, result: JobResult) -> None:
        """The spoken language, when a node has recognised it for the first time or it has changed."""
        found = detected_language(result.extra)
        if found is not None and found[0] != self._language:
            self._language = found[0]
            self.reply(index, LanguageDetected(self._session_id, *found))

    def last(
        self,
        index: int,
        messages: Sequence[Numbered],
        state: Callable[[], Mapping[str, Any]],
        carries: Callable[[], JobEnded | None],
    ) -> None:
        """The last messages about an utterance, with the state of the session after them: in one step, so that an
        instance that resumes the session has all of it to send, or nothing. `carries`: in case another owner sends."""
        socket = self._socket_of(index)
        if socket is not None:
            for one in messages:
                socket.send(encode(one))
        elif self.outbox is not None:
            self.outbox.post(messages, state(), carries())
        else:
            for one in messages:
                self.send(one)
