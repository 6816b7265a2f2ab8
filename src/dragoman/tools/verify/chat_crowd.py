"""A crowd that chats, by the SDK, and keeps a ledger of what it was told while things break.

    async with chatting(ports, ledger, users=8) as crowd:
        crowd.talk(per_s=100)
        …                                    # kill, pause, restart
        await crowd.quiet()                  # nobody says more; all is saved and all has arrived
    assert ledger.check(rows) == []

Everybody may write to everybody, at random, and reads as fast as it comes. Each user knows all ports, beginning with
another one, so they are spread over the instances and find the next when theirs is gone.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random

import jwt

from dragoman.client.chat import Chat, Message, Sent, Timing
from dragoman.tools.verify.chat_ledger import Answer, ChatLedger
from dragoman.tools.verify.slow_reader import SlowReader
from dragoman.tools.verify.waiting import until

DEVELOPMENT_SECRET = "change-me-please-change-me-please-change-me"
ISSUER = "mini-im"
FIRST_UID = 1001
PATIENT = Timing(resend_s=5.0, backoff_first_s=0.05, backoff_longest_s=0.5, close_s=5.0)


def token(uid: int, *, secret: str = DEVELOPMENT_SECRET, lasts_s: float = 3600.0, version: int = 0) -> str:
    """An access token as a login would give."""
    now = int(time.time())
    claims = {"iss": ISSUER, "iat": now, "exp": now + int(lasts_s), "uid": uid, "typ": "access", "sv": version}
    return jwt.encode(claims, secret, algorithm="HS256")


class NotQuiet(Exception):
    """Patience is over; says what is still owed."""


class Chatter:
    """One user."""

    def __init__(self, uid: int, urls: Sequence[str], ledger: ChatLedger, *, in_flight: int, timing: Timing) -> None:
        self.uid = uid
        self.ledger = ledger
        self._said = 0
        self._connections = 1  # raised when one ends: frames that come with AUTH_OK precede `_connection`
        self._heard_at = time.monotonic()
        self._reading: asyncio.Task[None] | None = None
        # A function, so that a refused token is no end: none of these is ever invalid for long.
        self.chat = Chat(
            urls,
            token=lambda: token(uid),
            in_flight=in_flight,
            timing=timing,
            on_receipt=self._noted,
            on_connection=self._connection,
            on_arrival=self._arrived,
            on_exchange=self._exchanged,
        )
        self.slow = SlowReader(lambda: self.chat.socket)

    async def open(self) -> None:
        await self.chat.open()
        self._reading = asyncio.create_task(self._read(), name=f"chatter-{self.uid}")

    async def say(self, to: int) -> Sent:
        self._said += 1
        name, body = f"{self.uid}-{self._said}", f"message {self._said} of {self.uid}"
        self.ledger.sent(self.uid, name, to, body)
        return await self.chat.send(to, body, client_msg_id=name)

    def flap(self) -> None:
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
        self._heard_at = time.monotonic()
        self.ledger.arrived(self.uid, message.from_user, message.client_msg_id, message.server_msg_id)

    def _connection(self, up: bool, why: str) -> None:
        if up:
            self.ledger.connected.append((self.uid, time.monotonic()))
        else:
            self._connections += 1
            self.ledger.connection_lost(self.uid, self._heard_at)

    def _exchanged(self, client_msg_id: str, what: str, ts: int) -> None:
        if what == "sent":
            self.ledger.requested(self.uid, client_msg_id, self._connections)
        else:
            self.ledger.answered(self.uid, client_msg_id, self._connections, Answer(what), ts)

    def _noted(self, sent: Sent) -> None:
        self._heard_at = time.monotonic()
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


class ChatCrowd:
    def __init__(self, chatters: Sequence[Chatter], ledger: ChatLedger, rng: Random) -> None:
        self.chatters, self.ledger = chatters, ledger
        self._rng = rng
        self._talking: asyncio.Task[None] | None = None
        self._saying: set[asyncio.Task[Sent]] = set()

    def begin(self, ledger: ChatLedger) -> None:
        """From now on everything is written into this one."""
        self.ledger = ledger
        for one in self.chatters:
            one.ledger = ledger

    def talk(self, per_s: float) -> None:
        """From now on, so many messages a second, whoever to whomever."""
        if per_s <= 0 or not self.chatters:
            return
        self._talking = asyncio.create_task(self._talk(per_s), name="chat-crowd")

    async def say(self, count: int) -> None:
        """So many messages, as fast as they are taken."""
        for _ in range(count):
            await self._one_says()

    async def stop_talking(self) -> None:
        talking, self._talking = self._talking, None
        if talking is not None:
            talking.cancel()
            await asyncio.wait({talking})
            if not talking.cancelled():
                talking.result()

    async def quiet(self, patience_s: float = 60.0) -> None:
        """Nobody says more; wait until everything is saved or refused, and has arrived. Raises NotQuiet."""
        await self.stop_talking()
        owed = await self.settle(patience_s)
        if owed:
            raise NotQuiet(f"waited {patience_s:g} s in vain: {owed}")

    async def settle(self, patience_s: float) -> list[str]:
        """What is still owed after so long, in words."""
        await until(lambda: not self._saying and not self.owed(), patience_s)
        return [f"{len(self._saying)} messages wait to be taken"] * bool(self._saying) + self.owed()

    def owed(self) -> list[str]:
        found = [f"{one.chat.unsaved} messages of {one.uid} are not saved" for one in self.chatters if one.chat.unsaved]
        saved = {(entry.to, entry.ids[-1]) for entry in self.ledger.entries.values() if entry.saved_at is not None}
        away = saved - self.ledger.acknowledged_at.keys()
        return found + [f"message {id} has not come to {receiver}" for receiver, id in sorted(away)[:10]]

    def cancel(self) -> None:
        for task in (self._talking, *self._saying):
            if task is not None:
                task.cancel()

    async def _talk(self, per_s: float) -> None:
        began, said = time.monotonic(), 0
        while True:
            while said < (time.monotonic() - began) * per_s:
                # Not awaited: one who waits for room must not keep the others from talking.
                task = asyncio.create_task(self._one_says())
                self._saying.add(task)
                task.add_done_callback(self._saying.discard)
                said += 1
            await asyncio.sleep(1 / per_s)

    async def _one_says(self) -> Sent:
        speaker, listener = self._rng.sample(self.chatters, 2)
        return await speaker.say(listener.uid)


@asynccontextmanager
async def chatting(
    ports: Sequence[int],
    ledger: ChatLedger,
    users: int = 8,
    *,
    in_flight: int = 1,
    timing: Timing = PATIENT,
    seed: int = 1,
    first_uid: int = FIRST_UID,
) -> AsyncIterator[ChatCrowd]:
    urls = [f"ws://127.0.0.1:{port}/ws" for port in ports]
    chatters = [
        Chatter(
            first_uid + at, urls[at % len(urls) :] + urls[: at % len(urls)], ledger, in_flight=in_flight, timing=timing
        )
        for at in range(users)
    ]
    crowd = ChatCrowd(chatters, ledger, Random(seed))
    try:
        await asyncio.gather(*(one.open() for one in chatters))
        yield crowd
    finally:
        crowd.cancel()
        await asyncio.gather(*(one.close() for one in chatters))
