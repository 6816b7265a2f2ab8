"""Everybody who uses a cluster while it is being broken: one door for whoever breaks it.

    async with Crowds.open(ports, seed=1, speakers=6, chatters=8) as crowds:
        ledgers = crowds.begin()                     # a new part: from now on everything is written into these
        crowds.talk(messages_per_s=40, utterances_per_s=10)
        …                                            # break something, mend it
        await crowds.stop_talking()
        owed = await crowds.quiet(patience_s=30)     # what is still missing, in words

Connections last from one part to the next, as those of people would. All times in ledgers are of `time.monotonic`.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Self

from dragoman.verify.chat_crowd import ChatCrowd, chatting
from dragoman.verify.chat_ledger import ChatLedger

FLAP_EVERY_S = 0.3


@dataclass(frozen=True, slots=True)
class Ledgers:
    chat: ChatLedger


class Crowds:
    def __init__(self, chat: ChatCrowd, rng: Random) -> None:
        self._chat = chat
        self._rng = rng
        self._flapping: asyncio.Task[None] | None = None

    @classmethod
    @asynccontextmanager
    async def open(cls, ports: Sequence[int], seed: int, speakers: int, chatters: int) -> AsyncIterator[Self]:
        async with AsyncExitStack() as stack:
            chat = await stack.enter_async_context(chatting(ports, ChatLedger(), chatters, seed=seed))
            crowds = cls(chat, Random(seed))
            stack.callback(crowds.flap, False)
            yield crowds

    def begin(self) -> Ledgers:
        ledgers = Ledgers(self._chat.ledger.next())
        self._chat.begin(ledgers.chat)
        return ledgers

    def talk(self, messages_per_s: float, utterances_per_s: float) -> None:
        self._chat.talk(messages_per_s)

    async def stop_talking(self) -> None:
        await self._chat.stop_talking()

    async def quiet(self, patience_s: float) -> list[str]:
        """What is still owed to somebody after so long; nothing when all is settled."""
        return await self._chat.settle(patience_s)

    # -- people who are faults themselves ----------------------------------------------------------

    def flap(self, on: bool) -> None:
        """Some receivers lose their connections again and again."""
        if self._flapping is not None:
            self._flapping.cancel()
            self._flapping = None
        if on:
            self._flapping = asyncio.create_task(self._flap(), name="flapping")

    def slow_reader(self, on: bool) -> None:
        """Some stop reading what is sent to them."""
        for one in self._chat.chatters[::3]:
            if on:
                one.slow.start()
            else:
                one.slow.stop()

    async def _flap(self) -> None:
        while True:
            self._rng.choice(self._chat.chatters[::2]).flap()
            await asyncio.sleep(FLAP_EVERY_S)
