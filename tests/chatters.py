"""A crowd that chats, by the SDK, and keeps a ledger of what it was told: for tests that break things meanwhile.

    async with chatting(ports, users=8, ledger=ledger) as crowd:
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

from dragoman.client.chat import Chat, Sent, Timing
from dragoman.client.chat.inbox import Inbox, Message, Taken
from ledger import Ledger
from waiting import wait_until

DEVELOPMENT_SECRET = "change-me-please-change-me-please-change-me"
ISSUER = "mini-im"
FIRST_UID = 1001
PATIENT = Timing(again_s=5.0, backoff_first_s=0.05, backoff_longest_s=0.5, close_s=5.0)


def token(uid: int, *, secret: str = DEVELOPMENT_SECRET, lasts_s: float = 3600.0, version: int = 0) -> str:
    """An access token as a login would give."""
    now = int(time.time())
    claims = {"iss": ISSUER, "iat": now, "exp": now + int(lasts_s), "uid": uid, "typ": "access", "sv": version}
    return jwt.encode(claims, secret, algorithm="HS256")


class WatchedInbox(Inbox):
    """Notes everything that comes over the wire, doubles as well, before the SDK drops them."""

    def __init__(self, ledger: Ledger, receiver: int, most: int = 1000) -> None:
        super().__init__(most)
        self._ledger, self._receiver = ledger, receiver

    def put(self, message: Message) -> Taken:
        taken = super().put(message)
        if taken is not Taken.NO_ROOM:  # what is not taken is owed, and comes again
            self._ledger.arrived(self._receiver, message.from_user, message.client_msg_id, message.server_msg_id)
        return taken


class Chatter:
    """One user."""

    def __init__(self, uid: int, urls: Sequence[str], ledger: Ledger, *, in_flight: int, timing: Timing) -> None:
        self.uid = uid
        self._ledger = ledger
        self._said = 0
        self._reading: asyncio.Task[None] | None = None
        # A function, so that a refused token is no end: none of these is ever invalid for long.
        self.chat = Chat(
            urls,
            token=lambda: token(uid),
            in_flight=in_flight,
            timing=timing,
            on_receipt=self._noted,
        )
        self.chat._keeper.inbox = WatchedInbox(ledger, uid)

    async def open(self) -> None:
        await self.chat.open()
        self._reading = asyncio.create_task(self._read(), name=f"chatter-{self.uid}")

    async def say(self, to: int) -> Sent:
        self._said += 1
        name, body = f"{self.uid}-{self._said}", f"message {self._said} of {self.uid}"
        self._ledger.sent(self.uid, name, to, body)
        return await self.chat.send(to, body, client_msg_id=name)

    async def close(self) -> None:
        await self.chat.leave()
        if self._reading is not None:
            await asyncio.wait({self._reading})
            if not self._reading.cancelled():
                self._reading.result()

    async def _read(self) -> None:
        async for message in self.chat.messages():
            self._ledger.acknowledged(self.uid, message.server_msg_id)

    def _noted(self, sent: Sent) -> None:
        name, id = sent.client_msg_id, sent.server_msg_id
        if sent.failed is not None:
            self._ledger.failed(self.uid, name, sent.failed)
        if sent.saved:
            self._ledger.saved(self.uid, name, id)
        elif sent.accepted:
            self._ledger.accepted(self.uid, name, id)
        for receipt in ("read", "delivered"):
            if receipt in sent.receipts:
                self._ledger.receipt(self.uid, name, receipt)


class Crowd:
    def __init__(self, chatters: Sequence[Chatter], ledger: Ledger, rng: Random) -> None:
        self.chatters, self.ledger = chatters, ledger
        self._rng = rng
        self._talking: asyncio.Task[None] | None = None
        self._saying: set[asyncio.Task[Sent]] = set()

    def talk(self, per_s: float) -> None:
        """From now on, so many messages a second, whoever to whomever."""
        self._talking = asyncio.create_task(self._talk(per_s), name="crowd")

    async def say(self, count: int) -> None:
        """So many messages, as fast as they are taken."""
        for _ in range(count):
            await self._one_says()

    async def quiet(self, patience_s: float = 60.0, *, all_arrived: bool = True) -> None:
        """Nobody says more; wait until everything is saved or refused, and has arrived."""
        if self._talking is not None:
            self._talking.cancel()
            await asyncio.wait({self._talking})
            if not self._talking.cancelled():
                self._talking.result()
        if self._saying:
            await asyncio.wait(self._saying)
        await wait_until(lambda: not any(one.chat.unsaved for one in self.chatters), patience_s, "all to be saved")
        if all_arrived:
            await wait_until(self._all_arrived, patience_s, "all to arrive")

    def _all_arrived(self) -> bool:
        owed = {(entry.to, entry.ids[-1]) for entry in self.ledger.entries.values() if entry.saved_at is not None}
        return owed <= self.ledger.acknowledged_at.keys()

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
    ledger: Ledger,
    users: int = 8,
    *,
    in_flight: int = 1,
    timing: Timing = PATIENT,
    seed: int = 1,
    first_uid: int = FIRST_UID,
) -> AsyncIterator[Crowd]:
    urls = [f"ws://127.0.0.1:{port}/ws" for port in ports]
    chatters = [
        Chatter(
            first_uid + at, urls[at % len(urls) :] + urls[: at % len(urls)], ledger, in_flight=in_flight, timing=timing
        )
        for at in range(users)
    ]
    crowd = Crowd(chatters, ledger, Random(seed))
    try:
        await asyncio.gather(*(one.open() for one in chatters))
        yield crowd
    finally:
        if crowd._talking is not None:
            crowd._talking.cancel()
        for task in list(crowd._saying):
            task.cancel()
        await asyncio.gather(*(one.close() for one in chatters))
