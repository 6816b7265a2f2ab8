"""All clients of a cluster while it is being broken: chat users, speakers, members of a room, with one interface for
the faults.

    async with Clients.open(ports, seed=1, speakers=6, chat_users=8, room_members=8) as clients:
        ledgers = clients.begin()                     # a new phase: from now on everything is written into these
        await clients.rooms.open()
        clients.start(messages_per_s=40, utterances_per_s=10, captions_per_s=5)
        …                                            # break something, repair it
        await clients.stop()
        outstanding = await clients.settle(timeout_s=30)   # what is still missing, as sentences

Connections last from one phase to the next. All times in ledgers are of `time.monotonic`.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Self

import jwt

from dragoman.client.chat import Chat, Message, Sent, Timing
from dragoman.tools.processes import until
from dragoman.tools.verify.chat_ledger import Answer, ChatLedger
from dragoman.tools.verify.room_ledger import RoomLedger
from dragoman.tools.verify.room_load import RoomLoad, RoomMemberLoad, room_load
from dragoman.tools.verify.speech_ledger import SpeechLedger
from dragoman.tools.verify.speech_load import Pacer, SlowReader, SpeakerLoad, SpeechLoad, speech_load

# -- chat load -------------------------------------------------------------------------------------
#
# Chat users that use the SDK and keep a ledger of what they were promised while things break.
#
#     async with chat_load(ports, ledger, users=8) as load:
#         load.start(per_s=100)
#         …                                    # kill, pause, restart
#         await load.stop_and_settle()         # everything is saved and has arrived
#     assert ledger.check(rows) == []
#
# Any user may write to any other, at random, and reads as fast as messages arrive. Each user knows all ports, each
# begins with another one, so they are spread over the instances and find the next when theirs is gone.


DEVELOPMENT_SECRET = "change-me-please-change-me-please-change-me"
ISSUER = "mini-im"
FIRST_UID = 1001
LOAD_TIMING = Timing(resend_s=5.0, backoff_first_s=0.05, backoff_longest_s=0.5, close_s=5.0)


def token(uid: int, *, secret: str = DEVELOPMENT_SECRET, lasts_s: float = 3600.0, version: int = 0) -> str:
    """An access token as a login would give."""
    now = int(time.time())
    claims = {"iss": ISSUER, "iat": now, "exp": now + int(lasts_s), "uid": uid, "typ": "access", "sv": version}
    return jwt.encode(claims, secret, algorithm="HS256")


class NotSettled(Exception):
    """The timeout has passed; the message says what is outstanding."""


class ChatUserLoad:
    """One user."""

    def __init__(self, uid: int, urls: Sequence[str], ledger: ChatLedger, *, in_flight: int) -> None:
        self.uid = uid
        self.ledger = ledger
        self._sent = 0
        self._connections = 1  # raised when one ends: frames that arrive with AUTH_OK precede `_connection`
        self._received_at = time.monotonic()
        self._reading: asyncio.Task[None] | None = None
        # A function, so that the client retries with a new token after a refused one.
        self.chat = Chat(
            urls,
            token=lambda: token(uid),
            in_flight=in_flight,
            timing=LOAD_TIMING,
            on_receipt=self._noted,
            on_connection=self._connection,
            on_arrival=self._arrived,
            on_exchange=self._exchanged,
        )
        self.slow = SlowReader(lambda: self.chat.socket)

    async def open(self) -> None:
        await self.chat.open()
        self._reading = asyncio.create_task(self._read(), name=f"user-{self.uid}")

    async def send(self, to: int) -> Sent:
        self._sent += 1
        name, body = f"{self.uid}-{self._sent}", f"message {self._sent} of {self.uid}"
        self.ledger.sent(self.uid, name, to, body)
        return await self.chat.send(to, body, client_msg_id=name)

    def reconnect(self) -> None:
        """Lose the connection, and come back on the next instance."""
        if self.chat.socket is not None:
            self.chat.socket.start_closing()

    async def close(self) -> None:
        self.slow.stop()
        await self.chat.abort()
        if self._reading is not None:
            await asyncio.wait({self._reading})
            if not self._reading.cancelled():
                self._reading.result()

    async def _read(self) -> None:
        async for message in self.chat.messages():
            self.ledger.acknowledged(self.uid, message.server_msg_id)

    def _arrived(self, message: Message) -> None:
        self._received_at = time.monotonic()
        self.ledger.arrived(self.uid, message.from_user, message.client_msg_id, message.server_msg_id)

    def _connection(self, up: bool, why: str) -> None:
        if up:
            self.ledger.connected.append((self.uid, time.monotonic()))
        else:
            self._connections += 1
            self.ledger.connection_lost(self.uid, self._received_at)

    def _exchanged(self, client_msg_id: str, what: str, ts: int) -> None:
        if what == "sent":
            self.ledger.requested(self.uid, client_msg_id, self._connections)
        else:
            self.ledger.answered(self.uid, client_msg_id, self._connections, Answer(what), ts)

    def _noted(self, sent: Sent) -> None:
        self._received_at = time.monotonic()
        name, id = sent.client_msg_id, sent.server_msg_id
        if sent.failed is not None:
            self.ledger.failed(self.uid, name, sent.failed)
        if sent.saved:
            self.ledger.saved(self.uid, name, id)
        elif sent.accepted:
            self.ledger.accepted(self.uid, name, id)
        for receipt in ("read", "delivered"):
            if receipt in sent.receipts:
                self.ledger.receipt(self.uid, name, receipt)


class ChatLoad:
    def __init__(self, users: Sequence[ChatUserLoad], ledger: ChatLedger, rng: Random) -> None:
        self.users, self.ledger = users, ledger
        self._rng = rng
        self._pacer = Pacer(self._begin, "chat-load")
        self._sending: set[asyncio.Task[Sent]] = set()

    def begin(self, ledger: ChatLedger) -> None:
        """From now on everything is written into this ledger."""
        self.ledger = ledger
        for one in self.users:
            one.ledger = ledger

    def start(self, per_s: float) -> None:
        """So many messages a second, from anyone to anyone."""
        if self.users:
            self._pacer.start(per_s)

    async def stop(self) -> None:
        await self._pacer.stop()

    async def send(self, count: int) -> None:
        """So many messages, as fast as they are accepted."""
        for _ in range(count):
            await self._send_one()

    async def stop_and_settle(self, timeout_s: float = 60.0) -> None:
        """Wait until every message is saved or refused, and has arrived. Raises NotSettled."""
        await self.stop()
        outstanding = await self.settle(timeout_s)
        if outstanding:
            raise NotSettled(f"after {timeout_s:g} s: {outstanding}")

    async def settle(self, timeout_s: float) -> list[str]:
        """What is outstanding after so long, as sentences."""
        await until(lambda: not self._sending and not self.outstanding(), timeout_s)
        return [f"{len(self._sending)} messages wait to be sent"] * bool(self._sending) + self.outstanding()

    def outstanding(self) -> list[str]:
        found = [f"{one.chat.unsaved} messages of {one.uid} are not saved" for one in self.users if one.chat.unsaved]
        saved = {(entry.to, entry.ids[-1]) for entry in self.ledger.entries.values() if entry.saved_at is not None}
        missing = saved - self.ledger.acknowledged_at.keys()
        return found + [f"message {id} has not arrived at {receiver}" for receiver, id in sorted(missing)[:10]]

    def cancel(self) -> None:
        self._pacer.cancel()
        for task in self._sending:
            task.cancel()

    def _begin(self) -> None:
        # A task of its own: a sender that waits for room must not delay the others.
        task = asyncio.create_task(self._send_one())
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _send_one(self) -> Sent:
        sender, receiver = self._rng.sample(self.users, 2)
        return await sender.send(receiver.uid)


@asynccontextmanager
async def chat_load(
    ports: Sequence[int],
    ledger: ChatLedger,
    users: int = 8,
    *,
    in_flight: int = 1,
    seed: int = 1,
) -> AsyncIterator[ChatLoad]:
    urls = [f"ws://127.0.0.1:{port}/ws" for port in ports]
    everyone = [
        ChatUserLoad(FIRST_UID + at, urls[at % len(urls) :] + urls[: at % len(urls)], ledger, in_flight=in_flight)
        for at in range(users)
    ]
    load = ChatLoad(everyone, ledger, Random(seed))
    try:
        await asyncio.gather(*(one.open() for one in everyone))
        yield load
    finally:
        load.cancel()
        await asyncio.gather(*(one.close() for one in everyone))


FLAP_EVERY_S = 0.3


@dataclass(frozen=True, slots=True)
class Ledgers:
    chat: ChatLedger
    speech: SpeechLedger
    rooms: RoomLedger


class Clients:
    def __init__(self, chat: ChatLoad, speech: SpeechLoad, rooms: RoomLoad, rng: Random) -> None:
        self._chat, self._speech, self.rooms = chat, speech, rooms
        self._rng = rng
        self._flapping: asyncio.Task[None] | None = None

    @classmethod
    @asynccontextmanager
    async def open(
        cls, ports: Sequence[int], seed: int, speakers: int, chat_users: int, room_members: int
    ) -> AsyncIterator[Self]:
        async with AsyncExitStack() as stack:
            chat = await stack.enter_async_context(chat_load(ports, ChatLedger(), chat_users, seed=seed))
            speech = await stack.enter_async_context(speech_load(ports, SpeechLedger(), speakers, seed=seed))
            rooms = await stack.enter_async_context(room_load(ports, room_members, seed=seed))
            clients = cls(chat, speech, rooms, Random(seed))
            stack.callback(clients.flap, False)
            yield clients

    def begin(self) -> Ledgers:
        ledgers = Ledgers(self._chat.ledger.next(), SpeechLedger(), RoomLedger())
        self._chat.begin(ledgers.chat)
        self._speech.begin(ledgers.speech)
        self.rooms.begin(ledgers.rooms)
        return ledgers

    def start(self, messages_per_s: float, utterances_per_s: float, captions_per_s: float) -> None:
        self._chat.start(messages_per_s)
        self._speech.start(utterances_per_s)
        self.rooms.start(captions_per_s)

    async def stop(self) -> None:
        await asyncio.gather(self._chat.stop(), self._speech.stop(), self.rooms.stop())

    async def settle(self, timeout_s: float) -> list[str]:
        """What is outstanding after so long; empty if everything is settled."""
        loads = (self._chat, self._speech, self.rooms)
        outstanding = await asyncio.gather(*(one.settle(timeout_s) for one in loads))
        return [sentence for each in outstanding for sentence in each]

    def move(self, users: Collection[int]) -> None:
        """These chat users reconnect to the next instance."""
        for user in self._chat.users:
            if user.uid in users:
                user.reconnect()

    # -- clients that are faults themselves ----------------------------------------------------------

    def flap(self, on: bool) -> None:
        """Half of the clients lose their connections again and again."""
        if self._flapping is not None:
            self._flapping.cancel()
            self._flapping = None
        if on:
            self._flapping = asyncio.create_task(self._flap(), name="flapping")

    def slow_reader(self, on: bool) -> None:
        """A third of the clients stops reading."""
        for user in self._chat.users[::3]:
            if on:
                user.slow.start()
            else:
                user.slow.stop()
        for speaker in self._speech.speakers[::3]:
            if on:
                speaker.stop_reading()
            else:
                speaker.slow.stop()
        for member in self.rooms.members[::3]:
            if on:
                member.slow.start()
            else:
                member.slow.stop()

    async def _flap(self) -> None:
        while True:
            some: list[ChatUserLoad | SpeakerLoad | RoomMemberLoad] = []
            some += [*self._chat.users[::2], *self._speech.speakers[::2], *self.rooms.members[::2]]
            if some:
                self._rng.choice(some).reconnect()
            await asyncio.sleep(FLAP_EVERY_S)
