"""A room from Python: join, write, read what the others say in one's own language.

`Room` keeps a session open and joins the room again after every resume, from the last number it has received. So a lost
connection, or a lost instance, costs a moment and no caption. What was asked for and not answered is asked for again.
"""

import asyncio
import logging
import secrets
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from ssl import SSLContext
from types import TracebackType

from dragoman.client.events import Event, InRoom, Renewed, Resumed, SessionError
from dragoman.client.recording import Recording
from dragoman.client.session import Chunks, Session
from dragoman.client.session_connection import Timing
from dragoman.connection import ClientWebSocket, ReceiveQueue
from dragoman.protocol import audio
from dragoman.protocol.rooms import (
    Caption,
    CaptionLost,
    CaptionPartial,
    CaptionTranslation,
    RoomClose,
    RoomCreate,
    RoomCreateAck,
    RoomError,
    RoomExpired,
    RoomJoin,
    RoomJoined,
    RoomLeave,
    RoomLock,
    RoomMember,
    RoomMembers,
    RoomMessage,
    RoomOk,
    RoomPause,
    RoomRemove,
    RoomRequest,
    RoomSettings,
    RoomText,
    RoomTransfer,
    RoomTranslate,
    RoomUpdate,
)

log = logging.getLogger("dragoman.client")

MAX_CAPTIONS = 1000  # whose original is remembered, to put a translation under it


class RoomRefused(SessionError):
    """The room refused a request; `code` says why."""


@dataclass(frozen=True, slots=True)
class RoomCaption:
    """One sentence, as far as it is known: first the original, then the same again with its translation.

    `untranslated`: why there is no translation; then `text` is the original. `lost`: why there is not even that.
    """

    id: str
    seq: int
    speaker: str
    speaker_session: str
    lang: str
    original: str
    translation: str | None = None
    translated_into: str = ""
    untranslated: str = ""
    lost: str = ""
    audio: bytes = b""  # the translation as speech, if this member wants voices and the node has one
    audio_format: str = ""

    @property
    def text(self) -> str:
        """What to show: the translation if there is one."""
        return self.translation if self.translation is not None else self.original


class _Captions(ReceiveQueue[RoomCaption]):
    def put(self, caption: RoomCaption) -> None:
        if not self._ended:
            self._add(caption)


class Room:
    """A member of a room. Use it with `async with`, which joins and leaves.

        async with Room("ws://127.0.0.1:5010/ws/session", code="123456", name="Ana", speaks="es") as room:
            await room.write("Hola a todos")
            async for caption in room:
                print(caption.speaker, caption.text)

    - `write(text)` says a sentence, `speak(recording)` speaks one; `send(chunk)` and `cut()` send live audio.

    Parameters:

    - `room` or `code`: the id or the six-digit code of the room. With neither, a new room is opened.
    - `name`: shown to the others.
    - `speaks`, `hears`: languages. `hears` is `speaks` if it is left out. `speaks="auto"`: the node detects it; then
      `hears` must be given.
    - `voice`: get translations also as speech: `caption.audio`.
    - `audio_format`, `sample_rate`: of the audio to send. A `Recording` sets them by itself.
    - `vad`: with pcm16, the server finds where utterances begin and end, as in `Session`.
    - `previews`: members see the words of this one while it speaks, if a node can do that.
    - `originals`: also get sentences in the language in which they were said.
    - `from_start`: get everything that was said before; otherwise the last captions.
    - `settings`: of a new room.
    - `on_message`: called with every message of the room as it arrives, before it is handled; also with the partial
      text of what is being said.
    - `on_event`: called with every other event of the session, such as Failed for an utterance that was refused.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        *,
        room: str = "",
        code: str = "",
        name: str,
        speaks: str,
        hears: str = "",
        voice: bool = False,
        originals: bool = True,
        from_start: bool = False,
        settings: RoomSettings | None = None,
        audio_format: str = audio.OPUS,
        sample_rate: int = 16_000,
        vad: bool = True,
        previews: bool = True,
        token: str | None = None,
        timing: Timing | None = None,
        ssl: SSLContext | None = None,
        on_message: Callable[[RoomMessage], None] | None = None,
        on_event: Callable[[Event], None] = lambda event: None,
    ) -> None:
        hears = hears or speaks
        self.id, self.code, self.role, self.members = room, code, "", list[RoomMember]()
        self.count = 0  # of all members; `members` may have the speakers only
        self.unserved: str | None = None  # the language that is heard, if no node translates into it
        self.complete = True  # False: something was said that the server does not have any more
        self.room_seq = 0  # everything up to this number was received
        self.ended = ""  # why the room is over for this member, as the server said it
        self._log_epoch: str | None = None
        self._name, self._speaks, self._hears, self._voice = name, speaks, hears, voice
        self._originals, self._settings = originals, settings
        self._joined_before, self._from_start = False, from_start
        self._session = Session(
            url, src=speaks, tgt=hears, token=token, timing=timing, ssl=ssl, on_lost="new",
            audio_format=audio_format, sample_rate=sample_rate, vad=vad, previews=previews,
        )  # fmt: skip
        self._timing = timing or Timing()
        self._on_message, self._on_event = on_message, on_event
        self._captions = _Captions()
        self._known: OrderedDict[str, RoomCaption] = OrderedDict()
        # The connections on which joining was asked for, and answered. Any other request waits for the answer.
        self._greeted: ClientWebSocket | None = None
        self._entered: ClientWebSocket | None = None
        self._asked: dict[str, tuple[RoomRequest, asyncio.Future[None]]] = {}
        self._sent: set[str] = set()  # of these, also those whose sending failed
        self._reading: asyncio.Task[None] | None = None

    @property
    def session_id(self) -> str:
        return self._session.id

    @property
    def socket(self) -> ClientWebSocket | None:
        """The current connection; None while the session reconnects. Lets a test cut it, or stop reading it."""
        return self._session.socket

    @property
    def link(self) -> str:
        """The path of the room's page."""
        return f"/room/{self.id}"

    def use_token(self, token: str) -> None:
        """Reconnect with this token from now on: that of a guest is valid for an hour, and can be renewed meanwhile."""
        self._session.use_token(token)

    # ------------------------------------------------------------ joining and leaving

    async def __aenter__(self) -> "Room":
        await self.join()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.leave()

    async def join(self) -> None:
        """Open a session and join. Raises RoomRefused, Unreachable and SessionError."""
        await self._session.open()
        self._reading = asyncio.get_running_loop().create_task(self._read(), name="dragoman-room")
        self._greeted = self._session.socket
        try:
            await self._ask(self._hello())
        except BaseException:
            await self._stop()
            raise

    async def leave(self) -> None:
        if self._session.socket is not None and not self._captions.has_ended:
            try:
                await self._ask(RoomLeave(), timeout_s=self._timing.close_s)
            except SessionError as error:
                log.info("not left in order: %s", error)
        await self._stop()

    async def _stop(self) -> None:
        self._end(None)
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait({self._reading})
        await self._session.abort()

    def _hello(self) -> RoomRequest:
        if not self.id and not self.code:
            return RoomCreate(
                display_name=self._name,
                speaks=self._speaks,
                hears=self._hears,
                voice=self._voice,
                settings=self._settings or RoomSettings(),
            )
        again = self._joined_before or self._from_start
        return RoomJoin(
            room_id=self.id or None,
            room_code=None if self.id else self.code,
            display_name=self._name,
            speaks=self._speaks,
            hears=self._hears,
            voice=self._voice,
            originals=self._originals,
            log_epoch=self._log_epoch,
            last_room_seq=self.room_seq if again else None,
        )

    # ------------------------------------------------------------ saying and asking

    async def write(self, text: str, lang: str = "") -> None:
        """Say a sentence. Returns when it is in the room's log; a lost connection neither loses nor doubles it. If the
        session is lost, too, before the answer: RoomRefused with the code UNKNOWN_OUTCOME."""
        await self._ask(RoomText(text=text, client_msg_id=_new_id(), lang=lang or None))

    async def speak(self, source: Recording | Chunks, *, fast: bool = False) -> None:
        """Say aloud all of `source`, then cut: at the pace of speech, or as `fast` as the server allows. What was said
        arrives as a caption, also at this member."""
        await self._session.speak(source, fast=fast)

    async def send(self, chunk: bytes, *, final: bool = False) -> None:
        """Send a piece of live audio; `final` cuts the utterance after it."""
        await self._session.send(chunk, final=final)

    async def cut(self) -> None:
        """End the utterance: what was sent since the last cut becomes one caption."""
        await self._session.cut()

    async def wait_said(self) -> None:
        """Wait until everything that was said aloud is a caption, or has failed."""
        await self._session.wait_answered()

    async def update(
        self,
        *,
        speaks: str = "",
        hears: str = "",
        voice: bool | None = None,
        originals: bool | None = None,
        muted: bool | None = None,
    ) -> None:
        """Change what this member speaks or hears, from now on."""
        await self._ask(
            RoomUpdate(speaks=speaks or None, hears=hears or None, voice=voice, originals=originals, muted=muted)
        )
        self._speaks, self._hears = speaks or self._speaks, hears or self._hears
        self._voice = self._voice if voice is None else voice
        self._originals = self._originals if originals is None else originals

    async def translate(self, caption: RoomCaption | str, lang: str = "") -> None:
        """Ask for a caption in a language, by default the one that is heard; it arrives as a caption."""
        caption_id = caption if isinstance(caption, str) else caption.id
        await self._ask(RoomTranslate(caption_id=caption_id, lang=lang or self._hears))

    async def lock(self, locked: bool = True) -> None:
        await self._ask(RoomLock(locked=locked))

    async def pause(self, paused: bool = True) -> None:
        await self._ask(RoomPause(paused=paused))

    async def remove(self, session_id: str) -> None:
        await self._ask(RoomRemove(target_session_id=session_id))

    async def transfer(self, session_id: str) -> None:
        await self._ask(RoomTransfer(target_session_id=session_id))

    async def close(self) -> None:
        """End the room for everybody; only its host may."""
        await self._ask(RoomClose())

    async def _ask(self, request: RoomRequest, timeout_s: float | None = None) -> None:
        """Send a request, once this member has joined, and wait for its answer. After a resume it is sent again."""
        if self._captions.has_ended:
            raise RoomRefused("SESSION_CLOSED", "the room is over, or was left")
        request.request_id = _new_id()
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked[request.request_id] = request, answer
        try:
            async with asyncio.timeout(timeout_s or self._timing.reconnect_s):
                if isinstance(request, RoomCreate | RoomJoin) or self._is_in:
                    await self._send(request)
                await answer
        except TimeoutError:
            raise SessionError("UNREACHABLE", "the server has not answered") from None
        finally:
            self._asked.pop(request.request_id, None)
            self._sent.discard(request.request_id)

    async def _send(self, request: RoomRequest) -> None:
        self._sent.add(request.request_id or "")
        await self._session.send_message(request)

    @property
    def _is_in(self) -> bool:
        """Whether this member has joined on the present connection."""
        return self._entered is not None and self._entered is self._session.socket

    # ------------------------------------------------------------ receiving

    def __aiter__(self) -> AsyncIterator[RoomCaption]:
        return self.captions()

    async def captions(self) -> AsyncGenerator[RoomCaption, None]:
        """Captions as they arrive, until the room is over or was left. Raises what ended it, if it was an error."""
        while (caption := await self._captions.get()) is not None:
            yield caption

    async def _read(self) -> None:
        try:
            async for event in self._session:
                match event:
                    case InRoom(message):
                        self._receive(message)
                        if isinstance(message, RoomJoined):
                            await self._ask_again()
                    case Resumed():
                        await self._join_again()
                    case Renewed():
                        self._give_up_written()
                        await self._join_again()
                if not isinstance(event, InRoom):
                    self._on_event(event)
        except SessionError as error:
            self._end(error)
        else:
            self._end(None)

    def _give_up_written(self) -> None:
        """Under another session the server cannot know that a sentence was sent before: it would be there twice."""
        for id in self._sent & self._asked.keys():
            request, answer = self._asked[id]
            if isinstance(request, RoomText) and not answer.done():
                del self._asked[id]
                why = "the session was lost before the answer: the sentence may be in the log or not"
                answer.set_exception(RoomRefused("UNKNOWN_OUTCOME", why))

    async def _join_again(self) -> None:
        """Before anything else, and once on a connection: the server sends the log from the cursor each time."""
        await self._session.connected()
        if self._session.socket is self._greeted:
            return
        self._greeted = self._session.socket
        asked = (request for request, _ in self._asked.values() if isinstance(request, RoomCreate | RoomJoin))
        hello = next(asked, self._hello() if self._joined_before else None)
        if hello is not None:
            await self._session.send_message(hello)

    async def _ask_again(self) -> None:
        """What was asked for while there was no connection, or was not answered on the last one."""
        if not self._is_in:
            self._entered = self._greeted
            for request in [one for one, _ in self._asked.values() if not isinstance(one, RoomCreate | RoomJoin)]:
                await self._send(request)

    def _end(self, error: Exception | None) -> None:
        self._captions.end(error)
        for request, answer in self._asked.values():
            if answer.done():
                continue
            if error is None and isinstance(request, RoomClose | RoomLeave):
                answer.set_result(None)
            else:
                answer.set_exception(error or RoomRefused("SESSION_CLOSED", "the room is over, or was left"))

    def _receive(self, message: RoomMessage) -> None:
        if self._on_message is not None:
            self._on_message(message)
        match message:
            case Caption() | CaptionTranslation() | CaptionLost():
                self._receive_entry(message)
            case CaptionPartial():
                pass  # only for `on_message`
            case RoomMembers(members=members, count=count):
                self.members, self.count = members, len(members) if count is None else count
            case RoomJoined():
                self._joined(message)
            case RoomCreateAck(room_id=room_id, room_code=code):
                self.id, self.code = room_id, code
            case RoomOk(request_id=request_id):
                if (asked := self._asked.get(request_id)) is not None and not asked[1].done():
                    asked[1].set_result(None)
            case RoomError():
                self._refused(message)
            case RoomExpired(message=why):
                log.info("the room is over: %s", why)
                self.ended = why
                self._end(None)

    def _joined(self, message: RoomJoined) -> None:
        if self._log_epoch not in (None, message.log_epoch):
            # Another log, with numbers of its own. On a connection on which it has joined, it goes on after this one.
            self.room_seq = message.room_seq if self._is_in else 0
        self.id, self.code, self.role = message.room_id, message.room_code, message.role
        self._log_epoch, self.unserved = message.log_epoch, message.unserved
        self.complete = self.complete and message.complete
        self._joined_before = True

    def _refused(self, message: RoomError) -> None:
        error = RoomRefused(message.code, message.message or "refused")
        asked = self._asked.get(message.request_id or "")
        if asked is not None:
            if not asked[1].done():
                asked[1].set_exception(error)
        elif message.code in ("ROOM_NOT_FOUND", "REMOVED"):
            self._end(error)  # the answer to joining again
        elif message.code == "SCHEDULER_DEPENDENCY_DOWN" and not self._is_in and self.socket is not None:
            log.info("not joined again yet: %s", error)
            self.socket.abort()  # the next connection tries again
        else:
            log.warning("%s", error)

    def _receive_entry(self, message: Caption | CaptionTranslation | CaptionLost) -> None:
        known = self._known.get(message.caption_id)
        self.room_seq = max(self.room_seq, message.room_seq)
        match message:
            case Caption():
                caption = RoomCaption(
                    message.caption_id,
                    message.room_seq,
                    message.speaker.name,
                    message.speaker.session_id,
                    message.lang,
                    message.text,
                )
            case CaptionLost():
                speaker = message.speaker
                caption = RoomCaption(
                    message.caption_id, message.room_seq, speaker.name, speaker.session_id, "", "", lost=message.reason
                )
            case CaptionTranslation():
                caption = RoomCaption(
                    message.caption_id,
                    message.room_seq,
                    known.speaker if known else "",
                    known.speaker_session if known else "",
                    known.lang if known else "",
                    known.original if known else message.text if message.untranslated else "",
                    None if message.untranslated else message.text,
                    message.lang,
                    message.untranslated or "",
                    audio=audio.decode_base64(message.tts_audio) if message.tts_audio else b"",
                    audio_format=message.tts_format or "",
                )
        self._known[caption.id] = caption
        if len(self._known) > MAX_CAPTIONS:
            self._known.popitem(last=False)
        self._captions.put(caption)


def _new_id() -> str:
    return secrets.token_urlsafe(12)
