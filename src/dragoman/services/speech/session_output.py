"""What the client of a session is sent: by the session's own socket, or by the one at which an utterance arrived.

Numbered messages of a session that can resume go through its outbox. The outbox refers to the attachment of the
socket and not to the session, so a session that ended is freed without the garbage collector.

The outbox writes a message to Redis first, and sends it to the socket then:

    post ─▶ queue ─▶ Redis ─▶ (confirmed, in order) ─▶ socket, if there is one

Writes do not wait for each other. If Redis refuses one, those behind it are EARLY, and they are written one by one.
While Redis is unavailable, messages wait in order. Messages that the client has confirmed are deleted. Once another
instance has resumed the session, every write is FENCED, and nothing more is sent to the client: ends of jobs that were
not written yet (`ended`) go to the new owner. During a resume on this instance the outbox is paused, because Redis has
the new epoch earlier than this object.

Of the state only changes are written: a session has many open indexes, and each event concerns one. Changes have
consecutive versions, and Redis accepts them in this order. If Redis has lost some, as after a failover, the whole state
is written behind the messages that wait.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from dragoman.domain.job_signals import End
from dragoman.domain.release import Settled
from dragoman.protocol.codec import encode
from dragoman.protocol.codes import UiEventName
from dragoman.protocol.extra import detected_language
from dragoman.protocol.fields import Message, Numbered
from dragoman.protocol.node import JobResult
from dragoman.protocol.peer import JobEnded
from dragoman.protocol.session import AsrPartial, LanguageDetected, SessionInit, UtteranceEnd
from dragoman.services.loops import Tasks, unawaited
from dragoman.services.sockets import Attachment, Socket
from dragoman.services.speech import messages
from dragoman.services.speech.job_request import JobRequest, RoomSpeech
from dragoman.services.speech.messages import About
from dragoman.services.speech.session_input import SessionInput
from dragoman.store.errors import StoreError
from dragoman.store.sessions import MAX_BYTES, MAX_ENTRIES, ResumableSessions

RETRY_S = 0.2


@dataclass(slots=True)
class Entry:
    seq: int  # 0: state alone
    frames: tuple[bytes, ...]  # of the messages seq, seq + 1: one step writes both, or neither
    fields: Mapping[str, Any]
    ended: JobEnded | None = None  # the end of the job that the messages are about
    done: "asyncio.Future[bool] | None" = None  # True when written, False when fenced
    written: bool = False
    in_flight: bool = False  # sent to Redis, which has not answered
    epoch: int = 0
    base: int = 0  # the version of the state before it; 0: any
    version: int = 0  # of the state in it
    removed: Sequence[str] = ()  # fields of the state
    whole: bool = False  # its fields are all of the state
    after: int = 0  # the seq of the message before it

    def settle(self, ok: bool) -> None:
        self.written = ok
        if self.done is not None and not self.done.done():
            self.done.set_result(ok)


class Outbox:
    def __init__(
        self,
        store: ResumableSessions,
        session_id: str,
        epoch: int,
        seq: int,
        tasks: Tasks,
        *,
        version: int = 0,
        deliver: Callable[[bytes], None],
        on_fenced: Callable[[list[JobEnded]], None],
        on_full: Callable[[], None],
    ) -> None:
        self.epoch, self.seq, self._version = epoch, seq, version
        self._store, self._session_id, self._tasks = store, session_id, tasks
        self._deliver, self._on_fenced, self._on_full = deliver, on_fenced, on_full
        self._queue: deque[Entry] = deque()
        self._latest_state: Mapping[str, Any] = {}  # with the changes that are queued
        self._whole = True  # the state in Redis is unknown before the first write
        self._queued_bytes = 0
        self._retrying = False
        self.paused = self.stopped = False

    def post(
        self,
        messages: Sequence[Numbered],
        state: Mapping[str, Any] | None = None,
        ended: JobEnded | None = None,
    ) -> None:
        """At most two messages for the client that belong together, and the state of the session after them."""
        after = self.seq
        frames = tuple(encode(msgspec.structs.replace(one, seq=seq)) for seq, one in enumerate(messages, after + 1))
        self.seq += len(frames)
        self._put(Entry(after + 1 if frames else 0, frames, state or {}, ended, after=after))

    def note(self, state: Mapping[str, Any], ended: JobEnded | None = None) -> "asyncio.Future[bool]":
        """Write the state alone, in order among the messages. True when it is written, False when fenced."""
        done = asyncio.get_running_loop().create_future()
        self._put(Entry(0, (), state, ended, done, after=self.seq))
        return done

    def pause(self) -> None:
        """A resume on this instance begins: until it is over, the valid epoch is unknown."""
        self.paused = True

    def resume(self, epoch: int, written: int) -> None:
        """The resume is over. The client has the messages up to `written`, or gets them from Redis."""
        self.paused, self.epoch = False, epoch
        for entry in self._queue:
            if 0 < entry.seq <= written:
                entry.seq = 0  # not to be delivered a second time
                entry.settle(True)
        self._pump()
        self._write_rest()

    def free(self, last_seq: int) -> None:
        if last_seq <= self.seq and not self.stopped:
            unawaited(self._store.free(self._session_id, self.epoch, last_seq))

    def stop(self) -> None:
        """The session has ended on this instance: nothing more is sent. An entry in flight is settled by the answer of
        Redis: if it was written, it counts for the instance that resumes the session."""
        self.stopped = True
        for entry in self._queue:
            if not entry.in_flight and not entry.written:
                entry.settle(False)
        self._queue.clear()

    def _put(self, entry: Entry) -> None:
        if self.stopped:
            entry.settle(False)
            if entry.ended is not None:
                self._on_fenced([entry.ended])
            return
        self._keep_changes(entry)
        self._queue.append(entry)
        self._queued_bytes += sum(map(len, entry.frames))
        if len(self._queue) > MAX_ENTRIES or self._queued_bytes > MAX_BYTES:
            self._on_full()
        elif not self._retrying and not self.paused:
            self._write(entry, entry.after).add_done_callback(lambda done: self._answered(entry, done))

    def _keep_changes(self, entry: Entry) -> None:
        """Reduce the state of an entry to what changed."""
        entry.base, state = self._version, entry.fields
        if not state:
            return
        entry.whole, self._whole = self._whole or entry.whole, False
        if entry.whole:
            entry.base = 0
        else:
            entry.fields = {name: value for name, value in state.items() if self._latest_state.get(name) != value}
            entry.removed = [name for name in self._latest_state if name not in state]
        self._latest_state = state
        if entry.whole or entry.fields or entry.removed:
            self._version += 1
            entry.version = self._version

    def _write(self, entry: Entry, after: int = 0) -> "asyncio.Future[bytes]":
        entry.epoch, entry.in_flight = self.epoch, True
        frame, second = (*entry.frames, b"", b"")[:2]
        fields = entry.seq, frame, entry.fields, entry.version, after, second, entry.base, entry.removed, entry.whole
        return self._store.write(self._session_id, self.epoch, *fields)

    def _answered(self, entry: Entry, done: "asyncio.Future[bytes]") -> None:
        entry.in_flight = False
        error = None if done.cancelled() else done.exception()
        reply = b"" if done.cancelled() or error is not None else done.result()
        ok = reply == b"OK"
        if ok or self.stopped:
            entry.settle(ok)
            self._pump()
        elif done.cancelled():
            return
        elif reply == b"FENCED" and not self.paused and entry.epoch == self.epoch:
            self._fenced()
        elif not self.paused and not entry.written:
            self._write_rest()

    def _write_rest(self) -> None:
        """One by one: a later message must not be written before an earlier one."""
        if not self._retrying and any(not entry.written for entry in self._queue):
            self._retrying = True
            self._tasks.spawn(self._retry(), "outbox-retry")

    def _pump(self) -> None:
        while self._queue and self._queue[0].written and not self.paused:
            entry = self._queue.popleft()
            self._queued_bytes -= sum(map(len, entry.frames))
            for frame in entry.frames if entry.seq else ():
                self._deliver(frame)

    def _fenced(self) -> None:
        undelivered = self.undelivered()
        self.stop()
        self._on_fenced(undelivered)

    def undelivered(self) -> list[JobEnded]:
        """The ends of jobs that are not written yet."""
        return [entry.ended for entry in self._queue if entry.ended is not None and not entry.written]

    def _next_unwritten(self) -> Entry | None:
        return None if self.paused else next((entry for entry in self._queue if not entry.written), None)

    async def _retry(self) -> None:
        """Write the waiting entries, oldest first, until Redis accepts them."""
        try:
            while (entry := self._next_unwritten()) is not None:
                try:
                    reply = await self._write(entry)
                except StoreError:
                    reply = b""
                entry.in_flight = False
                if reply == b"OK" or self.stopped:
                    entry.settle(reply == b"OK")
                    self._pump()
                elif not reply:
                    await asyncio.sleep(RETRY_S)
                elif reply == b"EARLY":
                    self._restate(entry)
                elif entry.epoch == self.epoch and not self.paused:
                    self._fenced()
        finally:
            self._retrying = False

    def _restate(self, entry: Entry) -> None:
        """Redis has lost versions that it had confirmed: write this one anyway, and the whole state last."""
        entry.base = 0
        if self._latest_state and not any(one.whole and not one.written for one in self._queue):
            self._put(Entry(0, (), self._latest_state, whole=True, after=self.seq))


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
