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
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Self

from dragoman.tools.verify.chat_crowd import ChatCrowd, Chatter, chatting
from dragoman.tools.verify.chat_ledger import ChatLedger
from dragoman.tools.verify.speech_crowd import Speaker, SpeechCrowd, speaking
from dragoman.tools.verify.speech_ledger import SpeechLedger

FLAP_EVERY_S = 0.3


@dataclass(frozen=True, slots=True)
class Ledgers:
    chat: ChatLedger
    speech: SpeechLedger


class Crowds:
    def __init__(self, chat: ChatCrowd, speech: SpeechCrowd, rng: Random) -> None:
        self._chat, self._speech = chat, speech
        self._rng = rng
        self._flapping: asyncio.Task[None] | None = None

    @classmethod
    @asynccontextmanager
    async def open(cls, ports: Sequence[int], seed: int, speakers: int, chatters: int) -> AsyncIterator[Self]:
        async with AsyncExitStack() as stack:
            chat = await stack.enter_async_context(chatting(ports, ChatLedger(), chatters, seed=seed))
            speech = await stack.enter_async_context(speaking(ports, SpeechLedger(), speakers, seed=seed))
            crowds = cls(chat, speech, Random(seed))
            stack.callback(crowds.flap, False)
            yield crowds

    def begin(self) -> Ledgers:
        ledgers = Ledgers(self._chat.ledger.next(), SpeechLedger())
        self._chat.begin(ledgers.chat)
        self._speech.begin(ledgers.speech)
        return ledgers

    def talk(self, messages_per_s: float, utterances_per_s: float) -> None:
        self._chat.talk(messages_per_s)
        self._speech.talk(utterances_per_s)

    async def stop_talking(self) -> None:
        await asyncio.gather(self._chat.stop_talking(), self._speech.stop_talking())

    async def quiet(self, patience_s: float) -> list[str]:
        """What is still owed to somebody after so long; nothing when all is settled."""
        owed = await asyncio.gather(self._chat.settle(patience_s), self._speech.settle(patience_s))
        return [sentence for each in owed for sentence in each]

    def move(self, users: Collection[int]) -> None:
        """These users of chat come back on the next instance."""
        for chatter in self._chat.chatters:
            if chatter.uid in users:
                chatter.flap()

    # -- people who are faults themselves ----------------------------------------------------------

    def flap(self, on: bool) -> None:
        """Some lose their connections again and again."""
        if self._flapping is not None:
            self._flapping.cancel()
            self._flapping = None
        if on:
            self._flapping = asyncio.create_task(self._flap(), name="flapping")

    def slow_reader(self, on: bool) -> None:
        """Some stop reading what is sent to them."""
        for chatter in self._chat.chatters[::3]:
            if on:
                chatter.slow.start()
            else:
                chatter.slow.stop()
        for speaker in self._speech.speakers[::3]:
            if on:
                speaker.stop_reading()
            else:
                speaker.slow.stop()

    async def _flap(self) -> None:
        some: list[Chatter | Speaker] = [*self._chat.chatters[::2], *self._speech.speakers[::2]]
        while some:
            self._rng.choice(some).flap()
            await asyncio.sleep(FLAP_EVERY_S)
