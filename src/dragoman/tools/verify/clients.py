"""All clients of a cluster while it is being broken: chat users and speakers, with one interface for the faults.

    async with Clients.open(ports, seed=1, speakers=6, chat_users=8) as clients:
        ledgers = clients.begin()                     # a new phase: from now on everything is written into these
        clients.start(messages_per_s=40, utterances_per_s=10)
        …                                            # break something, repair it
        await clients.stop()
        outstanding = await clients.settle(timeout_s=30)   # what is still missing, as sentences

Connections last from one phase to the next. All times in ledgers are of `time.monotonic`.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Self

from dragoman.tools.verify.chat_ledger import ChatLedger
from dragoman.tools.verify.chat_load import ChatLoad, ChatUserLoad, chat_load
from dragoman.tools.verify.speech_ledger import SpeechLedger
from dragoman.tools.verify.speech_load import SpeakerLoad, SpeechLoad, speech_load

FLAP_EVERY_S = 0.3


@dataclass(frozen=True, slots=True)
class Ledgers:
    chat: ChatLedger
    speech: SpeechLedger


class Clients:
    def __init__(self, chat: ChatLoad, speech: SpeechLoad, rng: Random) -> None:
        self._chat, self._speech = chat, speech
        self._rng = rng
        self._flapping: asyncio.Task[None] | None = None

    @classmethod
    @asynccontextmanager
    async def open(cls, ports: Sequence[int], seed: int, speakers: int, chat_users: int) -> AsyncIterator[Self]:
        async with AsyncExitStack() as stack:
            chat = await stack.enter_async_context(chat_load(ports, ChatLedger(), chat_users, seed=seed))
            speech = await stack.enter_async_context(speech_load(ports, SpeechLedger(), speakers, seed=seed))
            clients = cls(chat, speech, Random(seed))
            stack.callback(clients.flap, False)
            yield clients

    def begin(self) -> Ledgers:
        ledgers = Ledgers(self._chat.ledger.next(), SpeechLedger())
        self._chat.begin(ledgers.chat)
        self._speech.begin(ledgers.speech)
        return ledgers

    def start(self, messages_per_s: float, utterances_per_s: float) -> None:
        self._chat.start(messages_per_s)
        self._speech.start(utterances_per_s)

    async def stop(self) -> None:
        await asyncio.gather(self._chat.stop(), self._speech.stop())

    async def settle(self, timeout_s: float) -> list[str]:
        """What is outstanding after so long; empty if everything is settled."""
        outstanding = await asyncio.gather(self._chat.settle(timeout_s), self._speech.settle(timeout_s))
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

    async def _flap(self) -> None:
        some: list[ChatUserLoad | SpeakerLoad] = [*self._chat.users[::2], *self._speech.speakers[::2]]
        while some:
            self._rng.choice(some).reconnect()
            await asyncio.sleep(FLAP_EVERY_S)
