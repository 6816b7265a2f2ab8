"""What the client of a session is sent: by the session's own socket, or by the one at which an utterance arrived.

Numbered messages of a session that can resume go through its outbox. The outbox refers to the attachment of the
socket and not to the session, so a session that ended is freed without the garbage collector.
"""

from collections.abc import Callable, Mapping
from typing import Any

from dragoman.domain.job_signals import End
from dragoman.domain.release import Settled
from dragoman.protocol.codec import encode
from dragoman.protocol.codes import UiEventName
from dragoman.protocol.extra import detected_language
from dragoman.protocol.fields import Message, Numbered
from dragoman.protocol.node import JobResult
from dragoman.protocol.session import AsrPartial, LanguageDetected, SessionInit, UtteranceEnd
from dragoman.services.sockets import Attachment, Socket
from dragoman.services.speech import messages
from dragoman.services.speech.job_request import JobRequest
from dragoman.services.speech.messages import About
from dragoman.services.speech.outbox import Outbox
from dragoman.services.speech.room_speech import RoomSpeech
from dragoman.services.speech.session_input import SessionInput

State = Callable[[], Mapping[str, Any]]  # the state of the session, as another instance needs it


class SessionOutput:
    def __init__(
        self,
        session_id: str,
        init: SessionInit,
        trace_id: str,
        source: SessionInput,
        socket: Socket | None,
        rooms: RoomSpeech,
    ) -> None:
        self.outbox: Outbox | None = None  # of a session that can resume
        self._rooms = rooms
        self._session_id, self._init, self._trace_id, self._input = session_id, init, trace_id, source
        self.attachment = Attachment(socket)
        self._reply_to: dict[int, Socket] = {}  # index → the socket at which the utterance arrived
        self._last_language = ""  # detected, that the client was sent

    @property
    def socket(self) -> Socket | None:
        return self.attachment.socket

    def attach(self, socket: Socket | None) -> None:
        self.attachment.attach(socket)

    def use_outbox(self, outbox: Outbox) -> None:
        """From now on numbered messages go through the outbox."""
        self.outbox = outbox

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
        elif self.attachment.socket is not None:
            self.attachment.socket.send(encode(message))

    def event(self, about: About, name: UiEventName, **error: str | None) -> None:
        self._reply(about.index, messages.event(self._session_id, self._trace_of(about), about, name, **error))

    def partial(
        self,
        index: int,
        text: str,
        is_final: bool,
        *,
        job_id: str = "",
        preview_id: str = "",
        trace_id: str = "",
    ) -> None:
        """What was recognised so far, by a job or by a preview. `trace_id`: of the job."""
        self._rooms.partial(self._session_id, index, text)
        message = AsrPartial(
            session_id=self._session_id,
            utterance_index=index,
            job_id=job_id or None,
            preview_id=preview_id or None,
            text=text,
            is_final=is_final,
            trace_id=trace_id if self._input.numbered else self._trace_id,
        )
        self._reply(index, message)

    def result(self, about: About, end: End, settled: Settled, request: JobRequest | None, state: State) -> None:
        """`request`: if this instance drove the job."""
        assert end.result is not None, "an end that is ok has a result"
        self.event(about, UiEventName.ASR_FINAL)
        self.event(about, UiEventName.NMT_DONE)
        self._language(about.index, end.result)
        trace_id, backfilled = self._trace_of(about), settled is Settled.BACKFILLED
        result = messages.translation(self._session_id, trace_id, about, end, request, backfilled=backfilled)
        self.last(about, end, settled, result, state)

    def captioned(self, about: About, end: End, settled: Settled, state: State) -> None:
        """What was said in a room is a caption there: its speaker gets no result of its own."""
        assert end.result is not None, "an end that is ok has a result"
        self.event(about, UiEventName.ASR_FINAL)
        self._language(about.index, end.result)
        self.last(about, end, settled, None, state)

    def failure(self, about: About, end: End, state: State) -> None:
        self.event(about, UiEventName.ERROR, code=end.code, hint=end.message)
        self.last(about, end, Settled.FAILED, messages.failure(self._trace_id, about, end), state)

    def last(self, about: About, end: End, settled: Settled, message: Numbered | None, state: State) -> None:
        """The message that settles an index, utterance_end after it if the client asked for that, and the state of the
        session after them: in one step, so that an instance that resumes the session has all of it to send, or
        nothing. If this instance is fenced, the end of the job goes to the owner of the session."""
        last = [message] if message is not None else []
        if self._init.utterance_end:
            last.append(UtteranceEnd(self._session_id, about.index, settled.value, about.job_id or None))
        socket = self._socket_of(about.index)
        if socket is not None:
            for one in last:
                socket.send(encode(one))
        elif self.outbox is not None:
            ended = messages.ended_message(self._session_id, about, end) if about.job_id else None
            self.outbox.post(last, state(), ended)
        else:
            for one in last:
                self.send(one)

    def _reply(self, index: int, message: Message) -> None:
        """About one utterance."""
        socket = self._socket_of(index)
        if socket is None:
            self.send(message)
        else:
            socket.send(encode(message))

    def _language(self, index: int, result: JobResult) -> None:
        """The spoken language, when a node has recognised it for the first time or it has changed."""
        found = detected_language(result.extra)
        if found is not None and found[0] != self._last_language:
            self._last_language = found[0]
            self._reply(index, LanguageDetected(self._session_id, *found))

    def _trace_of(self, about: About) -> str:
        """The web client shows an alert for an error unless its trace is that of the last result, and errors have the
        trace of the session. A numbered utterance may have a trace of its own, which its client expects back."""
        return about.trace_id if self._input.numbered else self._trace_id
