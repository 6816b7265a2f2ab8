"""The numbered messages of a session that can resume: written to Redis first, to the socket after.

    post ─▶ queue ─▶ Redis ─▶ (answered, in order) ─▶ socket, if one is there

They follow each other without waiting for answers; if Redis refuses one, what was sent behind it is EARLY, and they
are written one by one. While Redis is away messages wait, in order. What the client has confirmed is freed. Once the
session was resumed elsewhere every write is FENCED, and nothing of ours reaches the client any more: the ends of jobs
that were not written yet (`carries`) go to whoever has the session now. While a resume here is under way everything
is held, because Redis has the new epoch before we do.

Of the state only what changed is written: a session has many open indexes, and each event concerns one. Changes have
consecutive versions, and Redis takes them in this order. If Redis has lost some, as after a failover, all of the state
is written behind what waits.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from dragoman.protocol.codec import encode
from dragoman.protocol.fields import Numbered
from dragoman.protocol.peer import JobEnded
from dragoman.services.loops import Tasks, unawaited
from dragoman.store.errors import StoreError
from dragoman.store.sessions import MAX_BYTES, MAX_ENTRIES, ResumableSessions

RETRY_S = 0.2


@dataclass(slots=True)
class Letter:
    seq: int  # 0: state alone
    frames: tuple[bytes, ...]  # of the messages seq, seq + 1: one step writes both, or neither
    fields: Mapping[str, Any]
    carries: JobEnded | None = None  # the end of a job that this tells of
    done: "asyncio.Future[bool] | None" = None  # True when written, False when fenced
    written: bool = False
    asked: bool = False  # Redis has been told of it, and has not answered
    epoch: int = 0
    base: int = 0  # the version of the state before it; 0: any
    version: int = 0  # of the state in it
    gone: Sequence[str] = ()  # fields that are no more
    whole: bool = False  # its fields are all of the state
    after: int = 0  # the message before it

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
        self._queue: deque[Letter] = deque()
        self._noted: Mapping[str, Any] = {}  # the state with everything that is in the queue
        self._whole = True  # of what is in Redis before our first write we know nothing
        self._queued_bytes = 0
        self._retrying = False
        self.held = self.stopped = False

    def post(
        self,
        messages: Sequence[Numbered],
        state: Mapping[str, Any] | None = None,
        carries: JobEnded | None = None,
    ) -> None:
        """At most two messages for the client that belong together, and the state of the session after them."""
        after = self.seq
        frames = tuple(encode(msgspec.structs.replace(one, seq=seq)) for seq, one in enumerate(messages, after + 1))
        self.seq += len(frames)
        self._put(Letter(after + 1 if frames else 0, frames, state or {}, carries, after=after))

    def note(self, state: Mapping[str, Any], carries: JobEnded | None = None) -> "asyncio.Future[bool]":
        """State alone, in its order among the messages. True when it is written, False when we were fenced."""
        done = asyncio.get_running_loop().create_future()
        self._put(Letter(0, (), state, carries, done, after=self.seq))
        return done

    def hold(self) -> None:
        """A resume here begins: until it is over nobody knows whose epoch is right."""
        self.held = True

    def let_go(self, epoch: int, written: int) -> None:
        """The resume is over. What Redis had up to `written` the client has, or gets from there."""
        self.held, self.epoch = False, epoch
        for letter in self._queue:
            if 0 < letter.seq <= written:
                letter.seq = 0  # not to be delivered a second time
                letter.settle(True)
        self._pump()
        self._write_rest()

    def free(self, last_seq: int) -> None:
        if last_seq <= self.seq and not self.stopped:
            unawaited(self._store.free(self._session_id, self.epoch, last_seq))

    def stop(self) -> None:
        """The session is over here: whatever is on its way stays unsaid. What Redis was told of may be written all the
        same, and then counts for whoever resumes: of that its answer tells, not we."""
        self.stopped = True
        for letter in self._queue:
            if not letter.asked and not letter.written:
                letter.settle(False)
        self._queue.clear()

    def _put(self, letter: Letter) -> None:
        if self.stopped:
            letter.settle(False)
            if letter.carries is not None:
                self._on_fenced([letter.carries])
            return
        self._changes(letter)
        self._queue.append(letter)
        self._queued_bytes += sum(map(len, letter.frames))
        if len(self._queue) > MAX_ENTRIES or self._queued_bytes > MAX_BYTES:
            self._on_full()
        elif not self._retrying and not self.held:
            self._write(letter, letter.after).add_done_callback(lambda done: self._answered(letter, done))

    def _changes(self, letter: Letter) -> None:
        """Leave of its state what is to be written."""
        letter.base, state = self._version, letter.fields
        if not state:
            return
        letter.whole, self._whole = self._whole or letter.whole, False
        if letter.whole:
            letter.base = 0
        else:
            letter.fields = {name: value for name, value in state.items() if self._noted.get(name) != value}
            letter.gone = [name for name in self._noted if name not in state]
        self._noted = state
        if letter.whole or letter.fields or letter.gone:
            self._version += 1
            letter.version = self._version

    def _write(self, letter: Letter, after: int = 0) -> "asyncio.Future[bytes]":
        letter.epoch, letter.asked = self.epoch, True
        frame, second = (*letter.frames, b"", b"")[:2]
        told = letter.seq, frame, letter.fields, letter.version, after, second, letter.base, letter.gone, letter.whole
        return self._store.write(self._session_id, self.epoch, *told)

    def _answered(self, letter: Letter, done: "asyncio.Future[bytes]") -> None:
        letter.asked = False
        error = None if done.cancelled() else done.exception()
        reply = b"" if done.cancelled() or error is not None else done.result()
        ok = reply == b"OK"
        if ok or self.stopped:
            letter.settle(ok)
            self._pump()
        elif done.cancelled():
            return
        elif reply == b"FENCED" and not self.held and letter.epoch == self.epoch:
            self._fenced()
        elif not self.held and not letter.written:
            self._write_rest()

    def _write_rest(self) -> None:
        """In order and one by one: a later message must not be written before an earlier one."""
        if not self._retrying and any(not letter.written for letter in self._queue):
            self._retrying = True
            self._tasks.spawn(self._retry(), "outbox-retry")

    def _pump(self) -> None:
        while self._queue and self._queue[0].written and not self.held:
            letter = self._queue.popleft()
            self._queued_bytes -= sum(map(len, letter.frames))
            for frame in letter.frames if letter.seq else ():
                self._deliver(frame)

    def _fenced(self) -> None:
        undelivered = self.undelivered()
        self.stop()
        self._on_fenced(undelivered)

    def undelivered(self) -> list[JobEnded]:
        """The ends of jobs that are not written yet."""
        return [letter.carries for letter in self._queue if letter.carries is not None and not letter.written]

    def _next_unwritten(self) -> Letter | None:
        return None if self.held else next((letter for letter in self._queue if not letter.written), None)

    async def _retry(self) -> None:
        """Redis or our epoch was away: write what waits, oldest first."""
        try:
            while (letter := self._next_unwritten()) is not None:
                try:
                    reply = await self._write(letter)
                except StoreError:
                    reply = b""
                letter.asked = False
                if reply == b"OK" or self.stopped:
                    letter.settle(reply == b"OK")
                    self._pump()
                elif not reply:
                    await asyncio.sleep(RETRY_S)
                elif reply == b"EARLY":
                    self._restate(letter)
                elif letter.epoch == self.epoch and not self.held:
                    self._fenced()
        finally:
            self._retrying = False

    def _restate(self, letter: Letter) -> None:
        """Redis has lost versions it had confirmed: this one is written all the same, and all of the state last."""
        letter.base = 0
        if self._noted and not any(one.whole and not one.written for one in self._queue):
            self._put(Letter(0, (), self._noted, whole=True, after=self.seq))
